//! Tokens of a row that are learnt.

use peft_tune_core::recipe::{DataSettings, LossOn, TemplateTargets};

/// Choice of what is learnt of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Learnt {
    pub loss_on: LossOn,
    pub template_targets: TemplateTargets,
}

impl Learnt {
    /// Whether every token of a chat is.
    pub(super) fn is_everything(self) -> bool {
        self.loss_on == LossOn::All && self.template_targets == TemplateTargets::All
    }
}

impl From<&DataSettings> for Learnt {
    fn from(settings: &DataSettings) -> Self {
        Self {
            loss_on: settings.loss_on,
            template_targets: settings.template_targets,
        }
    }
}
