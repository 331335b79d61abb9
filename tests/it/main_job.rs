//! `search` as people run it: the real binary, a real model, real trial processes, a real database.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use serde_json::Value;

/// A folder with a study on the quickstart's model, small enough for a test.
struct Study {
    folder: tempfile::TempDir,
}

impl Study {
    fn new(space: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let assets = Path::new(env!("CARGO_MANIFEST_DIR")).join("search_spaces/quickstart");
        let head = format!(
            "study: small\nmodel: {assets}/base\ndata: {{train: {assets}/train.jsonl, held_out: {assets}/held_out.jsonl}}\n",
            assets = assets.display()
        );
        std::fs::write(folder.path().join("space.yaml"), head + space).unwrap();
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = crate::program();
        command.args(arguments).current_dir(self.folder.path());
        command
            .env("PEFT_TUNE_DB", self.path("study.db"))
            .env("PEFT_TUNE_CACHE", self.path("cache"));
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Runs a command that must succeed and returns what it printed.
    fn stdout(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "{arguments:?} ended with {}: {errors}",
            output.status
        );
        String::from_utf8(output.stdout).unwrap()
    }

    fn rows(&self, sql: &str) -> Vec<Value> {
        serde_json::from_str(&self.stdout(&["query", sql, "--format", "json"])).unwrap()
    }
}

const SMALL: &str = r#"
space:
  rank: [2, 16]
  learning_rate: {low: 1e-3, high: 2e-2, scale: log}
  micro_batch: [2, 4]
  global_batch: 4
  gradient_checkpointing: [none, full]
  precision: fp32
trial: {sequence_length: 96, profile_steps: 2, training_steps: 4, evaluation: {rows: 8}}
budget: {trials: 6}
"#;

#[test]
fn a_search_ends_in_a_front_a_database_and_a_config() {
    let study = Study::new(SMALL);
    let text = study.stdout(&["search", "space.yaml"]);
    assert!(
        text.contains("Pareto front of throughput (max), peak memory (min), loss (min)"),
        "{text}"
    );
    assert!(text.contains("* recommended: trial "), "{text}");

    let trials = study.rows("select state, throughput, peak_memory, loss, wall_s from trial_summary");
    assert_eq!(trials.len(), 6);
    for trial in &trials {
        assert_eq!(trial["state"], "complete");
        assert!(trial["throughput"].as_f64().unwrap() > 0.0);
        // The weights alone take more than a mebibyte in F32.
        assert!(trial["peak_memory"].as_f64().unwrap() > f64::from(1 << 20));
        let loss = trial["loss"].as_f64().unwrap();
        assert!(loss > 0.0 && loss < 10.0, "{loss}");
    }
    assert!(!study.rows("select * from pareto_front").is_empty());

    for (format, file) in [
        ("peft", "adapter_config.json"),
        ("trl", "trl_sft.yaml"),
        ("recipe", "recipe.yaml"),
    ] {
        study.stdout(&["export", "--format", format, "--output", "out"]);
        assert!(study.path("out").join(file).is_file(), "{file}");
    }
    let again = study.stdout(&["search", "space.yaml", "--json"]);
    let summary: Value = serde_json::from_str(&again).unwrap();
    assert_eq!(summary["trials"]["complete"], 6, "nothing is left to run");
}

/// Processes of one trial share memory on Linux alone.
#[cfg(target_os = "linux")]
#[test]
fn trials_on_several_devices_stand_beside_those_on_one() {
    let study = Study::new(
        r#"
space:
  devices: [1, 2]
  micro_batch: 1
  global_batch: 4
  precision: fp32
trial: {sequence_length: 64, profile_steps: 3, training_steps: 2, evaluation: {rows: 4}}
sampler: grid
confirm: none
budget: {trials: 2}
"#,
    );
    let summary: Value = serde_json::from_str(&study.stdout(&["search", "space.yaml", "--json"])).unwrap();
    let scaling = summary["scaling"].as_array().unwrap();
    assert_eq!(scaling.len(), 1, "{summary:#}");
    let one = &scaling[0];
    let number = |name: &str| one[name].as_f64().unwrap();
    assert_eq!(
        (number("devices"), &one["shares_global_batch"], &one["divides_processor"]),
        (2.0, &true.into(), &true.into())
    );
    let rows = study.rows(
        "select metric.name, metric.value, number from metric join trial on trial.id = trial_id
         where name in ('throughput', 'step_s', 'link_s') order by number",
    );
    let value = |name: &str, trial: &Value| {
        let row = rows.iter().find(|row| row["name"] == name && row["number"] == *trial);
        row.map(|row| row["value"].as_f64().unwrap())
    };
    let (several, alone) = (&one["trial"], &one["against"]);
    let measured = |name: &str| value(name, several).unwrap();
    let speedup = measured("throughput") / value("throughput", alone).unwrap();
    assert!((number("speedup") / speedup - 1.0).abs() < 1e-9, "{one:#}");
    assert!((number("efficiency") / (speedup / 2.0) - 1.0).abs() < 1e-9, "{one:#}");
    // The first of two ranks has waited for the other.
    assert!(measured("link_s") > 0.0 && measured("link_s") < measured("step_s"), "{rows:?}");
    assert_eq!(value("link_s", alone), None, "{rows:?}");
    assert!(
        study.stdout(&["pareto"]).contains("several devices\n  trial "),
        "the front says it"
    );
    study.stdout(&["report", "--output", "page.html"]);
    let page = std::fs::read_to_string(study.path("page.html")).unwrap();
    assert!(page.contains("<dt>Devices</dt><dd>trial "), "the page says it");
}

#[test]
fn full_fine_tuning_is_measured_beside_adapters() {
    let study = Study::new(
        r#"
space:
  method: [lora, full]
  rank: {values: [4], when: {method: lora}}
  precision: fp32
  optimizer: adamw
  micro_batch: 2
trial: {sequence_length: 64, profile_steps: 1, training_steps: 2, evaluation: {rows: 4}}
sampler: grid
budget: {trials: 2}
"#,
    );
    study.stdout(&["search", "space.yaml"]);
    let trials = study.rows("select peak_memory, loss from trial_summary order by peak_memory");
    let peak = |trial: usize| trials[trial]["peak_memory"].as_f64().unwrap();
    assert!(trials.iter().all(|trial| trial["loss"].is_number()), "{trials:?}");
    // Values, gradients and two moments of 868,736 parameters in F32, and no copy of the weights beside them.
    let states = 16.0 * 868_736.0;
    assert!(peak(1) > states && peak(1) > 2.0 * peak(0), "{trials:?}");
    assert!(peak(1) < states + peak(0), "{trials:?}");
}

#[test]
fn a_search_that_is_killed_loses_and_repeats_nothing() {
    let study = Study::new(SMALL);
    let mut finished: Vec<Value> = Vec::new();
    let finished_now = "select number, ended_at, attempt from trial where state = 'complete' order by number";
    for round in 0..10u64 {
        let mut search = study.command(&["search", "space.yaml"]).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(150 + 337 * round % 1100));
        search.kill().unwrap();
        search.wait().unwrap();
        if !study.path("study.db").exists() {
            continue;
        }
        assert_eq!(study.rows("pragma integrity_check")[0]["integrity_check"], "ok");
        let now = study.rows(finished_now);
        assert_eq!(
            now[..finished.len()],
            finished[..],
            "a finished trial was lost or run again"
        );
        finished = now;
    }
    study.stdout(&["search", "space.yaml"]);
    let end = study.rows(finished_now);
    assert_eq!(end.len(), 6);
    assert_eq!(end[..finished.len()], finished[..]);
    assert_eq!(study.rows("pragma integrity_check")[0]["integrity_check"], "ok");
}

#[test]
fn a_trial_above_its_memory_limit_is_out_of_memory_and_the_next_one_runs() {
    let limited = r#"
space:
  rank: 8
  micro_batch: [1, 64]
  precision: fp32
trial: {sequence_length: 96, profile_steps: 1, memory_limit: 12 MiB}
objectives: [throughput, peak_memory]
budget: {trials: 2}
sampler: grid
"#;
    let study = Study::new(limited);
    study.stdout(&["search", "space.yaml"]);
    let states = study.rows("select micro_batch, state, reason, peak_memory from trial_summary order by micro_batch");
    assert_eq!(
        (&states[0]["state"], &states[0]["reason"]),
        (&"complete".into(), &Value::Null),
        "{states:?}"
    );
    assert!(states[0]["peak_memory"].as_f64().unwrap() <= f64::from(12 << 20));
    assert_eq!(
        (&states[1]["state"], &states[1]["reason"]),
        (&"failed".into(), &"out_of_memory".into()),
        "{states:?}"
    );
}

#[test]
fn a_trial_past_its_time_is_timed_out() {
    let slow = r#"
space:
  rank: [8, 16]
  precision: fp32
trial: {sequence_length: 96, training_steps: 1000000, timeout: 2s}
objectives: [loss]
budget: {trials: 1}
"#;
    let study = Study::new(slow);
    let started = Instant::now();
    study.stdout(&["search", "space.yaml"]);
    assert!(started.elapsed() < Duration::from_secs(60));
    let states = study.rows("select state, reason from trial_summary");
    assert_eq!(
        (&states[0]["state"], &states[0]["reason"]),
        (&"failed".into(), &"timed_out".into()),
        "{states:?}"
    );
}

#[test]
fn a_learning_rate_that_explodes_is_a_diverged_trial() {
    let wild = r#"
space:
  rank: [8, 16]
  learning_rate: 1e4
  optimizer: sgd
  precision: fp32
trial: {sequence_length: 96, training_steps: 60}
objectives: [loss]
budget: {trials: 1}
"#;
    let study = Study::new(wild);
    study.stdout(&["search", "space.yaml"]);
    let states = study.rows("select state, reason, loss from trial_summary");
    assert_eq!(
        (&states[0]["state"], &states[0]["reason"]),
        (&"failed".into(), &"diverged".into()),
        "{states:?}"
    );
    assert_eq!(states[0]["loss"], Value::Null);
}

#[test]
fn bad_input_ends_with_code_2_and_names_what_is_wrong() {
    let study = Study::new("space: {ranks: [2, 4]}\n");
    let output = study.run(&["search", "space.yaml"]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{text}");
    for part in ["space.yaml", "ranks", "rank"] {
        assert!(text.contains(part), "{text}");
    }
    assert!(
        !study.path("study.db").exists(),
        "a study that cannot run leaves no database"
    );
    assert_eq!(study.run(&["search", "absent.yaml"]).status.code(), Some(2));
    assert_eq!(study.run(&["search"]).status.code(), Some(2));
}

#[test]
fn another_definition_under_the_same_name_is_refused() {
    let study = Study::new(SMALL);
    study.stdout(&["search", "space.yaml", "--trials", "1"]);
    let text = std::fs::read_to_string(study.path("space.yaml")).unwrap();
    std::fs::write(study.path("space.yaml"), text.replace("[2, 16]", "[2, 32]")).unwrap();
    let output = study.run(&["search", "space.yaml"]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("small") && text.contains("--db"), "{text}");
}

#[cfg(unix)]
#[test]
fn a_program_of_the_users_can_be_tuned() {
    let study = Study::new("");
    let space = r#"
study: program
backend: {command: ["sh", "trial.sh"]}
objectives: [{metric: cost, direction: minimize}, {metric: speed, direction: maximize}]
space:
  x: {low: 0.0, high: 1.0}
  kind: [a, b]
budget: {trials: 5}
sampler: sobol
"#;
    std::fs::write(study.path("space.yaml"), space).unwrap();
    let script = r#"read line
case "$line" in *'"kind":"b"'*) echo "no such thing" >&2; exit 3;; esac
echo "starting up"
echo '{"step": 1, "metrics": {"cost": 5.5}}'
echo '{"metrics": {"cost": 4.25, "speed": 10}}'
"#;
    std::fs::write(study.path("trial.sh"), script).unwrap();
    study.stdout(&["search", "space.yaml"]);
    let states = study.rows(
        "select json_extract(value, '$') as kind, state, reason, cost.value as cost
         from trial_summary join trial_param using (study, trial)
         left join trial_metric as cost on cost.study = trial_summary.study and cost.trial = trial_summary.trial
            and cost.name = 'cost'
         where trial_param.name = 'kind'",
    );
    assert_eq!(states.len(), 5);
    for state in &states {
        let expected = if state["kind"] == "a" { "complete" } else { "failed" };
        assert_eq!(state["state"], expected, "{state}");
    }
}
