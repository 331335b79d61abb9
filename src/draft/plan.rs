//! Which values are worth searching, and which cannot fit.

use super::answers::Answers;
use super::memory_needs::{Needs, Values};
use super::rate_range::RateRange;
use super::row_tokens::RowTokens;
use super::trial_size::{Pace, TrialSize};
use peft_tune_core::architecture::Architecture;
use peft_tune_core::recipe::{Checkpointing, Precision};

/// The values that the file will hold.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Plan {
    pub sequence_length: usize,
    pub micro_batches: Vec<usize>,
    pub ranks: Vec<usize>,
    pub precisions: Vec<Precision>,
    /// `none` is worth trying beside `full`.
    pub can_keep_activations: bool,
    /// Bytes of the smallest setting that is kept, predicted; absent for a model that is not here.
    pub smallest_bytes: Option<u64>,
    pub parameters: Option<u64>,
    pub learning_rates: RateRange,
    pub size: TrialSize,
    /// The built-in engine lacks the model's family, and TRL trains it.
    pub trains_in_trl: bool,
    /// What was dropped and why, a fragment each.
    pub left_out: Vec<String>,
}

/// No setting fits.
#[derive(Debug, thiserror::Error)]
#[error(
    "not even the smallest setting of this model fits: {needed} with 4-bit weights and one row of {length} tokens, of \
     {memory}; take a smaller model or more `--memory`"
)]
pub(crate) struct NothingFits {
    pub(super) needed: String,
    pub(super) length: usize,
    pub(super) memory: String,
}

const MICRO_BATCHES: [usize; 5] = [1, 2, 4, 8, 16];
/// Rank at which the speed is estimated.
const USUAL_RANK: usize = 16;
/// Sequence length that no data and no memory make shorter.
const SHORTEST: usize = 64;
/// Seconds that a trial should take at most: on a processor, and on a GPU, where a search has hours for 60 of them.
const MOST_S: f64 = 120.0;
const MOST_ON_GPU_S: f64 = 480.0;
/// Steps without which a trial of filled rows tells nothing.
const PACKED_STEPS: u64 = 10;

impl Plan {
    /// Drops what cannot fit into the memory of the answers, and sizes the trials. Rows are taken shorter than they are
    /// where whole ones do not fit one by one.
    pub(crate) fn new(
        architecture: Option<&Architecture>,
        rows: &RowTokens,
        answers: &Answers,
    ) -> Result<Self, NothingFits> {
        let longest = architecture.map_or(usize::MAX, |architecture| architecture.max_positions);
        let wanted = rows.sequence_length().min(longest);
        let Some(architecture) = architecture else {
            return Ok(Self::unfitted(None, rows, wanted));
        };
        let mut length = wanted;
        loop {
            let mut plan = Self::unfitted(Some(architecture), rows, length);
            let needs = Needs::new(architecture, &answers.machine, length);
            match plan.fit(&needs, answers.memory_bytes) {
                Ok(()) => {
                    plan.shrink(&needs, rows, answers.machine.is_gpu);
                    if length < wanted {
                        let left_out = format!("rows of {wanted} tokens, which need more memory than there is");
                        plan.left_out.insert(0, left_out);
                    }
                    return Ok(plan);
                }
                Err(error) if length <= SHORTEST => return Err(error),
                Err(_) => length = shorter(length),
            }
        }
    }

    /// All values, for trials of the usual size.
    fn unfitted(architecture: Option<&Architecture>, rows: &RowTokens, sequence_length: usize) -> Self {
        let parameters = architecture.map(|architecture| architecture.parameter_count().total());
        Self {
            sequence_length,
            micro_batches: MICRO_BATCHES.to_vec(),
            ranks: vec![4, 8, 16, 32, 64],
            precisions: vec![Precision::Bf16],
            can_keep_activations: true,
            smallest_bytes: None,
            parameters,
            learning_rates: RateRange::of(parameters),
            size: TrialSize::new(rows.mean(sequence_length), None),
            trains_in_trl: false,
            left_out: Vec::new(),
        }
    }

    /// Steps of a trial whose rows are filled, where these are too few to try that.
    pub(super) fn too_few_packed_steps(&self) -> Option<u64> {
        let steps = self.size.steps_of(self.sequence_length as f64);
        (steps < PACKED_STEPS).then_some(steps)
    }

    /// Trials of a size that the machine can carry, by a rough estimate of its speed.
    fn shrink(&mut self, needs: &Needs, rows: &RowTokens, is_gpu: bool) {
        let mean = rows.mean(self.sequence_length);
        let (Some(precision), Some(rank), Some(micro_batch)) = (
            self.precisions.first(),
            self.ranks.iter().rev().find(|rank| **rank <= USUAL_RANK),
            self.micro_batches.last(),
        ) else {
            return;
        };
        let values = Values {
            precision: *precision,
            rank: *rank,
            rows: *micro_batch,
            checkpointing: match self.can_keep_activations {
                true => Checkpointing::None,
                false => Checkpointing::Full,
            },
        };
        let pace = needs
            .tokens_per_s(values, mean.round() as usize)
            .map(|tokens_per_s| Pace {
                tokens_per_s,
                most_s: if is_gpu { MOST_ON_GPU_S } else { MOST_S },
            });
        let size = TrialSize::new(mean, pace);
        self.micro_batches.retain(|rows| *rows <= size.global_batch);
        self.size = size;
    }
}

/// The next shorter length to try: about an eighth less.
fn shorter(length: usize) -> usize {
    (length * 7 / 8 / SHORTEST * SHORTEST).max(SHORTEST)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draft::machine::Machine;
    use crate::draft::token_lengths::TokenLengths;

    fn answers(memory_bytes: u64) -> Answers {
        Answers {
            model: "m".into(),
            format: peft_tune_core::recipe::DataFormat::Text,
            columns: Default::default(),
            as_plain: None,
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
            let plan = Plan::new(Some(&model), &RowTokens::Unknown, &answers(gib << 30)).unwrap();
            if let Some(before) = &before {
                assert!(plan.micro_batches.len() >= before.micro_batches.len() || plan.precisions != before.precisions);
            }
            assert!(plan.smallest_bytes.unwrap() <= gib << 30);
            before = Some(plan);
        }
        let small = Plan::new(Some(&model), &RowTokens::Unknown, &answers(12 << 30)).unwrap();
        assert_eq!(small.precisions, [Precision::Nf4]);
        assert!(
            small
                .left_out
                .iter()
                .any(|dropped| dropped.starts_with("precision bf16"))
        );
        assert!(Plan::new(Some(&model), &RowTokens::Unknown, &answers(2 << 30)).is_err());
    }

    #[test]
    fn rows_are_as_long_as_the_model_and_the_memory_let_them() {
        let rows = |tokens: usize| RowTokens::Counted(TokenLengths::new(vec![tokens; 50]));
        let mut model = eight_billion();
        let length = |model: &Architecture, tokens, gib: u64| {
            let plan = Plan::new(Some(model), &rows(tokens), &answers(gib << 30)).unwrap();
            (plan.sequence_length, plan.left_out.first().cloned().unwrap_or_default())
        };
        assert_eq!(length(&model, 400, 80).0, 448);
        let (short, left_out) = length(&model, 8192, 8);
        assert!(short < 8192 && short.is_multiple_of(64), "{short}");
        assert!(left_out.starts_with("rows of 8192 tokens"), "{left_out}");
        model.max_positions = 300;
        assert_eq!(length(&model, 400, 80).0, 300);
    }

    #[test]
    fn micro_batches_are_no_larger_than_the_global_batch() {
        let machine = Machine {
            device: "cpu".into(),
            is_gpu: false,
            usable_bytes: 256 << 30,
            device_bytes: 0,
        };
        let answers = Answers {
            machine,
            ..answers(256 << 30)
        };
        // A processor of any kind takes long for a trial of such a model.
        let rows = RowTokens::Counted(TokenLengths::new(vec![8000; 50]));
        let plan = Plan::new(Some(&eight_billion()), &rows, &answers).unwrap();
        assert_eq!(plan.size.global_batch, 4);
        assert_eq!(plan.micro_batches, [1, 2, 4]);
        assert!(plan.size.slow_note(false).is_some() && plan.size.steps() >= 30);
        assert_eq!(plan.learning_rates, RateRange::of(Some(8_000_000_000)));
    }

    #[test]
    fn lengths_to_try_end_at_the_shortest() {
        let tried: Vec<usize> = std::iter::successors(Some(300), |length| Some(shorter(*length)))
            .take(6)
            .collect();
        assert_eq!(tried, [300, 256, 192, 128, 64, 64]);
    }
}
