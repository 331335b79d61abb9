//! Progress of a search in words that fit a terminal of any width: `trial 7 (8 of 40) · train 48/148 · loss 2.64`.

use std::collections::BTreeMap;
use std::time::Instant;

use crate::cli::terminal::line_breaks::cut;
use crate::report::{about_duration, bytes, metric_value, metric_words, params_text};
use crate::tune::{Confirming, Interrupt, Progress, Repeat};
use crate::worker::TrialEvent;
use peft_tune_core::objective::{PEAK_MEMORY, THROUGHPUT, measured_of};
use peft_tune_core::study::{Phase, Trial, TrialNumber};

/// Stands between two parts of a line.
const BETWEEN: &str = " · ";
/// Least width of a terminal that shows more than what matters.
const ROOMY: usize = 60;
/// Seconds left below which none are named: they may be up before they are read.
const SOON_S: f64 = 1.0;

/// Status of a search: its trials under way, and how far it is.
#[derive(Debug, Default)]
pub(super) struct SearchStatus {
    /// Preparation before the first trial that is under way.
    preparing: Option<String>,
    progress: Progress,
    /// Time at which `progress` was told.
    told: Option<Instant>,
    under_way: BTreeMap<TrialNumber, UnderWay>,
    /// Finished trial that is run again, alone.
    repeated: Option<TrialNumber>,
    confirming: Option<Confirming>,
    is_paused: bool,
    interrupt: Interrupt,
}

/// A trial under way, or a run that confirms one.
#[derive(Debug)]
struct UnderWay {
    /// `trial 7 (8 of 40)`, as it was when it began.
    name: String,
    phase: Phase,
    step: u64,
    /// Steps of the training, where they are known.
    steps: Option<u64>,
    loss: Option<f64>,
    note: Option<String>,
    /// Time at which the first step of this phase was told, and the number of that step.
    paced: Option<(Instant, u64)>,
    params: String,
}

impl UnderWay {
    fn new(name: String, params: String) -> Self {
        Self {
            name,
            phase: Phase::Load,
            step: 0,
            steps: None,
            loss: None,
            note: None,
            paced: None,
            params,
        }
    }

    fn take(&mut self, event: &TrialEvent) {
        match event {
            TrialEvent::Phase { phase, .. } => {
                (self.phase, self.step, self.loss, self.paced) = (*phase, 0, None, None);
            }
            TrialEvent::Training { steps, .. } => self.steps = Some(*steps),
            TrialEvent::Step { phase, step, .. } => {
                (self.phase, self.loss) = (*phase, Some(step.loss));
                self.at(step.step);
            }
            TrialEvent::Evaluation { evaluation, .. } => self.loss = Some(evaluation.loss),
            TrialEvent::Report { step, metrics, .. } => {
                self.phase = Phase::Train;
                self.loss = metrics.value(peft_tune_core::objective::LOSS).or(self.loss);
                self.at(*step);
            }
            TrialEvent::Lost { .. } => self.note = Some("its process was lost: once more".to_owned()),
            TrialEvent::Measured { .. } | TrialEvent::Kernels { .. } | TrialEvent::Ended { .. } => {}
        }
    }

    fn at(&mut self, step: u64) {
        self.step = step;
        self.note = None;
        self.paced.get_or_insert_with(|| (Instant::now(), step));
    }

    /// Phase and step in words: `train 48/148`.
    fn doing(&self) -> String {
        let name = match self.phase {
            Phase::Load => "loading",
            Phase::Profile => "profile",
            Phase::Train => "train",
            Phase::Evaluate => "evaluate",
        };
        match (self.phase, self.step, self.steps) {
            (Phase::Train, step, Some(steps)) => format!("{name} {step}/{steps}"),
            (_, 0, _) => name.to_owned(),
            (_, step, _) => format!("{name} {step}"),
        }
    }

    /// Seconds that the rest of the training takes, where its steps tell.
    fn left_s(&self, now: Instant) -> Option<f64> {
        let ((since, first), steps) = (self.paced?, self.steps?);
        let done = self.step.checked_sub(first).filter(|done| *done > 0)?;
        let each = now.duration_since(since).as_secs_f64() / done as f64;
        Some(steps.saturating_sub(self.step) as f64 * each)
    }
}

impl SearchStatus {
    pub(super) fn new(interrupt: Interrupt) -> Self {
        Self {
            interrupt,
            ..Self::default()
        }
    }

    /// Shows what is prepared before the first trial; `None` when the trials begin.
    pub(super) fn prepares(&mut self, what: Option<String>) {
        self.preparing = what;
    }

    pub(super) fn is_preparing(&self) -> bool {
        self.preparing.is_some()
    }

    pub(super) fn begins(&mut self, trial: &Trial, progress: &Progress) {
        self.knows(progress);
        self.confirming = None;
        if let Some(repeated) = self.repeated.take() {
            self.under_way.remove(&repeated);
        }
        let name = self.named(trial.number);
        self.under_way
            .insert(trial.number, UnderWay::new(name, params_text(&trial.params)));
    }

    pub(super) fn takes(&mut self, event: &TrialEvent) {
        if let Some(one) = self.under_way.get_mut(&event.number()) {
            one.take(event);
        }
    }

    pub(super) fn confirms(&mut self, one: &Confirming, progress: &Progress) {
        self.knows(progress);
        self.confirming = Some(*one);
        self.again(one.number, repeat_text(one.number, one.repeat));
    }

    /// Shows that a finished trial is run again.
    pub(super) fn again(&mut self, number: TrialNumber, what: String) {
        self.under_way.clear();
        self.repeated = Some(number);
        self.under_way
            .insert(number, UnderWay::new(format!("trial {number} again"), what));
    }

    /// Takes a trial that ended off the line, and returns the name that it had there.
    pub(super) fn ends(&mut self, number: TrialNumber, progress: &Progress) -> String {
        self.knows(progress);
        let ended = self.under_way.remove(&number);
        ended.map_or_else(|| format!("trial {number}"), |one| one.name)
    }

    pub(super) fn pauses(&mut self, is_paused: bool, progress: &Progress) {
        self.knows(progress);
        self.is_paused = is_paused;
    }

    fn knows(&mut self, progress: &Progress) {
        self.progress = progress.clone();
        self.told = Some(Instant::now());
    }

    /// Name of a trial: `trial 7 (8 of 40)`, its number, which counts from 0, and its place among the trials that there
    /// will be.
    fn named(&self, number: TrialNumber) -> String {
        match self.progress.budget_trials {
            Some(budget) => {
                let (all, place) = (budget + self.progress.variants, number.0 + 1);
                match place > all {
                    // A variant, or what a finalist is to be compared with.
                    true => format!("trial {number} (after the budget's {budget})"),
                    false => format!("trial {number} ({place} of {all})"),
                }
            }
            None => format!("trial {number}"),
        }
    }

    /// What an interrupt waits for, with the time that takes: `trial 7 (about 12 s)`; `None` where nothing is under way.
    pub(super) fn waits_for(&self, now: Instant) -> Option<String> {
        let (number, one) = self.under_way.first_key_value()?;
        let all = self.under_way.len();
        let what = match (&self.confirming, all) {
            (Some(_), _) => format!("the run that confirms trial {number}"),
            (None, 1) => format!("trial {number}"),
            (None, all) => format!("the {all} trials under way"),
        };
        let left = self
            .under_way
            .values()
            .filter_map(|one| one.left_s(now))
            .reduce(f64::max);
        let time = left.filter(|seconds| *seconds >= SOON_S).map(about_duration);
        Some(match time {
            Some(time) => format!("{what} ({}, about {time} more)", one.doing()),
            None => format!("{what} ({})", one.doing()),
        })
    }

    /// The parts of the line that nobody may miss.
    pub(super) fn parts(&self, now: Instant) -> Vec<String> {
        if let Some(preparing) = &self.preparing {
            return vec![preparing.clone()];
        }
        let mut parts = Vec::new();
        if self.interrupt.is_requested() {
            parts.push("stopping".to_owned());
        } else if self.is_paused {
            parts.push("paused".to_owned());
        }
        let first = self.under_way.first_key_value();
        parts.push(match (&self.confirming, first) {
            (Some(one), _) => format!("confirming {}/{}", one.run, one.of),
            (None, Some((_, one))) => {
                let more = match self.under_way.len() {
                    0 | 1 => String::new(),
                    all => format!(" and {} more", all - 1),
                };
                one.name.clone() + &more
            }
            (None, None) => match self.progress.budget_trials {
                Some(budget) => format!("{} of {budget} trials done", self.progress.counted()),
                None => format!("{} trials done", self.progress.counted()),
            },
        });
        if let Some((_, one)) = first {
            parts.push(one.note.clone().unwrap_or_else(|| one.doing()));
            parts.extend(one.loss.map(|loss| format!("loss {loss:.2}")));
        }
        let left = self.left_s(now).filter(|seconds| *seconds >= SOON_S);
        parts.extend(left.map(|seconds| format!("{} left", about_duration(seconds))));
        parts
    }

    /// Seconds until the search ends.
    fn left_s(&self, now: Instant) -> Option<f64> {
        let elapsed = self.told.map_or(0.0, |told| now.duration_since(told).as_secs_f64());
        let under_way = self
            .under_way
            .values()
            .filter_map(|one| one.left_s(now))
            .reduce(f64::max);
        if self.interrupt.is_requested() {
            return under_way;
        }
        // Nobody knows when a pause ends.
        let left = self.progress.left_s().filter(|_| !self.is_paused)?;
        let at_least = under_way.unwrap_or(0.0);
        Some((left - elapsed).max(at_least))
    }

    /// Lines for a terminal of so many columns: the parts that matter, whole, and below them what there is room for.
    pub(super) fn lines(&self, now: Instant, width: usize) -> Vec<String> {
        let mut lines = wrapped(self.parts(now), width);
        if width < ROOMY || self.preparing.is_some() {
            return lines;
        }
        let params = self.under_way.values().next().map(|one| one.params.clone());
        let best: Vec<String> = self
            .progress
            .best
            .iter()
            .map(|(metric, value)| named_value(metric, *value))
            .collect();
        let best = (!best.is_empty()).then(|| format!("best {}", best.join(", ")));
        lines.extend(best.into_iter().chain(params).map(|line| cut(&line, width)));
        lines
    }
}

/// Says what a run of a finished trial is for.
fn repeat_text(number: TrialNumber, repeat: Repeat) -> String {
    match repeat {
        Repeat::Cost => format!("speed and memory of trial {number} once more"),
        Repeat::Loss { seed_offset } => format!("trial {number} with another seed ({seed_offset})"),
        Repeat::Longer { tokens } => format!("trial {number} trained longer, for {tokens} tokens"),
    }
}

/// Parts in as many lines as they need.
fn wrapped(parts: Vec<String>, width: usize) -> Vec<String> {
    let columns = |text: &str| text.chars().count();
    let mut lines: Vec<String> = Vec::new();
    for part in parts {
        match lines.last_mut() {
            Some(line) if columns(line) + columns(BETWEEN) + columns(&part) <= width => {
                line.push_str(BETWEEN);
                line.push_str(&part);
            }
            _ => lines.push(cut(&part, width)),
        }
    }
    lines
}

/// A metric's value as people say it: `5,120 tokens/s`, `10.6 MiB`, `loss 2.6412`.
pub(super) fn named_value(metric: &str, value: f64) -> String {
    if let Some(own) = measured_of(metric) {
        return format!("{} (predicted)", named_value(own, value));
    }
    match metric {
        THROUGHPUT => format!("{} tokens/s", metric_value(metric, value)),
        PEAK_MEMORY => bytes(value),
        _ => format!("{} {}", metric_words(metric), metric_value(metric, value)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::SpentTime;
    use peft_tune_core::study::{Params, TrialState};

    fn status() -> SearchStatus {
        let mut status = SearchStatus::default();
        let trial = Trial {
            number: TrialNumber(7),
            params: [("rank".to_owned(), 16i64.into())].into(),
            state: TrialState::Running,
        };
        let progress = Progress {
            finished: 7,
            budget_trials: Some(40),
            spent: SpentTime {
                trials_s: 42.0,
                ..SpentTime::default()
            },
            workers: 1,
            best: [("loss".to_owned(), 2.1)].into(),
            ..Progress::default()
        };
        status.begins(&trial, &progress);
        let number = trial.number;
        status.takes(&TrialEvent::Training { number, steps: 148 });
        let metrics = [("loss", 2.641)].into();
        status.takes(&TrialEvent::Report {
            number,
            step: 48,
            metrics,
        });
        status
    }

    #[test]
    fn what_matters_is_whole_at_any_width() {
        let status = status();
        let now = status.told.unwrap();
        let line = "trial 7 (8 of 40) · train 48/148 · loss 2.64 · 3 min left";
        assert_eq!(status.lines(now, 80), [line, "best loss 2.1000", "rank 16"]);
        assert_eq!(status.lines(now, 60), [line, "best loss 2.1000", "rank 16"]);
        assert_eq!(
            status.lines(now, 40),
            ["trial 7 (8 of 40) · train 48/148", "loss 2.64 · 3 min left"]
        );
    }

    #[test]
    fn what_was_run_again_leaves_the_line_when_a_trial_begins() {
        let mut status = status();
        let progress = status.progress.clone();
        status.ends(TrialNumber(7), &progress);
        status.again(TrialNumber(2), "measuring trial 2 again".to_owned());
        let now = status.told.unwrap();
        assert_eq!(status.parts(now)[0], "trial 2 again");
        let next = Trial {
            number: TrialNumber(8),
            params: Params::new(),
            state: TrialState::Running,
        };
        status.begins(&next, &progress);
        let now = status.told.unwrap();
        assert_eq!(status.parts(now)[0], "trial 8 (9 of 40)");
        assert_eq!(
            status.waits_for(now).unwrap_or_default().split(" (").next(),
            Some("trial 8")
        );
    }

    #[test]
    fn a_pause_and_an_interrupt_come_first() {
        let mut status = status();
        let progress = status.progress.clone();
        status.pauses(true, &progress);
        let now = status.told.unwrap();
        assert_eq!(
            status.parts(now),
            ["paused", "trial 7 (8 of 40)", "train 48/148", "loss 2.64"]
        );
        status.ends(TrialNumber(7), &progress);
        assert_eq!(status.parts(now), ["paused", "7 of 40 trials done"]);
        status.interrupt.request();
        assert_eq!(status.parts(now)[0], "stopping");
    }

    #[test]
    fn a_confirmation_counts_its_runs_and_its_time() {
        let mut status = status();
        let one = Confirming {
            number: TrialNumber(3),
            repeat: Repeat::Cost,
            run: 2,
            of: 3,
        };
        let progress = Progress {
            trials_are_over: true,
            end_s: 130.0,
            ..status.progress.clone()
        };
        status.confirms(&one, &progress);
        let now = status.told.unwrap();
        assert_eq!(status.parts(now), ["confirming 2/3", "loading", "2 min left"]);
    }
}
