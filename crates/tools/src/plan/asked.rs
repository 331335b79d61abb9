//! [`AskedSetting`]: a setting that is to be planned, and the grounds that a verdict will have.

use std::path::Path;

use super::{ModelConfig, PlanError};
use crate::Tool;
use crate::import::{Imported, take_length};
use peft_tune_core::predict::stack::{Sharing, StackSetting};
use peft_tune_core::recipe::{Recipe, TrainerKind};

/// Names that [`Sharing::from_name`] takes, in words.
pub const SHARING_NAMES: &str = "copies, zero1, zero2, zero3, fsdp or hybrid-N";

/// A setting of a tool, and what is to be said of it.
#[derive(Clone, Debug)]
pub struct AskedSetting {
    pub setting: StackSetting,
    /// The tool, and what told it, in words.
    pub tool: String,
    /// Tokens of a row, and how far rows are filled, in words.
    pub rows: String,
    /// Whether the number of devices is said.
    pub counts_devices: bool,
    pub notes: Vec<String>,
}

/// Choices about devices that are made beside a settings file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AskedChanges {
    /// Devices that share the work.
    pub devices: Option<u64>,
    pub sharing: Option<Sharing>,
    /// What is shared out lies in the host's memory.
    pub offload: bool,
    /// Rows have lengths of their own and are not packed.
    pub rows_differ: bool,
}

impl AskedSetting {
    /// The setting of what was read of the settings file at `path`, for a model; `longest` is the longest row of the data where that is
    /// known and nothing cuts the rows.
    ///
    /// # Errors
    /// A trainer that is not predicted of the tool; an expression for the target modules that selects none.
    pub fn of_file(
        path: &Path,
        mut imported: Imported,
        config: &ModelConfig,
        longest: Option<usize>,
    ) -> Result<Self, PlanError> {
        check_file(&imported)?;
        let of_model = of_model(&mut imported, config, longest)?;
        let setting = imported.setting();
        let mut notes = std::mem::take(&mut imported.assumed);
        notes.extend(of_model);
        if !imported.uncounted.is_empty() {
            let keys = imported.uncounted.join("`, `");
            notes.push(format!(
                "`{keys}` of {}: not known here, and not counted",
                path.display()
            ));
        }
        Ok(Self {
            tool: format!("{}, told {}", imported.tool.title(), imported.told_by),
            rows: rows_of(&setting, &imported),
            setting,
            counts_devices: false,
            notes,
        })
    }

    /// The setting that `recipe` becomes in a tool, with rows that are full.
    ///
    /// # Errors
    /// A trainer that is not predicted of the tool.
    pub fn of_recipe(recipe: &Recipe, tool: Tool) -> Result<Self, PlanError> {
        check_trainer(recipe.trainer, tool, "write `--stack trl`")?;
        let setting = tool.setting_of(recipe);
        Ok(Self {
            tool: format!("{}, as --stack says", tool.title()),
            rows: format!("{} tokens, full", setting.sequence_length),
            setting,
            counts_devices: recipe.batch.devices > 1,
            notes: Vec::new(),
        })
    }

    /// Takes what is chosen beside the file.
    pub fn change(&mut self, changes: AskedChanges) {
        let AskedChanges {
            devices,
            sharing,
            offload,
            rows_differ,
        } = changes;
        self.count_devices(devices);
        self.setting.sharing = sharing.unwrap_or(self.setting.sharing);
        self.setting.offloads |= offload;
        self.setting.rows_differ |= rows_differ;
    }

    /// Takes the number of devices that is given; says that one is assumed where work is shared out and none is.
    fn count_devices(&mut self, devices: Option<u64>) {
        if let Some(devices) = devices {
            self.setting.devices = devices;
            self.counts_devices = true;
        } else if self.setting.sharing != Sharing::Copies && self.setting.devices == 1 {
            self.notes
                .push("weights are shared out, but --devices is not given: one device is assumed".into());
        }
    }
}

/// Refuses what was read of a settings file where its trainer is predicted of another tool alone: nothing need be known of the model.
///
/// # Errors
/// [`PlanError::Trainer`].
pub fn check_file(imported: &Imported) -> Result<(), PlanError> {
    check_trainer(
        imported.recipe.trainer,
        imported.tool,
        "make a study of it with `init --from`, and plan that with `--stack trl`",
    )
}

fn check_trainer(trainer: TrainerKind, tool: Tool, instead: &'static str) -> Result<(), PlanError> {
    match tool.predicts(trainer) {
        true => Ok(()),
        false => Err(PlanError::Trainer {
            trainer,
            title: tool.title(),
            instead,
        }),
    }
}

/// What the model decides of a file: target modules by their names, and the length of rows that nothing cuts. Returns what is to be said.
fn of_model(imported: &mut Imported, config: &ModelConfig, longest: Option<usize>) -> Result<Vec<String>, PlanError> {
    let mut told = Vec::new();
    if imported.expression.is_some() {
        told.extend(imported.match_targets(config.architecture().as_ref())?);
    }
    if imported.is_uncut {
        let positions = config.shape()?.max_positions;
        told.push(take_length(&mut imported.recipe, longest, positions));
    }
    Ok(told)
}

/// Rows of a settings file in words.
fn rows_of(setting: &StackSetting, imported: &Imported) -> String {
    let tokens = setting.sequence_length;
    let whose = match imported.said.contains("sequence_length") {
        _ if imported.is_uncut => "as nothing cuts them",
        true => "as the file says",
        false => "as the tool has it where the file says nothing",
    };
    let filled = match imported.recipe.batch.packing {
        true => "packed, so that each is full",
        false => "not packed: the figures are those of micro-batches whose longest row is full",
    };
    format!("{tokens} tokens, {whose}, {filled}")
}
