//! A study in the database, opened for a search.

use super::args::Args;
use super::changed_inputs::Content;
use super::kernels::kernels_of;
use super::preflight::Preflight;
use super::study_record::record_of;
use super::{changed_inputs, search_price, target_stack, trl};
use crate::cli::CliError;
use crate::cli::terminal::output::tell;
use crate::space::Study;
use crate::store::{OpenStudy, PRICE, Store};
use crate::tune::baseline;
use peft_tune_core::study::Params;
use peft_tune_kernels::Kernels;

/// A study of the database that is about to be searched, with what was found about it on the way.
pub(super) struct Opened {
    pub(super) open: OpenStudy,
    /// Whether the files are those that earlier trials read.
    pub(super) content: Content,
    pub(super) baseline: Option<Params>,
    pub(super) kernels: Kernels,
    /// The form that `kernels` took the place of.
    pub(super) instead_of: Option<Kernels>,
}

/// Opens the study in the database, as a new one or as one that goes on.
///
/// # Errors
/// A study that another process runs; other files than those that it began with; the database.
pub(super) async fn open(
    args: &Args,
    study: &Study,
    store: &Store,
    preflight: Option<Preflight>,
) -> Result<Opened, CliError> {
    let mut inputs = preflight.as_ref().map(|found| found.inputs.clone()).unwrap_or_default();
    if study.base.is_some() && !study.launcher.is_elsewhere() {
        let slot = args.workers.first_slot(study)?;
        inputs.push(changed_inputs::device_input(&slot, args.workers.stack.as_ref()));
    }
    inputs.extend(args.workers.stack.as_ref().map(trl::input));
    inputs.extend(study.target.into_iter().flat_map(target_stack::inputs));
    let content = changed_inputs::check(study, store, &inputs, args.accept_changed_inputs).await?;
    let baseline = baseline(study, preflight.as_ref().and_then(|found| found.family.width()));
    let mut record = record_of(study, preflight, args.workers.stack.as_ref());
    if let Some(price) = search_price::of_workers(study, &args.workers)? {
        record.definition[PRICE] = serde_json::json!(price);
    }
    if content == Content::Same && store.definitions().move_files(&record).await? {
        tell("the study's files lie elsewhere now and hold the same: it continues");
    }
    let open = store.studies().begin(&record).await?;
    store.inputs().record(open.id, &inputs).await?;
    if let Content::Changed { widened, .. } = &content {
        for widening in widened {
            store.widenings().record(open.id, widening).await?;
        }
    }
    let (kernels, instead_of) = kernels_of(args.workers.kernels.form(), store, open.id).await?;
    Ok(Opened {
        open,
        content,
        baseline,
        kernels,
        instead_of,
    })
}
