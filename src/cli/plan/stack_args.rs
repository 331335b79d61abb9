//! The options of `plan` that name another tool.

use std::path::PathBuf;

use clap::ArgGroup;

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
}

fn parse_sharing(text: &str) -> Result<Sharing, String> {
    match text.to_lowercase().as_str() {
        "copies" | "ddp" => Ok(Sharing::Copies),
        "zero1" => Ok(Sharing::Zero1),
        "zero2" => Ok(Sharing::Zero2),
        "zero3" => Ok(Sharing::Zero3),
        "fsdp" | "full" => Ok(Sharing::Full),
        other => match other.strip_prefix("hybrid-").and_then(|devices| devices.parse().ok()) {
            Some(devices) if devices > 0 => Ok(Sharing::Hybrid(devices)),
            _ => Err("write copies, zero1, zero2, zero3, fsdp or hybrid-N".into()),
        },
    }
}
