//! The study file: putting it into its place, and what is said of it.

use super::args::Args;
use crate::cli::CliError;
use crate::cli::terminal::output::write_result;
use crate::cli::whole_output::WholeOutput;
use crate::draft::{Machine, Needs};
use crate::report::printable;
use crate::shell::shell_word;
use crate::space::Study;
use crate::tune::{CostSurvey, Forecast, TrainingRows};
use peft_tune_core::architecture::Architecture;

/// Writes the file, and says what to do with it.
pub(super) fn write(args: &Args, text: &str) -> Result<(), CliError> {
    let (whole, mut output) = WholeOutput::create(&args.output, args.force)?;
    output
        .write_all(text.as_bytes())
        .and_then(|()| output.flush())
        .map_err(CliError::failed)?;
    drop(output);
    whole.keep()?;
    let file = printable(&args.output.display().to_string());
    let word = shell_word(&args.output.to_string_lossy());
    write_result(&format!(
        "wrote {file}; next: peft-tune plan {word}, or peft-tune search {word}\n"
    ))
}

/// How many settings the file spans and how many of them are predicted to fit, rows taken as full.
pub(super) fn survey(study: &Study, architecture: &Architecture, machine: &Machine) -> String {
    let length = study.base.as_ref().map_or(0, |base| base.batch.sequence_length);
    let predictor = Needs::new(architecture, machine, length).into_predictor();
    let survey = CostSurvey::new(study, &Forecast::new(study, predictor, TrainingRows::default()));
    let kinds = survey.settings.len();
    let fitting = survey.settings.iter().filter(|one| one.fits).count();
    format!("{kinds} settings differ in memory or time; {fitting} of them are predicted to fit")
}
