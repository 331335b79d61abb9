//! A spike of a training, and what was found of it, for people.

use peft_tune_engine::{BackOff, SpikeAnswer, SpikeReport, SpikeRow, SpikeStep};

/// Rows that are shown, at most.
const ROWS: usize = 5;
/// Steps that are shown, at most.
const STEPS: usize = 4;

/// The report in lines.
pub(super) fn lines(report: &SpikeReport) -> Vec<String> {
    let mut lines = vec![format!(
        "step {}: {}; cause: {}",
        report.at_step,
        report.what,
        report.cause.name()
    )];
    lines.extend(report.evidence.iter().map(|found| format!("  {found}")));
    let steps = &report.history[report.history.len().saturating_sub(STEPS)..];
    lines.extend(steps.iter().map(step_line));
    lines.extend(report.rows.iter().take(ROWS).map(row_line));
    let more = report.rows.len().saturating_sub(ROWS) + report.rows_left_out;
    if more > 0 {
        lines.push(format!(
            "  and {more} more rows; `spikes.jsonl` in the output folder has them"
        ));
    }
    if !report.help.is_empty() {
        lines.push(format!("  what would help: {}", report.help.join("; ")));
    }
    match &report.answer {
        SpikeAnswer::BackedOff(back_off) => lines.push(format!("  backing off {}", returned(back_off))),
        SpikeAnswer::WentOn => lines.push("  the training goes on".to_owned()),
        SpikeAnswer::Ended => {}
    }
    lines
}

/// A return to a checkpoint: `from step 12 to step 8, at a learning rate of 1.0e-4`.
pub(super) fn returned(back_off: &BackOff) -> String {
    format!(
        "from step {} to step {}, at a learning rate of {:.1e}",
        back_off.at_step, back_off.to_step, back_off.learning_rate
    )
}

fn step_line(step: &SpikeStep) -> String {
    let number = |number: Option<f64>| number.map_or_else(|| "no number".to_owned(), |number| format!("{number:.3e}"));
    let loss = step
        .loss
        .map_or_else(|| "no number".to_owned(), |loss| format!("{loss:.4}"));
    format!(
        "  step {}: loss {loss}, norm of the gradients {}, update {} of values of {}, learning rate {:.1e}",
        step.step,
        number(step.grad_norm),
        number(step.update),
        number(step.values),
        step.learning_rate
    )
}

fn row_line(row: &SpikeRow) -> String {
    let loss = row.loss.map_or_else(String::new, |loss| format!(", loss {loss:.4}"));
    let mark = if row.stands_out { ", stands out" } else { "" };
    let text = row.text.as_ref().map_or_else(String::new, |text| format!(": {text:?}"));
    format!("  row of step {}: {}{loss}{mark}{text}", row.step, row.location)
}

#[cfg(test)]
mod tests {
    use super::*;
    use peft_tune_core::study::SpikeCause;

    #[test]
    fn a_report_says_what_happened_why_and_what_helps() {
        let step = |step, loss| SpikeStep {
            step,
            loss,
            learning_rate: 0.01,
            grad_norm: Some(2.0),
            update: Some(0.5),
            values: Some(0.25),
        };
        let row = |line: u32, stands_out| SpikeRow {
            step: 12,
            location: format!("rows.jsonl line {line}"),
            tokens: 8,
            target_tokens: 7,
            loss: Some(3.0),
            stands_out,
            text: stands_out.then(|| "a\nb".to_owned()),
        };
        let back_off = BackOff {
            at_step: 12,
            to_step: 8,
            learning_rate: 0.005,
        };
        let report = SpikeReport {
            at_step: 12,
            what: "the training loss became NaN".to_owned(),
            cause: SpikeCause::Rate,
            evidence: vec!["the update was large".to_owned()],
            help: vec!["lower `learning_rate`".to_owned(), "clip".to_owned()],
            history: vec![step(11, Some(3.0)), step(12, None)],
            rows: (1..=7).map(|line| row(line, line == 1)).collect(),
            rows_left_out: 4,
            answer: SpikeAnswer::BackedOff(back_off),
        };
        insta::assert_snapshot!(lines(&report).join("\n"), @r#"
        step 12: the training loss became NaN; cause: rate
          the update was large
          step 11: loss 3.0000, norm of the gradients 2.000e0, update 5.000e-1 of values of 2.500e-1, learning rate 1.0e-2
          step 12: loss no number, norm of the gradients 2.000e0, update 5.000e-1 of values of 2.500e-1, learning rate 1.0e-2
          row of step 12: rows.jsonl line 1, loss 3.0000, stands out: "a\nb"
          row of step 12: rows.jsonl line 2, loss 3.0000
          row of step 12: rows.jsonl line 3, loss 3.0000
          row of step 12: rows.jsonl line 4, loss 3.0000
          row of step 12: rows.jsonl line 5, loss 3.0000
          and 6 more rows; `spikes.jsonl` in the output folder has them
          what would help: lower `learning_rate`; clip
          backing off from step 12 to step 8, at a learning rate of 5.0e-3
        "#);
    }
}
