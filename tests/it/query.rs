//! `query`, `show`, `pareto` and `studies` on the command line.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use peft_tune::store::{ModelRecord, Store};
use peft_tune_core::study::{Params, TrialNumber};

use super::store::{add_trial, complete, out_of_memory, recipe, study_record};

/// A folder with a database of one study: two trials on the front, one beaten, one out of memory, one running.
pub(super) struct Results {
    pub(super) folder: tempfile::TempDir,
}

impl Results {
    pub(super) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("peft-tune.db");
        tokio::runtime::Runtime::new().unwrap().block_on(fill(&path));
        Self { folder }
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = crate::program();
        command
            .args(arguments)
            .current_dir(self.folder.path())
            .env_remove("PEFT_TUNE_DB");
        command
    }

    /// Standard output of a command that succeeds.
    pub(super) fn shown(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{output:?}");
        assert!(output.stderr.is_empty(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Standard error of a command that ends with `code`.
    fn refused(&self, code: i32, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        assert!(output.stdout.is_empty(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    fn database(&self) -> PathBuf {
        self.folder.path().join("peft-tune.db")
    }
}

async fn fill(path: &Path) {
    let store = Store::open(path).await.unwrap();
    let mut record = study_record("quickstart");
    record.seed = 7;
    record.model = Some(ModelRecord {
        source: "models/tiny".into(),
        ..ModelRecord::default()
    });
    let study = store.studies().begin(&record).await.unwrap();
    let gib = 1_073_741_824.0;
    let states = [
        complete(5120.4, 1.5 * gib, 2.12345),
        complete(12800.0, 2.25 * gib, 2.0),
        complete(5000.0, 2.25 * gib, 2.2),
        out_of_memory(Some(3 << 30)),
    ];
    for (number, state) in (0..).zip(&states) {
        let params = Params::from([
            ("learning_rate".to_owned(), (1.23456789e-4 * (number + 1) as f64).into()),
            ("optimizer".to_owned(), "adamw".into()),
            ("rank".to_owned(), (8i64 << number).into()),
        ]);
        add_trial(&store, study.id, number as u64, &params, state).await;
    }
    store
        .trials()
        .start(study.id, TrialNumber(4), &Params::new(), Some(&recipe()))
        .await
        .unwrap();
    drop(study);
    store.close().await.unwrap();
}

/// The text with each moment, such as `2025-11-20 10:50`, made the same.
fn without_times(text: &str) -> String {
    let is_moment = |part: &str| {
        part.bytes().zip("0000-00-00 00:00".bytes()).all(|(byte, form)| {
            if form == b'0' {
                byte.is_ascii_digit()
            } else {
                byte == form
            }
        })
    };
    let mut shown = String::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        match rest.get(..16) {
            Some(part) if is_moment(part) => {
                shown.push_str("YYYY-MM-DD HH:MM");
                rest = &rest[16..];
            }
            _ => {
                shown.push(first);
                rest = &rest[first.len_utf8()..];
            }
        }
    }
    shown
}

#[test]
fn a_query_writes_tables_csv_and_json() {
    let results = Results::new();
    let sql = "select trial, state, reason, throughput, x'00ff' as bytes from trial_summary where trial in (0, 3)";
    insta::assert_snapshot!(results.shown(&["query", sql]), @"
     trial | state    | reason        | throughput | bytes
    -------+----------+---------------+------------+-------
         0 | complete | NULL          |     5120.4 | 00ff
         3 | failed   | out_of_memory |       NULL | 00ff
    (2 rows)
    ");
    insta::assert_snapshot!(results.shown(&["query", sql, "--format", "csv"]), @"
    trial,state,reason,throughput,bytes
    0,complete,,5120.4,00ff
    3,failed,out_of_memory,,00ff
    ");
    insta::assert_snapshot!(results.shown(&["query", sql, "--format", "json"]), @r#"
    [
      {"trial":0,"state":"complete","reason":null,"throughput":5120.4,"bytes":"00ff"},
      {"trial":3,"state":"failed","reason":"out_of_memory","throughput":null,"bytes":"00ff"}
    ]
    "#);
}

#[test]
fn an_empty_result_still_has_its_columns() {
    let results = Results::new();
    let sql = "select trial, loss from trial_summary where trial > 100";
    assert_eq!(results.shown(&["query", sql, "--format", "csv"]), "trial,loss\n");
    assert_eq!(results.shown(&["query", sql, "--format", "json"]), "[]\n");
    assert_eq!(
        results.shown(&["query", sql]),
        " trial | loss\n-------+------\n(0 rows)\n"
    );
}

#[test]
fn params_and_metrics_are_read_by_study_and_trial() {
    let results = Results::new();
    let sql = "select study, trial, name, value, typeof(value) from trial_param where trial = 1
               union all select study, trial, name, value, typeof(value) from trial_metric where trial = 1";
    insta::assert_snapshot!(results.shown(&["query", sql, "--format", "csv"]), @"
    study,trial,name,value,typeof(value)
    quickstart,1,learning_rate,0.000246913578,real
    quickstart,1,optimizer,adamw,text
    quickstart,1,rank,16,integer
    quickstart,1,loss,2.0,real
    quickstart,1,peak_memory,2415919104.0,real
    quickstart,1,throughput,12800.0,real
    ");
}

#[test]
fn a_query_cannot_write_and_says_so() {
    let results = Results::new();
    let before = std::fs::read(results.database()).unwrap();
    for sql in [
        "delete from trial",
        "attach 'other.db' as other",
        "select 1; delete from trial",
        "with a as (select 1) delete from trial",
        "pragma journal_mode = delete",
        "vacuum into 'copy.db'",
        "",
        "select * from trial where number = ?",
    ] {
        let message = results.refused(2, &["query", sql]);
        assert!(message.starts_with("error: "), "{sql}: {message}");
    }
    assert!(std::fs::read(results.database()).unwrap() == before);
    let files = std::fs::read_dir(results.folder.path()).unwrap().count();
    assert_eq!(files, 1, "nothing was left beside the database");
    insta::assert_snapshot!(results.refused(2, &["query", "with a as (select 1) delete from trial"]), @"error: `delete` is not allowed: a query only reads (`select`, `with`, `values`, `explain`, or a `pragma` that reads)");
    insta::assert_snapshot!(results.refused(2, &["query", "select 1; delete from trial"]), @"error: several statements were given: give one at a time");
}

#[test]
fn an_error_in_a_query_points_at_its_place() {
    let results = Results::new();
    insta::assert_snapshot!(results.refused(2, &["query", "select trial,\n  los from trial_summary"]), @"
    error: no such column: los (line 2, column 3)
        los from trial_summary
        ^
    ");
    insta::assert_snapshot!(results.refused(2, &["query", "  select * frm trial_summary"]), @r#"
    error: near "frm": syntax error (line 1, column 10)
      select * frm trial_summary
               ^
    "#);
    insta::assert_snapshot!(results.refused(2, &["query", "select * from trial_sumary"]), @"
    error: no such table: trial_sumary
    did you mean `trial_summary`?
    ");
    let told = results.refused(2, &["query", "select * from x"]);
    assert!(
        told.starts_with("error: no such table: x\ntables and views: baseline, best_by_objective, ")
            && told.contains(", trial_summary"),
        "{told}"
    );
    insta::assert_snapshot!(results.refused(2, &["query", "select abs(-9223372036854775808)"]), @"error: integer overflow");
}

#[test]
fn the_database_is_the_flag_then_the_environment_then_the_default() {
    let results = Results::new();
    let elsewhere = tempfile::tempdir().unwrap();
    let run = |flag: Option<&Path>, environment: Option<&Path>| {
        let mut command = crate::program();
        command
            .arg("studies")
            .current_dir(elsewhere.path())
            .env_remove("PEFT_TUNE_DB");
        flag.map(|path| command.arg("--db").arg(path));
        environment.map(|path| command.env("PEFT_TUNE_DB", path));
        command.output().unwrap()
    };
    let (there, missing) = (results.database(), elsewhere.path().join("none.db"));
    assert!(run(Some(&there), Some(&missing)).status.success());
    assert!(run(None, Some(&there)).status.success());
    for output in [
        run(None, Some(Path::new(""))),
        run(None, None),
        run(None, Some(&missing)),
        run(Some(&missing), Some(&there)),
    ] {
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(
            String::from_utf8_lossy(&output.stderr).contains("no results database at"),
            "{output:?}"
        );
    }
    assert_eq!(
        std::fs::read_dir(elsewhere.path()).unwrap().count(),
        0,
        "no file was made"
    );
}

#[test]
fn the_front_is_shown_best_throughput_first() {
    let results = Results::new();
    insta::assert_snapshot!(results.shown(&["pareto"]), @"
    study quickstart: 5 trials: 3 complete, 1 failed (out_of_memory), 1 unfinished, 50.0 s

    Pareto front of throughput (max), peak memory (min), loss (min): 2 trials

     trial | tokens/s | peak memory |   loss | learning_rate | rank
    -------+----------+-------------+--------+---------------+------
         1 |   12,800 |    2.25 GiB | 2.0000 |      2.469e-4 |   16
         0 |    5,120 |    1.50 GiB | 2.1235 |      1.235e-4 |    8

    the same in all: optimizer adamw
    ");
    let json: serde_json::Value = serde_json::from_str(&results.shown(&["pareto", "quickstart", "--json"])).unwrap();
    assert_eq!(json["front"][0]["trial"], 1);
    assert_eq!(json["front"][1]["metrics"]["peak_memory"], 1.5 * 1_073_741_824.0);
    let message = results.refused(2, &["pareto", "other"]);
    assert!(
        message.contains("no study `other`") && message.contains("`quickstart`"),
        "{message}"
    );
}

#[test]
fn a_study_is_shown_with_its_trials() {
    let results = Results::new();
    insta::assert_snapshot!(without_times(&results.shown(&["studies"])), @"
     study      | trials | variants | complete | failed | trial time | last started     | objectives                    | model
    ------------+--------+----------+----------+--------+------------+------------------+-------------------------------+-------------
     quickstart |      5 |        0 |        3 |      1 |     50.0 s | YYYY-MM-DD HH:MM | throughput, peak_memory, loss | models/tiny
    ");
    insta::assert_snapshot!(without_times(&results.shown(&["show", "quickstart"])), @"
    study quickstart
      space       space.yaml
      model       models/tiny
      sampler     random, seed 7
      objectives  throughput (maximize), peak_memory (minimize), loss (minimize)
      began       YYYY-MM-DD HH:MM UTC
      trials      5 trials: 3 complete, 1 failed (out_of_memory), 1 unfinished in 50.0 s
      hypervolume 1.0001e11, 8.4% of it after 1, 100.0% of it after 2

     trial | state         | tokens/s | peak memory |   loss | learning_rate | optimizer | rank
    -------+---------------+----------+-------------+--------+---------------+-----------+------
         0 | complete      |    5,120 |    1.50 GiB | 2.1235 | 1.235e-4      | adamw     | 8
         1 | complete      |   12,800 |    2.25 GiB | 2.0000 | 2.469e-4      | adamw     | 16
         2 | complete      |    5,000 |    2.25 GiB | 2.2000 | 3.704e-4      | adamw     | 32
         3 | out_of_memory |        - |           - |      - | 4.938e-4      | adamw     | 64
         4 | running       |        - |           - |      - | -             | -         | -
    ");
    let json: serde_json::Value = serde_json::from_str(&results.shown(&["show", "--last", "2", "--json"])).unwrap();
    assert_eq!(json["trials"].as_array().unwrap().len(), 2);
    assert_eq!(json["trials"][0]["state"]["reason"]["kind"], "out_of_memory");
}

#[test]
fn a_trial_is_shown_in_depth() {
    let results = Results::new();
    insta::assert_snapshot!(without_times(&results.shown(&["show", "--trial", "1"])), @"
    trial 1 of study quickstart: complete
      started YYYY-MM-DD HH:MM UTC, ended YYYY-MM-DD HH:MM, took 12.5 s

    params
      learning_rate  2.469e-4
      optimizer      adamw
      rank           16

    metrics
      loss         2.0000
      peak_memory  2.25 GiB
      throughput   12,800

    steps
     phase | steps | tokens | first loss | last loss | seconds | data | forward | backward | optimizer
    -------+-------+--------+------------+-----------+---------+------+---------+----------+-----------
     train |     3 |    300 |     2.5000 |    2.5000 |    2.10 | 0.30 |    0.60 |     0.90 |      0.30

    evaluations
     step | tokens |   loss | accuracy | seconds
    ------+--------+--------+----------+---------
        3 |    300 | 2.1250 |    50.0% |    0.25

    recipe
    model: tiny
    data:
      train: train.jsonl
      held_out: 0.1
      format: auto
      loss_on: completions
    adapter:
      rank: 16
      alpha: 32.0
      dropout: 0.0
      target_modules:
      - q_proj
      - v_proj
      rslora: true
      dora: false
      init: kaiming
      bias: none
      lora_bias: false
    precision: bf16
    batch:
      micro_batch: 4
      gradient_accumulation: 1
      sequence_length: 1024
      packing: false
    gradient_checkpointing: none
    optimizer:
      kind: adamw
      learning_rate: 0.0002
      weight_decay: 0.0
      beta1: 0.9
      epsilon: 1.0e-8
      momentum: 0.9
      nesterov: false
      max_grad_norm: 1.0
    schedule:
      kind: cosine
      warmup: 0.0
    training:
      length:
        epochs: 1.0
      shuffle: true
      seed: 0
    ");
    let failed = results.shown(&["show", "--trial", "3"]);
    assert!(failed.contains("out of memory in phase profile: 3.00 GiB in use, unknown asked for, limit 3.00 GiB"));
    let json: serde_json::Value = serde_json::from_str(&results.shown(&["show", "--trial", "1", "--json"])).unwrap();
    assert_eq!(json["recipe"]["adapter"]["rank"], 16);
    let message = results.refused(2, &["show", "--trial", "9"]);
    assert!(
        message.contains("study `quickstart` has no trial 9: it has 5"),
        "{message}"
    );
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    let results = Results::new();
    let sql = "with recursive n(i) as (select 1 union all select i + 1 from n limit 200000) select i, i from n";
    for format in ["csv", "json", "table"] {
        let mut child = results
            .command(&["query", sql, "--format", format])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert!(
            output.status.success() && output.stderr.is_empty(),
            "{format}: {output:?}"
        );
    }
}

#[test]
fn hostile_names_do_not_reach_the_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("peft-tune.db");
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let store = Store::open(&path).await.unwrap();
        store
            .studies()
            .begin(&study_record("a\u{1b}]0;x\u{7}\n'; drop table study; --"))
            .await
            .unwrap();
        store.close().await.unwrap();
    });
    let results = Results { folder };
    for arguments in [
        &["studies"][..],
        &["show"],
        &["pareto"],
        &["query", "select study from study_summary"],
    ] {
        let shown = results.shown(arguments);
        assert!(!shown.contains('\u{1b}') && !shown.contains('\u{7}'), "{shown:?}");
        assert!(shown.contains("drop table study"), "{shown:?}");
    }
}
