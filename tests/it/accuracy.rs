//! Accuracies as goals of a study: what trials measure, and what becomes of bounds on it.

use std::path::Path;

use crate::calls::{quickstart, run, text};

fn space(rest: &str) -> String {
    let quickstart = quickstart();
    format!(
        "study: own\nmodel: {quickstart}/base\ndata: {{train: {quickstart}/train.jsonl, held_out: {quickstart}/held_out.jsonl}}\n\
         confirm: none\ntrial: {{sequence_length: 128, profile_steps: 1, profile_warmup: 1, training_steps: 2, evaluation: {{rows: 4}}}}\n{rest}"
    )
}

/// Text of a search, and the folder with its database.
fn searched(rest: &str) -> (String, tempfile::TempDir) {
    let folder = crate::folders::for_database();
    std::fs::write(folder.path().join("space.yaml"), space(rest)).unwrap();
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

fn metric(folder: &Path, name: &str) -> Vec<f64> {
    query(
        folder,
        &format!("select value from trial_metric where name = '{name}' order by trial"),
    )
}

#[test]
fn accuracies_are_objectives_and_bounds_like_any_other() {
    let (said, folder) = searched(
        "objectives: [peak_memory, token_accuracy, top1_agreement_percent]
constraints: {loss_kept_percent: '>= 50%', token_accuracy: '>= 0.001'}
space: {precision: [fp32, nf4], rank: 4, micro_batch: 4}
budget: {trials: 2}
",
    );
    let folder = folder.path();
    assert!(
        said.contains("token accuracy") && said.contains("recommended"),
        "{said}"
    );
    let agreement = metric(folder, "top1_agreement_percent");
    // The usual setting in fp32 is compared with itself.
    assert_eq!(
        agreement.iter().filter(|value| **value == 100.0).count(),
        1,
        "{agreement:?}"
    );
    assert!(
        agreement.iter().all(|value| (1.0..=100.0).contains(value)),
        "{agreement:?}"
    );
    assert_eq!(metric(folder, "accuracy_check_s").len(), 2);
    // The same number as in the evaluations, whose curve a pruner reads.
    let last = query(
        folder,
        "select value from trial_report as r where metric = 'token_accuracy'
         and step = (select max(step) from trial_report where trial = r.trial) order by trial",
    );
    assert_eq!(metric(folder, "token_accuracy"), last);
    let front = query(folder, "select count(*) from pareto_front");
    assert!(front[0] >= 1.0);
}

#[test]
fn a_bound_that_no_trial_keeps_is_told_with_the_closest() {
    let (said, _folder) = searched(
        "objectives: [peak_memory, loss]
constraints: {token_accuracy: '>= 99%'}
space: {rank: [2, 4], micro_batch: 4}
budget: {trials: 1}
",
    );
    assert!(
        said.contains("no complete trial has token_accuracy at least 0.99"),
        "{said}"
    );
}

#[test]
fn what_is_lost_against_a_training_in_fp32_is_a_bound_one_can_write() {
    let (said, folder) = searched(
        "objectives: [peak_memory, loss]
constraints: {token_accuracy_lost_percent: '<= 99.5%'}
space: {precision: [fp32, bf16], rank: 4, micro_batch: 4, gradient_checkpointing: [none, full]}
budget: {trials: 3}
",
    );
    let folder = folder.path();
    assert!(said.contains("then the same training in fp32"), "{said}");
    let lost = metric(folder, "token_accuracy_lost_percent");
    assert!(lost.len() >= 3, "{said}");
    let own = metric(folder, "token_accuracy");
    let reference = metric(folder, "token_accuracy_fp32");
    for ((lost, own), reference) in lost.iter().zip(&own).zip(&reference) {
        assert!((lost - 100.0 * (reference - own) / reference).abs() < 1e-9);
    }
    // What is trained in fp32 loses nothing, and the other's reference is the same training.
    let of_fp32 = query(
        folder,
        "select t.value - r.value from trial_metric as t join trial_metric as r using (study, trial)
         join trial_summary as s using (study, trial)
         where t.name = 'token_accuracy' and r.name = 'token_accuracy_fp32' and s.precision = 'fp32'",
    );
    assert!(
        !of_fp32.is_empty() && of_fp32.iter().all(|difference| *difference == 0.0),
        "{of_fp32:?}"
    );
    let first = reference[0];
    assert!(reference.iter().all(|value| *value == first), "{reference:?}");
}

#[test]
fn answers_are_generated_matched_and_scored() {
    let (said, folder) = searched(
        r#"objectives: [peak_memory, exact_match, length_error]
constraints: {exact_match: '>= 0'}
space: {rank: [4, 8], micro_batch: 4}
score:
  rows: 5
  max_new_tokens: 4
  batch: 2
  exact_match: {extract: {regex: '^(\w*)'}, normalize: [lower]}
  command: [sh, -c, 'test "$MODE" = short && grep -c "[.].,.generation" | sed "s/.*/{\"length_error\": &.5}/"']
  metrics: {length_error: minimize}
  env: {MODE: short}
budget: {trials: 1}
"#,
    );
    let folder = folder.path();
    assert!(
        said.contains("then answers to 5 held-out rows of at most 4 tokens each, scored by sh"),
        "{said}"
    );
    assert_eq!(metric(folder, "length_error"), [5.5], "{said}");
    assert_eq!(metric(folder, "answers"), [5.0]);
    let share = metric(folder, "exact_match");
    assert_eq!(share[0], metric(folder, "exact_match_right")[0] / 5.0);
    assert!(metric(folder, "exact_match_low")[0] <= share[0] && share[0] <= metric(folder, "exact_match_high")[0]);
    assert!(metric(folder, "generate_s")[0] > 0.0 && metric(folder, "score_s")[0] > 0.0);
    let tokens = metric(folder, "generated_tokens")[0];
    assert!((1.0..=20.0).contains(&tokens), "{tokens}");
    assert!(said.contains("exact match"), "{said}");
}

#[test]
fn a_program_without_a_number_fails_a_trial_that_needs_it_and_no_other() {
    let scored = |objectives: &str| {
        format!(
            "objectives: [{objectives}]
space: {{rank: [4, 8], micro_batch: 4}}
score: {{rows: 1, max_new_tokens: 1, command: [sh, -c, 'echo none'], metrics: {{f1: maximize}}}}
budget: {{trials: 1}}
"
        )
    };
    let folder = crate::folders::for_database();
    std::fs::write(folder.path().join("space.yaml"), space(&scored("peak_memory, f1"))).unwrap();
    let said = text(&run(folder.path(), &["search", "space.yaml"]));
    assert!(
        said.contains("printed no JSON object with `f1`") && said.contains("its last other line: none"),
        "{said}"
    );
    let (said, folder) = searched(&scored("peak_memory, loss"));
    assert!(said.contains("recommended"), "{said}");
    assert!(metric(folder.path(), "f1").is_empty());
}

#[test]
fn data_without_prompts_is_refused_before_the_first_trial() {
    let folder = crate::folders::for_database();
    let rows = "{\"text\": \"The cat sleeps beside the lake and the dog walks.\"}\n".repeat(12);
    std::fs::write(folder.path().join("rows.jsonl"), rows).unwrap();
    let quickstart = Path::new(env!("CARGO_MANIFEST_DIR")).join("search_spaces/quickstart/base");
    let study = format!(
        "model: {}\ndata: {{train: rows.jsonl, held_out: 0.5}}\nspace: {{rank: [4, 8]}}\nscore: {{exact_match: {{}}}}\n",
        quickstart.display()
    );
    std::fs::write(folder.path().join("space.yaml"), study).unwrap();
    let output = run(folder.path(), &["search", "space.yaml"]);
    let said = text(&output);
    assert!(
        !output.status.success() && said.contains("key `score`: no held-out row has a prompt"),
        "{said}"
    );
}
