//! What trainings make a model forget, as goals and bounds of a study.

use std::path::Path;

use crate::calls::{quickstart, run, text};

/// Sentences of the language that the quickstart's base model knows, and that its conversations teach nothing of.
const OTHERS: [&str; 6] = [
    "The fox sleeps beside the kitchen.",
    "The tired wolf returned to the dark lake last summer.",
    "The bear rides to the small harbour and the miller walks to the new field.",
    "The miller walks to the dark lake.",
    "The small fox returned to the new kitchen last summer.",
    "The bear sleeps beside the harbour.",
];

/// Text of a search over a rate at which nothing is learnt and one at which much is, and the folder with its database.
fn searched(rest: &str) -> (String, tempfile::TempDir) {
    let folder = crate::folders::for_database();
    let quickstart = quickstart();
    let rows = OTHERS.map(|text| serde_json::json!({"text": text}).to_string());
    std::fs::write(folder.path().join("others.jsonl"), rows.join("\n")).unwrap();
    let space = format!(
        "study: own\nmodel: {quickstart}/base\n\
         data: {{train: {quickstart}/train.jsonl, held_out: {quickstart}/held_out.jsonl, retain: others.jsonl}}\n\
         confirm: none\npruner: none\nsampler: grid\nbudget: {{trials: 3}}\n\
         trial: {{sequence_length: 128, profile_steps: 1, profile_warmup: 1, training_steps: 12, evaluation: {{rows: 8}}}}\n{rest}"
    );
    std::fs::write(folder.path().join("space.yaml"), space).unwrap();
    let output = run(folder.path(), &["search", "space.yaml"]);
    assert!(output.status.success(), "{}", text(&output));
    (text(&output), folder)
}

/// The first column of each row that a query finds.
fn query(folder: &Path, sql: &str) -> Vec<f64> {
    let output = run(folder, &["query", sql, "--format", "csv"]);
    assert!(output.status.success(), "{}", text(&output));
    let rows = String::from_utf8(output.stdout).unwrap();
    rows.lines().skip(1).map(|row| row.parse().unwrap()).collect()
}

/// Values of a metric from the lowest rate to the highest.
fn by_rate(folder: &Path, metric: &str) -> Vec<f64> {
    let sql = format!(
        "select m.value from trial_metric m join trial_param p on p.study = m.study and p.trial = m.trial \
         where p.name = 'learning_rate' and m.name = '{metric}' order by p.value"
    );
    query(folder, &sql)
}

/// Checks that nothing is forgotten at the lowest rate, and something at the highest.
fn check(folder: &Path) {
    let increases = by_rate(folder, "retained_loss_increase");
    let [lowest, .., highest] = increases[..] else {
        panic!("{increases:?}")
    };
    assert!(lowest.abs() < 1e-3 && highest > 0.01, "{increases:?}");
    let divergences = by_rate(folder, "base_kl");
    let [lowest, .., highest] = divergences[..] else {
        panic!("{divergences:?}")
    };
    assert!((0.0..1e-3).contains(&lowest) && highest > 0.01, "{divergences:?}");
    let (before, after) = (
        by_rate(folder, "retained_loss_before"),
        by_rate(folder, "retained_loss"),
    );
    for ((increase, before), after) in increases.iter().zip(&before).zip(&after) {
        assert!((increase - (after / before - 1.0)).abs() < 1e-12);
    }
    // All trials start as the same model, which is asked once.
    assert!(before.iter().all(|one| *one == before[0]), "{before:?}");
    let tokens = by_rate(folder, "base_kl_tokens");
    assert!(
        tokens[0] > 0.0 && tokens.iter().all(|one| *one == tokens[0]),
        "{tokens:?}"
    );
}

#[test]
fn what_is_forgotten_grows_with_the_rate_and_can_be_bounded() {
    let (said, folder) = searched(
        "objectives: [loss, retained_loss_increase, base_kl]
constraints: {retained_loss_increase: '<= 1%'}
space: {learning_rate: [1.0e-9, 1.0e-2], rank: 4, micro_batch: 4}
baseline: {learning_rate: 1.0e-2}
",
    );
    let folder = folder.path();
    assert!(
        said.contains("the loss on the rows of `data.retain` and a comparison with the model before the training"),
        "{said}"
    );
    assert!(
        said.contains("retained loss increase") && said.contains("recommended"),
        "{said}"
    );
    check(folder);
    let front = query(
        folder,
        "select m.value from pareto_front f join trial_metric m on m.study = f.study and m.trial = f.trial \
         where m.name = 'retained_loss_increase'",
    );
    assert!(
        !front.is_empty() && front.iter().all(|increase| *increase <= 0.01),
        "{front:?}"
    );
    let explained = text(&run(folder, &["explain"]));
    assert!(explained.contains("retained loss"), "{explained}");
    // A page that says the same.
    let output = run(folder, &["report", "--output", "report.html"]);
    assert!(output.status.success(), "{}", text(&output));
    let page = std::fs::read_to_string(folder.join("report.html")).unwrap();
    assert!(page.contains("retained_loss_increase"));
}

#[test]
fn a_training_of_all_weights_is_compared_with_the_model_that_it_was() {
    let (_, folder) = searched(
        "objectives: [loss, retained_loss_increase]
space: {method: full, learning_rate: [1.0e-9, 2.0e-3], micro_batch: 4}
baseline: {learning_rate: 2.0e-3}
",
    );
    // `base_kl` was not asked for.
    assert!(by_rate(folder.path(), "base_kl").is_empty());
    let increases = by_rate(folder.path(), "retained_loss_increase");
    assert!(
        increases[0].abs() < 5e-3 && increases[increases.len() - 1] > 0.01,
        "{increases:?}"
    );
}
