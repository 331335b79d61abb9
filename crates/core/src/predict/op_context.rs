//! Facts of a step that the time of its ops depends on.

use super::stream::StreamShape;
use crate::recipe::Precision;

/// Facts that an op's time depends on besides the op.
#[derive(Clone, Copy, Debug)]
pub(super) struct Context<'a> {
    pub precision: Precision,
    /// Whether two of each four values of base weights are left out.
    pub is_sparse: bool,
    /// The storage of the codes that are multiplied in place of base weights, where a training makes some.
    pub aware: Option<Precision>,
    /// Width of most heads.
    pub head_width: usize,
    pub stream: &'a StreamShape,
}

/// Share of attention's rate at which a delta rule runs, token by token.
pub(super) const DELTA_RULE_SHARE: f64 = 0.3;
