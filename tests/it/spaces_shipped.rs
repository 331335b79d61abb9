//! The space files that come with the program, and the `schema` command that lets editors complete them.

use std::path::{Path, PathBuf};

use assert_cmd::Command;
use peft_tune::space::{ReadOptions, StudyFile, recipe_for};
use peft_tune_search::SamplerKind;
use serde_json::Value;

/// Every shipped study file for real users; their models and data are the user's own.
fn shipped() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("search_spaces");
    let mut paths: Vec<_> = ["lora-24gb", "qlora-7b-16gb", "throughput-only", "wide"]
        .iter()
        .map(|name| folder.join(name).with_extension("yaml"))
        .collect();
    paths.sort();
    paths
}

#[test]
fn shipped_spaces_are_sound_and_every_corner_of_them_is_a_recipe() {
    for path in shipped() {
        let study = StudyFile::read_with(&path, ReadOptions { check_files: false })
            .unwrap_or_else(|error| panic!("{}", error.rendered(false)));
        assert_eq!(study.name, path.file_stem().unwrap().to_str().unwrap());
        assert_eq!(study.sampler.kind, SamplerKind::Auto);
        assert!(study.budget.trials.is_some() && study.budget.time_s.is_some());
        let mut invalid = 0;
        for point in 0..500u32 {
            let unit: Vec<f64> = (0..study.space.dimensions())
                .map(|axis| (f64::from(point) * (0.618 + 0.11 * axis as f64)).fract())
                .collect();
            invalid += usize::from(recipe_for(&study, &study.space.params_at(&unit)).is_err());
        }
        assert_eq!(invalid, 0, "{}", path.display());
    }
}

#[test]
fn shipped_spaces_say_when_to_use_them_and_what_to_edit() {
    for path in shipped() {
        let text = std::fs::read_to_string(&path).unwrap();
        let opening: Vec<_> = text.lines().take_while(|line| line.starts_with('#')).collect();
        let opening = opening.join("\n");
        assert!(
            opening.contains("Use it ") && opening.contains("Edit: "),
            "{}",
            path.display()
        );
        assert_eq!(
            text.matches("train.jsonl").count(),
            1,
            "the user's file has one place in {}",
            path.display()
        );
    }
}

fn schema(file: &str) -> Value {
    let output = Command::cargo_bin("peft-tune")
        .unwrap()
        .args(["schema", file])
        .assert()
        .success();
    serde_json::from_slice(&output.get_output().stdout).unwrap()
}

#[test]
fn the_schema_describes_every_key_of_the_shipped_spaces() {
    let schema = schema("space");
    assert_eq!(
        schema["required"],
        serde_json::json!(["space"]),
        "all else has a default"
    );
    let parameters = &schema["else"]["properties"]["space"]["properties"];
    for path in shipped() {
        let options = ReadOptions { check_files: false };
        let study = StudyFile::read_with(&path, options).unwrap();
        let names = study.space.parameters.iter().map(|parameter| &parameter.name);
        for name in names.chain(study.fixed.keys()) {
            assert!(parameters[name]["description"].is_string(), "{name}");
        }
        for line in std::fs::read_to_string(&path).unwrap().lines() {
            let key = line.split(':').next().unwrap_or_default();
            if !key.is_empty() && key.chars().all(|c| c.is_ascii_lowercase()) {
                let property = &schema["properties"][key];
                assert!(property["description"].is_string(), "{key} of {}", path.display());
            }
        }
    }
}

#[test]
fn every_reference_in_the_schemas_leads_somewhere() {
    for file in ["space", "recipe"] {
        let schema = schema(file);
        let text = schema.to_string();
        for (start, _) in text.match_indices("#/$defs/") {
            let name: String = text[start + "#/$defs/".len()..]
                .chars()
                .take_while(|c| *c != '"')
                .collect();
            assert!(schema["$defs"][&name].is_object(), "{name}");
        }
    }
}

#[test]
fn the_schema_asks_for_known_settings_unless_a_command_runs_the_trials() {
    let schema = schema("space");
    assert_eq!(
        schema["if"]["properties"]["backend"]["required"],
        serde_json::json!(["command"])
    );
    let definitions = &schema["$defs"];
    let forms = &definitions["Backend"]["anyOf"];
    assert_eq!(
        forms[0]["enum"],
        serde_json::json!(["native", "trl", "unsloth", "auto"])
    );
    for key in ["command", "folder", "env", "trl", "unsloth", "auto"] {
        let property = &definitions["BackendKeys"]["properties"][key];
        assert!(property["description"].is_string(), "{key}: {property}");
    }
    assert!(definitions["TrlKeys"]["properties"]["python"].is_object());
}

#[test]
fn the_schemas_take_counts_with_units() {
    for file in ["space", "recipe"] {
        let schema = schema(file);
        let definitions = &schema["$defs"];
        let forms = &definitions["Count"]["anyOf"];
        assert_eq!(forms[0]["type"], "integer", "{forms}");
        assert_eq!(forms[1]["type"], "string", "{forms}");
        let length = definitions["TrainingLength"].to_string();
        assert_eq!(length.matches("#/$defs/Count").count(), 2, "{length}");
        let rows = definitions["DataSettings"]["properties"]["max_rows"].to_string();
        assert!(rows.contains("#/$defs/Count"), "{rows}");
    }
    let schema = schema("space");
    let parameters = &schema["else"]["properties"]["space"]["properties"];
    let value = |name: &str| parameters[name]["anyOf"][0].to_string();
    assert!(
        value("sequence_length").contains("string"),
        "{}",
        value("sequence_length")
    );
    assert!(!value("rank").contains("string"), "{}", value("rank"));
}

#[test]
fn the_recipe_schema_describes_every_field() {
    let schema = schema("recipe");
    for field in [
        "model",
        "data",
        "adapter",
        "precision",
        "batch",
        "optimizer",
        "schedule",
        "training",
    ] {
        assert!(schema["properties"][field].is_object(), "{field}");
    }
    assert_eq!(schema["properties"]["model"]["type"], "string");
}
