//! Files for other tools, held against golden ones. `scripts/peers/exports.py` reads the golden files with the real
//! tools; after a wanted change, write them again with `UPDATE_GOLDEN=1 cargo test --test it export` and run it again.

use std::path::{Path, PathBuf};

use peft_tune::export::{ExportError, ExportFormat, write};
use peft_tune::space::{ReadOptions, RecipeFile};
use peft_tune::tools::Tool;
use peft_tune::tools::export::{AnswerMarks, ExportInput, Exported, Known, RenderError, Warning};
use peft_tune::tools::import::parse_recipe;
use peft_tune_core::architecture::Architecture;
use peft_tune_core::recipe::{
    AdapterBias, AdapterInit, AdapterSettings, Checkpointing, DataFormat, DataSettings, HeldOut, LongRows,
    OptimizerKind, OptimizerOffload, Precision, Recipe, ScheduleKind, Sharding, TargetModules, TargetPreset,
    TrainedRows, TrainingLength,
};
use peft_tune_core::study::{Metrics, TrialNumber};

fn data() -> DataSettings {
    DataSettings {
        train: "/data/train.jsonl".into(),
        held_out: HeldOut::Fraction(0.1),
        format: DataFormat::Messages,
        ..DataSettings::default()
    }
}

/// A plain LoRA recipe: what most searches end in.
pub(crate) fn lora() -> Recipe {
    let mut recipe = Recipe::new("Qwen/Qwen2.5-0.5B", data());
    recipe.adapter = Some(AdapterSettings {
        target_modules: TargetModules::Preset(TargetPreset::Attention),
        ..AdapterSettings::default()
    });
    recipe.optimizer.learning_rate = 2e-5;
    recipe.batch.gradient_accumulation = 4;
    recipe.schedule.warmup = 0.03;
    recipe
}

/// QLoRA with everything set that TRL can say.
pub(crate) fn qlora() -> Recipe {
    let mut recipe = Recipe::new("/models/base", data());
    recipe.data.format = DataFormat::PromptCompletion;
    recipe.data.held_out = HeldOut::File("/data/held_out.jsonl".into());
    recipe.data.train = ["/data/train.jsonl", "/data/more.jsonl"]
        .map(Into::into)
        .to_vec()
        .into();
    recipe.data.max_rows = Some(5000);
    recipe.precision = Precision::Nf4Double;
    recipe.adapter = Some(AdapterSettings {
        rank: 8,
        alpha: 12.5,
        dropout: 0.05,
        target_modules: TargetModules::Named(vec!["q_proj".into(), "v_proj".into()]),
        rslora: true,
        dora: true,
        modules_to_save: vec!["lm_head".into()],
        ..AdapterSettings::default()
    });
    recipe.batch.packing = true;
    recipe.batch.sequence_length = 512;
    recipe.gradient_checkpointing = Checkpointing::Offload;
    recipe.optimizer.kind = OptimizerKind::PagedAdamW8bit;
    recipe.optimizer.max_grad_norm = None;
    recipe.optimizer.weight_decay = 0.01;
    recipe.schedule.kind = ScheduleKind::Constant;
    recipe.schedule.warmup = 0.1;
    recipe.training.length = TrainingLength::Steps(200);
    recipe.training.shuffle = false;
    recipe.training.seed = 42;
    recipe
}

/// Settings that the targets cannot say, each of which must be told.
pub(crate) fn odd() -> Recipe {
    let mut recipe = Recipe::new("/models/base", data());
    recipe.data.train = "/data/train.txt".into();
    recipe.data.format = DataFormat::Text;
    recipe.precision = Precision::Fp32;
    recipe.adapter = Some(AdapterSettings {
        init: AdapterInit::Pissa,
        bias: AdapterBias::LoraOnly,
        rank_pattern: [("q_proj".into(), 4)].into(),
        alpha_pattern: [("q_proj".into(), 8.0)].into(),
        layers_to_transform: Some(vec![0, 1]),
        ..AdapterSettings::default()
    });
    recipe.gradient_checkpointing = Checkpointing::EVERY_SECOND;
    recipe.optimizer.kind = OptimizerKind::Sgd;
    recipe.optimizer.nesterov = true;
    recipe.optimizer.loraplus_ratio = Some(16.0);
    recipe.schedule.kind = ScheduleKind::Linear;
    recipe.training.length = TrainingLength::Tokens(100_000);
    recipe
}

/// Updates on the host, which other tools leave to DeepSpeed.
pub(crate) fn offload() -> Recipe {
    let mut recipe = lora();
    recipe.optimizer.kind = OptimizerKind::AdamW;
    recipe.optimizer.offload = OptimizerOffload::Host;
    recipe
}

/// The dimensions of a reference model.
fn architecture(name: &str) -> Architecture {
    let path = format!(
        "{}/tests/golden/ref_{name}/model/config.json",
        env!("CARGO_MANIFEST_DIR")
    );
    Architecture::from_config(Path::new(&path)).unwrap()
}

fn export(recipe: &Recipe, format: ExportFormat, directory: &Path) -> Result<Exported, ExportError> {
    export_again(recipe, format, directory, false)
}

/// Exports as [`export`] does, in place of an earlier one.
pub(crate) fn export_again(
    recipe: &Recipe,
    format: ExportFormat,
    directory: &Path,
    force: bool,
) -> Result<Exported, ExportError> {
    let qwen2 = architecture("qwen2");
    let known = Known {
        architecture: Some(&qwen2),
        trained: Some(TrainedRows {
            rows: 900,
            tokens: 90_000,
        }),
        ..Known::default()
    };
    export_over(recipe, format, directory, known, force)
}

fn export_over(
    recipe: &Recipe,
    format: ExportFormat,
    directory: &Path,
    known: Known<'_>,
    force: bool,
) -> Result<Exported, ExportError> {
    let metrics = Metrics::from([
        ("throughput", 5438.2),
        ("peak_memory", 2.5 * (1u64 << 30) as f64),
        ("loss", 2.3051),
    ]);
    let reasons = ["it is the knee of the front:\n  less memory costs 30% throughput".to_owned()];
    let input = ExportInput {
        recipe,
        study: "first try",
        trial: TrialNumber(12),
        metrics: &metrics,
        reasons: &reasons,
        known,
    };
    write(format, &input, directory, force)
}

fn golden(case: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden/exports")
        .join(case)
}

/// Exports in every format and compares each file, and the warnings, with the golden ones.
fn check(case: &str, recipe: &Recipe) {
    let folder = tempfile::tempdir().unwrap();
    let mut told = String::new();
    let mut names = vec!["warnings.txt".to_owned()];
    for format in ExportFormat::all() {
        let exported = match export(recipe, format, folder.path()) {
            Ok(exported) => exported,
            Err(error) => {
                told.push_str(&format!("{format}: refused: {error}\n"));
                continue;
            }
        };
        for warning in exported.warnings {
            told.push_str(&format!("{format}: {warning}\n"));
        }
        let files = exported
            .files
            .iter()
            .map(|path| path.file_name().unwrap().to_str().unwrap().to_owned());
        names.extend(files);
    }
    std::fs::write(folder.path().join("warnings.txt"), told).unwrap();
    for name in names {
        let text = std::fs::read_to_string(folder.path().join(&name)).unwrap();
        let text = text.replace(folder.path().to_str().unwrap(), "/exported");
        let kept = golden(case).join(&name);
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::create_dir_all(golden(case)).unwrap();
            std::fs::write(&kept, &text).unwrap();
        }
        assert_eq!(text, std::fs::read_to_string(&kept).unwrap(), "{}", kept.display());
    }
}

#[test]
fn dropout_that_only_the_tool_obeys_is_told() {
    let mut seed_oss = architecture("seed_oss");
    for dropout in [vec![], vec![("residual_dropout", 0.1)]] {
        seed_oss.dropout = dropout;
        let (folder, is_told) = (tempfile::tempdir().unwrap(), !seed_oss.dropout.is_empty());
        let known = Known {
            architecture: Some(&seed_oss),
            ..Known::default()
        };
        let trl = ExportFormat::Tool(Tool::Trl);
        let exported = export_over(&lora(), trl, folder.path(), known, false).unwrap();
        let told = |warning: &Warning| warning.field == "model" && warning.message.contains("`residual_dropout: 0.1`");
        assert_eq!(exported.warnings.iter().any(told), is_told);
        let text = std::fs::read_to_string(&exported.files[0]).unwrap();
        assert_eq!(text.contains("`residual_dropout: 0.1`"), is_told);
    }
}

#[test]
fn a_plain_recipe_is_written_for_every_tool() {
    check("lora", &lora());
}

#[test]
fn a_quantized_recipe_is_written_for_every_tool() {
    check("qlora", &qlora());
}

#[test]
fn what_a_tool_cannot_say_is_told() {
    check("odd", &odd());
}

#[test]
fn updates_on_the_host_are_written_for_every_tool() {
    check("offload", &offload());
}

#[test]
fn an_exported_recipe_is_read_back_unchanged() {
    for recipe in [lora(), qlora(), odd(), offload()] {
        let folder = tempfile::tempdir().unwrap();
        let exported = export(&recipe, ExportFormat::Recipe, folder.path()).unwrap();
        let again = RecipeFile::read_with(&exported.files[0], ReadOptions { check_files: false }).unwrap();
        assert_eq!(again, recipe);
    }
}

#[test]
fn a_recipe_without_adapter_has_nothing_to_say_to_peft() {
    let folder = tempfile::tempdir().unwrap();
    let recipe = Recipe {
        adapter: None,
        ..lora()
    };
    let error = export(&recipe, ExportFormat::Tool(Tool::Peft), folder.path()).unwrap_err();
    assert!(matches!(error, ExportError::Tool(RenderError::NoAdapter { .. })));
    assert!(!folder.path().join("adapter_config.json").exists());
    let exported = export(&recipe, ExportFormat::Tool(Tool::Trl), folder.path()).unwrap();
    let text = std::fs::read_to_string(&exported.files[0]).unwrap();
    assert!(text.contains("use_peft: false\n"));
}

#[test]
fn an_optimizer_that_a_tool_lacks_is_refused_by_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let mut recipe = lora();
    recipe.optimizer.kind = OptimizerKind::Muon;
    for format in [ExportFormat::Tool(Tool::Trl), ExportFormat::Tool(Tool::Unsloth)] {
        let error = export(&recipe, format, folder.path()).unwrap_err().to_string();
        let expected =
            format!("{format} has no optimizer `muon`; use --format recipe, peft, axolotl, llamafactory, torchtune");
        assert!(error.starts_with(&expected), "{error}");
    }
    let text = |format| {
        let exported = export(&recipe, format, folder.path()).unwrap();
        std::fs::read_to_string(&exported.files[0]).unwrap()
    };
    assert!(text(ExportFormat::Tool(Tool::Axolotl)).contains("optimizer: muon\n"));
    assert!(text(ExportFormat::Tool(Tool::LlamaFactory)).contains("use_muon: true\n"));
    assert!(text(ExportFormat::Tool(Tool::Torchtune)).contains("torch.optim.Muon"));
}

#[test]
fn every_optimizer_has_its_name_in_the_file() {
    let folder = tempfile::tempdir().unwrap();
    for kind in OptimizerKind::ALL {
        let mut recipe = lora();
        recipe.optimizer.kind = kind;
        let words = Tool::Trl.optimizer_words(kind).unwrap_or_default();
        let Some(name) = words
            .iter()
            .find_map(|(key, value)| value.as_str().filter(|_| *key == "optim"))
        else {
            continue;
        };
        let folder = folder.path().join(kind.name());
        for (format, key) in [
            (ExportFormat::Tool(Tool::Trl), "optim"),
            (ExportFormat::Tool(Tool::Axolotl), "optimizer"),
            (ExportFormat::Tool(Tool::LlamaFactory), "optim"),
        ] {
            let exported = export(&recipe, format, &folder).unwrap();
            let text = std::fs::read_to_string(&exported.files[0]).unwrap();
            assert!(text.contains(&format!("{key}: {name}\n")), "{format}: {text}");
        }
    }
}

#[test]
fn a_schedule_has_its_arguments_in_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let mut recipe = lora();
    recipe.training.length = TrainingLength::Steps(200);
    recipe.schedule.kind = ScheduleKind::Wsd;
    recipe.schedule.min_lr_rate = Some(0.05);
    let arguments = ["num_decay_steps: 20", "decay_type: cosine", "min_lr_ratio: 0.05"];
    let kwargs = format!("lr_scheduler_kwargs: {{{}}}\n", arguments.join(", "));
    let python = r#"lr_scheduler_kwargs={"num_decay_steps":20,"decay_type":"cosine","min_lr_ratio":0.05},"#.to_owned();
    let keys = format!(
        "get_wsd_schedule\n  num_warmup_steps: 6\n  {}\n",
        arguments.join("\n  ")
    );
    for (format, expected) in [
        (ExportFormat::Tool(Tool::Trl), &kwargs),
        (ExportFormat::Tool(Tool::Axolotl), &kwargs),
        (ExportFormat::Tool(Tool::LlamaFactory), &kwargs),
        (ExportFormat::Tool(Tool::Torchtune), &keys),
        (ExportFormat::Tool(Tool::Unsloth), &python),
    ] {
        let exported = export(&recipe, format, &folder.path().join(format.to_string())).unwrap();
        let text = std::fs::read_to_string(&exported.files[0]).unwrap();
        assert!(text.contains(expected), "{format}: {text}");
        assert!(
            exported
                .warnings
                .iter()
                .all(|warning| !warning.field.starts_with("schedule")
                    || warning.message.starts_with("needs the transformers"))
        );
    }
}

#[test]
fn a_warm_up_is_written_as_every_version_of_axolotl_takes_it() {
    let folder = tempfile::tempdir().unwrap();
    let mut recipe = lora();
    recipe.training.length = TrainingLength::Steps(200);
    for (warmup, line, is_told) in [
        (0.0, "warmup_ratio: 0.000000001", false),
        (1.0, "warmup_steps: 2", true),
        (3.0, "warmup_steps: 3", false),
    ] {
        recipe.schedule.warmup = warmup;
        let folder = folder.path().join(warmup.to_string());
        let exported = export(&recipe, ExportFormat::Tool(Tool::Axolotl), &folder).unwrap();
        let text = std::fs::read_to_string(&exported.files[0]).unwrap();
        assert!(text.contains(&format!("{line}\n")), "{text}");
        let mut warnings = exported.warnings.iter();
        assert_eq!(warnings.any(|one| one.field == "schedule.warmup"), is_told, "{text}");
    }
    // A share, where nobody knows of how many steps: axolotl rounds it down.
    (recipe.training.length, recipe.schedule.warmup) = (TrainingLength::Epochs(1.0), 0.05);
    let qwen2 = architecture("qwen2");
    let known = Known {
        architecture: Some(&qwen2),
        ..Known::default()
    };
    let folder = folder.path().join("share");
    let exported = export_over(&recipe, ExportFormat::Tool(Tool::Axolotl), &folder, known, false).unwrap();
    let text = std::fs::read_to_string(&exported.files[0]).unwrap();
    assert!(text.contains("warmup_ratio: 0.05\n"), "{text}");
    let mut warnings = exported.warnings.iter();
    assert!(
        warnings.any(|one| one.message.contains("whole steps of a share")),
        "{text}"
    );
}

#[test]
fn a_schedule_free_optimizer_has_no_schedule_in_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let mut recipe = lora();
    recipe.training.length = TrainingLength::Steps(200);
    recipe.optimizer.kind = OptimizerKind::AdamWScheduleFree;
    let exported = export(&recipe, ExportFormat::Tool(Tool::Trl), &folder.path().join("trl")).unwrap();
    let text = std::fs::read_to_string(&exported.files[0]).unwrap();
    for line in [
        "optim: schedule_free_adamw",
        "lr_scheduler_type: constant",
        "warmup_steps: 6",
    ] {
        assert!(text.contains(&format!("{line}\n")), "{text}");
    }
    // Its recipe never tells an optimizer that it evaluates.
    assert!(
        export(
            &recipe,
            ExportFormat::Tool(Tool::Torchtune),
            &folder.path().join("torchtune")
        )
        .is_err()
    );
}

#[test]
fn trl_gets_a_chat_template_with_marks_where_the_models_own_has_none() {
    let folder = tempfile::tempdir().unwrap();
    let recipe = lora();
    let written = AnswerMarks::Written("{% generation %}".to_owned());
    let export = |name: &str, marks| {
        let known = Known {
            marks,
            ..Known::default()
        };
        let directory = folder.path().join(name);
        let exported = export_over(&recipe, ExportFormat::Tool(Tool::Trl), &directory, known, false).unwrap();
        let text = std::fs::read_to_string(directory.join("trl_sft.yaml")).unwrap();
        let is_warned = exported.warnings.iter().any(|warning| warning.field == "data.loss_on");
        (directory.join("chat_template.jinja"), text, is_warned)
    };
    let (template, text, is_warned) = export("written", Some(&written));
    assert_eq!(std::fs::read_to_string(&template).unwrap(), "{% generation %}");
    assert!(
        text.contains(&format!("chat_template_path: {}", template.display())) && !is_warned,
        "{text}"
    );
    let (template, text, is_warned) = export("own", Some(&AnswerMarks::Own));
    assert!(
        !template.exists() && !text.contains("chat_template_path") && !is_warned,
        "{text}"
    );
    let (template, text, is_warned) = export("unknown", None);
    assert!(
        !template.exists() && !text.contains("chat_template_path") && is_warned,
        "{text}"
    );
}

#[test]
fn trl_evaluates_held_out_files_by_a_card_and_splits_of_the_hub_by_their_names() {
    let folder = tempfile::tempdir().unwrap();
    let export_with = |name: &str, change: &dyn Fn(&mut DataSettings)| {
        let mut recipe = lora();
        recipe.data.held_out = HeldOut::File("/data/held_out.jsonl".into());
        change(&mut recipe.data);
        let directory = folder.path().join(name);
        let exported = export(&recipe, ExportFormat::Tool(Tool::Trl), &directory).unwrap();
        let told = exported
            .warnings
            .iter()
            .find(|warning| warning.field == "data.held_out");
        let text = std::fs::read_to_string(directory.join("trl_sft.yaml")).unwrap();
        let card = std::fs::read_to_string(directory.join("trl_data/README.md")).ok();
        (text, card, told.map(ToString::to_string))
    };
    let (text, card, told) = export_with("files", &|data| {
        data.train = ["/data/a.jsonl", "/data/b.json"].map(Into::into).to_vec().into();
    });
    let named = format!("dataset_name: {}", folder.path().join("files/trl_data").display());
    for line in [
        named.as_str(),
        "dataset_train_split: train",
        "dataset_test_split: test",
        "eval_strategy: epoch",
        "per_device_eval_batch_size: 4",
    ] {
        assert!(text.contains(&format!("{line}\n")), "{line}: {text}");
    }
    assert!(!text.contains("datasets:") && told.is_none(), "{text}");
    let expected = "---\nconfigs:\n- config_name: default\n  data_files:\n  - split: train\n    path: [\"/data/a.jsonl\",\"/data/b.json\"]\n  \
                    - split: test\n    path: [\"/data/held_out.jsonl\"]\n---\n";
    assert!(card.as_ref().is_some_and(|card| card.starts_with(expected)), "{card:?}");

    let (text, card, told) = export_with("hub", &|data| {
        data.train = "hf://datasets/owner/rows:en".into();
        data.held_out = HeldOut::File("hf://datasets/owner/rows:en/test_sft".into());
    });
    let splits =
        "dataset_name: owner/rows\ndataset_config: en\ndataset_train_split: train\ndataset_test_split: test_sft\n";
    assert!(text.contains(splits) && card.is_none() && told.is_none(), "{text}");

    // What it takes no held-out files beside is told in one line.
    type Change<'a> = &'a dyn Fn(&mut DataSettings);
    let changes: [(&str, Change); 3] = [
        ("rows", &|data| data.max_rows = Some(10)),
        ("kinds", &|data| data.train = "/data/train.parquet".into()),
        ("both", &|data| data.train = "hf://datasets/owner/rows".into()),
    ];
    for (name, change) in changes {
        let (text, card, told) = export_with(name, change);
        assert!(
            text.contains("datasets:") && text.contains("eval_strategy: \"no\""),
            "{text}"
        );
        assert!(
            card.is_none() && told.is_some_and(|told| told.contains("evaluate afterwards")),
            "{name}"
        );
    }
}

#[test]
fn long_rows_that_are_left_out_are_said_to_axolotl_and_told_of_other_tools() {
    let folder = tempfile::tempdir().unwrap();
    let mut recipe = lora();
    recipe.data.long_rows = LongRows::Drop;
    let export_to = |format: ExportFormat| {
        let exported = export(&recipe, format, &folder.path().join(format.to_string())).unwrap();
        let mut told = exported.warnings.iter();
        let told = told.find(|warning| warning.field == "data.long_rows");
        let text = std::fs::read_to_string(&exported.files[0]).unwrap();
        (text, told.map(ToString::to_string))
    };
    for (format, line) in [
        (ExportFormat::Tool(Tool::Axolotl), "excess_length_strategy: drop\n"),
        (ExportFormat::Recipe, "long_rows: drop\n"),
    ] {
        let (text, told) = export_to(format);
        assert!(text.contains(line) && told.is_none(), "{format}: {text}");
    }
    for format in [
        ExportFormat::Tool(Tool::Trl),
        ExportFormat::Tool(Tool::LlamaFactory),
        ExportFormat::Tool(Tool::Torchtune),
        ExportFormat::Tool(Tool::Unsloth),
    ] {
        let (_, told) = export_to(format);
        assert!(told.is_some_and(|told| told.contains("are cut there")), "{format}");
    }
}

#[test]
fn torchtune_trains_the_steps_of_the_trials_where_it_reads_token_ids() {
    let folder = tempfile::tempdir().unwrap();
    // 900 rows in micro-batches of 4.
    let export_to = |format: DataFormat, length: TrainingLength, accumulation: usize| {
        let mut recipe = lora();
        (recipe.data.format, recipe.training.length) = (format, length);
        recipe.batch.gradient_accumulation = accumulation;
        recipe.data.held_out = HeldOut::Files(Vec::new());
        let exported = export_again(&recipe, ExportFormat::Tool(Tool::Torchtune), folder.path(), true).unwrap();
        let told = exported
            .warnings
            .into_iter()
            .filter(|warning| warning.field == "training.length");
        let told: Vec<_> = told.map(|warning| warning.message).collect();
        (std::fs::read_to_string(&exported.files[0]).unwrap(), told.join("\n"))
    };
    let (tokens, epochs, steps) = (DataFormat::Tokenized, TrainingLength::Epochs, TrainingLength::Steps);
    let repeated = |count: u64| format!("  passes: {count}\n  shuffle: true\n  seed: 0\n");
    let filled = "  batch_size: \"${batch_size}\"\n  accumulation: \"${gradient_accumulation_steps}\"\n";
    let unshuffled = "shuffle: false\nepochs: 1\nmax_steps_per_epoch: ";
    // 57 steps an epoch, the last of 4 rows.
    for (length, passes, count) in [(epochs(1.0), 1, 57), (epochs(1.5), 2, 86), (steps(200), 4, 200)] {
        let (text, told) = export_to(tokens, length, 4);
        assert!(text.contains(&(repeated(passes) + filled)), "{text}");
        assert!(
            text.contains(&format!("\n{unshuffled}{count}\n")) && told.is_empty(),
            "{text}"
        );
    }
    // Steps that are whole need no other order, and 45 of 20 rows are an epoch.
    for (length, accumulation, keys) in [
        (steps(50), 4, "epochs: 1\nmax_steps_per_epoch: 50\n"),
        (epochs(2.0), 5, "epochs: 2\nmax_steps_per_epoch: null\n"),
    ] {
        let (text, told) = export_to(tokens, length, accumulation);
        assert!(text.contains(&format!("\nshuffle: true\n{keys}")), "{text}");
        assert!(!text.contains("passes") && told.is_empty(), "{text}");
    }
    let (text, _) = export_to(tokens, epochs(1.0), 400);
    assert!(
        text.contains(&(repeated(1) + filled)) && text.contains("max_steps_per_epoch: 1\n"),
        "{text}"
    );
    // How many packs the rows make is not known before, so they are repeated until they fill the steps.
    let mut packed = lora();
    (packed.data.format, packed.batch.packing) = (tokens, true);
    packed.data.held_out = HeldOut::Files(Vec::new());
    let exported = export_again(&packed, ExportFormat::Tool(Tool::Torchtune), folder.path(), true).unwrap();
    let packs = std::fs::read_to_string(&exported.files[0]).unwrap();
    let steps = packs
        .lines()
        .find_map(|line| line.strip_prefix("max_steps_per_epoch: "))
        .unwrap();
    assert!(
        steps != "null" && packs.contains(&format!("  steps: {steps}\n  shuffle: true\n  seed: 0\n{filled}")),
        "{packs}"
    );
    assert!(
        exported
            .warnings
            .iter()
            .any(|warning| warning.message.contains("the same steps hold fewer rows"))
    );
    assert!(text.contains("_component_: peft_tune_rows.Padding\n") && text.contains("# in this folder: tune run"));
    assert!(folder.path().join("peft_tune_rows.py").is_file());
    // What torchtune reads by itself it cannot repeat.
    let (text, told) = export_to(DataFormat::Messages, epochs(1.0), 4);
    assert!(
        text.contains("\nshuffle: true\nepochs: 1\nmax_steps_per_epoch: null\n"),
        "{text}"
    );
    assert!(told.contains("57 steps become 56"), "{told}");
    let (_, told) = export_to(DataFormat::Messages, epochs(1.0), 300);
    assert!(told.contains("trains nothing"), "{told}");
}

#[test]
fn what_peft_itself_refuses_is_refused_here() {
    let folder = tempfile::tempdir().unwrap();
    for change in [
        |adapter: &mut AdapterSettings| adapter.dora = true,
        |adapter: &mut AdapterSettings| adapter.init = AdapterInit::Pissa,
    ] {
        let mut recipe = lora();
        let adapter = recipe.adapter.as_mut().unwrap();
        adapter.lora_bias = true;
        change(adapter);
        let error = export(&recipe, ExportFormat::Tool(Tool::Peft), folder.path()).unwrap_err();
        assert!(matches!(
            error,
            ExportError::Tool(RenderError::Refused {
                field: "adapter.lora_bias",
                ..
            })
        ));
    }
}

#[test]
fn updates_on_the_host_are_said_where_a_tool_can_and_told_where_not() {
    let folder = tempfile::tempdir().unwrap();
    let mut recipe = offload();
    let export_to = |recipe: &Recipe, format: ExportFormat, name: &str| {
        let folder = folder.path().join(name).join(format.to_string());
        let exported = export(recipe, format, &folder).unwrap();
        let mut told = exported.warnings.into_iter();
        let told = told.find(|warning| warning.field == "optimizer.offload");
        let text = std::fs::read_to_string(&exported.files[0]).unwrap();
        let more = std::fs::read_to_string(folder.join("deepspeed.json")).ok();
        (text, more, told.map(|warning| warning.message))
    };
    for format in [
        ExportFormat::Tool(Tool::Trl),
        ExportFormat::Tool(Tool::Axolotl),
        ExportFormat::Tool(Tool::LlamaFactory),
    ] {
        let (text, file, told) = export_to(&recipe, format, "adamw");
        assert!(text.contains("deepspeed: deepspeed.json"), "{text}");
        assert!(told.unwrap().contains("needs the deepspeed package"));
        let file: serde_json::Value = serde_json::from_str(&file.unwrap()).unwrap();
        let expected = serde_json::json!({"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": true}});
        assert_eq!(file["zero_optimization"], expected);
        assert_eq!(file["optimizer"]["type"], "AdamW");
        assert_eq!(file["gradient_clipping"], "auto");
        // What is read back names the key that says it here.
        let imported = parse_recipe(Path::new("config.yaml"), &text, None).unwrap();
        assert!(
            imported
                .notes
                .iter()
                .any(|note| note.contains("`optimizer_offload: host`")),
            "{imported:?}"
        );
    }
    let (text, file, told) = export_to(&recipe, ExportFormat::Tool(Tool::Torchtune), "adamw");
    let component = "optimizer:\n  _component_: torchao.optim.CPUOffloadOptimizer\n";
    assert!(text.contains(component) && file.is_none(), "{text}");
    assert!(told.unwrap().contains("torchao"));
    let (_, file, told) = export_to(&recipe, ExportFormat::Tool(Tool::Unsloth), "adamw");
    assert!(file.is_none() && told.unwrap().contains("no optimizer that updates on the host"));
    let (text, ..) = export_to(&recipe, ExportFormat::Recipe, "adamw");
    assert!(text.contains("offload: host"), "{text}");
    // DeepSpeed and torchao have it for AdamW alone.
    recipe.optimizer.kind = OptimizerKind::Lion8bit;
    for format in [
        ExportFormat::Tool(Tool::Trl),
        ExportFormat::Tool(Tool::Axolotl),
        ExportFormat::Tool(Tool::LlamaFactory),
        ExportFormat::Tool(Tool::Torchtune),
    ] {
        let (text, file, told) = export_to(&recipe, format, "lion");
        assert!(
            !text.contains("deepspeed") && !text.contains("CPUOffload") && file.is_none(),
            "{text}"
        );
        assert!(told.unwrap().contains("train with `peft-tune train`"), "{format}");
    }
}

#[test]
fn weights_that_devices_share_out_are_said_where_a_tool_can_and_told_where_not() {
    let folder = tempfile::tempdir().unwrap();
    let mut recipe = lora();
    recipe.optimizer.kind = OptimizerKind::AdamW;
    (recipe.batch.devices, recipe.batch.sharding) = (4, Sharding::Full);
    let export_to = |recipe: &Recipe, format: ExportFormat| {
        let folder = folder.path().join(recipe.precision.name()).join(format.to_string());
        let exported = export(recipe, format, &folder).unwrap();
        let told = exported
            .warnings
            .into_iter()
            .find(|warning| warning.field == "batch.sharding");
        let text = std::fs::read_to_string(&exported.files[0]).unwrap();
        (text, told.map(|warning| warning.message))
    };
    let (text, told) = export_to(&recipe, ExportFormat::Tool(Tool::Axolotl));
    let expected = "fsdp_version: 2\nfsdp_config:\n  auto_wrap_policy: TRANSFORMER_BASED_WRAP\n  state_dict_type: FULL_STATE_DICT\n  \
                    reshard_after_forward: true\n  offload_params: false\n";
    assert!(text.contains(expected) && told.is_none(), "{text}");
    // What it wrote is told to need a number of devices when it is read.
    let imported = parse_recipe(Path::new("axolotl.yaml"), &text, None).unwrap();
    assert!(imported.recipe.batch.sharding.is_none());
    assert!(
        imported
            .notes
            .iter()
            .any(|note| note.contains("write `devices` and `sharding: full`")),
        "{imported:?}"
    );
    let in_trl = "fsdp: true\nfsdp_config:\n  version: 2\n  auto_wrap_policy: TRANSFORMER_BASED_WRAP\n  reshard_after_forward: true\n";
    let (text, told) = export_to(&recipe, ExportFormat::Tool(Tool::Trl));
    assert!(
        text.contains(in_trl) && !text.contains("quant_storage") && told.is_none(),
        "{text}"
    );
    for (format, said) in [
        (
            ExportFormat::Tool(Tool::LlamaFactory),
            "accelerate launch --use_fsdp --fsdp_version 2",
        ),
        (ExportFormat::Tool(Tool::Torchtune), "`lora_finetune_distributed`"),
        (ExportFormat::Tool(Tool::Unsloth), "all weights on each device"),
    ] {
        let (text, told) = export_to(&recipe, format);
        assert!(!text.contains("fsdp_config"), "{format}: {text}");
        assert!(told.is_some_and(|told| told.contains(said)), "{format}");
    }
    // Four bits are shared out in the form of numbers.
    recipe.precision = Precision::Nf4;
    let (text, told) = export_to(&recipe, ExportFormat::Tool(Tool::Trl));
    let storage = "bnb_4bit_quant_storage: bfloat16\n";
    assert!(
        text.contains(in_trl) && text.contains(storage) && told.is_none(),
        "{text}"
    );
    recipe.precision = Precision::Int8;
    for tool in [Tool::Axolotl, Tool::Trl] {
        let (text, told) = export_to(&recipe, ExportFormat::Tool(tool));
        assert!(
            !text.contains("fsdp_config") && told.unwrap().contains("neither int8 weights"),
            "{text}"
        );
    }
    let (text, _) = export_to(&recipe, ExportFormat::Recipe);
    assert!(text.contains("sharding: full"), "{text}");
}
