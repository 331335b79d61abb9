//! Files that a trial in another stack trains from, asked for as its worker does: the file is what `export` writes, and
//! the rows are the engine's.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use arrow_array::cast::AsArray;
use arrow_array::types::{Int8Type, Int32Type, Int64Type};
use arrow_ipc::reader::StreamReader;
use peft_tune::space::{ReadOptions, RecipeFile};
use peft_tune_core::recipe::{
    DataFormat, DataSettings, HeldOut, OptimizerKind, OptimizerOffload, Precision, Recipe, Sharding, TargetModules,
    TargetPreset, TrainerKind, TrainingLength,
};
use peft_tune_engine::data::{BatchSource, PreparedData, evaluation_batches};
use peft_tune_engine::hub::TokenizerFiles;
use peft_tune_engine::tokenizer::Tokenizer;
use serde_json::{Value, json};

use crate::mocked::{errors_of, folder_with, peft_tune};

/// One trial whose settings are all fixed but for the learning rate.
const SPACE: &str = "study: own
model: ./base
data: {train: train.jsonl, held_out: held_out.jsonl}
objectives: [loss]
space: {rank: 4, learning_rate: [1e-3, 2e-3], micro_batch: 2, global_batch: 4, packing: false, precision: fp32}
trial: {sequence_length: 64, training_tokens: 300, evaluation: {rows: 4}}
confirm: none
budget: {trials: 1}
";

/// Keys of TRL's file that say which rows are read, and how.
const OF_ROWS: &[&str] = &[
    "dataset_name",
    "dataset_train_split",
    "dataset_test_split",
    "datasets",
    "chat_template_path",
    "assistant_only_loss",
];
/// Keys of TRL's file that say where the model is, how long the training is, or which trial it is.
const OF_TRIAL: &[&str] = &[
    "model_name_or_path",
    "num_train_epochs",
    "max_steps",
    "warmup_steps",
    "output_dir",
];

/// Ids and labels of a row.
type Row = (Vec<i64>, Vec<i64>);

/// A recipe for the quickstart's model and data.
fn quickstart() -> Recipe {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("search_spaces/quickstart");
    let data = DataSettings {
        train: vec![folder.join("train.jsonl")].into(),
        held_out: HeldOut::File(folder.join("held_out.jsonl")),
        ..DataSettings::default()
    };
    let mut recipe = Recipe::new(folder.join("base").to_str().unwrap(), data);
    recipe.precision = Precision::Fp32;
    recipe.batch.micro_batch = 2;
    recipe.batch.gradient_accumulation = 2;
    recipe.batch.sequence_length = 64;
    recipe
}

/// A plan that trains for `length` and evaluates on five rows.
fn training(length: &Value, seed_offset: u64) -> Value {
    let train = json!({"length": length, "evaluations": 1, "evaluation_rows": 5, "seed_offset": seed_offset});
    json!({"measure": {"steps": 2, "max_warmup_steps": 3}, "train": train})
}

/// Asks with these words on standard input.
fn ask(cache: &Path, request: &str) -> Output {
    let mut command = crate::program();
    command.arg("trial-files").env("PEFT_TUNE_CACHE", cache);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(request.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

/// The one line of an answer.
fn answer(cache: &Path, recipe: &Recipe, plan: &Value) -> Value {
    let request = json!({"tool": "trl", "recipe": recipe, "plan": plan});
    let output = ask(cache, &format!("{request}\n"));
    assert!(output.status.success(), "{}", errors_of(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.lines().count(), 1, "{text}");
    serde_json::from_str(&text).unwrap()
}

fn path(answer: &Value, field: &str) -> PathBuf {
    PathBuf::from(answer[field].as_str().unwrap())
}

/// The data of a recipe as the engine trains on them, made without a cache.
fn prepared(recipe: &Recipe) -> PreparedData {
    let tokenizer = Tokenizer::open(&TokenizerFiles::resolve(&recipe.model).unwrap()).unwrap();
    let (length, seed) = (recipe.batch.sequence_length, recipe.training.seed);
    PreparedData::prepare(&recipe.data, &tokenizer, length, seed, None).unwrap()
}

/// Rows of a stream, read as `datasets.Dataset.from_file` reads it.
fn rows(file: &Path) -> Vec<Row> {
    let reader = StreamReader::try_new(std::fs::File::open(file).unwrap(), None).unwrap();
    let schema = reader.schema();
    let names: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
    assert_eq!(names, ["input_ids", "attention_mask", "labels"]);
    let mut rows = Vec::new();
    for batch in reader {
        let batch = batch.unwrap();
        let column = |name: &str| batch.column_by_name(name).unwrap().as_list::<i32>().clone();
        let (ids, mask, labels) = (column("input_ids"), column("attention_mask"), column("labels"));
        for index in 0..batch.num_rows() {
            let ids = ids.value(index).as_primitive::<Int32Type>().values().to_vec();
            let mask = mask.value(index).as_primitive::<Int8Type>().values().to_vec();
            assert_eq!(mask, vec![1; ids.len()]);
            let labels = labels.value(index).as_primitive::<Int64Type>().values().to_vec();
            rows.push((ids.into_iter().map(i64::from).collect(), labels));
        }
    }
    rows
}

/// The keys of a file of TRL's, but for those named.
fn keys(yaml: &str, but: &[&[&str]]) -> BTreeMap<String, String> {
    let lines = yaml.lines().filter(|line| !line.starts_with(['#', ' ']));
    let pairs = lines.filter_map(|line| line.split_once(':'));
    let kept = pairs.filter(|(key, _)| !but.concat().contains(key));
    kept.map(|(key, value)| (key.to_owned(), value.trim().to_owned()))
        .collect()
}

#[test]
fn the_file_is_what_export_writes_but_for_rows_and_length() {
    let folder = folder_with(SPACE);
    let succeeds = |arguments: &[&str]| {
        let output = peft_tune(folder.path(), arguments);
        assert!(output.status.success(), "{arguments:?}: {}", errors_of(&output));
    };
    succeeds(&["search", "space.yaml"]);
    for format in ["trl", "recipe"] {
        succeeds(&["export", "--trial", "0", "--format", format, "--output", format]);
    }
    let exported = std::fs::read_to_string(folder.path().join("trl/trl_sft.yaml")).unwrap();
    let options = ReadOptions { check_files: false };
    let recipe = RecipeFile::read_with(&folder.path().join("recipe/recipe.yaml"), options).unwrap();

    let cache = folder.path().join("cache");
    let answer = answer(&cache, &recipe, &training(&json!({"steps": 30}), 0));
    let fields: Vec<&str> = answer.as_object().unwrap().keys().map(String::as_str).collect();
    let expected = [
        "config",
        "beside",
        "model",
        "train",
        "held_out",
        "trainer",
        "held_out_length",
        "steps",
        "steps_per_epoch",
        "epochs",
        "held_out_windows",
        "refused",
    ];
    assert_eq!(fields, expected);
    assert_eq!((&answer["steps"], &answer["refused"]), (&json!(30), &json!([])));
    assert_eq!(answer["beside"], json!({}));
    let model = path(&answer, "model");
    assert!(model.is_absolute() && model.join("config.json").is_file());
    for rows in ["train", "held_out"] {
        assert!(path(&answer, rows).is_file() && path(&answer, rows).starts_with(&cache));
    }

    let config = answer["config"].as_str().unwrap();
    let but = [OF_ROWS, OF_TRIAL];
    assert_eq!(keys(config, &but), keys(&exported, &but));
    let all = keys(config, &[]);
    assert_eq!(Path::new(&all["model_name_or_path"]), model);
    assert_eq!((&*all["max_steps"], &*all["lora_r"]), ("30", "4"));
    assert_eq!((&*all["per_device_train_batch_size"], &*all["max_length"]), ("2", "64"));
}

#[test]
fn layers_of_a_model_that_is_not_known_are_pefts_or_refused() {
    let folder = folder_with(SPACE);
    let config = folder.path().join("base/config.json");
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, text.replace("\"llama\"", "\"falcon_h1\"")).unwrap();
    let plan = training(&json!({"steps": 2}), 0);
    let answer_of = |targets: TargetModules| {
        let mut recipe = quickstart();
        recipe.model = folder.path().join("base").to_string_lossy().into_owned();
        recipe.adapter.as_mut().unwrap().target_modules = targets;
        answer(&folder.path().join("cache"), &recipe, &plan)
    };
    let all = answer_of(TargetModules::Preset(TargetPreset::AllLinear));
    assert_eq!(all["refused"], json!([]));
    assert!(all["config"].as_str().unwrap().contains("all-linear"), "{all}");
    let named = answer_of(TargetModules::Named(vec!["in_proj".into(), "q_proj".into()]));
    assert_eq!(named["refused"], json!([]));
    let mlp = answer_of(TargetModules::Preset(TargetPreset::Mlp));
    let refused = mlp["refused"][0].as_str().unwrap();
    assert!(
        refused.contains("`mlp`") && refused.contains("`falcon_h1`"),
        "{refused}"
    );
}

#[test]
fn rows_are_those_that_the_engine_trains_on_and_scores() {
    let cache = tempfile::tempdir().unwrap();
    let mut recipe = quickstart();
    recipe.batch.sequence_length = 32;
    recipe.data.held_out_length = Some(64);
    let answer = answer(cache.path(), &recipe, &training(&json!({"tokens": 2000}), 0));
    let data = prepared(&recipe);
    let train = data.train();
    let document = |index: usize| -> Row {
        let document = train.document(index);
        let mut labels: Vec<i64> = document.labels().collect();
        labels[0] = -100;
        (document.input_ids.into_iter().map(i64::from).collect(), labels)
    };
    let found = rows(&path(&answer, "train"));
    assert_eq!(found, (0..train.len()).map(document).collect::<Vec<Row>>());
    let held_out = data.held_out();
    let windows = (0..held_out.len()).flat_map(|index| held_out.windows(index));
    let windows = windows.map(|window| -> Row {
        let labels = window.labels().collect();
        (window.input_ids.into_iter().map(i64::from).collect(), labels)
    });
    assert_eq!(rows(&path(&answer, "held_out")), windows.collect::<Vec<Row>>());

    let source = BatchSource::of_recipe(&data, &recipe).unwrap();
    let steps = source.steps(TrainingLength::Tokens(2000));
    assert_eq!(answer["steps"], steps);
    assert_eq!(answer["epochs"], source.epochs_of(steps));
    assert_eq!(answer["steps_per_epoch"], found.len().div_ceil(4));
    assert_eq!(
        answer["held_out_windows"],
        evaluation_batches(held_out, 1, Some(5)).count()
    );
}

#[test]
fn trials_on_the_same_tokens_share_their_rows() {
    let cache = tempfile::tempdir().unwrap();
    let mut recipe = quickstart();
    recipe.data.held_out = HeldOut::Fraction(0.1);
    recipe.training.seed = (1 << 32) - 1;
    let plan = |seed_offset| training(&json!({"steps": 3}), seed_offset);
    let first = answer(cache.path(), &recipe, &plan(0));
    // What is there is not written again, whatever it is.
    std::fs::write(path(&first, "train"), "kept").unwrap();
    recipe.optimizer.learning_rate *= 2.0;
    let second = answer(cache.path(), &recipe, &plan(5));
    // Another seed holds out the same rows.
    assert_eq!(
        (&first["train"], &first["held_out"]),
        (&second["train"], &second["held_out"])
    );
    assert_eq!(std::fs::read_to_string(path(&second, "train")).unwrap(), "kept");
    let seed = |answer: &Value| keys(answer["config"].as_str().unwrap(), &[])["seed"].clone();
    assert_eq!((&*seed(&first), &*seed(&second)), ("4294967295", "4"));
    recipe.batch.sequence_length = 48;
    let other = answer(cache.path(), &recipe, &plan(0));
    assert_ne!(first["train"], other["train"]);
    assert!(rows(&path(&other, "train")).iter().all(|(ids, _)| ids.len() <= 48));
}

#[test]
fn preferences_are_texts_whose_tokens_the_trainer_makes() {
    let folder = tempfile::tempdir().unwrap();
    let pair = |number: usize| {
        // Nothing of the answers to the last prompt would be left within 64 tokens.
        let question = if number == 20 {
            "why ".repeat(100)
        } else {
            format!("what is {number}?")
        };
        json!({"question": question, "good": format!(" it is {number}"), "bad": " no", "source": "me"})
    };
    let lines: Vec<String> = (0..=20).map(|number| pair(number).to_string()).collect();
    let file = folder.path().join("pairs.jsonl");
    std::fs::write(&file, lines.join("\n")).unwrap();
    let mut recipe = quickstart();
    recipe.trainer = TrainerKind::Dpo;
    recipe.data = DataSettings {
        train: vec![file].into(),
        held_out: HeldOut::Fraction(0.3),
        format: DataFormat::Preference,
        columns: [("prompt", "question"), ("chosen", "good"), ("rejected", "bad")]
            .map(|(name, column)| (name.to_owned(), column.to_owned()))
            .into(),
        ..DataSettings::default()
    };
    let found = answer(folder.path(), &recipe, &training(&json!({"epochs": 1.0}), 0));
    assert_eq!(
        (&found["trainer"], &found["held_out_length"]),
        (&json!("dpo"), &json!(64))
    );
    let rows = |field: &str| -> Vec<Value> {
        let text = std::fs::read_to_string(path(&found, field)).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let (train, held_out, data) = (rows("train"), rows("held_out"), prepared(&recipe));
    assert_eq!(
        (train.len(), held_out.len()),
        (data.train().len(), data.held_out().len())
    );
    assert_eq!(found["held_out_windows"], json!(held_out.len().min(5)));
    assert_eq!(found["steps"], json!(train.len().div_ceil(4)));
    let of_file = |number: usize| {
        let row = pair(number);
        json!({"prompt": row["question"], "chosen": row["good"], "rejected": row["bad"]})
    };
    let wanted: BTreeSet<String> = (0..20).map(|number| of_file(number).to_string()).collect();
    let both: BTreeSet<String> = train.iter().chain(&held_out).map(Value::to_string).collect();
    assert_eq!((both, train.len() + held_out.len()), (wanted, 20));
    let config = found["config"].as_str().unwrap();
    assert!(
        config.contains("\nbeta: 0.1\n") && config.contains("\nmax_length: 64\n"),
        "{config}"
    );
    assert_eq!(found["refused"], json!([]));
    // Repeats have the same rows.
    let again = answer(folder.path(), &recipe, &training(&json!({"epochs": 1.0}), 1));
    assert_eq!(
        (&again["train"], &again["held_out"]),
        (&found["train"], &found["held_out"])
    );
}

#[test]
fn a_plan_without_a_training_takes_the_steps_of_its_profile_phase() {
    let cache = tempfile::tempdir().unwrap();
    let plan = json!({"measure": {"steps": 2, "max_warmup_steps": 3}, "train": null});
    let answer = answer(cache.path(), &quickstart(), &plan);
    assert_eq!(answer["steps"], 5);
    // Without a limit all held-out rows are scored.
    assert_eq!(answer["held_out_windows"], rows(&path(&answer, "held_out")).len());
}

#[test]
fn what_the_file_cannot_say_is_refused() {
    let cache = tempfile::tempdir().unwrap();
    let refused = |recipe: &Recipe| answer(cache.path(), recipe, &training(&json!({"steps": 3}), 0))["refused"].clone();
    let mut recipe = quickstart();
    recipe.optimizer.loraplus_ratio = Some(16.0);
    let why = "`optimizer.loraplus_ratio`: build the optimizer with peft.optimizers.create_loraplus_optimizer";
    assert_eq!(refused(&recipe), json!([why]));
    recipe = quickstart();
    (recipe.optimizer.kind, recipe.optimizer.offload) = (OptimizerKind::Sgd, OptimizerOffload::Host);
    let found = refused(&recipe);
    let reasons = found.as_array().unwrap();
    assert_eq!(reasons.len(), 1, "{found}");
    assert!(
        reasons[0].as_str().unwrap().starts_with("`optimizer.offload`: "),
        "{found}"
    );
}

#[test]
fn trials_on_several_devices_have_the_keys_and_the_files_of_the_engines_that_run_them() {
    let cache = tempfile::tempdir().unwrap();
    let plan = training(&json!({"steps": 3}), 0);
    let mut recipe = quickstart();
    (recipe.batch.devices, recipe.batch.sharding) = (2, Sharding::Full);
    let shared_out = answer(cache.path(), &recipe, &plan);
    assert_eq!(
        (&shared_out["refused"], &shared_out["beside"]),
        (&json!([]), &json!({}))
    );
    assert_eq!(keys(shared_out["config"].as_str().unwrap(), &[])["fsdp"], "true");
    // A step has the rows of both.
    let rows = rows(&path(&shared_out, "train")).len();
    assert_eq!(shared_out["steps_per_epoch"], rows.div_ceil(8));

    recipe = quickstart();
    recipe.optimizer.offload = OptimizerOffload::Host;
    let on_host = answer(cache.path(), &recipe, &plan);
    assert_eq!(on_host["refused"], json!([]));
    assert_eq!(
        keys(on_host["config"].as_str().unwrap(), &[])["deepspeed"],
        "deepspeed.json"
    );
    let file: Value = serde_json::from_str(on_host["beside"]["deepspeed.json"].as_str().unwrap()).unwrap();
    assert_eq!(file["zero_optimization"]["stage"], 2);
}

#[test]
fn bad_input_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("cache");
    let (recipe, plan) = (quickstart(), training(&json!({"steps": 3}), 0));
    let of = |tool: &str, recipe: &Recipe, plan: &Value| {
        format!("{}\n", json!({"tool": tool, "recipe": recipe, "plan": plan}))
    };
    let (mut no_model, mut no_rows) = (recipe.clone(), recipe.clone());
    no_model.model = "/nowhere/base".into();
    no_rows.data.train = vec![PathBuf::from("/nowhere/rows.jsonl")].into();
    let cases = [
        (String::new(), "standard input holds no trial"),
        ("garbage\n".into(), "standard input holds no trial"),
        ("{\"tool\": \"trl\"}\n".into(), "missing field `recipe`"),
        (of("megatron", &recipe, &plan), "there is no stack `megatron`"),
        (of("axolotl", &recipe, &plan), "no worker trains in axolotl"),
        (of("trl", &recipe, &json!({})), "neither measures nor trains"),
        (of("trl", &no_model, &plan), "/nowhere/base"),
        (of("trl", &no_rows, &plan), "/nowhere/rows.jsonl"),
    ];
    for (request, why) in cases {
        let output = ask(&cache, &request);
        let said = errors_of(&output);
        assert_eq!(output.status.code(), Some(2), "{request}: {said}");
        assert!(said.contains(why) && output.stdout.is_empty(), "{request}: {said}");
    }
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let output = ask(&file.join("cache"), &of("trl", &recipe, &plan));
    let said = errors_of(&output);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("PEFT_TUNE_CACHE"), "{said}");
}
