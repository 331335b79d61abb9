//! A comparison of two engines as text and as JSON.

use std::fmt::Write;

use serde::Serialize;

use super::comparison::Comparison;
use crate::cli::CliError;
use crate::cli::engines::Trained;
use crate::cli::processes::interpreter::Stack;
use crate::report::{Align, TextTable, bytes, duration};

/// A comparison with what was compared.
#[derive(Debug, Serialize)]
pub(super) struct Report<'a> {
    pub recipe: String,
    pub precision: &'static str,
    pub device: &'a str,
    pub stack: &'a Stack,
    /// Settings that are not the file's.
    pub changed: &'a [String],
    #[serde(flatten)]
    pub comparison: Comparison,
}

impl Report<'_> {
    /// The report for scripts, with raw numbers.
    pub(super) fn to_json(&self) -> Result<String, CliError> {
        Ok(serde_json::to_string_pretty(self).map_err(CliError::failed)? + "\n")
    }

    /// The report for people, in at most `width` columns of characters.
    pub(super) fn to_text(&self, width: Option<usize>) -> String {
        let Self {
            recipe,
            precision,
            device,
            comparison,
            ..
        } = self;
        let mut text = format!(
            "{} of {recipe} in {precision} on {device}, in the built-in engine and in TRL\n\n{}\n{}\n",
            steps_text(comparison.native.steps.len() as u64),
            steps(comparison).to_text(width),
            wholes(comparison).to_text(width)
        );
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{}", verdict(comparison));
        text
    }
}

/// A number of steps in words.
pub(super) fn steps_text(count: u64) -> String {
    format!("{count} {}", if count == 1 { "step" } else { "steps" })
}

/// The steps of both, side by side.
fn steps(comparison: &Comparison) -> TextTable {
    let number = |name: &str| (name.to_owned(), Align::Right);
    let columns = ["loss", "gradient norm", "learning rate", "targets"];
    let both = columns.iter().flat_map(|name| [number(name), number("in TRL")]);
    let mut table = TextTable::new(std::iter::once(number("step")).chain(both));
    for (our, their) in comparison.native.steps.iter().zip(&comparison.trl.steps) {
        table.push([
            our.step.to_string(),
            format!("{:.6}", our.loss),
            format!("{:.6}", their.loss),
            format!("{:.6}", our.grad_norm),
            format!("{:.6}", their.grad_norm),
            format!("{:.3e}", our.learning_rate),
            format!("{:.3e}", their.learning_rate),
            our.target_tokens.to_string(),
            their.target_tokens.to_string(),
        ]);
    }
    table
}

/// A number of a training: its name, the number itself, and how people read it.
type Shown<'a> = (&'a str, fn(&Trained) -> Option<f64>, &'a dyn Fn(f64) -> String);

/// Numbers of both trainings as wholes.
fn wholes(comparison: &Comparison) -> TextTable {
    let headings = [("", Align::Left), ("built-in", Align::Right), ("in TRL", Align::Right)];
    let mut table = TextTable::new(headings.map(|(name, align)| (name.to_owned(), align)));
    let loss = |value: f64| format!("{value:.6}");
    let rows: [Shown<'_>; 4] = [
        ("held-out loss before", |one| one.held_out_loss_before, &loss),
        ("held-out loss behind", |one| one.held_out_loss, &loss),
        ("peak memory", |one| one.peak_memory_bytes, &bytes),
        ("time of a step", |one| one.step_s, &duration),
    ];
    for (name, value, show) in rows {
        let cell = |one: &Trained| value(one).map_or_else(|| "-".to_owned(), show);
        table.push([name.to_owned(), cell(&comparison.native), cell(&comparison.trl)]);
    }
    table
}

/// Whether they agree, within which bounds, and where not.
fn verdict(comparison: &Comparison) -> String {
    let Comparison {
        agrees,
        reasons,
        bound,
        differences,
        ..
    } = comparison;
    let bounds = format!(
        "losses may differ by {:.1e} and norms of gradients by {:.1e}: {}",
        bound.losses, bound.gradients, bound.why
    );
    match agrees {
        true => format!(
            "the engines agree: losses differ by {:.1e} at most, norms of gradients by {:.1e} ({bounds})",
            differences.losses, differences.gradients
        ),
        false => format!("the engines do not agree ({bounds}):\n- {}", reasons.join("\n- ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::engines::{Bound, Products};
    use crate::space::Loader;
    use peft_tune_core::objective::{LOSS, LOSS_BEFORE};
    use peft_tune_core::recipe::Precision;
    use peft_tune_core::study::Metrics;
    use peft_tune_engine::{StepEvent, StepSeconds};

    fn trained(loss: f64) -> Trained {
        let step = StepEvent {
            step: 1,
            loss,
            learning_rate: 2e-4,
            grad_norm: 0.5,
            tokens: 40,
            target_tokens: 30,
            seconds: StepSeconds {
                total: 0.25,
                ..StepSeconds::default()
            },
            precision: None,
            precision_decision: None,
        };
        Trained::new(vec![step], &Metrics::from([(LOSS_BEFORE, 3.0), (LOSS, 2.0)]))
    }

    /// The report on losses of one step, as text and as JSON.
    fn report(ours: f64, theirs: f64) -> (String, serde_json::Value) {
        let stack = Stack {
            loader: Loader::default(),
            interpreter: "/venv/bin/python".into(),
            python: "3.12.3".to_owned(),
            packages: Vec::new(),
            devices: Vec::new(),
            wanted: Vec::new(),
        };
        let report = Report {
            recipe: "recipe.yaml".to_owned(),
            precision: "fp32",
            device: "cpu",
            stack: &stack,
            changed: &[],
            comparison: Comparison::new(
                trained(ours),
                trained(theirs),
                Bound::of(Precision::Fp32, Products::Cpu),
            ),
        };
        let json = serde_json::from_str(&report.to_json().unwrap()).unwrap();
        (report.to_text(None), json)
    }

    #[test]
    fn both_engines_stand_side_by_side_with_the_verdict_below() {
        let (text, json) = report(2.0, 2.0000002);
        for part in [
            "1 step of recipe.yaml in fp32 on cpu",
            "2.000000",
            "2.000e-4",
            "250 ms",
            "the engines agree: losses differ by 1.0e-7 at most",
            "by 1.0e-5 and norms of gradients by 1.0e-4: sums of fp32 numbers",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert_eq!(json["agrees"], true);
        assert_eq!(json["native"]["steps"][0]["target_tokens"], 30);
        assert_eq!(json["trl"]["held_out_loss"], 2.0);
    }

    #[test]
    fn what_differs_is_listed() {
        let (text, json) = report(2.0, 2.1);
        assert!(
            text.contains("do not agree") && text.contains("\n- losses differ by up to 5.0e-2"),
            "{text}"
        );
        assert_eq!(json["agrees"], false);
        assert_eq!(json["reasons"].as_array().unwrap().len(), 1);
    }
}
