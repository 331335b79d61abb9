//! Pruners by their names.

use super::{Asha, Dominance, Median, Pruner};
use peft_tune_core::space::{PrunerChoice, PrunerKind};

/// Makes the pruner of a study; `None` where every trial is finished.
pub fn build_pruner(choice: &PrunerChoice) -> Option<Box<dyn Pruner>> {
    Some(match choice.kind {
        PrunerKind::None => return None,
        PrunerKind::Dominance => Box::new(Dominance {
            warm_up: choice.warm_up,
            least_gain: choice.least_gain,
            worth: choice.worth,
        }),
        PrunerKind::Asha => Box::new(Asha {
            eta: choice.eta,
            least_steps: choice.least_steps,
        }),
        PrunerKind::Median => Box::new(Median {
            least_trials: usize::try_from(choice.least_trials).unwrap_or(usize::MAX),
            warm_up: choice.warm_up,
        }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_built_under_its_name() {
        for &kind in PrunerKind::ALL {
            let pruner = build_pruner(&PrunerChoice::new(kind));
            assert_eq!(pruner.map_or("none", |pruner| pruner.name()), kind.name());
        }
    }
}
