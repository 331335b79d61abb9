//! Prices of devices: what plans and searches cost, and the devices ranked by it.

use std::path::Path;

use serde_json::Value;

use crate::mocked::{errors_of, folder_with, peft_tune};
use crate::plan::{GEMMA_2_9B, called, study_of};

/// A study whose full training is known without its rows.
const SPACE: &str = "study: priced
model: ./model
data: {train: train.jsonl, held_out: 0.1}
space:
  micro_batch: [1, 4]
  gradient_checkpointing: [none, full]
  precision: [bf16, nf4]
trial: {sequence_length: 2048, training_tokens: 60k}
training: {length: {tokens: 10M}}
budget: {trials: 8}
";

/// A folder with the study, and further lines in its file.
fn folder(lines: &str) -> tempfile::TempDir {
    let folder = study_of(GEMMA_2_9B);
    std::fs::write(folder.path().join("space.yaml"), format!("{SPACE}{lines}")).unwrap();
    folder
}

fn said(folder: &Path, more: &[&str]) -> String {
    let output = called(folder, &[&["plan", "space.yaml"], more].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn refused(folder: &Path, arguments: &[&str]) -> String {
    let output = called(folder, arguments);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {told}");
    told
}

fn json(folder: &Path, more: &[&str]) -> Value {
    serde_json::from_str(&said(folder, &[&["--json"], more].concat())).unwrap()
}

#[test]
fn a_plan_says_what_trials_search_and_full_trainings_cost() {
    let folder = folder("");
    let folder = folder.path();
    let plan = json(folder, &["--device", "H100 SXM", "--price", "$2/h"]);
    assert_eq!(plan["price"]["usd_per_h"], 2.0);
    assert_eq!(
        (&plan["price"]["source"], &plan["price"]["devices"]),
        (&"--price".into(), &1.into())
    );
    let is_of = |usd: &Value, seconds: &Value| {
        let (usd, seconds) = (usd.as_f64().unwrap(), seconds.as_f64().unwrap());
        assert!(
            seconds > 0.0 && (usd / (seconds * 2.0 / 3600.0) - 1.0).abs() < 1e-9,
            "{usd} {seconds}"
        );
    };
    is_of(&plan["trial_usd"], &plan["trial_s"]);
    is_of(&plan["search_usd"], &plan["search_s"]);
    for one in plan["front"].as_array().unwrap() {
        is_of(&one["full_training_usd"], &one["full_training_s"]);
        let tokens = one["full_training_s"].as_f64().unwrap() * one["throughput"]["value"].as_f64().unwrap();
        assert!((tokens / 1e7 - 1.0).abs() < 1e-9, "{tokens}");
    }
    let text = said(folder, &["--device", "H100 SXM", "--price", "2"]);
    assert!(text.contains("at $2.00 an hour of a device (--price)"), "{text}");
    assert!(text.contains("full training"), "{text}");
    let told = refused(folder, &["plan", "space.yaml", "--device", "L4", "--price", "T4=1/h"]);
    assert!(told.contains("the plan is for L4"), "{told}");
    let told = refused(folder, &["plan", "space.yaml", "--device", "L4", "--price", "dear"]);
    assert!(told.contains("such as 2.49/h"), "{told}");
}

#[test]
fn a_listed_price_is_named_as_one_and_a_device_without_price_has_no_cost() {
    let folder = folder("price: 9/h\n");
    let folder = folder.path();
    // The file's price is that of the machine that searches.
    let text = said(folder, &["--device", "H100 SXM"]);
    assert!(
        text.contains(
            "at $4.29 an hour of a device (Lambda's price as reported by others on 2026-09-20, not checked; yours may differ)"
        ),
        "{text}"
    );
    let plan = json(folder, &["--device", "L40S"]);
    assert_eq!((&plan["price"], &plan["search_usd"]), (&Value::Null, &Value::Null));
    assert!(!said(folder, &["--device", "L40S"]).contains("full training"));
}

#[test]
fn devices_are_ranked_by_what_a_token_costs_there() {
    let folder = folder("");
    let folder = folder.path();
    let ranking = json(folder, &["--gpus"]);
    let devices = ranking["devices"].as_array().unwrap();
    assert_eq!(devices.len(), peft_tune_core::predict::DEVICES.len());
    let usd: Vec<Option<f64>> = devices
        .iter()
        .map(|one| one["usd_per_million_tokens"].as_f64())
        .collect();
    let priced = usd.iter().filter(|usd| usd.is_some()).count();
    assert!(priced > 5 && usd[..priced].is_sorted(), "{usd:?}");
    assert!(usd[priced..].iter().all(Option::is_none), "{usd:?}");
    for one in devices.iter().filter(|one| !one["throughput"].is_null()) {
        let bytes = one["peak_memory"]["value"].as_f64().unwrap();
        assert!(bytes <= one["memory_bytes"].as_f64().unwrap(), "{one}");
        assert!(one["fitting"].as_f64().unwrap() > 0.0, "{one}");
        if let Some(usd) = one["usd_per_million_tokens"].as_f64() {
            // Ten million tokens, on one device.
            let training = one["full_training_usd"].as_f64().unwrap();
            assert!((training / (10.0 * usd) - 1.0).abs() < 1e-9, "{one}");
        }
    }
    let text = said(folder, &["--gpus"]);
    assert!(
        text.contains("Lambda's price as reported by others on 2026-09-20, not checked"),
        "{text}"
    );
    assert!(text.contains("no price is known of "), "{text}");
    // A price of one's own moves its device to the front.
    let own = json(folder, &["--gpus", "--price", "L4=0.001/h"]);
    assert_eq!(own["devices"][0]["device"], "L4");
    assert_eq!(own["devices"][0]["price"]["source"], "--price");
    let told = refused(folder, &["plan", "space.yaml", "--gpus", "--price", "2/h"]);
    assert!(told.contains("names its device"), "{told}");
    for more in [["--device", "L4"], ["--top", "3"], ["--threads", "2"]] {
        let told = refused(folder, &[&["plan", "space.yaml", "--gpus"][..], &more].concat());
        assert!(told.contains("cannot be used with"), "{told}");
    }
}

/// A study of made-up trials, each of which trains on 300 tokens; the full training has ten thousand.
const SEARCHED: &str = "study: searched
model: ./base
data: {train: train.jsonl, held_out: held_out.jsonl}
space: {rank: [2, 4, 8], learning_rate: {low: 1e-4, high: 1e-2, scale: log}, precision: fp32}
trial: {sequence_length: 64, profile_steps: 1, profile_warmup: 0, training_tokens: 300, evaluation: {rows: 4}}
training: {length: {tokens: 10k}}
sampler: random
pruner: none
confirm: none
budget: {trials: 3}
price: 36/h
";

#[test]
fn a_search_says_what_it_cost_and_what_full_trainings_would() {
    let folder = folder_with(SEARCHED);
    let folder = folder.path();
    let output = peft_tune(folder, &["search", "space.yaml"]);
    let (said, told) = (String::from_utf8_lossy(&output.stdout).into_owned(), errors_of(&output));
    assert!(output.status.success(), "{told}");
    assert!(
        told.contains("at $36.00 an hour of a device (the study file)"),
        "{told}"
    );
    assert!(
        said.contains("the search cost $") && said.contains("full training: $"),
        "{said}"
    );
    let json = |arguments: &[&str]| -> Value {
        let output = peft_tune(folder, arguments);
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", errors_of(&output)))
    };
    // A hundredth of a dollar a second.
    let summary = json(&["search", "space.yaml", "--json"]);
    let seconds = |summary: &Value| -> f64 {
        let spent = ["trials_s", "measuring_again_s", "confirming_s"];
        spent.iter().map(|part| summary["spent"][part].as_f64().unwrap()).sum()
    };
    let is_of = |costs: &Value, usd: f64| {
        let cost = costs["search_usd"].as_f64().unwrap();
        assert!(usd > 0.0 && (cost / usd - 1.0).abs() < 1e-6, "{cost} {usd}");
    };
    let usd = 0.01 * seconds(&summary);
    is_of(&summary["costs"], usd);
    is_of(&json(&["show", "searched", "--json"])["costs"], usd);
    let front = json(&["pareto", "searched", "--json"]);
    let (costs, rows) = (&front["costs"]["full_trainings"], front["front"].as_array().unwrap());
    assert!(!rows.is_empty());
    for row in rows {
        let cost = &costs[row["trial"].to_string()];
        let speed = row["metrics"]["throughput"].as_f64().unwrap();
        assert_eq!(cost["tokens"], 10_000, "{costs}");
        assert!(
            (cost["usd"].as_f64().unwrap() / (0.01 * 1e4 / speed) - 1.0).abs() < 1e-6,
            "{costs}"
        );
    }
    let other = json(&["explain", "searched", "--json", "--price", "72/h"]);
    is_of(&other["costs"], 2.0 * usd);
    assert_eq!(other["costs"]["price"]["source"], "--price");
    let output = peft_tune(folder, &["explain", "searched"]);
    assert!(String::from_utf8_lossy(&output.stdout).contains("the search cost $"));
    let output = peft_tune(folder, &["report", "searched", "--output", "page.html"]);
    assert!(output.status.success(), "{}", errors_of(&output));
    let page = std::fs::read_to_string(folder.join("page.html")).unwrap();
    assert!(page.contains("<dt>Cost</dt>") && page.contains("Full training: $"));
    // Another price is no other study.
    std::fs::write(folder.join("space.yaml"), SEARCHED.replace("36/h", "3.6/h")).unwrap();
    let cheaper = json(&["search", "space.yaml", "--json"]);
    is_of(&cheaper["costs"], 0.001 * seconds(&cheaper));
}

#[test]
fn a_sum_is_a_budget_of_the_time_that_it_pays() {
    let folder = folder_with(SEARCHED);
    let folder = folder.path();
    let output = peft_tune(
        folder,
        &["search", "space.yaml", "--budget", "$36", "--dry-run", "--json"],
    );
    let plan: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(plan["budget"]["time_s"], 3600.0, "{}", errors_of(&output));
    assert_eq!(plan["budget"]["usd"], 36.0, "{plan}");
    let output = peft_tune(folder, &["search", "space.yaml", "--budget", "18", "--dry-run"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("$18.00 = 30m 00s in all"), "{text}");
    for (arguments, why) in [
        (vec!["--budget", "$5", "--time", "1h"], "cannot be used with"),
        (vec!["--budget", "five"], "such as 5 or 0.50"),
    ] {
        let output = peft_tune(folder, &[vec!["search", "space.yaml"], arguments].concat());
        assert_eq!(output.status.code(), Some(2));
        assert!(errors_of(&output).contains(why), "{}", errors_of(&output));
    }
    std::fs::write(folder.join("space.yaml"), SEARCHED.replace("price: 36/h\n", "")).unwrap();
    let output = peft_tune(folder, &["search", "space.yaml", "--budget", "$5", "--devices", "cpu"]);
    let told = errors_of(&output);
    assert_eq!(output.status.code(), Some(2), "{told}");
    assert!(
        told.contains("no price of cpu is known: give what yours costs") && told.contains("--price 0.50/h"),
        "{told}"
    );
    // What nobody paid has no cost.
    let output = peft_tune(folder, &["search", "space.yaml", "--json"]);
    let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(summary["costs"], Value::Null);
}
