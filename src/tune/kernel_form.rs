//! The form of the ops that trials are measured in: what was measured in one says nothing of the costs in another.

use std::collections::BTreeMap;

use super::{TuneError, Tuner};
use crate::space::Backend;
use crate::store::{Store, StudyId};
use peft_tune_core::study::TrialNumber;
use peft_tune_kernels::Kernels;

impl Tuner<'_> {
    /// Runs trials in this form of the ops: what earlier ones measured in another form is measured again.
    #[must_use]
    pub fn with_kernels(mut self, kernels: Kernels) -> Self {
        self.kernels = kernels;
        self.memory.set_kernels(kernels);
        self
    }

    /// The form that trials run in takes the place of this one, in which a kernel failed earlier.
    #[must_use]
    pub fn instead_of(mut self, failed: Option<Kernels>) -> Self {
        self.instead_of = failed;
        self
    }

    /// Whether a trial was measured in the form of the ops that trials run in now.
    pub(super) fn is_of_this_form(&self, number: TrialNumber) -> bool {
        self.forms.get(&number).copied().unwrap_or_default() == self.kernels
    }

    /// Stores the form of the ops that a trial is measured in.
    pub(super) async fn record_form(&mut self, number: TrialNumber, kernels: Kernels) -> Result<(), TuneError> {
        let (store, id) = (self.parts.store, self.parts.id);
        if self.parts.study.backend == Backend::Native {
            let safer = self.safer.get(&number).map(|safer| safer.instead_of);
            let instead_of = safer.or(self.instead_of).map(Kernels::name);
            store.record_kernels(id, number, kernels.name(), instead_of).await?;
            self.forms.insert(number, kernels);
        }
        Ok(())
    }
}

/// The form of the ops of the stored trials of which it is known.
pub(super) async fn forms_of(store: &Store, id: StudyId) -> Result<BTreeMap<TrialNumber, Kernels>, TuneError> {
    let stored = store.kernels(id).await?;
    let form = |(number, name): (TrialNumber, String)| Some((number, Kernels::from_name(&name)?));
    Ok(stored.into_iter().filter_map(form).collect())
}
