//! Pages of the documentation that are made from the program's tables: commands, settings, metrics, exit codes.
//!
//! `UPDATE_DOCS=1 cargo test --test it reference` writes them anew.

use std::fmt::Write;
use std::path::Path;

use serde_json::Value;

use peft_tune::cli::{command_reference, exit_codes};
use peft_tune::tools::Tool;
use peft_tune::worker::{MetricPart, metric_rows};
use peft_tune_core::recipe::settings::settings;

/// Mark at which the part begins that is made; the text before it is by hand.
const MARK: &str = "<!-- made by tests/it/reference.rs: UPDATE_DOCS=1 cargo test --test it reference -->\n";

/// Holds a page below its mark against `made`, or writes it anew.
fn is_current(page: &str, made: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs").join(page);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{page}: {error}"));
    let (by_hand, rest) = text.split_once(MARK).unwrap_or_else(|| panic!("{page} has no mark"));
    // What stands behind a second mark is by hand again.
    let (there, behind) = rest
        .split_once(MARK)
        .map_or((rest, None), |(made, rest)| (made, Some(rest)));
    if std::env::var_os("UPDATE_DOCS").is_some() {
        let behind = behind.map(|behind| [MARK, behind].concat()).unwrap_or_default();
        std::fs::write(&path, [by_hand, MARK, made, &behind].concat()).unwrap();
        return;
    }
    assert!(
        there == made,
        "docs/{page} is out of date: run `UPDATE_DOCS=1 cargo test --test it reference`"
    );
}

#[test]
fn the_page_of_commands_is_what_the_program_takes() {
    is_current("reference/commands.md", &command_reference());
}

#[test]
fn the_page_of_settings_has_every_row() {
    let mut text = String::new();
    for row in settings() {
        let unit = row.unit.map(|unit| format!(" ({unit})")).unwrap_or_default();
        let _ = write!(text, "\n## `{}`\n\n| | |\n|---|---|\n", row.name);
        let _ = writeln!(text, "| meaning | {} |", row.about);
        let _ = writeln!(text, "| values | {}{unit} |", row.legal);
        let _ = writeln!(text, "| in a recipe | `{}` |", row.field);
        if let Some(other) = row.derived_from {
            let _ = writeln!(text, "| computed with | [`{other}`](#{other}) |");
        }
        let _ = writeln!(text, "| changes throughput | {} |", row.effects.throughput);
        let _ = writeln!(text, "| changes peak memory | {} |", row.effects.peak_memory);
        let _ = writeln!(text, "| changes loss | {} |", row.effects.loss);
        let names: Vec<String> = Tool::ALL
            .iter()
            .filter_map(|tool| Some(format!("{} `{}`", tool.title(), tool.key_of(row.name)?)))
            .collect();
        if !names.is_empty() {
            let _ = writeln!(text, "| called | {} |", names.join(", "));
        }
    }
    is_current("reference/settings.md", &text);
}

#[test]
fn the_page_of_metrics_has_every_row() {
    let mut text = String::new();
    for part in MetricPart::ALL {
        let title = match part {
            MetricPart::Cost => "What a setting costs",
            MetricPart::Training => "What it teaches",
            MetricPart::Stop => "Of trials that were stopped early",
            MetricPart::Repeat => "Of longer trainings",
            MetricPart::Target => "Predicted of another tool",
        };
        let _ = write!(text, "\n## {title}\n\n| metric | unit | meaning |\n|---|---|---|\n");
        for row in metric_rows().iter().filter(|row| row.part == part) {
            let _ = writeln!(text, "| `{}` | {} | {} |", row.name, row.unit, row.about);
        }
    }
    is_current("reference/metrics.md", &text);
}

#[test]
fn the_page_of_exit_codes_has_every_row() {
    let mut text = "\n| code | ending | what is left, and what to do |\n|---|---|---|\n".to_owned();
    for row in exit_codes() {
        let _ = writeln!(text, "| {} | {} | {} |", row.code, row.ending, row.left);
    }
    text.push('\n');
    is_current("exit-codes.md", &text);
}

/// The published shape of Llama-3-8B.
const LLAMA_3_8B: &str = r#"{"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5, "rope_theta": 500000.0}"#;

/// Output of `plan --step` for so many trainings of that model together on an H100: rows of so many tokens, rank 16 on all linear layers.
fn step_on_paper(precision: &str, [rows, tokens]: [usize; 2], trainings: usize, more: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("model")).unwrap();
    std::fs::write(folder.path().join("model/config.json"), LLAMA_3_8B).unwrap();
    let recipe = format!(
        "model: ./model\ndata: {{train: train.jsonl, held_out: 0.1}}\nprecision: {precision}\n\
         adapter: {{rank: 16, alpha: 32, target_modules: all-linear}}\ngradient_checkpointing: none\n\
         batch: {{micro_batch: {rows}, gradient_accumulation: 1, sequence_length: {tokens}}}\n"
    );
    std::fs::write(folder.path().join("recipe.yaml"), recipe).unwrap();
    let mut command = crate::program();
    command.args(["plan", "--device", "H100 SXM"]).args(more).arg("--step");
    command.args(std::iter::repeat_n("recipe.yaml", trainings));
    let output = command.current_dir(folder.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_page_on_gpus_has_a_step_on_paper() {
    let command = "peft-tune plan --step recipe.yaml --device \"H100 SXM\"";
    let said = step_on_paper("bf16", [2, 4096], 1, &[]);
    is_current("gpu.md", &format!("```\n$ {command}\n{said}```\n"));
}

/// Launches of a layer and its backward pass, as the page's table has them from a GPU in software.
#[test]
fn a_layer_on_paper_has_the_launches_that_a_gpu_is_asked_for() {
    let gpu = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/gpu.md")).unwrap();
    let all = gpu.lines().find_map(|line| line.strip_prefix("| all | ")).unwrap();
    let counted: Vec<f64> = all.split('|').filter_map(|cell| cell.trim().parse().ok()).collect();
    for (precision, counted) in [("bf16", counted[0]), ("nf4", counted[2])] {
        let step: Value = serde_json::from_str(&step_on_paper(precision, [2, 4096], 1, &["--json"])).unwrap();
        let of = |name: &str| -> f64 {
            let parts = step["parts"].as_array().unwrap();
            let part = parts.iter().find(|part| part["part"] == name).unwrap();
            let kinds = part["kinds"].as_array().unwrap().iter();
            let all: f64 = kinds.map(|kind| kind["launches"].as_f64().unwrap()).sum();
            all / part["times"].as_f64().unwrap()
        };
        assert_eq!(of("layer 0 forward") + of("layer 0 backward"), counted, "{precision}");
    }
}

#[test]
fn the_page_of_benchmarks_has_trainings_together_on_paper() {
    let mut text = String::from(
        "\n| tokens | precision | trainings | ms in turn | ms together | tokens/s together | ratio |\n\
         |---:|---|---:|---:|---:|---:|---:|\n",
    );
    for (tokens, counts) in [(1024, [2, 4, 16].as_slice()), (64, &[16])] {
        for precision in ["bf16", "nf4"] {
            let ms = |trainings: usize| {
                let said = step_on_paper(precision, [1, tokens], trainings, &["--json"]);
                let step: Value = serde_json::from_str(&said).unwrap();
                1e3 * step["step_s"].as_f64().unwrap()
            };
            for count in counts {
                let (in_turn, together) = (*count as f64 * ms(1), ms(*count));
                let rate = (count * tokens) as f64 / together * 1e3;
                let _ = writeln!(
                    text,
                    "| {tokens} | {precision} | {count} | {in_turn:.0} | {together:.0} | {rate:.0} | {:.2} |",
                    in_turn / together
                );
            }
        }
    }
    is_current("benchmarks.md", &text);
}
