//! Which values are worth searching, and which cannot fit.

use super::Answers;
use super::estimate::{Setting, bytes_needed};
use super::find::RowLengths;
use crate::architecture::Architecture;
use crate::recipe::Precision;
use crate::report::bytes;

/// The values that the file will hold.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    pub sequence_length: usize,
    pub micro_batches: Vec<usize>,
    pub ranks: Vec<usize>,
    pub precisions: Vec<Precision>,
    /// `none` is worth trying beside `full`.
    pub can_keep_activations: bool,
    /// Bytes of the largest setting that is kept, estimated; absent for a model that is not here.
    pub smallest_bytes: Option<u64>,
    pub parameters: Option<u64>,
    pub training_tokens: u64,
    /// What was dropped and why, a fragment each.
    pub left_out: Vec<String>,
}

/// No setting fits.
#[derive(Debug, thiserror::Error)]
#[error(
    "not even the smallest setting of this model fits: about {needed} with 4-bit weights and one row of {length} tokens, of \
     {memory}; take a smaller model, shorter rows or more `--memory`"
)]
pub struct NothingFits {
    needed: String,
    length: usize,
    memory: String,
}

/// Rows of a step, whatever the micro-batch.
pub const GLOBAL_BATCH: usize = 16;
const MICRO_BATCHES: [usize; 5] = [1, 2, 4, 8, 16];
const SMALLEST_RANK: usize = 8;

impl Plan {
    /// Drops what cannot fit into the memory of the answers.
    pub fn new(
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
            plan.fit(architecture, answers.memory_bytes)?;
            plan.shorten(architecture, answers.machine.is_gpu);
        }
        Ok(plan)
    }

    fn fit(&mut self, architecture: &Architecture, memory: u64) -> Result<(), NothingFits> {
        let length = self.sequence_length;
        let needed = |precision, rows: usize, recompute| {
            bytes_needed(
                architecture,
                Setting {
                    precision,
                    rank: SMALLEST_RANK,
                    tokens: rows * length,
                    recompute,
                },
            )
        };
        let candidates = [Precision::Bf16, Precision::Nf4];
        let all = candidates.map(|precision| (precision, needed(precision, 1, true)));
        self.precisions = all
            .iter()
            .filter(|(_, bytes)| *bytes <= memory)
            .map(|(precision, _)| *precision)
            .collect();
        let Some(smallest) = all
            .iter()
            .map(|(_, bytes)| *bytes)
            .min()
            .filter(|bytes| *bytes <= memory)
        else {
            return Err(NothingFits {
                needed: bytes(all[1].1 as f64),
                length,
                memory: bytes(memory as f64),
            });
        };
        self.smallest_bytes = Some(smallest);
        let named = |precision: &Precision| match precision {
            Precision::Nf4 => "nf4",
            _ => "bf16",
        };
        for (precision, required) in all.iter().filter(|(_, required)| *required > memory) {
            self.left_out.push(format!(
                "precision {}: about {} for one row",
                named(precision),
                bytes(*required as f64)
            ));
        }
        // With much room to spare, four bits only cost time and loss.
        if self.precisions.len() == 2 && needed(Precision::Bf16, 4, false) <= memory / 2 {
            self.precisions = vec![Precision::Bf16];
        }
        let frugal = *self.precisions.last().unwrap_or(&Precision::Nf4);
        let (kept, dropped): (Vec<usize>, Vec<usize>) = MICRO_BATCHES
            .into_iter()
            .partition(|rows| needed(frugal, *rows, true) <= memory);
        for rows in dropped {
            let required = bytes(needed(frugal, rows, true) as f64);
            self.left_out.push(format!("micro_batch {rows}: about {required}"));
        }
        self.micro_batches = kept;
        self.can_keep_activations = needed(frugal, 1, false) <= memory;
        if !self.can_keep_activations {
            let required = bytes(needed(frugal, 1, false) as f64);
            self.left_out
                .push(format!("gradient_checkpointing none: about {required} for one row"));
        }
        Ok(())
    }

    /// Fewer tokens for models that a processor trains slowly.
    fn shorten(&mut self, architecture: &Architecture, is_gpu: bool) {
        let parameters = architecture.parameter_count().total();
        if !is_gpu && parameters > 100_000_000 {
            self.training_tokens = 20_000;
        }
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
            data: "d".into(),
            memory_bytes,
            machine: Machine {
                device: "a GPU".into(),
                is_gpu: true,
                usable_bytes: memory_bytes,
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
