//! Recipe files: written, read back, refused.

use std::path::Path;

use peft_tune::space::{ReadOptions, RecipeFile, SpaceError, recipe_for};
use peft_tune_core::recipe::Recipe;

use super::files::{WHOLE, folder, message, read};

pub(super) fn read_recipe(text: &str) -> Result<Recipe, SpaceError> {
    let folder = folder();
    let path = folder.path().join("recipe.yaml");
    std::fs::write(&path, text).unwrap();
    RecipeFile::read(&path)
}

#[test]
fn a_recipe_survives_its_file() {
    let study = read(WHOLE).unwrap();
    for point in 0..40 {
        let unit: Vec<f64> = (0..study.space.dimensions())
            .map(|axis| (f64::from(point) * 0.618 + axis as f64 * 0.37).fract())
            .collect();
        let recipe = recipe_for(&study, &study.space.params_at(&unit)).unwrap();
        let text = RecipeFile::to_yaml(&recipe).unwrap();
        let options = ReadOptions { check_files: false };
        let again = RecipeFile::parse(Path::new("/tmp/recipe.yaml"), &text, options).unwrap();
        assert_eq!(again, recipe, "{text}");
    }
}

#[test]
fn a_recipe_file_needs_only_model_and_data() {
    let recipe = read_recipe(
        "model: ./base
data: {train: train.jsonl}
adapter: {rank: 8}
",
    )
    .unwrap();
    assert_eq!(recipe.adapter.unwrap().rank, 8);
    let recipe = read_recipe(
        "model: ./base
data: {train: train.jsonl}
adapter: null
",
    )
    .unwrap();
    assert_eq!(recipe.adapter, None);
}

#[test]
fn mistakes_in_recipe_files_are_named() {
    let recipe = |rest: &str| {
        message(read_recipe(&format!(
            "model: ./base
data: {{train: train.jsonl}}
{rest}"
        )))
    };
    insta::assert_snapshot!(recipe("adapter: {rnak: 8}"), @"recipe.yaml:3:11: unknown key `adapter.rnak`; did you mean `rank`?");
    insta::assert_snapshot!(recipe("adapter: {rank: 0}"), @"recipe.yaml:3:17: key `adapter.rank`: `0` is not legal for `rank`; write a whole number from 1 to 4096");
    insta::assert_snapshot!(recipe("adapter: {rank: eight}"), @"recipe.yaml:3:17: key `adapter.rank`: found `eight`; write a whole number, 0 or more");
    insta::assert_snapshot!(recipe("adapter: {target_modules: everything}"), @"recipe.yaml:3:27: key `adapter.target_modules`: write one of all-linear, attention, mlp, or a list of module names");
    insta::assert_snapshot!(recipe("adapter: {target_modules: []}"), @"recipe.yaml:3:11: key `adapter.target_modules`: `` is not legal for `target_modules`; write one of all-linear, attention, mlp, or a list of module names (one set is `[[q_proj, v_proj]]`)");
    insta::assert_snapshot!(recipe("optimizer: {kind: adam}"), @"recipe.yaml:3:19: key `optimizer.kind`: found `adam`; write one of adamw, sgd, adamw_8bit, paged_adamw, paged_adamw_8bit, lion, lion_8bit, adafactor, muon, adamw_schedulefree");
    insta::assert_snapshot!(recipe("optimizer: {learning_rate: -1e-4}"), @"recipe.yaml:3:28: key `optimizer.learning_rate`: `-1e-4` is not legal for `learning_rate`; write a number above 0");
    insta::assert_snapshot!(recipe("precision: bfloat16"), @"recipe.yaml:3:12: key `precision`: found `bfloat16`; write one of fp32, bf16, fp16, int8, nf4, nf4_double");
    insta::assert_snapshot!(recipe("training: {length: {steps: 0}}"), @"recipe.yaml:3:12: key `training.length`: a training of length zero learns nothing; write a number above 0");
    insta::assert_snapshot!(recipe("space: {rank: [1, 2]}"), @"recipe.yaml:3:1: unknown key `space`; write one of model, data, adapter, precision, activation_quantization, weight_sparsity, quantization_aware, precision_schedule, batch, gradient_checkpointing, optimizer, schedule, training");
    insta::assert_snapshot!(message(read_recipe("model: ./nowhere
data: {train: train.jsonl}
")), @"recipe.yaml:1:8: key `model`: there is no model directory ./nowhere; correct the path (it is relative to the folder of this file)");
}
