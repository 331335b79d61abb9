//! Place in a step where a run on paper is: the phase and the module whose spans are open.

use super::recording::{Listener, begin_paper, end_paper, innermost_on_paper};
use super::{Module, Range, StepPhase};

/// A run on paper of this thread; dropping it ends the run. A recording of the thread hears nothing meanwhile.
#[must_use = "a run that is dropped at once is over"]
pub(crate) struct Placing {
    before: Listener,
}

impl Placing {
    /// Begins a run on paper.
    pub(crate) fn start() -> Self {
        Self { before: begin_paper() }
    }
}

impl Drop for Placing {
    fn drop(&mut self) {
        end_paper(std::mem::take(&mut self.before));
    }
}

/// The innermost open module of a run on paper.
pub(crate) fn module_around() -> Option<Module> {
    innermost_on_paper(|range| match range {
        Range::Module(module) => Some(*module),
        _ => None,
    })
}

/// The innermost open phase of a run on paper.
pub(crate) fn phase_around() -> Option<StepPhase> {
    innermost_on_paper(|range| match range {
        Range::Phase(phase) => Some(*phase),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::span::{MemoryReading, Probe, Recording, module, op, phase};

    #[test]
    fn a_run_on_paper_knows_the_innermost_spans_and_a_recording_goes_on_behind_it() {
        let recording = Recording::start(Probe {
            memory: Box::new(MemoryReading::default),
            device: None,
        });
        let placing = Placing::start();
        let forward = phase(StepPhase::Forward);
        {
            let _mlp = module(Module::Mlp);
            let _norm = module(Module::Norms);
            let _op = op("rms_norm", Default::default);
            assert_eq!(module_around(), Some(Module::Norms));
            let _again = phase(StepPhase::Recompute);
            assert_eq!(phase_around(), Some(StepPhase::Recompute));
        }
        assert_eq!((module_around(), phase_around()), (None, Some(StepPhase::Forward)));
        drop((forward, placing));
        assert_eq!(phase_around(), None);
        assert!(recording.take().is_empty());
        drop(phase(StepPhase::Backward));
        assert_eq!(recording.take().len(), 1);
    }
}
