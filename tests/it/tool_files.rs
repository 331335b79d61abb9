//! Files of other tools through the program: a table of small files in the keys that people write, each with a command, values of what
//! that writes, and what it tells.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Output;

use rayon::prelude::*;
use serde::Deserialize;
use serde_json::Value;

/// Folder of the table, the files and two models of its own.
const FILES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tool_files");
/// Folders of tools in it, and of programs whose files are not read.
const TOOLS: [&str; 6] = ["axolotl", "llamafactory", "torchtune", "trl", "peft", "others"];
/// Models of other tests, by their names in the files.
const MODELS: [(&str, &str); 7] = [
    ("llama", "ref_llama/model"),
    ("smollm3", "ref_smollm3/model"),
    ("glm4", "ref_glm4/model"),
    ("qwen3_vl", "ref_qwen3_vl/model"),
    ("lfm2", "ref_lfm2/model"),
    ("gptq", "ref_packed/gptq"),
    ("nf4_double", "ref_bitsandbytes/nf4_double"),
];
/// Rows of each file of data.
const ROWS: usize = 30;

/// A line of the table.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    file: String,
    command: Command,
    #[serde(default)]
    options: Vec<String>,
    /// Exit code.
    #[serde(default)]
    exit: i32,
    /// Values by their keys with dots between them; null is no value.
    #[serde(default)]
    fields: BTreeMap<String, Value>,
    /// Part of the first warning.
    first: Option<String>,
    #[serde(default)]
    told: Vec<String>,
    #[serde(default)]
    untold: Vec<String>,
    /// Parts of what is told, printed or written in a study, whatever the white space.
    #[serde(default)]
    says: Vec<String>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Command {
    /// `init --from`, which writes a study.
    Init,
    /// `plan --check`, which prints a plan.
    Check,
    /// `plan --check`, which prints a plan for people.
    Text,
}

impl Case {
    fn run(&self, folder: &Path, output: &str) -> Output {
        let mut command = program(folder);
        match self.command {
            Command::Init => command.args(["init", "--output", output, "--from", &self.file]),
            Command::Check => command.args(["plan", "--json", "--check", &self.file]),
            Command::Text => command.args(["plan", "--check", &self.file]),
        };
        command.args(&self.options).output().unwrap()
    }

    /// What is not as the table says.
    fn faults(&self, folder: &Path, number: usize) -> Vec<String> {
        let study = format!("study-{number}.yaml");
        let output = self.run(folder, &study);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let mut faults = Vec::new();
        if output.status.code() != Some(self.exit) {
            faults.push(format!("ends with {:?}", output.status.code()));
        } else if self.exit == 0 {
            let written = match self.command {
                Command::Init => of_yaml(&folder.join(&study)),
                Command::Check => serde_json::from_slice(&output.stdout).unwrap(),
                Command::Text => Value::Null,
            };
            faults.extend(self.fields.iter().filter_map(|(keys, expected)| {
                let found = keys
                    .split('.')
                    .try_fold(&written, |value, key| value.get(key))
                    .unwrap_or(&Value::Null);
                (!is_alike(found, expected)).then(|| format!("{keys} is {found}, and not {expected}"))
            }));
        }
        let first = said
            .lines()
            .find(|line| line.starts_with("warning: "))
            .unwrap_or_default();
        if let Some(part) = self.first.as_ref().filter(|part| !first.contains(*part)) {
            faults.push(format!("the first warning lacks {part:?}"));
        }
        let missing = self.told.iter().filter(|part| !said.contains(*part));
        faults.extend(missing.map(|part| format!("{part:?} is not told")));
        let surplus = self.untold.iter().filter(|part| said.contains(*part));
        faults.extend(surplus.map(|part| format!("{part:?} is told")));
        let written = std::fs::read_to_string(folder.join(study)).unwrap_or_default();
        let printed = String::from_utf8_lossy(&output.stdout);
        let all = words(&format!("{printed} {said} {written}"));
        let lacking = self.says.iter().filter(|part| !all.contains(&words(part)));
        faults.extend(lacking.map(|part| format!("{part:?} is said nowhere")));
        let head = |fault: String| {
            let (file, options) = (&self.file, self.options.join(" "));
            format!("{file}, {:?} {options}: {fault}\n{said}", self.command)
        };
        faults.into_iter().map(head).collect()
    }
}

/// The program in a folder with caches of its own, without a network.
pub(crate) fn program(folder: &Path) -> std::process::Command {
    let mut command = crate::program();
    command
        .current_dir(folder)
        .env("HF_HUB_OFFLINE", "1")
        .env("HF_HUB_CACHE", folder.join("cache"))
        .env("PEFT_TUNE_CACHE", folder.join("own"))
        .env("PEFT_TUNE_DB", folder.join("study.db"))
        .stdin(std::process::Stdio::null());
    command
}

/// Words of a text, with one blank between them.
fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn of_yaml(path: &Path) -> Value {
    serde_saphyr::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// Whether two values are the same, be numbers written with a point or without.
fn is_alike(found: &Value, expected: &Value) -> bool {
    match (found, expected) {
        (Value::Number(found), Value::Number(expected)) => found.as_f64() == expected.as_f64(),
        (Value::Array(found), Value::Array(expected)) => {
            found.len() == expected.len() && found.iter().zip(expected).all(|(one, other)| is_alike(one, other))
        }
        _ => found == expected,
    }
}

fn table() -> Vec<Case> {
    let text = std::fs::read_to_string(Path::new(FILES).join("cases.yaml")).unwrap();
    serde_saphyr::from_str(&text).unwrap()
}

/// Files of all tools.
fn all_files() -> impl Iterator<Item = PathBuf> {
    let folders = TOOLS.iter().map(|tool| Path::new(FILES).join(tool));
    folders.flat_map(|folder| std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()))
}

/// A folder with the files, with models, and with rows of five forms.
fn place() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let put = |from: &Path, to: PathBuf| {
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        std::fs::copy(from, to).unwrap();
    };
    for file in all_files() {
        put(&file, folder.path().join(file.strip_prefix(FILES).unwrap()));
    }
    let models = folder.path().join("models");
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (name, reference) in MODELS {
        let config = root.join("tests/golden").join(reference).join("config.json");
        put(&config, models.join(name).join("config.json"));
    }
    for name in ["infinity", "llama_1b"] {
        let own = Path::new(FILES).join("models").join(name).with_extension("json");
        put(&own, models.join(name).join("config.json"));
    }
    for name in ["config.json", "tokenizer.json", "tokenizer_config.json"] {
        let file = root.join("search_spaces/quickstart/base").join(name);
        put(&file, models.join("quickstart").join(name));
    }
    let data = folder.path().join("data");
    std::fs::create_dir(&data).unwrap();
    for (name, row) in [
        ("rows", r#"{"prompt": "Roses are", "completion": " red."}"#),
        (
            "chats",
            r#"{"messages": [{"role": "user", "content": "Violets?"}, {"role": "assistant", "content": "Blue."}]}"#,
        ),
        ("texts", r#"{"text": "Roses are red, violets are blue."}"#),
        (
            "pairs",
            r#"{"prompt": "Roses are", "chosen": " red.", "rejected": " violets."}"#,
        ),
        (
            "labels",
            r#"{"prompt": "Roses are", "completion": " red.", "label": true}"#,
        ),
    ] {
        std::fs::write(data.join(name).with_extension("jsonl"), format!("{row}\n").repeat(ROWS)).unwrap();
    }
    folder
}

#[test]
fn files_of_tools_say_here_what_they_say_there() {
    let folder = place();
    let cases = table();
    let faults: Vec<String> = cases
        .par_iter()
        .enumerate()
        .flat_map_iter(|(number, case)| case.faults(folder.path(), number))
        .collect();
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn every_file_stands_in_the_table() {
    let named: BTreeSet<PathBuf> = table().iter().map(|case| Path::new(FILES).join(&case.file)).collect();
    // Two that other files name, and one that has a test of its own.
    let beside = [
        "llamafactory/dataset_info.json",
        "trl/values.sh",
        "torchtune/uncut_known.yaml",
    ];
    let beside = beside.map(|name| Path::new(FILES).join(name));
    let there: BTreeSet<PathBuf> = all_files().filter(|file| !beside.contains(file)).collect();
    assert_eq!(named, there);
    assert!(there.len() >= 120, "{}", there.len());
}

#[test]
fn rows_that_nothing_cuts_are_as_long_as_the_longest_for_every_command() {
    let folder = place();
    let of = |command: Command| {
        let case = Case {
            file: "torchtune/uncut_known.yaml".into(),
            command,
            options: Vec::new(),
            exit: 0,
            fields: BTreeMap::new(),
            first: None,
            told: Vec::new(),
            untold: Vec::new(),
            says: Vec::new(),
        };
        let output = case.run(folder.path(), "around.yaml");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}");
        let told = said
            .lines()
            .find(|line| line.contains("the file cuts no rows"))
            .unwrap();
        (told.to_owned(), output.stdout)
    };
    let (of_study, _) = of(Command::Init);
    let (of_plan, plan) = of(Command::Check);
    assert_eq!(of_study, of_plan);
    assert!(of_plan.contains("the longest has"), "{of_plan}");
    let plan: Value = serde_json::from_slice(&plan).unwrap();
    let study = of_yaml(&folder.path().join("around.yaml"));
    let length = study["trial"]["sequence_length"].as_u64().unwrap();
    assert_eq!(plan["setting"]["sequence_length"], length);
    assert!((4..64).contains(&length), "{length}");
}

/// A study of rows that are longer than the model's positions would be refused.
#[test]
fn a_study_around_rows_that_are_too_long_is_planned() {
    let folder = place();
    let init = ["init", "--from", "axolotl/long_rows.yaml", "--output", "around.yaml"];
    for arguments in [&init[..], &["plan", "around.yaml", "--device", "L4"]] {
        let output = program(folder.path()).args(arguments).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{arguments:?}: {said}");
    }
}

#[test]
fn a_study_of_preferences_from_a_file_is_planned_in_trl() {
    let folder = place();
    let called = |arguments: &[&str]| {
        let output = program(folder.path()).args(arguments).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output, said)
    };
    let made = [
        "init",
        "--from",
        "axolotl/rl_dpo.yaml",
        "--data",
        "data/pairs.jsonl",
        "--output",
        "own.yaml",
    ];
    let (output, said) = called(&made);
    assert!(output.status.success(), "{said}");
    let (output, said) = called(&["plan", "own.yaml", "--stack", "trl"]);
    assert!(output.status.success(), "{said}");
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(told.contains("two sequences a row, a reference in each step"), "{told}");
    // A baseline of another trainer is none of the study's.
    let space = "study: sft\nmodel: ./models/llama_1b\ndata: {train: data/rows.jsonl}\nspace: {rank: [4, 8]}\nbudget: {trials: 2}\n";
    std::fs::write(folder.path().join("sft.yaml"), space).unwrap();
    let (output, said) = called(&["search", "sft.yaml", "--baseline", "axolotl/rl_dpo.yaml", "--dry-run"]);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("`trainer: dpo`"), "{said}");
}
