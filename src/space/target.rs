//! The stack that a study's settings are for: what of its objectives is predicted of that stack, and what is measured.

use std::fmt;

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use crate::tools::Tool;
use peft_tune_core::objective::{Constraint, Objective, PEAK_MEMORY, THROUGHPUT, target_of};
use peft_tune_core::predict::stack::StackDevice;
use peft_tune_core::recipe::{DataFormat, DataSettings};
use peft_tune_core::space::SearchSpace;

/// Another stack, and the device that it is to run on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Target {
    pub stack: Tool,
    /// Device of the stack. Without one only memory is predicted: the throughput stays the measured one.
    pub device: Option<StackDevice>,
}

impl Target {
    /// The name under which a study for this stack has `metric`.
    pub fn metric<'a>(&self, metric: &'a str) -> &'a str {
        let is_known = metric != THROUGHPUT || self.device.is_some();
        target_of(metric).filter(|_| is_known).unwrap_or(metric)
    }

    /// Puts what is predicted of the stack in the place of what is measured here. The phases of a trial stay as they are, so
    /// that both are known.
    pub(super) fn take_over(
        &self,
        objectives: &mut [Objective],
        constraints: &mut [Constraint],
        space: &mut SearchSpace,
    ) {
        let names = objectives.iter_mut().map(|one| &mut one.metric);
        for name in names.chain(constraints.iter_mut().map(|one| &mut one.metric)) {
            *name = self.metric(name).to_owned();
        }
        // What changes a cost here may change both there.
        let costs = [THROUGHPUT, PEAK_MEMORY];
        for affects in space.parameters.iter_mut().filter_map(|one| one.affects.as_mut()) {
            if affects.iter().any(|metric| costs.contains(&metric.as_str())) {
                affects.extend(costs.iter().filter_map(|cost| target_of(cost)).map(str::to_owned));
            }
        }
    }
}

impl Target {
    /// Has chats learnt as the stack learns them, where it says.
    pub(super) fn learn_as_there(&self, data: &mut DataSettings) {
        if may_be_chats(data.format) {
            data.template_targets = self.stack.template_targets().unwrap_or(data.template_targets);
        }
    }

    /// What is told where chats are learnt in another way than a study without a target learns them, as they are there.
    pub fn learns_otherwise(&self, data: &DataSettings) -> Option<String> {
        let is_as_there = self.stack.template_targets() == Some(data.template_targets);
        (is_as_there && !data.template_targets.is_all() && may_be_chats(data.format)).then(|| {
            format!(
                "chats are learnt as {} learns them: of what the chat template writes, the tokens that end turns alone \
                 (`data.template_targets: stop_tokens`)",
                self.stack.title()
            )
        })
    }
}

fn may_be_chats(format: DataFormat) -> bool {
    !matches!(
        format,
        DataFormat::PromptCompletion | DataFormat::Text | DataFormat::Tokenized
    )
}

impl Serialize for Target {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(2))?;
        map.serialize_entry("stack", self.stack.name())?;
        map.serialize_entry("device", &self.device.map(|device| device.sheet.name))?;
        map.end()
    }
}

impl fmt::Display for Target {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.device {
            Some(device) => write!(formatter, "{} on {}", self.stack.name(), device.sheet.name),
            None => write!(formatter, "{} on any device", self.stack.name()),
        }
    }
}
