//! Mistakes of users, and what they are told.

use peft_tune_core::recipe::{DataFormat, DataSettings, HeldOut};
use proptest::prelude::*;

use super::{data_file, prepare, settings, test_file, tokenizer};

/// The message for a file of one name and content.
fn message(name: &str, text: &str, change: impl FnOnce(&mut DataSettings)) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    std::fs::write(&path, text).unwrap();
    let mut settings = DataSettings {
        train: vec![path].into(),
        ..settings("text.jsonl")
    };
    change(&mut settings);
    let error = prepare(&settings, &tokenizer("tokenizer"), 64).unwrap_err();
    error.to_string().replace(&folder.path().display().to_string(), "DATA")
}

#[test]
fn a_system_column_that_holds_no_text_is_refused() {
    let row = r#"{"system": ["Be brief."], "messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]}"#;
    let error = message("a.jsonl", &format!("{row}\n{row}\n"), |_| {});
    assert!(
        error.contains("a.jsonl line 1") && error.contains("`system`"),
        "{error}"
    );
}

#[test]
fn messages_say_where_what_and_how() {
    let none = |_: &mut DataSettings| {};
    let rename = |from: &'static str, to: &'static str| {
        move |settings: &mut DataSettings| {
            settings.columns = [(from.to_owned(), to.to_owned())].into();
            settings.format = DataFormat::Alpaca;
        }
    };
    let null = "{\"instruction\": \"x\", \"output\": \"y\"}\n{\"instruction\": null, \"output\": \"y\"}\n";
    let long = format!("{{\"prompt\": \"{}\", \"completion\": \"y\"}}\n", "why ".repeat(100));
    let bad = "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"label\": false}\n";
    let messages = [
        message("a.jsonl", "{\"question\": \"x\", \"answer\": \"y\"}", none),
        message("a.csv", "question,output\nx,y\n", rename("instruction", "qestion")),
        message("a.csv", "question,output\nx,y\n", rename("instruktion", "question")),
        message("a.jsonl", "{\"text\": \"x\"}\n{\"txt\": \"y\"}\n", none),
        message("a.jsonl", null, none),
        message("a.jsonl", "{\"text\": [1]}\n", none),
        message("a.jsonl", "{\"messages\": \"hello\"}\n", none),
        message("a.jsonl", "{\"prompt\": [], \"completion\": \"x\"}\n", none),
        message(
            "a.jsonl",
            "{\"input_ids\": [1, 2]}\n{\"input_ids\": [1, 99999]}\n",
            none,
        ),
        message("a.jsonl", "{\"input_ids\": [1, 2], \"labels\": [1]}\n", none),
        message("a.txt", "hello", |settings| settings.format = DataFormat::Alpaca),
        message("a.jsonl", "", none),
        message("a.jsonl", "{\"text\": \"x\"}\n", none),
        message("a.jsonl", "{\"text\": \"\"}\n{\"text\": \" \"}\n", none),
        message("a.jsonl", &long.repeat(2), none),
        message("a.jsonl", &bad.repeat(2), none),
        message("a.txt", "x", |settings| settings.held_out = HeldOut::Fraction(1.5)),
        message("a.txt", "x", |settings| settings.train = Default::default()),
        message("a.txt", "x", |settings| settings.max_rows = Some(0)),
    ];
    insta::assert_snapshot!(messages.join("\n"), @r#"
    DATA/a.jsonl line 1: cannot tell the format from the columns `question`, `answer`; set `data.format`, or rename columns with `data.columns` (alpaca: instruction, output; messages: messages; sharegpt: conversations; prompt_completion: prompt, completion; text: text; tokenized: input_ids)
    DATA/a.csv line 2: no column `qestion` (did you mean `question`?); the row has `question`, `output`; rename with `data.columns: {instruction: <name in the file>}`
    `data.columns` renames `instruktion`, which format alpaca does not have (did you mean `instruction`?); it has `instruction`, `input`, `output`, `system`, `history`
    DATA/a.jsonl line 2: no column `text` (did you mean `txt`?); the row has `txt`; rename with `data.columns: {text: <name in the file>}`
    DATA/a.jsonl line 2: column `instruction` is null, expected text; correct the row, or name another column under `data.columns`
    DATA/a.jsonl line 1: column `text` is a list, expected text; correct the row, or name another column under `data.columns`
    DATA/a.jsonl line 1: column `messages` is text that is not a JSON list, expected a list; correct the row, or name another column under `data.columns`
    DATA/a.jsonl line 1: column `completion` is a string, expected a list, as `prompt` is; correct the row, or name another column under `data.columns`
    DATA/a.jsonl line 2: token id 99999 is not in the vocabulary of 480; was it made with another tokenizer?
    DATA/a.jsonl line 1: 1 labels for 2 input_ids; give one label per token, -100 where there is no target
    DATA/a.txt is plain text and cannot have format alpaca; set `data.format: text`, or give JSONL or CSV
    DATA/a.jsonl holds no rows; put data in it or leave it out
    1 row(s) cannot be split into training and held-out rows; add rows or give a file as `data.held_out`
    none of the 1 training rows has a token to learn; check the format and `data.loss_on`
    none of the 1 training rows has a token to learn within 64 tokens: the answers of 1 begin behind them; raise `sequence_length`
    none of the 1 training rows has a token to learn; 1 left out (DATA/a.jsonl line 2 first): their `label` says that the answer is not to be learnt
    `data.held_out` is 1.5; give a fraction between 0 and 1, or a file
    no training file; name one or more under `data.train`
    `data.max_rows` is 0; it must be at least 1
    "#);
}

#[test]
fn a_chat_without_a_template_is_refused() {
    let tokenizer = tokenizer("tokenizer_with_bos");
    let error = prepare(&settings("messages.jsonl"), &tokenizer, 64)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("messages.jsonl line 1: a chat needs a chat template"),
        "{error}"
    );
}

#[test]
fn a_template_that_refuses_or_changes_its_mind_is_told_with_the_line() {
    let tokenizer = tokenizer("tokenizer");
    let refusing = DataSettings {
        chat_template: Some(test_file("golden/chat/templates/turns.jinja")),
        ..settings("messages.jsonl")
    };
    let error = prepare(&refusing, &tokenizer, 64).unwrap_err().to_string();
    assert!(
        error.contains("messages.jsonl line 1") && error.contains("no system role"),
        "{error}"
    );

    let folder = tempfile::tempdir().unwrap();
    let template = folder.path().join("counting.jinja");
    let text = "{{ messages | length }}:{% for m in messages %}{{ m.role }} {{ m.content | upper }};{% endfor %}";
    std::fs::write(&template, text).unwrap();
    let counting = DataSettings {
        chat_template: Some(template),
        ..settings("messages.jsonl")
    };
    let error = prepare(&counting, &tokenizer, 64).unwrap_err().to_string();
    assert!(
        error.contains("line 1") && error.contains("{% generation %}"),
        "{error}"
    );
}

#[test]
fn arguments_as_text_are_named_where_a_template_wants_objects() {
    let folder = tempfile::tempdir().unwrap();
    let (template, path) = (folder.path().join("calls.jinja"), folder.path().join("a.jsonl"));
    let text = "{% for m in messages %}{{ m.role }}:{{ m.content }}{% for call in m.tool_calls %}{{ call.function.name }}\
                {% for key, value in call.function.arguments.items() %}{{ key }}={{ value }};{% endfor %}{% endfor %}\
                <|im_end|>{% endfor %}";
    std::fs::write(&template, text).unwrap();
    let row =
        r#"{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "tool_calls": [{"type": "function",
        "function": {"name": "f", "arguments": "{\"x\": 1}"}}]}]}"#
            .replace('\n', " ");
    std::fs::write(&path, format!("{row}\n{row}\n")).unwrap();
    let settings = DataSettings {
        train: vec![path].into(),
        chat_template: Some(template),
        ..settings("messages.jsonl")
    };
    let error = prepare(&settings, &tokenizer("tokenizer"), 64).unwrap_err().to_string();
    assert!(
        error.contains("line 1") && error.contains("`arguments` of this row's calls are JSON text"),
        "{error}"
    );
}

#[test]
fn an_absent_file_is_named() {
    let error = prepare(&settings("absent.jsonl"), &tokenizer("tokenizer"), 64).unwrap_err();
    assert!(
        error.to_string().contains(data_file("absent.jsonl").to_str().unwrap()),
        "{error}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// A damaged Parquet file gives rows or an error, never a panic.
    #[test]
    fn damaged_parquet_is_an_error(at in 0.0_f64..1.0, byte: u8, cut in 0.3_f64..1.0) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.parquet");
        let mut bytes = std::fs::read(data_file("messages.parquet")).unwrap();
        let position = (at * bytes.len() as f64) as usize;
        bytes[position] = byte;
        if cut < 0.5 {
            bytes.truncate((bytes.len() as f64 * cut) as usize);
        }
        std::fs::write(&path, bytes).unwrap();
        let settings = DataSettings { train: vec![path].into(), ..settings("messages.jsonl") };
        let _ = prepare(&settings, &tokenizer("tokenizer"), 64);
    }

    /// Rows of any shape give documents or an error.
    #[test]
    fn rows_of_any_shape_make_no_panic(row in any_json()) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.jsonl");
        std::fs::write(&path, format!("{row}\n{row}\n")).unwrap();
        let settings = DataSettings { train: vec![path].into(), ..settings("messages.jsonl") };
        let _ = prepare(&settings, &tokenizer("tokenizer"), 16);
    }
}

/// An object with the columns that readers look for and values of any kind.
fn any_json() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<i64>().prop_map(serde_json::Value::from),
        "[a-z ]{0,8}".prop_map(serde_json::Value::from),
        "(user|assistant|system|\\[\\]|\\[1\\])".prop_map(serde_json::Value::from),
    ];
    let key = "(messages|conversations|role|content|from|value|text|prompt|completion|input_ids|labels|tools|weight)";
    let value = leaf.prop_recursive(3, 24, 4, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(serde_json::Value::from),
            prop::collection::btree_map(key, inner, 0..4)
                .prop_map(|map| serde_json::Value::Object(map.into_iter().collect())),
        ]
    });
    prop::collection::btree_map(key, value, 0..4).prop_map(|map| serde_json::Value::Object(map.into_iter().collect()))
}
