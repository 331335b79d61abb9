//! What a recommendation wins against the baseline, in words.

use super::number::{metric_words, times};
use peft_tune_core::objective::{
    Direction, LOSS, Objective, PEAK_MEMORY, RETAINED_LOSS_INCREASE, THROUGHPUT, measured_of,
};
use peft_tune_core::study::{Confirmations, Trial, TrialState};

/// Share below which two values are called the same.
const SAME: f64 = 0.0005;
/// Ratio from which a percentage would be hard to read.
const LARGE: f64 = 3.0;

/// An objective of a recommended trial beside the baseline's.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Gain {
    pub metric: String,
    /// The change in words: `1.80 times as fast ±3.0%`.
    pub text: String,
    /// Whether the recommended trial is better; `None` where the change lies within what repeats leave open.
    pub better: Option<bool>,
    pub recommended: f64,
    pub baseline: f64,
    /// Half widths of the 95% intervals as shares of the values; `None` for what was measured once.
    pub recommended_interval: Option<f64>,
    pub baseline_interval: Option<f64>,
}

/// Each objective of `recommended` beside that of `baseline`; nothing where they are one trial or the baseline is not complete.
pub fn gains(objectives: &[Objective], recommended: &Trial, baseline: &Trial, confirmed: &Confirmations) -> Vec<Gain> {
    let (TrialState::Complete { metrics: before }, Some(after)) = (&baseline.state, recommended.state.metrics()) else {
        return Vec::new();
    };
    if recommended.number == baseline.number {
        return Vec::new();
    }
    let interval = |trial: &Trial, metric: &str| -> Option<f64> {
        let known = confirmed.get(&trial.number)?.get(metric)?;
        (known.repeats > 1).then_some(known.interval)
    };
    let gain = |objective: &Objective| -> Option<Gain> {
        let metric = objective.metric.as_str();
        let (now, then) = (after.value(metric)?, before.value(metric)?);
        let ratio = match metric {
            // An increase may be next to nothing, or none: it is the losses that compare.
            RETAINED_LOSS_INCREASE => (1.0 + now) / (1.0 + then),
            _ => now / then,
        };
        let intervals = [interval(recommended, metric), interval(baseline, metric)];
        let open = intervals
            .iter()
            .flatten()
            .map(|share| share.powi(2))
            .sum::<f64>()
            .sqrt();
        let sure = (open > 0.0).then(|| format!(" ±{:.1}%", 100.0 * open));
        let is_better = (ratio > 1.0) == (objective.direction == Direction::Maximize);
        ratio.is_finite().then(|| Gain {
            metric: metric.to_owned(),
            text: words(metric, ratio) + &sure.unwrap_or_default(),
            better: ((ratio - 1.0).abs() > open.max(SAME)).then_some(is_better),
            recommended: now,
            baseline: then,
            recommended_interval: intervals[0],
            baseline_interval: intervals[1],
        })
    };
    objectives.iter().filter_map(gain).collect()
}

/// What `recommended` wins against `baseline`: `against the baseline (trial 0): 1.80 times as fast ±3%, 41.0% less memory,
/// loss 0.3% lower`. Intervals are those of repeats of both.
pub fn against_baseline(
    objectives: &[Objective],
    recommended: &Trial,
    baseline: &Trial,
    confirmed: &Confirmations,
) -> String {
    let number = baseline.number;
    if recommended.number == number {
        return format!("it is the baseline: no setting that was tried is better for this wish than trial {number}");
    }
    let TrialState::Complete { .. } = &baseline.state else {
        let how = match &baseline.state {
            TrialState::Failed { reason, .. } => format!("failed ({})", reason.name()),
            other => format!("is {}", other.name()),
        };
        return format!("the baseline (trial {number}) {how}: there is nothing to compare with");
    };
    if recommended.state.metrics().is_none() {
        return String::new();
    }
    let gains = gains(objectives, recommended, baseline, confirmed);
    let parts: Vec<String> = gains.into_iter().map(|gain| gain.text).collect();
    format!("against the baseline (trial {number}): {}", parts.join(", "))
}

fn words(metric: &str, ratio: f64) -> String {
    let percent = format!("{:.1}%", 100.0 * (ratio - 1.0).abs());
    let is_same = (ratio - 1.0).abs() < SAME;
    // What is predicted of another stack is told in the same words, and says that it is.
    if let Some(own) = measured_of(metric) {
        return format!("{} (predicted of the target)", words(own, ratio));
    }
    match metric {
        THROUGHPUT if is_same => "as fast".to_owned(),
        THROUGHPUT => format!("{ratio:.2} times as fast"),
        PEAK_MEMORY if is_same => "the same memory".to_owned(),
        PEAK_MEMORY if ratio >= LARGE => format!("{} the memory", times(ratio)),
        PEAK_MEMORY => format!("{percent} {} memory", if ratio < 1.0 { "less" } else { "more" }),
        _ => {
            let name = match metric {
                LOSS => "loss".to_owned(),
                RETAINED_LOSS_INCREASE => "retained loss".to_owned(),
                metric => metric_words(metric),
            };
            match is_same {
                true => format!("the same {name}"),
                false if ratio >= LARGE => format!("{} the {name}", times(ratio)),
                false => format!("{name} {percent} {}", if ratio < 1.0 { "lower" } else { "higher" }),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use peft_tune_core::study::{Confirmed, FailReason, Metrics, Params, TrialNumber};
    use std::collections::BTreeMap;

    fn trial(number: u64, metrics: [(&str, f64); 3]) -> Trial {
        Trial {
            number: TrialNumber(number),
            params: Params::new(),
            state: TrialState::Complete {
                metrics: metrics.into(),
            },
        }
    }

    #[test]
    fn gains_in_another_stack_say_that_they_were_predicted() {
        use peft_tune_core::objective::{TARGET_PEAK_MEMORY, TARGET_THROUGHPUT};
        let objectives = [TARGET_THROUGHPUT, TARGET_PEAK_MEMORY].map(Objective::new);
        let baseline = trial(0, [(TARGET_THROUGHPUT, 10.0), (TARGET_PEAK_MEMORY, 4.0), (LOSS, 2.0)]);
        let other = trial(1, [(TARGET_THROUGHPUT, 15.0), (TARGET_PEAK_MEMORY, 3.0), (LOSS, 2.0)]);
        assert_eq!(
            against_baseline(&objectives, &other, &baseline, &BTreeMap::new()),
            "against the baseline (trial 0): 1.50 times as fast (predicted of the target), 25.0% less memory (predicted of the \
             target)"
        );
    }

    #[test]
    fn gains_are_said_in_each_objective_s_own_words() {
        let objectives = [THROUGHPUT, PEAK_MEMORY, LOSS].map(Objective::new);
        let baseline = trial(0, [(THROUGHPUT, 1000.0), (PEAK_MEMORY, 100.0), (LOSS, 2.0)]);
        let other = trial(7, [(THROUGHPUT, 1800.0), (PEAK_MEMORY, 59.0), (LOSS, 1.994)]);
        let repeated = |interval| {
            let one = Confirmed {
                value: 1.0,
                interval,
                repeats: 3,
            };
            BTreeMap::from([(THROUGHPUT.to_owned(), one)])
        };
        let confirmed = BTreeMap::from([(TrialNumber(0), repeated(0.03)), (TrialNumber(7), repeated(0.04))]);
        assert_eq!(
            against_baseline(&objectives, &other, &baseline, &confirmed),
            "against the baseline (trial 0): 1.80 times as fast ±5.0%, 41.0% less memory, loss 0.3% lower"
        );
        assert_eq!(
            against_baseline(&objectives, &baseline, &other, &BTreeMap::new()),
            "against the baseline (trial 7): 0.56 times as fast, 69.5% more memory, loss 0.3% higher"
        );
        let same = against_baseline(&objectives, &baseline, &baseline, &BTreeMap::new());
        assert!(same.contains("it is the baseline"), "{same}");
    }

    #[test]
    fn losses_that_rose_compare_as_losses() {
        let objectives = [Objective::new(RETAINED_LOSS_INCREASE)];
        let with = |number, increase| {
            trial(
                number,
                [(RETAINED_LOSS_INCREASE, increase), (LOSS, 2.0), (THROUGHPUT, 1.0)],
            )
        };
        assert_eq!(
            against_baseline(&objectives, &with(1, 0.01), &with(0, 0.0), &BTreeMap::new()),
            "against the baseline (trial 0): retained loss 1.0% higher"
        );
        assert_eq!(
            against_baseline(&objectives, &with(1, -0.02), &with(0, 0.0), &BTreeMap::new()),
            "against the baseline (trial 0): retained loss 2.0% lower"
        );
    }

    #[test]
    fn a_baseline_that_failed_is_said_to_have() {
        let mut baseline = trial(0, [(THROUGHPUT, 1.0), (PEAK_MEMORY, 1.0), (LOSS, 1.0)]);
        baseline.state = TrialState::Failed {
            reason: FailReason::Diverged {
                at_step: 3,
                loss: None,
                cause: None,
            },
            metrics: Metrics::default(),
        };
        let other = trial(1, [(THROUGHPUT, 1.0), (PEAK_MEMORY, 1.0), (LOSS, 1.0)]);
        let text = against_baseline(&[Objective::new(LOSS)], &other, &baseline, &BTreeMap::new());
        assert!(text.contains("failed (diverged)"), "{text}");
    }
}
