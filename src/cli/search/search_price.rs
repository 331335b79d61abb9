//! Price of a search's workers: what the command line says, else the study, else the built-in list; and the time that a sum pays,
//! which the unchecked list does not decide.

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
/// Bad input: a sum where nobody said a price; errors of [`WorkerArgs::slots`].
pub(super) fn settle(
    study: &mut Study,
    workers: &WorkerArgs,
    price: Option<HourlyPrice>,
    budget: Option<Dollars>,
) -> Result<(), CliError> {
    let device = device_of(study, workers)?;
    let sheet = device.as_deref().and_then(predict::device_of_driver);
    let listed = sheet.and_then(|sheet| DevicePrice::listed(sheet.name));
    let of_study = study.price.take();
    let said = price.map(given).or(of_study);
    let Some(sum) = budget else {
        study.price = said.or(listed);
        return Ok(());
    };
    let price = WorkerPrice {
        device: said.ok_or_else(|| unsaid(sum, device.as_deref(), listed.as_ref()))?,
        devices: devices_of(study, device.as_deref()),
    };
    study.budget.time_s = Some(price.seconds(sum.0).min(MOST_S));
    study.price = Some(price.device);
    Ok(())
}

/// The refusal of a sum for devices that nobody said the price of.
fn unsaid(sum: Dollars, device: Option<&str>, listed: Option<&DevicePrice>) -> CliError {
    let device = device.unwrap_or("what the trials run on");
    let but = listed.map_or_else(String::new, |price| format!(" but the list's ({})", price.source));
    CliError::bad(format!(
        "`--budget '{}'`: no price of {device} is known{but}: give what yours costs with `--price`, such as `--price 0.50/h`, or \
         with `price` in the study's file",
        dollars(sum.0)
    ))
}

/// Price of a worker of a search whose devices' price is settled; `None` where that is not known.
///
/// # Errors
/// Errors of [`WorkerArgs::slots`].
pub(super) fn of_workers(study: &Study, workers: &WorkerArgs) -> Result<Option<WorkerPrice>, CliError> {
    let Some(price) = study.price.clone() else {
        return Ok(None);
    };
    let device = device_of(study, workers)?;
    Ok(Some(WorkerPrice {
        device: price,
        devices: devices_of(study, device.as_deref()),
    }))
}

/// Text of a sum before the time that it pays: `$5.00 = `; empty where there is none.
pub(super) fn sum_text(sum: Option<Dollars>) -> String {
    sum.map_or_else(String::new, |sum| format!("{} = ", dollars(sum.0)))
}

/// Number of the devices that a worker holds which computes on `device`.
fn devices_of(study: &Study, device: Option<&str>) -> u64 {
    // Processes on the processor share the machine, and a command's parameters are its own.
    match study.base.is_none() || device == Some("cpu") {
        true => 1,
        false => study.most_devices() as u64,
    }
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
        let paid = settled("", Some("2/h"), Some("$5")).unwrap();
        assert_eq!(
            (paid.budget.time_s, paid.price.unwrap().source.as_str()),
            (Some(9000.0), "--price")
        );
        let source = |price| settled("price: 2/h\n", price, None).unwrap().price.unwrap().source;
        assert_eq!(
            (source(None).as_str(), source(Some("1/h")).as_str()),
            ("the study file", "--price")
        );
    }

    #[test]
    fn a_sum_for_a_device_of_the_list_asks_for_its_price() {
        let listed = DevicePrice::listed("H200").unwrap();
        let told = unsaid(Dollars(5.0), Some("NVIDIA H200"), Some(&listed)).to_string();
        assert!(
            told.contains("no price of NVIDIA H200 is known but the list's (RunPod's price as reported by others"),
            "{told}"
        );
        assert!(told.contains("give what yours costs with `--price`"), "{told}");
        let told = unsaid(Dollars(5.0), None, None).to_string();
        assert!(
            told.contains("no price of what the trials run on is known: give"),
            "{told}"
        );
    }
}
