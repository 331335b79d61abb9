//! The references in `tests/golden/ref_*`: what PyTorch, transformers and PEFT computed on toy models.

/// Samples of tensors.
mod sample;
/// Files made again from the seeds of their tensors.
mod seeded;
/// PyTorch's random numbers.
mod torch_random;

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use peft_tune_core::recipe::{
    AdapterSettings, DataSettings, OptimizerSettings, Precision, Recipe, ScheduleKind, ScheduleSettings,
};
use peft_tune_engine::adapter::SavedAdapter;
use peft_tune_engine::data::{Document, MicroBatch};
use peft_tune_engine::{BaseModel, Parameters, Trainer};

pub(crate) use self::sample::{Sample, greatest};

/// The folder of one reference, or what `name` says behind it. The files that come from seeds are there then.
pub(crate) fn folder(name: &str) -> PathBuf {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    if let Some(reference) = name.split('/').next() {
        seeded::make(&golden.join(reference));
    }
    golden.join(name)
}

/// A JSON file of a reference.
pub(crate) fn json(path: &Path) -> serde_json::Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// A list of numbers in a JSON object.
pub(crate) fn numbers(value: &serde_json::Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
}

/// The tensors of one safetensors file.
pub(crate) fn tensors(path: &Path) -> HashMap<String, Tensor> {
    candle_core::safetensors::load(path, &Device::Cpu).unwrap()
}

/// The toy model of a reference.
pub(crate) fn base(reference: &str, precision: Precision) -> Arc<BaseModel> {
    Arc::new(BaseModel::load(&folder(reference).join("model"), precision, &Device::Cpu).unwrap())
}

/// The settings with which the references were trained, on the adapter in `adapter`.
pub(crate) fn recipe(adapter: &Path) -> Recipe {
    let mut recipe = Recipe::new("model", DataSettings::default());
    recipe.adapter = Some(AdapterSettings {
        adapter_init: Some(adapter.to_owned()),
        ..SavedAdapter::read(adapter).unwrap().config.settings
    });
    recipe.precision = Precision::Fp32;
    recipe.optimizer = OptimizerSettings {
        learning_rate: 1e-3,
        max_grad_norm: None,
        ..Default::default()
    };
    recipe.schedule = ScheduleSettings {
        kind: ScheduleKind::Constant,
        ..Default::default()
    };
    recipe
}

/// The rows of a reference's inputs as documents: `ids` and `labels` name the tensors, a padded row is cut.
pub(crate) fn documents(reference: &str, ids: &str, labels: &str) -> Vec<Document> {
    let inputs = tensors(&folder(reference).join("inputs.safetensors"));
    let rows = |name: &str| inputs[name].to_vec2::<i64>().unwrap();
    let lengths: Vec<usize> = match ids.ends_with("_pad") {
        true => rows("attention_mask")
            .iter()
            .map(|row| row.iter().sum::<i64>() as usize)
            .collect(),
        false => rows(ids).iter().map(Vec::len).collect(),
    };
    let rows = rows(ids).into_iter().zip(rows(labels)).zip(lengths);
    rows.map(|((ids, labels), length)| Document {
        input_ids: ids[..length].iter().map(|id| *id as u32).collect(),
        labels: labels[..length].to_vec(),
    })
    .collect()
}

/// All rows of a reference in one micro-batch, every token a target.
pub(crate) fn whole_batch(reference: &str) -> Vec<MicroBatch> {
    vec![MicroBatch::from_documents(&documents(
        reference,
        "input_ids",
        "input_ids",
    ))]
}

/// Losses before each of `steps` steps on the same global batch, and one after.
pub(crate) fn losses(trainer: &mut Trainer, batch: &[MicroBatch], steps: usize) -> Vec<f64> {
    let mut losses: Vec<f64> = (0..steps).map(|_| trainer.step(batch).unwrap().loss).collect();
    losses.push(trainer.evaluate(batch).unwrap().loss);
    losses
}

/// Gradients by the reference's names; see [`plain_name`].
pub(crate) fn gradients(parameters: &Parameters) -> BTreeMap<String, Tensor> {
    let slots = parameters.layout.slots().iter().enumerate();
    slots
        .map(|(index, slot)| (slot.name.clone(), parameters.gradient(index).unwrap()))
        .collect()
}

/// PEFT's name of a parameter in memory as its checkpoint has it.
pub(crate) fn plain_name(name: &str) -> String {
    name.replace(".modules_to_save", "")
        .replace("lora_magnitude_vector.weight", "lora_magnitude_vector")
}

/// Fails unless every gradient is within `tolerance` of the reference's in `path`; see [`gradient_errors`].
pub(crate) fn assert_gradients(parameters: &Parameters, path: &Path, tolerance: f64) {
    for (name, error) in gradient_errors(parameters, path) {
        assert!(error <= tolerance, "{name}: {error:.1e} is above {tolerance:.0e}");
    }
}

/// How far each gradient is from the reference's in `path`; see [`Sample::error_of`].
pub(crate) fn gradient_errors(parameters: &Parameters, path: &Path) -> BTreeMap<String, f64> {
    let expected: BTreeMap<String, Sample> = Sample::read(path)
        .into_iter()
        .map(|(name, sample)| (plain_name(&name), sample))
        .collect();
    let actual = gradients(parameters);
    assert_eq!(
        actual.keys().collect::<Vec<_>>(),
        expected.keys().collect::<Vec<_>>(),
        "names of the trained parameters"
    );
    let errors = actual
        .into_iter()
        .map(|(name, gradient)| (name.clone(), expected[&name].error_of(&gradient)));
    errors.collect()
}

/// Largest difference over the largest element of `expected`.
pub(crate) fn relative_error(actual: &Tensor, expected: &Tensor) -> f64 {
    let largest = |tensor: &Tensor| {
        let flat = tensor
            .to_dtype(DType::F64)
            .unwrap()
            .abs()
            .unwrap()
            .flatten_all()
            .unwrap();
        flat.max(0).unwrap().to_scalar::<f64>().unwrap()
    };
    let wide = |tensor: &Tensor| tensor.to_dtype(DType::F64).unwrap();
    largest(&(wide(actual) - wide(expected)).unwrap()) / largest(expected)
}

/// Fails unless each number is within `tolerance` of the expected one, relatively.
pub(crate) fn assert_close(actual: &[f64], expected: &[f64], tolerance: f64, what: &str) {
    assert_eq!(actual.len(), expected.len(), "{what}");
    for (index, (a, e)) in actual.iter().zip(expected).enumerate() {
        let error = (a / e - 1.0).abs();
        assert!(
            error <= tolerance,
            "{what} {index}: {a} instead of {e}, {error:.1e} is above {tolerance:.0e}"
        );
    }
}
