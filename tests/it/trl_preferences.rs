//! Searches on preferences. The trainers are stand-ins of TRL's (`tests/stand_in_trl`), and everything else is real.

use std::path::Path;
use std::process::{Command, Output};

use peft_tune::tools::Tool;
use peft_tune::tools::import::parse_recipe;
use peft_tune_core::recipe::TrainerKind;
use serde_json::{Value, json};

use crate::mocked::{errors_of, folder_with};
use crate::trl_backend::{has_python, with_stand_ins};

/// Settings of all studies here, behind their trainer.
const FIXED: &str = "rank: 4, micro_batch: 2, global_batch: 4, precision: fp32";
const TRIAL: &str = "trial: {sequence_length: 64, profile_steps: 1, training_steps: 4, evaluation: {rows: 12}}\n\
                     sampler: random\npruner: none\nconfirm: none\nbudget: {trials: 4}\n";

/// A study on rows of its own.
fn study(space: &str) -> String {
    format!("study: own\nmodel: ./base\ndata: {{train: rows.jsonl}}\nspace: {{{space}, {FIXED}}}\n{TRIAL}")
}

/// A folder with a study, the quickstart's model and these rows.
fn bench(study: &str, rows: &[Value]) -> tempfile::TempDir {
    let folder = folder_with(study);
    let lines: Vec<String> = rows.iter().map(Value::to_string).collect();
    std::fs::write(folder.path().join("rows.jsonl"), lines.join("\n")).unwrap();
    folder
}

fn answers(number: usize) -> [String; 2] {
    // What the stand-in learns: words of seven letters gain more than words of six.
    ["seven77", "sixsix"].map(|word| format!(" {word}").repeat(2 + number % 3))
}

/// Pairs of answers with their prompt.
pub(crate) fn pairs() -> Vec<Value> {
    let pair = |number: usize| {
        let [chosen, rejected] = answers(number);
        json!({"prompt": "say it", "chosen": chosen, "rejected": rejected})
    };
    (0..40).map(pair).collect()
}

/// Answers that are good or bad.
pub(crate) fn labelled() -> Vec<Value> {
    let row = |number: usize| {
        let ([good, bad], label) = (answers(number), number.is_multiple_of(2));
        json!({"prompt": "say it", "completion": if label { good } else { bad }, "label": label})
    };
    (0..120).map(row).collect()
}

fn run(folder: &Path, arguments: &[&str]) -> Output {
    let mut command: Command = crate::program();
    command.args(arguments).current_dir(folder);
    command
        .env("PEFT_TUNE_DB", folder.join("study.db"))
        .env("PEFT_TUNE_CACHE", folder.join("cache"));
    with_stand_ins(&mut command);
    command.output().unwrap()
}

fn succeeds(folder: &Path, arguments: &[&str]) -> String {
    let output = run(folder, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", errors_of(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Message of a command that these options or files make bad input of.
fn refused(folder: &Path, arguments: &[&str]) -> String {
    let output = run(folder, arguments);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", errors_of(&output));
    errors_of(&output)
}

const SEARCH: [&str; 6] = ["search", "space.yaml", "--backend", "trl", "--python", "python3"];

/// The column `value` of what the database answers.
fn numbers(folder: &Path, sql: &str) -> Vec<f64> {
    let text = succeeds(folder, &["query", sql, "--format", "json"]);
    let rows: Vec<Value> = serde_json::from_str(&text).unwrap();
    rows.iter().map(|row| row["value"].as_f64().unwrap()).collect()
}

/// Searches, checks that each training lowered the held-out loss, and returns accuracies of rewards and their margins.
fn searched(folder: &Path) -> [Vec<f64>; 2] {
    let output = run(folder, &SEARCH);
    let said = errors_of(&output);
    assert!(output.status.success() && !said.contains("not predicted"), "{said}");
    let predicted = "select count(*) as value from trial_prediction where metric = 'peak_memory' and measured > 0";
    assert!(numbers(folder, predicted)[0] > 0.0, "{said}");
    let changes = numbers(
        folder,
        "select after.value - before.value as value from trial_metric as before \
         join trial_metric as after on after.study = before.study and after.trial = before.trial \
         where before.name = 'loss_before' and after.name = 'loss'",
    );
    // Trials whose settings change costs alone take over what another one learned.
    assert!(
        changes.len() >= 2 && changes.iter().all(|change| *change < 0.0),
        "{changes:?}"
    );
    let found = ["reward_accuracy", "reward_margin"].map(|metric| {
        let sql = format!("select value from trial_metric where name = '{metric}'");
        numbers(folder, &sql)
    });
    assert!(found.iter().all(|values| values.len() >= changes.len()), "{found:?}");
    found
}

/// The text of the file that a study's recommended trial is exported to.
fn exported(folder: &Path, name: &str) -> String {
    succeeds(folder, &["export", "--format", "trl", "--output", "out"]);
    std::fs::read_to_string(folder.join("out").join(name)).unwrap()
}

#[test]
fn pairs_are_searched_over_beta_and_the_reference_by_the_accuracy_of_rewards() {
    if !has_python() {
        return;
    }
    let space = "trainer: dpo, beta: [0.1, 0.5], reference: [each_step, precomputed], learning_rate: [1e-3, 1e-2], \
                 attn_implementation: eager, dataloader_num_workers: 2";
    let folder = bench(&study(space), &pairs());
    let [accuracy, margin] = searched(folder.path());
    assert!(accuracy.iter().all(|share| *share == 1.0), "{accuracy:?}");
    assert!(margin.iter().all(|margin| *margin > 0.0), "{margin:?}");
    let open = [
        &["search", "space.yaml", "--backend", "auto", "--python", "python3"][..],
        &["--as", "open", "--dry-run"],
    ]
    .concat();
    let said = errors_of(&run(folder.path(), &open));
    assert!(
        said.contains("auto takes TRL: the built-in engine cannot train this study"),
        "{said}"
    );
    // A loss at one beta says nothing beside one at another.
    let shown = succeeds(folder.path(), &["pareto", "--json"]);
    let shown: Value = serde_json::from_str(&shown).unwrap();
    let traded: Vec<&str> = shown["objectives"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|one| one["metric"].as_str())
        .collect();
    assert_eq!(traded, ["throughput", "peak_memory", "reward_accuracy"]);
    let file = exported(folder.path(), "trl_dpo.yaml");
    for said in [
        "trl dpo --config trl_dpo.yaml",
        "\nbeta: ",
        "\nprecompute_ref_log_probs: ",
        "\nattn_implementation: eager",
        "\ndataloader_num_workers: 2",
        "\ndisable_dropout: true",
    ] {
        assert!(file.contains(said), "{said}: {file}");
    }
    assert!(!file.contains("packing"), "{file}");
    let told = refused(folder.path(), &["export", "--format", "axolotl", "--output", "other"]);
    assert!(
        told.contains("`trainer`") && !folder.path().join("other").exists(),
        "{told}"
    );
    succeeds(folder.path(), &["export", "--format", "recipe", "--output", "run"]);
    for asked in [
        &["profile", "--trial", "0", "--backend", "trl"][..],
        &["profile", "run/recipe.yaml", "--backend", "trl"],
        &["check", "run/recipe.yaml", "--backend", "trl"],
    ] {
        let told = refused(folder.path(), &[asked, &["--python", "python3"]].concat());
        assert!(
            told.contains("key `trainer`") && told.contains("`dpo`"),
            "{asked:?}: {told}"
        );
    }
}

#[test]
fn answers_that_are_good_or_bad_are_searched_with_kto() {
    if !has_python() {
        return;
    }
    let folder = bench(
        &study("trainer: kto, learning_rate: [1e-3, 2e-3, 5e-3, 1e-2]"),
        &labelled(),
    );
    let [accuracy, margin] = searched(folder.path());
    // Each good answer is compared with each bad one, also with a longer one, of which the stand-in gains more.
    assert!(accuracy.iter().all(|share| *share > 0.9), "{accuracy:?}");
    assert!(margin.iter().all(|margin| *margin > 0.0), "{margin:?}");
    let file = exported(folder.path(), "trl_kto.yaml");
    assert!(file.contains("\ntrain_sampling_strategy: sequential"), "{file}");
    let alone = study("trainer: kto, learning_rate: [1e-3, 1e-2]").replace("micro_batch: 2", "micro_batch: 1");
    std::fs::write(folder.path().join("space.yaml"), alone).unwrap();
    let told = refused(folder.path(), &[&SEARCH[..], &["--as", "alone"]].concat());
    assert!(
        told.contains("key `space.micro_batch`") && told.contains("2 or more"),
        "{told}"
    );
}

#[test]
fn pairs_are_searched_without_a_reference_and_exported_with_a_script() {
    if !has_python() {
        return;
    }
    // Without a prompt of its own: both answers begin with it.
    let whole = pairs().into_iter().map(|row| {
        let text = |answer: &str| format!("say it{}", row[answer].as_str().unwrap());
        json!({"chosen": text("chosen"), "rejected": text("rejected")})
    });
    let whole: Vec<Value> = whole.collect();
    let folder = bench(&study("trainer: orpo, learning_rate: [1e-3, 2e-3, 5e-3, 1e-2]"), &whole);
    searched(folder.path());
    let file = exported(folder.path(), "trl_orpo.yaml");
    assert!(file.contains("python trl_orpo.py --config trl_orpo.yaml"), "{file}");
    assert!(!file.contains("precompute_ref_log_probs"), "{file}");
    let script = std::fs::read_to_string(folder.path().join("out/trl_orpo.py")).unwrap();
    assert!(script.contains("ORPOTrainer("), "{script}");
}

#[test]
fn rows_that_no_trainer_of_preferences_reads_are_refused_with_file_and_line() {
    if !has_python() {
        return;
    }
    let mut rows = pairs();
    rows[2].as_object_mut().unwrap().remove("rejected");
    let folder = bench(&study("trainer: dpo, learning_rate: [1e-3, 1e-2]"), &rows);
    let told = refused(folder.path(), &SEARCH);
    assert!(
        told.contains("rows.jsonl line 3") && told.contains("`rejected`"),
        "{told}"
    );
    rows[2] = json!({"prompt": "say it", "chosen": [{"role": "assistant", "content": "it"}], "rejected": "no"});
    let folder = bench(&study("trainer: dpo, learning_rate: [1e-3, 1e-2]"), &rows);
    let told = refused(folder.path(), &SEARCH);
    assert!(
        told.contains("rows.jsonl line 3") && told.contains("`chosen`"),
        "{told}"
    );
    let folder = bench(&study("trainer: kto, learning_rate: [1e-3, 1e-2]"), &pairs());
    let told = refused(folder.path(), &SEARCH);
    assert!(
        told.contains("rows.jsonl line 1") && told.contains("`completion`"),
        "{told}"
    );
}

/// The plan of a study in TRL on a GPU of the table.
fn planned(folder: &Path, more: &[&str]) -> Value {
    let asked = [&["plan", "space.yaml", "--device", "L4", "--json"], more].concat();
    serde_json::from_str(&succeeds(folder, &asked)).unwrap()
}

#[test]
fn a_plan_says_what_each_trainer_needs_in_trl_and_how_long_sequences_are() {
    for (trainer, rows, sequences) in [
        ("dpo", pairs(), json!(2)),
        ("kto", labelled(), Value::Null),
        ("orpo", pairs(), json!(2)),
    ] {
        let folder = bench(
            &study(&format!("trainer: {trainer}, learning_rate: [1e-3, 1e-2]")),
            &rows,
        );
        let plan = planned(folder.path(), &["--backend", "trl"]);
        let (data, one) = (&plan["data"], &plan["settings"][0]);
        assert_eq!(data["sequences"], sequences, "{trainer}: {data}");
        assert!(data["at"][0].get("packed_rows").is_none(), "{trainer}: {data}");
        // A step has four rows, and of a pair both sequences.
        let number = |value: &Value| value.as_f64().unwrap();
        let mean = number(&data["tokens"]) / number(&data["rows"]);
        let tokens = number(&one["tokens_per_step"]);
        assert!((tokens / (4.0 * mean) - 1.0).abs() < 1e-6, "{trainer}: {tokens} {mean}");
        assert!(number(&one["throughput"]["value"]) > 0.0, "{trainer}: {one}");
        let stack = planned(folder.path(), &["--stack", "trl"]);
        let peak = number(&stack["peak_tensors_bytes"]);
        assert_eq!(number(&one["peak_memory"]["value"]), peak, "{trainer}");
        assert!(stack["setting"]["comparison"].is_object(), "{trainer}: {stack}");
    }
}

#[test]
fn a_reference_in_each_step_is_predicted_to_take_time() {
    let space = "trainer: dpo, reference: [each_step, precomputed]";
    let folder = bench(&study(space), &pairs());
    let plan = planned(folder.path(), &["--backend", "trl"]);
    let speed = |reference: &str| {
        let mut settings = plan["settings"].as_array().unwrap().iter();
        let one = settings.find(|one| one["params"]["reference"] == reference);
        one.unwrap()["throughput"]["value"].as_f64().unwrap()
    };
    assert!(speed("precomputed") > 1.1 * speed("each_step"), "{plan}");
}

#[test]
fn settings_of_pairs_that_cannot_fit_are_not_run() {
    if !has_python() {
        return;
    }
    let text = "study: own\nmodel: ./base\ndata: {train: rows.jsonl}\n\
                space: {trainer: dpo, micro_batch: [1, 64], rank: 4, precision: fp32}\n\
                trial: {sequence_length: 64, memory_limit: 64 MiB, profile_steps: 1, training_steps: 2, evaluation: {rows: 4}}\n\
                sampler: grid\npruner: none\nconfirm: none\nbudget: {trials: 2}\n";
    let folder = bench(text, &pairs());
    succeeds(folder.path(), &SEARCH);
    let sql = "select micro_batch, state, reason from trial order by micro_batch";
    let rows: Value = serde_json::from_str(&succeeds(folder.path(), &["query", sql, "--format", "json"])).unwrap();
    let states: Vec<_> = rows.as_array().unwrap().iter().map(|row| &row["state"]).collect();
    assert_eq!(states, ["complete", "skipped"], "{rows}");
    let reason = rows[1]["reason"].as_str().unwrap();
    assert!(reason.contains("MiB in TRL, and 64 MiB are allowed"), "{reason}");
}

#[test]
fn the_built_in_engine_refuses_other_trainers_and_predicts_nothing_of_them() {
    let folder = bench(&study("trainer: dpo, learning_rate: [1e-3, 1e-2]"), &pairs());
    let told = refused(folder.path(), &["search", "space.yaml"]);
    assert!(
        told.contains("key `space.trainer`") && told.contains("`--backend trl`"),
        "{told}"
    );
    for (more, said) in [
        (&[][..], "runs in TRL alone"),
        (&["--stack", "peft-tune"][..], "runs in TRL alone"),
        (&["--stack", "axolotl"][..], "write `--stack trl`"),
    ] {
        let told = refused(folder.path(), &[&["plan", "space.yaml"], more].concat());
        assert!(told.contains(said), "{more:?}: {told}");
    }
    // Rows are shown all the same.
    let shown = succeeds(folder.path(), &["rows", "space.yaml"]);
    assert!(shown.contains("seven77") && shown.contains("sixsix"), "{shown}");
}

#[test]
fn a_file_that_compares_answers_is_read_as_the_trainer_that_it_names_or_refused() {
    let text = "model_name_or_path: m\nuse_peft: true\nlora_r: 4\nmax_length: 64\n";
    let read = |name: &str, text: &str| parse_recipe(Path::new(name), text, Some(Tool::Trl));
    let plain = read("config.yaml", text).unwrap();
    assert_eq!(plain.recipe.trainer, TrainerKind::Sft);
    assert!(!plain.notes.join("\n").contains("preferences"), "{plain:?}");
    let named = read("trl_dpo.yaml", text).unwrap();
    assert_eq!(named.recipe.trainer, TrainerKind::Dpo);
    assert!(named.notes.join("\n").contains("by the name of the file"), "{named:?}");
    let text = format!("{text}beta: 0.3\n");
    let by_name = read("trl_dpo.yaml", &text).unwrap();
    assert_eq!(
        (by_name.recipe.trainer, by_name.recipe.beta),
        (TrainerKind::Dpo, Some(0.3))
    );
    assert!(
        by_name.notes.join("\n").contains("by the name of the file"),
        "{by_name:?}"
    );
    let by_folder = read("recipes/orpo/config.yaml", &text).unwrap();
    assert_eq!(by_folder.recipe.trainer, TrainerKind::Orpo);
    let told = read("config.yaml", &text).unwrap_err().to_string();
    assert!(
        told.contains("`beta: 0.3`") && told.contains("several trainers"),
        "{told}"
    );
    for trainer in [TrainerKind::Dpo, TrainerKind::Kto, TrainerKind::Orpo] {
        let heading = match trainer {
            TrainerKind::Orpo => "# python trl_orpo.py --config a.yaml\n".to_owned(),
            trainer => format!("# trl {trainer} --config a.yaml\n"),
        };
        let imported = read("config.yaml", &format!("{heading}{text}")).unwrap();
        assert_eq!(imported.recipe.trainer, trainer);
        assert_eq!(Some(imported.recipe.data.format), trainer.row().rows);
    }
}
