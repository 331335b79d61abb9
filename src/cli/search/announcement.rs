//! What a search says before its first trial: what it will do, how long that takes, and what fits.

use std::fmt::Write;

use super::dry_run::{phases, slot_text};
use super::search_price::sum_text;
use crate::cli::data::mixture::text_of;
use crate::cli::data::prepare::file_bytes;
use crate::cli::options::database::DatabaseArgs;
use crate::cli::study::track;
use crate::report::{about_duration, bytes, dollars, metric_words, price_text, printable};
use crate::space::{Dollars, Study};
use crate::tune::{CostSurvey, Forecast, Progress};
use crate::worker::Placement;
use peft_tune_core::predict::WorkerPrice;

/// Workers that are named one by one.
const NAMED: usize = 4;

/// What is known at once: the budget, with the `sum` that it is the time of, a trial, the files, the workers.
pub(super) fn plan_text(
    study: &Study,
    database: &DatabaseArgs,
    slots: &[Placement],
    together: Option<String>,
    sum: Option<Dollars>,
) -> String {
    let mut text = format!("study {}: {}", printable(&study.name), budget_text(study, sum));
    let mut add = |name: &str, value: String| {
        // Writing to a string cannot fail.
        let _ = write!(text, "\n  {name:<8} {}", printable(&value));
    };
    let objectives: Vec<String> = study.objectives.iter().map(|one| metric_words(&one.metric)).collect();
    add("finds", format!("the best trade-off of {}", and(&objectives)));
    add("a trial", phases(study));
    let in_steps = study.schedule_in_steps();
    if !in_steps.is_empty() {
        let names: Vec<String> = in_steps.iter().map(|name| format!("`{name}`")).collect();
        let names = and(&names);
        add(
            "",
            format!("steps of {names} are the full training's: a shorter one has as large a share of them"),
        );
    }
    if let Some(base) = &study.base {
        add("model", base.model.clone());
        // Data of the hub that are not here yet have no size.
        let size = match file_bytes(&base.data) {
            0 => String::new(),
            size => format!(" ({})", bytes(size as f64)),
        };
        add("data", format!("{}{size}", text_of(&base.data.train)));
    }
    for slot in slots.iter().take(NAMED) {
        add("runs on", slot_text(study, slot));
    }
    if slots.len() > NAMED {
        add("", format!("and {} more workers", slots.len() - NAMED));
    }
    if let Some(together) = together {
        add("", together);
    }
    if let Some(price) = &study.price {
        add("costs", price_text(price));
    }
    if let Some(places) = track::places(study) {
        add("tracked", places);
    }
    add(
        "results",
        format!(
            "{}; Ctrl-C ends the search after the trial under way, and the same command continues it",
            database.path().display()
        ),
    );
    text
}

/// `up to 80 trials, then repeats of the best to be sure of them, all within 2 min`, or within `$5.00 = 30 min`.
fn budget_text(study: &Study, sum: Option<Dollars>) -> String {
    let budget = &study.budget;
    let trials = budget.trials.map(|trials| format!("up to {trials} trials"));
    let sum = sum_text(sum);
    let time = budget.time_s.map(|time| format!("{sum}{}", about_duration(time)));
    let repeats = study
        .confirm
        .map_or("", |_| ", then repeats of the best to be sure of them");
    match (trials, time) {
        (Some(trials), Some(time)) if repeats.is_empty() => format!("{trials} within {time}"),
        (Some(trials), Some(time)) => format!("{trials}{repeats}, all within {time}"),
        (Some(trials), None) => format!("{trials}{repeats}"),
        (None, Some(time)) if repeats.is_empty() => format!("trials for {time}"),
        (None, Some(time)) => format!("trials and repeats of the best for {time}"),
        (None, None) => format!("trials until nothing is left to try{repeats}"),
    }
}

/// Says how far a study is that began earlier: `it goes on: 10 of 40 trials are done, and 2 variants, which the budget
/// does not count`; `None` of a new one.
pub(super) fn progress_text(progress: &Progress) -> Option<String> {
    if progress.finished == 0 {
        return None;
    }
    let done = progress.counted();
    let done = match progress.budget_trials {
        Some(budget) => format!("{done} of {budget} trials are done"),
        None => format!("{done} trials are done"),
    };
    let variants = match progress.variants {
        0 => String::new(),
        1 => ", and a variant, which the budget does not count".to_owned(),
        variants => format!(", and {variants} variants, which the budget does not count"),
    };
    let spent = match progress.is_spent() {
        true => "; the budget is spent, and `--trials N` or `--time TIME` give it more",
        false => "",
    };
    Some(format!("it goes on: {done}{variants}{spent}"))
}

/// What is predicted: what fits, how long trials take, and what they cost where their workers have a `price`; `None` where nothing can
/// be.
pub(super) fn prediction_text(study: &Study, forecast: &Forecast, price: Option<&WorkerPrice>) -> Option<String> {
    let survey = CostSurvey::quick(study, forecast);
    let mut lines = Vec::new();
    if let Some(limit) = survey.limit.filter(|_| survey.predicted > 0) {
        let tried = survey.fitting + survey.perhaps_fitting;
        let what = match (tried, survey.size == Some(survey.looked_at)) {
            (tried, true) if tried == survey.looked_at => format!("all {tried} settings fit"),
            (tried, false) if tried == survey.looked_at => "all settings fit".to_owned(),
            (tried, true) => format!("{tried} of {} settings fit", survey.looked_at),
            (tried, false) => {
                let share = 100.0 * tried as f64 / survey.looked_at.max(1) as f64;
                format!("about {share:.0}% of all settings fit")
            }
        };
        let others = match tried == survey.looked_at {
            true => "",
            false => "; no others are tried",
        };
        let by = match forecast.stack() {
            None => "by prediction".to_owned(),
            Some(stack) => format!("by prediction of {}'s needs", stack.title()),
        };
        lines.push(format!(
            "  fits     {by} {what} into {} ({}){others}",
            bytes(limit.bytes),
            limit.from.text()
        ));
    }
    if let (None, Some(stack), true) = (survey.fastest(), forecast.stack(), survey.fitting > 0) {
        let stack = stack.title();
        lines.push(format!(
            "  takes    the speed of {stack} on this device is not known: memory alone is predicted"
        ));
    }
    if let (Some(trial), Some(search)) = (survey.trial_s, survey.search_s) {
        let is_limited = study.budget.time_s.is_some_and(|limit| search >= limit);
        let what = match study.confirm {
            Some(_) if is_limited => "trials and repeats",
            Some(_) => "all trials, then the repeats",
            None => "all trials",
        };
        lines.push(format!(
            "  takes    about {} a trial, {} for {what}",
            about_duration(trial),
            about_duration(search)
        ));
        if let Some(price) = price {
            let (trial, search) = (dollars(price.usd(trial)), dollars(price.usd(search)));
            lines.push(format!("  costs    about {trial} a trial, {search} for {what}"));
        }
    }
    (!lines.is_empty()).then(|| lines.join("\n"))
}

/// `a, b and c`.
fn and(words: &[String]) -> String {
    match words {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::space::{ReadOptions, StudyFile};

    #[test]
    fn a_sum_is_told_with_the_time_that_it_pays() {
        let text = |lines: &str, sum| {
            let text = format!("model: m\ndata: {{train: [a.jsonl]}}\nspace: {{rank: [4, 8]}}\nbudget: {lines}\n");
            let options = ReadOptions { check_files: false };
            let study = StudyFile::parse(std::path::Path::new("space.yaml"), &text, options).unwrap();
            budget_text(&study, sum)
        };
        let told = text("{trials: 80, time: 30m}", Some(Dollars(5.0)));
        assert!(
            told.starts_with("up to 80 trials") && told.ends_with("within $5.00 = 30 min"),
            "{told}"
        );
        let told = text("{time: 30m}", Some(Dollars(5.0)));
        assert!(told.ends_with("$5.00 = 30 min"), "{told}");
        let told = text("{time: 30m}", None);
        assert!(told.ends_with("30 min") && !told.contains('='), "{told}");
    }

    #[test]
    fn a_study_that_goes_on_says_what_its_budget_counts() {
        let mut progress = Progress {
            finished: 12,
            variants: 2,
            budget_trials: Some(40),
            ..Progress::default()
        };
        assert_eq!(
            progress_text(&progress).unwrap(),
            "it goes on: 10 of 40 trials are done, and 2 variants, which the budget does not count"
        );
        progress.budget_trials = Some(10);
        let spent = progress_text(&progress).unwrap();
        assert!(
            spent.ends_with("; the budget is spent, and `--trials N` or `--time TIME` give it more"),
            "{spent}"
        );
        assert_eq!(progress_text(&Progress::default()), None);
    }
}
