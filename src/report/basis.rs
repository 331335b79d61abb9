//! How sure a trial's values are: measured in its one run, or confirmed by repeats.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use peft_tune_core::objective::{LOSS_ROWS, LOSS_ROWS_IN_ALL, Objective, PEAK_MEMORY, THROUGHPUT};
use peft_tune_core::study::{Confirmed, Metrics, TrialNumber, disturbed, in_peace};

/// The basis of a trial's values in few words: `measured` once, `confirmed ±1.2%` with the widest 95% interval where all
/// objectives were repeated, or else which were: `throughput ±1.2%`; of a variant also the training that has its loss:
/// `measured, loss of 29`.
pub fn basis(
    objectives: &[Objective],
    confirmed: Option<&BTreeMap<String, Confirmed>>,
    training: Option<&TrialNumber>,
) -> String {
    let loss = training.map(|training| format!(", loss of {training}"));
    basis_of_own(objectives, confirmed) + &loss.unwrap_or_default()
}

fn basis_of_own(objectives: &[Objective], confirmed: Option<&BTreeMap<String, Confirmed>>) -> String {
    let repeated = |metric: &str| confirmed?.get(metric).filter(|one| one.repeats > 1);
    let known: Vec<(&str, &Confirmed)> = objectives
        .iter()
        .filter_map(|one| Some((one.metric.as_str(), repeated(&one.metric)?)))
        .collect();
    let widest = known.iter().map(|(_, one)| one.interval).reduce(f64::max);
    match widest {
        None => "measured".to_owned(),
        Some(interval) if known.len() == objectives.len() => format!("confirmed ±{}", percent(interval)),
        Some(_) => {
            // Memory does not differ from run to run: it goes without saying.
            let noisy = known.iter().filter(|(metric, _)| *metric != PEAK_MEMORY);
            let parts: Vec<String> = noisy
                .map(|(metric, one)| format!("{} ±{}", metric.replace('_', " "), percent(one.interval)))
                .collect();
            match parts.is_empty() {
                true => "measured".to_owned(),
                false => parts.join(", "),
            }
        }
    }
}

/// What repeats say, in a sentence: `confirmed by 3 repeats: throughput 5,120 ±1.2%`, and apart from it what was repeated
/// more or less often: `; by 4: loss 1.932 ±0.4%`. `None` for a trial that was not repeated.
pub fn confirmation_text(confirmed: Option<&BTreeMap<String, Confirmed>>) -> Option<String> {
    let mut by_repeats: BTreeMap<Reverse<usize>, (u64, Vec<String>)> = BTreeMap::new();
    let repeated = || confirmed.into_iter().flatten().filter(|(_, one)| one.repeats > 1);
    for (metric, one) in repeated() {
        // The number that most metrics share comes first.
        let alike = repeated().filter(|(_, other)| other.repeats == one.repeats).count();
        let key = Reverse(alike * 1_000_000 + usize::try_from(one.repeats).unwrap_or(0).min(999_999));
        let value = super::metric_value(metric, one.value);
        let text = format!("{} {value} ±{}", metric.replace('_', " "), percent(one.interval));
        by_repeats
            .entry(key)
            .or_insert_with(|| (one.repeats, Vec::new()))
            .1
            .push(text);
    }
    let mut parts = by_repeats.into_values();
    let (repeats, values) = parts.next()?;
    let mut text = format!("confirmed by {repeats} repeats: {}", values.join(", "));
    for (repeats, values) in parts {
        text += &format!("; by {repeats}: {}", values.join(", "));
    }
    Some(text)
}

/// What is said of a disturbed measurement: `disturbed: something else slowed the measurement down, by how much is not known; undisturbed,
/// throughput is at most 9,100 (an upper bound, no estimate)`; `None` where it was quiet.
pub fn disturbance_text(metrics: &Metrics) -> Option<String> {
    disturbed(metrics)?;
    let best = in_peace(metrics.clone()).value(THROUGHPUT)?;
    Some(format!(
        "disturbed: something else slowed the measurement down, by how much is not known; undisturbed, throughput is at most {} \
         (an upper bound, no estimate)",
        super::metric_value(THROUGHPUT, best)
    ))
}

/// What is said of a loss that rests on a part of the held-out rows: `loss on 32 of 256 rows`; `None` where it rests on all.
pub fn loss_rows_text(metrics: &Metrics) -> Option<String> {
    let (rows, all) = (metrics.value(LOSS_ROWS)?, metrics.value(LOSS_ROWS_IN_ALL)?);
    Some(format!("loss on {rows:.0} of {all:.0} rows"))
}

fn percent(share: f64) -> String {
    format!("{:.1}%", 100.0 * share)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn confirmed(known: &[(&str, f64, f64, u64)]) -> BTreeMap<String, Confirmed> {
        let one = |(metric, value, interval, repeats): &(&str, f64, f64, u64)| {
            let one = Confirmed {
                value: *value,
                interval: *interval,
                repeats: *repeats,
            };
            ((*metric).to_owned(), one)
        };
        known.iter().map(one).collect()
    }

    #[test]
    fn a_disturbed_value_is_said_with_its_upper_end() {
        let mut metrics: Metrics = [(THROUGHPUT, 5120.0)].into();
        assert_eq!(disturbance_text(&metrics), None);
        peft_tune_core::study::mark_disturbed(&mut metrics, 0.5);
        let text = disturbance_text(&metrics).unwrap();
        assert!(
            text.ends_with("is at most 10,240 (an upper bound, no estimate)"),
            "{text}"
        );
    }

    #[test]
    fn a_loss_that_rests_on_a_part_of_the_rows_says_so() {
        assert_eq!(loss_rows_text(&[("loss", 2.0)].into()), None);
        let metrics = [("loss", 2.0), (LOSS_ROWS, 32.0), (LOSS_ROWS_IN_ALL, 256.0)].into();
        assert_eq!(loss_rows_text(&metrics).unwrap(), "loss on 32 of 256 rows");
    }

    #[test]
    fn what_is_confirmed_is_confirmed_in_all_objectives() {
        let objectives = ["throughput", "peak_memory", "loss"].map(Objective::new);
        let basis = |known: &[(&str, f64, f64, u64)]| basis(&objectives, Some(&confirmed(known)), None);
        let (speed, memory) = (("throughput", 5120.0, 0.0123, 3), ("peak_memory", 1e6, 0.0, 3));
        assert_eq!(basis(&[]), "measured");
        let of_variant = super::basis(&objectives, None, Some(&TrialNumber(29)));
        assert_eq!(of_variant, "measured, loss of 29");
        assert_eq!(basis(&[("throughput", 5120.0, 1.0, 1)]), "measured");
        assert_eq!(basis(&[speed, memory]), "throughput ±1.2%");
        assert_eq!(basis(&[speed, memory, ("loss", 2.0, 1.0, 1)]), "throughput ±1.2%");
        assert_eq!(basis(&[("loss", 2.0, 0.004, 4)]), "loss ±0.4%");
        assert_eq!(basis(&[speed, memory, ("loss", 2.0, 0.004, 4)]), "confirmed ±1.2%");
    }

    #[test]
    fn repeats_are_told_with_their_number() {
        let (speed, memory) = (("throughput", 5120.0, 0.0123, 3), ("peak_memory", 1e6, 0.0, 3));
        let text = |known: &[(&str, f64, f64, u64)]| confirmation_text(Some(&confirmed(known)));
        assert_eq!(text(&[("throughput", 5120.0, 1.0, 1)]), None);
        assert_eq!(
            text(&[speed]).unwrap(),
            "confirmed by 3 repeats: throughput 5,120 ±1.2%"
        );
        assert_eq!(
            text(&[speed, memory, ("loss", 1.932, 0.004, 4)]).unwrap(),
            "confirmed by 3 repeats: peak memory 976.6 KiB ±0.0%, throughput 5,120 ±1.2%; by 4: loss 1.9320 ±0.4%"
        );
    }
}
