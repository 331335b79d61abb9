//! What a search does before it opens its study: model, data and predictions.

use std::sync::Arc;

use super::args::Args;
use super::preflight::Preflight;
use super::progress::SearchProgress;
use super::{announcement, preflight, search_price, target_stack};
use crate::cli::CliError;
use crate::cli::data::prepare::file_bytes;
use crate::cli::forecast::Grounds;
use crate::cli::terminal::output::tell;
use crate::cli::terminal::reading_progress::{QUICK_BYTES, reading_text};
use crate::space::Study;
use crate::store::Store;
use crate::tune::{Forecast, TargetForecast};

/// What a search needs before it opens its study.
pub(super) struct Ready {
    pub(super) store: Store,
    pub(super) preflight: Option<Preflight>,
    pub(super) forecast: Option<Arc<Forecast>>,
    pub(super) target: Option<Arc<TargetForecast>>,
}

/// Reads the model and the data and predicts the study, and says on the way what is known by then. Where the data take long to read,
/// what fits and how long trials take is said before.
pub(super) async fn prepare(args: &Args, study: &Study, progress: &SearchProgress) -> Result<Ready, CliError> {
    let say = |text: Option<String>| text.filter(|_| !args.json).into_iter().for_each(tell);
    let target = target_stack::of_study(study)?;
    let (slots, stack) = (args.workers.slots(study)?, args.workers.stack.as_ref());
    let together = args.workers.together_text();
    say(Some(announcement::plan_text(
        study,
        &args.database,
        &slots,
        together,
        args.budget,
    )));
    let price = search_price::of_workers(study, &args.workers)?;
    let mut grounds = None;
    let mut store = None;
    let data_bytes = study.base.as_ref().map_or(0, |base| file_bytes(&base.data));
    let takes_long = data_bytes > QUICK_BYTES;
    if takes_long {
        let opened = Store::open(&args.database.path()).await?;
        grounds = Grounds::of_search(study, &opened, &slots[0], stack).await?;
        let forecast = grounds.as_ref().map(Grounds::with_full_rows);
        say(forecast.and_then(|forecast| announcement::prediction_text(study, &forecast, price.as_ref())));
        store = Some(opened);
    }
    let reading = reading_text(data_bytes);
    progress.prepares(Some(if takes_long { &reading } else { "reading model and data" }));
    say(Some(reading).filter(|_| takes_long));
    let preflight = study
        .base
        .as_ref()
        .map(|base| preflight::check(study, base, progress.reading()))
        .transpose()?;
    progress.prepares(Some("predicting what settings cost"));
    let store = match store {
        Some(store) => store,
        None => Store::open(&args.database.path()).await?,
    };
    if !takes_long {
        grounds = Grounds::of_search(study, &store, &slots[0], stack).await?;
    }
    let forecast = grounds.map(|grounds| grounds.forecast(target.clone())).transpose()?;
    if !takes_long {
        say(forecast
            .as_deref()
            .and_then(|forecast| announcement::prediction_text(study, forecast, price.as_ref())));
    }
    progress.prepares(None);
    Ok(Ready {
        store,
        preflight,
        forecast,
        target,
    })
}
