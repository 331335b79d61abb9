//! Forward and backward passes in one dtype.

use super::passes::Passes;
use crate::model::Decoder;

/// A decoder in one dtype, with its passes.
pub(crate) struct ComputePath {
    pub(super) decoder: Decoder,
    pub(crate) passes: Passes,
}

/// Passes that compute a step.
pub(super) fn path_of<'a>(
    own: &'a mut ComputePath,
    fp32: &'a mut Option<ComputePath>,
    in_fp32: bool,
) -> &'a mut ComputePath {
    match fp32 {
        Some(path) if in_fp32 => path,
        _ => own,
    }
}
