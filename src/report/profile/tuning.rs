//! Changes that were tried one after the other, as text.

use super::findings::{amount, predicted};
use super::percent;
use crate::report::number::{bytes, metric_value};
use peft_tune_core::objective::THROUGHPUT;
use peft_tune_engine::profile::Profile;
use peft_tune_engine::profile::diagnosis::{Altering, Change, Finding, Outcome, Ratio, Tried, Tuning, is_promising};

/// Throughput and peak of a measured setting.
pub fn cost_text(profile: &Profile) -> String {
    format!(
        "{} tokens/s ± {}, peak {}",
        metric_value(THROUGHPUT, profile.steps.tokens_per_s),
        percent(profile.steps.interval),
        bytes(profile.memory.peak_bytes as f64)
    )
}

/// What became of one change, in two lines.
pub fn tried_text(place: usize, tried: &Tried) -> String {
    let finding = &tried.finding;
    let measured = match (tried.throughput, tried.peak_bytes) {
        (Some(ratio), Some((before, after))) => format!(
            "{}, peak {} -> {}",
            gain(ratio),
            bytes(before as f64),
            bytes(after as f64)
        ),
        _ => "nothing".to_owned(),
    };
    format!(
        "{place}. {} ({})\n   predicted {}\n   measured  {measured}: {}\n",
        finding.change,
        finding.rule.name(),
        predicted(finding.gain),
        verdict(&tried.outcome)
    )
}

/// What all changes came to, and what was left.
pub fn tuning_text(tuning: &Tuning) -> String {
    let mut text = String::new();
    match tuning.total {
        Some(ratio) => {
            let peak = |profile: &Profile| bytes(profile.memory.peak_bytes as f64);
            text.push_str(&format!(
                "all changes together: {:.2} times the throughput ± {:.2}, peak {} -> {}\n",
                ratio.value,
                ratio.uncertainty,
                peak(&tuning.before),
                peak(&tuning.after)
            ));
            if ratio.value - ratio.uncertainty <= 1.0 {
                text.push_str("that is within what measuring leaves open: run it again on a quiet machine\n");
            }
        }
        None => text.push_str("no change pays: the recipe stays as it is\n"),
    }
    for finding in &tuning.left {
        text.push_str(&left_text(finding));
    }
    text
}

fn left_text(finding: &Finding) -> String {
    let change = &finding.change;
    let gain = finding.gain.map_or_else(
        || "no figure is predicted".to_owned(),
        |gain| format!("predicted {}", amount(gain.metric, gain.value)),
    );
    match (Altering::of(change), change) {
        (_, Change::Advice(advice)) => format!("{}: {}; {advice}\n", finding.rule.name(), finding.evidence),
        (_, Change::EvaluateEvery(_) | Change::LogEvery(_) | Change::Threads(_)) => {
            format!("not of a recipe's step: {change} ({gain})\n")
        }
        _ if !is_promising(finding) => format!("not tried: {change} ({gain})\n"),
        (Some(kind), _) => format!(
            "not tried: {change} ({gain}); it changes what is learned: `--allow {}` tries it\n",
            kind.name()
        ),
        (None, _) => format!("not tried, the time was over: {change} ({gain})\n"),
    }
}

fn gain(ratio: Ratio) -> String {
    format!(
        "{} throughput ± {}",
        format_args!("{:+.1}%", 100.0 * (ratio.value - 1.0)),
        percent(ratio.uncertainty)
    )
}

fn verdict(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Kept => "kept".to_owned(),
        Outcome::NoGain => "not kept, no gain beyond what measuring leaves open".to_owned(),
        Outcome::CostsThroughput => "not kept, it costs throughput".to_owned(),
        Outcome::OverMemory => "not kept, it takes more than the memory limit".to_owned(),
        Outcome::NotRun(reason) => format!("not kept, it does not run: {reason}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use peft_tune_core::recipe::Precision;
    use peft_tune_engine::profile::diagnosis::{Gain, Metric, PredictedBy, Rule};

    fn finding(change: Change) -> Finding {
        Finding {
            rule: Rule::SlowOp,
            evidence: "the clock fell".to_owned(),
            change,
            gain: Some(Gain {
                metric: Metric::Throughput,
                value: 0.251,
                by: PredictedBy::Model,
            }),
            verified: None,
        }
    }

    #[test]
    fn a_change_shows_what_was_predicted_what_it_gave_and_what_became_of_it() {
        let mut tried = Tried {
            finding: finding(Change::Precision(Precision::Bf16)),
            outcome: Outcome::Kept,
            throughput: Some(Ratio {
                value: 1.234,
                uncertainty: 0.011,
            }),
            peak_bytes: Some((1 << 30, 3 << 29)),
        };
        let text = tried_text(2, &tried);
        assert!(
            text.starts_with("2. precision: bf16 (slow_op)\n   predicted +25.1% throughput"),
            "{text}"
        );
        assert!(
            text.ends_with("measured  +23.4% throughput ± 1.1%, peak 1.00 GiB -> 1.50 GiB: kept\n"),
            "{text}"
        );
        tried.outcome = Outcome::NotRun("out of memory".to_owned());
        (tried.throughput, tried.peak_bytes) = (None, None);
        assert!(tried_text(1, &tried).contains("measured  nothing: not kept, it does not run: out of memory"));
    }

    #[test]
    fn what_was_left_says_why() {
        let text = |change| left_text(&finding(change));
        let mut costly = finding(Change::Packing);
        costly.gain.as_mut().unwrap().value = -0.073;
        assert_eq!(
            left_text(&costly),
            "not tried: packing: true (predicted -7.3% throughput)\n"
        );
        assert!(text(Change::Packing).contains("`--allow packing` tries it"));
        assert!(text(Change::Threads(3)).starts_with("not of a recipe's step: --threads 3"));
        assert_eq!(
            text(Change::Advice("cool it".to_owned())),
            "slow_op: the clock fell; cool it\n"
        );
    }
}
