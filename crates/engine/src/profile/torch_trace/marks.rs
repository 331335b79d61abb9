//! Names of events that say what a training is at: of PyTorch itself, of this program's worker, and of ranges that
//! people name with `record_function`.

use crate::span::StepPhase;

/// Beginning of the ranges that `profile.step()` makes.
const STEP: &str = "ProfilerStep#";
/// Beginning of the range that an optimizer's `step` makes.
const UPDATE: &str = "Optimizer.step#";
/// Beginning of what runs a node of the backward pass.
const BACKWARD: &str = "autograd::engine::evaluate_function";

/// Beginnings of names, with the phase that they mark. The passes of the worker hold its forward ranges.
const BEGINNINGS: [(&str, StepPhase); 7] = [
    ("enumerate(DataLoader)#", StepPhase::Data),
    (UPDATE, StepPhase::Optimizer),
    ("Optimizer.zero_grad#", StepPhase::Optimizer),
    (BACKWARD, StepPhase::Backward),
    ("peft-tune data", StepPhase::Data),
    ("peft-tune forward", StepPhase::Forward),
    ("peft-tune passes", StepPhase::Backward),
];

/// Names that people give to ranges, in small letters.
const NAMED: [(&str, StepPhase); 9] = [
    ("data", StepPhase::Data),
    ("dataloader", StepPhase::Data),
    ("data_loading", StepPhase::Data),
    ("forward", StepPhase::Forward),
    ("compute_loss", StepPhase::Forward),
    ("backward", StepPhase::Backward),
    ("optimizer", StepPhase::Optimizer),
    ("optimizer_step", StepPhase::Optimizer),
    ("clip_grad_norm", StepPhase::Optimizer),
];

/// The phase that an event of this name marks.
pub(super) fn phase_of(name: &str) -> Option<StepPhase> {
    let begins = BEGINNINGS.iter().find(|(beginning, _)| name.starts_with(beginning));
    let bare = || {
        let bare = name.trim_matches(|c: char| !c.is_alphanumeric()).to_ascii_lowercase();
        let words = bare.replace([' ', '-'], "_");
        NAMED.iter().find(|(named, _)| *named == words)
    };
    begins.or_else(bare).map(|(_, phase)| *phase)
}

/// Whether an event is a step of the profiler.
pub(super) fn is_step(name: &str) -> bool {
    name.starts_with(STEP)
}

/// Whether an event is an update.
pub(super) fn is_update(name: &str) -> bool {
    name.starts_with(UPDATE)
}

/// Whether an event is an op: nodes of the backward pass, marks and steps of an optimizer have no namespace, and what a compiler
/// made says so.
pub(super) fn is_op(name: &str) -> bool {
    name.contains("::") && !name.starts_with("autograd::") || name.contains("Compiled")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_are_known_by_the_names_of_ranges() {
        for (name, phase) in [
            (
                "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
                Some(StepPhase::Data),
            ),
            ("Optimizer.step#AdamW.step", Some(StepPhase::Optimizer)),
            (
                "autograd::engine::evaluate_function: MmBackward0",
                Some(StepPhase::Backward),
            ),
            ("peft-tune forward", Some(StepPhase::Forward)),
            ("## Forward ##", Some(StepPhase::Forward)),
            ("optimizer step", Some(StepPhase::Optimizer)),
            ("aten::mm", None),
            ("forwarding", None),
            ("", None),
        ] {
            assert_eq!(phase_of(name), phase, "{name}");
        }
    }

    #[test]
    fn ops_have_a_namespace() {
        assert!(
            ["aten::mm", "flash_attn::fwd", "Torch-Compiled Region"]
                .into_iter()
                .all(is_op)
        );
        assert!(
            ![
                "MmBackward0",
                "autograd::engine::evaluate_function: Mm",
                "ProfilerStep#3"
            ]
            .into_iter()
            .any(is_op)
        );
    }
}
