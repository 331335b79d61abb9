//! The gradient of an embedding.

use candle_core::{Result, Tensor};

use crate::gpu::{Argument, Source, arguments, element_name, source};

static SOURCE: Source = source!("embedding");

/// Adds dy (T, H) to the rows `ids` (U32) of `into` (V, H) F32. Where a token occurs more than once its sum is made in no
/// fixed order: the last bits may differ from run to run.
pub(crate) fn backward_add(dy: &Tensor, ids: &Tensor, into: &Tensor) -> Result<()> {
    let (tokens, hidden) = dy.dims2()?;
    let dy = dy.contiguous()?;
    let name = format!("embedding_backward_{}", element_name(dy.dtype()).unwrap_or_default());
    let launch = SOURCE.launch(&name, [tokens, 1, 1], [256, 1, 1]);
    let arguments = arguments! { &dy, ids, into, hidden as u32 };
    launch.run(into.device(), &arguments)
}
