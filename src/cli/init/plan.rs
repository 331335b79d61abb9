//! Which values are worth searching, and which cannot fit.

use super::Answers;
use super::find::RowLengths;
use super::needs::{Needs, Values};
use crate::report::bytes;
use peft_tune_core::architecture::Architecture;
use peft_tune_core::recipe::{Checkpointing, Precision};

/// The values that the file will hold.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Plan {
    pub sequence_length: usize,
    pub micro_batches: Vec<usize>,
    pub ranks: Vec<usize>,
    pub precisions: Vec<Precision>,
    /// `none` is worth trying beside `full`.
    pub can_keep_activations: bool,
    /// Bytes of the smallest setting that is kept, predicted; absent for a model that is not here.
    pub smallest_bytes: Option<u64>,
    pub parameters: Option<u64>,
    pub training_tokens: u64,
    /// What was dropped and why, a fragment each.
    pub left_out: Vec<String>,
}

/// No setting fits.
#[derive(Debug, thiserror::Error)]
#[error(
    "not even the smallest setting of this model fits: {needed} with 4-bit weights and one row of {length} tokens, of \
     {memory}; take a smaller model, shorter rows or more `--memory`"
)]
pub(super) struct NothingFits {
    needed: String,
    length: usize,
    memory: String,
}

/// Rows of a step, whatever the micro-batch.
pub(super) const GLOBAL_BATCH: usize = 16;
const MICRO_BATCHES: [usize; 5] = [1, 2, 4, 8, 16];

impl Plan {
    /// Drops what cannot fit into the memory of the answers.
    pub(super) fn new(
        architecture: Option<&Architecture>,
        rows: Option<RowLengths>,
        answers: &Answers,
    ) -> Result<Self, NothingFits> {
        let longest = architecture.map_or(usize::MAX, |architecture| architecture.max_positions);
        let sequence_length = sequence_length(rows).min(longest);
        let mut plan = Self {
            sequence_length,
            micro_batches: MICRO_BATCHES.to_vec(),
            ranks: vec![4, 8, 16, 32, 64],
            precisions: vec![Precision::Bf16],
            can_keep_activations: true,
            smallest_bytes: None,
            parameters: architecture.map(|architecture| architecture.parameter_count().total() as u64),
            training_tokens: 100_000,
            left_out: Vec::new(),
        };
        if let Some(architecture) = architecture {
            let needs = Needs::new(architecture, &answers.machine, sequence_length);
            plan.fit(&needs, answers.memory_bytes)?;
            plan.shorten(architecture, answers.machine.is_gpu);
        }
        Ok(plan)
    }

    fn fit(&mut self, needs: &Needs, memory: u64) -> Result<(), NothingFits> {
        let smallest = self.smallest_rank(needs);
        let values = |precision, rows, checkpointing| Values {
            precision,
            rank: smallest,
            rows,
            checkpointing,
        };
        let fits = |values: Values| needs.bytes(values).is_ok_and(|bytes| bytes <= memory);
        let frugal_of = |precision: &Precision| values(*precision, 1, Checkpointing::Full);
        let candidates = [Precision::Bf16, Precision::Nf4];
        self.precisions = candidates.to_vec();
        self.precisions.retain(|precision| fits(frugal_of(precision)));
        for precision in candidates {
            if !self.precisions.contains(&precision) {
                let what = format!("precision {}", precision.name());
                self.leave_out(&what, needs, frugal_of(&precision));
            }
        }
        let Some(frugal) = self.precisions.last().copied() else {
            return Err(NothingFits {
                needed: about(needs, frugal_of(&Precision::Nf4)),
                length: self.sequence_length,
                memory: bytes(memory as f64),
            });
        };
        self.smallest_bytes = needs.bytes(frugal_of(&frugal)).ok();
        // With much room to spare, four bits only cost time and loss.
        let roomy = needs.bytes(values(Precision::Bf16, 4, Checkpointing::None));
        if self.precisions.len() == 2 && roomy.is_ok_and(|bytes| bytes <= memory / 2) {
            self.precisions = vec![Precision::Bf16];
        }
        let frugal = *self.precisions.last().unwrap_or(&frugal);
        for rows in std::mem::take(&mut self.micro_batches) {
            let wanted = values(frugal, rows, Checkpointing::Full);
            match fits(wanted) {
                true => self.micro_batches.push(rows),
                false => self.leave_out(&format!("micro_batch {rows}"), needs, wanted),
            }
        }
        for rank in std::mem::take(&mut self.ranks) {
            let wanted = Values {
                rank,
                ..values(frugal, 1, Checkpointing::Full)
            };
            match fits(wanted) {
                true => self.ranks.push(rank),
                false => self.leave_out(&format!("rank {rank}"), needs, wanted),
            }
        }
        let kept = values(frugal, 1, Checkpointing::None);
        self.can_keep_activations = fits(kept);
        if !self.can_keep_activations {
            self.leave_out("gradient_checkpointing none", needs, kept);
        }
        Ok(())
    }

    /// The smallest rank that the model can have.
    fn smallest_rank(&self, needs: &Needs) -> usize {
        let possible = |rank: &usize| {
            let values = Values {
                precision: Precision::Bf16,
                rank: *rank,
                rows: 1,
                checkpointing: Checkpointing::Full,
            };
            needs.bytes(values).is_ok()
        };
        self.ranks.iter().copied().find(possible).unwrap_or(1)
    }

    fn leave_out(&mut self, what: &str, needs: &Needs, values: Values) {
        let why = match needs.bytes(values) {
            Ok(_) if values.rows == 1 => format!("needs {} for one row", about(needs, values)),
            Ok(_) => format!("needs {}", about(needs, values)),
            Err(error) => error.to_string(),
        };
        // What an error proposes is what is done here.
        let why = why.split(';').next().unwrap_or_default();
        self.left_out.push(format!("{what}, {why}"));
    }

    /// Fewer tokens for models that a processor trains slowly.
    fn shorten(&mut self, architecture: &Architecture, is_gpu: bool) {
        let parameters = architecture.parameter_count().total();
        if !is_gpu && parameters > 100_000_000 {
            self.training_tokens = 20_000;
        }
    }
}

/// How much it would take, or why it cannot be.
fn about(needs: &Needs, values: Values) -> String {
    match needs.bytes(values) {
        Ok(needed) => format!("about {}", bytes(needed as f64)),
        Err(error) => error.to_string(),
    }
}

/// Tokens of the longer rows, at four bytes each, up to the next power of two.
fn sequence_length(rows: Option<RowLengths>) -> usize {
    let Some(rows) = rows else { return 1024 };
    (rows.long_bytes / 4).next_power_of_two().clamp(128, 4096)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::init::find::Machine;

    fn answers(memory_bytes: u64) -> Answers {
        Answers {
            model: "m".into(),
            format: peft_tune_core::recipe::DataFormat::Text,
            columns: Default::default(),
            data: "d".into(),
            memory_bytes,
            machine: Machine {
                device: "a GPU".into(),
                is_gpu: true,
                usable_bytes: memory_bytes,
                device_bytes: memory_bytes,
            },
        }
    }

    /// A model of Llama's 8 billion weights.
    fn eight_billion() -> Architecture {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/ref_llama31/model/config.json");
        let mut architecture = Architecture::from_config(&path).unwrap();
        let layer = architecture.layers[0];
        architecture.layers = vec![layer; 32];
        (architecture.hidden_size, architecture.intermediate_size) = (4096, 14336);
        (architecture.heads, architecture.kv_heads, architecture.head_dim) = (32, 8, 128);
        (architecture.vocabulary, architecture.max_positions) = (128_256, 131_072);
        architecture.tied_embeddings = false;
        architecture
    }

    #[test]
    fn more_memory_never_drops_more() {
        let model = eight_billion();
        let mut before: Option<Plan> = None;
        for gib in [12u64, 16, 24, 48, 80] {
            let plan = Plan::new(Some(&model), None, &answers(gib << 30)).unwrap();
            if let Some(before) = &before {
                assert!(plan.micro_batches.len() >= before.micro_batches.len() || plan.precisions != before.precisions);
            }
            assert!(plan.smallest_bytes.unwrap() <= gib << 30);
            before = Some(plan);
        }
        let small = Plan::new(Some(&model), None, &answers(12 << 30)).unwrap();
        assert_eq!(small.precisions, [Precision::Nf4]);
        assert!(
            small
                .left_out
                .iter()
                .any(|dropped| dropped.starts_with("precision bf16"))
        );
        assert!(Plan::new(Some(&model), None, &answers(2 << 30)).is_err());
    }
}
