//! Training every parameter: gradients against finite differences, learning from nothing, and merging.

use std::collections::BTreeMap;
use std::sync::Arc;

use candle_core::{Device, Tensor};
use peft_tune_core::architecture::{Architecture, Dtype};
use peft_tune_core::recipe::{DataSettings, Precision, Recipe, ScheduleKind};
use peft_tune_engine::data::{Document, MicroBatch};
use peft_tune_engine::{BaseModel, Checkpoint, Trainer, write_checkpoint};

use crate::golden::{assert_close, base, folder, recipe, whole_batch};

/// A recipe that trains every parameter in float32.
fn full() -> Recipe {
    let mut recipe = Recipe::new("model", DataSettings::default());
    recipe.adapter = None;
    recipe.precision = Precision::Fp32;
    recipe.optimizer.max_grad_norm = None;
    recipe.schedule.kind = ScheduleKind::Constant;
    recipe
}

/// Every tensor of a model, moved by `step` along `direction` where that has the tensor.
fn moved(model: &BaseModel, direction: &BTreeMap<String, Tensor>, step: f64) -> Arc<BaseModel> {
    let architecture = model.architecture().clone();
    let tensors = architecture.tensors().into_iter().map(|tensor| {
        let value = model.tensor(&tensor.name).unwrap();
        let value = match direction.get(&tensor.name) {
            Some(direction) => (value + (direction * step).unwrap()).unwrap(),
            None => value,
        };
        (tensor.name, value)
    });
    let tensors = tensors.collect();
    Arc::new(BaseModel::from_tensors(architecture, tensors, Precision::Fp32, &Device::Cpu).unwrap())
}

fn loss(model: Arc<BaseModel>, batch: &[MicroBatch]) -> f64 {
    Trainer::new(model, &full(), 1).unwrap().evaluate(batch).unwrap().loss
}

#[test]
fn gradients_of_every_kind_of_parameter_match_finite_differences() {
    for (family, way) in [
        ("ref_llama", 0.01),
        ("ref_llama31", 0.01),
        ("ref_qwen2", 0.01),
        ("ref_qwen3", 0.01),
        ("ref_gemma2", 0.01),
        ("ref_phi3", 0.01),
        ("ref_gemma4", 0.01),
        // Its loss bends more.
        ("ref_gemma4_e2b", 0.0025),
    ] {
        let model = base(family, Precision::Fp32);
        let batch = whole_batch(family);
        let mut trainer = Trainer::new(Arc::clone(&model), &full(), 1).unwrap();
        trainer.step(&batch).unwrap();
        let parameters = trainer.parameters();
        let architecture = model.architecture();
        // The numbers that layers are multiplied with are no parameters.
        let numbers = usize::from(architecture.layer_scalar) * architecture.layers.len();
        assert_eq!(
            (parameters.layout.elements() + numbers) as u64,
            architecture.parameter_count().total()
        );
        let written = trainer.merged_tensors().unwrap();
        assert_eq!(written.len(), architecture.tensors().len(), "{family}");
        let mut kinds: BTreeMap<String, BTreeMap<String, Tensor>> = BTreeMap::new();
        for (index, slot) in parameters.layout.slots().iter().enumerate() {
            // Parameters of the same kind in all layers are moved together.
            let kind = slot.name.replace(|c: char| c.is_ascii_digit(), "");
            let gradient = parameters.gradient(index).unwrap().copy().unwrap();
            kinds.entry(kind).or_default().insert(slot.name.clone(), gradient);
        }
        for (kind, direction) in kinds {
            let squares = |tensor: &Tensor| tensor.sqr().unwrap().sum_all().unwrap().to_scalar::<f32>().unwrap();
            let slope: f64 = direction.values().map(|tensor| f64::from(squares(tensor))).sum();
            let slope_over = |way: f64| {
                let step = way / slope.sqrt();
                let (up, down) = (moved(&model, &direction, step), moved(&model, &direction, -step));
                (loss(up, &batch) - loss(down, &batch)) / (2.0 * step)
            };
            // Richardson's extrapolation takes the cubic term out, so that the way can be far above rounding.
            let measured = (4.0 * slope_over(way) - slope_over(2.0 * way)) / 3.0;
            assert_close(&[measured], &[slope], 5e-3, &format!("{family} {kind}"));
        }
    }
}

#[test]
fn a_model_that_knows_nothing_learns_a_pattern() {
    let architecture = Architecture::from_config(&folder("ref_llama/model/config.json")).unwrap();
    let model = BaseModel::random(architecture, 3, Precision::Fp32, &Device::Cpu).unwrap();
    let tokens: Vec<u32> = (0..96).map(|index| 3 + index % 5).collect();
    let document = Document {
        labels: tokens.iter().map(|token| i64::from(*token)).collect(),
        input_ids: tokens,
    };
    let batch = [MicroBatch::from_documents([&document])];
    let mut recipe = full();
    recipe.optimizer.learning_rate = 1e-2;
    let mut trainer = Trainer::new(Arc::new(model), &recipe, 80).unwrap();
    let before = trainer.evaluate(&batch).unwrap();
    assert_close(
        &[before.loss],
        &[512f64.ln()],
        0.02,
        "loss of a model that knows nothing",
    );
    for _ in 0..80 {
        trainer.step(&batch).unwrap();
    }
    let after = trainer.evaluate(&batch).unwrap();
    assert!(after.loss < 0.1 && after.accuracy > 0.95, "{after:?}");
}

#[test]
fn merged_weights_give_the_adapters_loss() {
    for adapter in [
        "ref_llama/adapter_init",
        "ref_variants/dora",
        "ref_variants/modules_to_save_norm",
    ] {
        let batch = whole_batch("ref_llama");
        let mut trainer = Trainer::new(base("ref_llama", Precision::Fp32), &recipe(&folder(adapter)), 1).unwrap();
        let expected = trainer.evaluate(&batch).unwrap().loss;
        let directory = tempfile::TempDir::new().unwrap();
        let tensors = trainer.merged_tensors().unwrap();
        write_checkpoint(&directory.path().join("model.safetensors"), &tensors, Dtype::F32).unwrap();
        std::fs::copy(
            folder("ref_llama/model/config.json"),
            directory.path().join("config.json"),
        )
        .unwrap();
        assert!(Checkpoint::open(directory.path()).is_ok());
        let merged = BaseModel::load(directory.path(), Precision::Fp32, &Device::Cpu).unwrap();
        assert_close(&[loss(Arc::new(merged), &batch)], &[expected], 1e-6, adapter);
    }
}
