//! The report of a run for people.

use std::fmt::Write;

use super::causes::Cause;
use super::report::{Gap, Measured, RunReport};
use crate::report::{Align, TextTable, bytes, change, duration, grouped, metric_value, percent, printable};
use crate::shell::command_line;

/// The report in at most `width` columns of characters.
pub(super) fn text_of(report: &RunReport, width: Option<usize>) -> String {
    let mut text = format!(
        "watched {}: {}, {}\n",
        printable(&command_line(&report.command)),
        duration(report.seconds),
        ending(report)
    );
    let mut line = |name: &str, value: &str| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  {name:<10}{}", printable(value));
    };
    if let Some(read) = &report.read {
        line("settings", &format!("{} ({})", read.file, read.tool));
        line("", &read.text);
        line("rows", &read.rows);
    }
    for (name, value) in measured(&report.measured) {
        line(name, &value);
    }
    if !report.gaps.is_empty() {
        text.push('\n');
        text.push_str(&gaps(&report.gaps).to_text(width));
    }
    text.push('\n');
    text.push_str(&causes(&report.causes, &report.gaps));
    for reason in &report.unknown {
        let _ = writeln!(text, "not known: {}", printable(reason));
    }
    if let Some(trace) = &report.trace {
        text.push('\n');
        text.push_str(&trace.text(width));
    }
    text
}

fn ending(report: &RunReport) -> String {
    let ending = report.ending;
    let how = match (ending.exit_code, ending.signal) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("ended by signal {signal}"),
        (None, None) => "its end is not known".to_owned(),
    };
    match ending.leaves_others {
        true => format!("{how}; processes that it started go on, unwatched"),
        false => how,
    }
}

/// What was measured, in lines with names.
fn measured(measured: &Measured) -> Vec<(&'static str, String)> {
    let mut lines = Vec::new();
    if measured.steps > 0 {
        let of = measured
            .total_steps
            .map(|total| format!(" of {total}"))
            .unwrap_or_default();
        let each = measured.step_s.map(|seconds| {
            let interval = measured.step_interval.unwrap_or(0.0);
            format!(", {} each ± {}", duration(seconds), percent(interval))
        });
        lines.push(("steps", format!("{}{of}{}", measured.steps, each.unwrap_or_default())));
    }
    let rates = [
        measured
            .tokens_per_s
            .map(|rate| format!("{} tokens/s, padding counted", grouped(rate))),
        measured
            .counted_tokens_per_s
            .map(|rate| format!("{} tokens/s by the tool's count", grouped(rate))),
    ];
    let rates: Vec<String> = rates.into_iter().flatten().collect();
    if !rates.is_empty() {
        lines.push(("speed", rates.join("; ")));
    }
    if measured.samples > 0 {
        let gpu = measured
            .peak_gpu_bytes
            .map(|gpu| format!("{} on a GPU, ", bytes(gpu as f64)));
        let host = bytes(measured.peak_memory_bytes as f64);
        lines.push(("peak", format!("{}{host} of the host", gpu.unwrap_or_default())));
        let gpu = measured
            .gpu_utilisation
            .map(|share| format!("; GPU {}", percent(share)));
        let disk = measured.read_bytes.zip(measured.written_bytes);
        let disk =
            disk.map(|(read, written)| format!("; {} read, {} written", bytes(read as f64), bytes(written as f64)));
        lines.push((
            "busy",
            format!(
                "{:.1} of {} processors{}{}",
                measured.cores,
                measured.usable_cores,
                gpu.unwrap_or_default(),
                disk.unwrap_or_default()
            ),
        ));
    }
    if measured.evaluation_s > 0.0 {
        lines.push(("evaluated", duration(measured.evaluation_s)));
    }
    if let Some(loss) = measured.loss {
        lines.push(("loss", format!("{loss:.4} at the end")));
    }
    lines
}

/// Name of a number for people.
pub(super) fn metric_title(metric: &str) -> &str {
    match metric {
        "step_s" => "a step",
        "tokens_per_s" => "tokens/s",
        "counted_tokens_per_s" => "counted tokens/s",
        "peak_bytes" => "peak memory",
        other => other,
    }
}

/// Numbers that were expected, and measured.
fn gaps(gaps: &[Gap]) -> TextTable {
    let columns = ["expected", "between", "measured", "difference", ""];
    let columns = columns.map(|name| {
        (
            name.to_owned(),
            if name.is_empty() { Align::Left } else { Align::Right },
        )
    });
    let mut table = TextTable::new([(String::new(), Align::Left)].into_iter().chain(columns));
    for gap in gaps {
        let show = |value: f64| metric_value(&gap.metric, value);
        let verdict = match gap.is_within {
            true => "as predicted",
            false => "beyond the prediction's error",
        };
        table.push([
            metric_title(&gap.metric).to_owned(),
            show(gap.expected),
            format!("{} and {}", show(gap.low), show(gap.high)),
            show(gap.measured),
            change(gap.measured / gap.expected - 1.0),
            verdict.to_owned(),
        ]);
    }
    table
}

fn causes(causes: &[Cause], gaps: &[Gap]) -> String {
    if causes.is_empty() {
        let is_within = gaps.iter().all(|gap| gap.is_within);
        return match is_within {
            true => "causes: nothing stands out\n".to_owned(),
            false => "causes: none of the rules holds; the prediction may be wrong\n".to_owned(),
        };
    }
    let mut text = "causes\n".to_owned();
    for (place, cause) in causes.iter().enumerate() {
        let share = cause
            .share
            .map(|share| format!(" (about {} of the time)", percent(share)));
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "  {}. {}{}: {}",
            place + 1,
            cause.name,
            share.unwrap_or_default(),
            printable(&cause.evidence)
        );
        let _ = writeln!(text, "     {}", cause.advice);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::with_expectation;
    use super::*;

    #[test]
    fn the_text_has_numbers_side_by_side_and_the_causes_below() {
        let mut report = with_expectation();
        let text = text_of(&report, None);
        for part in [
            "watched python train.py: 30.0 s, its end is not known",
            "steps     30 of 60, 1.0 s each",
            "1,000 tokens/s, padding counted; 100 tokens/s by the tool's count",
            "+100.0%",
            "beyond the prediction's error",
            "as predicted",
            "causes: none of the rules holds",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        report.causes = vec![Cause {
            name: "data_wait".to_owned(),
            evidence: "it waited".to_owned(),
            advice: "read faster".to_owned(),
            share: Some(0.4),
        }];
        let text = text_of(&report, Some(100));
        assert!(
            text.contains("1. data_wait (about 40% of the time): it waited\n     read faster"),
            "{text}"
        );
    }
}
