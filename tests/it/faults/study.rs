//! Faults that are not a setting's: they stop the search before its budget is spent on them, and leave the study as it was.

use std::path::Path;
use std::process::Output;

use super::bench::{Bench, Finished, messages};

/// A study whose model can be damaged.
pub(crate) fn with_own_model(space: &str) -> Bench {
    let bench = Bench::of(space);
    let text = std::fs::read_to_string(bench.path("space.yaml")).unwrap();
    let model = text.lines().find_map(|line| line.strip_prefix("model: ")).unwrap();
    std::fs::create_dir(bench.path("base")).unwrap();
    for file in std::fs::read_dir(model).unwrap().flatten() {
        std::fs::copy(file.path(), bench.path("base").join(file.file_name())).unwrap();
    }
    std::fs::write(bench.path("space.yaml"), text.replace(model, "./base")).unwrap();
    bench
}

const SPACE: &str = "
space: {rank: [2, 4, 8, 16], learning_rate: {low: 1e-4, high: 1e-2, scale: log}, precision: fp32}
trial: {sequence_length: 64, profile_steps: 1, training_steps: 2, evaluation: {rows: 2}}
sampler: random
confirm: none
budget: {trials: 5}
";

/// Runs a search that has to end with this code, says these words, and runs no trial.
fn refused(bench: &Bench, arguments: &[&str], code: i32, says: &str) -> Output {
    let mut search = bench.command(&["search", "space.yaml"]);
    let output = search.args(arguments).output().unwrap();
    let said = messages(&output);
    assert_eq!(output.status.code(), Some(code), "{says}: {said}");
    assert!(said.contains(says), "{says}: {said}");
    output
}

/// How many trials a study has.
fn trials(bench: &Bench) -> u64 {
    bench.count("select count(*) as n from trial")
}

/// Changes a file with a function, and returns what it held.
fn change(path: &Path, with: impl FnOnce(Vec<u8>) -> Vec<u8>) -> Vec<u8> {
    let whole = std::fs::read(path).unwrap();
    std::fs::write(path, with(whole.clone())).unwrap();
    whole
}

#[test]
fn a_device_that_is_not_there_costs_no_trial() {
    if !cfg!(feature = "cuda") {
        let bench = Bench::of(SPACE);
        let output = refused(&bench, &["--devices", "0"], 2, "built without NVIDIA support");
        // At once: before anything is said of what would run, and no worker is started.
        let said = messages(&output);
        assert!(
            said.starts_with("error: `--devices`: cuda:0 cannot be used: "),
            "{said}"
        );
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(!bench.path("study.db").exists());
        Bench::succeed(bench.search("0", &[]));
        assert_eq!(
            bench.count("select count(*) as n from trial where state = 'complete'"),
            5
        );
    }
}

#[test]
fn a_model_that_no_training_can_begin_with_costs_no_trial() {
    let bench = with_own_model(SPACE);
    let weights = bench.path("base/model.safetensors");
    let whole = change(&weights, |whole| whole[..whole.len() / 2].to_vec());
    refused(&bench, &[], 1, "no trial was run");
    // Every weight is NaN: what follows the header.
    let start = 8 + u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    std::fs::write(
        &weights,
        [&whole[..start], &vec![0xff; whole.len() - start][..]].concat(),
    )
    .unwrap();
    refused(&bench, &["--accept-changed-inputs"], 1, "is not finite");
    std::fs::write(&weights, &whole).unwrap();
    let config = bench.path("base/config.json");
    let right = change(&config, |text| {
        let mut config: serde_json::Value = serde_json::from_slice(&text).unwrap();
        let width = config["intermediate_size"].as_u64().unwrap();
        config["intermediate_size"] = (width + 8).into();
        config.to_string().into_bytes()
    });
    refused(&bench, &["--accept-changed-inputs"], 1, "no trial was run");
    assert_eq!(trials(&bench), 0);
    std::fs::write(&config, right).unwrap();
    let arguments = ["search", "space.yaml", "--accept-changed-inputs", "--trials", "2"];
    Bench::succeed(bench.command(&arguments));
    assert_eq!(bench.sound(&Finished::new()).len(), 2);
}

#[test]
fn data_that_the_model_cannot_take_are_told_before_anything_runs() {
    let bench = with_own_model(SPACE);
    let tokenizer = bench.path("base/tokenizer.json");
    let size = 1 + vocabulary(&bench);
    let whole = change(&tokenizer, |text| {
        let mut tokenizer: serde_json::Value = serde_json::from_slice(&text).unwrap();
        let added = tokenizer["added_tokens"].as_array_mut().unwrap();
        let mut token = added[0].clone();
        token["id"] = (size - 1).into();
        token["content"] = "th".into();
        token["special"] = false.into();
        added.push(token);
        tokenizer.to_string().into_bytes()
    });
    refused(&bench, &[], 2, "the model's vocabulary ends at");
    std::fs::write(&tokenizer, whole).unwrap();
    change(&bench.path("base/config.json"), |text| {
        let mut config: serde_json::Value = serde_json::from_slice(&text).unwrap();
        config["max_position_embeddings"] = 16.into();
        config.to_string().into_bytes()
    });
    refused(
        &bench,
        &["--accept-changed-inputs"],
        2,
        "longer than the 16 positions of the model",
    );
}

fn vocabulary(bench: &Bench) -> u64 {
    let text = std::fs::read(bench.path("base/config.json")).unwrap();
    let config: serde_json::Value = serde_json::from_slice(&text).unwrap();
    config["vocab_size"].as_u64().unwrap()
}

#[test]
fn modules_that_the_model_does_not_have_cost_no_trial_unless_they_are_a_choice() {
    let bench = Bench::of(&SPACE.replace("precision: fp32", "precision: fp32, target_modules: [[nowhere]]"));
    refused(&bench, &[], 1, "nowhere");
    assert_eq!(trials(&bench), 0);
    let bench = Bench::of(&SPACE.replace(
        "precision: fp32",
        "precision: fp32, target_modules: [[nowhere], attention]",
    ));
    Bench::succeed(bench.command(&["search", "space.yaml", "--trials", "6"]));
    assert!(bench.count("select count(*) as n from trial where state = 'complete'") > 0);
}

#[test]
fn a_study_whose_folder_moved_or_was_copied_continues() {
    let bench = with_own_model(SPACE);
    Bench::succeed(bench.command(&["search", "space.yaml", "--trials", "2"]));
    let finished = bench.sound(&Finished::new());
    std::fs::create_dir(bench.path("moved")).unwrap();
    for name in ["base", "space.yaml"] {
        std::fs::rename(bench.path(name), bench.path("moved").join(name)).unwrap();
    }
    let mut search = bench.command(&["search", "moved/space.yaml", "--trials", "4"]);
    let output = search.output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", messages(&output));
    assert!(messages(&output).contains("lie elsewhere now"), "{}", messages(&output));
    assert_eq!(bench.sound(&finished).len(), 4);
    let places = bench.rows("select distinct recipe ->> '$.model' as model from trial");
    assert_eq!(places.len(), 1, "{places:?}");
    assert!(
        places[0]["model"].as_str().unwrap().ends_with("/moved/base"),
        "{places:?}"
    );
    // Another search space is another study, wherever it lies.
    let text = std::fs::read_to_string(bench.path("moved/space.yaml")).unwrap();
    std::fs::write(
        bench.path("space.yaml"),
        text.replace("./base", "./moved/base")
            .replace("[2, 4, 8, 16]", "[2, 4]"),
    )
    .unwrap();
    refused(&bench, &[], 2, "another definition");
}

/// A study of a command that reads how to end from a file.
fn of_command() -> Bench {
    let bench = Bench::of("");
    let script = "#!/bin/sh\nread line\n. ./behaviour\n";
    std::fs::write(bench.path("trial.sh"), script).unwrap();
    let space = "study: faults\nbackend: {command: [sh, trial.sh]}\nobjectives: [{metric: loss, direction: minimize}]\n\
                 space: {x: {low: 0.0, high: 1.0}}\nsampler: random\nconfirm: none\nbudget: {trials: 6}\n";
    std::fs::write(bench.path("space.yaml"), space).unwrap();
    behave(&bench, "exit 3");
    bench
}

fn behave(bench: &Bench, how: &str) {
    std::fs::write(bench.path("behaviour"), format!("{how}\n")).unwrap();
}

#[test]
fn a_command_that_always_fails_stops_after_three_and_goes_on_once_it_works() {
    let bench = of_command();
    let output = refused(&bench, &[], 1, "the last 3 trials failed alike");
    assert!(messages(&output).contains("exit code 3"));
    let waiting = "select count(*) as n from trial where state = 'waiting'";
    assert_eq!((trials(&bench), bench.count(waiting)), (3, 3));
    // How they failed is kept.
    assert_eq!(
        bench.count("select count(*) as n from lost_attempt where message like '%exit code 3%'"),
        3
    );
    refused(&bench, &[], 1, "the last 3 trials failed alike");
    behave(&bench, "echo '{\"metrics\": {\"loss\": 1.5}}'");
    Bench::succeed(bench.command(&["search", "space.yaml"]));
    assert_eq!(
        bench.count("select count(*) as n from trial where state = 'complete'"),
        6
    );
}

#[test]
fn who_knows_better_keeps_going_and_a_search_without_success_is_no_success() {
    let bench = of_command();
    refused(&bench, &["--keep-going"], 1, "none of the 6 trials succeeded");
    assert_eq!(bench.count("select count(*) as n from trial where state = 'failed'"), 6);
    // Out of memory is a result of settings, but a study of nothing else brought nothing either.
    let bench = of_command();
    behave(&bench, "echo '{\"outcome\": \"out_of_memory\"}'");
    refused(&bench, &[], 1, "none of the 6 trials succeeded");
    // A study that an earlier version spent so resumes.
    let bench = of_command();
    refused(&bench, &["--keep-going"], 1, "none of the 6 trials succeeded");
    behave(&bench, "echo '{\"metrics\": {\"loss\": 1.5}}'");
    Bench::succeed(bench.command(&["search", "space.yaml"]));
    assert_eq!(
        bench.count("select count(*) as n from trial where state = 'complete'"),
        6
    );
}

#[test]
fn a_machine_that_does_not_see_the_model_costs_no_trial() {
    let bench = with_own_model(SPACE);
    // As on another machine: before the worker starts there, the model is gone; it comes back with the launcher's end.
    let launcher = "#!/bin/sh\nmv base away\n\"$@\"\ncode=$?\nmv away base\nexit $code\n";
    std::fs::write(bench.path("elsewhere.sh"), launcher).unwrap();
    let text = std::fs::read_to_string(bench.path("space.yaml")).unwrap();
    std::fs::write(
        bench.path("space.yaml"),
        format!("{text}launcher: {{command: [sh, elsewhere.sh]}}\n"),
    )
    .unwrap();
    refused(&bench, &[], 1, "no trial was run");
    assert_eq!(trials(&bench), 0);
}

#[test]
fn a_database_that_is_removed_under_way_is_noticed_and_all_results_are_kept() {
    for replaced in [false, true] {
        let bench = Bench::new();
        let search = Bench::start(bench.search("0.2", &["--trials", "1000"]));
        bench.wait_for("select count(*) as n from trial where state = 'complete'");
        for name in ["study.db", "study.db-wal", "study.db-shm"] {
            let _ = std::fs::remove_file(bench.path(name));
        }
        if replaced {
            std::fs::write(bench.path("study.db"), "").unwrap();
        }
        let output = search.wait_with_output().unwrap();
        let said = messages(&output);
        assert_eq!(output.status.code(), Some(3), "{said}");
        assert!(said.contains("removed or replaced"), "{said}");
        let mut query = bench.command(&["query", "select count(*) as n from trial where state = 'complete'"]);
        let kept = Bench::succeed({
            query.args(["--db", "study.kept-1.db", "--format", "csv"]);
            query
        });
        let count: u64 = kept.lines().nth(1).unwrap().parse().unwrap();
        assert!(count > 0, "{kept}");
        // It goes on from there.
        let mut search = bench.search("0", &["--db", "study.kept-1.db", "--trials"]);
        search.arg((count + 2).to_string());
        Bench::succeed(search);
    }
}
