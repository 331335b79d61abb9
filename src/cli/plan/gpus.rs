//! `peft-tune plan --gpus`: the devices that have data sheets, ranked by what the study's training costs there.

use super::args::Args;
use super::gpus_text::{to_json, to_text};
use super::ranked_device::RankedDevice;
use super::unpredicted::refuse_unpredicted;
use crate::cli::CliError;
use crate::cli::forecast::PredictedModel;
use crate::cli::options::price::price_among;
use crate::cli::terminal::output::{terminal_width, write_result};
use crate::space::Study;
use crate::tune::{CostSurvey, Forecast, TrainingRows};
use peft_tune_core::predict::{DEVICES, DataSheet};

/// Ranks and prints.
///
/// # Errors
/// Bad input: a price without a device; a study of which nothing can be predicted.
pub(super) fn run(args: &Args, study: &Study, model: &PredictedModel, rows: &TrainingRows) -> Result<(), CliError> {
    let one = |sheet: &'static DataSheet| -> Result<RankedDevice, CliError> {
        let price = price_among(&args.price, sheet.name)?;
        let forecast = Forecast::new(study, model.clone().on_sheet(sheet), rows.clone());
        let forecast = forecast.within(sheet.memory_bytes as f64);
        let survey = CostSurvey::quick(study, &forecast);
        refuse_unpredicted(study, &survey)?;
        Ok(RankedDevice::new(sheet, price, &survey, &forecast))
    };
    let mut devices = DEVICES.iter().map(one).collect::<Result<Vec<_>, _>>()?;
    devices.sort_by(RankedDevice::ranked);
    let text = match args.json {
        true => to_json(study, &devices).map_err(CliError::failed)? + "\n",
        false => to_text(study, &devices, terminal_width()),
    };
    write_result(&text)
}
