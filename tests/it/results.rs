//! Uses of results, through the program itself.

use std::path::{Path, PathBuf};
use std::process::Output;

use peft_tune::store::Store;
use peft_tune_core::study::Params;

use super::store::{add_trial, complete, out_of_memory, study_record};

/// A folder with results databases.
struct Workspace {
    folder: tempfile::TempDir,
}

impl Workspace {
    fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
        }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A database with the studies `names`.
    fn with(self, file: &str, names: &[&str]) -> Self {
        let path = self.at(file);
        let runtime = tokio::runtime::Runtime::new().unwrap();
        for name in names {
            runtime.block_on(fill(&path, name));
        }
        self
    }

    fn run(&self, arguments: &[&str]) -> Output {
        crate::program()
            .args(arguments)
            .current_dir(self.folder.path())
            .env_remove("PEFT_TUNE_DB")
            .env("HF_HUB_CACHE", self.folder.path())
            .output()
            .unwrap()
    }

    fn shown(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn refused(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {output:?}");
        String::from_utf8(output.stderr).unwrap()
    }
}

/// Adds a study of three trials: two complete, one out of memory.
async fn fill(path: &Path, name: &str) {
    let store = Store::open(path).await.unwrap();
    let study = store.studies().begin(&study_record(name)).await.unwrap();
    let states = [
        complete(100.0, 2e9, 2.0),
        complete(150.0, 3e9, 2.1),
        out_of_memory(None),
    ];
    for (number, state) in (0..).zip(&states) {
        let params = Params::from([
            ("rank".to_owned(), (8i64 << number).into()),
            ("optimizer".to_owned(), "adamw".into()),
        ]);
        add_trial(&store, study.id, number, &params, state).await;
    }
    drop(study);
    store.close().await.unwrap();
}

#[test]
fn trials_are_compared_with_the_differences_in_percent() {
    let workspace = Workspace::new().with("peft-tune.db", &["first", "second"]);
    let shown = workspace.shown(&["compare", "0", "1", "--study", "first"]);
    assert!(
        shown.contains("+50.0% better") && shown.contains("+50.0% worse"),
        "{shown}"
    );
    assert!(
        !shown.contains("batch.micro_batch"),
        "equal settings are left out: {shown}"
    );
    let all = workspace.shown(&["compare", "0", "second/1", "--study", "first", "--all"]);
    assert!(all.contains("batch.micro_batch") && all.contains("second/1"), "{all}");
    let json: serde_json::Value = serde_json::from_str(&workspace.shown(&["compare", "0", "1", "--json"])).unwrap();
    assert_eq!(json["difference_percent"][0]["throughput"], 50.0);
    assert!(workspace.refused(&["compare", "0", "9"]).contains("no trial 9"));
    assert!(workspace.refused(&["compare", "0", "x"]).contains("STUDY/NUMBER"));
}

#[test]
fn a_study_is_deleted_only_when_that_is_said() {
    let workspace = Workspace::new().with("peft-tune.db", &["first", "second"]);
    let before = std::fs::read(workspace.at("peft-tune.db")).unwrap();
    assert!(workspace.refused(&["delete", "first"]).contains("--yes"));
    assert!(std::fs::read(workspace.at("peft-tune.db")).unwrap() == before);
    assert!(workspace.shown(&["delete", "first", "--yes"]).contains("3 trials"));
    assert!(workspace.refused(&["show", "first"]).contains("it has `second`"));
    assert!(workspace.shown(&["show", "second"]).contains("3 trials"));
    let left = workspace.shown(&["query", "select count(*) from step", "--format", "csv"]);
    assert_eq!(left, "count(*)\n9\n");
    assert!(workspace.shown(&["vacuum"]).contains("sound"));
    assert!(workspace.refused(&["delete", "first", "--yes"]).contains("no study"));
}

#[test]
fn an_import_takes_everything_over_and_changes_nothing_that_is_there() {
    let workspace = Workspace::new()
        .with("peft-tune.db", &["first"])
        .with("other.db", &["first", "second"]);
    let other = std::fs::read(workspace.at("other.db")).unwrap();
    let mine = workspace.shown(&["show", "first", "1", "--json"]);
    let imported = workspace.shown(&["import", "other.db"]);
    assert!(imported.contains("study first: 3 trials, as first-2\n"), "{imported}");
    assert!(imported.contains("study second: 3 trials\n"), "{imported}");
    assert_eq!(workspace.shown(&["show", "first", "1", "--json"]), mine);
    let sql = "select study, trial, state, throughput, peak_memory, loss, rank from trial_summary
               where study = 'second' order by trial";
    let copied = workspace.shown(&["query", sql, "--format", "csv"]);
    assert_eq!(
        copied,
        workspace.shown(&["query", sql, "--format", "csv", "--db", "other.db"])
    );
    for table in ["param", "metric", "step", "evaluation", "study_objective"] {
        let count = workspace.shown(&[
            "query",
            &format!("select count(*) as n from {table}"),
            "--format",
            "csv",
        ]);
        let one = workspace.shown(&[
            "query",
            &format!("select count(*) / 2 * 3 as n from {table}"),
            "--format",
            "csv",
            "--db",
            "other.db",
        ]);
        assert_eq!(count, one, "{table}");
    }
    let sound = workspace.shown(&["query", "pragma foreign_key_check", "--format", "csv"]);
    assert_eq!(sound.lines().count(), 1, "{sound}");
    assert!(workspace.shown(&["import", "other.db"]).contains("already"));
    assert!(
        std::fs::read(workspace.at("other.db")).unwrap() == other,
        "the other file was changed"
    );
    assert!(
        workspace
            .refused(&["import", "other.db", "--study", "second", "--as", "first"])
            .contains("--as")
    );
    assert!(
        workspace
            .shown(&["import", "other.db", "--study", "second", "--as", "third"])
            .contains("as third")
    );
    assert!(workspace.refused(&["import", "peft-tune.db"]).contains("import into"));
    assert!(workspace.refused(&["import", "none.db"]).contains("none.db"));
    assert!(
        workspace
            .refused(&["import", "other.db", "--study", "fourth"])
            .contains("`first`, `second`")
    );
}

#[test]
fn a_study_is_exported_for_other_programs() {
    let workspace = Workspace::new().with("peft-tune.db", &["first"]);
    for format in ["optuna", "csv", "parquet", "tensorboard", "mlflow"] {
        let files = workspace.shown(&["export", "--format", format, "--output", format]);
        for file in files.lines() {
            assert!(workspace.at(file).exists(), "{file}");
        }
        assert!(
            workspace
                .refused(&["export", "--format", format, "--output", format])
                .contains("already")
        );
        assert!(
            workspace
                .refused(&["export", "--format", format, "--output", "x", "--trial", "1"])
                .contains("whole study")
        );
    }
    let trials = std::fs::read_to_string(workspace.at("csv/trials.csv")).unwrap();
    let mut lines = trials.lines();
    assert!(
        lines.next().unwrap().contains("param.optimizer,param.rank,metric.loss"),
        "{trials}"
    );
    assert_eq!(lines.count(), 3);
    let steps = std::fs::read_to_string(workspace.at("csv/steps.csv")).unwrap();
    assert_eq!(steps.lines().count(), 10);
}

#[test]
fn an_export_that_fails_leaves_no_part_of_it() {
    let workspace = Workspace::new().with("peft-tune.db", &["first"]);
    // The last of three files is in the way.
    std::fs::create_dir(workspace.at("csv")).unwrap();
    std::fs::write(workspace.at("csv/steps.csv"), "mine").unwrap();
    let refused = workspace.refused(&["export", "--format", "csv", "--output", "csv"]);
    assert!(refused.contains("steps.csv already exists"), "{refused}");
    assert_eq!(std::fs::read_dir(workspace.at("csv")).unwrap().count(), 1);
    // Of each trial of the front: its file is in the way, or a file where its folder would be.
    for (case, number) in [("a", 0), ("b", 1)] {
        for in_the_way in [format!("trial-{number}/axolotl.yaml"), format!("trial-{number}")] {
            let output = format!("{case}-{}", in_the_way.len());
            let there = workspace.at(&output).join(in_the_way);
            std::fs::create_dir_all(there.parent().unwrap()).unwrap();
            std::fs::write(&there, "mine").unwrap();
            let output_folder = output.as_str();
            workspace.refused(&[
                "export",
                "--format",
                "axolotl",
                "--front",
                "--no-data",
                "--output",
                output_folder,
            ]);
            assert_eq!(std::fs::read_to_string(&there).unwrap(), "mine");
            let other = workspace.at(&output).join(format!("trial-{}", 1 - number));
            assert!(!other.exists(), "{}", other.display());
        }
    }
}

#[test]
fn the_front_is_exported_into_a_folder_each() {
    let workspace = Workspace::new().with("peft-tune.db", &["first"]);
    workspace.shown(&[
        "export",
        "--format",
        "axolotl",
        "--front",
        "--no-data",
        "--output",
        "front",
    ]);
    for number in ["0", "1"] {
        let text = std::fs::read_to_string(workspace.at(&format!("front/trial-{number}/axolotl.yaml"))).unwrap();
        assert!(text.contains("lora_target_modules: [q_proj, v_proj]"), "{text}");
    }
    assert!(!workspace.at("front/trial-2").exists());
    assert!(
        workspace
            .refused(&[
                "export", "--format", "axolotl", "--front", "--trial", "1", "--output", "a"
            ])
            .contains("--trial")
    );
}

#[test]
fn named_queries_answer_and_mistyped_ones_are_told() {
    let workspace = Workspace::new().with("peft-tune.db", &["first", "second"]);
    let list = workspace.shown(&["query", "--list"]);
    for name in list.lines().skip(2).filter_map(|line| line.split_whitespace().next()) {
        workspace.shown(&["query", name, "--study", "first"]);
        assert!(
            workspace.shown(&["query", name, "--print-sql"]).contains("?1"),
            "{name}"
        );
    }
    let front = workspace.shown(&["query", "front", "--format", "csv"]);
    assert_eq!(front.lines().count(), 3, "{front}");
    assert!(workspace.refused(&["query", "fornt"]).contains("did you mean `front`"));
    assert!(
        workspace
            .refused(&["query", "front", "--study", "none"])
            .contains("no study `none`")
    );
    workspace.shown(&[
        "query",
        "select trial, loss from trial_summary",
        "--output",
        "rows.parquet",
    ]);
    assert!(
        std::fs::read(workspace.at("rows.parquet"))
            .unwrap()
            .starts_with(b"PAR1")
    );
    assert!(
        workspace
            .refused(&["query", "front", "--output", "rows.parquet"])
            .contains("--force")
    );
    workspace.shown(&["query", "front", "--output", "rows.parquet", "--force"]);
}

#[test]
fn names_that_mean_something_elsewhere_stay_names() {
    let name = "a'; drop table trial; --\u{1b}[31m\n<script>alert(1)</script> ../..";
    let workspace = Workspace::new().with("peft-tune.db", &[name]);
    for arguments in [
        vec!["studies"],
        vec!["show"],
        vec!["show", "0"],
        vec!["pareto"],
        vec!["query", "front"],
        vec!["query", "states", "--study", name],
        vec!["compare", "0", "1"],
    ] {
        let shown = workspace.shown(&arguments);
        assert!(!shown.contains('\u{1b}'), "{arguments:?}: {shown:?}");
    }
    for format in [
        "recipe",
        "trl",
        "axolotl",
        "llamafactory",
        "unsloth",
        "optuna",
        "csv",
        "tensorboard",
        "mlflow",
    ] {
        let is_whole_study = ["optuna", "csv", "tensorboard", "mlflow"].contains(&format);
        let output = format!("out/{format}");
        let mut arguments = vec!["export", "--format", format, "--output", output.as_str()];
        arguments.extend((!is_whole_study).then_some("--no-data"));
        workspace.shown(&arguments);
    }
    let script = std::fs::read_to_string(workspace.at("out/unsloth/unsloth_train.py")).unwrap();
    let comment = script.lines().find(|line| line.contains("<script>")).unwrap();
    assert!(comment.starts_with('#'), "{script}");
    let outside: Vec<_> = std::fs::read_dir(workspace.folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(outside.len(), 2, "{outside:?}");
    workspace.shown(&["delete", name, "--yes"]);
    assert!(workspace.shown(&["studies"]).contains("no studies"));
}

/// Every command that takes a database, and the ways to call it.
const COMMANDS: [&[&str]; 11] = [
    &["studies"],
    &["show"],
    &["show", "0"],
    &["pareto"],
    &["query", "front"],
    &["compare", "0", "1"],
    &["export", "--format", "trl", "--output", "out"],
    &["export", "--format", "optuna", "--output", "out"],
    &["delete", "first", "--yes"],
    &["vacuum"],
    &["import", "other.db"],
];

#[test]
fn databases_that_are_not_sound_are_told_and_left_alone() {
    let workspace = Workspace::new()
        .with("good.db", &["first"])
        .with("other.db", &["second"]);
    let bytes = std::fs::read(workspace.at("good.db")).unwrap();
    let mut torn = bytes.clone();
    let middle = torn.len() / 4096 / 2 * 4096;
    torn[middle..middle + 4096].fill(0xa5);
    let of_version = |version: i64| {
        let path = workspace.at("versioned.db");
        std::fs::write(&path, &bytes).unwrap();
        tokio::runtime::Runtime::new().unwrap().block_on(async {
            let pool = sqlx::SqlitePool::connect(&format!("sqlite://{}", path.display()))
                .await
                .unwrap();
            sqlx::query("update _sqlx_migrations set version = ?")
                .bind(version)
                .execute(&pool)
                .await
                .unwrap();
            pool.close().await;
        });
        std::fs::read(path).unwrap()
    };
    let (newer, older) = (of_version(9999), of_version(30));
    let cases: [(&str, &[u8], &str); 5] = [
        ("newer.db", &newer, "newer peft-tune"),
        ("older.db", &older, "older peft-tune"),
        ("text.db", b"these are my notes", "not a results database"),
        ("cut.db", &bytes[..bytes.len() / 2], "damaged"),
        ("torn.db", &torn, "damaged"),
    ];
    for (name, content, message) in cases {
        for command in COMMANDS {
            std::fs::write(workspace.at("peft-tune.db"), content).unwrap();
            let output = workspace.run(command);
            let told = String::from_utf8_lossy(&output.stderr).into_owned();
            let case = format!("{name} {command:?}: {output:?}");
            assert!(
                std::fs::read(workspace.at("peft-tune.db")).unwrap() == content,
                "changed by {case}"
            );
            // A command that never reads the damaged page may succeed.
            if output.status.success() {
                assert!(message == "damaged", "{case}");
                continue;
            }
            assert!(told.contains(message) && told.starts_with("error: "), "{case}");
            assert!(!workspace.at("peft-tune.db-wal").exists(), "{case}");
        }
        let _ = std::fs::remove_dir_all(workspace.at("out"));
    }
    for command in COMMANDS.iter().filter(|command| command[0] != "import") {
        let _ = std::fs::remove_file(workspace.at("peft-tune.db"));
        let told = workspace.refused(command);
        assert!(told.contains("no results database"), "{command:?}: {told}");
        assert!(!workspace.at("peft-tune.db").exists(), "{command:?}");
    }
}

#[test]
fn a_database_that_another_process_holds_or_nobody_may_write_is_left_alone() {
    let workspace = Workspace::new().with("peft-tune.db", &["first"]);
    let path = workspace.at("peft-tune.db");
    let before = std::fs::read(&path).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let study = runtime.block_on(async {
        let store = Store::open(&path).await.unwrap();
        let study = store.studies().begin(&study_record("first")).await.unwrap();
        (store, study)
    });
    let told = String::from_utf8(workspace.run(&["delete", "first", "--yes"]).stderr).unwrap();
    assert!(told.contains("is being run by process"), "{told}");
    assert!(
        workspace.shown(&["show", "first"]).contains("3 trials"),
        "reading goes on"
    );
    drop(study);
    let mut permissions = std::fs::metadata(&path).unwrap().permissions();
    permissions.set_readonly(true);
    std::fs::set_permissions(&path, permissions).unwrap();
    let after = std::fs::read(&path).unwrap();
    assert!(workspace.shown(&["show", "first"]).contains("3 trials"));
    // The superuser may write anything; everyone else is told.
    let output = workspace.run(&["delete", "first", "--yes"]);
    if !output.status.success() {
        let told = String::from_utf8(output.stderr).unwrap();
        assert!(told.contains("cannot be written"), "{told}");
        assert!(std::fs::read(&path).unwrap() == after);
    }
    drop(before);
}

#[test]
fn every_shell_gets_its_completions() {
    let workspace = Workspace::new();
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let script = workspace.shown(&["completions", shell]);
        assert!(script.contains("peft-tune") && script.contains("export"), "{shell}");
        assert!(!script.contains("try-kernels"), "{shell} offers a hidden command");
    }
}

#[test]
fn every_command_has_a_manual_page() {
    let workspace = Workspace::new();
    let folder = tempfile::tempdir().unwrap();
    let pages = folder.path().join("man1");
    workspace.shown(&["man", pages.to_str().unwrap()]);
    let text = |name: &str| std::fs::read_to_string(pages.join(name)).unwrap();
    assert!(text("peft-tune.1").contains("Pareto"));
    let search = text("peft-tune-search.1");
    assert!(
        search.contains("dry") && search.contains("peft\\-tune search space.yaml"),
        "{search}"
    );
    assert!(!pages.join("peft-tune-worker.1").exists());
}

/// Words that bash offers for the last of these, by the script that the program prints.
fn offered(script: &std::path::Path, words: &[&str]) -> String {
    const ASK: &str = r#"
        source "$1"; shift
        COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_LINE="$*"
        $(complete -p peft-tune | sed 's/.*-F \([^ ]*\).*/\1/') peft-tune "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
        echo "${COMPREPLY[*]}""#;
    let output = std::process::Command::new("bash")
        .args(["--norc", "-c", ASK, "bash"])
        .arg(script)
        .args(words)
        .output()
        .unwrap();
    assert!(output.stderr.is_empty(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn bash_completes_commands_their_options_and_values() {
    let workspace = Workspace::new();
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("peft-tune.bash");
    std::fs::write(&script, workspace.shown(&["completions", "bash"])).unwrap();
    assert_eq!(offered(&script, &["peft-tune", "exp"]), "explain export\n");
    assert_eq!(
        offered(&script, &["peft-tune", "export", "--format", "t"]),
        "trl torchtune tensorboard\n"
    );
    assert_eq!(
        offered(&script, &["peft-tune", "infer-bench", "--adapter"]),
        "--adapter --adapters\n"
    );
    assert!(!offered(&script, &["peft-tune", ""]).contains("worker"));
}
