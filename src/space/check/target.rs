//! The stack that a study is for.

use super::Context;
use crate::space::file::StudyFile;
use crate::space::{SpaceError, Target};
use crate::tools::Tool;
use peft_tune_core::predict;
use peft_tune_core::predict::stack::StackDevice;

impl Context<'_> {
    pub(super) fn target(&self, file: &StudyFile) -> Result<Option<Target>, SpaceError> {
        let rejected = |key: &str, message: String| SpaceError::Rejected {
            at: self.document.value(&[key]),
            message,
        };
        let Some(stack) = &file.target_stack else {
            return match &file.target_device {
                None => Ok(None),
                Some(_) => Err(SpaceError::Rejected {
                    at: self.document.key(&["target_device"]),
                    message: "a device says nothing without the tool that runs there; add `target_stack`, such as \
                              `target_stack: trl`"
                        .into(),
                }),
            };
        };
        let stack = Tool::from_name(stack).map_err(|error| rejected("target_stack", error.to_string()))?;
        let sheet = file.target_device.as_deref().map(predict::device).transpose();
        let sheet = sheet.map_err(|error| rejected("target_device", error.to_string()))?;
        let device = sheet.map(|sheet| StackDevice { sheet });
        Ok(Some(Target { stack, device }))
    }
}
