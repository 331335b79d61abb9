//! Recipe files: written, read back, refused.

use std::path::Path;

use peft_tune::space::{ReadOptions, RecipeFile, SpaceError, recipe_for};
use peft_tune_core::recipe::{Recipe, TrainingLength};

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
fn counts_of_a_recipe_take_units() {
    let recipe = read_recipe(
        "model: ./base
data: {train: train.jsonl, max_rows: 1.5M, held_out_length: 2k}
batch: {micro_batch: 1k, gradient_accumulation: 2k, sequence_length: 4k, prefetch_depth: 1k}
schedule: {kind: wsd, warmup: 1k, decay: 1.2k}
training: {length: {tokens: 200k}, evaluate_every: 3k, evaluation_rows: 1k}
",
    )
    .unwrap();
    assert_eq!(recipe.training.length, TrainingLength::Tokens(200_000));
    assert_eq!(recipe.training.evaluate_every, Some(3000));
    assert_eq!(recipe.training.evaluation_rows, Some(1000));
    assert_eq!(recipe.data.max_rows, Some(1_500_000));
    assert_eq!(recipe.data.held_out_length, Some(2000));
    let batch = &recipe.batch;
    assert_eq!((batch.micro_batch, batch.gradient_accumulation), (1000, 2000));
    assert_eq!((batch.sequence_length, batch.prefetch_depth), (4000, 1000));
    assert_eq!((recipe.schedule.warmup, recipe.schedule.decay), (1000.0, Some(1200.0)));
    // Written out, it has plain numbers.
    let text = RecipeFile::to_yaml(&recipe).unwrap();
    assert!(text.contains("tokens: 200000"), "{text}");
    let options = ReadOptions { check_files: false };
    let again = RecipeFile::parse(Path::new("/tmp/recipe.yaml"), &text, options).unwrap();
    assert_eq!(again, recipe, "{text}");
    let short = |rest: &str| read_recipe(&format!("model: ./base\ndata: {{train: train.jsonl}}\n{rest}"));
    let recipe = short("training: {length: {steps: 2k}}\nschedule: {warmup: 0.03}").unwrap();
    assert_eq!(recipe.training.length, TrainingLength::Steps(2000));
    assert_eq!(recipe.schedule.warmup, 0.03);
    let mistake = |rest: &str| message(short(rest));
    insta::assert_snapshot!(mistake("training: {length: {tokens: 1.0005k}}"), @"recipe.yaml:3:29: key `training.length.tokens`: found `1.0005k`; write a whole number, such as 60000, 60k or 1.5M");
    insta::assert_snapshot!(mistake("training: {length: {steps: 0k}}"), @"recipe.yaml:3:12: key `training.length`: a training of length zero learns nothing; write a number above 0");
    insta::assert_snapshot!(mistake("batch: {sequence_length: -2}"), @"recipe.yaml:3:26: key `batch.sequence_length`: found the number -2; write a whole number, such as 60000, 60k or 1.5M");
    insta::assert_snapshot!(mistake("schedule: {warmup: long}"), @"recipe.yaml:3:20: key `schedule.warmup`: found `long`; write a number of steps, such as 200 or 2k, or a fraction of them below 1");
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
    insta::assert_snapshot!(recipe("training: {length: auto}"), @"recipe.yaml:3:20: key `training.length`: `auto` is a length that a search finds, and a recipe trains at once: write {epochs: 1}, {tokens: 2M} or {steps: 500}, or export the recommendation of a study with `length: auto`");
    insta::assert_snapshot!(recipe("space: {rank: [1, 2]}"), @"recipe.yaml:3:1: unknown key `space`; write one of model, data, adapter, precision, activation_quantization, weight_sparsity, quantization_aware, precision_schedule, batch, gradient_checkpointing, optimizer, schedule, training, torch, trainer, beta, reference");
    insta::assert_snapshot!(message(read_recipe("model: ./nowhere
data: {train: train.jsonl}
")), @"recipe.yaml:1:8: key `model`: there is no model directory ./nowhere; correct the path (it is relative to the folder of this file)");
}
