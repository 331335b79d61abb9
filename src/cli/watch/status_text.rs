//! What the line says while a run goes on: expected and measured speed, memory now and at its highest, time left.

use super::progress::{Phase, Progress, StepSpan};
use super::report::tokens_of_step;
use super::sample::Samples;
use crate::cli::plan::Expectation;
use crate::report::{about_duration, bytes, duration, grouped};
use peft_tune_engine::profile::median;

/// Steps whose median is the speed now.
const LATEST: usize = 50;
/// Stands between two parts of the line.
const BETWEEN: &str = " · ";

/// The line of a run.
pub(super) fn text_of(progress: &Progress, samples: &Samples, expectation: Option<&Expectation>) -> String {
    let mut parts = vec![doing(progress)];
    let latest = progress.latest_spans(LATEST);
    let step_s = median(latest.iter().map(StepSpan::seconds));
    let expected_s = expectation.and_then(|expectation| expectation.prediction.step_s());
    if let Some(step_s) = step_s {
        parts.push(beside(
            &format!("{} a step", duration(step_s)),
            expected_s.map(duration),
        ));
        if let Some(expectation) = expectation {
            let speed = grouped(tokens_of_step(expectation) / step_s);
            let expected = expectation.prediction.tokens_per_s.map(grouped);
            parts.push(beside(&format!("{speed} tokens/s"), expected));
        }
    } else if let Some(expected_s) = expected_s {
        parts.push(format!("{} a step expected", duration(expected_s)));
    }
    if let Some((now, highest)) = samples.last().zip(samples.highest()) {
        let expected = expectation.map(|expectation| bytes(expectation.prediction.process_bytes as f64));
        let peak = format!("peak {}", bytes(highest.device_bytes() as f64));
        parts.push(bytes(now.device_bytes() as f64));
        parts.push(beside(&peak, expected));
    }
    if let Some((step_s, total)) = step_s.zip(progress.total()) {
        let left = total.saturating_sub(progress.step()) as f64 * step_s;
        if left > 0.0 {
            parts.push(format!("{} left", about_duration(left)));
        }
    }
    parts.join(BETWEEN)
}

fn doing(progress: &Progress) -> String {
    let step = match progress.total() {
        Some(total) => format!("step {}/{total}", progress.step()),
        None => format!("step {}", progress.step()),
    };
    match progress.phase() {
        Phase::Starting => "starting".to_owned(),
        Phase::Steps => step,
        Phase::Evaluation => format!("{step}, evaluation"),
        Phase::Ending => "ending".to_owned(),
    }
}

/// A number with what was expected of it.
fn beside(measured: &str, expected: Option<String>) -> String {
    match expected {
        Some(expected) => format!("{measured} (expected {expected})"),
        None => measured.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::watch::evidence::made::clean;

    #[test]
    fn the_line_has_step_speed_memory_and_time_left() {
        let (mut progress, mut samples) = (Progress::default(), Samples::default());
        assert_eq!(text_of(&progress, &samples, None), "starting");
        for step in 0..=10 {
            let line = format!("{step}%|# | {step}/100 [00:01<00:09, 1it/s]");
            progress.take(&line, 2.0 * step as f64);
        }
        clean(10).samples.into_iter().for_each(|sample| samples.push(sample));
        assert_eq!(
            text_of(&progress, &samples, None),
            "step 10/100 · 2.0 s a step · 4.00 GiB · peak 4.00 GiB · 3 min left"
        );
    }
}
