//! What a search is told before it begins.

use super::Tuner;
use peft_tune_kernels::Kernels;

impl Tuner<'_> {
    /// Runs trials in this form of the ops: what earlier ones measured in another form is measured again.
    #[must_use]
    pub fn with_kernels(mut self, kernels: Kernels) -> Self {
        self.forms.choose(kernels);
        self.memory.set_kernels(kernels);
        self
    }

    /// The form that trials run in takes the place of this one, in which a kernel failed earlier.
    #[must_use]
    pub fn instead_of(mut self, failed: Option<Kernels>) -> Self {
        self.forms.choose_instead_of(failed);
        self
    }
}
