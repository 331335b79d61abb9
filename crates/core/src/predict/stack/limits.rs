//! The largest setting that fits, and what each lever would save.

use serde::Serialize;

use super::behaviour::{AttentionForm, LossForm, Recompute};
use super::device::StackDevice;
use super::predictor::{Fit, StackPrediction, predict};
use super::setting::{OptimizerForm, Trains};
use super::weight_form::WeightForm;
use super::{ModelShape, StackError, StackSetting};

/// The largest micro-batch and the longest rows that fit, all else being as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Limits {
    /// 0 where not even the fewest rows fit that a micro-batch may have.
    pub largest_micro_batch: u64,
    /// 0 where not even a row of 16 tokens fits.
    pub longest_sequence: u64,
}

/// A change of one thing, and the bytes that the process would need less.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Lever {
    pub name: &'static str,
    pub saves_bytes: u64,
    pub fit: Option<Fit>,
    /// Tokens a second then, over those now.
    pub speed: Option<f64>,
}

/// Steps of a row's length.
pub(super) const LENGTHS: u64 = 16;
/// Rows that a micro-batch may have.
pub(super) const MOST_ROWS: u64 = 1 << 12;

/// Names of levers, whatever the stack.
pub(super) mod named {
    pub(in super::super) const HALF_THE_ROWS: &str = "half the micro-batch, twice the accumulation";
    pub(in super::super) const CHECKPOINTING: &str = "gradient checkpointing";
    pub(in super::super) const UPDATED_ON_HOST: &str = "optimizer states and updates on the host";
    pub(in super::super) const OFFLOADED: &str = "checkpoints in the host's memory";
    pub(in super::super) const NF4: &str = "weights in NF4";
    pub(in super::super) const OPTIMIZER_8BIT: &str = "an 8-bit optimizer";
    pub(in super::super) const SHARED_OUT: &str = "frozen weights shared out among the devices";
    pub(in super::super) const HALF_THE_LENGTH: &str = "half the sequence length";
}

/// # Errors
/// Those of [`predict`].
pub fn limits(shape: &ModelShape, setting: &StackSetting, device: StackDevice) -> Result<Limits, StackError> {
    let most = shape.max_positions.unwrap_or(1 << 20).min(1 << 20) / LENGTHS;
    let with_length = |length: u64| {
        let longer = StackSetting {
            sequence_length: length * LENGTHS,
            ..setting.clone()
        };
        fits(shape, &longer, device)
    };
    Ok(Limits {
        largest_micro_batch: largest_micro_batch(shape, setting, device)?,
        longest_sequence: largest(most.max(1), with_length) * LENGTHS,
    })
}

/// The largest micro-batch that fits, all else being as it is; 0 where not even the fewest rows do that one may have.
///
/// # Errors
/// Those of [`predict`].
pub fn largest_micro_batch(shape: &ModelShape, setting: &StackSetting, device: StackDevice) -> Result<u64, StackError> {
    setting.check(shape)?;
    let with_rows = |rows: u64| {
        let larger = StackSetting {
            micro_batch: rows,
            ..setting.clone()
        };
        fits(shape, &larger, device)
    };
    let found = largest(MOST_ROWS, with_rows);
    let is_enough = found >= setting.comparison.least_rows;
    Ok(if is_enough { found } else { 0 })
}

fn fits(shape: &ModelShape, setting: &StackSetting, device: StackDevice) -> bool {
    let prediction = predict(shape, setting, Some(device)).ok();
    let verdict = prediction.and_then(|prediction| prediction.verdict);
    verdict.is_some_and(|verdict| verdict.fit.is_fit())
}

/// The largest number up to `most` that `fits`, by doubling and halving.
pub(super) fn largest(most: u64, fits: impl Fn(u64) -> bool) -> u64 {
    let mut low = 0;
    let mut high = 1;
    while high <= most && fits(high) {
        low = high;
        high *= 2;
    }
    high = high.min(most + 1);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        match fits(middle) {
            true => low = middle,
            false => high = middle,
        }
    }
    low
}

/// Savings by each change of one thing, most first; changes that save nothing or that the stack cannot run are left
/// out.
///
/// # Errors
/// Those of [`predict`].
pub fn levers(
    shape: &ModelShape,
    setting: &StackSetting,
    device: Option<StackDevice>,
) -> Result<Vec<Lever>, StackError> {
    let now = predict(shape, setting, device)?;
    let pulled = changes(setting).into_iter();
    let pulled = pulled.filter_map(|(name, changed)| Some((name, predict(shape, &changed, device).ok()?)));
    Ok(saving(&now, pulled))
}

/// Savings by changes beside `now`, from what is predicted with each; most first, and those that save nothing are left
/// out.
pub(super) fn saving(
    now: &StackPrediction,
    pulled: impl Iterator<Item = (&'static str, StackPrediction)>,
) -> Vec<Lever> {
    let mut all: Vec<Lever> = pulled
        .map(|(name, then)| Lever {
            name,
            saves_bytes: now.process_bytes.saturating_sub(then.process_bytes),
            fit: then.verdict.map(|verdict| verdict.fit),
            speed: then.tokens_per_s.zip(now.tokens_per_s).map(|(then, now)| then / now),
        })
        .filter(|lever| lever.saves_bytes > 0)
        .collect();
    all.sort_by_key(|lever| std::cmp::Reverse(lever.saves_bytes));
    all
}

fn changes(setting: &StackSetting) -> Vec<(&'static str, StackSetting)> {
    let mut all = Vec::new();
    let mut add = |name, change: &dyn Fn(&mut StackSetting)| {
        let mut changed = setting.clone();
        change(&mut changed);
        if changed != *setting {
            all.push((name, changed));
        }
    };
    if can_be_halved(setting) {
        add(named::HALF_THE_ROWS, &|to| halve(to));
    }
    add(named::CHECKPOINTING, &|to| {
        if to.recompute == Recompute::Nothing {
            to.recompute = Recompute::Layers;
        }
    });
    add(named::OFFLOADED, &|to| to.recompute = Recompute::LayersOffloaded);
    add("flash attention", &|to| to.attention = AttentionForm::Flash);
    // Trainers that compare answers take none, and a stack that has its own takes no other.
    if setting.comparison.is_none() && setting.loss != LossForm::HalfOfFree {
        add("a fused loss (Liger, cut cross-entropy)", &|to| {
            to.loss = LossForm::FusedLinear;
            to.holds_logits = false;
        });
    }
    add(named::NF4, &|to| {
        if matches!(to.trains, Trains::Adapters { .. }) && !to.weights.is_quantized() {
            to.weights = WeightForm::Nf4Double;
            to.adapters = to.stack.adapters[1];
        }
    });
    add("LoRA in place of DoRA", &|to| to.dora = false);
    add(named::OPTIMIZER_8BIT, &|to| {
        if to.optimizer.states > 0 {
            to.optimizer = OptimizerForm {
                states: 0,
                bytes: 2,
                foreach: false,
                ..to.optimizer
            };
        }
    });
    add(named::HALF_THE_LENGTH, &|to| {
        to.sequence_length = to.sequence_length.div_ceil(2)
    });
    all
}

/// Whether parts of the micro-batch are as large as one has to be.
fn can_be_halved(setting: &StackSetting) -> bool {
    let rows = setting.micro_batch;
    rows > 1 && rows / parts(rows) >= setting.comparison.least_rows
}

/// Half of the micro-batch and twice the accumulation: the global batch stays.
fn halve(setting: &mut StackSetting) {
    let parts = parts(setting.micro_batch);
    setting.micro_batch /= parts;
    setting.gradient_accumulation *= parts;
}

/// Parts that so many rows are cut into: halves, or single rows of an odd number.
pub(super) fn parts(rows: u64) -> u64 {
    if rows.is_multiple_of(2) { 2 } else { rows }
}

/// The setting with the largest micro-batch that fits and the same global batch: halved as often as needed.
///
/// # Errors
/// Those of [`predict`].
pub fn made_to_fit(
    shape: &ModelShape,
    setting: &StackSetting,
    device: StackDevice,
) -> Result<Option<StackSetting>, StackError> {
    let mut changed = setting.clone();
    loop {
        let prediction = predict(shape, &changed, Some(device))?;
        let fit = prediction.verdict.map(|verdict| verdict.fit);
        if fit.is_some_and(Fit::is_fit) {
            return Ok(Some(changed));
        }
        if !can_be_halved(&changed) {
            return Ok(None);
        }
        halve(&mut changed);
    }
}

#[cfg(test)]
mod tests {
    use super::super::behaviour::{Number, Raised, StackBehaviour};
    use super::super::comparison::Comparison;
    use super::*;
    use crate::predict::device;

    fn shape() -> ModelShape {
        let config = r#"{"model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32,
            "num_key_value_heads": 8, "intermediate_size": 8192, "vocab_size": 128256, "tie_word_embeddings": true}"#;
        ModelShape::from_json("config.json", &serde_json::from_str(config).unwrap()).unwrap()
    }

    fn on(name: &str) -> StackDevice {
        StackDevice {
            sheet: device(name).unwrap(),
        }
    }

    #[test]
    fn one_row_more_than_the_largest_micro_batch_does_not_fit() {
        let setting = StackSetting::new(&StackBehaviour::PLAIN, WeightForm::Nf4);
        let found = limits(&shape(), &setting, on("T4")).unwrap();
        assert!(found.largest_micro_batch > 1);
        for (rows, fits) in [
            (found.largest_micro_batch, true),
            (found.largest_micro_batch + 1, false),
        ] {
            let setting = StackSetting {
                micro_batch: rows,
                ..setting.clone()
            };
            let verdict = predict(&shape(), &setting, Some(on("T4"))).unwrap().verdict.unwrap();
            assert_eq!(verdict.fit == Fit::Fits, fits, "{rows}");
        }
    }

    #[test]
    fn a_setting_made_to_fit_keeps_its_global_batch() {
        let mut setting = StackSetting::new(&StackBehaviour::PLAIN, WeightForm::Numbers);
        (setting.micro_batch, setting.gradient_accumulation) = (64, 2);
        let fitting = made_to_fit(&shape(), &setting, on("T4")).unwrap().unwrap();
        assert!(fitting.micro_batch < 64);
        assert_eq!(fitting.micro_batch * fitting.gradient_accumulation, 128);
    }

    #[test]
    fn rows_that_are_compared_with_one_another_are_not_made_single_to_fit() {
        let mut setting = StackSetting::new(&StackBehaviour::PLAIN, WeightForm::Numbers);
        setting.micro_batch = 64;
        setting.comparison.least_rows = 2;
        let fitting = made_to_fit(&shape(), &setting, on("T4")).unwrap();
        assert!(fitting.is_none_or(|fitting| fitting.micro_batch >= 2));
        setting.micro_batch = 3;
        let names =
            |setting: &StackSetting| -> Vec<&str> { changes(setting).into_iter().map(|(name, _)| name).collect() };
        assert!(!names(&setting).contains(&named::HALF_THE_ROWS));
        setting.micro_batch = 4;
        assert!(names(&setting).contains(&named::HALF_THE_ROWS));
    }

    #[test]
    fn where_the_fewest_rows_do_not_fit_no_micro_batch_does() {
        let mut setting = StackSetting::new(&StackBehaviour::PLAIN, WeightForm::Nf4);
        setting.sequence_length = limits(&shape(), &setting, on("T4")).unwrap().longest_sequence;
        let largest = |setting: &StackSetting| largest_micro_batch(&shape(), setting, on("T4")).unwrap();
        assert_eq!(largest(&setting), 1);
        setting.comparison.least_rows = 2;
        assert_eq!(largest(&setting), 0);
        setting.sequence_length /= 4;
        assert!(largest(&setting) >= 2);
    }

    #[test]
    fn each_form_of_loss_needs_more_for_more_rows_and_levers_save_what_they_say() {
        let all = [
            LossForm::Full,
            LossForm::FusedCrossEntropy,
            LossForm::InPlace,
            LossForm::Chunked(8),
            LossForm::FusedLinear,
            LossForm::HalfOfFree,
            LossForm::Tiled,
            LossForm::OddsRatio,
        ];
        for loss in all {
            let mut setting = StackSetting::new(&StackBehaviour::PLAIN, WeightForm::Numbers);
            setting.loss = loss;
            if loss == LossForm::OddsRatio {
                setting.comparison = Comparison {
                    sequences: 2,
                    ..Comparison::NONE
                };
            }
            let few = predict(&shape(), &setting, None).unwrap().memory.tensors_bytes;
            setting.micro_batch = 8;
            let many = predict(&shape(), &setting, None).unwrap();
            assert!(few < many.memory.tensors_bytes, "{loss:?}");
            let components: u64 = many.memory.components.iter().map(|(_, bytes)| bytes).sum();
            assert_eq!(components, many.memory.tensors_bytes, "{loss:?}");
            let levers = levers(&shape(), &setting, Some(on("A100 40GB"))).unwrap();
            assert!(!levers.is_empty(), "{loss:?}");
            assert!(levers.iter().all(|lever| lever.saves_bytes > 0), "{loss:?}");
        }
    }

    #[test]
    fn sharing_weights_out_takes_less_of_each_device() {
        // Weights in F32 below autocast, and little beside them.
        const STACK: StackBehaviour = StackBehaviour {
            loads: Number::F32,
            autocast: true,
            raises: Raised::Nothing,
            loss: LossForm::Tiled,
            recompute: Recompute::Layers,
            holds_logits: false,
            foreach: false,
            ..StackBehaviour::PLAIN
        };
        let mut setting = StackSetting::new(&STACK, WeightForm::Numbers);
        setting.trains = Trains::Everything;
        setting.devices = 8;
        let needs = |sharing| {
            let setting = StackSetting {
                sharing,
                ..setting.clone()
            };
            predict(&shape(), &setting, None).unwrap().memory.tensors_bytes
        };
        use super::super::setting::Sharing::{Copies, Full, Zero1, Zero2, Zero3};
        assert!(needs(Zero1) < needs(Copies));
        assert!(needs(Zero2) < needs(Zero1));
        assert!(needs(Zero3) < needs(Zero2));
        assert!(needs(Full) < needs(Copies));
    }

    #[test]
    fn absurd_settings_are_refused_and_large_ones_are_counted() {
        let mut setting = StackSetting::new(&StackBehaviour::PLAIN, WeightForm::Numbers);
        setting.micro_batch = 0;
        assert!(predict(&shape(), &setting, None).is_err());
        setting.micro_batch = u64::MAX;
        assert!(
            predict(&shape(), &setting, None)
                .unwrap_err()
                .to_string()
                .contains("micro_batch")
        );
        setting.micro_batch = 1 << 12;
        setting.sequence_length = 1 << 12;
        setting.attention = AttentionForm::Eager;
        assert!(predict(&shape(), &setting, Some(on("T4"))).unwrap().memory.overflows);
        setting.trains = Trains::Everything;
        setting.weights = WeightForm::Nf4;
        assert!(predict(&shape(), &setting, None).is_err());
    }
}
