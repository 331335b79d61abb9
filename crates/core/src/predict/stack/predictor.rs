//! [`predict`]: memory, time and verdict of one setting on one device.

use std::rc::Rc;

use serde::Serialize;

use super::behaviour::AttentionForm;
use super::device::StackDevice;
use super::memory::{StackMemory, trace};
use super::model::Model;
use super::step_seconds::StepSeconds;
use super::{ModelShape, StackError, StackSetting};
use crate::predict::Seconds;

/// Needs of a training, and how fast it is.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StackPrediction {
    /// Memory of one device.
    pub memory: StackMemory,
    /// The process on one device: what the allocator took, and what it does not count.
    pub process_bytes: u64,
    /// Bytes outside the allocator: CUDA context, libraries, communication.
    pub outside_bytes: u64,
    /// Seconds of a step: of products, whatever their operands, and of passes, with the time that Python takes; absent without a device.
    pub seconds: Option<Seconds>,
    /// Seconds of these in which devices wait for their link; 0 on one, and without a device.
    pub link_s: f64,
    /// Tokens of all devices a second, padding counted; absent without a device.
    pub tokens_per_s: Option<f64>,
    /// Verdict on whether the training fits, where there is a device.
    pub verdict: Option<Verdict>,
}

/// Whether a training fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Fit {
    Fits,
    /// The setting fits by a model that no measurement stands behind.
    #[serde(rename = "fits_by_an_unproven_model")]
    Unproven,
    /// The tensors fit, but less than the reserve is left.
    Uncertain,
    DoesNot,
}

/// A verdict and what it rests on.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Verdict {
    pub fit: Fit,
    /// Bytes that the device leaves to programs.
    pub usable_bytes: u64,
    /// Bytes that must be left for `fits`: the error of the prediction.
    pub reserve_bytes: u64,
    /// Bytes that the process needs at the least, without cached blocks.
    pub least_bytes: u64,
    /// Reason why the prediction is not proven; `None` where such settings were compared with measurements.
    pub unproven: Option<&'static str>,
}

impl StackPrediction {
    /// Seconds of a step; absent without a device.
    pub fn step_s(&self) -> Option<f64> {
        self.seconds.map(|seconds| seconds.total())
    }
}

impl Fit {
    /// Text as it is printed.
    pub fn words(self) -> &'static str {
        match self {
            Self::Fits => "fits",
            Self::Unproven => "fits by an unproven model",
            Self::Uncertain => "uncertain",
            Self::DoesNot => "does not fit",
        }
    }

    /// Whether the setting fits with the reserve, by whatever model.
    pub fn is_fit(self) -> bool {
        matches!(self, Self::Fits | Self::Unproven)
    }
}

/// Share of the tensors' peak that a prediction may be low, where layout and stack were compared and where one of them was not.
const RESERVE: [f64; 2] = [0.06, 0.15];
/// Bytes that a prediction may be low, at the least.
const LEAST_RESERVE: u64 = 256 << 20;
/// Buffers of NCCL's channels.
const COMMUNICATION: u64 = 1 << 30;

/// Predicts a setting of a model, on a device or without one.
///
/// # Errors
/// A setting that is out of range or that the stack cannot run.
pub fn predict(
    shape: &ModelShape,
    setting: &StackSetting,
    device: Option<StackDevice>,
) -> Result<StackPrediction, StackError> {
    let setting = &setting.on(shape);
    setting.check(shape)?;
    let model = model_of(shape, setting.as_run(shape), device);
    let setting = &model.setting;
    let outside = outside_bytes(setting.devices, device);
    let capacity = device.map(|device| device.usable_bytes().saturating_sub(outside));
    let traced = trace(&model, capacity);
    let step = device.map(|device| StepSeconds::of(&model, &traced, device));
    let seconds = step.map(|step| step.all);
    let tokens = (setting.tokens() * setting.gradient_accumulation * setting.devices) as f64;
    let memory = traced.memory;
    Ok(StackPrediction {
        process_bytes: match model.is_host {
            true => memory.tensors_bytes,
            false => memory.reserved_bytes + outside,
        },
        outside_bytes: outside,
        tokens_per_s: seconds.map(|seconds| tokens / seconds.total()),
        seconds,
        link_s: step.map_or(0.0, |step| step.link_s),
        verdict: device.map(|device| verdict(&model, &memory, outside, device)),
        memory,
    })
}

fn model_of(shape: &ModelShape, setting: StackSetting, device: Option<StackDevice>) -> Rc<Model> {
    let has_bf16 = device.is_none_or(|device| device.sheet.has_bf16);
    let own = setting.stack.own_layers;
    // Such layers take xformers' attention, whose heads are as many as those of queries; flash attention comes with BF16.
    let repeats = !has_bf16 || own.is_some_and(|own| own.are_of(&shape.model_type));
    let is_wide = !has_bf16 && own.is_some_and(|own| own.is_wide(&shape.model_type));
    Rc::new(Model {
        shape: shape.clone(),
        repeats_heads: repeats && setting.attention == AttentionForm::Sdpa,
        is_wide,
        is_host: device.is_some_and(|device| device.is_host()),
        rows: setting.sequences(),
        setting,
    })
}

/// Bytes that a process on one of so many devices takes outside the allocator.
pub fn outside_bytes(devices: u64, device: Option<StackDevice>) -> u64 {
    let context = device.map_or(480 << 20, |device| device.row().context_bytes);
    context + if devices > 1 { COMMUNICATION } else { 0 }
}

fn verdict(model: &Model, memory: &StackMemory, outside: u64, device: StackDevice) -> Verdict {
    let unproven = model.setting.unproven();
    let share = RESERVE[usize::from(!model.shape.is_known || unproven.is_some())];
    let reserve = ((memory.tensors_bytes as f64 * share) as u64).max(LEAST_RESERVE);
    let least = memory.tensors_bytes + outside;
    let mut verdict = verdict_of(least, reserve, device.usable_bytes(), unproven);
    if memory.overflows {
        verdict.fit = Fit::DoesNot;
    }
    verdict
}

/// The verdict on a process that needs `least` bytes and is predicted with an error of `reserve` at most, by a model that may not be
/// proven.
pub(super) fn verdict_of(least: u64, reserve: u64, usable: u64, unproven: Option<&'static str>) -> Verdict {
    let fit = if least > usable {
        Fit::DoesNot
    } else if least + reserve > usable {
        Fit::Uncertain
    } else if unproven.is_some() {
        Fit::Unproven
    } else {
        Fit::Fits
    };
    Verdict {
        fit,
        usable_bytes: usable,
        reserve_bytes: reserve,
        least_bytes: least,
        unproven,
    }
}

#[cfg(test)]
mod tests {
    use super::super::behaviour::{LossForm, StackBehaviour};
    use super::super::setting::{Sharing, Trains};
    use super::super::weight_form::WeightForm;
    use super::*;
    use crate::predict::{DataSheet, MemoryCategory, device};

    fn shape(vocabulary: u64) -> ModelShape {
        let config = format!(
            r#"{{"model_type": "llama", "hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4,
                "num_key_value_heads": 2, "intermediate_size": 352, "vocab_size": {vocabulary}}}"#
        );
        ModelShape::from_json("config.json", &serde_json::from_str(&config).unwrap()).unwrap()
    }

    fn tensors(shape: &ModelShape, setting: &StackSetting, device: Option<StackDevice>) -> u64 {
        predict(shape, setting, device).unwrap().memory.tensors_bytes
    }

    #[test]
    fn a_tile_has_all_its_words_however_few_the_vocabulary_has() {
        let mut setting = StackSetting::new(&StackBehaviour::PLAIN, WeightForm::Numbers);
        (setting.loss, setting.holds_logits) = (LossForm::Tiled, false);
        (setting.micro_batch, setting.sequence_length) = (2, 129);
        let tile = 256 * 32_768 * 2;
        let tiled = tensors(&shape(1024), &setting, None);
        setting.loss = LossForm::FusedLinear;
        let fused = tensors(&shape(1024), &setting, None);
        assert!(tiled - fused > tile - (4 << 20), "{tiled} {fused}");
        assert!(tiled - fused < tile + (4 << 20), "{tiled} {fused}");
    }

    #[test]
    fn a_model_that_is_not_proven_never_says_that_a_setting_simply_fits() {
        const STACK: StackBehaviour = StackBehaviour {
            unproven: Some("compared with nothing"),
            ..StackBehaviour::PLAIN
        };
        let gpu = StackDevice {
            sheet: device("L4").unwrap(),
        };
        let shape = shape(1024);
        let verdict = |setting: &StackSetting| predict(&shape, setting, Some(gpu)).unwrap().verdict.unwrap();
        let proven = StackSetting::new(&StackBehaviour::PLAIN, WeightForm::Numbers);
        assert_eq!((verdict(&proven).fit, verdict(&proven).unproven), (Fit::Fits, None));
        let mut offloaded = proven.clone();
        (offloaded.devices, offloaded.sharing, offloaded.offloads) = (2, Sharing::Full, true);
        let mut zero = proven.clone();
        (zero.devices, zero.sharing) = (2, Sharing::Zero3);
        for setting in [StackSetting::new(&STACK, WeightForm::Numbers), offloaded, zero] {
            let found = verdict(&setting);
            assert!(found.fit == Fit::Unproven && found.fit.is_fit(), "{found:?}");
            assert!(found.unproven.is_some());
            let shown = serde_json::to_value(found).unwrap();
            assert_eq!(shown["fit"], "fits_by_an_unproven_model");
            assert_ne!(found.fit.words(), Fit::Fits.words());
        }
    }

    #[test]
    fn what_the_host_sends_is_on_the_device_beside_what_becomes_of_it() {
        let shape = shape(32_000);
        let mut setting = tiled();
        (setting.devices, setting.sharing) = (2, Sharing::Full);
        let gathered = |offloads: bool| {
            let mut setting = setting.clone();
            setting.offloads = offloads;
            model_of(&shape, setting, None).gathered_bytes(1000)
        };
        assert_eq!((gathered(false), gathered(true)), (1000, 1500));
    }

    #[test]
    fn the_host_has_no_workspace_and_no_driver_and_is_slower_by_what_python_takes() {
        let sheet = DataSheet {
            name: super::super::HOST,
            ..*device("L4").unwrap()
        };
        let host = StackDevice {
            sheet: Box::leak(Box::new(sheet)),
        };
        let gpu = StackDevice {
            sheet: device("L4").unwrap(),
        };
        let setting = StackSetting::new(&StackBehaviour::PLAIN, WeightForm::Numbers);
        let [here, there] = [host, gpu].map(|device| predict(&shape(1024), &setting, Some(device)).unwrap());
        assert_eq!(here.outside_bytes, 0);
        assert!(here.memory.tensors_bytes + 8_000_000 < there.memory.tensors_bytes);
        assert!(here.process_bytes >= here.memory.tensors_bytes);
        assert!(here.tokens_per_s < there.tokens_per_s);
        for prediction in [&here, &there] {
            let seconds = prediction.seconds.unwrap();
            assert!(seconds.products > 0.0 && seconds.passes > 0.0, "{seconds:?}");
            let tokens = setting.tokens() as f64;
            assert!((tokens / prediction.step_s().unwrap() / prediction.tokens_per_s.unwrap() - 1.0).abs() < 1e-12);
            let bytes = prediction.memory.by_category();
            assert_eq!(bytes.total(), prediction.memory.tensors_bytes);
            assert!(bytes.of(MemoryCategory::BaseWeights) > 0 && bytes.of(MemoryCategory::Scratch) > 0);
        }
    }

    #[test]
    fn rows_of_other_lengths_leave_blocks_in_the_cache_and_need_no_more_tensors() {
        let mut setting = StackSetting::new(&StackBehaviour::PLAIN, WeightForm::Numbers);
        (setting.micro_batch, setting.sequence_length) = (4, 2048);
        let shape = shape(32_000);
        let same = predict(&shape, &setting, None).unwrap();
        setting.rows_differ = true;
        let differ = predict(&shape, &setting, None).unwrap();
        assert!(differ.process_bytes > same.process_bytes + (1 << 28));
        assert!(differ.memory.tensors_bytes <= same.memory.tensors_bytes);
    }

    /// A setting of TRL's head whose adapters drop nothing.
    fn tiled() -> StackSetting {
        let mut setting = StackSetting::new(&StackBehaviour::PLAIN, WeightForm::Numbers);
        (setting.loss, setting.holds_logits) = (LossForm::Tiled, false);
        (setting.micro_batch, setting.sequence_length) = (2, 512);
        setting
    }

    #[test]
    fn pairs_need_what_twice_the_rows_do_and_a_reference_takes_time() {
        let gpu = StackDevice {
            sheet: device("L4").unwrap(),
        };
        let shape = shape(32_000);
        let of = |setting: &StackSetting| predict(&shape, setting, Some(gpu)).unwrap();
        let (rows, mut pairs) = (tiled(), tiled());
        pairs.comparison.sequences = 2;
        let twice = StackSetting {
            micro_batch: 4,
            ..rows.clone()
        };
        assert_eq!(of(&pairs).memory, of(&twice).memory);
        let alone = of(&pairs);
        pairs.comparison.reference_passes = 1;
        let beside = of(&pairs);
        assert!(beside.memory.tensors_bytes >= alone.memory.tensors_bytes);
        // A pass forward beside one forward and one backward.
        let slower = alone.tokens_per_s.unwrap() / beside.tokens_per_s.unwrap();
        assert!(slower > 1.1 && slower < 1.6, "{slower}");
        pairs.comparison.own_passes = 1;
        assert!(of(&pairs).tokens_per_s < beside.tokens_per_s);
    }

    #[test]
    fn weights_that_are_shared_out_are_gathered_for_a_reference_too() {
        let gpu = StackDevice {
            sheet: device("L4").unwrap(),
        };
        let shape = shape(32_000);
        let of_reference = |sharing| {
            let mut setting = tiled();
            (setting.devices, setting.sharing) = (8, sharing);
            let seconds = |setting: &StackSetting| predict(&shape, setting, Some(gpu)).unwrap().step_s().unwrap();
            let alone = seconds(&setting);
            setting.comparison.reference_passes = 1;
            seconds(&setting) - alone
        };
        let [shared, copied] = [Sharing::Full, Sharing::Copies].map(of_reference);
        assert!(shared > copied * (1.0 + 1e-6), "{shared} {copied}");
    }

    #[test]
    fn devices_wait_for_the_link_that_their_sheet_has() {
        let link_s = |name: &str, devices| {
            let mut setting = tiled();
            (setting.devices, setting.sharing) = (devices, Sharing::Full);
            let gpu = StackDevice {
                sheet: device(name).unwrap(),
            };
            predict(&shape(32_000), &setting, Some(gpu)).unwrap().link_s
        };
        assert_eq!(link_s("A100 80GB", 1), 0.0);
        // Three quarters of 300 GB/s over 60% of 31.5.
        let times = link_s("A100 80GB PCIe", 8) / link_s("A100 80GB", 8);
        assert!((times - 11.9).abs() < 0.01, "{times}");
    }

    #[test]
    fn a_reference_that_is_a_copy_takes_the_weights_again() {
        let (shape, mut whole) = (shape(32_000), tiled());
        whole.trains = Trains::Everything;
        let alone = tensors(&shape, &whole, None);
        whole.comparison.has_copy = true;
        let more = tensors(&shape, &whole, None) - alone;
        let weights = 2 * shape.parameters();
        assert!(more.abs_diff(weights) < weights / 50, "{more} {weights}");
    }

    #[test]
    fn the_logits_of_pairs_are_held_three_and_a_half_times() {
        let (shape, mut pairs) = (shape(128_000), tiled());
        pairs.comparison.sequences = 2;
        pairs.loss = LossForm::OddsRatio;
        let logits = 4 * pairs.tokens() * shape.vocabulary;
        let found = predict(&shape, &pairs, None).unwrap().memory;
        let times = found.by_category().of(MemoryCategory::Logits) as f64 / logits as f64;
        let all = found.tensors_bytes as f64 / logits as f64;
        assert!(times > 1.4 && all > 3.4 && all < 4.0, "{times} {all}");
    }

    #[test]
    fn what_stands_beside_weights_in_gptq_is_not_raised() {
        let of = |weights| {
            tensors(
                &shape(128_000),
                &StackSetting::new(&StackBehaviour::PLAIN, weights),
                None,
            )
        };
        let embeddings = 128_000 * 128 * 2 * 2;
        assert!(of(WeightForm::Nf4) > of(WeightForm::Gptq4) + embeddings);
    }
}
