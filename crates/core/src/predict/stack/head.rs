//! Embedding, last norm, head and loss.

use super::behaviour::LossForm;
use super::heap::Kind;
use super::model::{Model, cast, own};
use super::setting::Trains;
use super::tape::{Backward, Cost, Op, Tape, Tensor};

/// Places of parameters beside those of layers.
const EMBEDDING: usize = usize::MAX - 3;
const HEAD: usize = usize::MAX - 2;
const LAST_NORM: usize = usize::MAX - 1;

/// Logits that a fused head makes at a time, in bytes: unsloth's and Liger's are of this order.
const FUSED_LOGITS: u64 = 192 << 20;

/// Bytes that unsloth counts for each logit of a chunk (`unsloth_zoo/fused_losses/cross_entropy_loss.py`, September 2026), and the most
/// that a chunk may take.
const COUNTED_BYTES: u64 = 16;
const MOST_OF_FREE: u64 = 4 << 30;
/// Bytes for each logit of a chunk where its kernels are not fused: in 16 bits, in F32, log-softmax and gradient; and where a tanh stands
/// between them.
const CHUNK_BYTES: [u64; 2] = [14, 16];

/// Tokens and words of a tile of TRL's head. The buffer for one has all the words, however few the vocabulary has.
const TILE: [u64; 2] = [4096, 32_768];
/// Bytes of temporaries for each logit of a tile, forward and backward, where PyTorch's ops fold it: without Triton.
const FOLDED_BYTES: [u64; 2] = [13, 29];

impl Model {
    fn trains_embeddings(&self) -> bool {
        match self.setting.trains {
            Trains::Everything => true,
            Trains::Adapters { whole_embeddings, .. } => whole_embeddings,
        }
    }

    /// The residual stream that enters the first layer.
    pub(super) fn embedded(&self, tape: &mut Tape) -> Tensor {
        let elements = self.shape.vocabulary * self.shape.hidden;
        let trained = self
            .trains_embeddings()
            .then(|| self.whole_parameter(EMBEDDING, elements));
        let rows = tape.shared(self.tokens(), 8, true);
        let bytes = self.tokens() * self.shape.hidden * self.stream();
        let embedded = tape.op(Op {
            elements: self.tokens() * self.shape.hidden,
            width: self.stream(),
            inputs: &[&rows],
            trained,
            cost: [Cost::pass(2 * bytes), Cost::pass(2 * bytes)],
            ..Op::default()
        });
        drop(rows);
        embedded
    }

    /// The loss, and what lives beside it until the step ends.
    pub(super) fn loss(&self, tape: &mut Tape, stream: Tensor) -> (Tensor, Vec<Tensor>) {
        let normed = self.norm(tape, LAST_NORM, &stream);
        drop(stream);
        let before = tape.kind(Kind::Logits);
        let last = self.setting.holds_logits.then(|| normed.clone());
        let (loss, logits) = match self.setting.loss {
            LossForm::FusedLinear => (self.fused_linear(tape, normed), None),
            LossForm::HalfOfFree => (self.half_of_free(tape, &normed), None),
            LossForm::InPlace => self.in_place(tape, normed),
            LossForm::Tiled => (self.tiled(tape, &normed), None),
            LossForm::Full => self.full(tape, normed),
            LossForm::FusedCrossEntropy => {
                let logits = self.logits(tape, normed);
                let wide = cast(tape, &logits, 4);
                let loss = self.loss_of(tape, &wide, &[&wide], [0, 0]);
                (loss, self.setting.holds_logits.then_some(logits))
            }
            LossForm::Chunked(chunks) => (self.chunked(tape, normed, chunks.max(1)), None),
            LossForm::OddsRatio => (self.odds_ratio(tape, normed), None),
        };
        tape.kind(before);
        (loss, last.into_iter().chain(logits).collect())
    }

    fn full(&self, tape: &mut Tape, normed: Tensor) -> (Tensor, Option<Tensor>) {
        let logits = self.logits(tape, normed);
        let wide = cast(tape, &logits, 4);
        let loss = self.nats(tape, wide);
        (loss, self.returned(tape, logits))
    }

    /// Logits whose gradient is written over them.
    fn in_place(&self, tape: &mut Tape, normed: Tensor) -> (Tensor, Option<Tensor>) {
        let logits = self.logits(tape, normed);
        let loss = tape.op(Op {
            elements: 1,
            inputs: &[&logits],
            saved: &[&logits],
            backward: Backward::Shared,
            cost: [Cost::pass(logits.bytes()), Cost::pass(2 * logits.bytes())],
            ..Op::default()
        });
        (loss, self.returned(tape, logits))
    }

    /// The logits that the model returns, as long as they live.
    fn returned(&self, tape: &mut Tape, logits: Tensor) -> Option<Tensor> {
        match self.setting.raises_outputs {
            true => Some(cast(tape, &logits, 4)),
            false => self.setting.holds_logits.then_some(logits),
        }
    }

    /// The head and the loss of one chunk of tokens after the other; their backward passes run one after the other, too.
    fn chunked(&self, tape: &mut Tape, normed: Tensor, chunks: u64) -> Tensor {
        let mut losses = Vec::new();
        for _ in 0..chunks.min(64) {
            let part = tape.op(Op {
                elements: normed.elements.div_ceil(chunks),
                width: normed.width,
                inputs: &[&normed],
                ..Op::default()
            });
            let logits = self.logits(tape, part);
            let wide = logits.elements * 4;
            losses.push(match self.setting.compiled {
                true => self.loss_of(tape, &logits, &[&logits], [wide, wide]),
                false => self.chunk_loss(tape, logits),
            });
        }
        drop(normed);
        let all: Vec<&Tensor> = losses.iter().collect();
        tape.op(Op {
            elements: 1,
            inputs: &all,
            ..Op::default()
        })
    }

    fn chunk_loss(&self, tape: &mut Tape, logits: Tensor) -> Tensor {
        let wide = cast(tape, &logits, 4);
        drop(logits);
        self.nats(tape, wide)
    }

    /// Cross-entropy of logits in F32, which are not kept.
    fn nats(&self, tape: &mut Tape, logits: Tensor) -> Tensor {
        let log_shares = tape.op(Op {
            elements: logits.elements,
            inputs: &[&logits],
            saves_output: true,
            cost: [Cost::pass(2 * logits.bytes()), Cost::pass(3 * logits.bytes())],
            ..Op::default()
        });
        drop(logits);
        self.loss_of(tape, &log_shares, &[&log_shares], [0, 0])
    }

    fn fused_linear(&self, tape: &mut Tape, normed: Tensor) -> Tensor {
        let elements = self.tokens() * self.shape.vocabulary;
        let gradient = tape.tensor(normed.elements, normed.width, Kind::Logits);
        let head = self.head_cost();
        let again = Cost {
            flops: 2.0 * head.flops,
            ..head
        };
        let trained = self.trains_head();
        tape.op(Op {
            elements: 1,
            inputs: &[&normed],
            saved: &[&normed, &gradient],
            scratch: [(elements * 4).min(FUSED_LOGITS), (elements * 4).min(FUSED_LOGITS)],
            trained,
            cost: [head, again],
            ..Op::default()
        })
    }

    /// unsloth's head: chunks of tokens one after the other, each with its logits and their gradient, as large as half of the memory allows
    /// that was free at the first one.
    fn half_of_free(&self, tape: &mut Tape, normed: &Tensor) -> Tensor {
        let gradient = tape.tensor(normed.elements, normed.width, Kind::Logits);
        let trained = self.trains_head();
        let weight = self.shape.vocabulary * self.shape.hidden;
        let of_weight = trained.map(|_| tape.tensor(weight, self.plain().bytes(), Kind::Gradients));
        let of_chunk = trained.map_or(0, |_| weight * self.plain().bytes());
        let fixed = gradient.bytes() + 2 * of_chunk;
        let budget = (tape.first_free() / 2).min(MOST_OF_FREE);
        let budget = if fixed < budget { budget - fixed } else { budget };
        let count = chunks(self.tokens() * self.shape.vocabulary, budget);
        let tokens = self.tokens().div_ceil(count);
        let bytes = CHUNK_BYTES[usize::from(self.shape.caps_logits)];
        let head = self.head_cost();
        let forward = Cost {
            flops: head.flops * if trained.is_some() { 3.0 } else { 2.0 },
            ..head
        };
        let mut saved = vec![&gradient];
        saved.extend(&of_weight);
        let chunk = tape.tensor(tokens * self.shape.vocabulary * bytes + of_chunk, 1, Kind::Logits);
        let loss = tape.op(Op {
            elements: 1,
            inputs: &[normed],
            saved: &saved,
            trained,
            cost: [forward, Cost::pass(2 * normed.bytes())],
            ..Op::default()
        });
        drop(chunk);
        loss
    }

    /// TRL's head (`trl/kernels/chunked_logprob.py`): every row but for its last token, copied, goes through the head in tiles.
    fn tiled(&self, tape: &mut Tape, normed: &Tensor) -> Tensor {
        let (hidden, vocabulary) = (self.shape.hidden, self.shape.vocabulary);
        let scored = self.scored();
        let copied = tape.op(Op {
            elements: scored * hidden,
            width: normed.width,
            inputs: &[normed],
            cost: [Cost::pass(2 * normed.bytes()), Cost::pass(2 * normed.bytes())],
            ..Op::default()
        });
        let width = match self.setting.autocast {
            true => self.compute(),
            false => normed.width,
        };
        let (rows, words) = (scored.min(TILE[0]), vocabulary.min(TILE[1]));
        let cast_bytes = |elements: u64, from: u64| if from == width { 0 } else { elements * width };
        let tile = rows * TILE[1] * width
            + cast_bytes(rows * hidden, normed.width)
            + cast_bytes(words * hidden, self.plain().bytes());
        let [forward, backward] = FOLDED_BYTES.map(|bytes| if self.is_host { rows * words * bytes } else { 0 });
        let trained = self.trains_head();
        // Gradients are added up in F32.
        let mut sums = if normed.width == 4 { 0 } else { copied.elements * 4 };
        if trained.is_some() {
            sums += vocabulary * hidden * 4;
        }
        let of_tokens = tape.tensor(scored, 16, Kind::Logits);
        let head = self.head_cost();
        let again = Cost {
            flops: head.flops * if trained.is_some() { 3.0 } else { 2.0 },
            ..head
        };
        tape.op(Op {
            elements: 3 * scored,
            inputs: &[&copied],
            saved: &[&copied, &of_tokens],
            scratch: [tile + forward + 28 * scored, tile + backward + sums],
            trained,
            cost: [head, again],
            ..Op::default()
        })
    }

    /// The loss of TRL's ORPO (`trl/experimental/orpo/orpo_trainer.py`) of logits that accelerate has raised to F32.
    fn odds_ratio(&self, tape: &mut Tape, normed: Tensor) -> Tensor {
        let narrow = self.logits(tape, normed);
        let logits = cast(tape, &narrow, 4);
        drop(narrow);
        let nats = self.nats_of_half(tape, &logits);
        let told = self.log_probabilities(tape, &logits);
        drop(logits);
        tape.op(Op {
            elements: 1,
            inputs: &[&nats, &told],
            ..Op::default()
        })
    }

    /// Cross-entropy of the chosen half of pairs: of a copy of its logits without those of each row's last token.
    fn nats_of_half(&self, tape: &mut Tape, logits: &Tensor) -> Tensor {
        let elements = self.scored() / 2 * self.shape.vocabulary;
        let copied = tape.op(Op {
            elements,
            inputs: &[logits],
            // The gradient of a slice lies in zeros as large as what it was cut from.
            cost: [Cost::pass(8 * elements), Cost::pass(logits.bytes() + 8 * elements)],
            ..Op::default()
        });
        self.nats(tape, copied)
    }

    /// Log-probabilities of tokens as `selective_log_softmax` of `trl/trainer/utils.py` makes them in F32: the logits of the tokens are
    /// gathered, and less the logarithm of the sum of exponentials, one row after the other.
    fn log_probabilities(&self, tape: &mut Tape, logits: &Tensor) -> Tensor {
        let scored = self.scored();
        let all = 4 * scored * self.shape.vocabulary;
        let gathered = tape.op(Op {
            elements: scored,
            inputs: &[logits],
            saved: &[logits],
            cost: [Cost::pass(8 * scored), Cost::pass(2 * all)],
            ..Op::default()
        });
        let of_rows = |bytes: u64| Cost {
            launches: self.rows as f64,
            ..Cost::pass(bytes)
        };
        let sums = tape.op(Op {
            elements: scored,
            inputs: &[logits],
            saved: &[logits],
            // Forward one row's exponentials. Backward the gradients of all rows, which are then put together.
            scratch: [all / self.rows.max(1), all],
            cost: [of_rows(4 * all), of_rows(8 * all)],
            ..Op::default()
        });
        tape.op(Op {
            elements: scored,
            inputs: &[&gathered, &sums],
            ..Op::default()
        })
    }

    fn trains_head(&self) -> Option<super::tape::Parameter> {
        let elements = self.shape.vocabulary * self.shape.hidden;
        let index = if self.shape.tied_embeddings { EMBEDDING } else { HEAD };
        self.trains_embeddings().then(|| self.whole_parameter(index, elements))
    }

    fn head_cost(&self) -> Cost {
        self.product_cost(self.tokens(), self.shape.hidden, self.shape.vocabulary)
    }

    fn logits(&self, tape: &mut Tape, normed: Tensor) -> Tensor {
        let rows = normed.elements / self.shape.hidden.max(1);
        let trained = self.trains_head();
        let width = if self.setting.autocast {
            self.compute()
        } else {
            normed.width
        };
        let operand = cast(tape, &normed, width);
        drop(normed);
        let copied = self.setting.autocast && self.plain().bytes() != width;
        let weight = self.shape.vocabulary * self.shape.hidden;
        let copy = copied.then(|| tape.tensor(weight, width, Kind::Working));
        let mut saved: Vec<&Tensor> = copy.iter().collect();
        if trained.is_some() {
            saved.push(&operand);
        }
        let cost = Cost {
            is_wide: width == 4,
            ..self.product_cost(rows, self.shape.hidden, self.shape.vocabulary)
        };
        let back = Cost {
            flops: cost.flops * if trained.is_some() { 2.0 } else { 1.0 },
            ..cost
        };
        tape.op(Op {
            elements: rows * self.shape.vocabulary,
            width,
            inputs: &[&operand],
            saved: &saved,
            trained,
            cost: [cost, back],
            ..Op::default()
        })
    }

    fn loss_of(&self, tape: &mut Tape, input: &Tensor, saved: &[&Tensor], scratch: [u64; 2]) -> Tensor {
        tape.op(Op {
            elements: 1,
            inputs: &[input],
            saved,
            scratch,
            cost: [Cost::pass(2 * input.bytes()), Cost::pass(2 * input.bytes())],
            ..Op::default()
        })
    }

    /// Scores of an evaluation: logits and F32 logits, no gradients.
    pub(super) fn evaluated(&self, tape: &mut Tape, stream: Tensor) {
        let normed = self.norm(tape, LAST_NORM, &stream);
        drop(stream);
        let before = tape.kind(Kind::Logits);
        match self.setting.loss {
            LossForm::FusedLinear => drop(self.fused_linear(tape, normed)),
            LossForm::HalfOfFree => drop(self.half_of_free(tape, &normed)),
            LossForm::Tiled => drop(self.tiled(tape, &normed)),
            _ => {
                let logits = self.logits(tape, normed);
                let wide = cast(tape, &logits, 4);
                drop(own(tape, &wide, 4, Cost::pass(2 * wide.bytes())));
            }
        }
        tape.kind(before);
    }
}

/// Chunks that unsloth makes of so many logits within a budget: one, or a multiple of four.
fn chunks(logits: u64, budget: u64) -> u64 {
    let wanted = (logits * COUNTED_BYTES).div_ceil(budget.max(1));
    match wanted {
        0 | 1 => 1,
        more => more.next_multiple_of(4),
    }
}

#[cfg(test)]
mod tests {
    use super::super::behaviour::StackBehaviour;
    use super::super::device::StackDevice;
    use super::super::{ModelShape, StackSetting, WeightForm, predict};
    use super::*;
    use crate::predict::device;

    #[test]
    fn chunks_are_one_or_a_multiple_of_four_and_stay_within_the_budget() {
        assert_eq!([1, 63, 64].map(|logits| chunks(logits, 1024)), [1; 3]);
        assert_eq!([65, 256, 257].map(|logits| chunks(logits, 1024)), [4, 4, 8]);
    }

    /// Bytes of logits at the peak on a device, of rows of so many tokens.
    fn logits(device_name: &str, length: u64) -> u64 {
        let config = r#"{"model_type": "llama", "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
            "intermediate_size": 512, "vocab_size": 262144, "tie_word_embeddings": true}"#;
        let shape = ModelShape::from_json("config.json", &serde_json::from_str(config).unwrap()).unwrap();
        let mut setting = StackSetting::new(&StackBehaviour::PLAIN, WeightForm::Numbers);
        (setting.loss, setting.holds_logits, setting.sequence_length) = (LossForm::HalfOfFree, false, length);
        let on = StackDevice {
            sheet: device(device_name).unwrap(),
        };
        let memory = predict(&shape, &setting, Some(on)).unwrap().memory;
        assert!(!memory.overflows);
        memory.tensors_bytes
    }

    #[test]
    fn a_chunk_takes_no_more_than_four_gib_however_long_the_rows_and_large_the_device() {
        let short = logits("T4", 512);
        // All logits at once, 14 bytes for each.
        let all = 512 * 262_144 * 14;
        assert!(short > all && short < all + (512 << 20), "{short}");
        for name in ["T4", "B200"] {
            let long = logits(name, 8192);
            assert!(long < (4 << 30) + (1 << 30), "{name}: {long}");
        }
    }
}
