//! Files of other tools as recipes: export, import and export again give the same file.

use std::path::{Path, PathBuf};

use peft_tune::export::ExportFormat;
use peft_tune::tools::Tool;
use peft_tune::tools::export::Exported;
use peft_tune::tools::import::{Imported, parse_recipe, read_recipe};
use peft_tune_core::recipe::settings::{SettingRow, settings};
use peft_tune_core::recipe::{
    AdapterInit, AttentionImplementation, Checkpointing, DataFormat, HeldOut, LongRows, LossOn, OptimizerKind,
    Precision, Recipe, ScheduleKind, TargetModules, TargetPreset, TemplateTargets, TrainingData, TrainingLength,
    TrainingSet,
};

use crate::export::{export_again, lora, odd, qlora};

/// The files of other tools.
fn tools() -> impl Iterator<Item = ExportFormat> {
    Tool::ALL.iter().copied().map(ExportFormat::Tool)
}

/// Text of the files, without comments: a rounding is told in the first export only.
fn said(exported: &Exported) -> Vec<String> {
    let files = exported
        .files
        .iter()
        .filter(|path| path.extension().is_none_or(|end| end != "txt"));
    files
        .map(|path| {
            let text = std::fs::read_to_string(path).unwrap();
            // TRL's own default, which is not written beside rows that it cannot read.
            let is_left = |line: &&str| !line.starts_with('#') && *line != "assistant_only_loss: false";
            let lines = text.lines().filter(is_left);
            lines.collect::<Vec<_>>().join("\n")
        })
        .collect()
}

/// Exports, imports, and exports again; `None` where the tool cannot say the recipe.
fn there_and_back(recipe: &Recipe, format: ExportFormat) -> Option<(Exported, Imported)> {
    let folder = tempfile::tempdir().unwrap();
    let exported = export_again(recipe, format, folder.path(), false).ok()?;
    let before = said(&exported);
    let imported = read_recipe(&exported.files[0], format.tool()).unwrap();
    let again = export_again(&imported.recipe, format, folder.path(), true).unwrap();
    assert_eq!(said(&again), before, "{format}");
    assert_eq!(imported.unread, [""; 0], "{format}");
    Some((exported, imported))
}

/// The value of a setting, presets by their modules.
fn value(row: &SettingRow, recipe: &Recipe) -> Option<String> {
    let mut recipe = recipe.clone();
    if let Some(adapter) = &mut recipe.adapter
        && let TargetModules::Preset(preset) = adapter.target_modules
    {
        let names = preset.row().modules.iter().map(|name| (*name).to_owned());
        adapter.target_modules = TargetModules::Named(names.collect());
    }
    (row.get)(&recipe).map(|value| value.to_string())
}

#[test]
fn export_import_and_export_is_the_identity_for_every_tool() {
    for (case, recipe) in [("lora", lora()), ("qlora", qlora()), ("odd", odd())] {
        for format in tools() {
            let (exported, imported) = there_and_back(&recipe, format).unwrap();
            // What both know is the same; of what was changed on the way out, the export has warned.
            let is_told = |row: &SettingRow| exported.warnings.iter().any(|warning| warning.field == row.field);
            for row in settings().filter(|row| imported.said.contains(row.name) && !is_told(row)) {
                // Fractions of a length are steps in other tools, rsLoRA a factor of alpha, `none` of a default a number.
                let is_counted = ["warmup", "beta2"].contains(&row.name);
                let is_scaled = format == ExportFormat::Tool(Tool::Torchtune) && row.name == "alpha";
                if !is_counted && !is_scaled {
                    let (was, is) = (value(row, &recipe), value(row, &imported.recipe));
                    assert_eq!(is, was, "{case}, {format}: {}", row.name);
                }
            }
        }
    }
}

#[test]
fn data_and_length_come_back_as_far_as_a_tool_says_them() {
    for format in tools().filter(|format| *format != ExportFormat::Tool(Tool::Peft)) {
        let (_, imported) = there_and_back(&qlora(), format).unwrap();
        let (back, recipe) = (imported.recipe, qlora());
        assert_eq!(back.model, recipe.model, "{format}");
        assert_eq!(back.data.train, recipe.data.train, "{format}");
        assert_eq!(back.data.format, recipe.data.format, "{format}");
        assert_eq!(
            (back.data.max_rows, back.data.loss_on),
            (Some(5000), LossOn::Completions)
        );
        assert_eq!((back.training.seed, back.training.shuffle), (42, false), "{format}");
        let says_files = ![ExportFormat::Tool(Tool::Trl), ExportFormat::Tool(Tool::Torchtune)].contains(&format);
        let held_out = if says_files {
            recipe.data.held_out
        } else {
            HeldOut::Files(Vec::new())
        };
        assert_eq!(back.data.held_out, held_out, "{format}");
        let (_, imported) = there_and_back(&lora(), format).unwrap();
        assert_eq!(imported.recipe.data.held_out, HeldOut::Fraction(0.1), "{format}");
        assert_eq!(imported.recipe.training.length, TrainingLength::Epochs(1.0), "{format}");
    }
}

#[test]
fn chats_of_axolotl_are_learnt_as_it_learns_them() {
    let (_, imported) = there_and_back(&lora(), ExportFormat::Tool(Tool::Axolotl)).unwrap();
    assert_eq!(imported.recipe.data.template_targets, TemplateTargets::StopTokens);
    let (_, imported) = there_and_back(&qlora(), ExportFormat::Tool(Tool::Axolotl)).unwrap();
    assert_eq!(imported.recipe.data.template_targets, TemplateTargets::All);
}

#[test]
fn held_out_files_come_back_from_trl() {
    let cases: [(&[&str], &str); 2] = [
        (&["/data/a.jsonl", "/data/b.jsonl"], "/data/held_out.jsonl"),
        (
            &["hf://datasets/owner/rows:en/train_sft"],
            "hf://datasets/owner/rows:en/test_sft",
        ),
    ];
    for (train, held_out) in cases {
        let mut recipe = lora();
        recipe.data.train = train.iter().map(PathBuf::from).collect::<Vec<_>>().into();
        recipe.data.held_out = HeldOut::File(held_out.into());
        let (_, imported) = there_and_back(&recipe, ExportFormat::Tool(Tool::Trl)).unwrap();
        assert_eq!(imported.recipe.data.train, recipe.data.train);
        assert_eq!(imported.recipe.data.held_out, recipe.data.held_out);
    }
}

#[test]
fn a_data_set_of_the_hub_is_named_and_read_back() {
    let tools = [
        (ExportFormat::Tool(Tool::Trl), "path: owner/rows"),
        (ExportFormat::Tool(Tool::Axolotl), "path: owner/rows"),
        (ExportFormat::Tool(Tool::LlamaFactory), "dataset: train"),
        (ExportFormat::Tool(Tool::Torchtune), "source: owner/rows"),
    ];
    for address in ["hf://datasets/owner/rows", "hf://datasets/owner/rows:en/train_sft"] {
        for (format, part) in tools {
            let mut recipe = lora();
            recipe.data.train = address.into();
            let (_, imported) = there_and_back(&recipe, format).unwrap();
            let folder = tempfile::tempdir().unwrap();
            let exported = export_again(&recipe, format, folder.path(), false).unwrap();
            let text = std::fs::read_to_string(&exported.files[0]).unwrap();
            assert!(text.replace('"', "").contains(part), "{format}: {text}");
            assert!(!text.contains("hf://"), "{format}: {text}");
            assert_eq!(imported.recipe.data.train, recipe.data.train, "{format}");
        }
    }
    // A revision that a tool cannot say is told, and a second data set where it loads one only.
    let mut recipe = lora();
    recipe.data.train = "hf://datasets/owner/rows@v1".into();
    for format in [ExportFormat::Tool(Tool::Trl), ExportFormat::Tool(Tool::LlamaFactory)] {
        let (exported, _) = there_and_back(&recipe, format).unwrap();
        let is_told = exported.warnings.iter().any(|warning| warning.field == "data.train");
        assert!(is_told, "{format}");
    }
    recipe.data.train = ["hf://datasets/owner/rows@v1", "/data/more.jsonl"]
        .map(Into::into)
        .to_vec()
        .into();
    let folder = tempfile::tempdir().unwrap();
    let error = export_again(&recipe, ExportFormat::Tool(Tool::Torchtune), folder.path(), false).unwrap_err();
    assert!(error.to_string().contains("data.train"), "{error}");
}

#[test]
fn a_mixture_is_said_where_a_tool_mixes_and_refused_by_name_elsewhere() {
    let mut recipe = lora();
    recipe.data.format = DataFormat::Messages;
    let set = |file: &str, weight| TrainingSet {
        files: vec![file.into()],
        weight,
    };
    recipe.data.train = TrainingData::Mixture(vec![set("/data/a.jsonl", 0.7), set("/data/b.jsonl", 0.3)]);
    for (format, parts) in [
        (ExportFormat::Tool(Tool::Trl), ["fraction: 0.7", "fraction: 0.3"]),
        (
            ExportFormat::Tool(Tool::LlamaFactory),
            ["mix_strategy: interleave_over", "interleave_probs: \"0.7,0.3\""],
        ),
        (
            ExportFormat::Tool(Tool::Unsloth),
            ["interleave_datasets(", "probabilities=[0.7, 0.3]"],
        ),
    ] {
        let (exported, imported) = there_and_back(&recipe, format).unwrap();
        assert_eq!(imported.recipe.data.train, recipe.data.train, "{format}");
        assert_eq!(imported.recipe.data.held_out, recipe.data.held_out, "{format}");
        assert_eq!(imported.data_notes, [""; 0], "{format}");
        assert!(
            exported.warnings.iter().any(|warning| warning.field == "data.train"),
            "{format}"
        );
        let folder = tempfile::tempdir().unwrap();
        let exported = export_again(&recipe, format, folder.path(), false).unwrap();
        let text = std::fs::read_to_string(&exported.files[0]).unwrap();
        assert!(parts.iter().all(|part| text.contains(part)), "{format}: {text}");
    }
    let folder = tempfile::tempdir().unwrap();
    for format in [ExportFormat::Tool(Tool::Axolotl), ExportFormat::Tool(Tool::Torchtune)] {
        let error = export_again(&recipe, format, folder.path(), false)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("refuses `data.train`") && error.contains("knows no weights"),
            "{error}"
        );
    }
    // Its held-out files are mixed by the weights of others.
    recipe.data.held_out = HeldOut::File("/data/held_out.jsonl".into());
    let error = export_again(&recipe, ExportFormat::Tool(Tool::LlamaFactory), folder.path(), false).unwrap_err();
    assert!(error.to_string().contains("refuses `data.held_out`"), "{error}");
    // A file of such a tool that says something else.
    let path = folder.path().join("trl.yaml");
    let text = "model_name_or_path: m\ndatasets:\n  - {path: json, data_files: a.jsonl, fraction: 0.5}\n  - {path: json, data_files: b.jsonl}\n";
    std::fs::write(&path, text).unwrap();
    let imported = read_recipe(&path, Some(Tool::Trl)).unwrap();
    assert_eq!(imported.recipe.data.train.sets(), []);
    assert!(
        imported.data_notes[0].contains("has no share above 0 for each of the 2 data sets"),
        "{imported:?}"
    );
}

#[test]
fn every_row_of_the_tables_comes_back() {
    let mut changes: Vec<(&str, Recipe)> = Vec::new();
    let mut change = |field: &'static str, with: &dyn Fn(&mut Recipe)| {
        let mut recipe = lora();
        recipe.training.length = TrainingLength::Steps(200);
        with(&mut recipe);
        changes.push((field, recipe));
    };
    for kind in OptimizerKind::ALL {
        change("optimizer.kind", &|recipe| recipe.optimizer.kind = kind);
    }
    for kind in ScheduleKind::ALL {
        for warmup in [0.0, 0.1] {
            change("schedule.kind", &|recipe| {
                (recipe.schedule.kind, recipe.schedule.warmup) = (kind, warmup);
                recipe.schedule.min_lr_rate = Some(0.25);
            });
        }
    }
    for precision in Precision::ALL {
        change("precision", &|recipe| recipe.precision = precision);
    }
    for form in [Checkpointing::None, Checkpointing::Full, Checkpointing::Offload] {
        change("gradient_checkpointing", &|recipe| recipe.gradient_checkpointing = form);
    }
    for init in AdapterInit::ALL {
        change("adapter.init", &|recipe| recipe.adapter.as_mut().unwrap().init = init);
    }
    for preset in TargetPreset::ALL {
        change("adapter.target_modules", &|recipe| {
            recipe.adapter.as_mut().unwrap().target_modules = TargetModules::Preset(preset);
        });
    }
    for format in [
        DataFormat::Messages,
        DataFormat::Sharegpt,
        DataFormat::Alpaca,
        DataFormat::PromptCompletion,
        DataFormat::Text,
        DataFormat::Tokenized,
    ] {
        for loss_on in [LossOn::Completions, LossOn::All] {
            change("data.format", &|recipe| {
                (recipe.data.format, recipe.data.loss_on) = (format, loss_on)
            });
        }
    }
    change("batch.group_by_length", &|recipe| recipe.batch.group_by_length = true);
    for depth in [0, 1, 5] {
        change("batch.prefetch_depth", &|recipe| recipe.batch.prefetch_depth = depth);
    }
    for kind in AttentionImplementation::ALL {
        for packing in [false, true] {
            change("torch.attn_implementation", &|recipe| {
                (recipe.torch.attn_implementation, recipe.batch.packing) = (kind, packing);
            });
        }
    }
    change("torch.torch_compile", &|recipe| recipe.torch.torch_compile = true);
    change("torch.use_liger_kernel", &|recipe| recipe.torch.use_liger_kernel = true);
    for (readers, depth) in [(1, 2), (3, 2), (3, 6)] {
        change("torch.dataloader_num_workers", &|recipe| {
            (recipe.torch.dataloader_num_workers, recipe.batch.prefetch_depth) = (readers, depth);
        });
    }
    change("data.tokenizing_workers", &|recipe| {
        recipe.data.tokenizing_workers = Some(3)
    });
    change("data.long_rows", &|recipe| recipe.data.long_rows = LongRows::Drop);
    change("training.evaluate_every", &|recipe| {
        recipe.training.evaluate_every = Some(50)
    });
    change("adapter", &|recipe| recipe.adapter = None);
    let mut read = 0;
    for (field, recipe) in &changes {
        for format in tools() {
            let Some((exported, imported)) = there_and_back(recipe, format) else {
                continue;
            };
            let row = settings().find(|row| row.field == *field);
            let is_told = exported.warnings.iter().any(|warning| warning.field == *field);
            if let Some(row) = row.filter(|row| imported.said.contains(row.name) && !is_told) {
                assert_eq!(value(row, &imported.recipe), value(row, recipe), "{field}, {format}");
                read += 1;
            }
        }
    }
    assert!(read > 100, "{read}");
}

#[test]
fn what_cannot_be_taken_over_is_named_with_what_to_do() {
    let of = |name: &str, text: &str| parse_recipe(Path::new(name), text, None);
    let noted = |name: &str, text: &str| {
        let imported = of(name, text).unwrap();
        (
            [imported.notes, imported.data_notes].concat().join("\n"),
            imported.unread,
        )
    };
    let (notes, unread) = noted(
        "a.yaml",
        "base_model: m\nadapter: lora\nlora_r: 8\noptimizer: warp_drive\nchat_template: chatml\ndatasets:\n  - path: set\n    \
         type: poem\n    odd: 3\nwarp_factor: 9\nwandb_project: x\nlogging_steps: 1\nnew_flag: false\n",
    );
    for part in [
        "`optimizer: warp_drive`",
        "`datasets.path: set`",
        "--data",
        "`chat_template: chatml`",
        "`datasets.type: poem`",
    ] {
        assert!(notes.contains(part), "{part}: {notes}");
    }
    assert_eq!(unread, ["datasets.odd", "warp_factor"]);
    // What is trained there otherwise than here is told in a line for each key; what is the same is not.
    let trained = |roles: &str, ends: &str, beside: &str| {
        let text = format!(
            "base_model: m\nadapter: lora\nlora_r: 8\noptimizer: adamw_bnb_8bit\ndatasets:\n  - path: rows.jsonl\n    ds_type: json\n    \
             type: chat_template\n{roles}{ends}{beside}"
        );
        let imported = of("a.yaml", &text).unwrap();
        assert_eq!(imported.recipe.optimizer.kind, OptimizerKind::AdamW8bit);
        assert_eq!(imported.unread, [""; 0]);
        let told = imported.notes.into_iter().filter(|note| note.contains("carried over"));
        (imported.recipe.data.loss_on, told.collect::<Vec<String>>())
    };
    let same = (LossOn::Completions, Vec::<String>::new());
    assert_eq!(trained("", "", ""), same);
    let assistant = "    roles_to_train: [assistant]\n";
    assert_eq!(trained(assistant, "    train_on_eos: turn\n", ""), same);
    let all = "    roles_to_train: [system, user, assistant]\n";
    let is_told = trained(all, "    train_on_eos: all\n", "");
    assert_eq!(is_told, (LossOn::All, Vec::<String>::new()));
    for (roles, ends, beside, parts) in [
        (
            "    roles_to_train: [user]\n",
            "",
            "train_on_eos: none\n",
            &[
                "`roles_to_train: [user]` is not carried over: axolotl trains on the turns of these roles alone",
                "and here the answers are trained on",
                "`train_on_eos: none` is not carried over: axolotl trains on no end of a turn, and here each answer is",
            ][..],
        ),
        (
            assistant,
            "    train_on_eos: last\n",
            "",
            &["axolotl trains on the end of the last turn alone"][..],
        ),
        (
            "    roles_to_train: [user, assistant]\n",
            "",
            "",
            &[
                "`roles_to_train: [user, assistant]` is not carried over",
                "the turns of all roles are trained on",
            ][..],
        ),
    ] {
        let (_, notes) = trained(roles, ends, beside);
        assert!(notes.iter().all(|note| !note.contains('\n')), "{notes:?}");
        let notes = notes.join("\n");
        assert!(parts.iter().all(|part| notes.contains(part)), "{notes}");
    }
    let (notes, _) = noted(
        "a.yaml",
        "base_model: m\nadapter: lora\nlora_r: 8\noptimizer: paged_lion_8bit\n",
    );
    let told = "`optimizer: paged_lion_8bit` has no paged form here: lion_8bit is taken";
    assert!(notes.contains(told), "{notes}");
    for (name, text, parts) in [
        (
            "l.yaml",
            "stage: rm\nmodel_name_or_path: m\n",
            ["`stage: rm`", "scores answers"],
        ),
        (
            "l.yaml",
            "stage: sft\nfinetuning_type: oft\n",
            ["`finetuning_type: oft`", "orthogonal adapters"],
        ),
        (
            "l.yaml",
            "stage: sft\nfinetuning_type: prompt\n",
            ["`finetuning_type`", "lora or full"],
        ),
        (
            "l.yaml",
            "stage: sft\nlearning_rate: fast\n",
            ["`learning_rate`", "a number"],
        ),
        (
            "l.yaml",
            "stage: sft\nlora_dropout: 1.5\n",
            ["`lora_dropout`", "below 1"],
        ),
        ("p.json", "{\"peft_type\": \"IA3\"}", ["`peft_type`", "LORA"]),
        ("q.yaml", "x: 1\n", ["tells its tool", "q.yaml"]),
    ] {
        let error = of(name, text).unwrap_err().to_string();
        assert!(parts.iter().all(|part| error.contains(part)), "{text}: {error}");
    }
}

#[test]
fn what_becomes_of_long_rows_is_read_of_axolotl_alone() {
    for long_rows in [LongRows::Cut, LongRows::Drop] {
        let mut recipe = lora();
        recipe.data.long_rows = long_rows;
        for format in tools() {
            let (_, imported) = there_and_back(&recipe, format).unwrap();
            let expected = match format {
                ExportFormat::Tool(Tool::Axolotl) => long_rows,
                _ => LongRows::Cut,
            };
            assert_eq!(imported.recipe.data.long_rows, expected, "{format}");
        }
    }
    let of = |line: &str| {
        let text = format!("base_model: m\nadapter: lora\nlora_r: 8\n{line}");
        let imported = parse_recipe(Path::new("a.yaml"), &text, Some(Tool::Axolotl)).unwrap();
        assert_eq!(imported.unread, [""; 0]);
        let told = imported.notes.into_iter().filter(|note| note.contains("excess_length"));
        (imported.recipe.data.long_rows, told.collect::<Vec<String>>().join("\n"))
    };
    assert_eq!(of(""), (LongRows::Drop, String::new()));
    assert_eq!(of("excess_length_strategy: drop\n"), (LongRows::Drop, String::new()));
    assert_eq!(of("excess_length_strategy: truncate\n"), (LongRows::Cut, String::new()));
    for (line, part) in [
        ("excess_length_strategy: raise\n", "here it is left out"),
        ("excess_length_strategy: fold\n", "`drop` is taken"),
    ] {
        let (long_rows, told) = of(line);
        assert!(long_rows == LongRows::Drop && told.contains(part), "{line}: {told}");
    }
}

#[test]
fn a_command_line_is_read_as_a_yaml_is() {
    let line = "trl sft --model_name_or_path org/m --use_peft --lora_r 4 --lora_target_modules q_proj v_proj \
                --learning_rate 1e-3 --per_device_train_batch_size=3 --dtype bfloat16 --dataset_name train.jsonl --max_steps 7";
    let recipe = parse_recipe(Path::new("run.sh"), line, None).unwrap().recipe;
    let adapter = recipe.adapter.unwrap();
    assert_eq!(
        (adapter.rank, recipe.batch.micro_batch, recipe.model.as_str()),
        (4, 3, "org/m")
    );
    assert_eq!(
        adapter.target_modules,
        TargetModules::Named(vec!["q_proj".into(), "v_proj".into()])
    );
    assert_eq!(
        (recipe.optimizer.learning_rate, recipe.training.length),
        (1e-3, TrainingLength::Steps(7))
    );
    assert_eq!(recipe.data.train, "train.jsonl".into());
}

#[test]
fn the_expression_of_a_multimodal_export_is_a_list_again() {
    use peft_tune_core::plan::expression_within;

    let names = ["q_proj", "mlp.down_proj"].map(str::to_owned).to_vec();
    for layers in [None, Some(vec![0, 3])] {
        let expression = expression_within(&names, layers.as_deref());
        let text = serde_json::json!({"peft_type": "LORA", "r": 4, "target_modules": expression}).to_string();
        let adapter = parse_recipe(Path::new("adapter_config.json"), &text, None)
            .unwrap()
            .recipe
            .adapter
            .unwrap();
        assert_eq!(adapter.target_modules, TargetModules::Named(names.clone()));
        assert_eq!(adapter.layers_to_transform, layers);
    }
    // Another one waits for the names of the model.
    let other = r#"{"peft_type": "LORA", "r": 4, "target_modules": ".*(q|v)_proj"}"#;
    let imported = parse_recipe(Path::new("adapter_config.json"), other, None).unwrap();
    assert_eq!(imported.expression.as_deref(), Some(".*(q|v)_proj"));
}
