//! The quickstart's assets: what the kept generator writes, small, and fit to learn from.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use candle_core::Device;
use peft_tune::space::{StudyFile, recipe_for};
use peft_tune_core::recipe::{AdapterSettings, DataSettings, HeldOut, Precision, Recipe};
use peft_tune_engine::data::{PreparedData, evaluation_batches};
use peft_tune_engine::hub::TokenizerFiles;
use peft_tune_engine::tokenizer::Tokenizer;
use peft_tune_engine::{BaseModel, Trainer};

#[path = "../../examples/make_quickstart/texts/mod.rs"]
#[expect(
    dead_code,
    reason = "the generator's corpus for the base model is the example's alone"
)]
mod texts;
#[path = "../../examples/make_quickstart/tokenizer.rs"]
mod tokenizer;

fn quickstart() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("search_spaces/quickstart")
}

fn read(name: &str) -> String {
    let path = quickstart().join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn rows_are_what_the_generator_writes() {
    let rows = texts::TaskRows::standard();
    assert!(
        read("train.jsonl") == texts::to_jsonl(&rows.train),
        "run the example make_quickstart again"
    );
    assert!(
        read("held_out.jsonl") == texts::to_jsonl(&rows.held_out),
        "run the example make_quickstart again"
    );
}

#[test]
fn the_tokenizer_is_what_the_generator_trains() {
    let folder = tempfile::tempdir().unwrap();
    tokenizer::write(&tokenizer::train().unwrap(), folder.path()).unwrap();
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        let made = std::fs::read_to_string(folder.path().join(name)).unwrap();
        assert!(
            made == read(&format!("base/{name}")),
            "{name}: run the example make_quickstart again"
        );
    }
}

/// `peft-tune quickstart`, with options of `search`, in an empty folder.
fn started(folder: &Path, arguments: &[&str]) -> std::process::Output {
    let mut command = crate::program();
    command.arg("quickstart").args(arguments).current_dir(folder);
    command.env("PEFT_TUNE_DB", folder.join("study.db")).output().unwrap()
}

#[test]
fn the_program_has_the_quickstart_in_itself() {
    let folder = tempfile::tempdir().unwrap();
    let output = started(folder.path(), &["--dry-run"]);
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    assert!(told.contains("peft-tune-quickstart/quickstart.yaml"), "{told}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("quickstart"));
    let written = folder.path().join("peft-tune-quickstart");
    for name in [
        "base/config.json",
        "base/model.safetensors",
        "base/tokenizer.json",
        "train.jsonl",
        "held_out.jsonl",
    ] {
        let content = std::fs::read(written.join("quickstart").join(name)).unwrap();
        assert!(content == std::fs::read(quickstart().join(name)).unwrap(), "{name}");
    }
    // Again over the same files, but never over others.
    assert!(
        started(folder.path(), &["--output", "peft-tune-quickstart", "--dry-run"])
            .status
            .success()
    );
    std::fs::write(written.join("quickstart.yaml"), "study: mine\n").unwrap();
    let output = started(folder.path(), &["--dry-run"]);
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{told}");
    assert!(told.contains("other content") && told.contains("--output"), "{told}");
    assert_eq!(
        std::fs::read_to_string(written.join("quickstart.yaml")).unwrap(),
        "study: mine\n"
    );
}

#[test]
fn a_mistyped_option_writes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let output = started(folder.path(), &["--no-such-flag"]);
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{told}");
    assert!(told.contains("--no-such-flag"), "{told}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn the_assets_are_small() {
    let files = [
        "base/model.safetensors",
        "base/tokenizer.json",
        "train.jsonl",
        "held_out.jsonl",
    ];
    let bytes: u64 = files
        .map(|name| quickstart().join(name).metadata().unwrap().len())
        .iter()
        .sum();
    assert!(bytes < 3_000_000, "{bytes}");
}

#[test]
fn no_row_is_cut_and_only_answers_are_targets() {
    let data = data();
    assert!(data.warnings().is_empty(), "{:?}", data.warnings());
    assert_eq!((data.train().len(), data.held_out().len()), (2000, 200));
    let document = data.held_out().document(0).to_document();
    let targets: Vec<u32> = document
        .labels
        .iter()
        .filter_map(|label| u32::try_from(*label).ok())
        .collect();
    let rows = texts::TaskRows::standard();
    let (_, answer) = &rows.held_out[0][1];
    assert_eq!(shipped_tokenizer().decode(&targets, true).unwrap().trim_end(), answer);
}

/// The base model has read conversations laid out as the chat template does it.
#[test]
fn the_chat_template_is_what_the_base_model_has_read() {
    let chat = texts::BaseCorpus::training().find(|document| matches!(document, texts::Document::Chat(_)));
    let trained = tokenizer::encode(&tokenizer::train().unwrap(), &chat.clone().unwrap()).unwrap();
    let Some(texts::Document::Chat(messages)) = chat else {
        panic!("the corpus has conversations");
    };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.jsonl");
    std::fs::write(&path, texts::to_jsonl(&[messages])).unwrap();
    let settings = DataSettings {
        train: vec![path.clone()].into(),
        held_out: HeldOut::File(path),
        ..DataSettings::default()
    };
    let data = PreparedData::prepare(&settings, &shipped_tokenizer(), 512, 0, None).unwrap();
    let [seen @ .., _end_of_text] = trained.as_slice() else {
        panic!("a document is not empty");
    };
    assert_eq!(data.train().document(0).input_ids, seen);
}

/// The base model cannot speak Oskel; an adapter learns much of it from a few hundred rows.
#[test]
fn an_adapter_learns_the_task() {
    let base = BaseModel::load(&quickstart().join("base"), Precision::Fp32, &Device::Cpu).unwrap();
    let mut recipe = Recipe::new("quickstart", DataSettings::default());
    recipe.adapter = Some(AdapterSettings {
        rank: 16,
        ..AdapterSettings::default()
    });
    recipe.optimizer.learning_rate = 1e-2;
    let data = data();
    let held_out: Vec<_> = evaluation_batches(data.held_out(), 20, Some(40)).collect();
    let steps = 30;
    let mut trainer = Trainer::new(Arc::new(base), &recipe, steps).unwrap();
    let before = trainer.evaluate(&held_out).unwrap();
    for batch in evaluation_batches(data.train(), 8, None).take(steps as usize) {
        trainer.step(&[batch]).unwrap();
    }
    let after = trainer.evaluate(&held_out).unwrap();
    assert!(after.loss < 0.6 * before.loss, "{before:?} {after:?}");
    assert!(after.accuracy > 2.0 * before.accuracy, "{before:?} {after:?}");
}

/// Every setting that the study file allows is a recipe on the shipped model and data.
#[test]
fn the_study_file_is_sound() {
    let path = quickstart().with_extension("yaml");
    let study = StudyFile::read(&path).unwrap_or_else(|error| panic!("{}", error.rendered(false)));
    assert_eq!(study.name, "quickstart");
    for point in 0..500u32 {
        let unit: Vec<f64> = (0..study.space.dimensions())
            .map(|axis| (f64::from(point) * (0.618 + 0.11 * axis as f64)).fract())
            .collect();
        recipe_for(&study, &study.space.params_at(&unit)).unwrap();
    }
}

/// The shipped rows as a training sees them.
fn data() -> PreparedData {
    let settings = DataSettings {
        train: vec![quickstart().join("train.jsonl")].into(),
        held_out: HeldOut::File(quickstart().join("held_out.jsonl")),
        ..DataSettings::default()
    };
    PreparedData::prepare(&settings, &shipped_tokenizer(), 128, 0, None).unwrap()
}

fn shipped_tokenizer() -> Tokenizer {
    let directory = quickstart().join("base");
    Tokenizer::open(&TokenizerFiles::resolve(directory.to_str().unwrap()).unwrap()).unwrap()
}
