//! The form of the ops that a search runs its trials in, and how it differs from what ran before.

use crate::cli::CliError;
use crate::cli::terminal::output::tell;
use crate::store::{Store, StudyId};
use peft_tune_kernels::Kernels;

/// The form of the ops to run trials in: `asked`, or where a kernel of that failed in this study before, the safer one
/// that took its place. With the form that failed.
pub(super) async fn kernels_of(
    asked: Kernels,
    store: &Store,
    id: StudyId,
) -> Result<(Kernels, Option<Kernels>), CliError> {
    let Some(known) = store.kernel_forms().safer(id).await? else {
        return Ok((asked, None));
    };
    let failed = known.instead_of.as_deref().and_then(Kernels::from_name);
    match Kernels::from_name(&known.kernels) {
        Some(kernels) if failed == Some(asked) => {
            tell(format_args!(
                "a kernel of `--kernels {}` failed in this study: it goes on with `--kernels {}`",
                asked.flag(),
                kernels.flag()
            ));
            Ok((kernels, failed))
        }
        _ => Ok((asked, None)),
    }
}

/// Says that a study has trials whose costs do not compare with those to come.
pub(super) async fn warn_of_other_kernels(store: &Store, id: StudyId, kernels: Kernels) -> Result<(), CliError> {
    let known = store.kernel_forms().forms(id).await?;
    let others = known.values().filter(|form| *form != kernels.name()).count();
    if others > 0 {
        tell(format_args!(
            "{others} trials of this study were measured with other kernels than `{}`: their throughput and memory do not compare \
             with those of trials to come; another study name keeps them apart",
            kernels.flag()
        ));
    }
    Ok(())
}
