//! Options of a receipt.

use crate::cli::CliError;
use crate::export::ExportFormat;
use crate::space::Seconds;
use crate::tools::Tool;

/// Tools whose steps are recorded.
const TOOLS: [Tool; 4] = [Tool::Trl, Tool::Peft, Tool::Axolotl, Tool::LlamaFactory];

/// Whether the installed tool trains a few steps, and what is made of differences.
#[derive(Clone, Debug, Default, PartialEq, clap::Args)]
pub(super) struct ReceiptArgs {
    /// Train ten steps with the tool as it is installed for --python and with the built-in engine, from one adapter, and fail where
    /// they differ. The receipt lies beside the files: receipt.json, and receipt.txt as a table.
    #[arg(long)]
    pub receipt: bool,
    /// Take a receipt with differences: they are told, and the exit code is 0.
    #[arg(long, requires = "receipt")]
    pub accept: bool,
    /// Time that the tool may take for its steps [default: 10m]
    #[arg(long, value_name = "TIME", requires = "receipt")]
    pub receipt_within: Option<Seconds>,
}

impl ReceiptArgs {
    /// Refuses a receipt of what no tool trains from, and of tools whose steps are not recorded.
    ///
    /// # Errors
    /// Bad input, with the tools that there are receipts of.
    pub(super) fn is_for(&self, format: Option<ExportFormat>) -> Result<(), CliError> {
        let tool = format.and_then(ExportFormat::tool);
        if !self.receipt || tool.is_some_and(|tool| TOOLS.contains(&tool)) {
            return Ok(());
        }
        let all = TOOLS.map(Tool::name).join(", ");
        Err(CliError::bad(format!(
            "there are receipts of {all} alone: export this format without --receipt"
        )))
    }
}
