//! How sure a trial's values are: measured in its one run, or confirmed by repeats.

use std::collections::BTreeMap;

use peft_tune_core::objective::THROUGHPUT;
use peft_tune_core::study::{Confirmed, Metrics, disturbed, in_peace};

/// The basis of a trial's values in few words: `measured`, or `confirmed ±1.2%` with the widest 95% interval of its repeats.
pub fn basis(confirmed: Option<&BTreeMap<String, Confirmed>>) -> String {
    let repeated = confirmed
        .into_iter()
        .flat_map(BTreeMap::values)
        .filter(|one| one.repeats > 1);
    match repeated.map(|one| one.interval).reduce(f64::max) {
        None => "measured".to_owned(),
        Some(interval) => format!("confirmed ±{}", percent(interval)),
    }
}

/// What repeats say, in a sentence: `confirmed by 3 repeats: throughput 5,120 ±1.2%`; `None` for a trial that was not
/// repeated.
pub fn confirmation_text(confirmed: Option<&BTreeMap<String, Confirmed>>) -> Option<String> {
    let confirmed = confirmed?;
    let repeats = confirmed
        .values()
        .map(|one| one.repeats)
        .max()
        .filter(|repeats| *repeats > 1)?;
    let values: Vec<String> = confirmed
        .iter()
        .map(|(metric, one)| {
            let value = super::metric_value(metric, one.value);
            format!("{} {value} ±{}", metric.replace('_', " "), percent(one.interval))
        })
        .collect();
    Some(format!("confirmed by {repeats} repeats: {}", values.join(", ")))
}

/// What is said of a disturbed measurement: `disturbed: something else slowed the measurement down; in peace throughput may be up
/// to 9,100`; `None` where it was quiet.
pub fn disturbance_text(metrics: &Metrics) -> Option<String> {
    disturbed(metrics)?;
    let best = in_peace(metrics.clone()).value(THROUGHPUT)?;
    Some(format!(
        "disturbed: something else slowed the measurement down; in peace throughput may be up to {}",
        super::metric_value(THROUGHPUT, best)
    ))
}

fn percent(share: f64) -> String {
    format!("{:.1}%", 100.0 * share)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn confirmed(interval: f64, repeats: u64) -> BTreeMap<String, Confirmed> {
        let value = 5120.0;
        let one = Confirmed {
            value,
            interval,
            repeats,
        };
        [("throughput".to_owned(), one)].into()
    }

    #[test]
    fn a_disturbed_value_is_said_with_its_upper_end() {
        let mut metrics: Metrics = [(THROUGHPUT, 5120.0)].into();
        assert_eq!(disturbance_text(&metrics), None);
        peft_tune_core::study::mark_disturbed(&mut metrics, 0.5);
        let text = disturbance_text(&metrics).unwrap();
        assert!(text.ends_with("may be up to 10,240"), "{text}");
    }

    #[test]
    fn repeats_make_a_value_confirmed() {
        assert_eq!(basis(None), "measured");
        assert_eq!(basis(Some(&confirmed(1.0, 1))), "measured");
        assert_eq!(basis(Some(&confirmed(0.0123, 3))), "confirmed ±1.2%");
        assert_eq!(confirmation_text(Some(&confirmed(1.0, 1))), None);
        assert_eq!(
            confirmation_text(Some(&confirmed(0.0123, 3))).unwrap(),
            "confirmed by 3 repeats: throughput 5,120 ±1.2%"
        );
    }
}
