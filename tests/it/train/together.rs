//! Several recipes with one command: each folder as its recipe alone leaves it.

use std::path::Path;
use std::process::Output;

use serde_json::Value;

use super::{Workplace, adapter_bytes, lines};

/// The recipes of `place`: the first as it is, the others with changes of lines of it.
fn with_others(place: &Workplace, others: &[(&str, &[(&str, &str)])]) {
    let first = std::fs::read_to_string(place.path("recipe.yaml")).unwrap();
    for (name, changes) in others {
        let changed = first.lines().map(|line| {
            let key = line.split(':').next().unwrap_or_default();
            let change = changes.iter().find(|(name, _)| *name == key);
            change.map_or(line.to_owned(), |(_, value)| format!("{key}: {value}"))
        });
        let text: String = changed.map(|line| line + "\n").collect();
        std::fs::write(place.path(&format!("{name}.yaml")), text).unwrap();
    }
}

const SHORT: (&str, &str) = ("training", "{length: {steps: 6}, shuffle: false, evaluate_every: 2}");

fn place() -> Workplace {
    let place = Workplace::new(&[
        ("adapter", "{rank: 4}"),
        ("training", "{length: {steps: 9}, shuffle: false, evaluate_every: 3}"),
    ]);
    let fast: &[_] = &[
        ("adapter", "{rank: 3, target_modules: attention, dropout: 0.1}"),
        ("optimizer", "{kind: lion, learning_rate: 1e-4}"),
        SHORT,
    ];
    let wide: &[_] = &[
        ("adapter", "{rank: 16, rslora: true, target_modules: mlp}"),
        ("schedule", "{kind: linear, warmup: 2}"),
        ("batch", "{micro_batch: 2, sequence_length: 256, prefetch_depth: 0}"),
    ];
    with_others(&place, &[("fast", fast), ("wide", wide)]);
    place
}

const ALL: [&str; 3] = ["recipe", "fast", "wide"];

fn train(place: &Workplace, recipes: &[&str], arguments: &[&str]) -> Output {
    let mut command = crate::program();
    command
        .arg("train")
        .args(recipes)
        .args(["--threads", "2"])
        .args(arguments);
    command
        .current_dir(place.path(""))
        .env("PEFT_TUNE_CACHE", place.path("cache"));
    command.output().unwrap()
}

fn succeed(output: Output) -> Vec<Value> {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    lines(&output.stdout)
}

/// Each object of a training, without what the clock says.
fn of(lines: &[Value], training: &str) -> Vec<Value> {
    let is_of = |line: &&Value| line.get("training").is_none_or(|name| name == training);
    let timeless = |line: &Value| {
        let mut line = line.clone();
        let object = line.as_object_mut().unwrap();
        object.retain(|key, _| !key.ends_with("seconds") && !key.ends_with("_s") && key != "output");
        object.remove("training");
        object.remove("shared_with");
        line
    };
    lines.iter().filter(is_of).map(timeless).collect()
}

fn assert_same(place: &Workplace, lines: &[Value], alone: impl Fn(&str) -> Vec<Value>, together: &Path) {
    for name in ALL {
        assert_eq!(of(lines, name), of(&alone(name), name), "{name}");
        let (one, other) = (place.path(&format!("alone-{name}")), together.join(name));
        assert!(adapter_bytes(&one) == adapter_bytes(&other), "{name}");
        assert!(
            adapter_bytes(&one.join("best")) == adapter_bytes(&other.join("best")),
            "{name}"
        );
        for file in ["adapter_config.json", "recipe.yaml"] {
            let read = |folder: &Path| std::fs::read_to_string(folder.join(file)).unwrap();
            assert_eq!(read(&one), read(&other), "{name}: {file}");
        }
    }
}

#[test]
fn each_is_the_training_that_it_is_alone() {
    let place = place();
    let files = ALL.map(|name| format!("{name}.yaml"));
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    let alone = |name: &str| {
        let output = format!("alone-{name}");
        succeed(train(
            &place,
            &[&format!("{name}.yaml")],
            &["--json", "--output", &output, "--force"],
        ))
    };
    let all = succeed(train(&place, &files, &["--json", "--output", "all"]));
    assert_same(&place, &all, alone, &place.path("all"));
    let result = std::fs::read_to_string(place.path("all/fast/result.json")).unwrap();
    let result: Value = serde_json::from_str(&result).unwrap();
    assert_eq!(result["shared_with"], 2);
    // Two at a time: the third joins when the shorter one ends, at its own first step.
    let some = succeed(train(
        &place,
        &files,
        &["--json", "--output", "some", "--at-a-time", "2"],
    ));
    assert_same(&place, &some, alone, &place.path("some"));
    let steps = some.iter().filter(|line| line["event"] == "step");
    let order: Vec<(String, u64)> = steps
        .map(|line| {
            (
                line["training"].as_str().unwrap().to_owned(),
                line["step"].as_u64().unwrap(),
            )
        })
        .collect();
    let place_of = |name: &str, step| order.iter().position(|one| *one == (name.to_owned(), step)).unwrap();
    assert!(place_of("wide", 1) > place_of("fast", 6) && place_of("wide", 1) < place_of("recipe", 9));
    // What has ended is told, and not trained again.
    let again = train(&place, &files, &["--output", "all", "--resume"]);
    let told = String::from_utf8(again.stderr).unwrap();
    assert_eq!(told.matches("already holds this training").count(), 3, "{told}");
    let shown = String::from_utf8(again.stdout).unwrap();
    assert!(
        shown.contains("beside up to 2 other trainings, whose time is in it"),
        "{shown}"
    );
}

#[test]
fn one_that_diverges_leaves_and_the_others_go_on() {
    let place = place();
    let wild: &[_] = &[(
        "optimizer",
        "{kind: sgd, learning_rate: 1e30, momentum: 0.0, max_grad_norm: null}",
    )];
    with_others(&place, &[("wild", wild)]);
    let output = train(&place, &["recipe.yaml", "wild.yaml"], &["--output", "all"]);
    assert_eq!(output.status.code(), Some(1));
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.contains("wild diverged: "), "{message}");
    assert!(message.contains("lower its `learning_rate`"), "{message}");
    assert!(message.contains("the other trainings went on"), "{message}");
    succeed(train(&place, &["recipe.yaml"], &["--json", "--output", "alone"]));
    assert!(adapter_bytes(&place.path("alone")) == adapter_bytes(&place.path("all/recipe")));
    assert!(!place.path("all/wild/adapter_model.safetensors").exists());
}

#[test]
fn what_does_not_agree_is_refused_by_file_and_key() {
    let place = place();
    let others: &[(&str, &[_])] = &[
        ("long", &[("batch", "{micro_batch: 2, sequence_length: 128}")]),
        ("other", &[("model", "elsewhere")]),
        ("dora", &[("adapter", "{rank: 2, dora: true}")]),
        ("whole", &[("adapter", "null")]),
    ];
    with_others(&place, others);
    std::fs::copy(place.path("fast.yaml"), place.path("fast.yml")).unwrap();
    for (recipes, expected) in [
        (
            ["recipe.yaml", "long.yaml"],
            "long.yaml: `batch.sequence_length` is 128 here and 256 in the first one",
        ),
        (["recipe.yaml", "other.yaml"], "elsewhere"),
        (
            ["recipe.yaml", "dora.yaml"],
            "dora.yaml: `dora: true` trains alone only so far",
        ),
        (
            ["whole.yaml", "recipe.yaml"],
            "whole.yaml: `adapter: null` trains alone only so far",
        ),
        (["fast.yaml", "fast.yml"], "would both be written to all/fast"),
        (["fast.yaml", "missing.yaml"], "missing.yaml"),
    ] {
        let output = train(&place, &recipes, &["--output", "all"]);
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{message}");
        assert!(message.replace('\n', " ").contains(expected), "{recipes:?}: {message}");
        assert!(!place.path("all").exists(), "{recipes:?}");
    }
}
