//! The commands as people call them.

use std::path::{Path, PathBuf};
use std::process::Output;

use serde_json::{Value, json};

use super::trace_format::assert_sound;
use crate::golden::folder;

fn run(arguments: &[&str], directory: &Path) -> Output {
    crate::program()
        .args(arguments)
        .current_dir(directory)
        .env_remove("PEFT_TUNE_DB")
        .output()
        .unwrap()
}

/// Standard output of a command that succeeds.
pub(super) fn shown(arguments: &[&str], directory: &Path) -> String {
    let output = run(arguments, directory);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Standard error of a command that refuses its input.
pub(super) fn refused(arguments: &[&str], directory: &Path) -> String {
    let output = run(arguments, directory);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// A recipe on the toy model and 40 tokenised rows.
pub(super) fn recipe(directory: &Path, more: &str) -> PathBuf {
    let row = |row: usize| {
        let ids: Vec<String> = (0..20 + row % 7)
            .map(|place| (5 + (place * 7 + row) % 200).to_string())
            .collect();
        format!("{{\"input_ids\": [{}]}}\n", ids.join(", "))
    };
    let rows: String = (0..40).map(row).collect();
    std::fs::write(directory.join("train.jsonl"), rows).unwrap();
    let model = folder("ref_llama").join("model");
    let text = format!(
        "model: {}\ndata: {{train: train.jsonl}}\nadapter: {{rank: 4}}\nprecision: fp32\n\
         batch: {{micro_batch: 2, gradient_accumulation: 2, sequence_length: 64}}\n{more}",
        model.display()
    );
    let path = directory.join("recipe.yaml");
    std::fs::write(&path, text).unwrap();
    path
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

#[test]
fn a_profile_is_shown_traced_and_stored() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    recipe(directory, "gradient_checkpointing: full\n");
    let arguments = [
        "profile",
        "recipe.yaml",
        "--budget",
        "1s",
        "--trace",
        "trace.json",
        "--tensorboard",
        "events",
        "--json",
    ];
    let text = shown(&arguments, directory);
    let result: Value = serde_json::from_str(&text).unwrap();
    let profile = &result["profile"];
    let phases = profile["phases"].as_array().unwrap();
    let share: f64 = phases
        .iter()
        .filter(|phase| phase["nested"] == false)
        .map(|phase| number(&phase["share"]))
        .sum();
    assert!((share - 1.0).abs() < 1e-9, "{share}");
    assert!(
        phases
            .iter()
            .any(|phase| phase["phase"] == "recompute" && number(&phase["seconds"]) > 0.0)
    );
    let memory = &profile["memory"];
    let parts: f64 = memory["parts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|part| number(&part["bytes"]))
        .sum();
    assert_eq!(parts, number(&memory["peak_bytes"]));
    assert!(number(&profile["arithmetic"]["hardware_flops"]) > number(&profile["arithmetic"]["model_flops"]));
    assert!(number(&profile["steps"]["measured_steps"]) >= 2.0);

    let trace: Value = serde_json::from_str(&std::fs::read_to_string(directory.join("trace.json")).unwrap()).unwrap();
    assert_sound(&trace);
    let events = trace["traceEvents"].as_array().unwrap();
    for (name, kind) in [
        ("layer 1", "X"),
        ("matmul_nt", "X"),
        ("prepare", "X"),
        ("memory (bytes)", "C"),
    ] {
        assert!(
            events.iter().any(|event| event["name"] == name && event["ph"] == kind),
            "{name}"
        );
    }
    assert_eq!(std::fs::read_dir(directory.join("events")).unwrap().count(), 1);

    let query = |sql: &str| shown(&["query", sql, "--format", "csv"], directory);
    assert!(query("select count(*) from phase where phase = 'idle'").ends_with("\n1\n"));
    let agree = "select abs(sum(o.seconds) - (select sum(op_seconds) from phase where phase in \
                 ('forward', 'backward', 'optimizer'))) < 0.05 * sum(o.seconds) from op_profile o";
    assert!(
        query(agree).ends_with("\n1\n"),
        "{}",
        query("select sum(seconds) from op_profile")
    );
    assert!(query("select tokens_per_s > 0 and peak_memory_bytes > 0 from profile").ends_with("\n1\n"));
}

#[test]
fn a_profile_is_compared_with_an_earlier_one_and_its_findings_are_run() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    recipe(directory, "gradient_checkpointing: full\n");
    shown(&["profile", "recipe.yaml", "--budget", "500ms"], directory);
    let arguments = [
        "profile",
        "recipe.yaml",
        "--budget",
        "500ms",
        "--verify",
        "--against",
        "1",
        "--reference-throughput",
        "1e6",
    ];
    let text = shown(&arguments, directory);
    assert!(text.contains("profile 1 (recipe.yaml) against this profile"), "{text}");
    assert!(
        text.contains("recomputes_with_room_left") && text.contains("measured   "),
        "{text}"
    );
    assert!(text.contains("1,000,000 tokens/s; this is"), "{text}");
    let sql = "select count(*) from diagnosis where rule = 'recomputes_with_room_left' and profile_id = 2 \
               and predicted_gain is not null and measured_gain is not null";
    assert!(shown(&["query", sql, "--format", "csv"], directory).ends_with("\n1\n"));
}

#[test]
fn a_processor_has_no_published_rate_and_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    recipe(directory, "");
    let arguments = ["profile", "recipe.yaml", "--budget", "200ms", "--no-store"];
    let asked = [&arguments[..], &["--device", "cpu", "--reference-throughput", "auto"]].concat();
    let text = shown(&asked, directory);
    assert!(text.contains("published   published rates are of GPUs"), "{text}");
    assert!(!text.contains("\nreference "), "{text}");
    let fields = |more: &[&str]| -> (Value, Value) {
        let text = shown(
            &[&arguments[..], &["--device", "cpu", "--json"], more].concat(),
            directory,
        );
        let mut result: Value = serde_json::from_str(&text).unwrap();
        (result["reference"].take(), result["published"].take())
    };
    let (reference, published) = fields(&["--reference-throughput", "auto"]);
    assert!(reference.is_null(), "{reference}");
    assert!(
        published.as_str().unwrap().starts_with("published rates are of GPUs"),
        "{published}"
    );
    let (reference, published) = fields(&["--reference-throughput", "1e6"]);
    assert_eq!((&reference["tokens_per_s"], &published), (&json!(1e6), &Value::Null));
    assert_eq!(fields(&[]), (Value::Null, Value::Null));
    let wrong = [&arguments[..], &["--reference-throughput", "fast"]].concat();
    assert!(refused(&wrong, directory).contains("`auto`"));
}

#[test]
fn what_cannot_be_profiled_is_refused_with_what_to_do() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    recipe(directory, "");
    let cases: [(&[&str], &str); 6] = [
        (&["profile", "missing.yaml"], "missing.yaml"),
        (
            &["profile", "recipe.yaml", "--trace", "none/trace.json"],
            "there is no folder none; create it first",
        ),
        (&["profile", "recipe.yaml", "--trace", "."], "name a file in it"),
        (&["profile", "recipe.yaml", "--against", "7"], "peft-tune.db"),
        (&["profile", "--trial", "3"], "peft-tune.db"),
        (&["infer-bench", "--model", "missing"], "missing"),
    ];
    for (arguments, message) in cases {
        let error = refused(arguments, directory);
        assert!(error.contains(message), "{arguments:?}: {error}");
    }
    recipe(directory, "optimizer: {kind: adamw}\n");
    let impossible = std::fs::read_to_string(directory.join("recipe.yaml")).unwrap();
    std::fs::write(
        directory.join("recipe.yaml"),
        impossible.replace("rank: 4", "rank: 4000"),
    )
    .unwrap();
    let error = refused(&["profile", "recipe.yaml", "--budget", "1s"], directory);
    assert!(error.contains("rank") || error.contains("4000"), "{error}");
    let stored = shown(&["query", "select count(*) from profile", "--format", "csv"], directory);
    assert!(stored.ends_with("\n0\n"), "nothing half-done is stored: {stored}");
}

#[test]
fn requests_are_answered_from_text_to_text_with_adapters_of_their_own() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let model = crate::generate::model_with_tokenizer(directory);
    let model = model.to_str().unwrap();
    std::fs::write(directory.join("prompts.txt"), "the river\n\nmountains and snow\nA\n").unwrap();
    let base = [
        "infer-bench",
        "--model",
        model,
        "--prompt-lengths",
        "9",
        "--budget",
        "0s",
    ];
    let measured = |more: &[&str]| {
        let common: [&str; 6] = ["--batch-sizes", "1,2", "--new-tokens", "5", "--prompts", "prompts.txt"];
        shown(&[&base[..], &common, more].concat(), directory)
    };
    let text = measured(&["--ranks", "2", "--together", "3"]);
    for part in ["From text to text:", "3 adapters, r6 in all", "merged r2", "text share"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let query = |sql: &str| shown(&["query", sql, "--format", "csv"], directory);
    // Two batch sizes of four forms; each prompt once, whatever the batch.
    let sql = "select count(*), min(requests), max(requests), min(first_token_p50_s <= request_p50_s), max(new_tokens) <= 5, \
               min(text_share > 0 and text_share < 1), sum(form = 'together' and adapters = 3 and rank = 6) \
               from infer_requests where bench = 1";
    assert!(query(sql).ends_with("\n8,3,3,1,1,1,2\n"), "{}", query(sql));
    let sql = "select count(*), sum(form = 'together' and adapters = 3) from infer_bench where bench = 1";
    assert!(query(sql).ends_with("\n8,2\n"), "{}", query(sql));
    let adapter = folder("ref_llama").join("adapter_init");
    let adapters = format!("{0},{0}", adapter.display());
    let json: serde_json::Value = serde_json::from_str(&measured(&["--adapters", &adapters, "--json"])).unwrap();
    let forms: Vec<&str> = json
        .as_array()
        .unwrap()
        .iter()
        .map(|form| form["form"].as_str().unwrap())
        .collect();
    assert_eq!(forms, ["base", "together"]);
    assert_eq!(json[1]["requests"][0]["requests"], 3);

    std::fs::write(directory.join("empty.txt"), "\n \n").unwrap();
    std::fs::write(directory.join("long.txt"), "word ".repeat(2000)).unwrap();
    let cases = [
        ("empty.txt", "there is no prompt in it"),
        ("none.txt", "none.txt"),
        ("long.txt", "shorten the prompt"),
    ];
    for (file, message) in cases {
        let error = refused(
            &[&base[..], &["--batch-sizes", "1", "--prompts", file]].concat(),
            directory,
        );
        assert!(error.contains(message), "{file}: {error}");
    }
}

#[test]
fn inference_is_measured_stored_and_drawn() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let model = folder("ref_llama").join("model");
    let arguments = [
        "infer-bench",
        "--model",
        model.to_str().unwrap(),
        "--ranks",
        "2,4",
        "--batch-sizes",
        "1,3",
        "--prompt-lengths",
        "9",
        "--new-tokens",
        "4",
        "--budget",
        "0s",
        "--svg",
        "curve.svg",
    ];
    let text = shown(&arguments, directory);
    for name in ["base", "adapter r2", "merged r4", "median time of a token"] {
        assert!(text.contains(name), "{text}");
    }
    let svg = std::fs::read_to_string(directory.join("curve.svg")).unwrap();
    assert_eq!(svg.matches("<circle").count(), 10);
    let query = |sql: &str| shown(&["query", sql, "--format", "csv"], directory);
    let sql = "select count(*), count(distinct form), min(token_p50_s <= token_p99_s), min(cache_bytes > 0), \
               min(peak_memory_bytes > cache_bytes) from infer_bench where bench = 1";
    assert!(query(sql).ends_with("\n10,3,1,1,1\n"), "{}", query(sql));
    let long = [
        "infer-bench",
        "--model",
        model.to_str().unwrap(),
        "--prompt-lengths",
        "250",
        "--new-tokens",
        "32",
    ];
    assert!(refused(&long, directory).contains("lower `--prompt-lengths`"));
}
