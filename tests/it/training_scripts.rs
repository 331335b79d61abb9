//! Scripts and notebooks that train, as `init --from` and `plan --check` read them: a table of small ones with what is right.

use std::path::{Path, PathBuf};
use std::process::Output;

use peft_tune::space::{ReadOptions, StudyFile};
use peft_tune::tools::import::{Imported, read_recipe};
use peft_tune_core::recipe::settings::setting;
use peft_tune_core::recipe::{HeldOut, TrainingLength};

/// Folder of the scripts.
const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/scripts");

/// A script, what is right of it, and what `init` says.
struct Case {
    file: &'static str,
    /// Settings and parts of the recipe, as [`field`] names them.
    fields: &'static [(&'static str, &'static str)],
    told: &'static [&'static str],
    /// Arguments that `init` needs beside the script.
    more: &'static [&'static str],
}

const fn case(
    file: &'static str,
    fields: &'static [(&'static str, &'static str)],
    told: &'static [&'static str],
) -> Case {
    let more = &[];
    Case {
        file,
        fields,
        told,
        more,
    }
}

const fn with_rows(case: Case) -> Case {
    Case {
        more: &["--data", "train.jsonl"],
        ..case
    }
}

const CASES: &[Case] = &[
    case(
        "unsloth_variables.py",
        &[
            ("tool", "unsloth"),
            ("model", "base"),
            ("rank", "32"),
            ("alpha", "64"),
            ("target_modules", "q_proj,v_proj"),
            ("sequence_length", "1024"),
            ("precision", "nf4_double"),
            ("micro_batch", "2"),
            ("learning_rate", "2e-4"),
            ("length", "60 steps"),
            ("seed", "7"),
            ("train", "train.jsonl"),
        ],
        &["no held-out rows are named"],
    ),
    with_rows(case(
        "unsloth_other_names.py",
        &[
            ("rank", "8"),
            ("alpha", "8"),
            ("precision", "bf16"),
            ("sequence_length", "512"),
        ],
        &["unsloth_other_names.py:9: no trainer is made in the script"],
    )),
    case(
        "unsloth_if_false.py",
        &[
            ("rank", "4"),
            ("alpha", "4"),
            ("train", "train.jsonl"),
            ("sequence_length", "256"),
        ],
        &[],
    ),
    case(
        "unsloth_defaults.py",
        &[
            ("rank", "16"),
            ("alpha", "16"),
            ("dropout", "0"),
            (
                "target_modules",
                "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj",
            ),
            ("precision", "nf4_double"),
            ("gradient_checkpointing", "offload"),
            ("sequence_length", "2048"),
            ("micro_batch", "4"),
            ("gradient_accumulation", "2"),
            ("optimizer", "adamw_8bit"),
            ("weight_decay", "0.001"),
            ("warmup", "0.1"),
            ("learning_rate", "5e-5"),
            ("seed", "3407"),
        ],
        &[],
    ),
    case(
        "unsloth_training_arguments.py",
        &[
            ("micro_batch", "8"),
            ("gradient_accumulation", "1"),
            ("optimizer", "adamw"),
            ("weight_decay", "0"),
            ("warmup", "5"),
            ("schedule", "cosine"),
            ("gradient_checkpointing", "full"),
            ("sequence_length", "512"),
            ("precision", "nf4_double"),
            ("length", "1 epochs"),
        ],
        &["bfloat16 is assumed"],
    ),
    case(
        "unsloth_full.py",
        &[("rank", "none"), ("precision", "bf16"), ("learning_rate", "2e-5")],
        &[],
    ),
    case(
        "unsloth_by_position.py",
        &[
            ("model", "base"),
            ("sequence_length", "512"),
            ("precision", "bf16"),
            ("rank", "8"),
            ("target_modules", "q_proj"),
            ("alpha", "24"),
            ("train", "train.jsonl"),
            ("learning_rate", "1e-4"),
        ],
        &[],
    ),
    case(
        "unsloth_spread.py",
        &[
            ("precision", "bf16"),
            ("rank", "8"),
            ("alpha", "16"),
            ("dropout", "0.05"),
            ("learning_rate", "3e-4"),
            ("length", "10 steps"),
            ("train", "train.jsonl"),
        ],
        &[],
    ),
    case(
        "unsloth_vllm.py",
        &[("rank", "8"), ("sequence_length", "256"), ("precision", "bf16")],
        &[
            "`load_in_fp8: block` is not carried over: weights are in FP8 there",
            "`fast_inference: true` is not carried over: vLLM lies beside the model there",
            "`resize_model_vocab: 40000` is not carried over: the embedding gets another size there",
        ],
    ),
    case(
        "unsloth_length.py",
        &[("sequence_length", "256")],
        &["`max_length` is 1024"],
    ),
    case(
        "unsloth_masked.py",
        &[
            ("format", "sharegpt"),
            ("loss_on", "completions"),
            ("length", "30 steps"),
        ],
        &["get_chat_template(.., \"llama-3.1\")` is not taken over"],
    ),
    case(
        "unsloth_notebook.ipynb",
        &[
            ("tool", "unsloth"),
            ("rank", "16"),
            ("sequence_length", "768"),
            ("precision", "nf4_double"),
            ("micro_batch", "2"),
            ("length", "60 steps"),
            ("weight_decay", "0.001"),
        ],
        &["unsloth_notebook.ipynb, cell 7, line 6: `weight_decay=decay()` cannot be evaluated"],
    ),
    case(
        "trl_plain.py",
        &[
            ("tool", "trl"),
            ("model", "base"),
            ("rank", "8"),
            ("alpha", "16"),
            ("dropout", "0"),
            ("target_modules", "q_proj,v_proj"),
            ("learning_rate", "2e-4"),
            ("gradient_checkpointing", "full"),
            ("micro_batch", "8"),
            ("sequence_length", "1024"),
            ("uncut", "false"),
            ("length", "3 epochs"),
        ],
        &["no `dtype`"],
    ),
    case(
        "trl_uncut.py",
        &[("tool", "trl"), ("rank", "8"), ("uncut", "true")],
        &["the file cuts no rows: "],
    ),
    case(
        "trl_collated.py",
        &[("tool", "trl"), ("learning_rate", "3e-4")],
        &["trl_collated.py:12: how `collate` puts rows together is code"],
    ),
    case(
        "trl_collated_in_part.py",
        &[("tool", "trl"), ("learning_rate", "3e-4")],
        &["trl_collated_in_part.py:14: how `partial(collate, tokenizer=tokenizer)` puts rows together is code"],
    ),
    case(
        "trl_collated_by_class.py",
        &[("tool", "trl"), ("learning_rate", "3e-4")],
        &["trl_collated_by_class.py:12: how `collator` puts rows together is code"],
    ),
    case(
        "trl_waits.py",
        &[("tool", "trl"), ("rank", "8"), ("learning_rate", "3e-4")],
        &[],
    ),
    case(
        "trl_adapter_elsewhere.py",
        &[("tool", "trl"), ("rank", "8"), ("learning_rate", "3e-4")],
        &["trl_adapter_elsewhere.py:9: what is said of the adapter of `model` cannot be evaluated"],
    ),
    case(
        "trl_marimo.py",
        &[
            ("tool", "trl"),
            ("rank", "8"),
            ("learning_rate", "3e-4"),
            ("train", "train.jsonl"),
        ],
        &[],
    ),
    case(
        "trl_set_later.py",
        &[("tool", "trl"), ("learning_rate", "3e-4")],
        &["trl_set_later.py:6: what `set_lr_scheduler` changes of the settings is not taken over"],
    ),
    case(
        "trl_required_option.py",
        &[
            ("tool", "trl"),
            ("rank", "8"),
            ("precision", "nf4"),
            ("learning_rate", "3e-4"),
        ],
        &["no `bnb_4bit_quant_type`: transformers takes fp4"],
    ),
    case(
        "trl_qlora.py",
        &[
            ("precision", "nf4"),
            ("rank", "64"),
            ("alpha", "16"),
            ("dropout", "0.1"),
            ("target_modules", "all-linear"),
            ("optimizer", "paged_adamw"),
            ("learning_rate", "1e-4"),
            ("micro_batch", "4"),
            ("gradient_accumulation", "2"),
            ("max_grad_norm", "0.3"),
            ("warmup", "0.03"),
            ("sequence_length", "768"),
            ("gradient_checkpointing", "full"),
            ("train", "train.jsonl"),
        ],
        &[],
    ),
    case(
        "trl_loaded_by_branch.py",
        &[("precision", "bf16"), ("rank", "8")],
        &["trl_loaded_by_branch.py:8: `--qlora` is an option of the script: its default is taken"],
    ),
    case(
        "trl_kbit_alone.py",
        &[("precision", "nf4"), ("rank", "8"), ("gradient_checkpointing", "none")],
        &[],
    ),
    case(
        "trl_recomputed.py",
        &[("precision", "bf16"), ("rank", "8"), ("gradient_checkpointing", "full")],
        &[],
    ),
    case(
        "trl_full.py",
        &[
            ("rank", "none"),
            ("precision", "fp32"),
            ("length", "2 epochs"),
            ("gradient_checkpointing", "none"),
            ("schedule", "constant"),
        ],
        &[],
    ),
    case(
        "trl_argparse.py",
        &[
            ("model", "base"),
            ("learning_rate", "3e-4"),
            ("rank", "24"),
            ("alpha", "8"),
            ("packing", "false"),
        ],
        &[
            "trl_argparse.py:11: `--learning-rate` is an option of the script: its default is taken",
            "`lora_alpha=args.alpha` cannot be evaluated",
        ],
    ),
    case(
        "trl_dataclass.py",
        &[
            ("model", "base"),
            ("rank", "12"),
            ("target_modules", "q_proj,o_proj"),
            ("micro_batch", "2"),
            ("learning_rate", "1e-4"),
            ("gradient_checkpointing", "none"),
        ],
        &[
            "options of the script have their defaults here: `per_device_train_batch_size`, `learning_rate`, `rank`, `modules`, `model_name`",
        ],
    ),
    case(
        "trl_own_options.py",
        &[("model", "base"), ("rank", "4"), ("learning_rate", "1e-4")],
        &["`learning_rate` is an option of the script"],
    ),
    case(
        "trl_own_settings.py",
        &[
            ("model", "base"),
            ("rank", "4"),
            ("precision", "bf16"),
            ("gradient_checkpointing", "offload"),
            ("optimizer", "adafactor"),
            ("group_by_length", "true"),
            ("dataloader_num_workers", "2"),
            ("prefetch_depth", "8"),
            ("length", "5 steps"),
        ],
        &[
            "`fsdp` is left out: the file does not say on how many devices",
            "warp_factor",
        ],
    ),
    case(
        "trl_functions.py",
        &[
            ("model", "base"),
            ("precision", "bf16"),
            ("rank", "20"),
            ("alpha", "40"),
            ("length", "100 steps"),
            ("learning_rate", "5e-4"),
            ("train", "train.jsonl"),
        ],
        &[],
    ),
    case(
        "trl_class.py",
        &[
            ("model", "base"),
            ("rank", "6"),
            ("alpha", "18"),
            ("length", "12 steps"),
            ("train", "train.jsonl"),
        ],
        &[],
    ),
    case(
        "trl_branches.py",
        &[
            ("rank", "48"),
            ("alpha", "16"),
            ("target_modules", "q_proj"),
            ("attn_implementation", "flash_attention_2"),
            ("precision", "bf16"),
        ],
        &["trl_branches.py:8: `if len(sys.argv) > 3` cannot be evaluated: its first branch is taken"],
    ),
    case(
        "trl_called_twice.py",
        &[("model", "base"), ("learning_rate", "1e-4")],
        &["trl_called_twice.py:7: what makes this trainer is called several times: its first call is read"],
    ),
    case(
        "trl_uncalled.py",
        &[
            ("model", "base"),
            ("rank", "10"),
            ("learning_rate", "3e-4"),
            ("train", "train.jsonl"),
        ],
        &[],
    ),
    case(
        "trl_loop.py",
        &[("learning_rate", "1e-4"), ("gradient_accumulation", "2")],
        &["the first of its values is taken"],
    ),
    case(
        "trl_texts.py",
        &[
            ("model", "base"),
            ("train", "train.jsonl"),
            ("schedule", "cosine"),
            ("sequence_length", "384"),
            ("rank", "8"),
            ("target_modules", "q_proj,v_proj,o_proj"),
        ],
        &[],
    ),
    case(
        "trl_environment.py",
        &[("model", "base"), ("precision", "bf16")],
        &[
            "`MODEL_NAME` is taken as not set in the environment",
            "bfloat16 is assumed",
        ],
    ),
    case(
        "trl_unknown.py",
        &[("rank", "8"), ("alpha", "16"), ("learning_rate", "2e-4")],
        &[
            "trl_unknown.py:11: `r=best_rank()` cannot be evaluated: the usual value is taken; write it out",
            "trl_unknown.py:9: what `more` gives `SFTConfig` cannot be evaluated, and is left out",
        ],
    ),
    case(
        "trl_subclass.py",
        &[("rank", "8"), ("length", "5 steps")],
        &["what `Weighted` does otherwise than `SFTTrainer` is code"],
    ),
    case(
        "trl_two_trainers.py",
        &[("trainer", "sft"), ("length", "5 steps")],
        &["trl_two_trainers.py:8: `DPOTrainer` trains too: only the training of trl_two_trainers.py:6 is read"],
    ),
    Case {
        more: &["--model", "base"],
        ..case(
            "trl_settings_alone.py",
            &[
                ("model", ""),
                ("rank", "4"),
                ("micro_batch", "3"),
                ("sequence_length", "256"),
                ("learning_rate", "0.001"),
                ("length", "7 steps"),
                ("train", "train.jsonl"),
            ],
            &["the settings of this `SFTConfig` are read"],
        )
    },
    case(
        "transformers_trainer.py",
        &[
            ("tool", "peft"),
            ("rank", "8"),
            ("micro_batch", "1"),
            ("learning_rate", "1e-4"),
            ("gradient_checkpointing", "none"),
            ("format", "alpaca"),
            ("train", "alpaca.jsonl"),
        ],
        &[
            "`generate_and_tokenize_prompt` makes of a row is code",
            "1024 tokens are taken",
        ],
    ),
    with_rows(case(
        "hub_by_position.py",
        &[("train", "hf://datasets/owner/rows@v1:en/train_sft"), ("rows", "1000")],
        &[],
    )),
    with_rows(case(
        "hub_percent.py",
        &[("train", "hf://datasets/owner/rows"), ("rows", "all"), ("share", "0.2")],
        &[],
    )),
    with_rows(case(
        "hub_parts.py",
        &[
            ("train", "hf://datasets/owner/rows"),
            ("held_out", "hf://datasets/owner/rows/test"),
            ("format", "text"),
        ],
        &[],
    )),
    with_rows(case(
        "hub_file.py",
        &[("train", "hf://datasets/owner/rows/part.jsonl")],
        &[],
    )),
    case(
        "rows_selected.py",
        &[("train", "train.jsonl"), ("rows", "10"), ("held_out", "0.2")],
        &[],
    ),
    case("rows_mixed.py", &[("train", "train.jsonl 0.75, more.jsonl 0.25")], &[]),
    case(
        "rows_together.py",
        &[("train", "train.jsonl, more.jsonl")],
        &["rows_together.py:6: rows that `filter` leaves out there are read here"],
    ),
    case("rows_of_pandas.py", &[("train", "rows.csv")], &[]),
    case("rows_replaced.py", &[("train", "more.jsonl")], &[]),
    with_rows(case("rows_in_code.py", &[("train", "")], &[])),
    case(
        "rows_renamed.py",
        &[
            ("train", "stories.jsonl"),
            ("format", "text"),
            ("columns", "text=story"),
        ],
        &[],
    ),
    case(
        "dpo.py",
        &[
            ("trainer", "dpo"),
            ("beta", "0.2"),
            ("reference", "precomputed"),
            ("learning_rate", "1e-6"),
            ("micro_batch", "2"),
            ("sequence_length", "512"),
            ("rank", "8"),
        ],
        &[],
    ),
    case(
        "kto.py",
        &[
            ("trainer", "kto"),
            ("beta", "0.1"),
            ("micro_batch", "4"),
            ("learning_rate", "5e-6"),
        ],
        &[],
    ),
    case(
        "orpo.py",
        &[
            ("tool", "unsloth"),
            ("trainer", "orpo"),
            ("beta", "0.3"),
            ("sequence_length", "512"),
            ("gradient_checkpointing", "full"),
            ("precision", "bf16"),
        ],
        &[],
    ),
];

/// Scripts that are refused, with what is said of them.
const REFUSED: &[(&str, &[&str])] = &[
    (
        "refused_grpo.py",
        &["refused_grpo.py:3", "`GRPOTrainer`", "while it trains"],
    ),
    (
        "refused_reward.py",
        &["refused_reward.py:3", "`RewardTrainer`", "scores answers"],
    ),
    (
        "refused_vision.py",
        &["refused_vision.py:4", "`FastVisionModel`", "reads images"],
    ),
    ("refused_embeddings.py", &["`SentenceTransformerTrainer`", "embeddings"]),
    (
        "refused_generation.py",
        &["refused_generation.py makes no trainer", "SFTTrainer"],
    ),
    (
        "refused_classification.py",
        &["`AutoModelForSequenceClassification`", "sorts texts"],
    ),
    (
        "refused_speech.py",
        &["refused_speech.py:4", "`Wav2Vec2ForCTC` loads a model for another task"],
    ),
    (
        "refused_adapter_alone.py",
        &["refused_adapter_alone.py:5", "`PsoftConfig`", "no LoRA"],
    ),
    (
        "refused_prefix.py",
        &["refused_prefix.py:4", "`PrefixTuningConfig`", "no LoRA"],
    ),
    (
        "refused_options.py",
        &[
            "refused_options.py:8: `get_peft_config` takes the adapter from the script's options",
            "its YAML",
        ],
    ),
    (
        "refused_loss.py",
        &[
            "refused_loss.py:6: by `loss_type: ipo` TRL",
            "a loss that no trainer here has",
        ],
    ),
    ("refused_qat.py", &["refused_qat.py:4: by `qat_scheme: int4`", "(QAT)"]),
    (
        "refused_collator.py",
        &["refused_collator.py:8", "`UnslothVisionDataCollator` collates images"],
    ),
    (
        "refused_own_collator.py",
        &["refused_own_collator.py:13", "`Frames` collates images"],
    ),
    (
        "refused_own_sounds.py",
        &["refused_own_sounds.py:17", "`Sounds` collates images or sound"],
    ),
    (
        "refused_swift.py",
        &["refused_swift.py:11", "`swift.Trainer` is none of the trainers"],
    ),
    (
        "refused_sound.py",
        &["refused_sound.py:12", "`collate` collates images or sound"],
    ),
    (
        "refused_auto_model.py",
        &["refused_auto_model.py:4", "`FastModel`", "reads images or sound"],
    ),
    (
        "refused_value.py",
        &["refused_value.py:6: `r` is \"many\"; write a whole number"],
    ),
];

fn paths(all: &[PathBuf]) -> String {
    let names: Vec<String> = all.iter().map(|path| path.display().to_string()).collect();
    names.join(", ")
}

/// A part of what was read, as text.
fn field(imported: &Imported, name: &str) -> String {
    let recipe = &imported.recipe;
    let data = &recipe.data;
    match name {
        "tool" => imported.tool.name().to_owned(),
        "model" => recipe.model.clone(),
        "train" => match data.train.sets() {
            [] => paths(&data.train.files().cloned().collect::<Vec<_>>()),
            sets => {
                let sets = sets.iter().map(|set| format!("{} {}", paths(&set.files), set.weight));
                sets.collect::<Vec<_>>().join(", ")
            }
        },
        "held_out" => match &data.held_out {
            HeldOut::Fraction(share) => share.to_string(),
            files => paths(files.files()),
        },
        "rows" => data.max_rows.map_or("all".to_owned(), |rows| rows.to_string()),
        "share" => imported.later.read.map_or("all".to_owned(), |share| share.to_string()),
        "format" => data.format.name().to_owned(),
        "columns" => {
            let columns = data.columns.iter().map(|(name, own)| format!("{name}={own}"));
            columns.collect::<Vec<_>>().join(",")
        }
        "loss_on" => format!("{:?}", data.loss_on).to_lowercase(),
        "length" => match recipe.training.length {
            TrainingLength::Steps(steps) => format!("{steps} steps"),
            TrainingLength::Epochs(epochs) => format!("{epochs} epochs"),
            TrainingLength::Tokens(tokens) => format!("{tokens} tokens"),
        },
        "seed" => recipe.training.seed.to_string(),
        "uncut" => imported.is_uncut.to_string(),
        name => {
            let row = setting(name).unwrap();
            (row.get)(recipe).map_or("none".to_owned(), |value| value.to_string())
        }
    }
}

/// A folder with a model, rows and one of the scripts.
fn place(file: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    std::fs::create_dir(at("base")).unwrap();
    let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/ref_qwen2/model/config.json");
    std::fs::copy(config, at("base/config.json")).unwrap();
    std::fs::copy(Path::new(FOLDER).join(file), at(file)).unwrap();
    let rows = [
        ("train.jsonl", r#"{"prompt": "a", "completion": "b"}"#),
        ("more.jsonl", r#"{"prompt": "c", "completion": "d"}"#),
        ("stories.jsonl", r#"{"story": "Once."}"#),
        ("alpaca.jsonl", r#"{"instruction": "a", "input": "", "output": "b"}"#),
        (
            "chats.jsonl",
            r#"{"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}"#,
        ),
        ("pairs.jsonl", r#"{"prompt": "a", "chosen": "b", "rejected": "c"}"#),
        ("labelled.jsonl", r#"{"prompt": "a", "completion": "b", "label": true}"#),
    ];
    for (name, row) in rows {
        std::fs::write(at(name), format!("{row}\n").repeat(20)).unwrap();
    }
    std::fs::write(at("rows.csv"), "text\n".to_owned() + &"Once.\n".repeat(20)).unwrap();
    folder
}

fn run(folder: &Path, arguments: &[&str]) -> Output {
    crate::tool_files::program(folder).args(arguments).output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn each_script_says_what_stands_in_it() {
    let mut wrong = Vec::new();
    for case in CASES {
        let imported = read_recipe(&Path::new(FOLDER).join(case.file), None).unwrap();
        for (name, expected) in case.fields {
            let found = field(&imported, name);
            if found != *expected {
                wrong.push(format!("{}: {name} is {found}, and not {expected}", case.file));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn init_makes_a_study_of_each_script_and_says_what_it_assumed() {
    let taken = crate::cases_of(CASES.len(), 14);
    for case in CASES.iter().step_by(CASES.len().div_ceil(taken)) {
        let folder = place(case.file);
        let output = run(folder.path(), &[&["init", "--from", case.file], case.more].concat());
        let said = stderr(&output);
        assert!(output.status.success(), "{}: {said}", case.file);
        let study = StudyFile::read_with(&folder.path().join("space.yaml"), ReadOptions { check_files: true }).unwrap();
        let base = study.base.as_ref().unwrap();
        for (name, expected) in case.fields {
            if let Some(own) = study.baseline.get(name) {
                assert_eq!(own.to_string(), *expected, "{}: {name}", case.file);
            }
        }
        assert_eq!(study.backend.name() == "trl", !base.trainer.is_sft(), "{}", case.file);
    }
}

#[test]
fn what_is_assumed_of_a_script_is_told_with_its_line() {
    for case in CASES.iter().filter(|case| !case.told.is_empty()) {
        let folder = place(case.file);
        let output = run(folder.path(), &[&["init", "--from", case.file], case.more].concat());
        let said = stderr(&output);
        assert!(output.status.success(), "{}: {said}", case.file);
        for part in case.told {
            assert!(said.contains(part), "{}: {part}: {said}", case.file);
        }
    }
}

#[test]
fn plan_checks_scripts_and_says_what_is_not_counted() {
    let planned = |file: &str| {
        let folder = place(file);
        let output = run(folder.path(), &["plan", "--check", file, "--json"]);
        (output.status.code(), stderr(&output), output.stdout)
    };
    for (file, rank, length) in [
        ("unsloth_variables.py", 32, 1024),
        ("unsloth_notebook.ipynb", 16, 768),
        ("trl_qlora.py", 64, 768),
        ("trl_functions.py", 20, 1024),
        ("transformers_trainer.py", 8, 1024),
    ] {
        let (code, said, stdout) = planned(file);
        assert_eq!(code, Some(0), "{file}: {said}");
        let plan: serde_json::Value = serde_json::from_slice(&stdout).unwrap();
        assert_eq!(plan["setting"]["sequence_length"], length, "{file}");
        assert!(
            plan["setting"].to_string().contains(&format!("\"rank\":{rank}")),
            "{file}: {plan}"
        );
    }
    let (code, said, _) = planned("trl_unknown.py");
    assert_eq!(code, Some(0), "{said}");
    assert!(
        said.contains("trl_unknown.py:11: `r=best_rank()` cannot be evaluated"),
        "{said}"
    );
    // No byte depends on it.
    assert!(!said.contains("learning_rate"), "{said}");
    for (file, sequences, passes) in [("dpo.py", 2, 0), ("kto.py", 1, 2)] {
        let (code, said, stdout) = planned(file);
        assert_eq!(code, Some(0), "{file}: {said}");
        let plan: serde_json::Value = serde_json::from_slice(&stdout).unwrap();
        let comparison = &plan["setting"]["comparison"];
        let found = serde_json::json!([comparison["sequences"], comparison["reference_passes"]]);
        assert_eq!(found, serde_json::json!([sequences, passes]), "{file}");
    }
    // TRL's model is not that of unsloth's kernels.
    let (code, said, _) = planned("orpo.py");
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("`trainer: orpo` is predicted as TRL trains it"), "{said}");
}

#[test]
fn what_trains_something_else_is_refused_by_name_in_both_commands() {
    for (file, parts) in REFUSED {
        let folder = place(file);
        for arguments in [
            &["init", "--from", file, "--data", "train.jsonl", "--model", "base"][..],
            &["plan", "--check", file, "--model", "base"],
        ] {
            let output = run(folder.path(), arguments);
            let said = stderr(&output);
            assert_eq!(output.status.code(), Some(2), "{file}: {said}");
            for part in *parts {
                assert!(said.contains(part), "{file}: {part}: {said}");
            }
            assert!(!folder.path().join("space.yaml").exists(), "{file}");
        }
    }
}

#[test]
fn rows_that_are_given_go_before_those_of_a_script_and_what_stays_true_is_told() {
    let folder = place("unsloth_masked.py");
    let output = run(
        folder.path(),
        &["init", "--from", "unsloth_masked.py", "--data", "train.jsonl"],
    );
    let said = stderr(&output);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("get_chat_template"), "{said}");
    assert!(!said.contains("other columns"), "{said}");
    // Rows in code need others.
    let folder = place("rows_in_code.py");
    let output = run(folder.path(), &["init", "--from", "rows_in_code.py"]);
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(
        said.contains("rows_in_code.py:5: rows of `from_list(..)` are made in code") && said.contains("--data"),
        "{said}"
    );
    // A share is a number of rows once there are some.
    let text = std::fs::read_to_string(Path::new(FOLDER).join("hub_percent.py")).unwrap();
    let text = text.replace("\"owner/rows\", 20", "\"train.jsonl\", 20");
    std::fs::write(folder.path().join("share.py"), text).unwrap();
    let output = run(folder.path(), &["init", "--from", "share.py"]);
    let said = stderr(&output);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("the first 4 of 20 are read"), "{said}");
    let study = StudyFile::read_with(&folder.path().join("space.yaml"), ReadOptions { check_files: true }).unwrap();
    assert_eq!(study.base.unwrap().data.max_rows, Some(4));
}
