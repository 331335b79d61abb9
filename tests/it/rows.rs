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
fn counts_of_the_file_and_of_options_take_units() {
    let rows = Rows::new(ROWS, "training: {length: {tokens: 200k}}\n");
    let (text, _) = rows.shown(&["--count", "4", "--sequence-length", "0.2k"]);
    assert!(!text.contains("cut behind"), "{text}");
    for (option, wrong, takes) in [
        ("--sequence-length", "1.0005k", "2 or more"),
        ("--sequence-length", "0k", "2 or more"),
        ("--count", "1k", "from 1 to 100"),
    ] {
        let output = rows.run(&[option, wrong]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(option) && said.contains(takes), "{said}");
    }
    let rows = Rows::new(ROWS, "training: {length: {tokens: 1.0005k}}\n");
    let output = rows.run(&[]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("tokens") && said.contains("1.0005k"), "{said}");
}

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
    for (row, said) in [
        ("90", "there is no row 90: there are 8"),
        ("3", "row 3 is one to train on"),
    ] {
        let (_, told) = rows.shown(&["--row", row, "--held-out"]);
        assert!(told.contains(said), "{told}");
    }
    assert_eq!(numbers(&["--row", "7", "--held-out"]), [7]);
    let (_, told) = rows.shown(&["--cut", "--held-out", "--sequence-length", "400"]);
    assert!(
        told.contains("none of 4 held-out rows is longer than its sequence length"),
        "{told}"
    );
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
fn long_rows_are_left_out_whole_where_the_file_says_so() {
    let rows = Rows::new(ROWS, "");
    let recipe = rows.folder.path().join("recipe.yaml");
    let text = std::fs::read_to_string(&recipe).unwrap();
    std::fs::write(&recipe, text.replace("data: {", "data: {long_rows: drop, ")).unwrap();
    let summary = rows.json(&["--longest", "--count", "8"])["summary"].clone();
    let first = rows.json(&["--row", "1"])["rows"][0].clone();
    for set in ["training", "held_out"] {
        let of_set = &summary[set];
        assert_eq!(
            (&of_set["rows"], &of_set["left_out"], &of_set["cut"], &of_set["tokens"]),
            (&4.into(), &3.into(), &0.into(), &first["kept"]),
            "{set}"
        );
    }
    let numbers = |arguments: &[&str]| -> Vec<u64> {
        let shown = rows.json(arguments)["rows"].as_array().unwrap().clone();
        shown.iter().map(|row| row["number"].as_u64().unwrap()).collect()
    };
    assert_eq!(numbers(&["--cut"]), [0; 0]);
    assert_eq!(numbers(&["--without-targets"]), [2, 3, 4]);
    let (text, _) = rows.shown(&["--count", "4"]);
    let reasons = text.matches(" tokens, more than 24 (`long_rows: drop`)").count();
    assert!(reasons == 2 && !text.contains("cut behind"), "{text}");
    rows.shown(&["--html", "rows.html", "--count", "4"]);
    let page = std::fs::read_to_string(rows.folder.path().join("rows.html")).unwrap();
    assert!(page.contains("more than 24 (`long_rows: drop`)"), "{page}");
    let (_, told) = rows.shown(&["--step", "0"]);
    for set in ["training", "held-out"] {
        let warning =
            format!("2 of 4 {set} rows are left out: they are longer than 24 tokens (`long_rows: drop`); raise");
        assert!(told.contains(&warning), "{told}");
    }
}

#[test]
fn a_step_has_its_documents_apart() {
    let rows = Rows::new(
        &format!("{}\n", ROWS.lines().next().unwrap()).repeat(3),
        "training: {shuffle: false}\n",
    );
    let recipe = rows.folder.path().join("recipe.yaml");
    let text = std::fs::read_to_string(&recipe).unwrap();
    let packed = text.replace(
        "{sequence_length: 24}",
        "{sequence_length: 32, packing: true, micro_batch: 1}",
    );
    std::fs::write(&recipe, &packed).unwrap();
    let (text, _) = rows.shown(&["--step", "0"]);
    assert!(
        text.starts_with("row 1 · step 0, micro-batch 1 · training · 28 tokens, 8 learnt · 2 documents\n"),
        "{text}"
    );
    assert!(
        text.contains("         -- document 2 --\n     14  text       <|im_start|>user⏎"),
        "{text}"
    );
    assert!(text.contains("[red<|im_end|>⏎]"), "{text}");
    // Three micro-batches are shown, and there are more.
    let accumulated = packed.replace("micro_batch: 1", "micro_batch: 1, gradient_accumulation: 4");
    let few = Rows::new(
        &format!("{}\n", ROWS.lines().next().unwrap()).repeat(12),
        "training: {shuffle: false}\n",
    );
    std::fs::write(few.folder.path().join("recipe.yaml"), accumulated).unwrap();
    let said = "the first 3 of the step's 4 micro-batches are shown (`--count` takes up to 4)";
    let (_, told) = few.shown(&["--step", "0"]);
    assert!(told.contains(said), "{told}");
    assert!(few.json(&["--step", "0"])["warnings"].to_string().contains(said));
    let (_, told) = few.shown(&["--step", "0", "--count", "4"]);
    assert!(!told.contains("micro-batches are shown"), "{told}");
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

/// A template that writes calls and reasoning.
const CALLS: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.reasoning_content %}(plan){{ m.reasoning_content }}(/plan)\
                     {% endif %}{{ m.content | trim }}{% if m.tool_calls %}(call){{ m.tool_calls[0].function.arguments | tojson }}\
                     {% endif %}<|im_end|>{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
/// Template whose turns only the next turn ends.
const OPEN_ENDED: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% endfor %}\
                          {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// Texts that are learnt of the first of two like rows, stretch by stretch, and what is told; what is refused.
fn learnt(row: &str, template: Option<&str>) -> Result<(Vec<String>, String), String> {
    let rows = Rows::new(&format!("{row}\n").repeat(2), "");
    let path = |name: &str| rows.folder.path().join(name);
    let recipe = std::fs::read_to_string(path("recipe.yaml")).unwrap();
    let mut recipe = recipe.replace("sequence_length: 24", "sequence_length: 400");
    if let Some(template) = template {
        std::fs::write(path("t.jinja"), template).unwrap();
        recipe = recipe.replace("data: {", "data: {chat_template: t.jinja, ");
    }
    std::fs::write(path("recipe.yaml"), recipe).unwrap();
    let output = rows.run(&["--json", "--count", "1"]);
    if !output.status.success() {
        return Err(String::from_utf8(output.stderr).unwrap());
    }
    let seen: Value = serde_json::from_slice(&output.stdout).unwrap();
    let row = &seen["rows"][0];
    if let Some(reason) = row["left_out"].as_str() {
        return Err(reason.to_owned());
    }
    let mut stretches: Vec<String> = Vec::new();
    let mut was_target = false;
    for token in row["tokens"].as_array().unwrap() {
        let is_target = token["target"] == true;
        match (is_target, was_target) {
            (true, false) => stretches.push(token["text"].as_str().unwrap().to_owned()),
            (true, true) => stretches.last_mut().unwrap().push_str(token["text"].as_str().unwrap()),
            _ => {}
        }
        was_target = is_target;
    }
    Ok((stretches, seen["warnings"].to_string()))
}

#[test]
fn messages_are_made_as_transformers_makes_them() {
    let call = r#"{"role":"assistant","content":null,"tool_calls":[{"type":"function","function":{"name":"look","arguments":{"x":"a","y":null}}}]}"#;
    let chat = format!(
        r#"{{"messages":[{{"role":"user","content":"q"}},{call},{{"role":"tool","content":"42"}},{{"role":"assistant","content":"42"}}]}}"#
    );
    let (told, _) = learnt(&chat, Some(CALLS)).unwrap();
    assert_eq!(told, ["(call){\"x\": \"a\"}<|im_end|>", "42<|im_end|>"]);
    for name in ["reasoning_content", "thinking", "reasoning"] {
        let chat = format!(
            r#"{{"messages":[{{"role":"user","content":"q"}},{{"role":"assistant","content":"Four.","{name}":"2+2"}}]}}"#
        );
        assert_eq!(
            learnt(&chat, Some(CALLS)).unwrap().0,
            ["(plan)2+2(/plan)Four.<|im_end|>"],
            "{name}"
        );
    }
    let parts = r#"{"messages":[{"role":"user","content":[{"type":"text","value":"q"}]},{"role":"assistant","content":[{"type":"text","text":"a"}]}]}"#;
    assert_eq!(learnt(parts, None).unwrap().0, ["a<|im_end|>\n"]);
    let systems = r#"{"system":"other","messages":[{"role":"system","content":"own"},{"role":"user","content":"q"},{"role":"assistant","content":"a"}]}"#;
    let (_, told) = learnt(systems, None).unwrap();
    assert!(told.contains("beside a system message"), "{told}");
}

#[test]
fn calls_that_a_template_does_not_write_are_text_or_leave_the_row_out() {
    let sharegpt = r#"{"conversations":[{"from":"human","value":"Rain?"},{"from":"function_call","value":"{\"name\": \"look\", \"arguments\": {}}"},{"from":"observation","value":"yes"},{"from":"gpt","value":"It rains."}]}"#;
    let (told, warnings) = learnt(sharegpt, None).unwrap();
    assert_eq!(
        told,
        [
            "{\"name\": \"look\", \"arguments\": {}}<|im_end|>\n",
            "It rains.<|im_end|>\n"
        ]
    );
    assert!(warnings.contains("trained as the text they came as"), "{warnings}");
    let messages = r#"{"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"","tool_calls":[{"type":"function","function":{"name":"f","arguments":{}}}]}]}"#;
    let reason = learnt(messages, None).unwrap_err();
    assert!(
        reason.contains("calls are not written by the chat template"),
        "{reason}"
    );
    let pictures =
        r#"{"messages":[{"role":"user","content":"Who?"},{"role":"assistant","content":"Ada."}],"images":["a.jpg"]}"#;
    let error = learnt(pictures, None).unwrap_err();
    assert!(error.contains("line 1: column `images` holds a picture"), "{error}");
}

#[test]
fn an_answer_learns_to_stop_or_it_is_told() {
    let chat = r#"{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"},{"role":"user","content":"c"},{"role":"assistant","content":"d"}]}"#;
    let (told, warnings) = learnt(chat, Some(OPEN_ENDED)).unwrap();
    assert_eq!(told, ["b", "d<|im_end|>"]);
    assert!(
        warnings.contains("is learnt as it") && warnings.contains("end in no token"),
        "{warnings}"
    );
    let changes = OPEN_ENDED.replace("{{ m.content }}", "{{ (m.content | upper) ~ messages | length }}");
    let reason = learnt(chat, Some(&changes)).unwrap_err();
    assert!(reason.contains("does not show where an answer begins"), "{reason}");
    let escaped = "{{ messages[1].content | safe + '<' }}";
    let error = learnt(chat, Some(escaped)).unwrap_err();
    assert!(error.contains("marked `safe`"), "{error}");
}
