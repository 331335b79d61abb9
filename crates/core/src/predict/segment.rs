//! The segments that a step of a model is made of, and who traces them.

use super::trace::Trace;
use crate::plan::LayerKeep;

/// A part of a step that is traced by itself: layers that are alike have the same trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Segment {
    /// Embedded tokens, in the scratch.
    Embed,
    /// A layer forward: its input, in the scratch, is replaced by its output.
    Forward { layer: usize, keep: LayerKeep },
    /// The last norm, the loss head and the last norm's backward pass: the stream, in the scratch, becomes its gradient.
    Head,
    /// A layer backward, run forward again before where only its input was kept. The gradient of its output, in the scratch, is
    /// replaced by that of its input, where that is wanted.
    Backward {
        layer: usize,
        keep: LayerKeep,
        wants_dx: bool,
    },
    /// What is behind the first layer where layers have inputs of their own: those are let go of, and what makes them gets its
    /// gradients, from theirs in the scratch. So is the gradient of the embedded tokens, where it is wanted.
    EmbedBackward,
    /// The update of each training, one behind the other.
    Update,
}

/// A model whose segments can be traced, on one micro-batch.
pub trait StepModel {
    /// What a segment allocates and frees, from the state in which the segments before it leave the memory.
    ///
    /// # Errors
    /// Why it cannot be told, as a fragment of a sentence.
    fn trace(&self, segment: Segment) -> Result<Trace, String>;

    /// The same model in the steps that a precision schedule has in F32; itself where there are none.
    fn in_fp32(&self) -> &dyn StepModel;
}
