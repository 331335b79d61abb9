//! A receipt: what was compared of both trainings, and what differs.

use serde::Serialize;

use super::evidence::{Both, Evidence, ReceiptStep, comparable, steps};
use super::findings::{Finding, findings};
use super::row_difference::RowFacts;
use super::tool_run::ToolAdapter;
use crate::cli::engines::{Bound, Trained};

/// The receipt, as its JSON has it.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Receipt {
    pub agrees: bool,
    /// Whether differences were taken with `--accept`.
    pub accepted: bool,
    pub tool: &'static str,
    pub version: Option<String>,
    pub device: String,
    pub precision: &'static str,
    pub findings: Vec<Finding>,
    /// Settings that are not the file's.
    pub changed: Vec<String>,
    pub steps: Vec<ReceiptStep>,
    /// Steps of the whole training, which the learning rates are of.
    pub total_steps: u64,
    /// First steps whose losses are compared.
    pub compared_steps: usize,
    pub parameters: Both<u64>,
    pub peak_bytes: Both<f64>,
    /// The adapter's settings in the tool.
    pub adapter: Option<ToolAdapter>,
    pub attention: Option<String>,
    /// Share by which scores of a packed row's second document change with the first one's tokens; absent where no row is packed.
    pub packing_leak: Option<f64>,
    pub bound: Bound,
    /// The engine's training on the tool's rows.
    pub engine: Option<Trained>,
}

impl Receipt {
    /// Compares both trainings.
    pub(super) fn of(evidence: Evidence<'_>) -> Self {
        let compared_steps = comparable(evidence.rows);
        let steps = steps(&evidence, compared_steps);
        let facts = RowFacts {
            pad: evidence.training.pad,
            end: evidence.training.end,
            is_chat: evidence.is_chat,
        };
        let findings = findings(&evidence, &steps, facts);
        let Evidence {
            recipe,
            tool,
            device,
            training,
            rows: _,
            engine,
            parameters,
            bound,
            changed,
            total_steps,
            is_chat: _,
        } = evidence;
        Self {
            agrees: findings.is_empty(),
            accepted: false,
            tool,
            version: training.version.clone(),
            device: device.to_owned(),
            precision: recipe.precision.name(),
            findings,
            changed,
            steps,
            total_steps,
            compared_steps,
            parameters: Both {
                engine: parameters,
                tool: training.parameters,
            },
            peak_bytes: Both {
                engine: engine.as_ref().and_then(|trained| trained.peak_memory_bytes),
                tool: training.peak_bytes,
            },
            adapter: training.adapter.clone(),
            attention: training.attention.clone(),
            packing_leak: training.leak,
            bound,
            engine,
        }
    }
}
