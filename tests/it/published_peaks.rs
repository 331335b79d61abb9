//! Peaks of memory that notebooks and benchmarks of others print, beside predictions of their settings. The bounds are
//! those of `docs/prediction.md`.

use std::collections::BTreeMap;
use std::path::Path;

use peft_tune::tools::Tool;
use peft_tune::tools::import::parse_recipe;
use peft_tune_core::predict;
use peft_tune_core::predict::stack::{
    Fit, ModelShape, Number, ROLES, Raised, Recompute, Sharing, StackDevice, StackPrediction, StackSetting, Trains,
    WeightForm,
};

const GIB: f64 = (1u64 << 30) as f64;

/// A row of a table, by column.
type Row = BTreeMap<String, String>;

/// Rows of a table in `docs/benchmarks`.
fn rows(name: &str) -> Vec<Row> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/benchmarks").join(name);
    let text = std::fs::read_to_string(path).unwrap();
    let mut lines = text.lines();
    let columns: Vec<&str> = lines.next().unwrap().split(',').collect();
    let row = |line: &str| -> Row {
        let cells: Vec<&str> = line.split(',').collect();
        assert_eq!(cells.len(), columns.len(), "{line}");
        let pairs = columns.iter().zip(cells);
        pairs
            .map(|(column, cell)| ((*column).to_owned(), cell.to_owned()))
            .collect()
    };
    lines.map(row).collect()
}

fn number(row: &Row, column: &str) -> f64 {
    row[column].parse().unwrap()
}

fn is_on(row: &Row, column: &str) -> bool {
    row[column] == "true"
}

/// The model of a row.
fn shape(row: &Row) -> ModelShape {
    let of = |column: &str| number(row, column) as u64;
    let mut config = serde_json::json!({
        "model_type": row.get("model_type").map_or("llama", String::as_str),
        "hidden_size": of("hidden"),
        "num_hidden_layers": of("layers"),
        "num_attention_heads": of("heads"),
        "num_key_value_heads": of("kv_heads"),
        "intermediate_size": of("intermediate"),
        "vocab_size": of("vocabulary"),
        "max_position_embeddings": 32_768,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": row.get("tied").is_some_and(|tied| tied == "true"),
    });
    if row.contains_key("head_dim") {
        config["head_dim"] = of("head_dim").into();
    }
    ModelShape::from_json("config.json", &config).unwrap()
}

/// The script of a notebook's row, as far as its settings go. Versions whose logits existed as a whole are what others are with a variable
/// of the environment.
fn script(row: &Row) -> String {
    let environment = match row["logits"].as_str() {
        "whole" => "import os\nos.environ[\"UNSLOTH_RETURN_LOGITS\"] = \"1\"\n",
        _ => "",
    };
    let of = |column: &str| row[column].as_str();
    let flag = |column: &str| if is_on(row, column) { "True" } else { "False" };
    let checkpointing = if is_on(row, "checkpointing") {
        "\"unsloth\""
    } else {
        "False"
    };
    format!(
        "{environment}from datasets import load_dataset\nfrom unsloth import FastLanguageModel\n\
         from trl import SFTConfig, SFTTrainer\n\n\
         model, tokenizer = FastLanguageModel.from_pretrained(\n    model_name = \"m\",\n    max_seq_length = {length},\n    \
         dtype = None,\n    load_in_4bit = True,\n)\n\
         model = FastLanguageModel.get_peft_model(\n    model,\n    r = {rank},\n    \
         target_modules = [\"q_proj\", \"k_proj\", \"v_proj\", \"o_proj\", \"gate_proj\", \"up_proj\", \"down_proj\"],\n    \
         lora_alpha = 16,\n    lora_dropout = 0,\n    bias = \"none\",\n    \
         use_gradient_checkpointing = {checkpointing},\n)\n\
         dataset = load_dataset(\"json\", data_files = \"train.jsonl\", split = \"train\")\n\
         trainer = SFTTrainer(\n    model = model,\n    tokenizer = tokenizer,\n    train_dataset = dataset,\n    \
         args = SFTConfig(\n        per_device_train_batch_size = {rows},\n        \
         gradient_accumulation_steps = {accumulation},\n        max_steps = 60,\n        packing = {packed},\n        \
         optim = \"{optimizer}\",\n    ),\n)\ntrainer.train()\n",
        length = of("length"),
        rank = of("rank"),
        rows = of("micro_batch"),
        accumulation = of("accumulation"),
        packed = flag("packed"),
        optimizer = of("optimizer"),
    )
}

/// Share of the printed peak that is predicted, as it is and with what the notebook had loaded in place of what is predicted of that.
fn shares(row: &Row) -> [f64; 2] {
    let imported = parse_recipe(Path::new("train.py"), &script(row), None).unwrap();
    assert_eq!(imported.tool, Tool::Unsloth);
    let setting = imported.setting();
    assert_eq!(
        (setting.weights, setting.micro_batch, setting.sequence_length),
        (
            WeightForm::Nf4Double,
            number(row, "micro_batch") as u64,
            number(row, "length") as u64
        ),
        "{row:?}"
    );
    let recompute = match is_on(row, "checkpointing") {
        true => Recompute::LayersOffloaded,
        false => Recompute::Nothing,
    };
    assert_eq!(setting.recompute, recompute, "{row:?}");
    let on = StackDevice {
        sheet: predict::device(&row["device"]).unwrap(),
    };
    let prediction = predict::stack::predict(&shape(row), &setting, Some(on)).unwrap();
    assert_ne!(prediction.verdict.unwrap().fit, Fit::Fits, "{row:?}");
    let loaded = prediction.memory.phases.iter().find(|phase| phase.phase == "load");
    let (loaded, peak) = (loaded.unwrap().reserved_bytes as f64 / GIB, reserved(&prediction));
    let printed = number(row, "peak_gib");
    [peak / printed, (number(row, "loaded_gib") + peak - loaded) / printed]
}

fn reserved(prediction: &StackPrediction) -> f64 {
    prediction.memory.reserved_bytes as f64 / GIB
}

/// Rows are full where they are packed, and the longest of chats reach the length. Of short instructions full rows are predicted, as
/// `plan --check` does.
#[test]
fn predictions_reach_72_percent_of_each_peak_that_notebooks_of_unsloth_print() {
    let all = rows("unsloth_notebooks.csv");
    assert!(all.len() >= 25);
    let mut low = Vec::new();
    for row in &all {
        let [of_all, of_rise] = shares(row);
        let notebook = &row["notebook"];
        let told = format!("{notebook}: {of_all:.3} of the peak, {of_rise:.3} with what was loaded");
        assert!(of_all > 0.72, "{told}");
        let bounds = match row["rows"].as_str() {
            "packed" | "chats" => 0.82..1.18,
            "instructions" => 0.95..1.7,
            other => panic!("{notebook}: rows are {other}"),
        };
        assert!(bounds.contains(&of_rise), "{told}");
        if of_all < 0.9 {
            low.push(told);
        }
    }
    assert!(low.len() <= 8, "{}", low.join("\n"));
}

#[test]
fn predictions_reach_70_percent_of_each_peak_of_fsdp_on_two_gpus() {
    for row in rows("fsdp_qlora.csv") {
        let (weights, offloads) = (is_on(&row, "quantized"), is_on(&row, "offloaded"));
        let form = if weights { WeightForm::Nf4 } else { WeightForm::Numbers };
        // All in BF16, without PEFT's preparation.
        let setting = StackSetting {
            trains: Trains::Adapters {
                rank: 64,
                targets: ROLES.to_vec(),
                has_dropout: true,
                whole_embeddings: false,
            },
            raises: Raised::Nothing,
            adapters: Number::Half,
            micro_batch: number(&row, "micro_batch") as u64,
            sequence_length: number(&row, "length") as u64,
            recompute: Recompute::Layers,
            devices: 2,
            sharing: Sharing::Full,
            offloads,
            ..StackSetting::new(Tool::Peft.behaviour(), form)
        };
        assert_eq!(setting.unproven().is_some(), offloads);
        let prediction = predict::stack::predict(&shape(&row), &setting, None).unwrap();
        let share = reserved(&prediction) / number(&row, "peak_gib");
        assert!((0.7..1.1).contains(&share), "{share:.3} of {row:?}");
    }
}
