//! What can be wrong with a study file or a recipe file, each with its place and what to do.

use std::path::{Path, PathBuf};

use miette::{Diagnostic, GraphicalReportHandler, GraphicalTheme, LabeledSpan, SourceCode};

use super::yaml::Span;
use crate::tools::setting_called;
use peft_tune_core::recipe::HubDataSet;
use peft_tune_core::recipe::settings::setting;

/// A mistake in a file. The message names file, line, column and key, and ends in what to do.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SpaceError {
    #[error("cannot read {}: {}", path.display(), unreadable(*reason))]
    Unreadable { path: PathBuf, reason: std::io::ErrorKind },

    #[error("{}: {bytes} bytes are too many for a settings file (limit {limit}); name the study file, not the data", path.display())]
    TooLarge { path: PathBuf, bytes: u64, limit: u64 },

    #[error("{at}: not UTF-8 text; save the file as UTF-8")]
    NotUtf8 { at: Box<Span> },

    #[error("{at}: the file is empty; start from one in search_spaces/")]
    Empty { at: Box<Span> },

    #[error("{at}: not valid YAML: {message}; check indentation, brackets and quotes here and on the line above")]
    Syntax { at: Box<Span>, message: String },

    #[error("{at}: grows too large when its aliases (`*name`) are written out; write the values themselves")]
    TooComplex { at: Box<Span> },

    #[error("{at}: key `{}` appears twice; remove one", at.key)]
    DuplicateKey { at: Box<Span> },

    #[error("{at}: unknown key `{}`; {}", at.key, suggestion(nearest.as_deref(), known))]
    UnknownKey {
        at: Box<Span>,
        nearest: Option<String>,
        known: Vec<String>,
    },

    #[error("{at}: key `{key}` is missing{}; add it", within(&at.key))]
    MissingKey { at: Box<Span>, key: String },

    #[error("{at}: {}: found {found}; write {expected}", named(&at.key))]
    WrongValue {
        at: Box<Span>,
        found: String,
        expected: String,
    },

    #[error("{at}: {}: {message}", named(&at.key))]
    Rejected { at: Box<Span>, message: String },

    #[error("{at}: key `{}`: the range is empty: low {low} is not below high {high}; {}", at.key, empty_range(*low, *high))]
    EmptyRange { at: Box<Span>, low: f64, high: f64 },

    #[error("{at}: key `{}`: a log scale needs a low above 0, not {low}; raise `low` or leave `scale` out", at.key)]
    LogOfNonPositive { at: Box<Span>, low: f64 },

    #[error("{at}: key `{}`: a step of {step} does not fit between {low} and {high}; write one above 0 and at most {}", at.key, high - low)]
    BadStep {
        at: Box<Span>,
        step: f64,
        low: f64,
        high: f64,
    },

    #[error("{at}: key `{}`: the list of choices is empty; write at least one value", at.key)]
    NoChoices { at: Box<Span> },

    #[error("{at}: key `{}`: the choice {value} appears twice; remove one", at.key)]
    DuplicateChoice { at: Box<Span>, value: String },

    #[error("{at}: key `{}`: {value} is not legal for `{parameter}`; write {legal}", at.key)]
    IllegalValue {
        at: Box<Span>,
        parameter: String,
        value: String,
        legal: String,
    },

    #[error("{at}: key `{}`: there is no parameter `{parameter}` in `space`; {}", at.key, suggestion(nearest.as_deref(), known))]
    UnknownConditionParameter {
        at: Box<Span>,
        parameter: String,
        nearest: Option<String>,
        known: Vec<String>,
    },

    #[error("{at}: key `{}`: `{parameter}` cannot depend on itself; name another parameter", at.key)]
    ConditionOnItself { at: Box<Span>, parameter: String },

    #[error("{at}: key `{}`: `{parameter}` is declared below; move it above the parameter that depends on it", at.key)]
    ConditionOnLater { at: Box<Span>, parameter: String },

    #[error("{at}: key `{}`: the conditions form a cycle: {}; remove one of them", at.key, cycle.join(" -> "))]
    CircularConditions { at: Box<Span>, cycle: Vec<String> },

    #[error("{at}: key `{}`: `{parameter}` is never {value}; {legal}", at.key)]
    ImpossibleCondition {
        at: Box<Span>,
        parameter: String,
        value: String,
        legal: String,
    },

    #[error("{at}: `{}` and `{other}` exclude each other: {reason}; keep one", at.key)]
    Conflict {
        at: Box<Span>,
        other: String,
        reason: &'static str,
    },

    #[error("{at}: key `{}`: {}; choose a global batch that is a multiple of the micro-batch", at.key, indivisible(micro_batches, *global_batch))]
    Indivisible {
        at: Box<Span>,
        global_batch: i64,
        micro_batches: Vec<i64>,
    },

    #[error("{at}: key `{}`: there is no {what} {}; correct the path (it is relative to the folder of this file){}", at.key, path.display(), on_hub(what, path))]
    MissingPath {
        at: Box<Span>,
        what: &'static str,
        path: PathBuf,
    },

    #[error("{at}: key `{}`: unknown metric `{metric}`; {}", at.key, suggestion(nearest.as_deref(), known))]
    UnknownMetric {
        at: Box<Span>,
        metric: String,
        nearest: Option<String>,
        known: Vec<String>,
    },

    #[error("{at}: key `{}`: {metric} appears twice; remove one", at.key)]
    DuplicateObjective { at: Box<Span>, metric: String },

    #[error("{at}: key `{}`: a study has 1 to 4 objectives, not {count}; {}", at.key, if *count == 0 { "name at least one metric" } else { "keep the four that matter" })]
    ObjectiveCount { at: Box<Span>, count: usize },

    #[error("{at}: key `{}`: a budget of zero runs nothing; write at least 1 trial and some time", at.key)]
    ZeroBudget { at: Box<Span> },

    #[error("{at}: key `{}`: nothing to search; give at least one parameter several values", at.key)]
    NothingToSearch { at: Box<Span> },
}

impl SpaceError {
    /// An unknown key with the known one that looks or means most like it.
    pub(super) fn unknown_key(at: Box<Span>, key: &str, known: Vec<String>) -> Self {
        // A parameter written beside `space` instead of in it.
        let is_top_level_of_a_study = at.key == key && known.iter().any(|name| name == "space");
        let parameter = setting(key).or_else(|| setting_called(key));
        let nearest = match parameter {
            Some(parameter) if is_top_level_of_a_study => Some(format!("space.{}", parameter.name)),
            _ => nearest(key, &known),
        };
        Self::UnknownKey { at, nearest, known }
    }

    /// Place of the mistake; `None` for a file that could not be read at all.
    pub fn place(&self) -> Option<&Span> {
        match self {
            Self::Unreadable { .. } | Self::TooLarge { .. } => None,
            Self::NotUtf8 { at }
            | Self::Empty { at }
            | Self::Syntax { at, .. }
            | Self::TooComplex { at }
            | Self::DuplicateKey { at }
            | Self::UnknownKey { at, .. }
            | Self::MissingKey { at, .. }
            | Self::WrongValue { at, .. }
            | Self::Rejected { at, .. }
            | Self::EmptyRange { at, .. }
            | Self::LogOfNonPositive { at, .. }
            | Self::BadStep { at, .. }
            | Self::NoChoices { at }
            | Self::DuplicateChoice { at, .. }
            | Self::IllegalValue { at, .. }
            | Self::UnknownConditionParameter { at, .. }
            | Self::ConditionOnItself { at, .. }
            | Self::ConditionOnLater { at, .. }
            | Self::CircularConditions { at, .. }
            | Self::ImpossibleCondition { at, .. }
            | Self::Conflict { at, .. }
            | Self::Indivisible { at, .. }
            | Self::MissingPath { at, .. }
            | Self::UnknownMetric { at, .. }
            | Self::DuplicateObjective { at, .. }
            | Self::ObjectiveCount { at, .. }
            | Self::ZeroBudget { at }
            | Self::NothingToSearch { at } => Some(at),
        }
    }

    /// The message, and below it the lines of the file that it is about. `color` draws them with colours.
    pub fn rendered(&self, color: bool) -> String {
        let theme = if color {
            GraphicalTheme::unicode()
        } else {
            GraphicalTheme::unicode_nocolor()
        };
        let mut drawn = String::new();
        let handler = GraphicalReportHandler::new_themed(theme)
            .with_context_lines(1)
            .with_links(false);
        let mut text = self.to_string();
        if handler.render_report(&mut drawn, self).is_ok() {
            // The report repeats the message, wrapped, above the frame; here it stands once and whole.
            for line in drawn.lines().skip_while(|line| !line.contains('╭')) {
                text.push('\n');
                text.push_str(line.trim_end());
            }
        }
        text
    }
}

impl Diagnostic for SpaceError {
    fn source_code(&self) -> Option<&dyn SourceCode> {
        self.place().map(|place| &place.text as &dyn SourceCode)
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        let place = self.place()?;
        let length = place.span.len().max(1);
        let label = LabeledSpan::at(place.span.start..place.span.start + length, "here");
        Some(Box::new(std::iter::once(label)))
    }
}

/// The known name that looks most like `name`, where one does.
pub(super) fn nearest(name: &str, known: &[String]) -> Option<String> {
    known
        .iter()
        .map(|candidate| (similarity(name, candidate), candidate))
        .filter(|(score, _)| *score >= 0.6)
        .max_by(|(one, _), (other, _)| one.total_cmp(other))
        .map(|(_, candidate)| candidate.clone())
}

fn similarity(name: &str, candidate: &str) -> f64 {
    let plain = |text: &str| text.to_lowercase().replace(['-', ' '], "_");
    strsim::normalized_damerau_levenshtein(&plain(name), &plain(candidate))
}

fn suggestion(nearest: Option<&str>, known: &[String]) -> String {
    match nearest {
        Some(name) => format!("did you mean `{name}`?"),
        None if known.is_empty() => "remove it".to_owned(),
        None => format!("write one of {}", known.join(", ")),
    }
}

fn unreadable(reason: std::io::ErrorKind) -> String {
    match reason {
        std::io::ErrorKind::NotFound => "there is no such file; check the path".into(),
        std::io::ErrorKind::PermissionDenied => "permission denied; make the file readable".into(),
        std::io::ErrorKind::IsADirectory => "this is a folder; name the file in it".into(),
        other => format!("{other}; check the path"),
    }
}

fn named(key: &str) -> String {
    if key.is_empty() {
        "the file as a whole".to_owned()
    } else {
        format!("key `{key}`")
    }
}

fn within(key: &str) -> String {
    if key.is_empty() {
        String::new()
    } else {
        format!(" in `{key}`")
    }
}

fn empty_range(low: f64, high: f64) -> String {
    if low == high {
        format!("write the value {low} itself to fix it")
    } else {
        "swap them".to_owned()
    }
}

/// What to write where `owner/name` was meant to be a data set of the hub.
fn on_hub(what: &str, path: &Path) -> String {
    let address = format!("hf://datasets/{}", path.display());
    let is_name = what == "file" && path.extension().is_none();
    let set = HubDataSet::of(Path::new(&address)).and_then(Result::ok);
    match set.filter(|set| is_name && address.ends_with(&set.id)) {
        Some(_) => format!(", or write `{address}` for a data set of the hub"),
        None => String::new(),
    }
}

fn indivisible(micro_batches: &[i64], global_batch: i64) -> String {
    let list: Vec<_> = micro_batches.iter().map(i64::to_string).collect();
    format!(
        "a global batch of {global_batch} is not a multiple of any micro-batch ({})",
        list.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_misses_find_the_key_that_was_meant() {
        let known: Vec<String> = ["rank", "learning_rate", "target_modules", "dropout"]
            .map(String::from)
            .into();
        assert_eq!(nearest("rnak", &known).as_deref(), Some("rank"));
        assert_eq!(nearest("learningRate", &known).as_deref(), Some("learning_rate"));
        assert_eq!(nearest("target-module", &known).as_deref(), Some("target_modules"));
        assert_eq!(nearest("zebra", &known), None);
    }
}
