//! `peft-tune plan` from a `config.json` alone, for a device of the table.

use std::path::Path;
use std::process::Output;

use serde_json::Value;

/// Published dimensions: they need no weights to be planned.
pub(crate) const GEMMA_2_9B: &str = r#"{"model_type": "gemma2", "hidden_size": 3584, "intermediate_size": 14336,
    "num_hidden_layers": 42, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 256,
    "vocab_size": 256000, "max_position_embeddings": 8192, "query_pre_attn_scalar": 256, "sliding_window": 4096}"#;
const GEMMA_3_4B: &str = r#"{"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"],
    "mm_tokens_per_image": 256, "torch_dtype": "bfloat16", "vision_config": {"model_type": "siglip_vision_model"},
    "text_config": {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240,
        "num_hidden_layers": 34, "sliding_window": 1024, "rope_scaling": {"factor": 8.0, "rope_type": "linear"}}}"#;

/// Published dimensions of Llama 3.2 1B.
pub(crate) const LLAMA_1B: &str = include_str!("../tool_files/models/llama_1b.json");

/// Published dimensions of Llama 3 70B.
const LLAMA_3_70B: &str = r#"{"model_type": "llama", "hidden_size": 8192, "intermediate_size": 28672,
    "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 128256,
    "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": false}"#;

const SPACE: &str = "study: planned
model: ./model
data: {train: train.jsonl, held_out: 0.1}
space:
  micro_batch: [1, 2, 4, 8, 16]
  rank: [8, 16]
  gradient_checkpointing: [none, full]
  precision: [bf16, nf4]
trial: {sequence_length: 2048, training_tokens: 60k}
budget: {trials: 10}
";

/// A folder with a study of the model that `config` describes.
pub(crate) fn study_of(config: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("model")).unwrap();
    std::fs::write(folder.path().join("model/config.json"), config).unwrap();
    std::fs::write(
        folder.path().join("train.jsonl"),
        "{\"prompt\": \"a\", \"completion\": \"b\"}\n",
    )
    .unwrap();
    std::fs::write(folder.path().join("space.yaml"), SPACE).unwrap();
    folder
}

pub(crate) fn called(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = crate::program();
    command.args(arguments).current_dir(folder);
    command.env("PEFT_TUNE_CACHE", folder.join("cache"));
    command.env("PEFT_TUNE_DB", folder.join("study.db")).output().unwrap()
}

#[test]
fn what_only_another_plan_reads_is_refused() {
    let folder = study_of(LLAMA_3_70B);
    for (more, missing) in [
        (["--devices", "8"].as_slice(), "--stack <TOOL>"),
        (&["--model", "elsewhere"], "--stack <TOOL>"),
        (&["--sharing", "zero3"], "--stack <TOOL>"),
        (&["--offload"], "--stack <TOOL>"),
        (&["--rows-differ"], "--stack <TOOL>"),
    ] {
        let output = called(folder.path(), &[&["plan", "space.yaml"], more].concat());
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            output.status.code() == Some(2) && told.contains(missing),
            "{more:?}: {told}"
        );
    }
    for (arguments, why) in [
        (["--top", "3", "--step"], "cannot be used with"),
        (["--top", "3", "--stack=peft"], "cannot be used with"),
        (["--threads", "3", "--stack=peft"], "cannot be used with"),
        (["--backend", "trl", "--stack=peft"], "cannot be used with"),
        (["--threads", "0", "--json"], "--threads <N>"),
        (["--stack", "peft-tune", "--rows-differ"], "--rows-differ"),
    ] {
        let output = called(folder.path(), &[&["plan"][..], &arguments, &["space.yaml"]].concat());
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            output.status.code() == Some(2) && told.contains(why),
            "{arguments:?}: {told}"
        );
    }
}

#[test]
fn a_step_of_recipes_together_has_the_setting_of_each_and_tells_of_steps_that_it_leaves_out() {
    let folder = study_of(LLAMA_3_70B);
    for (file, rank) in [("first.yaml", 8), ("second.yaml", 16)] {
        let recipe = format!(
            "model: ./model\ndata: {{train: train.jsonl, held_out: 0.1}}\nprecision: bf16\nprecision_schedule: fp32_20\n\
             adapter: {{rank: {rank}, alpha: 32}}\nbatch: {{micro_batch: 1, gradient_accumulation: 1}}\n"
        );
        std::fs::write(folder.path().join(file), recipe).unwrap();
    }
    let output = called(folder.path(), &["plan", "--device", "H200", "--step", "first.yaml"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("`precision_schedule` in fp32 are others"), "{text}");
    for file in ["first.yaml", "second.yaml"] {
        let text = std::fs::read_to_string(folder.path().join(file)).unwrap();
        std::fs::write(
            folder.path().join(file),
            text.replace("precision_schedule: fp32_20\n", ""),
        )
        .unwrap();
    }
    let output = called(
        folder.path(),
        &["plan", "--device", "H200", "--step", "first.yaml", "second.yaml"],
    );
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let has = |part: &str| text.contains(part);
    assert!(
        has("adapters of rank 8,") && has("adapters of rank 16,") && !has("schedule"),
        "{text}"
    );
    assert!(has("together") && has("2 recipes, in the same passes"), "{text}");
}

fn planned(folder: &Path, more: &[&str]) -> String {
    let arguments = [&["plan", "space.yaml", "--device", "A100 80GB"], more].concat();
    let output = called(folder, &arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// What `--stack trl` says of the one setting that differs in cost.
#[test]
fn a_plan_of_a_study_in_trl_predicts_what_trl_needs() {
    let folder = study_of(GEMMA_2_9B);
    let folder = folder.path();
    let space = "study: planned\nmodel: ./model\ndata: {train: train.jsonl, held_out: 0.1}\n\
                 space: {micro_batch: 2, rank: 8, precision: bf16, gradient_checkpointing: full, learning_rate: [1e-4, 2e-4]}\n\
                 trial: {sequence_length: 2048, training_tokens: 60k}\nbudget: {trials: 2}\n";
    std::fs::write(folder.join("space.yaml"), space).unwrap();
    let parsed = |text: &str| -> Value { serde_json::from_str(text).unwrap() };
    let native = parsed(&planned(folder, &["--json"]));
    let asked = parsed(&planned(folder, &["--json", "--backend", "trl"]));
    assert!(planned(folder, &["--backend", "trl"]).contains("A100 80GB, in TRL"));
    std::fs::write(folder.join("space.yaml"), format!("{space}backend: trl\n")).unwrap();
    let named = parsed(&planned(folder, &["--json"]));
    assert_eq!(named, asked);
    assert_eq!((&native["stack"], &named["stack"]), (&Value::Null, &Value::from("trl")));
    let settings = named["settings"].as_array().unwrap();
    assert_eq!(settings.len(), 1, "{settings:#?}");
    let value = |plan: &Value, metric: &str| plan["settings"][0][metric]["value"].as_f64().unwrap();
    let arguments = [
        "plan",
        "space.yaml",
        "--stack",
        "trl",
        "--device",
        "A100 80GB",
        "--json",
    ];
    let stack = parsed(&String::from_utf8(called(folder, &arguments).stdout).unwrap());
    assert_eq!(
        value(&named, "peak_memory"),
        stack["peak_tensors_bytes"].as_f64().unwrap()
    );
    let speed = stack["tokens_per_s"].as_f64().unwrap();
    assert!((value(&named, "throughput") / speed - 1.0).abs() < 1e-9, "{speed}");
    assert_ne!(value(&native, "peak_memory"), value(&named, "peak_memory"));
}

/// The search asks a Python, and the plan asks none.
#[test]
fn a_plan_in_trl_refuses_what_a_search_does_in_the_same_words() {
    let folder = study_of(LLAMA_3_70B);
    let folder = folder.path();
    let gpu = r#"{"name": "NVIDIA A100-SXM4-80GB", "bytes": 85899345920}"#;
    crate::trl_search::python_with(folder, "1.16.0", &[gpu]);
    let refused = |arguments: &[&str]| {
        let output = called(folder, arguments);
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {told}");
        told
    };
    let on_device = ["plan", "space.yaml", "--device", "A100 80GB"];
    for (values, key) in [
        (
            "gradient_checkpointing: [none, every_2]",
            "space.gradient_checkpointing",
        ),
        ("optimizer: [adamw, muon]", "space.optimizer"),
        ("loraplus_ratio: 16", "space.loraplus_ratio"),
        (
            "precision: fp32\n  attn_implementation: flash_attention_2",
            "space.attn_implementation",
        ),
    ] {
        let (before, _) = SPACE.split_once("  gradient_checkpointing").unwrap();
        let space = format!("{before}  {values}\ntrial: {{sequence_length: 2048}}\nbudget: {{trials: 10}}\n");
        std::fs::write(folder.join("space.yaml"), &space).unwrap();
        let searched = refused(&["search", "space.yaml", "--backend", "trl", "--python", "./python"]);
        assert!(searched.contains(&format!("key `{key}`")), "{searched}");
        assert_eq!(refused(&[&on_device[..], &["--backend", "trl"]].concat()), searched);
        std::fs::write(folder.join("space.yaml"), format!("{space}backend: trl\n")).unwrap();
        assert!(refused(&on_device).contains(&format!("key `{key}`")));
    }
    // What a device and packages decide is for the search to find out.
    std::fs::write(folder.join("space.yaml"), SPACE).unwrap();
    planned(folder, &["--backend", "trl"]);
    // Names of layers that the engine's table of families alone could tell.
    let other = LLAMA_3_70B.replace("\"llama\"", "\"falcon_h1\"");
    std::fs::write(folder.join("model/config.json"), other).unwrap();
    let named = SPACE.replace("rank: [8, 16]", "target_modules: [attention, all-linear]");
    std::fs::write(folder.join("space.yaml"), named).unwrap();
    let told = refused(&[&on_device[..], &["--backend", "trl"]].concat());
    assert!(
        told.contains("key `space.target_modules`") && told.contains("its `attention` is not known here"),
        "{told}"
    );
}

#[test]
fn a_plan_in_unsloth_refuses_what_its_trials_do_not_have() {
    let folder = study_of(LLAMA_3_70B);
    let folder = folder.path();
    let refused = || {
        let output = called(
            folder,
            &["plan", "space.yaml", "--device", "A100 80GB", "--backend", "unsloth"],
        );
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{told}");
        told
    };
    let told = refused();
    assert!(
        told.contains("key `space.precision`") && told.contains("a trial in unsloth is what unsloth's file says"),
        "{told}"
    );
    std::fs::write(folder.join("space.yaml"), SPACE.replace("nf4", "nf4_double")).unwrap();
    planned(folder, &["--backend", "unsloth"]);
    let other = LLAMA_3_70B.replace("\"llama\"", "\"falcon_h1\"");
    std::fs::write(folder.join("model/config.json"), other).unwrap();
    let told = refused();
    assert!(
        told.contains("trials in unsloth have models of the built-in engine's families"),
        "{told}"
    );
    // No row is read before.
    assert!(!told.contains("assumed to be full"), "{told}");
}

#[test]
fn nothing_above_the_limit_is_said_to_fit() {
    let folder = study_of(GEMMA_2_9B);
    let plan: Value = serde_json::from_str(&planned(folder.path(), &["--json", "--top", "1000"])).unwrap();
    let limit = plan["limit_bytes"].as_f64().unwrap();
    let of = |list: &str| plan[list].as_array().unwrap().clone();
    let bytes = |setting: &Value| setting["peak_memory"]["value"].as_f64().unwrap();
    for list in ["front", "settings"] {
        assert!(!of(list).is_empty());
        assert!(
            of(list).iter().all(|setting| bytes(setting) <= limit),
            "{list}: {plan:#}"
        );
    }
    assert_eq!(plan["fitting"].as_u64().unwrap() as usize, of("settings").len());
    // Some are so near above it that a search would try them.
    let perhaps = plan["perhaps_fitting"].as_u64().unwrap();
    assert!(perhaps > 0 && plan["fitting"].as_u64().unwrap() + perhaps < plan["size"].as_u64().unwrap());
    let text = planned(folder.path(), &[]);
    assert!(
        text.contains(&format!("; {perhaps} more may, within the prediction's error")),
        "{text}"
    );
}

#[test]
fn the_memory_limit_is_the_device_s_unless_the_study_says_less() {
    let folder = study_of(GEMMA_2_9B);
    let limit = |space: &str| {
        std::fs::write(folder.path().join("space.yaml"), space).unwrap();
        let plan: Value = serde_json::from_str(&planned(folder.path(), &["--json"])).unwrap();
        (plan["limit_bytes"].as_f64().unwrap(), plan["limit_from"].clone())
    };
    assert_eq!(limit(SPACE).1, "device");
    let bound = format!("{SPACE}constraints: {{peak_memory: \"<= 30 GiB\"}}\n");
    assert_eq!(limit(&bound), (30.0 * 1_073_741_824.0, "constraint".into()));
    assert!(planned(folder.path(), &[]).contains("30.00 GiB (the study's constraint): "));

    // This machine has a memory too.
    let quickstart = Path::new(env!("CARGO_MANIFEST_DIR")).join("search_spaces/quickstart.yaml");
    let output = called(folder.path(), &["plan", &quickstart.display().to_string(), "--json"]);
    let plan: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(plan["limit_from"], "device", "{plan}");
    assert!(plan["limit_bytes"].as_f64().unwrap() > 1e9);
}

#[test]
fn the_language_model_of_a_multimodal_checkpoint_is_planned() {
    let folder = study_of(GEMMA_3_4B);
    let plan: Value = serde_json::from_str(&planned(folder.path(), &["--json", "--top", "1000"])).unwrap();
    let plain = plan["settings"]
        .as_array()
        .unwrap()
        .iter()
        .find(|one| one["params"]["precision"] == "bf16");
    // 3.88 thousand million weights, two bytes each.
    assert_eq!(plain.unwrap()["memory_by_part"]["base_weights"], 2 * 3_880_263_168_u64);
}

/// Qwen3-30B-A3B.
const MIXTURE_30B: &str = r#"{"model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144,
    "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": true,
    "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151936,
    "max_position_embeddings": 40960, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "tie_word_embeddings": false,
    "decoder_sparse_step": 1, "mlp_only_layers": []}"#;

/// Experts have no products of bytes on a GPU: such settings are told by name, and no plan has one.
#[test]
fn activations_of_experts_in_eight_bits_are_no_settings_of_a_gpu() {
    let folder = study_of(MIXTURE_30B);
    let because =
        "`activation_quantization: int8_both` has no kernels on a GPU for the experts of a mixture; set it to none";
    let some = SPACE.replace(
        "  precision: [bf16, nf4]\n",
        "  precision: nf4\n  activation_quantization: [none, int8_both]\n",
    );
    std::fs::write(folder.path().join("space.yaml"), &some).unwrap();
    let plan: Value = serde_json::from_str(&planned(folder.path(), &["--json", "--top", "1000"])).unwrap();
    assert!(
        plan["impossible_because"].as_str().unwrap().contains(because),
        "{plan:#}"
    );
    for list in ["front", "settings"] {
        let settings = plan[list].as_array().unwrap();
        assert!(!settings.is_empty());
        let is_none = |one: &Value| one["params"]["activation_quantization"] == "none";
        assert!(settings.iter().all(is_none), "{plan:#}");
    }
    let text = planned(folder.path(), &[]);
    assert!(
        text.contains("impossible    20 settings, such as: ") && text.contains(because),
        "{text}"
    );
    // Where every setting has it there is no plan.
    let all = some.replace("[none, int8_both]", "int8_both");
    std::fs::write(folder.path().join("space.yaml"), all).unwrap();
    let output = called(folder.path(), &["plan", "space.yaml", "--device", "A100 80GB"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(
        said.contains("no setting of space.yaml can be predicted") && said.contains(because),
        "{said}"
    );
    // In this program's own engine on such a device neither.
    let recipe = ["plan", "space.yaml", "--stack", "peft-tune", "--device", "A100 80GB"];
    let output = called(folder.path(), &recipe);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains(because), "{said}");
}

/// Checks what a plan says that activations in 8 bits spare, on models that have them.
#[test]
fn activations_in_eight_bits_are_settings_of_a_gpu() {
    let folder = study_of(GEMMA_2_9B);
    let space = SPACE.replace(
        "  precision: [bf16, nf4]\n",
        "  precision: int8\n  activation_quantization: [none, int8_forward, int8_both]\n",
    );
    std::fs::write(folder.path().join("space.yaml"), &space).unwrap();
    let plan: Value = serde_json::from_str(&planned(folder.path(), &["--json", "--top", "1000"])).unwrap();
    assert!(plan["impossible_because"].is_null(), "{plan:#}");
    let throughput = |activations: &str| {
        let settings = plan["settings"].as_array().unwrap().iter();
        let of = settings.filter(|one| one["params"]["activation_quantization"] == activations);
        of.map(|one| one["throughput"]["value"].as_f64().unwrap())
            .fold(0.0, f64::max)
    };
    let [none, forward, both] = ["none", "int8_forward", "int8_both"].map(throughput);
    assert!(
        none > 0.0 && forward > none && both > forward,
        "{none} {forward} {both}"
    );
}

#[test]
fn a_mixture_s_plan_says_what_crowding_at_experts_costs() {
    let folder = study_of(MIXTURE_30B);
    let plan: Value = serde_json::from_str(&planned(folder.path(), &["--json"])).unwrap();
    let of = |load: &str| plan["imbalance"][load].as_f64().unwrap();
    // Fewer experts' weights are read and fewer tiles are partly empty.
    assert!((0.3..1.0).contains(&of("crowded")), "{plan:#}");
    assert!((of("crowded")..1.2).contains(&of("zipf")), "{plan:#}");
    let text = planned(folder.path(), &[]);
    assert!(
        text.contains("experts       equally loaded; with shares of 1/n"),
        "{text}"
    );
    let dense = study_of(LLAMA_8B);
    assert!(!planned(dense.path(), &[]).contains("equally loaded"));
}

/// Llama 3.1 8B.
const LLAMA_8B: &str = r#"{"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 500000.0}"#;

#[test]
fn a_study_is_planned_for_another_stack_and_the_verdict_is_the_exit_code() {
    let folder = study_of(LLAMA_8B);
    let arguments = ["plan", "space.yaml", "--stack", "trl", "--json", "--device"];
    let large = called(folder.path(), &[&arguments[..], &["A100 80GB"]].concat());
    assert_eq!(
        large.status.code(),
        Some(0),
        "{}",
        String::from_utf8_lossy(&large.stderr)
    );
    let plan: Value = serde_json::from_slice(&large.stdout).unwrap();
    assert_eq!(plan["verdict"]["fit"], "fits");
    let peak = plan["peak_tensors_bytes"].as_u64().unwrap();
    let components = plan["components"].as_object().unwrap();
    assert_eq!(components.values().filter_map(Value::as_u64).sum::<u64>(), peak);
    assert!(plan["limits"]["largest_micro_batch"].as_u64() >= Some(1));
    let assumed = |of: &str| plan["assumed"][of].as_str().unwrap_or_default().to_owned();
    assert_eq!(assumed("tool"), "TRL, as --stack says");
    assert!(assumed("rows").ends_with("tokens, full"), "{plan:#}");
    assert_eq!(assumed("device"), "one A100 80GB; --devices says how many");
    let small = called(folder.path(), &[&arguments[..], &["T4"]].concat());
    assert_eq!(small.status.code(), Some(7), "weights alone are 15 GiB");
    let unknown = called(folder.path(), &["plan", "space.yaml", "--stack", "megatron"]);
    assert_eq!(unknown.status.code(), Some(2));
}

#[test]
fn the_host_is_a_device_of_another_stack_and_rows_of_other_lengths_take_more_of_it() {
    let folder = study_of(LLAMA_8B);
    let planned = |more: &[&str]| {
        let arguments = ["plan", "space.yaml", "--stack", "peft", "--json", "--db", "own.db"];
        let done = called(folder.path(), &[&arguments[..], more].concat());
        let error = String::from_utf8_lossy(&done.stderr).into_owned();
        serde_json::from_slice::<Value>(&done.stdout).unwrap_or_else(|_| panic!("{error}"))
    };
    let here = planned(&["--device", "cpu"]);
    assert_eq!(here["device"], "cpu");
    assert!(here["tokens_per_s"].as_f64() > Some(0.0));
    let [alike, differ] = [planned(&[]), planned(&["--rows-differ"])];
    let assumed = alike["assumed"]["device"].as_str().unwrap();
    assert!(assumed.starts_with("none, and so no verdict"), "{assumed}");
    let of = |plan: &Value, key: &str| plan[key].as_u64().unwrap();
    // Without a device the CUDA context and the matrix library's workspace count.
    assert!(of(&here, "peak_tensors_bytes") < of(&alike, "peak_tensors_bytes"));
    assert!(of(&differ, "peak_reserved_bytes") > of(&alike, "peak_reserved_bytes"));
    assert_eq!(differ["setting"]["rows_differ"], true);
}

#[test]
fn files_of_other_tools_are_checked_and_wrong_ones_named() {
    let folder = study_of(LLAMA_8B);
    let file = folder.path().join("axolotl.yaml");
    std::fs::write(
        &file,
        "base_model: ./model\nadapter: qlora\nload_in_4bit: true\nlora_r: 16\nlora_target_linear: true\n\
         micro_batch_size: 2\nsequence_len: 2048\ngradient_checkpointing: true\nwarp: 9\n",
    )
    .unwrap();
    let checked = called(folder.path(), &["plan", "--check", "axolotl.yaml", "--device", "L4"]);
    let said = String::from_utf8_lossy(&checked.stderr);
    assert_eq!(checked.status.code(), Some(0), "{said}");
    assert!(said.contains("`warp`"), "{said}");
    let text = String::from_utf8_lossy(&checked.stdout).into_owned();
    for part in [
        "plan for axolotl",
        "verdict       fits by an unproven model: needs about",
        "unproven      no measurement of axolotl was compared",
        "assumed       tool: axolotl, told by keys that no other tool has",
        "assumed       rows: 2048 tokens, as the file says, not packed",
        "assumed       device: one L4; --devices says how many",
        "lever",
        "longest",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let arguments = ["plan", "--check", "axolotl.yaml", "--device", "L4", "--json"];
    let plan: Value = serde_json::from_slice(&called(folder.path(), &arguments).stdout).unwrap();
    assert_eq!(plan["verdict"]["fit"], "fits_by_an_unproven_model");
    assert!(plan["verdict"]["unproven"].as_str().unwrap().contains("axolotl"));
    for of in ["tool", "rows", "device"] {
        assert!(
            plan["assumed"][of].as_str().is_some_and(|said| !said.is_empty()),
            "{plan:#}"
        );
    }
    let levers = plan["levers"].as_array().unwrap();
    assert!(levers.iter().all(|lever| lever["fit"] != "fits"), "{levers:#?}");
    std::fs::write(&file, "base_model: ./model\nsequence_len: long\n").unwrap();
    let wrong = called(folder.path(), &["plan", "--check", "axolotl.yaml"]);
    let said = String::from_utf8_lossy(&wrong.stderr);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(
        said.contains("axolotl.yaml") && said.contains("`sequence_len`"),
        "{said}"
    );
}

#[test]
fn this_program_s_own_engine_is_planned_in_the_same_words() {
    let folder = study_of(LLAMA_8B);
    let own = |more: &[&str]| {
        called(
            folder.path(),
            &[&["plan", "space.yaml", "--stack", "peft-tune"], more].concat(),
        )
    };
    let large = own(&["--device", "A100 80GB", "--json"]);
    let said = String::from_utf8_lossy(&large.stderr).into_owned();
    assert_eq!(large.status.code(), Some(0), "{said}");
    let plan: Value = serde_json::from_slice(&large.stdout).unwrap();
    let peak = plan["peak_tensors_bytes"].as_u64().unwrap();
    let components = plan["components"].as_object().unwrap();
    assert_eq!(components.values().filter_map(Value::as_u64).sum::<u64>(), peak);
    assert!(plan["tokens_per_s"].as_f64().is_some_and(|speed| speed > 0.0));
    assert_eq!(plan["verdict"]["fit"], "fits_by_an_unproven_model", "{plan:#}");
    assert_eq!(plan["assumed"]["tool"], "peft-tune, as --stack says");
    assert!(plan["limits"]["largest_micro_batch"].as_u64() >= Some(1));
    assert!(!plan["levers"].as_array().unwrap().is_empty() && !plan["frontier"].as_array().unwrap().is_empty());

    // The same engine as `plan` without a stack speaks of.
    let usual: Value = serde_json::from_str(&planned(folder.path(), &["--json", "--top", "1000"])).unwrap();
    let (batch, adapter) = (&plan["setting"]["batch"], &plan["setting"]["adapter"]);
    let is_same = |one: &&Value| {
        let params = &one["params"];
        params["micro_batch"] == batch["micro_batch"]
            && params["rank"] == adapter["rank"]
            && params["precision"] == "bf16"
            && params["gradient_checkpointing"] == "none"
    };
    let same = usual["settings"].as_array().unwrap().iter().find(is_same).unwrap();
    let parts = same["memory_by_part"].as_object().unwrap();
    assert_eq!(parts.values().filter_map(Value::as_u64).sum::<u64>(), peak);

    let small = own(&["--device", "T4"]);
    assert_eq!(small.status.code(), Some(7), "weights alone are 15 GiB");
    let text = String::from_utf8_lossy(&small.stdout).into_owned();
    for part in [
        "plan for peft-tune",
        "verdict       does not fit",
        "component     weights",
        "lever         weights in NF4",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let anywhere = own(&[]);
    assert_eq!(anywhere.status.code(), Some(0));
    for wrong in [&["--device", "T4", "--sharing", "zero3"][..], &["--device", "T5"]] {
        assert_eq!(own(wrong).status.code(), Some(2), "{wrong:?}");
    }
    let check = called(folder.path(), &["plan", "--check", "a.yaml", "--stack", "peft-tune"]);
    assert_eq!(check.status.code(), Some(2));
}

#[test]
fn updates_on_the_host_take_the_states_off_a_gpu() {
    let folder = study_of(GEMMA_2_9B);
    let space = SPACE
        .replace(
            "micro_batch: [1, 2, 4, 8, 16]",
            "micro_batch: 1\n  optimizer_offload: [none, host]",
        )
        .replace("rank: [8, 16]", "rank: 64")
        .replace("gradient_checkpointing: [none, full]", "gradient_checkpointing: full")
        .replace("precision: [bf16, nf4]", "precision: nf4");
    std::fs::write(folder.path().join("space.yaml"), space).unwrap();
    let plan: Value = serde_json::from_str(&planned(folder.path(), &["--json", "--top", "1000"])).unwrap();
    let setting = |offload: &str| {
        let mut settings = plan["settings"].as_array().unwrap().iter();
        settings
            .find(|setting| setting["params"]["optimizer_offload"] == offload)
            .unwrap()
    };
    let number = |setting: &Value, part: &str| setting["memory_by_part"][part].as_u64().unwrap();
    let (none, host) = (setting("none"), setting("host"));
    let (states, gradients) = (number(none, "optimizer_state"), number(none, "gradients"));
    assert_eq!((states, number(host, "optimizer_state")), (2 * gradients, 0));
    let total = |setting: &Value| setting["peak_memory"]["value"].as_f64().unwrap();
    assert_eq!(total(none) - total(host), states as f64);
    assert_eq!(
        (none["host_memory"].as_u64(), host["host_memory"].as_u64()),
        (Some(0), Some(states + 2 * gradients))
    );
    assert!(planned(folder.path(), &[]).contains("host memory"));
    // As one setting of this program's own engine.
    let own = |more: &[&str]| {
        let all = [
            &["plan", "space.yaml", "--stack", "peft-tune", "--device", "A100 80GB"],
            more,
        ]
        .concat();
        let output = called(folder.path(), &all);
        assert_eq!(
            output.status.code(),
            Some(0),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).unwrap() + &String::from_utf8_lossy(&output.stderr)
    };
    let text = own(&["--offload"]);
    assert!(
        text.contains("updates on the host") && text.contains("of the host's memory"),
        "{text}"
    );
    assert!(own(&[]).contains("lever         optimizer states and updates on the host"));
}

#[test]
fn a_model_that_no_device_holds_is_planned_on_eight_that_share_its_weights() {
    let folder = study_of(LLAMA_3_70B);
    let space = SPACE
        .replace(
            "micro_batch: [1, 2, 4, 8, 16]",
            "micro_batch: 1\n  devices: 8\n  sharding: [none, full]",
        )
        .replace("precision: [bf16, nf4]", "precision: bf16");
    std::fs::write(folder.path().join("space.yaml"), space).unwrap();
    let plan: Value = serde_json::from_str(&planned(folder.path(), &["--json", "--top", "1000"])).unwrap();
    let settings = plan["settings"].as_array().unwrap();
    assert!(!settings.is_empty());
    // 80 layers of 855,638,016 weights in bf16: an eighth of them and two layers are there, and embedding, head and norms.
    let layer = 2 * (2 * 8192 * 8192 + 2 * 1024 * 8192 + 3 * 28672 * 8192) as u64;
    let whole = 2 * (2 * 128_256 * 8192 + (2 * 80 + 1) * 8192) as u64;
    for setting in settings {
        assert_eq!(setting["params"]["sharding"], "full", "140 GB fit nowhere: {setting:#}");
        let weights = setting["memory_by_part"]["base_weights"].as_u64().unwrap();
        assert_eq!(weights, 80 * layer / 8 + 2 * layer + whole);
    }
    let own = |sharing: &str| {
        let more = [
            "plan",
            "space.yaml",
            "--stack",
            "peft-tune",
            "--device",
            "A100 80GB",
            "--sharing",
            sharing,
        ];
        let output = called(folder.path(), &more);
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let (code, text) = own("fsdp");
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("8 devices (frozen weights shared out)"), "{text}");
    let (code, text) = own("copies");
    assert_eq!(code, Some(7), "{text}");
    assert!(
        text.contains("lever         frozen weights shared out among the devices"),
        "{text}"
    );
    let (code, _) = own("zero3");
    assert_eq!(code, Some(2), "gradients and states are on every device");
    // Each device receives seven eighths of 137 GB twice for a row: a second over NVLink, and a dozen over PCI Express.
    let on = |device: &str| {
        let arguments = ["plan", "space.yaml", "--device", device];
        let text = called(folder.path(), &arguments);
        let json = called(folder.path(), &[&arguments[..], &["--json"]].concat());
        let plan: Value = serde_json::from_slice(&json.stdout).unwrap();
        (
            plan["settings"][0]["scaling"].clone(),
            String::from_utf8(text.stdout).unwrap(),
        )
    };
    let ((nvlink, _), (pcie, text)) = (on("A100 80GB"), on("A100 80GB PCIe"));
    let number = |scaling: &Value, name: &str| scaling[name].as_f64().unwrap();
    for scaling in [&nvlink, &pcie] {
        let (devices, speedup) = (number(scaling, "devices"), number(scaling, "speedup"));
        assert!(devices == 8.0 && speedup < 8.0, "{scaling:#}");
        assert!(
            (speedup / 8.0 - number(scaling, "efficiency")).abs() < 1e-12,
            "{scaling:#}"
        );
    }
    assert_eq!(nvlink["link"]["kind"]["nvlink"]["generation"], 3, "{nvlink:#}");
    assert!(number(&pcie, "efficiency") < number(&nvlink, "efficiency"), "{pcie:#}");
    assert!(number(&pcie, "link_share") > 0.5, "{pcie:#}");
    assert!(
        text.contains("devices       8 are ") && text.contains("; the link is the bottleneck"),
        "{text}"
    );
}

#[test]
fn several_devices_in_another_tool_are_compared_with_one() {
    let folder = study_of(LLAMA_8B);
    let plan = |devices: &str, device: &str| -> Value {
        let arguments = [
            "plan",
            "space.yaml",
            "--stack",
            "trl",
            "--json",
            "--devices",
            devices,
            "--device",
            device,
        ];
        serde_json::from_slice(&called(folder.path(), &arguments).stdout).unwrap()
    };
    assert_eq!(plan("1", "A100 80GB")["scaling"], Value::Null);
    let (one, four) = (plan("1", "A100 80GB"), plan("4", "A100 80GB"));
    let speed = |plan: &Value| plan["tokens_per_s"].as_f64().unwrap();
    let scaling = &four["scaling"];
    let speedup = scaling["speedup"].as_f64().unwrap();
    assert!((speedup - speed(&four) / speed(&one)).abs() < 1e-6, "{scaling:#}");
    assert!(
        speedup > 3.0 && speedup < 4.0,
        "adapters alone are added up: {scaling:#}"
    );
    let cards = plan("4", "RTX 3090");
    assert_eq!(cards["scaling"]["link"]["kind"]["pcie"]["generation"], 4, "{cards:#}");
    let bridge = &cards["scaling"]["link"]["uncounted_bridge"];
    assert_eq!(bridge["both_ways_bytes_per_s"], 112.5e9, "{cards:#}");
}

/// A study of the model, tokenizer and rows that come with the program.
fn study_of_quickstart(data: &str, rest: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let quickstart = Path::new(env!("CARGO_MANIFEST_DIR")).join("search_spaces/quickstart");
    let quickstart = quickstart.display();
    let data = data.replace("HERE", &quickstart.to_string());
    let space = format!(
        "study: rows\nmodel: {quickstart}/base\ndata: {{train: {data}, held_out: 0.1}}\n\
         space: {{rank: [2, 4], micro_batch: [1, 2, 4, 8]}}\n{rest}budget: {{trials: 4}}\n"
    );
    std::fs::write(folder.path().join("space.yaml"), space).unwrap();
    folder
}

fn planned_rows(folder: &Path, more: &[&str]) -> (Value, String) {
    let output = called(
        folder,
        &[&["plan", "space.yaml", "--json", "--device", "L4"], more].concat(),
    );
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{told}");
    (serde_json::from_slice(&output.stdout).unwrap(), told)
}

#[test]
fn lengths_of_the_rows_and_their_padding_are_those_that_are_dealt() {
    use peft_tune::space::StudyFile;
    use peft_tune_core::recipe::BatchSettings;
    use peft_tune_engine::data::{BatchSource, PreparedData, RowOrder};
    use peft_tune_engine::hub::ModelFiles;

    let folder = study_of_quickstart("HERE/train.jsonl", "trial: {sequence_length: 64}\n");
    let (plan, _) = planned_rows(folder.path(), &[]);
    let base = StudyFile::read(&folder.path().join("space.yaml"))
        .unwrap()
        .base
        .unwrap();
    let files = ModelFiles::resolve(&base.model).unwrap();
    let data = PreparedData::of_recipe(&base, &files).unwrap();
    let statistics = data.train().statistics();
    let lengths = &plan["data"];
    assert_eq!(lengths["rows"], statistics.rows - statistics.empty_rows);
    assert_eq!(lengths["tokens"], statistics.tokens + statistics.cut_tokens);
    let bins = lengths["histogram"].as_array().unwrap();
    assert_eq!(
        bins.iter().filter_map(|bin| bin["rows"].as_u64()).sum::<u64>(),
        lengths["rows"].as_u64().unwrap()
    );
    let at = &lengths["at"][0];
    assert!(statistics.cut_rows > 0);
    assert_eq!(
        (&at["cut_rows"], &at["longest"]),
        (&statistics.cut_rows.into(), &64.into())
    );
    let padding = at["padding"].as_array().unwrap();
    assert_eq!(padding.len(), 4, "each micro-batch of the space");
    for one in padding {
        let micro_batch = one["micro_batch"].as_u64().unwrap() as usize;
        let batch = BatchSettings {
            micro_batch,
            sequence_length: 64,
            ..BatchSettings::default()
        };
        let source = BatchSource::new(data.train().clone(), &batch, RowOrder::Shuffled { seed: 3 }).unwrap();
        let (mut tokens, mut padded) = (0, 0);
        for step in 0..40 * source.steps_per_epoch() {
            for batch in source.global_batch(step) {
                tokens += batch.tokens();
                padded += batch.longest() * (batch.offsets.len() - 1);
            }
        }
        let dealt = 1.0 - tokens as f64 / padded as f64;
        let said = one["share"].as_f64().unwrap();
        assert!(
            (said - dealt).abs() < 0.005,
            "micro-batch {micro_batch}: {said} and {dealt}"
        );
    }
    let text = called(folder.path(), &["plan", "space.yaml", "--device", "L4"]);
    let text = String::from_utf8(text.stdout).unwrap();
    for part in [
        "\ndata\n",
        "tokens a row",
        "rows are cut",
        "at micro-batch 8",
        "% full",
        "###",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn peaks_are_those_of_the_longest_rows_where_no_row_is_full() {
    let folder = study_of_quickstart("HERE/train.jsonl", "trial: {sequence_length: 512}\n");
    let (ours, _) = planned_rows(folder.path(), &[]);
    let longest = ours["data"]["longest"].as_u64().unwrap();
    assert!(longest < 512);
    let peak = |plan: &Value| plan["peak_tensors_bytes"].as_u64().unwrap();
    for (stack, multiple) in [("trl", 1), ("llamafactory", 8), ("axolotl", 64)] {
        let (plan, told) = planned_rows(folder.path(), &["--stack", stack]);
        let padded = longest.next_multiple_of(multiple);
        assert_eq!(plan["setting"]["sequence_length"], padded, "{stack}");
        assert!(
            told.contains(&format!("no row is longer than {longest} tokens")),
            "{told}"
        );
        // The same as that length as the limit, and less than full rows.
        let same = study_of_quickstart("HERE/train.jsonl", &format!("trial: {{sequence_length: {padded}}}\n"));
        assert_eq!(peak(&planned_rows(same.path(), &["--stack", stack]).0), peak(&plan));
        let full = study_of_quickstart("gone.jsonl", "trial: {sequence_length: 512}\n");
        assert!(peak(&planned_rows(full.path(), &["--stack", stack]).0) > peak(&plan));
    }
    let full = study_of_quickstart("gone.jsonl", "trial: {sequence_length: 512}\n");
    let bytes = |plan: &Value| plan["settings"][0]["peak_memory"]["value"].as_f64().unwrap();
    let (unknown, _) = planned_rows(full.path(), &[]);
    assert!(
        bytes(&unknown) > bytes(&ours),
        "full rows are assumed where the data are not here"
    );
}

#[test]
fn a_plan_without_the_data_goes_on_and_says_so() {
    let folder = study_of_quickstart("gone.jsonl", "trial: {sequence_length: 128}\n");
    for more in [&[][..], &["--stack", "trl"]] {
        let (plan, told) = planned_rows(folder.path(), more);
        assert!(plan["data"].is_null());
        assert!(told.contains("no data at") && told.contains("gone.jsonl"), "{told}");
        assert!(told.contains("assumed to be full"), "{told}");
    }
    // A file that is none of rows is refused as everywhere, with its row, by dry runs as well.
    let broken = study_of_quickstart("broken.jsonl", "trial: {sequence_length: 128}\n");
    std::fs::write(
        broken.path().join("broken.jsonl"),
        "{\"prompt\": \"a\", \"completion\": \"b\"}\n{\"prompt\": 3\n",
    )
    .unwrap();
    for words in [["plan", "space.yaml", "--json"], ["search", "space.yaml", "--dry-run"]] {
        let output = called(broken.path(), &words);
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{told}");
        assert!(
            told.contains("broken.jsonl line 2") && output.stdout.is_empty(),
            "{told}"
        );
    }
}
