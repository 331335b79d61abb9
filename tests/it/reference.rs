//! Pages of the documentation that are made from the program's tables: commands, settings, metrics, exit codes.
//!
//! `UPDATE_DOCS=1 cargo test --test it reference` writes them anew.

use std::fmt::Write;
use std::path::Path;

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
