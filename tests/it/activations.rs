//! Activations in 8 bits, as a person uses them: what trains, what is searched and measured, and what is refused.

use std::path::Path;
use std::process::Output;

use serde_json::Value;

fn text(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

fn quickstart() -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("search_spaces/quickstart");
    folder.display().to_string()
}

fn recipe(settings: &str) -> String {
    let quickstart = quickstart();
    format!(
        "model: {quickstart}/base\ndata: {{train: {quickstart}/train.jsonl, held_out: {quickstart}/held_out.jsonl}}\n\
         batch: {{micro_batch: 4, sequence_length: 128}}\noptimizer: {{learning_rate: 2e-3}}\n\
         training: {{length: {{steps: 12}}, evaluation_rows: 8}}\n{settings}\n"
    )
}

fn run(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = crate::program();
    command.args(arguments).current_dir(folder);
    command.env("PEFT_TUNE_DB", folder.join("study.db")).output().unwrap()
}

/// The held-out loss of a training.
fn trained(folder: &Path, name: &str, settings: &str) -> f64 {
    let file = format!("{name}.yaml");
    std::fs::write(folder.join(&file), recipe(settings)).unwrap();
    let output = run(folder, &["train", &file, "--output", name, "--json"]);
    assert!(output.status.success(), "{}", text(&output));
    let last = String::from_utf8(output.stdout).unwrap();
    let end: Value = serde_json::from_str(last.lines().last().unwrap()).unwrap();
    end["held_out_loss"]
        .as_f64()
        .unwrap_or_else(|| panic!("no loss in {end}"))
}

#[test]
fn a_training_learns_as_much_with_activations_in_eight_bits() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    for precision in ["int8", "nf4"] {
        let loss = |activations: &str| {
            let settings = format!("precision: {precision}\nactivation_quantization: {activations}");
            trained(folder, &format!("{precision}_{activations}"), &settings)
        };
        let [full, forward, both] = ["none", "int8_forward", "int8_both"].map(loss);
        assert!((forward / full - 1.0).abs() < 0.02, "{precision}: {full} {forward}");
        assert!((both / full - 1.0).abs() < 0.03, "{precision}: {full} {both}");
        // Each is another training.
        assert!(
            full != forward && forward != both,
            "{precision}: {full} {forward} {both}"
        );
    }
    // Nothing of it stays in a merged model, which says so.
    let merged = run(folder, &["merge", "--adapter", "int8_int8_both", "--output", "merged"]);
    let said = text(&merged);
    assert!(
        merged.status.success() && said.contains("its activations are not quantized"),
        "{said}"
    );
    let merged = run(folder, &["merge", "--adapter", "int8_none", "--output", "plain"]);
    assert!(!text(&merged).contains("activation"), "{}", text(&merged));
    // The profile tells its products by the width of both operands.
    let profile = run(folder, &["profile", "nf4_int8_forward.yaml", "--json"]);
    let said = String::from_utf8(profile.stdout).unwrap();
    assert!(
        profile.status.success() && said.contains("w4a8"),
        "{}",
        String::from_utf8_lossy(&profile.stderr)
    );
}

#[test]
fn weights_that_are_not_quantized_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    std::fs::write(
        folder.join("recipe.yaml"),
        recipe("precision: bf16\nactivation_quantization: int8_both"),
    )
    .unwrap();
    let output = run(folder, &["train", "recipe.yaml", "--output", "out"]);
    let said = text(&output);
    assert!(!output.status.success(), "{said}");
    assert!(
        said.contains("`activation_quantization: int8_both` needs quantized base weights, and `precision` is bf16"),
        "{said}"
    );
    std::fs::write(folder.join("recipe.yaml"), recipe("activation_quantization: int4")).unwrap();
    let said = text(&run(folder, &["train", "recipe.yaml", "--output", "out"]));
    assert!(said.contains("int4") && said.contains("int8_forward"), "{said}");
}

#[test]
fn a_search_compares_them_and_measures_what_they_lose() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let quickstart = quickstart();
    let space = format!(
        "study: own\nmodel: {quickstart}/base\n\
         data: {{train: {quickstart}/train.jsonl, held_out: {quickstart}/held_out.jsonl}}\nconfirm: none\n\
         trial: {{sequence_length: 128, profile_steps: 1, profile_warmup: 1, training_steps: 2, evaluation: {{rows: 4}}}}\n\
         objectives: [throughput, peak_memory, loss_kept_percent]\nsampler: grid\nbudget: {{trials: 4}}\n\
         space:\n  precision: [bf16, int8]\n  rank: 4\n  micro_batch: 4\n  \
         activation_quantization: {{choices: [none, int8_both], when: {{precision: [int8]}}}}\n"
    );
    std::fs::write(folder.join("space.yaml"), space).unwrap();
    let output = run(folder, &["search", "space.yaml"]);
    assert!(output.status.success(), "{}", text(&output));
    let query = |sql: &str| {
        let output = run(folder, &["query", sql, "--format", "csv"]);
        assert!(output.status.success(), "{}", text(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    let kept = query("select value from trial_metric where name = 'loss_kept_percent' order by trial");
    let kept: Vec<f64> = kept.lines().skip(1).map(|row| row.parse().unwrap()).collect();
    assert!(
        kept.len() >= 3 && kept.iter().all(|kept| (80.0..105.0).contains(kept)),
        "{kept:?}"
    );
    let states = query("select state from trial where state <> 'complete'");
    assert_eq!(states.lines().count(), 1, "{states}");
}
