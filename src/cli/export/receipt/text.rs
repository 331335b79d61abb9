//! A receipt as a table, and its verdict in words.

use std::fmt::Write;

use super::taken::Receipt;
use crate::report::{Align, TextTable, bytes};

/// The receipt for people.
pub(super) fn of(receipt: &Receipt) -> String {
    let Receipt {
        version,
        tool,
        device,
        precision,
        total_steps,
        changed,
        ..
    } = receipt;
    let version = version.as_deref().unwrap_or("(of no version)");
    let mut text = format!(
        "{} of {total_steps} steps in {tool} {version} and in the built-in engine, in {precision} on {device}\n\n{}\n{}\n",
        receipt.steps.len(),
        steps(receipt).to_text(None),
        wholes(receipt).to_text(None)
    );
    for line in changed {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{line}");
    }
    let _ = writeln!(text, "{}", verdict(receipt));
    text
}

/// The steps of both, side by side.
fn steps(receipt: &Receipt) -> TextTable {
    let engine = ["learning rate", "loss", "gradient norm"].map(|name| (name, format!("{name} in {}", receipt.tool)));
    let columns = ["step", "rows", "same", "tokens", "masked"]
        .map(str::to_owned)
        .into_iter();
    let both = engine.into_iter().flat_map(|(name, theirs)| [name.to_owned(), theirs]);
    let mut table = TextTable::new(columns.chain(both).map(|name| (name, Align::Right)));
    let cell = |value: Option<f64>, shown: &dyn Fn(f64) -> String| value.map_or_else(|| "-".to_owned(), shown);
    let number = |value: f64| format!("{value:.6}");
    let rate = |value: f64| format!("{value:.3e}");
    for step in &receipt.steps {
        let counts = [step.step as usize, step.rows, step.same_rows, step.tokens, step.masked];
        let numbers = [
            cell(step.learning_rate.engine, &rate),
            cell(step.learning_rate.tool, &rate),
            cell(step.loss.engine, &number),
            cell(step.loss.tool, &number),
            cell(step.grad_norm.engine, &number),
            cell(step.grad_norm.tool, &number),
        ];
        table.push(counts.map(|count| count.to_string()).into_iter().chain(numbers));
    }
    table
}

/// Numbers of both trainings as wholes.
fn wholes(receipt: &Receipt) -> TextTable {
    let headings = [
        ("", Align::Left),
        ("built-in", Align::Right),
        (receipt.tool, Align::Right),
    ];
    let mut table = TextTable::new(headings.map(|(name, align)| (name.to_owned(), align)));
    let cell = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
    let (parameters, peak) = (&receipt.parameters, &receipt.peak_bytes);
    table.push([
        "trained parameters".to_owned(),
        cell(parameters.engine.map(|count| count.to_string())),
        cell(parameters.tool.map(|count| count.to_string())),
    ]);
    table.push([
        "peak memory".to_owned(),
        cell(peak.engine.map(bytes)),
        cell(peak.tool.map(bytes)),
    ]);
    table
}

/// What is made of it: what was the same, or what differs under its key.
pub(super) fn verdict(receipt: &Receipt) -> String {
    let Receipt {
        tool,
        bound,
        findings,
        steps,
        ..
    } = receipt;
    if receipt.agrees {
        let rows: usize = steps.iter().map(|step| step.rows).sum();
        return format!(
            "{tool} trains what the built-in engine trains: {rows} rows in {} steps, of which {} were compared by loss within {:.1e} \
             ({})",
            steps.len(),
            receipt.compared_steps,
            bound.losses,
            bound.why
        );
    }
    let told: Vec<String> = findings
        .iter()
        .map(|finding| format!("`{}`: {}", finding.key, finding.message))
        .collect();
    let word = if receipt.accepted { " (accepted)" } else { "" };
    format!("{tool} trains something else{word}: {}", told.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::engines::{Bound, Products};
    use crate::cli::export::receipt::evidence::{Both, ReceiptStep};
    use crate::cli::export::receipt::findings::Finding;
    use peft_tune_core::recipe::Precision;

    fn receipt(findings: Vec<Finding>) -> Receipt {
        let both = |engine: Option<f64>, tool: f64| Both {
            engine,
            tool: Some(tool),
        };
        let step = ReceiptStep {
            step: 1,
            rows: 4,
            same_rows: 3,
            tokens: 120,
            masked: 70,
            learning_rate: both(Some(2e-4), 2e-4),
            loss: both(Some(2.0), 2.5),
            grad_norm: both(None, 0.5),
        };
        Receipt {
            agrees: findings.is_empty(),
            accepted: false,
            tool: "TRL",
            version: Some("1.16.0".to_owned()),
            device: "cpu".to_owned(),
            precision: "fp32",
            findings,
            changed: vec!["dropout is 0 in both".to_owned()],
            steps: vec![step],
            total_steps: 25,
            compared_steps: 1,
            parameters: Both {
                engine: Some(7168),
                tool: Some(7168),
            },
            peak_bytes: both(None, 2e6),
            adapter: None,
            attention: None,
            packing_leak: None,
            bound: Bound::of(Precision::Fp32, Products::Cpu),
            engine: None,
        }
    }

    #[test]
    fn a_receipt_shows_both_trainings_with_its_verdict_below() {
        let text = of(&receipt(Vec::new()));
        for part in [
            "1 of 25 steps in TRL 1.16.0 and in the built-in engine, in fp32 on cpu",
            "loss in TRL",
            "2.500000",
            "7168",
            "dropout is 0 in both\nTRL trains what the built-in engine trains: 4 rows in 1 steps",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn what_differs_stands_under_its_key() {
        let mut receipt = receipt(vec![Finding {
            key: "data.chat_template",
            message: "1 of 4 rows differ".to_owned(),
        }]);
        assert_eq!(
            verdict(&receipt),
            "TRL trains something else: `data.chat_template`: 1 of 4 rows differ"
        );
        receipt.accepted = true;
        assert!(verdict(&receipt).contains("something else (accepted): "));
    }
}
