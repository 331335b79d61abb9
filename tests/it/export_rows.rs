//! Rows beside an exported file: what a tool is given where it would read the files of a study otherwise than the trials did.

use std::path::{Path, PathBuf};
use std::process::Output;

use arrow_array::cast::AsArray;
use arrow_array::types::{Int32Type, Int64Type};
use arrow_ipc::reader::StreamReader;
use serde_json::{Value, json};

/// Ids and labels of a row; the label of the first token is no target of anything.
type Row = (Vec<i64>, Vec<i64>);

/// A study with one trial.
struct Study {
    folder: tempfile::TempDir,
}

impl Study {
    /// Searches one trial on these rows; held-out rows are `held_out.jsonl` unless `data` says otherwise.
    fn searched(rows: &[Value], data: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let base = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("search_spaces/quickstart/base");
        let lines = |rows: &[Value]| rows.iter().map(|row| format!("{row}\n")).collect::<String>();
        std::fs::write(folder.path().join("rows.jsonl"), lines(rows)).unwrap();
        std::fs::write(folder.path().join("aside.jsonl"), lines(&rows[..2])).unwrap();
        let space = format!(
            "study: own\nmodel: {}\ndata: {{train: rows.jsonl, {data}}}\nobjectives: [loss]\n\
             space: {{rank: 2, learning_rate: [1e-3, 2e-3], micro_batch: 2, global_batch: 2, packing: false}}\n\
             trial: {{sequence_length: 64, training_tokens: 100, evaluation: {{rows: 2}}}}\nconfirm: none\nbudget: {{trials: 1}}\n",
            base.display()
        );
        std::fs::write(folder.path().join("space.yaml"), space).unwrap();
        let study = Self { folder };
        study.succeeds(&["search", "space.yaml"]);
        study
    }

    fn root(&self) -> &Path {
        self.folder.path()
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = crate::program();
        command
            .current_dir(self.root())
            .args(arguments)
            .env_remove("PEFT_TUNE_DB");
        command.output().unwrap()
    }

    /// Output of a command that succeeds.
    fn succeeds(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{arguments:?}: {said}");
        said
    }

    fn export(&self, format: &str, more: &[&str]) -> String {
        let arguments = ["export", "--trial", "0", "--format", format, "--output", format];
        self.succeeds(&[&arguments[..], more].concat())
    }

    /// The file that the tool is started with.
    fn text(&self, file: &str) -> String {
        std::fs::read_to_string(self.root().join(file)).unwrap()
    }

    /// Rows that the engine trains on or scores, as `rows` shows them: of `training`, of `held-out`, or of both where
    /// nothing tells them apart.
    fn trained(&self, set: &str) -> Vec<Row> {
        let output = self.run(&["rows", "space.yaml", "--count", "100", "--json"]);
        let shown: Value = serde_json::from_slice(&output.stdout).unwrap();
        let rows = shown["rows"].as_array().unwrap().iter();
        let used = rows.filter(|row| row["left_out"].is_null() && (row["set"].is_null() || row["set"] == set));
        used.map(|row| {
            let kept = row["kept"].as_u64().unwrap() as usize;
            let tokens = &row["tokens"].as_array().unwrap()[..kept];
            let id = |token: &Value| token["id"].as_i64().unwrap();
            let label = |token: &Value| if token["target"] == true { id(token) } else { -100 };
            (tokens.iter().map(id).collect(), tokens.iter().map(label).collect())
        })
        .collect()
    }

    fn jsonl(&self, file: &str) -> Vec<Row> {
        let list = |row: &Value, key: &str| {
            row[key]
                .as_array()
                .unwrap()
                .iter()
                .map(|id| id.as_i64().unwrap())
                .collect()
        };
        let text = self.text(file);
        text.lines()
            .map(|line| {
                let row: Value = serde_json::from_str(line).unwrap();
                let (ids, mask): (Vec<i64>, Vec<i64>) = (list(&row, "input_ids"), list(&row, "attention_mask"));
                assert_eq!(mask, vec![1; ids.len()]);
                (ids, list(&row, "labels"))
            })
            .collect()
    }

    /// The rows of a split as the `datasets` library finds them.
    fn saved(&self, folder: &str, split: &str) -> Vec<Row> {
        let folder = self.root().join(folder);
        let json = |path: PathBuf| -> Value { serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap() };
        assert_eq!(
            json(folder.join("dataset_dict.json")),
            json!({"splits": ["train", "validation"]})
        );
        let state = json(folder.join(split).join("state.json"));
        let file = folder
            .join(split)
            .join(state["_data_files"][0]["filename"].as_str().unwrap());
        let reader = StreamReader::try_new(std::fs::File::open(file).unwrap(), None).unwrap();
        let mut rows = Vec::new();
        for batch in reader {
            let batch = batch.unwrap();
            let column = |name: &str| batch.column_by_name(name).unwrap().as_list::<i32>().clone();
            let (ids, labels) = (column("input_ids"), column("labels"));
            for index in 0..batch.num_rows() {
                let ids = ids
                    .value(index)
                    .as_primitive::<Int32Type>()
                    .values()
                    .iter()
                    .map(|id| i64::from(*id))
                    .collect();
                let labels = labels.value(index).as_primitive::<Int64Type>().values().to_vec();
                rows.push((ids, labels));
            }
        }
        rows
    }
}

/// Fails unless the rows are the same, but for the labels of first tokens, which tools may count and nothing predicts: none is written.
fn assert_same(found: &[Row], expected: &[Row], of: &str) {
    assert!(found.iter().all(|(_, labels)| labels[0] == -100), "{of}: {found:?}");
    let without_first = |rows: &[Row]| -> Vec<Row> {
        let cut = |(ids, labels): &Row| (ids.clone(), labels[1..].to_vec());
        rows.iter().map(cut).collect()
    };
    assert!(!expected.is_empty());
    assert_eq!(without_first(found), without_first(expected), "{of}");
}

fn sharegpt(count: usize) -> Vec<Value> {
    let row = |n: usize| {
        json!({"system": "Be brief.", "conversations": [
            {"from": "human", "value": format!("{n} and {n}?")}, {"from": "gpt", "value": format!("{}", 2 * n)},
            {"from": "human", "value": "And so on?"}, {"from": "gpt", "value": "And so on. ".repeat(n)},
        ]})
    };
    (1..=count).map(row).collect()
}

fn plain(count: usize) -> Vec<Value> {
    let row = |n: usize| json!({"prompt": format!("{n} apples\n"), "completion": "red ".repeat(n % 3 + 1)});
    (1..=count).map(row).collect()
}

#[test]
fn each_tool_is_given_the_tokens_of_rows_that_it_reads_otherwise() {
    let study = Study::searched(&sharegpt(8), "held_out: aside.jsonl");
    let (train, held_out) = (study.trained("training"), study.trained("held-out"));
    for format in ["trl", "axolotl", "unsloth", "torchtune"] {
        let said = study.export(format, &[]);
        assert!(
            said.contains("ShareGPT rows") && said.contains("8 to train on, 2 held out"),
            "{said}"
        );
        assert!(!said.contains("warning: `data.format`"), "{said}");
        assert_same(&study.jsonl(&format!("{format}/train.jsonl")), &train, format);
        assert_same(&study.jsonl(&format!("{format}/held_out.jsonl")), &held_out, format);
    }
    for file in [
        "trl/trl_data/README.md",
        "axolotl/axolotl.yaml",
        "unsloth/unsloth_train.py",
    ] {
        let text = study.text(file);
        assert!(
            text.contains("/train.jsonl") && text.contains("/held_out.jsonl"),
            "{text}"
        );
        assert!(!text.contains("rows.jsonl"), "{text}");
    }
    assert!(study.text("trl/trl_sft.yaml").contains("/trl/trl_data\n"));
    let text = study.text("torchtune/torchtune.yaml");
    assert!(text.contains("/train.jsonl]") && !text.contains("rows.jsonl"), "{text}");
    study.export("llamafactory", &[]);
    assert!(
        study
            .text("llamafactory/llamafactory.yaml")
            .contains("tokenized_path: ")
    );
    assert_same(&study.saved("llamafactory/tokens", "train"), &train, "LLaMA-Factory");
    assert_same(
        &study.saved("llamafactory/tokens", "validation"),
        &held_out,
        "LLaMA-Factory",
    );
}

fn chats(count: usize) -> Vec<Value> {
    let row = |n: usize| {
        json!({"messages": [
            {"role": "user", "content": format!("{n} and {n}?")}, {"role": "assistant", "content": format!("{}", 2 * n)},
        ]})
    };
    (1..=count).map(row).collect()
}

#[test]
fn axolotl_reads_chats_of_which_texts_and_ends_of_turns_are_learnt() {
    for loss_on in ["completions", "all"] {
        let data = format!("held_out: aside.jsonl, loss_on: {loss_on}, template_targets: stop_tokens");
        let study = Study::searched(&chats(6), &data);
        let said = study.export("axolotl", &[]);
        assert!(!said.contains("token ids") && !said.contains("`data."), "{said}");
        assert!(study.text("axolotl/axolotl.yaml").contains("type: chat_template"));
        // What another tool would learn beside them is not in the rows that it is given.
        let said = study.export("trl", &[]);
        assert!(said.contains("around texts it learns all"), "{said}");
        assert_same(&study.jsonl("trl/train.jsonl"), &study.trained("training"), loss_on);
    }
    let study = Study::searched(&chats(6), "held_out: aside.jsonl");
    let said = study.export("axolotl", &[]);
    assert!(
        said.contains("the tokens that end turns alone (`data.template_targets: stop_tokens`)"),
        "{said}"
    );
    assert_same(
        &study.jsonl("axolotl/train.jsonl"),
        &study.trained("training"),
        "written",
    );
}

#[test]
fn rows_that_a_tool_reads_as_the_trials_did_stay_where_they_are() {
    let study = Study::searched(&plain(6), "held_out: aside.jsonl");
    for format in ["trl", "axolotl", "unsloth"] {
        let said = study.export(format, &[]);
        assert!(!said.contains("token ids"), "{said}");
        assert!(!study.root().join(format).join("train.jsonl").exists());
    }
    assert!(study.text("trl/trl_data/README.md").contains("/aside.jsonl"));
    // What TRL cannot be told to evaluate beside a part of the rows, it is given.
    let limited = Study::searched(&plain(6), "held_out: aside.jsonl, max_rows: 5");
    let said = limited.export("trl", &[]);
    assert!(said.contains("would not evaluate held-out files"), "{said}");
    assert_same(
        &limited.jsonl("trl/train.jsonl"),
        &limited.trained("training"),
        "limited",
    );
    assert!(limited.text("trl/trl_data/README.md").contains("/held_out.jsonl"));
    // A prompt and a completion that share a token are other tokens to who reads them apart.
    let mut shared = plain(6);
    shared[3] = json!({"prompt": "4 app", "completion": "les"});
    let study = Study::searched(&shared, "held_out: aside.jsonl");
    let ends = study.trained("training");
    let said = study.export("trl", &[]);
    assert_same(&study.jsonl("trl/train.jsonl"), &ends, &said);
}

#[test]
fn where_everything_is_learnt_first_tokens_are_no_labels() {
    let study = Study::searched(&sharegpt(8), "held_out: aside.jsonl, loss_on: all");
    let (train, held_out) = (study.trained("training"), study.trained("held-out"));
    assert!(train.iter().all(|(ids, labels)| ids[1..] == labels[1..]));
    let said = study.export("llamafactory", &[]);
    assert!(!said.contains("divides losses"), "{said}");
    assert_same(&study.saved("llamafactory/tokens", "train"), &train, "training rows");
    assert_same(
        &study.saved("llamafactory/tokens", "validation"),
        &held_out,
        "held-out rows",
    );
    study.export("axolotl", &[]);
    assert_same(&study.jsonl("axolotl/train.jsonl"), &train, "axolotl");
    // Rows that LLaMA-Factory makes tokens of itself have such labels there.
    let arguments = [
        "export",
        "--trial",
        "0",
        "--format",
        "llamafactory",
        "--output",
        "bare",
        "--no-data",
    ];
    let said = study.succeeds(&arguments);
    assert!(said.contains("divides losses by 8 first tokens"), "{said}");
}

#[test]
fn without_data_the_difference_is_told_and_nothing_is_written() {
    let study = Study::searched(&sharegpt(8), "held_out: aside.jsonl");
    // The quickstart's model has no tokenizer that torchtune reads, which is told too.
    for format in ["trl", "axolotl", "llamafactory", "unsloth", "torchtune"] {
        let said = study.export(format, &["--no-data"]);
        assert!(
            said.contains("warning: `data.train`: ") && said.contains("ShareGPT rows"),
            "{said}"
        );
        let names: Vec<_> = std::fs::read_dir(study.root().join(format)).unwrap().collect();
        assert!(names.iter().all(|entry| {
            let name = entry.as_ref().unwrap().file_name();
            !["train.jsonl", "held_out.jsonl", "tokens", "peft_tune_rows.py"].contains(&name.to_str().unwrap())
        }));
    }
}

#[test]
fn a_held_out_part_and_rows_left_out_for_their_length_are_those_of_the_trials() {
    let study = Study::searched(&sharegpt(12), "held_out: 0.25, long_rows: drop");
    study.export("axolotl", &[]);
    let text = study.text("axolotl/axolotl.yaml");
    assert!(
        text.contains("test_datasets") && !text.contains("val_set_size"),
        "{text}"
    );
    let (train, held_out) = (
        study.jsonl("axolotl/train.jsonl"),
        study.jsonl("axolotl/held_out.jsonl"),
    );
    assert!(train.iter().chain(&held_out).all(|(ids, _)| ids.len() <= 64));
    assert!(train.len() + held_out.len() < 12);
    assert_same(&train, &study.trained("training"), "training rows");
    assert_same(&held_out, &study.trained("held-out"), "held-out rows");
}

#[test]
fn rows_that_moved_and_files_in_the_way_are_refused_with_what_to_do() {
    let study = Study::searched(&sharegpt(4), "held_out: aside.jsonl");
    study.export("trl", &[]);
    // The same rows for another tool in the same folder are no obstacle; other ones are, and stay.
    study.succeeds(&["export", "--trial", "0", "--format", "unsloth", "--output", "trl"]);
    std::fs::write(study.root().join("trl/train.jsonl"), "{}\n").unwrap();
    let axolotl = ["export", "--trial", "0", "--format", "axolotl", "--output", "trl"];
    let output = study.run(&axolotl);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(
        said.contains("train.jsonl is there already") && said.contains("--force"),
        "{said}"
    );
    assert_eq!(study.text("trl/train.jsonl"), "{}\n");
    assert!(!study.root().join("trl/axolotl.yaml").exists());

    std::fs::rename(study.root().join("rows.jsonl"), study.root().join("moved.jsonl")).unwrap();
    let output = study.run(&["export", "--trial", "0", "--format", "trl", "--output", "again"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("rows.jsonl") && said.contains("--no-data"), "{said}");
    study.succeeds(&[
        "export",
        "--trial",
        "0",
        "--format",
        "trl",
        "--output",
        "again",
        "--no-data",
    ]);
}
