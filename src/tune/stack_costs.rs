//! Costs of a study's settings in another stack that trains its trials, under the names of what trials measure.
//!
//! Memory is that of the step on the longest rows, which is where a trial measures it. Speed is that of the mean micro-batch, of which
//! padding is no work done.

use std::sync::Arc;

use super::remembered::Remembered;
use crate::tools::Tool;
use peft_tune_core::predict;
use peft_tune_core::predict::stack::{ModelShape, StackDevice, StackSetting};
use peft_tune_core::predict::{Bytes, Correction, Link, Prediction, RowLengths, Seconds};
use peft_tune_core::recipe::{BatchSettings, Recipe, TrainerKind};

/// Relative deviation of a step's predicted time before any trial: data sheets say little of what is reached, and the ceilings of a
/// processor are those of this program's kernels.
const TIME_DEVIATION: f64 = 0.4;

/// Predicts settings of one model in a stack, on the device that its trials run on. Settings that are the same there are predicted
/// once.
#[derive(Debug)]
pub struct StackCosts {
    stack: Tool,
    shape: ModelShape,
    /// Device of the trials; `None` for a GPU of which only the memory is known.
    device: Option<StackDevice>,
    /// Trainer of the settings.
    trainer: TrainerKind,
    knows_speed: bool,
    /// Costs of a step by its setting, in words.
    known: Remembered<String, Result<StepCosts, Arc<str>>>,
}

/// Costs of a step in the stack.
#[derive(Clone, Copy, Debug)]
struct StepCosts {
    bytes: Bytes,
    seconds: Seconds,
    /// Seconds in which devices wait for their link.
    link_s: f64,
}

/// How far predicted memory may be off.
struct MemoryAccuracy {
    /// Relative deviation before any trial.
    deviation: f64,
    /// Share beyond which a setting is certain not to fit.
    margin: f64,
}

/// Memory of a GPU, as the native engine has it.
const OF_GPU: MemoryAccuracy = MemoryAccuracy {
    deviation: 0.1,
    margin: 0.25,
};
/// Memory of a processor, on which tensors alone count.
const OF_HOST: MemoryAccuracy = MemoryAccuracy {
    deviation: 0.01,
    margin: 0.05,
};
/// Memory of a processor on which answers are compared: how near predictions of such steps are has not been measured yet.
const OF_COMPARISONS: MemoryAccuracy = MemoryAccuracy {
    deviation: 0.05,
    margin: 0.15,
};
/// Memory of a model whose layers are taken for those of a plain decoder, and may be quite others.
const OF_UNKNOWN_LAYOUT: MemoryAccuracy = MemoryAccuracy {
    deviation: 0.3,
    margin: 1.0,
};

impl StackCosts {
    /// Costs of a model of these dimensions on a device; without one on a GPU of which only the memory is known.
    pub fn new(stack: Tool, shape: ModelShape, device: Option<StackDevice>) -> Self {
        Self {
            stack,
            shape,
            device,
            trainer: TrainerKind::default(),
            knows_speed: device.is_some(),
            known: Remembered::default(),
        }
    }

    /// Costs of memory alone.
    #[must_use]
    pub fn without_speed(self) -> Self {
        Self {
            knows_speed: false,
            ..self
        }
    }

    /// Costs of settings of another trainer than the usual one.
    #[must_use]
    pub(super) fn of_trainer(self, trainer: TrainerKind) -> Self {
        Self { trainer, ..self }
    }

    /// The stack that trains.
    pub(super) fn stack(&self) -> Tool {
        self.stack
    }

    /// Whether trials run in the host's memory.
    pub(super) fn is_on_host(&self) -> bool {
        self.device.is_some_and(|device| device.is_host())
    }

    /// Link between several of the trials' devices, where they are known.
    pub(super) fn link(&self) -> Option<Link> {
        self.device.map(|device| device.sheet.link())
    }

    /// Bytes of the device that a process takes beside its tensors.
    pub(super) fn outside_bytes(&self) -> u64 {
        predict::stack::outside_bytes(1, self.device)
    }

    /// The correction of predictions that is believed before any trial.
    pub(super) fn correction(&self) -> Correction {
        Correction::new(TIME_DEVIATION, self.memory_accuracy().deviation)
    }

    /// Share by which predicted memory may miss the truth: beyond it a setting is certain not to fit.
    pub(super) fn memory_margin(&self) -> f64 {
        self.memory_accuracy().margin
    }

    fn memory_accuracy(&self) -> MemoryAccuracy {
        match (self.shape.is_known, self.is_on_host()) {
            (false, _) => OF_UNKNOWN_LAYOUT,
            (true, false) => OF_GPU,
            (true, true) if self.trainer.is_sft() => OF_HOST,
            (true, true) => OF_COMPARISONS,
        }
    }

    /// Costs of a recipe on these rows, or on full ones.
    ///
    /// # Errors
    /// What the stack cannot run.
    pub(super) fn predict(&self, recipe: &Recipe, rows: Option<&RowLengths>) -> Result<Prediction, Arc<str>> {
        let (setting, batch) = (self.stack.setting_of(recipe), &recipe.batch);
        let (longest, (mean, share)) = match rows {
            Some(rows) => (
                on_longest_rows(&setting, batch, rows),
                mean_micro_batch(&setting, batch, rows),
            ),
            None => (setting.clone(), (setting, 1.0)),
        };
        let bytes = self.step(&longest)?.bytes;
        let (seconds, link_s) = match self.knows_speed {
            true => {
                let step = self.step(&mean)?;
                (step.seconds, step.link_s)
            }
            false => (Seconds::default(), 0.0),
        };
        Ok(Prediction {
            bytes,
            seconds,
            link_s,
            tokens: share * (mean.tokens() * mean.gradient_accumulation * mean.devices) as f64,
            host_bytes: 0,
            serve_s: None,
        })
    }

    fn step(&self, setting: &StackSetting) -> Result<StepCosts, Arc<str>> {
        self.known.get_or(format!("{setting:?}"), || {
            let prediction = predict::stack::predict(&self.shape, setting, self.device);
            let prediction = prediction.map_err(|error| Arc::<str>::from(error.to_string()))?;
            Ok(StepCosts {
                bytes: prediction.memory.by_category(),
                seconds: prediction.seconds.unwrap_or_default(),
                link_s: prediction.link_s,
            })
        })
    }
}

/// The setting on the micro-batch that has the longest rows.
fn on_longest_rows(setting: &StackSetting, batch: &BatchSettings, rows: &RowLengths) -> StackSetting {
    // Packed rows are full.
    if batch.packing {
        return setting.clone();
    }
    let longest = rows.workload(batch.micro_batch).longest;
    let sequences: f64 = longest.documents.iter().map(|documents| documents.count).sum();
    let count = sequences as u64 / setting.comparison.sequences;
    let padded = (longest.longest() as u64).next_multiple_of(setting.stack.pads_to);
    StackSetting {
        micro_batch: count.max(1).min(setting.micro_batch),
        sequence_length: padded.max(1).min(setting.sequence_length),
        ..setting.clone()
    }
}

/// The setting on the mean micro-batch, as the stack pads it, and the share of its tokens that is no padding. All sequences of
/// rows that are compared are padded alike.
pub(super) fn mean_micro_batch(
    setting: &StackSetting,
    batch: &BatchSettings,
    rows: &RowLengths,
) -> (StackSetting, f64) {
    let (mean, longest) = rows.mean_and_longest(batch);
    let mut usual = setting.clone();
    if !batch.packing {
        let padded = (longest.ceil() as u64).next_multiple_of(setting.stack.pads_to);
        usual.sequence_length = padded.max(1).min(setting.sequence_length);
    }
    let padded = usual.comparison.sequences * usual.sequence_length;
    let share = (mean / padded as f64).min(1.0);
    (usual, share)
}

#[cfg(test)]
mod tests {
    use super::*;
    use peft_tune_core::recipe::{DataSettings, ReferencePass};

    fn shape(model_type: &str) -> ModelShape {
        let config = format!(
            r#"{{"model_type": "{model_type}", "hidden_size": 2048, "num_hidden_layers": 2, "num_attention_heads": 16,
                "num_key_value_heads": 8, "intermediate_size": 5632, "vocab_size": 32000}}"#
        );
        ModelShape::from_json("config.json", &serde_json::from_str(&config).unwrap()).unwrap()
    }

    fn costs(device: Option<&str>) -> StackCosts {
        let device = device.map(|name| StackDevice {
            sheet: predict::device(name).unwrap(),
        });
        StackCosts::new(Tool::Trl, shape("llama"), device)
    }

    fn recipe(sequence_length: usize) -> Recipe {
        let mut recipe = Recipe::new("model", DataSettings::default());
        (recipe.batch.micro_batch, recipe.batch.sequence_length) = (8, sequence_length);
        recipe
    }

    /// Rows of 64 to 256 tokens.
    fn rows() -> RowLengths {
        RowLengths::new((64..=256).map(|tokens| vec![(tokens, tokens - 1)]).collect())
    }

    #[test]
    fn memory_is_that_of_the_longest_rows_and_speed_has_no_padding() {
        let (costs, rows) = (costs(Some("T4")), rows());
        let full = costs.predict(&recipe(512), None).unwrap();
        let longest = costs.predict(&recipe(256), None).unwrap();
        let found = costs.predict(&recipe(512), Some(&rows)).unwrap();
        assert_eq!(found.bytes, longest.bytes);
        assert!(found.peak_bytes() < full.peak_bytes());
        assert!((found.tokens - 8.0 * 160.0).abs() < 1e-6, "{}", found.tokens);
        // The longest of eight rows has 236 tokens in the mean, and a row 160.
        let padded = costs.predict(&recipe(236), None).unwrap();
        let share = found.tokens_per_s() / padded.tokens_per_s();
        assert!((share - 160.0 / 236.0).abs() < 1e-6, "{share}");
    }

    #[test]
    fn what_meets_rows_of_its_length_is_faster_and_needs_as_much() {
        let (costs, rows) = (costs(Some("T4")), rows());
        let apart = costs.predict(&recipe(512), Some(&rows)).unwrap();
        let mut similar = recipe(512);
        similar.batch.group_by_length = true;
        let together = costs.predict(&similar, Some(&rows)).unwrap();
        assert!(together.tokens_per_s() > 1.1 * apart.tokens_per_s());
        assert_eq!(together.bytes, apart.bytes);
    }

    #[test]
    fn data_with_fewer_rows_than_a_micro_batch_need_no_more_than_they_have() {
        let costs = costs(Some("T4"));
        let few = RowLengths::new(vec![vec![(256, 255)]; 2]);
        let mut two = recipe(256);
        two.batch.micro_batch = 2;
        let found = costs.predict(&recipe(256), Some(&few)).unwrap();
        assert_eq!(found.bytes, costs.predict(&two, None).unwrap().bytes);
    }

    #[test]
    fn pairs_are_padded_to_the_longest_sequence_and_count_the_tokens_of_both() {
        let costs = costs(Some("T4"));
        let pair = |tokens: usize| vec![(tokens, tokens - 1), (tokens / 2, tokens / 2 - 1)];
        let rows = RowLengths::of_pairs((64..=256).map(pair).collect());
        let mut pairs = recipe(512);
        (pairs.trainer, pairs.reference) = (TrainerKind::Dpo, ReferencePass::Precomputed);
        let found = costs.predict(&pairs, Some(&rows)).unwrap();
        // As twice the rows of the longest sequence.
        let mut twice = recipe(256);
        twice.batch.micro_batch = 16;
        assert_eq!(found.bytes, costs.predict(&twice, None).unwrap().bytes);
        let mean = (64..=256).map(|tokens| tokens + tokens / 2).sum::<usize>() as f64 / 193.0;
        assert!((found.tokens - 8.0 * mean).abs() < 1e-6, "{} {mean}", found.tokens);
        pairs.reference = ReferencePass::EachStep;
        let slower = costs.predict(&pairs, Some(&rows)).unwrap();
        assert!(slower.tokens_per_s() < found.tokens_per_s());
    }

    #[test]
    fn where_no_speed_is_known_memory_is_all_the_same() {
        let timed = costs(Some("A100 40GB")).predict(&recipe(256), None).unwrap();
        for costs in [costs(None), costs(Some("A100 40GB")).without_speed()] {
            let found = costs.predict(&recipe(256), None).unwrap();
            assert_eq!((found.tokens_per_s(), found.bytes), (0.0, timed.bytes));
        }
    }

    /// A processor, as fast as a GPU.
    fn host() -> StackDevice {
        let sheet = predict::DataSheet {
            name: predict::stack::HOST,
            ..*predict::device("L4").unwrap()
        };
        StackDevice {
            sheet: Box::leak(Box::new(sheet)),
        }
    }

    #[test]
    fn several_devices_train_the_tokens_of_all_and_processes_divide_their_processor() {
        let mut two = recipe(256);
        two.batch.devices = 2;
        let [on_gpus, on_host] = [
            costs(Some("T4")),
            StackCosts::new(Tool::Trl, shape("llama"), Some(host())),
        ];
        for (costs, times) in [(on_gpus, 1.0), (on_host, 2.0)] {
            let (one, both) = (
                costs.predict(&recipe(256), None).unwrap(),
                costs.predict(&two, None).unwrap(),
            );
            assert_eq!(both.tokens.to_bits(), (2.0 * one.tokens).to_bits());
            // What they tell one another comes on top.
            let told = both.seconds.total() - times * one.seconds.total();
            assert!(
                (told - both.link_s).abs() < 1e-9 && told > 0.0,
                "{told} {}",
                both.link_s
            );
            assert_eq!(one.link_s, 0.0);
        }
    }

    #[test]
    fn memory_is_less_sure_on_a_gpu_and_of_layers_that_are_not_known() {
        let host = host();
        let margin = |model_type, device| StackCosts::new(Tool::Trl, shape(model_type), device).memory_margin();
        assert!(margin("llama", Some(host)) < margin("llama", None));
        let compared = StackCosts::new(Tool::Trl, shape("llama"), Some(host)).of_trainer(TrainerKind::Kto);
        assert!(compared.memory_margin() > margin("llama", Some(host)));
        assert!(margin("llama", None) < margin("unheard_of", Some(host)));
        assert_eq!(margin("unheard_of", None), margin("unheard_of", Some(host)));
        assert!(StackCosts::new(Tool::Trl, shape("llama"), Some(host)).is_on_host() && !costs(None).is_on_host());
    }
}
