//! What differs between a tool's steps and the engine's, each difference under the key that decides it.
//!
//! The engine trains on the rows that the tool made, so that other rows, another loss of the same rows, and another step from the same
//! loss are told apart. How a tool divides the losses of micro-batches is found by what the right loss would be from its own parts: with
//! T_i targets in micro-batch i of k, N of the step, and R rows, a part l_i is S_i/N of the sum S_i. A mean of means has
//! l_i = S_i/(T_i k), a sum of means S_i/T_i, and who counts first tokens S_i/(N + R).

use std::collections::BTreeMap;

use serde::Serialize;

use super::evidence::{Both, Evidence, ReceiptStep, StepRows};
use super::row_difference::{RowDifference, RowFacts};
use super::row_match::Match;
use super::tool_run::{ToolAdapter, ToolStep};
use crate::cli::engines::{RATES, relative, relative_of};
use peft_tune_core::recipe::{AdapterSettings, Precision};

/// Share of their size by which scores may change in attention that keeps documents apart.
const LEAK: f64 = 1e-4;
/// Names that a finding shows at the most.
const MOST_NAMES: usize = 3;

/// A difference.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    /// Key of the recipe, or of the tool where the recipe has none.
    pub key: &'static str,
    pub message: String,
}

impl Finding {
    fn new(key: &'static str, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { key, message }
    }
}

/// Everything that differs by more than rounding.
pub(super) fn findings(evidence: &Evidence<'_>, steps: &[ReceiptStep], facts: RowFacts) -> Vec<Finding> {
    let mut found: Vec<Finding> = of_no_rows(evidence.rows).into_iter().collect();
    found.extend(of_rows(evidence.rows, facts));
    found.extend(of_batches(evidence));
    found.extend(of_adapter(evidence));
    found.extend(of_packing(evidence));
    found.extend(of_rates(steps));
    found.extend(of_losses(evidence, steps));
    found
}

/// Steps without any rows: whatever else is the same, nothing was compared.
fn of_no_rows(rows: &[StepRows]) -> Option<Finding> {
    let is_unseen = rows.iter().all(|step| step.rows.is_empty());
    is_unseen.then(|| {
        Finding::new(
            "data.train",
            "no row of its steps was seen, so nothing could be compared",
        )
    })
}

/// Rows that are none of the engine's, by the key of each difference.
fn of_rows(rows: &[StepRows], facts: RowFacts) -> Vec<Finding> {
    let mut by_key: BTreeMap<&'static str, (usize, String)> = BTreeMap::new();
    for (number, step) in rows.iter().enumerate() {
        for (row, one) in step.rows.iter().zip(&step.matches) {
            let difference = match one {
                Match::Same => continue,
                Match::Nearest(ours) => RowDifference::between(ours, row, facts),
                Match::Strange => RowDifference {
                    key: "data.train",
                    what: "it is no row of the data".to_owned(),
                },
            };
            let first = format!("step {}: {}", number + 1, difference.what);
            by_key.entry(difference.key).or_insert((0, first)).0 += 1;
        }
    }
    let all: usize = rows.iter().map(|step| step.rows.len()).sum();
    let finding = |(key, (count, first)): (&'static str, (usize, String))| {
        Finding::new(key, format!("{count} of {all} rows differ, such as in {first}"))
    };
    by_key.into_iter().map(finding).collect()
}

/// Micro-batches of the first step, which is never cut short by the end of an epoch.
fn of_batches(evidence: &Evidence<'_>) -> Vec<Finding> {
    let (batch, mut found) = (&evidence.recipe.batch, Vec::new());
    let Some(first) = evidence.training.steps.first() else {
        return found;
    };
    let micro_batches = first.micro_batches.len();
    if micro_batches != batch.gradient_accumulation && !is_short(evidence) {
        found.push(Finding::new(
            "batch.gradient_accumulation",
            format!(
                "a step has {micro_batches} micro-batches there and {} here",
                batch.gradient_accumulation
            ),
        ));
    }
    let rows = first.micro_batches.first().map_or(0, |one| one.rows.len());
    if !batch.packing && rows != batch.micro_batch && !is_short(evidence) {
        found.push(Finding::new(
            "batch.micro_batch",
            format!("a micro-batch has {rows} rows there and {} here", batch.micro_batch),
        ));
    }
    let unlearnt = evidence
        .rows
        .iter()
        .flat_map(|step| &step.rows)
        .filter(|row| !row.is_learnt())
        .count();
    if unlearnt > 0 {
        found.push(Finding::new(
            "data.loss_on",
            format!("{unlearnt} rows without a target are trained on there, and left out here"),
        ));
    }
    found
}

/// Whether the whole data is smaller than a step.
fn is_short(evidence: &Evidence<'_>) -> bool {
    let batch = &evidence.recipe.batch;
    let rows = evidence.rows.first().map_or(0, |step| step.rows.len());
    evidence.training.steps.len() == 1 && rows < batch.micro_batch * batch.gradient_accumulation
}

/// The adapter: its weights, their number and its settings.
fn of_adapter(evidence: &Evidence<'_>) -> Vec<Finding> {
    let (training, mut found) = (evidence.training, Vec::new());
    let strangers = &training.strangers;
    if !strangers.is_empty() {
        let shown = strangers[..strangers.len().min(MOST_NAMES)].join(", ");
        found.push(Finding::new(
            "adapter.target_modules",
            format!(
                "{} weights of the adapters are not the same, such as {shown}",
                strangers.len()
            ),
        ));
    }
    let Some(own) = &evidence.recipe.adapter else {
        return found;
    };
    if let (Some(ours), Some(theirs)) = (evidence.parameters, training.parameters)
        && ours != theirs
    {
        found.push(Finding::new(
            if strangers.is_empty() {
                "adapter.rank"
            } else {
                "adapter.target_modules"
            },
            format!("{theirs} parameters are trained there and {ours} here"),
        ));
    }
    if let Some(theirs) = &training.adapter {
        found.extend(of_settings(own, theirs));
    }
    found
}

fn of_settings(own: &AdapterSettings, theirs: &ToolAdapter) -> Vec<Finding> {
    let told = |key, ours: String, theirs: String| Finding::new(key, format!("it is {theirs} there and {ours} here"));
    let mut found = Vec::new();
    if theirs.rank != own.rank as u64 {
        found.push(told("adapter.rank", own.rank.to_string(), theirs.rank.to_string()));
    }
    for (key, ours, theirs) in [
        ("adapter.alpha", own.alpha, theirs.alpha),
        ("adapter.dropout", own.dropout, theirs.dropout),
    ] {
        if relative(ours, theirs) > RATES {
            found.push(told(key, ours.to_string(), theirs.to_string()));
        }
    }
    for (key, ours, theirs) in [
        ("adapter.rslora", own.rslora, theirs.rslora),
        ("adapter.dora", own.dora, theirs.dora),
    ] {
        if ours != theirs {
            found.push(told(key, ours.to_string(), theirs.to_string()));
        }
    }
    found
}

/// Documents of packed rows that see each other, and packing that one of the two has.
fn of_packing(evidence: &Evidence<'_>) -> Option<Finding> {
    let share = evidence.training.leak.filter(|share| *share > LEAK)?;
    let attention = evidence.training.attention.as_deref().unwrap_or("its");
    Some(Finding::new(
        "batch.packing",
        format!(
            "documents of a packed row see each other under {attention} attention: with other tokens in the first one, scores of the \
             second change by {:.1}% of their size",
            100.0 * share
        ),
    ))
}

/// The first step with another learning rate.
fn of_rates(steps: &[ReceiptStep]) -> Option<Finding> {
    let rates = || steps.iter().filter_map(|step| step.learning_rate.engine);
    let highest = rates().map(f64::abs).fold(0.0, f64::max);
    let differs = |both: &Both<f64>| match (both.engine, both.tool) {
        (Some(ours), Some(theirs)) => relative(highest, highest + ours - theirs) > RATES,
        (Some(_), None) => true,
        (None, _) => false,
    };
    let first = steps.iter().find(|step| differs(&step.learning_rate))?;
    let shown = |rate: Option<f64>| rate.map_or_else(|| "none".to_owned(), |rate| format!("{rate:.4e}"));
    // Rates whose ratio is the same in all steps are of another height; others of another shape.
    let ratio =
        |step: &ReceiptStep| Some(step.learning_rate.tool? / step.learning_rate.engine.filter(|rate| *rate != 0.0)?);
    let ratios: Vec<f64> = steps.iter().filter_map(ratio).collect();
    let is_height = ratios.len() > 1 && ratios.iter().all(|one| relative(ratios[0], *one) <= RATES.sqrt());
    Some(Finding::new(
        if is_height {
            "optimizer.learning_rate"
        } else {
            "schedule"
        },
        format!(
            "the learning rate of step {} is {} there and {} here",
            first.step,
            shown(first.learning_rate.tool),
            shown(first.learning_rate.engine)
        ),
    ))
}

/// The first loss that differs, or the first norm of gradients.
fn of_losses(evidence: &Evidence<'_>, steps: &[ReceiptStep]) -> Option<Finding> {
    let bound = evidence.bound;
    let differs = |both: &Both<f64>, limit: f64| both.engine.is_some() && relative_of(both.engine, both.tool) > limit;
    let loss_at = steps.iter().position(|step| differs(&step.loss, bound.losses));
    // Not all tools tell of their gradients.
    let norm_at = steps
        .iter()
        .position(|step| step.grad_norm.tool.is_some() && differs(&step.grad_norm, bound.gradients));
    let shown = |value: Option<f64>| value.map_or_else(|| "no number".to_owned(), |value| format!("{value:.6}"));
    match (loss_at, norm_at) {
        (None, None) => None,
        (Some(at), norm) if norm.is_none_or(|norm| at <= norm) => {
            let (step, loss) = (&steps[at], steps[at].loss);
            let told = format!(
                "the loss of step {} is {} there and {} here, on the same rows",
                step.step,
                shown(loss.tool),
                shown(loss.engine)
            );
            let ours = loss.engine.unwrap_or(f64::NAN);
            let (key, why) = cause_of_loss(evidence, at, ours);
            Some(Finding::new(key, format!("{told}{why}")))
        }
        (_, norm) => {
            let step = &steps[norm.unwrap_or_default()];
            let (theirs, ours) = (shown(step.grad_norm.tool), shown(step.grad_norm.engine));
            let told = format!(
                "the norm of the gradients of step {} is {theirs} there and {ours} here",
                step.step
            );
            Some(match step.step {
                1 => Finding::new("adapter", format!("{told}, from the same loss")),
                _ => Finding::new("optimizer.kind", format!("{told}: the first update was another one")),
            })
        }
    }
}

/// The key that a loss of the step at `at` tells of, and why.
fn cause_of_loss(evidence: &Evidence<'_>, at: usize, ours: f64) -> (&'static str, String) {
    let divided = evidence
        .training
        .steps
        .get(at)
        .and_then(|step| normalisation(step, ours, evidence.bound.losses));
    if let Some(why) = divided {
        return ("batch.gradient_accumulation", format!(": {why}"));
    }
    if at > 0 {
        return ("optimizer.kind", ": the updates before it were other ones".to_owned());
    }
    let stored = evidence.training.base_dtypes.join(", ");
    let is_fp32 = evidence.recipe.precision == Precision::Fp32;
    match is_fp32 && !stored.is_empty() && stored != "float32" {
        true => (
            "precision",
            format!(": the base is in {stored} there, and in fp32 here"),
        ),
        false => ("precision", String::new()),
    }
}

/// Another way of dividing the losses of micro-batches by which the tool's parts make the engine's loss; `None` where none does.
fn normalisation(step: &ToolStep, ours: f64, limit: f64) -> Option<&'static str> {
    let parts: Option<Vec<(f64, f64)>> = step
        .micro_batches
        .iter()
        .map(|one| Some((one.loss?, one.targets() as f64)))
        .collect();
    let parts = parts?;
    let targets: f64 = parts.iter().map(|(_, targets)| targets).sum();
    let rows: usize = step.micro_batches.iter().map(|one| one.rows.len()).sum();
    let count = parts.len() as f64;
    let weighed = parts.iter().map(|(part, own)| part * own).sum::<f64>() / targets;
    let whole = parts.iter().map(|(part, _)| part).sum::<f64>();
    let ways = [
        (
            weighed * count,
            "it is the mean of the means of micro-batches, so that tokens of short ones count more",
        ),
        (weighed, "it is the sum of the means of micro-batches"),
        (
            whole * (targets + rows as f64) / targets,
            "it is divided by the first tokens of rows too, which nothing predicts",
        ),
        (whole / count, "it is not divided by the number of micro-batches"),
        (whole * count, "it is divided by the number of micro-batches once more"),
    ];
    let found = ways.into_iter().find(|(right, _)| relative(ours, *right) <= limit);
    found.map(|(_, why)| why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::engines::{Bound, Products};
    use crate::cli::export::receipt::evidence::steps;
    use crate::cli::export::receipt::tool_run::{ToolMicroBatch, ToolTraining};
    use peft_tune_core::recipe::{DataSettings, Recipe};

    /// A micro-batch of one row with so many targets, and its part of the loss.
    fn micro_batch(targets: usize, loss: f64) -> ToolMicroBatch {
        let ids: Vec<u32> = (0..=targets as u32).collect();
        let labels = ids.iter().map(|id| i64::from(*id)).collect();
        ToolMicroBatch {
            rows: vec![(ids, labels)],
            loss: Some(loss),
        }
    }

    fn step(parts: [(usize, f64); 2]) -> ToolStep {
        ToolStep {
            loss: Some(parts[0].1 + parts[1].1),
            learning_rate: None,
            grad_norm: None,
            micro_batches: parts.map(|(targets, loss)| micro_batch(targets, loss)).into(),
        }
    }

    #[test]
    fn every_other_way_of_dividing_is_told_by_its_parts() {
        // Sums of 20 over 10 targets and of 90 over 30: the loss is 110 / 40.
        let ours = 110.0 / 40.0;
        for (parts, word) in [
            ([(10, 20.0 / 10.0 / 2.0), (30, 90.0 / 30.0 / 2.0)], "mean of the means"),
            ([(10, 20.0 / 10.0), (30, 90.0 / 30.0)], "sum of the means"),
            ([(10, 20.0 / 42.0), (30, 90.0 / 42.0)], "first tokens"),
            ([(10, 20.0 / 80.0), (30, 90.0 / 80.0)], "once more"),
        ] {
            let found = normalisation(&step(parts), ours, 1e-6);
            assert!(found.is_some_and(|why| why.contains(word)), "{word}: {found:?}");
        }
        assert_eq!(normalisation(&step([(10, 0.7), (30, 1.9)]), ours, 1e-6), None);
    }

    #[test]
    fn a_step_whose_rows_were_not_seen_does_not_agree() {
        let recipe = Recipe::new("model", DataSettings::default());
        let training = ToolTraining {
            steps: vec![ToolStep {
                loss: Some(2.0),
                learning_rate: None,
                grad_norm: None,
                micro_batches: Vec::new(),
            }],
            ..ToolTraining::default()
        };
        let rows = [StepRows {
            rows: Vec::new(),
            matches: Vec::new(),
        }];
        let evidence = Evidence {
            recipe: &recipe,
            tool: "TRL",
            device: "cpu",
            training: &training,
            rows: &rows,
            engine: None,
            parameters: None,
            bound: Bound::of(Precision::Fp32, Products::Cpu),
            changed: Vec::new(),
            total_steps: 1,
            is_chat: false,
        };
        let found = findings(&evidence, &steps(&evidence, 0), RowFacts::default());
        let keys: Vec<&str> = found.iter().map(|one| one.key).collect();
        assert_eq!(keys, ["data.train"], "{found:?}");
        assert!(
            found[0].message.starts_with("no row of its steps was seen"),
            "{found:?}"
        );
    }

    fn rates(pairs: &[(f64, f64)]) -> Vec<ReceiptStep> {
        let step = |(at, (ours, theirs)): (usize, &(f64, f64))| ReceiptStep {
            step: at as u64 + 1,
            rows: 1,
            same_rows: 1,
            tokens: 4,
            masked: 1,
            learning_rate: Both {
                engine: Some(*ours),
                tool: Some(*theirs),
            },
            loss: Both {
                engine: None,
                tool: Some(2.0),
            },
            grad_norm: Both {
                engine: None,
                tool: None,
            },
        };
        pairs.iter().enumerate().map(step).collect()
    }

    #[test]
    fn another_height_and_another_shape_of_rates_are_told_apart() {
        assert_eq!(of_rates(&rates(&[(1e-3, 1e-3), (5e-4, 5e-4)])), None);
        let height = of_rates(&rates(&[(0.0, 0.0), (1e-3, 2e-3), (5e-4, 1e-3)])).unwrap();
        assert_eq!(height.key, "optimizer.learning_rate");
        assert!(
            height.message.contains("step 2 is 2.0000e-3 there and 1.0000e-3 here"),
            "{height:?}"
        );
        let shape = of_rates(&rates(&[(1e-3, 1e-3), (5e-4, 1e-3)])).unwrap();
        assert_eq!(shape.key, "schedule");
    }

    #[test]
    fn settings_of_the_adapter_are_compared_by_their_keys() {
        let own = AdapterSettings {
            alpha: 22.6,
            ..AdapterSettings::default()
        };
        let theirs = ToolAdapter {
            rank: own.rank as u64,
            alpha: 23.0,
            dropout: 0.0,
            rslora: true,
            dora: false,
        };
        let keys: Vec<&str> = of_settings(&own, &theirs).iter().map(|one| one.key).collect();
        assert_eq!(keys, ["adapter.alpha", "adapter.rslora"]);
    }
}
