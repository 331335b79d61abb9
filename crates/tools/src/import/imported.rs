//! [`Imported`]: what a settings file of any of the tools says, which is a recipe, and what the tool's training has
//! beside it.

use std::collections::BTreeSet;

use crate::Tool;
use peft_tune_core::predict::stack::{Number, StackChoices, StackSetting, WeightForm};
use peft_tune_core::recipe::settings::settings;
use peft_tune_core::recipe::{DataFormat, LossOn, Recipe};
use peft_tune_core::study::Params;

/// What a file says.
#[derive(Clone, Debug, PartialEq)]
pub struct Imported {
    /// The tool that trains from it.
    pub tool: Tool,
    /// What told the tool, in words.
    pub told_by: &'static str,
    /// The file's settings, and the tool's own where the file is silent. The model is empty where the file names none, and so
    /// are the files to train on. No file that is held out is an empty list.
    pub recipe: Recipe,
    /// What the file says of the tool's training beside the recipe.
    pub choices: StackChoices,
    /// Numbers that depend on how many rows the data have.
    pub later: AskedLater,
    /// Rows are as long as they come: nothing cuts them, and the recipe's length is none of the file's.
    pub is_uncut: bool,
    /// A regular expression for the target modules, which the model's names are to be held against; the recipe has all of them until
    /// then.
    pub expression: Option<String>,
    /// Names of the settings that the file says.
    pub said: BTreeSet<&'static str>,
    /// Lines on keys that change the training and that no recipe has.
    pub told: Vec<String>,
    /// Keys that change neither a setting nor memory and speed of a step.
    pub silent: Vec<String>,
    /// Keys that the tool does not know: of another version, or misspelt.
    pub unread: Vec<String>,
    /// Keys of these that may change what the tool's training needs.
    pub uncounted: Vec<String>,
    /// What could not be taken over, or had to be assumed, with what to do.
    pub notes: Vec<String>,
    /// Notes on the rows to train on, with what to do.
    pub data_notes: Vec<String>,
    /// What is assumed of a training in the tool, where the file does not say it.
    pub assumed: Vec<String>,
    /// The tool whose words the file has.
    pub(super) words: Tool,
}

impl Imported {
    /// Line on the keys that the tool does not know; `None` where there are none.
    pub fn unread_note(&self) -> Option<String> {
        let (title, version) = (self.words.title(), self.words.known_keys().version);
        let keys = self.unread.join("`, `");
        (!self.unread.is_empty()).then(|| {
            format!("passed over, as {title} (as of {version}) knows no such keys: `{keys}`; check their spelling")
        })
    }

    /// The settings that the file says, by name.
    pub fn params(&self) -> Params {
        let said = settings().filter(|row| self.said.contains(row.name));
        said.filter_map(|row| Some((row.name.to_owned(), (row.get)(&self.recipe)?)))
            .collect()
    }

    /// The setting that the tool runs from the file.
    pub fn setting(&self) -> StackSetting {
        let stack = self.tool.behaviour();
        let setting = StackSetting::of_recipe(stack, &self.recipe);
        if self.words.says_training() {
            return setting.with(&self.choices);
        }
        // All but the adapter is the tool's own.
        StackSetting {
            loads: Number::Half,
            trains: setting.trains,
            dora: setting.dora,
            ..StackSetting::new(stack, WeightForm::Numbers)
        }
    }

    /// Takes the format that the rows were recognised as, with the tokens that the tool then trains on.
    pub fn recognised(&mut self, format: DataFormat) {
        // Its own choice where the file says nothing of completions.
        if self.tool.import().learns_completions
            && self.recipe.data.format == DataFormat::Auto
            && format == DataFormat::PromptCompletion
        {
            self.recipe.data.loss_on = LossOn::Completions;
        }
        self.recipe.data.format = format;
    }
}

/// Numbers of a file that depend on how many rows its data have.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AskedLater {
    /// Share of the rows, from the first one on, that is read.
    pub read: Option<f64>,
    /// Rows that are held out.
    pub held_out: Option<u64>,
    /// Evaluations in an epoch.
    pub evaluations_per_epoch: Option<f64>,
    /// Share of all steps between two evaluations.
    pub evaluation_share: Option<f64>,
    /// How the tool counts the steps of a warm-up that is a share of all.
    pub warmup: Option<WarmupCount>,
}

/// How a tool counts the steps of a warm-up that is a share of all: whole ones, where trainings here take one more for what is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WarmupCount {
    /// Steps that it takes where they would be fewer, but not none.
    pub fewest: u64,
    /// Most steps, where the file does not say the share.
    pub most: Option<u64>,
}

impl WarmupCount {
    /// Steps of a share of so many.
    pub fn steps(self, share: f64, steps: u64) -> u64 {
        let whole = ((share * steps as f64) as u64).min(self.most.unwrap_or(u64::MAX));
        match whole {
            0 => 0,
            whole => whole.max(self.fewest),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_the_steps_is_counted_in_whole_ones() {
        let count = WarmupCount { fewest: 2, most: None };
        for (share, steps, counted) in [
            (0.1, 125, 12),
            (0.1, 120, 12),
            (0.03, 30, 0),
            (0.03, 40, 2),
            (0.5, 5, 2),
        ] {
            assert_eq!(count.steps(share, steps), counted, "{share} of {steps}");
        }
        let bounded = WarmupCount {
            most: Some(100),
            ..count
        };
        assert_eq!((bounded.steps(0.03, 10_000), bounded.steps(0.03, 1_000)), (100, 30));
    }
}
