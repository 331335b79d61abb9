//! The options of `plan` that name another tool.

use std::path::PathBuf;

use clap::ArgGroup;

use crate::tools::plan::{AskedChanges, SHARING_NAMES};
use peft_tune_core::predict::stack::Sharing;

/// Another tool that is to train.
#[derive(Debug, clap::Args)]
#[command(group = ArgGroup::new("tool").args(["stack", "check"]).multiple(true))]
pub(super) struct StackArgs {
    /// Plan for another tool (peft, trl, axolotl, llamafactory, unsloth or torchtune), or for `peft-tune` in the same words.
    #[arg(long, value_name = "TOOL")]
    pub stack: Option<String>,
    /// Plan a settings file of another tool: TRL's YAML or command line, axolotl's or LLaMA-Factory's YAML, torchtune's
    /// config, an adapter_config.json.
    #[arg(long, value_name = "FILE", conflicts_with = "file")]
    pub check: Option<PathBuf>,
    /// Name the keys of that file, too, that change neither memory nor speed.
    #[arg(long, requires = "check")]
    pub verbose: bool,
    /// The model's folder or hub id, where the file names another.
    #[arg(long, value_name = "MODEL", requires = "planned")]
    pub model: Option<String>,
    /// Devices that share the work.
    #[arg(long, value_name = "N", requires = "planned")]
    pub devices: Option<u64>,
    /// What devices share out: copies (DDP), zero1, zero2, zero3, fsdp, or hybrid-N (FSDP in groups of N).
    #[arg(long, value_name = "FORM", value_parser = parse_sharing, requires = "tool")]
    pub sharing: Option<Sharing>,
    /// What is shared out lies in the host's memory; with `--stack peft-tune`, optimizer states and updates.
    #[arg(long, requires = "tool")]
    pub offload: bool,
    /// Rows have lengths of their own and are not packed: count the blocks that the allocator keeps for each length.
    #[arg(long, requires = "tool")]
    pub rows_differ: bool,
}

impl StackArgs {
    /// Whether another tool is asked for.
    pub(super) fn is_asked(&self) -> bool {
        self.stack.is_some() || self.check.is_some()
    }

    /// What is chosen beside the file.
    pub(super) fn changes(&self) -> AskedChanges {
        AskedChanges {
            devices: self.devices,
            sharing: self.sharing,
            offload: self.offload,
            rows_differ: self.rows_differ,
        }
    }
}

fn parse_sharing(text: &str) -> Result<Sharing, String> {
    Sharing::from_name(text).ok_or_else(|| format!("write {SHARING_NAMES}"))
}
