//! Price of a search's workers: what the command line says, else the study, else the built-in list; and the time that a sum pays.

use super::changed_inputs::device_input;
use super::worker_args::WorkerArgs;
use crate::cli::CliError;
use crate::cli::options::price::given;
use crate::report::dollars;
use crate::space::{Dollars, HourlyPrice, Study};
use peft_tune_core::predict;
use peft_tune_core::predict::{DevicePrice, WorkerPrice};

/// Longest time that a sum buys: ten years.
const MOST_S: f64 = 10.0 * 366.0 * 86_400.0;

/// Settles what the devices of a search cost, and where a sum is its `budget`, the time that this pays.
///
/// # Errors
/// Bad input: a sum without a price; errors of [`WorkerArgs::slots`].
pub(super) fn settle(
    study: &mut Study,
    workers: &WorkerArgs,
    price: Option<HourlyPrice>,
    budget: Option<Dollars>,
) -> Result<(), CliError> {
    let device = device_of(study, workers)?;
    let listed = || DevicePrice::listed(predict::device_of_driver(device.as_deref()?)?.name);
    let of_study = study.price.take();
    study.price = price.map(given).or(of_study).or_else(listed);
    let Some(Dollars(sum)) = budget else {
        return Ok(());
    };
    let Some(price) = of_workers(study, workers)? else {
        return Err(CliError::bad(format!(
            "`--budget '{}'`: no price of {} is known: give one with `--price`, such as `--price 0.50/h`, or with `price` in the study's \
             file",
            dollars(sum),
            device.as_deref().unwrap_or("what the trials run on")
        )));
    };
    study.budget.time_s = Some(price.seconds(sum).min(MOST_S));
    Ok(())
}

/// Price of a worker of a search whose devices' price is settled; `None` where that is not known.
///
/// # Errors
/// Errors of [`WorkerArgs::slots`].
pub(super) fn of_workers(study: &Study, workers: &WorkerArgs) -> Result<Option<WorkerPrice>, CliError> {
    let Some(device) = study.price.clone() else {
        return Ok(None);
    };
    // Processes on the processor share the machine, and a command's parameters are its own.
    let is_one = study.base.is_none() || device_of(study, workers)?.as_deref() == Some("cpu");
    let devices = if is_one { 1 } else { study.most_devices() as u64 };
    Ok(Some(WorkerPrice { device, devices }))
}

/// Name of what a search's first worker computes on, as its driver has it, or `cpu`; `None` where a command or a launcher decides.
fn device_of(study: &Study, workers: &WorkerArgs) -> Result<Option<String>, CliError> {
    if study.base.is_none() || study.launcher.is_elsewhere() {
        return Ok(None);
    }
    let slot = workers.first_slot(study)?;
    Ok(Some(device_input(&slot, workers.stack.as_ref()).path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::space::{ReadOptions, StudyFile};

    #[derive(clap::Parser)]
    struct Command {
        #[command(flatten)]
        workers: WorkerArgs,
    }

    fn settled(lines: &str, price: Option<&str>, budget: Option<&str>) -> Result<Study, String> {
        let text = format!("model: m\ndata: {{train: [a.jsonl]}}\nspace: {{rank: [4, 8]}}\n{lines}");
        let options = ReadOptions { check_files: false };
        let mut study = StudyFile::parse(std::path::Path::new("space.yaml"), &text, options).unwrap();
        let workers = <Command as clap::Parser>::parse_from(["search", "--devices", "cpu"]).workers;
        let price = price.map(|price| price.parse().unwrap());
        let budget = budget.map(|budget| budget.parse().unwrap());
        settle(&mut study, &workers, price, budget).map_err(|error| error.to_string())?;
        Ok(study)
    }

    #[test]
    fn a_sum_is_the_time_that_the_price_pays() {
        let time = |lines: &str, price| settled(lines, price, Some("$5")).unwrap().budget.time_s;
        assert_eq!(time("price: 2/h\n", None), Some(9000.0));
        assert_eq!(time("price: 2/h\nbudget: {time: 1h}\n", Some("10/h")), Some(1800.0));
        let unsaid = settled("", None, Some("$5")).unwrap_err();
        assert!(
            unsaid.contains("no price of cpu is known") && unsaid.contains("--price 0.50/h"),
            "{unsaid}"
        );
        let source = |price| settled("price: 2/h\n", price, None).unwrap().price.unwrap().source;
        assert_eq!(
            (source(None).as_str(), source(Some("1/h")).as_str()),
            ("the study file", "--price")
        );
    }
}
