//! Refusal of a study of which nothing can be predicted.

use crate::cli::CliError;
use crate::space::Study;
use crate::tune::CostSurvey;

/// Refuses a study without a setting whose costs are predicted.
///
/// # Errors
/// Bad input, with the reason of the first setting.
pub(super) fn refuse_unpredicted(study: &Study, survey: &CostSurvey) -> Result<(), CliError> {
    match (survey.predicted, &survey.first_reason) {
        (0, Some(reason)) => Err(CliError::bad(format!(
            "no setting of {} can be predicted: {reason}",
            study.source.path().display()
        ))),
        _ => Ok(()),
    }
}
