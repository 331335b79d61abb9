//! The page itself: a template with the study's facts, the front and the recommendation as text, so that it reads without
//! scripts, and the values from which the scripts draw the rest.

use minijinja::value::Serde;
use minijinja::{AutoEscape, Environment, context};
use serde::Serialize;

use super::assets::{ICON, PAGE_SCRIPTS, STYLE};
use super::embed::{csp_hash, data_address, json_for_script};
use super::view::{AnswerView, AxisView, ObjectiveView, RecommendationView, StudyHead, StudyView, TrialView};
use crate::report::{dollars, duration, metric_value, param_value};
use peft_tune_core::objective::measured_of;

const TEMPLATE: &str = include_str!("assets/page.html");

/// A page cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum DocumentError {
    #[error("the study cannot be written as JSON: {0}")]
    Json(#[from] serde_json::Error),
    #[error("the page cannot be built: {0}")]
    Template(#[from] minijinja::Error),
}

/// Form of a study's page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Page {
    /// One file with everything in it.
    File,
    /// Served by the dashboard, which serves style and scripts beside it.
    Live,
}

/// What the template itself shows of a study; the scripts have the rest.
#[derive(Serialize)]
struct ShownStudy<'a> {
    study: &'a StudyHead,
    counts_text: &'a str,
    constraints: &'a [String],
    objectives: &'a [ObjectiveView],
    params: &'a [AxisView],
    recommendation: &'a Option<RecommendationView>,
    answers: &'a [AnswerView],
    settings: Vec<(String, String)>,
    commands: Vec<ShownCommand<'a>>,
    front: Vec<FrontRow>,
    /// Whether a row of the front says what the full training costs.
    has_costs: bool,
    /// Other studies: name, and name as a query has it.
    others: Vec<(String, String)>,
}

/// A command whose flags stay in one piece where its line is broken.
#[derive(Serialize)]
struct ShownCommand<'a> {
    purpose: &'a str,
    parts: Vec<CommandPart<'a>>,
}

#[derive(Serialize)]
struct CommandPart<'a> {
    text: &'a str,
    is_flag: bool,
}

/// A row of the front as text.
#[derive(Serialize)]
struct FrontRow {
    number: u64,
    recommended: bool,
    metrics: Vec<String>,
    /// What the full training costs.
    full_training: String,
    params: Vec<String>,
}

/// The study as one HTML file: style, scripts and values are in it, and it asks the network for nothing.
///
/// Its content security policy names the hashes of our scripts and style, so that a browser runs no other, whatever a
/// name in the study says.
///
/// # Errors
/// Never in practice: every value has a JSON form, and the template is part of the program.
pub fn document(view: &StudyView) -> Result<String, DocumentError> {
    render(view, Page::File, &[])
}

/// The study as the page that the dashboard serves, with links to the database's other studies.
///
/// # Errors
/// Errors of [`document`].
pub fn live_document(view: &StudyView, studies: &[String]) -> Result<String, DocumentError> {
    render(view, Page::Live, studies)
}

fn render(view: &StudyView, page: Page, studies: &[String]) -> Result<String, DocumentError> {
    let script: String = PAGE_SCRIPTS.iter().map(|asset| asset.text).collect();
    let policy = format!(
        "default-src 'none'; script-src {}; style-src {}; img-src data:; base-uri 'none'; form-action 'none'",
        csp_hash(&script),
        csp_hash(STYLE.text)
    );
    let shown = ShownStudy {
        study: &view.study,
        counts_text: &view.counts_text,
        constraints: &view.constraints,
        objectives: &view.objectives,
        params: &view.params,
        recommendation: &view.recommendation,
        answers: &view.answers,
        settings: settings(view),
        commands: commands(view),
        front: front_rows(view),
        has_costs: view
            .trials
            .iter()
            .any(|trial| trial.front && trial.full_training_usd.is_some()),
        others: studies
            .iter()
            .filter(|name| **name != view.study.name)
            .map(|name| (name.clone(), in_query(name)))
            .collect(),
    };
    let mut environment = Environment::new();
    environment.set_auto_escape_callback(|_| AutoEscape::Html);
    environment.add_filter("duration", duration);
    let page = environment.render_str(
        TEMPLATE,
        context! {
            view => Serde(shown),
            live => page == Page::Live,
            policy,
            icon => data_address(&ICON),
            style => STYLE.text,
            script,
            json => json_for_script(view)?,
        },
    )?;
    Ok(page)
}

/// Text as the value of a query: all but letters, digits and four signs as `%XX` (RFC 3986, section 2.3).
fn in_query(text: &str) -> String {
    let byte = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => char::from(byte).to_string(),
        other => format!("%{other:02X}"),
    };
    text.bytes().map(byte).collect()
}

/// The front, best in the first objective first.
fn front_rows(view: &StudyView) -> Vec<FrontRow> {
    let count = view.objectives.len();
    let mut trials: Vec<_> = view.trials.iter().filter(|trial| trial.front).collect();
    if let Some(first) = view.objectives.first() {
        let key = |value: Option<f64>| {
            let value = value.unwrap_or(f64::NAN);
            if first.maximize { -value } else { value }
        };
        trials.sort_by(|a, b| key(a.metrics[0]).total_cmp(&key(b.metrics[0])));
    }
    let recommended = view.recommendation.as_ref().map(|one| one.trial);
    let dash = || "–".to_owned();
    let row = |trial: &&TrialView| FrontRow {
        number: trial.number,
        recommended: recommended == Some(trial.number),
        metrics: view
            .metrics
            .iter()
            .zip(&trial.metrics)
            .take(count)
            .map(|(name, value)| {
                value.map_or_else(dash, |value| {
                    metric_value(name, value) + &measured_here(view, trial, name)
                })
            })
            .collect(),
        full_training: trial.full_training_usd.map_or_else(dash, dollars),
        params: trial
            .params
            .iter()
            .map(|value| value.as_ref().map_or_else(dash, param_value))
            .collect(),
    };
    trials.iter().map(row).collect()
}

/// What was measured here of an objective that is predicted of another stack.
fn measured_here(view: &StudyView, trial: &TrialView, metric: &str) -> String {
    let measured = measured_of(metric).and_then(|own| {
        let index = view.metrics.iter().position(|name| name == own)?;
        Some(metric_value(own, trial.metrics[index]?))
    });
    measured.map_or_else(String::new, |value| format!(" ({value} here)"))
}

/// The recommended params as text.
fn settings(view: &StudyView) -> Vec<(String, String)> {
    let settings = view.recommendation.iter().flat_map(|one| &one.settings);
    settings
        .map(|(name, value)| (name.clone(), param_value(value)))
        .collect()
}

/// The commands that use the recommendation.
fn commands(view: &StudyView) -> Vec<ShownCommand<'_>> {
    let commands = view.recommendation.iter().flat_map(|one| &one.commands);
    let shown = commands.map(|command| ShownCommand {
        purpose: &command.purpose,
        parts: parts(&command.line),
    });
    shown.collect()
}

/// The words of a command: flags, and what is between them.
fn parts(line: &str) -> Vec<CommandPart<'_>> {
    let word = line.split_inclusive(' ').flat_map(|word| {
        let text = word.trim_end_matches(' ');
        let (text, blank) = word.split_at(text.len());
        [
            CommandPart {
                text,
                is_flag: text.starts_with("--"),
            },
            CommandPart {
                text: blank,
                is_flag: false,
            },
        ]
    });
    word.filter(|part| !part.text.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::html::PageInput;

    #[test]
    fn a_page_of_an_empty_study_says_what_it_is() {
        let view = StudyView::new(&PageInput {
            study: "new <b>".to_owned(),
            ..PageInput::default()
        });
        let page = document(&view).unwrap();
        assert!(page.contains("<title>new &lt;b&gt; · peft-tune</title>"), "{page}");
        assert!(page.contains("no trials"));
    }

    #[test]
    fn the_parts_of_a_command_are_the_command() {
        let line = "peft-tune export --study 'a  b' --trial 3 --";
        let parts = parts(line);
        assert_eq!(parts.iter().map(|part| part.text).collect::<String>(), line);
        let flags: Vec<&str> = parts.iter().filter(|part| part.is_flag).map(|part| part.text).collect();
        assert_eq!(flags, ["--study", "--trial", "--"]);
    }

    #[test]
    fn links_to_other_studies_are_whole() {
        let view = StudyView::new(&PageInput::default());
        let page = live_document(&view, &["a&b \"é".to_owned()]).unwrap();
        assert!(page.contains("?study=a%26b%20%22%C3%A9"), "no link");
    }
}
