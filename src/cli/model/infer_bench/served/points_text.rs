//! What was measured of a server as text, curve and JSON.

use super::measure::{ServedModel, ServedPoint};
use crate::cli::CliError;
use crate::cli::model::infer_bench::points_text::{table, time};
use crate::cli::terminal::output::terminal_width;
use crate::report::charts::{CurveLine, CurvePoint, curve_text};
use peft_tune_engine::profile::Latency;

/// Reason why a point has no time of a token.
pub(super) const NO_TOKEN: &str = "no answer has a second token to time";

/// A line for each model that has a point with a time of a token.
pub(super) fn curve(measured: &[ServedModel]) -> Vec<CurveLine> {
    let line = |model: &ServedModel| {
        let timed = model.points.iter().filter_map(|point| {
            Some(CurvePoint {
                batch: point.batch,
                token_s: point.token?.p50_s,
                tokens_per_s: point.tokens_per_s,
            })
        });
        let mut points: Vec<CurvePoint> = timed.collect();
        points.sort_by_key(|point| point.batch);
        (!points.is_empty()).then(|| CurveLine {
            name: model.name.clone(),
            points,
        })
    };
    measured.iter().filter_map(line).collect()
}

/// The table, what the adapter costs, the points that the curve leaves out, and the curve.
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
                token_time(point, |token| token.p50_s),
                token_time(point, |token| token.p95_s),
                time(point.request.p50_s),
                time(point.request.p95_s),
                format!("{:.0}", point.tokens_per_s),
                format!("{:.1}", point.requests_per_s),
            ]);
        }
    }
    let lines = costs(measured).into_iter().chain(left_out(measured));
    let lines: String = lines.map(|line| line + "\n").collect();
    let text = format!("{}\n\n{lines}", points.to_text(width));
    match curve(measured) {
        curve if curve.is_empty() => text,
        curve => format!("{text}\n{}", curve_text(&curve, width)),
    }
}

/// A time of a token as the table has it.
fn token_time(point: &ServedPoint, part: fn(&Latency) -> f64) -> String {
    point.token.as_ref().map_or("-".to_owned(), |token| time(part(token)))
}

/// The points that have no place in the curve, as a line; `None` without such points.
fn left_out(measured: &[ServedModel]) -> Option<String> {
    let without = measured.iter().flat_map(|model| {
        let points = model.points.iter().filter(|point| point.token.is_none());
        points.map(move |point| format!("{} with {} at once", model.name, point.batch))
    });
    let without: Vec<String> = without.collect();
    (!without.is_empty()).then(|| format!("not in the curve, as {NO_TOKEN}: {}", without.join(", ")))
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
    let change = |part: fn(&ServedPoint) -> Option<f64>| match part(without).zip(part(with)) {
        Some((before, after)) if before > 0.0 => format!("{:+.1}%", 100.0 * (after / before - 1.0)),
        _ => "not known".to_owned(),
    };
    format!(
        "with the adapter, {} at once: token {}, first token {}, tokens/s {}",
        with.batch,
        change(|point| point.token.map(|token| token.p50_s)),
        change(|point| Some(point.first_token.p50_s)),
        change(|point| Some(point.tokens_per_s))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn model(form: &'static str, tokens_s: [Option<f64>; 2]) -> ServedModel {
        let points = [1, 4].into_iter().zip(tokens_s).map(|(batch, token_s)| ServedPoint {
            batch,
            requests: 3,
            prompt_tokens: None,
            new_tokens: 1.0,
            first_token: Latency::of(&[0.5]),
            token: token_s.map(|seconds| Latency::of(&[seconds])),
            request: Latency::of(&[1.0]),
            tokens_per_s: 8.0,
            requests_per_s: 2.0,
        });
        ServedModel {
            form,
            name: form.to_owned(),
            points: points.collect(),
        }
    }

    #[test]
    fn points_without_a_time_of_a_token_are_left_out_of_the_curve() {
        let measured = [
            model("base", [Some(0.25), Some(0.5)]),
            model("adapter", [Some(0.5), None]),
        ];
        let batches: Vec<Vec<usize>> = curve(&measured)
            .iter()
            .map(|line| line.points.iter().map(|point| point.batch).collect())
            .collect();
        assert_eq!(batches, [vec![1, 4], vec![1]]);
        assert_eq!(
            costs(&measured),
            [
                "with the adapter, 1 at once: token +100.0%, first token +0.0%, tokens/s +0.0%",
                "with the adapter, 4 at once: token not known, first token +0.0%, tokens/s +0.0%",
            ]
        );
        assert_eq!(
            left_out(&measured).unwrap(),
            "not in the curve, as no answer has a second token to time: adapter with 4 at once"
        );
        assert_eq!(left_out(&measured[..1]), None);
        assert_eq!(token_time(&measured[1].points[0], |token| token.p95_s), "500.00 ms");
        assert_eq!(token_time(&measured[1].points[1], |token| token.p95_s), "-");
    }

    #[test]
    fn no_curve_stands_where_no_point_has_a_time_of_a_token() {
        let measured = [model("base", [None, None])];
        assert!(curve(&measured).is_empty());
        assert!(!text(&measured).contains("median time of a token"));
    }
}
