//! `peft-tune tune-step`, as people call it.

use serde_json::Value;

use super::command::{recipe, refused, shown};

/// Full checkpointing with room left, a tiny micro-batch, and short rows.
const SLOW: &str = "gradient_checkpointing: full\n";

#[test]
fn a_tuned_recipe_is_the_old_one_with_the_changes_that_were_kept() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    recipe(directory, SLOW);
    let line = [
        "tune-step",
        "recipe.yaml",
        "--budget",
        "500ms",
        "--json",
        "--output",
        "tuned.yaml",
    ];
    let result: Value = serde_json::from_str(&shown(&line, directory)).unwrap();
    let tried = result["tried"].as_array().unwrap();
    assert!(!tried.is_empty(), "{result}");
    let kept = |change: &Value| {
        tried
            .iter()
            .any(|one| one["outcome"] == "kept" && one["finding"]["change"] == *change)
    };
    let tuned = &result["recipe"];
    for one in tried {
        let change = &one["finding"]["change"];
        // Neither may be tried without being allowed.
        assert!(
            change["precision"].is_null() && change != "packing" && change["rank"].is_null(),
            "{one}"
        );
        match one["outcome"].as_str() {
            Some("kept") => {
                let (value, uncertainty) = (&one["throughput"]["value"], &one["throughput"]["uncertainty"]);
                assert!(value.as_f64().unwrap() - uncertainty.as_f64().unwrap() > 1.0, "{one}");
            }
            _ => assert!(one["finding"]["verified"].is_object(), "{one}"),
        }
    }
    let checkpointing = serde_json::json!({"checkpointing": "none"});
    let is_none = tuned["gradient_checkpointing"] == "none";
    assert_eq!(is_none, kept(&checkpointing), "{result}");
    // What a step sees of the data is the same.
    let rows = |recipe: &Value| {
        let batch = &recipe["batch"];
        batch["micro_batch"].as_u64().unwrap() * batch["gradient_accumulation"].as_u64().unwrap()
    };
    assert_eq!(rows(tuned), 4);
    assert_eq!(tuned["batch"]["packing"], false);

    let has_file = directory.join("tuned.yaml").exists();
    let any_kept = tried.iter().any(|one| one["outcome"] == "kept");
    assert_eq!((has_file, result["output"].is_string()), (any_kept, any_kept));
    assert_eq!(result["throughput_ratio"].is_object(), any_kept);
    if any_kept {
        shown(&["train", "tuned.yaml", "--output", "adapter"], directory);
        assert!(directory.join("adapter/adapter_model.safetensors").exists());
    }
    let profiles = shown(&["query", "select count(*) from profile", "--format", "csv"], directory);
    let rounds = 1 + tried.iter().filter(|one| one["outcome"] == "kept").count();
    assert!(profiles.ends_with(&format!("\n{rounds}\n")), "{profiles}");
}

#[test]
fn nothing_is_tried_after_the_time_and_what_was_left_is_told() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    recipe(directory, SLOW);
    let line = [
        "tune-step",
        "recipe.yaml",
        "--budget",
        "1s",
        "--time",
        "1ms",
        "--no-store",
    ];
    let text = shown(&line, directory);
    assert!(text.starts_with("no change pays"), "{text}");
    assert!(
        text.contains("not tried, the time was over: gradient_checkpointing: none"),
        "{text}"
    );
    assert!(!directory.join("recipe-tuned.yaml").exists() && !directory.join("peft-tune.db").exists());
}

#[test]
fn a_place_that_cannot_be_written_is_told_before_anything_is_measured() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    recipe(directory, "");
    std::fs::write(directory.join("recipe-tuned.yaml"), "mine").unwrap();
    let there = refused(&["tune-step", "recipe.yaml"], directory);
    assert!(
        there.contains("recipe-tuned.yaml is already there; give another `--output`, or `--force`"),
        "{there}"
    );
    let nowhere = refused(&["tune-step", "recipe.yaml", "--output", "no/where.yaml"], directory);
    assert!(nowhere.contains("there is no folder no"), "{nowhere}");
    let kind = refused(&["tune-step", "recipe.yaml", "--allow", "anything"], directory);
    assert!(kind.contains("packing, precision, rank, optimizer"), "{kind}");
    assert_eq!(
        std::fs::read_to_string(directory.join("recipe-tuned.yaml")).unwrap(),
        "mine"
    );
}
