//! The form of the ops that trials are measured in: what was measured in one says nothing of the costs in another.
//!
//! Where a kernel fails, its trial is repeated in a safer form, and where that works, the rest of the search stays with it.

use std::collections::BTreeMap;

use super::kernel_fault::{KernelFault, SaferForm};
use crate::space::{Backend, Study};
use crate::store::{Store, StoreError, StudyId};
use peft_tune_core::study::{TrialNumber, TrialState};
use peft_tune_kernels::Kernels;

/// Forms of the ops that trials compute in, and that finished ones were measured in.
#[derive(Debug)]
pub(super) struct KernelForms {
    /// Whether trials have a form: a command and TRL compute as they like.
    are_known: bool,
    /// Form of trials to come.
    current: Kernels,
    /// Form that trials to come would run in, had it not failed.
    instead_of: Option<Kernels>,
    /// Trials whose kernels failed and that are repeated in a safer form.
    safer: BTreeMap<TrialNumber, SaferForm>,
    /// The form that each trial was measured in.
    measured: BTreeMap<TrialNumber, Kernels>,
}

impl KernelForms {
    /// Forms of the stored trials, as far as they are known.
    ///
    /// # Errors
    /// The database cannot be read.
    pub(super) async fn stored(study: &Study, store: &Store, id: StudyId) -> Result<Self, StoreError> {
        let stored = store.kernel_forms().forms(id).await?.into_iter();
        let measured = stored.filter_map(|(number, name)| Some((number, Kernels::from_name(&name)?)));
        Ok(Self {
            are_known: study.backend == Backend::Native,
            current: Kernels::default(),
            instead_of: None,
            safer: BTreeMap::new(),
            measured: measured.collect(),
        })
    }

    /// Lets trials to come run in this form.
    pub(super) fn choose(&mut self, kernels: Kernels) {
        self.current = kernels;
    }

    /// Notes that the form of trials to come takes the place of this one, in which a kernel failed earlier.
    pub(super) fn choose_instead_of(&mut self, failed: Option<Kernels>) {
        self.instead_of = failed;
    }

    /// The form of trials to come.
    pub(super) fn current(&self) -> Kernels {
        self.current
    }

    /// Whether the form of trials to come takes the place of one that failed.
    pub(super) fn is_instead_of_another(&self) -> bool {
        self.instead_of.is_some()
    }

    /// The form that the next attempt at a trial computes in.
    pub(super) fn of_next_attempt(&self, number: TrialNumber) -> Kernels {
        self.safer.get(&number).map_or(self.current, |safer| safer.kernels)
    }

    /// The form that a trial was measured in.
    pub(super) fn of_measured(&self, number: TrialNumber) -> Kernels {
        self.measured.get(&number).copied().unwrap_or_default()
    }

    /// Whether a trial was measured in the form of trials to come.
    pub(super) fn is_current(&self, number: TrialNumber) -> bool {
        self.of_measured(number) == self.current
    }

    /// Stores the form of the ops that a trial is measured in.
    ///
    /// # Errors
    /// The database cannot be written.
    pub(super) async fn record(
        &mut self,
        store: &Store,
        id: StudyId,
        number: TrialNumber,
        kernels: Kernels,
    ) -> Result<(), StoreError> {
        if self.are_known {
            let safer = self.safer.get(&number).map(|safer| safer.instead_of);
            let instead_of = safer.or(self.instead_of).map(Kernels::name);
            store
                .kernel_forms()
                .record(id, number, kernels.name(), instead_of)
                .await?;
            self.measured.insert(number, kernels);
        }
        Ok(())
    }

    /// Whether there is a safer form than the one that met a fault; the next attempts at the trial then compute in it.
    pub(super) fn fall_back(&mut self, number: TrialNumber, fault: KernelFault) -> bool {
        let Some(kernels) = fault.safer() else {
            return false;
        };
        tracing::warn!(
            trial = number.0,
            kernels = fault.kernels.name(),
            safer = kernels.name(),
            error = fault.message,
            "a kernel failed: the trial is repeated in a safer form"
        );
        let earlier = self.safer.get(&number).map(|safer| safer.instead_of);
        let instead_of = earlier.unwrap_or(fault.kernels);
        let safer = SaferForm {
            kernels,
            instead_of,
            fault,
        };
        self.safer.insert(number, safer);
        true
    }

    /// Notes that a trial is repeated no more.
    pub(super) fn give_up(&mut self, number: TrialNumber) {
        self.safer.remove(&number);
    }

    /// Takes in the end of a trial: returns the safer form in which it worked, where further ones do not compute in
    /// that yet.
    pub(super) fn ended(&mut self, number: TrialNumber, state: &TrialState) -> Option<SaferForm> {
        let safer = self.safer.remove(&number)?;
        let worked = matches!(state, TrialState::Complete { .. } | TrialState::Pruned { .. });
        (worked && self.current != safer.kernels).then_some(safer)
    }

    /// Lets further trials compute in this form.
    pub(super) fn stay_with(&mut self, safer: &SaferForm) {
        self.current = safer.kernels;
        self.instead_of.get_or_insert(safer.instead_of);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use peft_tune_core::study::Metrics;

    const TRIAL: TrialNumber = TrialNumber(3);

    fn forms() -> KernelForms {
        KernelForms {
            are_known: true,
            current: Kernels::Fused,
            instead_of: None,
            safer: BTreeMap::new(),
            measured: BTreeMap::new(),
        }
    }

    fn fault(kernels: Kernels) -> KernelFault {
        KernelFault {
            kernels,
            attention: None,
            message: "an illegal instruction".to_owned(),
        }
    }

    #[test]
    fn a_form_that_works_where_another_failed_is_that_of_all_further_trials() {
        let mut forms = forms();
        assert!(forms.fall_back(TRIAL, fault(Kernels::Fused)));
        let safer = forms.of_next_attempt(TRIAL);
        assert_ne!(safer, Kernels::Fused);
        assert_eq!(forms.of_next_attempt(TrialNumber(4)), Kernels::Fused);
        let metrics = Metrics::default();
        let worked = forms.ended(TRIAL, &TrialState::Complete { metrics }).unwrap();
        assert_eq!((worked.kernels, worked.instead_of), (safer, Kernels::Fused));
        forms.stay_with(&worked);
        assert_eq!((forms.current(), forms.is_instead_of_another()), (safer, true));
        assert!(
            !forms.is_current(TRIAL),
            "it was measured in the form that failed, as far as is known"
        );
    }

    #[test]
    fn what_is_given_up_changes_no_other_trial() {
        let mut forms = forms();
        assert!(forms.fall_back(TRIAL, fault(Kernels::Fused)));
        forms.give_up(TRIAL);
        assert_eq!(forms.of_next_attempt(TRIAL), Kernels::Fused);
        let metrics = Metrics::default();
        assert!(forms.ended(TRIAL, &TrialState::Complete { metrics }).is_none());
        assert!(
            !forms.fall_back(TRIAL, fault(Kernels::Reference)),
            "there is none below"
        );
    }
}
