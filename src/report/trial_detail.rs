//! One trial in depth, as text and JSON.

use serde_json::json;

use super::{
    Align, TextTable, bytes, confirmation_text, disturbance_text, duration, loss_rows_text, metric_value, minute,
    param_value, printable, target_text,
};
use crate::store::{LONGER_DIVERGED_STEP, LostAttempt, StudyOverview, TrialDetail, TrialKernels};
use peft_tune_core::objective::LONGER_TOKENS;
use peft_tune_core::study::{FailReason, TrialState, neighbours};

/// Everything about a trial, for people; `recipe` is its recipe as YAML.
pub fn trial_detail_text(study: &StudyOverview, detail: &TrialDetail, recipe: &str, width: Option<usize>) -> String {
    let attempt = match detail.attempt {
        0 | 1 => String::new(),
        attempt => format!(", attempt {attempt}"),
    };
    let heading = format!(
        "trial {} of study {}: {}{attempt}",
        detail.trial.number,
        printable(&study.name),
        detail.trial.state.name()
    );
    let mut lines = vec![heading];
    lines.extend(history_lines(study, detail).into_iter().map(|line| format!("  {line}")));
    lines.extend(sections(detail, width).map(|(title, section)| format!("\n{title}\n{section}")));
    lines.push(format!("\nrecipe\n{}\n", recipe.trim_end()));
    lines.join("\n")
}

/// How the trial went, and what is to be known of its values.
fn history_lines(study: &StudyOverview, detail: &TrialDetail) -> Vec<String> {
    let trial = &detail.trial;
    let metrics = trial.state.metrics();
    let stop = match (&trial.state, &detail.stop) {
        (TrialState::Complete { .. }, Some(stop)) => {
            Some(format!("stopped after step {}: {}", stop.step, printable(&stop.reason)))
        }
        _ => None,
    };
    let beside = metrics.and_then(neighbours).map(|beside| {
        format!(
            "measured beside {beside} other trials on the same hardware: the throughput is not that of a trial alone"
        )
    });
    let said = |text: String| printable(&text);
    let before = [
        reason_text(&trial.state).map(said),
        stop,
        inherited_text(detail).map(said),
        detail.kernels.as_ref().and_then(kernels_text).map(said),
    ];
    let behind = [
        beside,
        metrics.and_then(|metrics| target_text(study.target, metrics)),
        metrics.and_then(disturbance_text),
        metrics.and_then(loss_rows_text),
        confirmation_text(Some(&detail.confirmed)).map(said),
        divergence_text(detail),
        Some(times_text(detail)),
    ];
    let lost = detail.lost.iter().map(lost_text);
    let lines = before.into_iter().flatten().chain(lost);
    lines.chain(behind.into_iter().flatten()).collect()
}

/// What is said of a longer training that diverged.
fn divergence_text(detail: &TrialDetail) -> Option<String> {
    let confirmed = |metric: &str| Some(detail.confirmed.get(metric)?.value);
    let (step, tokens) = (confirmed(LONGER_DIVERGED_STEP)?, confirmed(LONGER_TOKENS)?);
    Some(format!(
        "diverged at step {step:.0} of a training of {tokens:.0} tokens, which counts against it"
    ))
}

fn inherited_text(detail: &TrialDetail) -> Option<String> {
    let parts = detail.inherited.iter();
    let parts: Vec<String> = parts
        .map(|value| format!("{} from trial {}", value.part, value.source))
        .collect();
    (!parts.is_empty()).then(|| format!("inherited {}", parts.join(", ")))
}

fn lost_text(lost: &LostAttempt) -> String {
    let phase = lost.phase.as_deref();
    let phase = phase.map(|phase| format!(" in phase {phase}")).unwrap_or_default();
    format!("lost attempt {}{phase}: {}", lost.attempt, printable(&lost.message))
}

fn times_text(detail: &TrialDetail) -> String {
    let ended = detail.ended_at.as_deref();
    let ended = ended.map(|time| format!(", ended {}", minute(time)));
    let took = detail.wall_s.map(|seconds| format!(", took {}", duration(seconds)));
    format!(
        "started {} UTC{}{}",
        minute(&detail.started_at),
        ended.unwrap_or_default(),
        took.unwrap_or_default()
    )
}

/// The tables of what is known, with their titles.
fn sections(detail: &TrialDetail, width: Option<usize>) -> impl Iterator<Item = (&'static str, String)> {
    let params = detail.trial.params.iter();
    let params: Vec<(String, String)> = params.map(|(name, value)| (name.clone(), param_value(value))).collect();
    let metrics = detail.trial.state.metrics().into_iter();
    let metrics: Vec<(String, String)> = metrics
        .flat_map(|metrics| metrics.iter())
        .map(|(name, value)| (name.to_owned(), metric_value(name, value)))
        .collect();
    let table = |is_there: bool, table: fn(&TrialDetail) -> TextTable| is_there.then(|| table(detail).to_text(width));
    let sections = [
        ("params", (!params.is_empty()).then(|| aligned(&params))),
        ("metrics", (!metrics.is_empty()).then(|| aligned(&metrics))),
        ("predictions", table(!detail.predictions.is_empty(), prediction_table)),
        ("steps", table(!detail.phases.is_empty(), phase_table)),
        ("precision", table(!detail.precisions.is_empty(), precision_table)),
        ("evaluations", table(!detail.evaluations.is_empty(), evaluation_table)),
    ];
    sections.into_iter().filter_map(|(title, text)| Some((title, text?)))
}

/// Names and values in two columns.
fn aligned(values: &[(String, String)]) -> String {
    let width = values.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let lines: Vec<String> = values
        .iter()
        .map(|(name, value)| format!("  {:<width$}  {}", printable(name), printable(value)))
        .collect();
    lines.join("\n")
}

fn phase_table(detail: &TrialDetail) -> TextTable {
    let headings = [
        "steps",
        "tokens",
        "first loss",
        "last loss",
        "seconds",
        "data",
        "forward",
        "backward",
        "optimizer",
    ];
    let columns = headings.map(|heading| (heading.to_owned(), Align::Right));
    let mut table = TextTable::new([("phase".to_owned(), Align::Left)].into_iter().chain(columns));
    let loss = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.4}"));
    for phase in &detail.phases {
        let seconds = [
            phase.total_s,
            phase.data_s,
            phase.forward_s,
            phase.backward_s,
            phase.optimizer_s,
        ];
        let mut cells = vec![
            phase.phase.clone(),
            phase.steps.to_string(),
            phase.tokens.to_string(),
            loss(phase.first_loss),
            loss(phase.last_loss),
        ];
        cells.extend(seconds.map(|seconds| format!("{seconds:.2}")));
        table.push(cells);
    }
    table
}

/// Predicted beside measured.
fn prediction_table(detail: &TrialDetail) -> TextTable {
    let headings = ["predicted", "within", "measured", "off by"];
    let columns = headings.map(|heading| (heading.to_owned(), Align::Right));
    let mut table = TextTable::new([("metric".to_owned(), Align::Left)].into_iter().chain(columns));
    for one in &detail.predictions {
        let measured = detail
            .trial
            .state
            .metrics()
            .and_then(|metrics| metrics.value(&one.metric));
        table.push([
            one.metric.clone(),
            metric_value(&one.metric, one.value),
            format!("{:.1}%", 100.0 * one.deviation),
            measured.map_or_else(|| "-".to_owned(), |value| metric_value(&one.metric, value)),
            measured.map_or_else(
                || "-".to_owned(),
                |value| format!("{:+.1}%", 100.0 * (value / one.value - 1.0)),
            ),
        ]);
    }
    table
}

/// What was decided on the precision, and on what.
fn precision_table(detail: &TrialDetail) -> TextTable {
    let right = ["noise scale", "tokens a step", "overflows"].map(|heading| (heading.to_owned(), Align::Right));
    let left = [("from then on", Align::Left), ("because of", Align::Left)];
    let left = left.map(|(heading, align)| (heading.to_owned(), align));
    let step = [("after step".to_owned(), Align::Right)];
    let mut table = TextTable::new(step.into_iter().chain(left).chain(right));
    for decision in &detail.precisions {
        table.push([
            decision.step.to_string(),
            decision.precision.clone(),
            decision.cause.clone(),
            decision
                .noise_scale
                .map_or_else(|| "-".to_owned(), |scale| format!("{scale:.0}")),
            format!("{:.0}", decision.step_targets),
            decision.overflows.to_string(),
        ]);
    }
    table
}

fn evaluation_table(detail: &TrialDetail) -> TextTable {
    let headings = ["step", "tokens", "loss", "accuracy", "seconds"];
    let mut table = TextTable::new(headings.map(|heading| (heading.to_owned(), Align::Right)));
    for evaluation in &detail.evaluations {
        table.push([
            evaluation.step.to_string(),
            evaluation.tokens.to_string(),
            format!("{:.4}", evaluation.loss),
            format!("{:.1}%", 100.0 * evaluation.accuracy),
            format!("{:.2}", evaluation.seconds),
        ]);
    }
    table
}

/// Everything about a trial, with raw numbers.
pub fn trial_detail_json(study: &StudyOverview, detail: &TrialDetail) -> serde_json::Value {
    let evaluations: Vec<serde_json::Value> = detail
        .evaluations
        .iter()
        .map(|evaluation| {
            json!({
                "step": evaluation.step,
                "tokens": evaluation.tokens,
                "loss": evaluation.loss,
                "accuracy": evaluation.accuracy,
                "target_tokens": evaluation.target_tokens,
                "seconds": evaluation.seconds,
            })
        })
        .collect();
    let inherited: Vec<serde_json::Value> = detail
        .inherited
        .iter()
        .map(|value| json!({"part": value.part, "source": value.source}))
        .collect();
    json!({
        "study": study.name,
        "trial": detail.trial.number,
        "state": detail.trial.state,
        "attempt": detail.attempt,
        "phase": detail.phase,
        "started_at": detail.started_at,
        "ended_at": detail.ended_at,
        "wall_s": detail.wall_s,
        "params": detail.trial.params,
        "phases": detail.phases,
        "evaluations": evaluations,
        "precision_decisions": detail.precisions,
        "predictions": detail.predictions,
        "stop": detail.stop,
        "inherited": inherited,
        "kernels": detail.kernels.as_ref().map(|kernels| &kernels.kernels),
        "attention": detail.kernels.as_ref().and_then(|kernels| kernels.attention.as_ref()),
        "longer_sums": detail.kernels.as_ref().map(|kernels| kernels.longer_sums),
        "kernels_instead_of": detail.kernels.as_ref().and_then(|kernels| kernels.instead_of.as_ref()),
        "lost_attempts": detail.lost,
        "confirmed": detail.confirmed,
        "recipe": detail.recipe,
    })
}

/// Kernels that a trial was computed in, where there is something to say of them.
fn kernels_text(kernels: &TrialKernels) -> Option<String> {
    let form = match kernels.kernels.as_str() {
        "reference" => {
            Some("computed with plain tensor ops (`--kernels reference`): slower than the engine's kernels".to_owned())
        }
        "graphs" => Some("computed with CUDA graphs where shapes repeated (`--kernels graphs`)".to_owned()),
        "fused" => None,
        other => Some(format!("computed with own kernels (`--kernels {other}`)")),
    };
    let attention = kernels
        .attention
        .as_ref()
        .map(|kernels| format!("attention in its {kernels} kernels"));
    let sums = kernels
        .longer_sums
        .then(|| "adapters' products are parts of the weights'".to_owned());
    let instead = kernels.instead_of.as_ref().map(|failed| {
        format!(
            "in the place of `--kernels {}`, of which a kernel failed",
            shown(failed)
        )
    });
    let parts: Vec<String> = [form, attention, sums, instead].into_iter().flatten().collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}

/// A form as it is asked for.
fn shown(kernels: &str) -> &str {
    if kernels == "fused" { "auto" } else { kernels }
}

/// Why a trial ended early, in a sentence.
fn reason_text(state: &TrialState) -> Option<String> {
    let optional = |value: &Option<u64>| value.map_or_else(|| "unknown".to_owned(), |value| bytes(value as f64));
    Some(match state {
        TrialState::Pruned { at_step, rule, .. } => format!("stopped after step {at_step}: {rule}"),
        TrialState::Skipped { reason } => reason.clone(),
        TrialState::Failed { reason, .. } => match reason {
            FailReason::OutOfMemory {
                phase,
                in_use_bytes,
                requested_bytes,
                limit_bytes,
            } => format!(
                "out of memory in phase {}: {} in use, {} asked for, limit {}",
                phase.name(),
                optional(in_use_bytes),
                optional(requested_bytes),
                optional(limit_bytes)
            ),
            FailReason::Diverged { at_step, loss, .. } => {
                let loss = loss.map_or_else(String::new, |loss| format!(", last loss {loss:.4}"));
                format!("diverged at step {at_step}{loss}{}", reason.cause_text())
            }
            FailReason::Crashed { phase, message } => format!("crashed in phase {}: {message}", phase.name()),
            FailReason::TimedOut { phase, after_s } => {
                format!("timed out in phase {} after {}", phase.name(), duration(*after_s))
            }
            FailReason::Invalid { message } => format!("invalid: {message}"),
        },
        TrialState::Waiting | TrialState::Running | TrialState::Complete { .. } => return None,
    })
}
