//! Findings of a diagnosis, one block each.

use std::fmt::Write;

use super::percent;
use crate::report::bytes;
use peft_tune_engine::profile::diagnosis::{Finding, Gain, Metric, PredictedBy, Verified};

/// The findings, numbered, with their evidence, change and gain.
pub fn findings_text(findings: &[Finding]) -> String {
    if findings.is_empty() {
        return "diagnosis: nothing stands out\n".to_owned();
    }
    let mut text = "diagnosis\n".to_owned();
    for (place, finding) in findings.iter().enumerate() {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  {}. {}: {}", place + 1, finding.rule.name(), finding.evidence);
        let _ = writeln!(text, "     change     {}", finding.change);
        let _ = writeln!(text, "     predicted  {}", predicted(finding.gain));
        if let Some(verified) = &finding.verified {
            let _ = writeln!(text, "     measured   {}", measured(finding, verified));
        }
    }
    text
}

pub(super) fn predicted(gain: Option<Gain>) -> String {
    let Some(gain) = gain else {
        return "no figure".to_owned();
    };
    let by = match gain.by {
        PredictedBy::Model => "from bytes, FLOPs and this machine's ceilings",
        PredictedBy::Shares => "from its share of the measured step",
    };
    format!("{} ({by})", amount(gain.metric, gain.value))
}

fn measured(finding: &Finding, verified: &Verified) -> String {
    let metric = finding.gain.map_or(Metric::Throughput, |gain| gain.metric);
    match verified {
        Verified::Gain { value, uncertainty } if *uncertainty > 0.0 => {
            format!("{} ± {}", amount(metric, *value), percent(*uncertainty))
        }
        Verified::Gain { value, .. } => amount(metric, *value),
        Verified::NotRun { reason } => format!("not run: {reason}"),
    }
}

pub(super) fn amount(metric: Metric, value: f64) -> String {
    match metric {
        Metric::Throughput => format!("{:+.1}% throughput", 100.0 * value),
        Metric::PeakMemory if value < 0.0 => format!("{} more peak memory", bytes(-value)),
        Metric::PeakMemory => format!("{} less peak memory", bytes(value)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use peft_tune_engine::profile::diagnosis::{Change, Rule};

    #[test]
    fn a_finding_shows_what_was_predicted_and_what_it_gave() {
        let finding = Finding {
            rule: Rule::ShortRows,
            evidence: "rows hold 60 tokens".to_owned(),
            change: Change::Packing,
            gain: Some(Gain {
                metric: Metric::Throughput,
                value: 0.25,
                by: PredictedBy::Model,
            }),
            verified: Some(Verified::Gain {
                value: 0.2,
                uncertainty: 0.015,
            }),
        };
        insta::assert_snapshot!(findings_text(&[finding]), @r"
        diagnosis
          1. short_rows: rows hold 60 tokens
             change     packing: true
             predicted  +25.0% throughput (from bytes, FLOPs and this machine's ceilings)
             measured   +20.0% throughput ± 1.5%
        ");
    }
}
