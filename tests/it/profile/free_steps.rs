//! Steps that run freely beside those with spans, as a GPU's profile takes them, on the CPU.

use std::sync::Arc;

use peft_tune_core::recipe::Recipe;
use peft_tune_engine::data::PreparedData;
use peft_tune_engine::hub::ModelFiles;
use peft_tune_engine::profile::{Ceiling, CeilingSource, Measured, ProfileInputs, ProfileSettings, profile};
use peft_tune_engine::{BaseModel, BaseSource};
use peft_tune_kernels::device::Device;

use super::command::recipe as recipe_file;

fn profiled(spans_apart: Option<bool>) -> Measured {
    let directory = tempfile::tempdir().unwrap();
    let text = std::fs::read_to_string(recipe_file(directory.path(), "")).unwrap();
    let mut recipe: Recipe = serde_saphyr::from_str(&text).unwrap();
    recipe.data.train = vec![directory.path().join("train.jsonl")].into();
    let files = ModelFiles::resolve_weights(&recipe.model, &mut ()).unwrap();
    let data = PreparedData::of_recipe(&recipe, &files).unwrap();
    let base = BaseModel::load(&files.folder, recipe.precision, &Device::Cpu).unwrap();
    let inputs = ProfileInputs {
        recipe: &recipe,
        base: BaseSource::Kept(Arc::new(base)),
        data: &data,
        program_bytes: 0,
        memory_limit_bytes: None,
        ceiling: Some(Ceiling {
            flops_per_s: 1e12,
            bytes_per_s: 1e10,
            from: CeilingSource::DataSheet,
        }),
        sampler: None,
        log: None,
    };
    let settings = ProfileSettings {
        budget_s: 20.0,
        interval: 0.5,
        spans_apart,
        ..ProfileSettings::default()
    };
    profile(inputs, &settings).unwrap()
}

#[test]
fn throughput_is_that_of_steps_without_spans() {
    let apart = profiled(Some(true));
    let (steps, arithmetic) = (&apart.profile.steps, &apart.profile.arithmetic);
    let spanned = steps.spanned.unwrap();
    assert!(spanned.steps == 6 && steps.measured_steps >= 6 && spanned.step_s > 0.0 && spanned.slowdown > 0.0);
    assert_eq!(steps.span_step_s(), spanned.step_s);
    let outer = apart.profile.phases.iter().filter(|phase| !phase.nested);
    assert!((outer.map(|phase| phase.share).sum::<f64>() - 1.0).abs() < 1e-9);
    // FLOPs of a token of the steps with spans, tokens a second of the free ones.
    let per_token = arithmetic.model_flops.unwrap() / steps.tokens_per_step;
    let expected = per_token * steps.tokens_per_s / 1e12;
    assert!((arithmetic.mfu.unwrap() / expected - 1.0).abs() < 1e-9);
    assert_eq!(arithmetic.peak_from, Some(CeilingSource::DataSheet));

    let together = profiled(None).profile;
    assert_eq!(together.steps.spanned, None);
    assert_eq!(together.steps.span_step_s(), together.steps.step_s);
    // Rows differ in length, and each takes other steps.
    let ratio = together.arithmetic.model_flops.unwrap() / together.steps.tokens_per_step / per_token;
    assert!((0.9..1.1).contains(&ratio), "{ratio}");
}
