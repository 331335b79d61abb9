//! `peft-tune explain` on a small study of a program.

use std::path::Path;

use serde_json::Value;

/// Speed falls with the width, error falls with it and is best at the middle rate; the widest does not fit.
const PROGRAM: &str = r#"
read -r line
value() { printf '%s' "$line" | sed "s/.*\"$1\":\([0-9.]*\).*/\1/"; }
width=$(value width); rate=$(value rate)
if [ "$width" = 64 ]; then echo '{"outcome": "out_of_memory"}'; exit 0; fi
awk "BEGIN { printf \"{\\\"metrics\\\": {\\\"seconds\\\": %.6f, \\\"error\\\": %.6f}}\\n\", 1 + $width / 8, 4 / $width + ($rate - 2)^2 }"
"#;

const SPACE: &str = "study: widths
backend: {command: [sh, trial.sh]}
objectives: [{metric: seconds, reference: 10}, {metric: error, reference: 10}]
space:
  width: [2, 4, 8, 16, 64]
  rate: [1, 2, 3]
sampler: {kind: random}
budget: {trials: 15}
";

fn stdout(folder: &Path, arguments: &[&str]) -> String {
    let mut command = crate::program();
    let output = command
        .args(arguments)
        .current_dir(folder)
        .env("PEFT_TUNE_DB", folder.join("study.db"))
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_study_is_explained_in_words_and_in_json() {
    let folder = crate::folders::for_database();
    std::fs::write(folder.path().join("space.yaml"), SPACE).unwrap();
    std::fs::write(folder.path().join("trial.sh"), PROGRAM).unwrap();
    let closing = stdout(folder.path(), &["search", "space.yaml"]);
    assert!(closing.contains("decided most: seconds by width"), "{closing}");

    let text = stdout(folder.path(), &["explain", "--study", "widths"]);
    for part in [
        "study widths: 15 trials: 12 complete, 3 failed (out_of_memory)",
        "Recommendation\n  trial ",
        "seconds: width 100%",
        "error is best at 2 (",
        "best between the ends",
        "3 out_of_memory: trial ",
        "all have width >= 64",
        "hypervolume ",
        "What to try next",
    ] {
        assert!(text.contains(part), "`{part}` is not in\n{text}");
    }

    let json: Value = serde_json::from_str(&stdout(folder.path(), &["explain", "--json"])).unwrap();
    assert_eq!(json["study"], "widths");
    assert_eq!(json["importance"][0]["metric"], "seconds");
    assert_eq!(json["importance"][0]["shares"][0]["parameter"], "width");
    assert_eq!(json["failures"][0]["common"][0], "width >= 64");
    assert_eq!(json["hypervolume"].as_array().map(Vec::len), Some(15));
    let recommended = json["recommendation"]["trial"].as_u64().unwrap();
    assert!(text.contains(&format!("trial {recommended} is")), "{text}");
    // Every setting was tried.
    assert_eq!(json["next"].as_array().map(Vec::len), Some(0));
}

const ENGINE: &str = "study: engine
model: ASSETS/base
data: {train: ASSETS/train.jsonl, held_out: ASSETS/held_out.jsonl}
space:
  rank: [2, 8]
  optimizer: [adamw, lion]
  learning_rate: {low: 1e-4, high: 1e-2, scale: log}
  micro_batch: [1, 2, 4]
  global_batch: 4
trial: {sequence_length: 96, profile_steps: 2, profile_warmup: 0, training_steps: 4}
confirm: none
pruner: none
budget: {trials: 6}
";

#[test]
fn a_study_of_the_engine_answers_what_people_ask() {
    let folder = crate::folders::for_database();
    let assets = Path::new(env!("CARGO_MANIFEST_DIR")).join("search_spaces/quickstart");
    let space = ENGINE.replace("ASSETS", &assets.display().to_string());
    std::fs::write(folder.path().join("space.yaml"), space).unwrap();
    stdout(folder.path(), &["search", "space.yaml"]);
    let json: Value = serde_json::from_str(&stdout(folder.path(), &["explain", "--json"])).unwrap();

    // The effect of the optimizer on memory is what `plan` says, whichever optimizer went with which rank.
    let plan: Value =
        serde_json::from_str(&stdout(folder.path(), &["plan", "space.yaml", "--json", "--top", "99"])).unwrap();
    let peak = |optimizer: &str| {
        let settings = plan["settings"].as_array().unwrap().iter();
        let with = settings.filter(|one| one["params"]["optimizer"] == optimizer);
        let bytes: Vec<f64> = with.map(|one| one["peak_memory"]["value"].as_f64().unwrap()).collect();
        bytes.iter().sum::<f64>() / bytes.len() as f64
    };
    let effects = json["effects"].as_array().unwrap();
    let effect = |parameter: &str, metric: &str| {
        let found = effects
            .iter()
            .find(|one| one["parameter"] == parameter && one["metric"] == metric);
        found
            .unwrap_or_else(|| panic!("no effect of {parameter} on {metric}: {effects:?}"))
            .clone()
    };
    let optimizer = effect("optimizer", "peak_memory");
    assert_eq!(optimizer["predicted"], true);
    let better = if peak("adamw") < peak("lion") { "adamw" } else { "lion" };
    assert_eq!(optimizer["best"], better, "{optimizer}");
    let memory = effect("micro_batch", "peak_memory");
    assert_eq!(
        (&memory["best"], &memory["tells"]),
        (&1.into(), &true.into()),
        "{memory}"
    );

    // Every parameter of the recommended setting has a neighbour, each with its source.
    let neighbours = json["neighbours"].as_array().unwrap();
    for parameter in ["rank", "optimizer", "learning_rate", "micro_batch"] {
        assert!(
            neighbours.iter().any(|one| one["parameter"] == parameter),
            "{parameter}: {neighbours:?}"
        );
    }
    let kinds = ["measured", "predicted", "ended"];
    assert!(
        neighbours
            .iter()
            .all(|one| kinds.iter().any(|kind| one["basis"]["kind"] == *kind))
    );
    assert_eq!(json["coverage"].as_array().map(Vec::len), Some(4));
    assert_eq!(json["loss"]["source"]["kind"], "assumed");
    assert!(json["more_time"]["trials"].as_u64().unwrap() > 1);

    let text = stdout(folder.path(), &["explain"]);
    for heading in [
        "\nWhy this setting and not its neighbours\n",
        "\nWhat each setting is worth",
        "\nWhere the search did not look\n",
        "\nHow sure the loss is\n",
        "\nWhat ten more minutes would bring\n",
    ] {
        assert!(text.contains(heading), "`{heading}` is not in\n{text}");
    }
    // The page has the same, with a picture each.
    stdout(
        folder.path(),
        &["report", "--output", "page.html", "--charts", "pictures"],
    );
    let page = std::fs::read_to_string(folder.path().join("page.html")).unwrap();
    for name in ["neighbours", "worth", "coverage", "loss-certainty", "more-time"] {
        assert!(page.contains(&format!("id=\"answer-{name}\"")), "{name}");
        assert!(folder.path().join(format!("pictures/{name}.svg")).is_file(), "{name}");
    }
    assert_eq!(page.matches("class=\"picture\" tabindex=\"0\"><svg").count(), 5);
}
