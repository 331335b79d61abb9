//! `peft-tune rows`: what is trained, shown.

use std::path::PathBuf;
use std::process::Output;

use serde_json::Value;

/// A recipe on the quickstart's model with these rows.
struct Rows {
    folder: tempfile::TempDir,
}

impl Rows {
    fn new(rows: &str, more: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let base = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("search_spaces/quickstart/base");
        std::fs::write(folder.path().join("rows.jsonl"), rows).unwrap();
        let recipe = format!(
            "model: {}\ndata: {{train: rows.jsonl, held_out: rows.jsonl}}\nbatch: {{sequence_length: 24}}\n{more}",
            base.display()
        );
        std::fs::write(folder.path().join("recipe.yaml"), recipe).unwrap();
        Self { folder }
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = crate::program();
        command
            .current_dir(self.folder.path())
            .args(["rows", "recipe.yaml"])
            .args(arguments);
        command.output().unwrap()
    }

    fn shown(&self, arguments: &[&str]) -> (String, String) {
        let output = self.run(arguments);
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        let (out, error) = (text(output.stdout), text(output.stderr));
        assert!(output.status.success(), "{error}");
        (out, error)
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let arguments: Vec<&str> = arguments.iter().copied().chain(["--json"]).collect();
        serde_json::from_str(&self.shown(&arguments).0).unwrap()
    }
}

const ROWS: &str = r#"{"messages":[{"role":"user","content":"red"},{"role":"assistant","content":"red"}],"id":1}
{"messages":[{"role":"user","content":"a b c d e f g h i j k l m n o p q r s t u v w x y z"},{"role":"assistant","content":"late"}],"id":2}
{"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"a b c d e f g h i j k l m n o p q r s t u v w x y z"}],"id":3}
{"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"rude"}],"label":false,"id":4}
"#;

#[test]
fn what_is_learnt_stands_in_brackets_with_roles_and_reasons() {
    let rows = Rows::new(ROWS, "");
    let (text, told) = rows.shown(&["--count", "4"]);
    let lines: Vec<&str> = text.lines().collect();
    assert!(
        lines[0].ends_with("rows.jsonl line 1 · training · 14 tokens, 4 learnt"),
        "{text}"
    );
    assert_eq!(
        &lines[1..6],
        [
            "      0  template   <|im_start|>user⏎",
            "      3  user       red",
            "      5  template   <|im_end|>⏎<|im_start|>assistant⏎",
            "     10  assistant  [red]",
            "     12  template   [<|im_end|>⏎]",
        ],
        "{text}"
    );
    assert!(
        text.contains("left out: what it teaches begins behind 24 tokens"),
        "{text}"
    );
    assert!(text.contains("cut behind 24: ") && text.contains("  cut ["), "{text}");
    assert!(
        text.contains("left out: its `label` says that the answer is not to be learnt"),
        "{text}"
    );
    assert!(text.contains("every answer ends in a stop token"), "{text}");
    assert!(
        text.contains("columns read: label, messages; not used: id (4 rows)"),
        "{text}"
    );
    assert!(told.contains("columns that are not used: `id` (4 rows)"), "{told}");
}

#[test]
fn rows_are_chosen_by_number_length_chance_and_fate() {
    let rows = Rows::new(ROWS, "");
    let numbers = |arguments: &[&str]| -> Vec<u64> {
        let shown = rows.json(arguments)["rows"].as_array().unwrap().clone();
        shown.iter().map(|row| row["number"].as_u64().unwrap()).collect()
    };
    assert_eq!(numbers(&[]), [1, 2, 3]);
    assert_eq!(numbers(&["--row", "3"]), [3]);
    assert_eq!(numbers(&["--longest", "--count", "1"]), [2]);
    assert_eq!(numbers(&["--cut"]), [3, 7]);
    assert_eq!(numbers(&["--without-targets"]), [2, 4, 6]);
    assert_eq!(numbers(&["--held-out", "--count", "2"]), [5, 6]);
    let drawn = numbers(&["--random", "7", "--count", "4"]);
    assert_eq!(drawn, numbers(&["--random", "7", "--count", "4"]));
    assert_ne!(drawn, numbers(&["--random", "8", "--count", "4"]));
    let (_, told) = rows.shown(&["--row", "90"]);
    assert!(told.contains("there is no row 90: there are 8"), "{told}");
}

#[test]
fn tokens_are_those_of_the_training_and_the_summary_counts_them() {
    let rows = Rows::new(ROWS, "");
    let seen = rows.json(&["--longest", "--count", "8"]);
    let summary = &seen["summary"];
    assert_eq!(summary["is_whole"], true);
    let (training, held_out) = (&summary["training"], &summary["held_out"]);
    assert_eq!(training, held_out);
    assert_eq!(
        (&training["rows"], &training["left_out"], &training["cut"]),
        (&4.into(), &2.into(), &1.into())
    );
    let kept: u64 = seen["rows"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|row| row["set"] == "training" && row["left_out"].is_null())
        .map(|row| row["kept"].as_u64().unwrap())
        .sum();
    assert_eq!(training["tokens"], kept);
    let first = rows.json(&["--row", "1"])["rows"][0]["tokens"].clone();
    let targets: String = first
        .as_array()
        .unwrap()
        .iter()
        .filter(|token| token["target"] == true)
        .map(|token| token["text"].as_str().unwrap())
        .collect();
    assert_eq!(targets, "red<|im_end|>\n");
}

#[test]
fn a_page_needs_no_network_and_mistakes_are_told() {
    let rows = Rows::new(ROWS, "");
    rows.shown(&["--html", "rows.html", "--count", "4"]);
    let page = std::fs::read_to_string(rows.folder.path().join("rows.html")).unwrap();
    assert!(
        page.contains("default-src 'none'") && page.contains("class=\"learnt\""),
        "{page}"
    );
    assert!(!page.contains("://"), "{page}");
    let bad = Rows::new("{\"messages\": 3}\n", "");
    let output = bad.run(&[]);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{told}");
    assert!(told.contains("rows.jsonl line 1: column `messages`"), "{told}");
}
