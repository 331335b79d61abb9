//! The segments that a step of a model is made of, and who traces them.

use std::fmt::Debug;
use std::sync::Arc;

use super::expert_load::ExpertLoad;
use super::host::Host;
use super::stream::StreamShape;
use super::trace::Trace;
use crate::plan::{LayerKeep, ModelPlan};
use crate::recipe::Recipe;

/// A part of a step that is traced by itself: layers that are alike have the same trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Segment {
    /// Refresh of what a layer's adapters need of the parameters as they are now, before a pass.
    Refresh { layer: usize },
    /// Embedded tokens, in the scratch; before them what else is made of the parameters.
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
    /// Work behind the first layer, where layers have inputs of their own or the embedding trains: those inputs are let
    /// go of, what makes them gets its gradients, from theirs in the scratch, and the embedding its own, from that of
    /// the embedded tokens there.
    EmbedBackward,
    /// The update of each training, one behind the other.
    Update,
}

/// A model whose segments can be traced, on one micro-batch.
pub trait StepModel {
    /// Trace of what a segment allocates and frees, from the state in which the segments before it leave the memory.
    ///
    /// # Errors
    /// Why it cannot be told, as a fragment of a sentence.
    fn trace(&self, segment: Segment) -> Result<Trace, String>;

    /// Model in the steps that a precision schedule has in F32; itself where there are none.
    fn in_fp32(&self) -> &dyn StepModel;
}

/// A model that one recipe trains, or that several train together.
pub trait TrainedModel: Debug + Send + Sync {
    /// A step in which each training has its own micro-batch of `streams`, whose tokens lie on experts as `load` says.
    ///
    /// # Errors
    /// More or fewer micro-batches than trainings, as a fragment of a sentence.
    fn on(&self, streams: &[&StreamShape], load: ExpertLoad) -> Result<Box<dyn StepModel + '_>, String>;
}

/// Source of models: the engine has the layers.
pub trait Models: Debug + Send + Sync {
    /// The model that `trainings` train, together where there are several.
    ///
    /// # Errors
    /// Why there is none, as a fragment of a sentence.
    fn of(&self, trainings: &[(&ModelPlan, &Recipe)], host: Host) -> Result<Arc<dyn TrainedModel>, String>;
}
