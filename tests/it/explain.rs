//! `peft-tune explain` on a small study of a program.

use std::path::Path;
use std::process::Command;

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
    let mut command = Command::new(env!("CARGO_BIN_EXE_peft-tune"));
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
    let folder = tempfile::tempdir().unwrap();
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
