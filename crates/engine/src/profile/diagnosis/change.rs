//! Changes that would help: of the recipe, which can be run, or of the machine, which a person must make.

use serde::{Deserialize, Serialize};

use crate::profile::variant_name::named;
use peft_tune_core::recipe::{
    ActivationQuantization, AttentionImplementation, Checkpointing, OptimizerKind, OptimizerOffload, Precision,
    PrecisionSchedule, Recipe, WeightSparsity,
};

/// A change that a finding proposes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// Fill rows with several documents.
    Packing,
    /// Micro-batch and accumulation, changed.
    Batch {
        micro_batch: usize,
        gradient_accumulation: usize,
    },
    Checkpointing(Checkpointing),
    Optimizer(OptimizerKind),
    OptimizerOffload(OptimizerOffload),
    Precision(Precision),
    Rank(usize),
    /// Evaluate every N steps.
    EvaluateEvery(u64),
    /// Log one step in N.
    LogEvery(u64),
    /// Prepare so many steps ahead.
    PrefetchDepth(usize),
    /// Another attention of transformers.
    Attention(AttentionImplementation),
    /// Read rows in so many processes, in PyTorch's loader.
    LoaderProcesses(usize),
    /// Compute with so many threads.
    Threads(usize),
    /// Something outside the recipe.
    Advice(String),
}

impl Change {
    /// `recipe` with the change; `None` where it is none of the recipe.
    pub fn apply(&self, recipe: &Recipe) -> Option<Recipe> {
        let mut changed = recipe.clone();
        match self {
            Self::Packing => changed.batch.packing = true,
            Self::Batch {
                micro_batch,
                gradient_accumulation,
            } => {
                changed.batch.micro_batch = *micro_batch;
                changed.batch.gradient_accumulation = *gradient_accumulation;
            }
            Self::Checkpointing(checkpointing) => changed.gradient_checkpointing = *checkpointing,
            Self::Optimizer(kind) => changed.optimizer.kind = *kind,
            Self::OptimizerOffload(offload) => changed.optimizer.offload = *offload,
            // Codes are not rounded again.
            Self::Precision(precision) if precision.is_quantized() && !recipe.quantization_aware.is_none() => {
                return None;
            }
            Self::Precision(precision) => {
                changed.precision = *precision;
                match precision.is_quantized() {
                    true => changed.weight_sparsity = WeightSparsity::None,
                    false => changed.activation_quantization = ActivationQuantization::None,
                }
                if changed.precision_schedule.check(*precision).is_err() {
                    changed.precision_schedule = PrecisionSchedule::None;
                }
            }
            Self::Rank(rank) => {
                let adapter = changed.adapter.as_mut()?;
                // The scaling stays what it was.
                adapter.alpha *= *rank as f64 / adapter.rank.max(1) as f64;
                adapter.rank = *rank;
            }
            Self::PrefetchDepth(depth) => changed.batch.prefetch_depth = *depth,
            Self::Attention(attention) => changed.torch.attn_implementation = *attention,
            Self::LoaderProcesses(processes) => changed.torch.dataloader_num_workers = *processes,
            Self::EvaluateEvery(_) | Self::LogEvery(_) | Self::Threads(_) | Self::Advice(_) => return None,
        }
        Some(changed)
    }
}

impl std::fmt::Display for Change {
    /// Writes the change as a person would write it into the recipe.
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Packing => formatter.write_str("packing: true"),
            Self::Batch {
                micro_batch,
                gradient_accumulation,
            } => write!(
                formatter,
                "micro_batch: {micro_batch}, gradient_accumulation: {gradient_accumulation}"
            ),
            Self::Checkpointing(checkpointing) => {
                write!(formatter, "gradient_checkpointing: {}", named(checkpointing))
            }
            Self::Optimizer(kind) => write!(formatter, "optimizer: {}", named(kind)),
            Self::OptimizerOffload(offload) => write!(formatter, "optimizer_offload: {}", named(offload)),
            Self::Precision(precision) => write!(formatter, "precision: {}", named(precision)),
            Self::Rank(rank) => write!(formatter, "rank: {rank}"),
            Self::EvaluateEvery(steps) => write!(formatter, "evaluate_every: {steps}"),
            Self::LogEvery(steps) => write!(formatter, "--log-every {steps}"),
            Self::PrefetchDepth(depth) => write!(formatter, "prefetch_depth: {depth}"),
            Self::Attention(attention) => write!(formatter, "attn_implementation: {attention}"),
            Self::LoaderProcesses(processes) => write!(formatter, "dataloader_num_workers: {processes}"),
            Self::Threads(threads) => write!(formatter, "--threads {threads}"),
            Self::Advice(advice) => formatter.write_str(advice),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use peft_tune_core::recipe::DataSettings;

    #[test]
    fn a_lower_rank_keeps_the_scaling() {
        let recipe = Recipe::new("model", DataSettings::default());
        let before = recipe.adapter.clone().unwrap();
        let after = Change::Rank(before.rank / 2).apply(&recipe).unwrap().adapter.unwrap();
        assert_eq!(after.alpha / after.rank as f64, before.alpha / before.rank as f64);
    }

    #[test]
    fn changes_are_written_as_in_a_recipe() {
        assert_eq!(
            Change::Precision(Precision::Nf4Double).to_string(),
            "precision: nf4_double"
        );
        assert_eq!(
            Change::Checkpointing(Checkpointing::None).to_string(),
            "gradient_checkpointing: none"
        );
        assert_eq!(Change::PrefetchDepth(2).to_string(), "prefetch_depth: 2");
        assert!(
            Change::Threads(3)
                .apply(&Recipe::new("model", DataSettings::default()))
                .is_none()
        );
    }
}
