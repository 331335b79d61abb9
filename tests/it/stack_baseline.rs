//! Plans of a study for one tool answer for the study's baseline, and so does a search for that tool.

use std::path::Path;

use serde_json::{Value, json};

use crate::mocked::{errors_of, folder_with, peft_tune};
use crate::plan::{LLAMA_1B, called, study_of};

/// A study whose rows are not on this machine, so that every row counts as full.
const SPACE: &str = "study: own
model: ./model
data: {train: gone.jsonl, held_out: 0.1}
space:
  micro_batch: [1, 2, 4]
  gradient_accumulation: [1, 3]
  rank: [8, 16, 64]
  target_modules: [[q_proj], all-linear]
  precision: [bf16, nf4]
  gradient_checkpointing: [none, full]
  optimizer: [adamw, paged_adamw_8bit]
  sequence_length: [512, 1024, 4096]
budget: {trials: 2}
";

/// Values of a baseline that are unlike the usual ones, each under its name.
const UNUSUAL: [(&str, &str); 8] = [
    ("micro_batch", "1"),
    ("gradient_accumulation", "3"),
    ("rank", "64"),
    ("target_modules", "[q_proj]"),
    ("precision", "nf4"),
    ("gradient_checkpointing", "full"),
    ("optimizer", "paged_adamw_8bit"),
    ("sequence_length", "4096"),
];

/// A plan as JSON, with what was told beside it.
fn planned(folder: &Path, arguments: &[&str]) -> (Value, String) {
    let output = called(folder, &[&["plan", "--json"], arguments].concat());
    let told = errors_of(&output);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {told}");
    (serde_json::from_slice(&output.stdout).unwrap(), told)
}

/// The plan of [`SPACE`] with a baseline of these values.
fn with_baseline(folder: &Path, stack: &str, values: &[(&str, &str)]) -> Value {
    let values: Vec<String> = values.iter().map(|(name, value)| format!("{name}: {value}")).collect();
    let space = format!("{SPACE}baseline: {{{}}}\n", values.join(", "));
    std::fs::write(folder.join("space.yaml"), space).unwrap();
    let (plan, told) = planned(folder, &["space.yaml", "--stack", stack]);
    assert!(told.contains("the setting is the study's baseline: "), "{told}");
    plan
}

#[test]
fn every_value_of_the_baseline_is_a_value_of_the_plan() {
    let folder = study_of(LLAMA_1B);
    let folder = folder.path();
    let shown = |plan: &Value| (plan["setting"].clone(), plan["peak_tensors_bytes"].clone());
    for stack in ["trl", "torchtune", "peft-tune"] {
        let usual = shown(&with_baseline(folder, stack, &[]));
        for value in UNUSUAL {
            let own = shown(&with_baseline(folder, stack, &[value]));
            assert_ne!(own, usual, "{stack}: {value:?}");
        }
    }
    for stack in ["peft", "trl", "axolotl", "llamafactory", "unsloth", "torchtune"] {
        let plan = with_baseline(folder, stack, &UNUSUAL);
        let setting = &plan["setting"];
        let (adapters, optimizer) = (&setting["trains"]["adapters"], &setting["optimizer"]);
        let found = json!([
            setting["micro_batch"],
            setting["gradient_accumulation"],
            adapters["rank"],
            setting["sequence_length"],
            setting["weights"],
            setting["recompute"],
            optimizer["bytes"],
            optimizer["is_paged"],
        ]);
        assert_eq!(found, json!([1, 3, 64, 4096, "nf4", "layers", 2, true]), "{stack}");
    }
}

#[test]
fn what_init_makes_of_a_config_needs_what_the_config_needs() {
    let folder = study_of(LLAMA_1B);
    let folder = folder.path();
    for (stack, text) in [
        (
            "axolotl",
            "base_model: ./model\nadapter: lora\nlora_r: 64\nlora_alpha: 128\nlora_target_linear: true\nsequence_len: 4096\n\
             micro_batch_size: 1\ngradient_accumulation_steps: 2\ngradient_checkpointing: true\noptimizer: paged_adamw_8bit\n\
             bf16: true\n",
        ),
        (
            "trl",
            "model_name_or_path: ./model\nuse_peft: true\nlora_r: 4\nlora_target_modules: [q_proj]\ndtype: bfloat16\n\
             max_length: 512\nper_device_train_batch_size: 2\ngradient_accumulation_steps: 8\ngradient_checkpointing: false\n\
             optim: adamw_8bit\n",
        ),
        (
            "llamafactory",
            "model_name_or_path: ./model\nstage: sft\nfinetuning_type: lora\nlora_rank: 32\nlora_target: all\ncutoff_len: 2048\n\
             quantization_bit: 4\nper_device_train_batch_size: 3\nbf16: true\noptim: adamw_torch_fused\n",
        ),
        (
            "torchtune",
            "model:\n  _component_: torchtune.models.llama3_2.lora_llama3_2_1b\n  lora_rank: 8\n  lora_attn_modules: [q_proj, v_proj]\n\
             checkpointer: {checkpoint_dir: ./model}\ntokenizer: {max_seq_len: 1024}\nbatch_size: 2\n\
             enable_activation_checkpointing: true\noptimizer: {_component_: torch.optim.AdamW, lr: 3e-4}\ndtype: bf16\n",
        ),
    ] {
        let rows = folder.join("rows.jsonl");
        std::fs::write(&rows, "{\"prompt\": \"a\", \"completion\": \"b\"}\n".repeat(20)).unwrap();
        let file = format!("{stack}.yaml");
        std::fs::write(folder.join(&file), text).unwrap();
        let arguments = [
            "init",
            "--from",
            file.as_str(),
            "--data",
            "rows.jsonl",
            "--memory",
            "80GiB",
            "--output",
            "own.yaml",
            "--force",
        ];
        let output = called(folder, &arguments);
        assert!(output.status.success(), "{stack}: {}", errors_of(&output));
        // Without the rows both count as full.
        std::fs::remove_file(&rows).unwrap();
        let (of_study, _) = planned(folder, &["own.yaml", "--stack", stack]);
        let (of_file, _) = planned(folder, &["--check", file.as_str()]);
        for key in ["setting", "peak_tensors_bytes", "peak_process_bytes"] {
            assert_eq!(of_study[key], of_file[key], "{stack}: {key}");
        }
    }
}

#[test]
fn a_search_for_a_tool_begins_with_what_its_plan_says() {
    let space = "study: aimed\nmodel: ./base\ndata: {train: train.jsonl, held_out: held_out.jsonl}\n\
                 target_stack: trl\ntarget_device: A100 40GB\n\
                 space: {rank: [2, 4, 8, 16], micro_batch: [1, 2, 4], gradient_checkpointing: [none, full], packing: true, global_batch: 8}\n\
                 baseline: {rank: 2, micro_batch: 1, gradient_checkpointing: full}\n\
                 trial: {sequence_length: 128}\nconfirm: none\nbudget: {trials: 1}\n";
    let folder = folder_with(space);
    let folder = folder.path();
    let output = peft_tune(folder, &["search", "space.yaml"]);
    assert!(output.status.success(), "{}", errors_of(&output));
    let output = peft_tune(folder, &["show", "--json"]);
    let study: Value = serde_json::from_slice(&output.stdout).unwrap();
    let metrics = &study["trials"][0]["state"]["metrics"];
    let (plan, _) = planned(folder, &["space.yaml", "--stack", "trl", "--device", "A100 40GB"]);
    assert_eq!(plan["setting"]["micro_batch"], 1);
    assert_eq!(
        metrics["target_peak_memory"].as_f64(),
        plan["peak_process_bytes"].as_f64(),
        "{metrics}"
    );
}
