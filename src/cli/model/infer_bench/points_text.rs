//! What was measured as text, curve and JSON.

use super::forms::FormPoints;
use crate::cli::CliError;
use crate::cli::terminal::output::terminal_width;
use crate::report::charts::{CurveLine, CurvePoint, curve_text};
use crate::report::{Align, TextTable, bytes, duration};

/// A line for each form and prompt length.
pub(super) fn curve(measured: &[FormPoints]) -> Vec<CurveLine> {
    let mut lines: Vec<CurveLine> = Vec::new();
    let lengths: std::collections::BTreeSet<usize> = measured
        .iter()
        .flat_map(|form| form.points.iter().map(|point| point.prompt_tokens))
        .collect();
    for form in measured {
        for length in &lengths {
            let name = form.name();
            let name = if lengths.len() > 1 {
                format!("{name}, prompt {length}")
            } else {
                name
            };
            let points = form.points.iter().filter(|point| point.prompt_tokens == *length);
            let mut points: Vec<CurvePoint> = points
                .map(|point| CurvePoint {
                    batch: point.batch,
                    token_s: point.token.p50_s,
                    tokens_per_s: point.decode_tokens_per_s,
                })
                .collect();
            points.sort_by_key(|point| point.batch);
            lines.push(CurveLine { name, points });
        }
    }
    lines
}

/// Tables and the curve.
pub(super) fn text(measured: &[FormPoints]) -> String {
    let width = terminal_width();
    let requests = match measured.iter().any(|form| !form.requests.is_empty()) {
        true => format!("\nFrom text to text:\n\n{}\n", request_table(measured).to_text(width)),
        false => String::new(),
    };
    format!(
        "{}\n\n{}{requests}",
        point_table(measured).to_text(width),
        curve_text(&curve(measured), width)
    )
}

fn point_table(measured: &[FormPoints]) -> TextTable {
    let mut table = table(&[
        "batch",
        "prompt",
        "first token p50",
        "p95",
        "token p50",
        "p95",
        "p99",
        "prefill tok/s",
        "decode tok/s",
        "peak memory",
        "cache",
    ]);
    for form in measured {
        for point in &form.points {
            table.push([
                form.name(),
                point.batch.to_string(),
                point.prompt_tokens.to_string(),
                time(point.first_token.p50_s),
                time(point.first_token.p95_s),
                time(point.token.p50_s),
                time(point.token.p95_s),
                time(point.token.p99_s),
                format!("{:.0}", point.prefill_tokens_per_s),
                format!("{:.0}", point.decode_tokens_per_s),
                bytes(point.peak_bytes as f64),
                bytes(point.cache_bytes as f64),
            ]);
        }
    }
    table
}

fn request_table(measured: &[FormPoints]) -> TextTable {
    let mut table = table(&[
        "batch",
        "requests",
        "prompt",
        "answer",
        "first token p50",
        "p95",
        "request p50",
        "p95",
        "p99",
        "tok/s",
        "requests/s",
        "text share",
        "peak memory",
    ]);
    for form in measured {
        for point in &form.requests {
            table.push([
                form.name(),
                point.batch.to_string(),
                point.requests.to_string(),
                format!("{:.0}", point.prompt_tokens),
                format!("{:.0}", point.new_tokens),
                time(point.first_token.p50_s),
                time(point.first_token.p95_s),
                time(point.request.p50_s),
                time(point.request.p95_s),
                time(point.request.p99_s),
                format!("{:.0}", point.tokens_per_s),
                format!("{:.1}", point.requests_per_s),
                format!("{:.1}%", 100.0 * point.text_share),
                bytes(point.peak_bytes as f64),
            ]);
        }
    }
    table
}

/// An empty table with a line for each form.
pub(super) fn table(columns: &[&str]) -> TextTable {
    let columns = columns.iter().map(|name| ((*name).to_owned(), Align::Right));
    TextTable::new(std::iter::once(("model".to_owned(), Align::Left)).chain(columns))
}

/// Seconds as a table has them.
pub(super) fn time(seconds: f64) -> String {
    match seconds {
        seconds if seconds < 1.0 => format!("{:.2} ms", 1e3 * seconds),
        seconds => duration(seconds),
    }
}

/// The points of each form; requests where they were measured.
pub(super) fn json(measured: &[FormPoints]) -> Result<String, CliError> {
    let form = |form: &FormPoints| {
        let mut shown = serde_json::json!({
            "form": form.form,
            "rank": form.rank,
            "adapters": form.adapters,
            "points": form.points,
        });
        if !form.requests.is_empty() {
            shown["requests"] = serde_json::json!(form.requests);
        }
        shown
    };
    let forms: Vec<serde_json::Value> = measured.iter().map(form).collect();
    Ok(serde_json::to_string_pretty(&forms).map_err(CliError::failed)? + "\n")
}
