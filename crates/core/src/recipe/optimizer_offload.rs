//! Places where the optimizer's states lie and updates are computed, one row for each.

use serde::Serialize;

use super::Recipe;
use super::named::named;

/// Processor that computes the updates, with the optimizer's states in its memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum OptimizerOffload {
    #[default]
    None,
    Host,
}

/// Row of the table of places.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct OptimizerOffloadRow {
    #[serde(skip)]
    pub kind: OptimizerOffload,
    pub name: &'static str,
    /// Names that are read beside `name`.
    pub aliases: &'static [&'static str],
    pub about: &'static str,
}

const ROWS: &[OptimizerOffloadRow] = &[
    OptimizerOffloadRow {
        kind: OptimizerOffload::None,
        name: "none",
        aliases: &[],
        about: "The device that trains has the states and updates.",
    },
    OptimizerOffloadRow {
        kind: OptimizerOffload::Host,
        name: "host",
        aliases: &["cpu"],
        about: "The host has the states and updates, on its threads, while the device goes on backward (arXiv:2101.06840).",
    },
];

named!(
    OptimizerOffload,
    OptimizerOffloadRow,
    ROWS,
    "OptimizerOffload",
    "Where the optimizer's states lie and its updates are computed."
);

impl OptimizerOffload {
    /// Whether the device that trains has them.
    pub fn is_none(&self) -> bool {
        *self == Self::None
    }
}

/// Why the updates of a recipe cannot be the host's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadOptimizerOffload {
    #[error(
        "`optimizer_offload: host` updates where the states lie, and `optimizer: {paged}` has them in host memory to update on the \
         device; write `optimizer: {unpaged}`, or `optimizer_offload: none`"
    )]
    Paged { paged: &'static str, unpaged: &'static str },
}

impl Recipe {
    /// Refuses a recipe whose updates cannot be computed where it says.
    ///
    /// # Errors
    /// An optimizer whose states come to the device page by page.
    pub fn check_optimizer_offload(&self) -> Result<(), BadOptimizerOffload> {
        let kind = self.optimizer.kind;
        match !self.optimizer.offload.is_none() && kind.is_paged() {
            true => Err(BadOptimizerOffload::Paged {
                paged: kind.name(),
                unpaged: kind.unpaged().name(),
            }),
            false => Ok(()),
        }
    }

    /// Whether updates wait for all gradients of a step, as far as the recipe decides: they are clipped by the norm of all of them,
    /// may overflow (fp16), or are added up over several devices first. What does not wait follows the last micro-batch's backward
    /// pass layer by layer.
    pub fn updates_wait(&self) -> bool {
        self.optimizer.max_grad_norm.is_some() || self.precision == super::Precision::Fp16 || self.batch.devices > 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::{DataSettings, OptimizerKind, Precision};

    #[test]
    fn paged_states_are_refused_by_name_and_all_others_are_taken() {
        for kind in OptimizerKind::ALL {
            let mut recipe = Recipe::new("model", DataSettings::default());
            recipe.optimizer.kind = kind;
            assert_eq!(recipe.check_optimizer_offload(), Ok(()));
            recipe.optimizer.offload = OptimizerOffload::Host;
            let told = recipe.check_optimizer_offload().map_err(|error| error.to_string());
            match kind.is_paged() {
                false => assert_eq!(told, Ok(())),
                true => assert!(
                    told.unwrap_err()
                        .contains(&format!("write `optimizer: {}`", kind.unpaged()))
                ),
            }
        }
        assert_eq!(OptimizerOffload::from_name("cpu"), Some(OptimizerOffload::Host));
    }

    #[test]
    fn what_needs_the_whole_gradient_waits_for_it() {
        let mut recipe = Recipe::new("model", DataSettings::default());
        recipe.optimizer.max_grad_norm = None;
        assert!(!recipe.updates_wait());
        let waits = |change: fn(&mut Recipe)| {
            let mut changed = recipe.clone();
            change(&mut changed);
            changed.updates_wait()
        };
        assert!(waits(|recipe| recipe.optimizer.max_grad_norm = Some(1.0)));
        assert!(waits(|recipe| recipe.precision = Precision::Fp16));
        assert!(waits(|recipe| recipe.batch.devices = 2));
    }
}
