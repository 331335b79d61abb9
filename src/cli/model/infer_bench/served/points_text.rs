//! What was measured of a server as text, curve and JSON.

use super::measure::{ServedModel, ServedPoint};
use crate::cli::CliError;
use crate::cli::model::infer_bench::points_text::{table, time};
use crate::cli::terminal::output::terminal_width;
use crate::report::charts::{CurveLine, CurvePoint, curve_text};

/// A line for each model.
pub(super) fn curve(measured: &[ServedModel]) -> Vec<CurveLine> {
    let line = |model: &ServedModel| {
        let mut points: Vec<CurvePoint> = model
            .points
            .iter()
            .map(|point| CurvePoint {
                batch: point.batch,
                token_s: point.token.p50_s,
                tokens_per_s: point.tokens_per_s,
            })
            .collect();
        points.sort_by_key(|point| point.batch);
        CurveLine {
            name: model.name.clone(),
            points,
        }
    };
    measured.iter().map(line).collect()
}

/// The table, what the adapter costs, and the curve.
pub(super) fn text(measured: &[ServedModel]) -> String {
    let width = terminal_width();
    let mut points = table(&[
        "at once",
        "requests",
        "prompt",
        "answer",
        "first token p50",
        "p95",
        "token p50",
        "p95",
        "request p50",
        "p95",
        "tok/s",
        "requests/s",
    ]);
    for model in measured {
        for point in &model.points {
            points.push([
                model.name.clone(),
                point.batch.to_string(),
                point.requests.to_string(),
                point
                    .prompt_tokens
                    .map_or("-".to_owned(), |tokens| format!("{tokens:.0}")),
                format!("{:.0}", point.new_tokens),
                time(point.first_token.p50_s),
                time(point.first_token.p95_s),
                time(point.token.p50_s),
                time(point.token.p95_s),
                time(point.request.p50_s),
                time(point.request.p95_s),
                format!("{:.0}", point.tokens_per_s),
                format!("{:.1}", point.requests_per_s),
            ]);
        }
    }
    let costs: String = costs(measured).into_iter().map(|line| line + "\n").collect();
    format!(
        "{}\n\n{costs}\n{}",
        points.to_text(width),
        curve_text(&curve(measured), width)
    )
}

/// What the adapter costs beside the base model: a line for each number of requests at once.
fn costs(measured: &[ServedModel]) -> Vec<String> {
    let of = |form: &str| measured.iter().find(|model| model.form == form);
    let (Some(base), Some(adapter)) = (of("base"), of("adapter")) else {
        return Vec::new();
    };
    let pairs = base.points.iter().zip(&adapter.points);
    pairs.map(|(without, with)| cost(without, with)).collect()
}

fn cost(without: &ServedPoint, with: &ServedPoint) -> String {
    let change = |part: fn(&ServedPoint) -> f64| match part(without) {
        before if before > 0.0 => format!("{:+.1}%", 100.0 * (part(with) / before - 1.0)),
        _ => "not known".to_owned(),
    };
    format!(
        "with the adapter, {} at once: token {}, first token {}, tokens/s {}",
        with.batch,
        change(|point| point.token.p50_s),
        change(|point| point.first_token.p50_s),
        change(|point| point.tokens_per_s)
    )
}

/// The points of each model.
pub(super) fn json(measured: &[ServedModel]) -> Result<String, CliError> {
    let model = |model: &ServedModel| {
        serde_json::json!({
            "form": model.form,
            "model": model.name,
            "points": model.points,
        })
    };
    let models: Vec<serde_json::Value> = measured.iter().map(model).collect();
    Ok(serde_json::to_string_pretty(&models).map_err(CliError::failed)? + "\n")
}
