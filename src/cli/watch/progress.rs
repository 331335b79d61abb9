//! Progress of a training, from what it prints and logs.

use std::collections::BTreeMap;

use super::log_fields::{self, LogFields};
use super::named_bar::{Mark, NamedBar, keep};
use super::printed::{self, PrintedSetting, Told};
use super::token_count::TokenCount;
use super::tqdm_bar::{Counts, TqdmBar};

/// Most marks of steps that are kept.
const MOST_MARKS: usize = 1 << 16;
/// Most messages that are kept.
const MOST_TOLD: usize = 64;
/// Most kinds of bars with names.
const MOST_BARS: usize = 16;
/// Numbers in a log that may count steps.
const COUNTS: std::ops::Range<f64> = 1.0..1e15;

/// Fields that say which step a log is of, and how many there are.
const STEP: [&str; 3] = ["step", "global_step", "current_steps"];
const TOTAL: [&str; 2] = ["total_steps", "max_steps"];

/// What a training is at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Phase {
    /// Nothing was seen of steps so far.
    #[default]
    Starting,
    Steps,
    Evaluation,
    /// The tool has told that the training is over.
    Ending,
}

/// Steps between two marks, without an evaluation in them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct StepSpan {
    pub from_s: f64,
    pub to_s: f64,
    /// The last of the steps, and how many they are.
    pub step: u64,
    pub steps: u64,
}

impl StepSpan {
    /// Seconds of one of them.
    pub(super) fn seconds(&self) -> f64 {
        (self.to_s - self.from_s) / self.steps.max(1) as f64
    }
}

/// Progress so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Progress {
    phase: Phase,
    marks: Vec<Mark>,
    /// Steps from one kept mark to the next, once there are many.
    stride: u64,
    total: Option<u64>,
    /// Whether a bar tells the steps, which logs tell less often.
    has_bar: bool,
    /// Whether the output, or a log in lines, tells losses. What event files have is the same then, later.
    has_log: bool,
    /// Count of the training's bar, where it has no name.
    done: u64,
    /// Bars with names by their kinds, and which of them counts the steps.
    bars: BTreeMap<String, NamedBar>,
    counted: Option<String>,
    /// Total and steps of a bar without a name that was taken for an evaluation's.
    doubtful: (u64, Vec<Mark>),
    evaluations: Vec<(f64, f64)>,
    /// Evaluation under way: since when, and when it was seen last.
    evaluating: Option<(f64, f64)>,
    pub tokens: TokenCount,
    pub loss: Option<f64>,
    /// Settings that the tool printed.
    pub settings: BTreeMap<PrintedSetting, u64>,
    /// Messages, with the time and the phase that they came in.
    pub told: Vec<(f64, Phase, Told)>,
}

impl Progress {
    /// Takes a line of the output, or of a log file.
    pub(super) fn take(&mut self, line: &str, at_s: f64) {
        if let Some(bar) = TqdmBar::read(line) {
            self.take_bar(&bar, at_s);
        }
        if let Some(fields) = log_fields::read(line) {
            self.has_log |= fields.contains_key("loss");
            self.take_fields(&fields, at_s);
        } else if let Some(told) = printed::read(line) {
            self.take_told(told, at_s);
        }
    }

    /// Takes numbers of an event file, with the time that it has for them.
    pub(super) fn take_event(&mut self, fields: &LogFields, at_s: f64) {
        if !self.has_log {
            self.take_fields(fields, at_s);
        }
    }

    /// Takes a line without an end where it is a bar; whether it is one.
    pub(super) fn take_bar_line(&mut self, line: &str, at_s: f64) -> bool {
        let bar = TqdmBar::read(line);
        if let Some(bar) = &bar {
            self.take_bar(bar, at_s);
        }
        bar.is_some()
    }

    fn take_bar(&mut self, bar: &TqdmBar, at_s: f64) {
        match bar.counts() {
            Counts::Other => {}
            Counts::Evaluation => self.evaluates(at_s),
            Counts::Steps if bar.name.is_empty() => self.take_unnamed(bar, at_s),
            Counts::Steps => self.take_named(bar, at_s),
        }
    }

    /// Takes a bar without a name, which the Trainer draws for the steps and for each evaluation.
    fn take_unnamed(&mut self, bar: &TqdmBar, at_s: f64) {
        let is_other = self.total.is_some_and(|total| total != bar.total);
        if is_other || bar.done < self.done || self.counted.is_some() {
            let (total, marks) = &mut self.doubtful;
            if *total != bar.total || marks.last().is_some_and(|last| bar.done < last.step) {
                *total = bar.total;
                marks.clear();
            }
            keep(marks, bar.done, at_s);
            self.evaluates(at_s);
            return;
        }
        self.done = bar.done;
        self.has_bar = true;
        self.total = Some(bar.total);
        self.mark(bar.done, at_s);
    }

    /// Takes a bar with a name. Of several the one that moves most counts the steps.
    fn take_named(&mut self, bar: &TqdmBar, at_s: f64) {
        let kind = bar.kind();
        if self.bars.len() >= MOST_BARS && !self.bars.contains_key(&kind) {
            return;
        }
        let own = self.bars.entry(kind.clone()).or_default();
        let step = own.take(bar, &kind);
        let (updates, is_outer) = (own.updates, own.is_outer);
        let moves_more = |other: &NamedBar| !is_outer && (other.is_outer || updates > other.updates);
        let is_counted = match &self.counted {
            Some(counted) if *counted == kind => true,
            Some(counted) => self.bars.get(counted).is_some_and(moves_more),
            // A bar without a name need not be the training's before it has a loss.
            None => !self.has_bar || self.loss.is_none(),
        };
        if !is_counted {
            keep(&mut self.bars.entry(kind).or_default().marks, step, at_s);
            return;
        }
        if self.counted.as_ref() != Some(&kind) {
            self.count_by(kind);
        }
        self.has_bar = true;
        self.mark(step, at_s);
    }

    /// Counts by another bar from now on, with its steps so far.
    fn count_by(&mut self, kind: String) {
        let bar = self.bars.entry(kind.clone()).or_default();
        self.marks = std::mem::take(&mut bar.marks);
        self.stride = 0;
        let is_of_bar = self.has_bar && self.counted.is_none();
        if is_of_bar && !self.settings.contains_key(&PrintedSetting::Steps) {
            self.total = None;
        }
        self.counted = Some(kind);
    }

    /// Begins anew: what was taken for the training was something before it.
    fn begin_anew(&mut self) {
        self.marks.clear();
        (self.stride, self.done, self.has_bar, self.counted) = (0, 0, false, None);
        self.evaluations.clear();
        self.evaluating = None;
    }

    /// Takes the bar of an evaluation for the training's, which has told a loss before any other bar did.
    fn take_doubtful(&mut self) {
        let (total, marks) = std::mem::take(&mut self.doubtful);
        self.begin_anew();
        self.total = Some(total);
        self.done = marks.last().map_or(0, |last| last.step);
        self.marks = marks;
        self.has_bar = true;
        self.phase = Phase::Steps;
    }

    /// Whether the bar that was taken for an evaluation's is under way.
    fn is_doubtful(&self) -> bool {
        let (total, marks) = &self.doubtful;
        self.phase == Phase::Evaluation && marks.last().is_some_and(|last| last.step < *total)
    }

    fn take_fields(&mut self, fields: &LogFields, at_s: f64) {
        let first = |names: &[&str]| names.iter().find_map(|name| fields.get(*name).copied());
        let runtime = fields.get("eval_runtime").copied();
        // No evaluation took longer than all so far.
        if let Some(runtime) = runtime.filter(|runtime| (0.0..=at_s).contains(runtime)) {
            // The Trainer draws the bar of an evaluation behind its first batch.
            let told = at_s - runtime;
            let began = self.evaluating.take().map_or(told, |(since, _)| since.min(told));
            self.evaluated(began.max(0.0), at_s);
            self.phase = Phase::Steps;
        }
        let is_step = fields.contains_key("loss");
        if is_step && self.loss.is_none() && self.is_doubtful() {
            self.take_doubtful();
        }
        let count = |value: f64| COUNTS.contains(&value).then_some(value as u64);
        if let Some(total) = first(&TOTAL)
            .and_then(count)
            .filter(|_| is_step && self.total.is_none())
        {
            self.total = Some(total);
        }
        if let Some(step) = first(&STEP).and_then(count).filter(|_| is_step && !self.has_bar) {
            self.mark(step, at_s);
        }
        if is_step {
            self.loss = fields.get("loss").copied();
        }
        self.tokens.take(fields, at_s);
        if fields.contains_key("train_runtime") {
            self.phase = Phase::Ending;
        }
    }

    fn take_told(&mut self, told: Told, at_s: f64) {
        if let Told::Setting(setting, value) = told {
            self.settings.insert(setting, value);
            if setting == PrintedSetting::Steps {
                let is_other = self.total.is_some_and(|total| total != value);
                if self.loss.is_none() && (is_other || self.counted.is_some()) {
                    self.begin_anew();
                }
                self.total = Some(value);
            }
        } else if self.told.len() < MOST_TOLD {
            self.told.push((at_s, self.phase, told));
        }
    }

    fn evaluates(&mut self, at_s: f64) {
        let since = self.evaluating.map_or(at_s, |(since, _)| since);
        self.evaluating = Some((since, at_s));
        self.phase = Phase::Evaluation;
    }

    /// Adds an evaluation; one that overlaps with the last is the same, told in another way.
    fn evaluated(&mut self, from_s: f64, to_s: f64) {
        match self.evaluations.last_mut() {
            Some(last) if last.1 >= from_s => *last = (last.0.min(from_s), last.1.max(to_s)),
            _ => self.evaluations.push((from_s, to_s)),
        }
    }

    fn mark(&mut self, step: u64, at_s: f64) {
        let last = self.marks.last().map(|mark| mark.step);
        if last.is_some_and(|last| step < last.saturating_add(self.stride.max(1))) {
            return;
        }
        if let Some((since, seen)) = self.evaluating.take() {
            self.evaluated(since, seen);
        }
        self.phase = Phase::Steps;
        self.marks.push(Mark { at_s, step });
        if self.marks.len() >= MOST_MARKS {
            self.stride = 2 * self.stride.max(1);
            let mut number = 0;
            self.marks.retain(|_| {
                number += 1;
                number % 2 == 1
            });
        }
    }

    pub(super) fn phase(&self) -> Phase {
        self.phase
    }

    /// Steps that are over.
    pub(super) fn step(&self) -> u64 {
        self.marks.last().map_or(0, |mark| mark.step)
    }

    /// All steps of the training, where they are known.
    pub(super) fn total(&self) -> Option<u64> {
        self.total
    }

    /// Evaluations, each with its beginning and its end.
    pub(super) fn evaluations(&self) -> Vec<(f64, f64)> {
        self.evaluations.iter().copied().chain(self.evaluating).collect()
    }

    /// Steps with their times, but for the first one, which compiles and fills caches, and what evaluations lie in.
    pub(super) fn step_spans(&self) -> Vec<StepSpan> {
        self.spans_of(self.marks.get(1..).unwrap_or_default())
    }

    /// The latest of them.
    pub(super) fn latest_spans(&self, most: usize) -> Vec<StepSpan> {
        let from = self.marks.len().saturating_sub(most + 1).max(1);
        self.spans_of(self.marks.get(from..).unwrap_or_default())
    }

    fn spans_of(&self, marks: &[Mark]) -> Vec<StepSpan> {
        let from_s = marks.first().map_or(0.0, |mark| mark.at_s);
        let mut evaluations = self.evaluations();
        evaluations.retain(|(_, to)| *to > from_s);
        let pairs = marks.windows(2);
        let spans = pairs.map(|pair| StepSpan {
            from_s: pair[0].at_s,
            to_s: pair[1].at_s,
            step: pair[1].step,
            steps: pair[1].step - pair[0].step,
        });
        let is_apart = |span: &StepSpan| {
            let mut all = evaluations.iter();
            all.all(|(from, to)| *to <= span.from_s || *from >= span.to_s)
        };
        spans.filter(is_apart).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bar(done: u64, total: u64) -> String {
        format!(
            "{:3}%|##  | {done}/{total} [00:01<00:09,  1.00it/s]",
            100 * done / total
        )
    }

    #[test]
    fn a_training_of_the_trainer_is_followed() {
        let mut progress = Progress::default();
        progress.take("Map:  50%|##  | 5/10 [00:01<00:01, 5.00 examples/s]", 0.5);
        assert_eq!((progress.phase(), progress.step()), (Phase::Starting, 0));
        progress.take("  Total optimization steps = 4", 0.9);
        for (done, at) in [(0, 1.0), (1, 5.0), (2, 6.0)] {
            progress.take(&bar(done, 4), at);
        }
        progress.take("{'loss': 2.5, 'num_tokens': 100, 'epoch': 0.5}", 6.0);
        progress.take(&bar(0, 7), 6.1);
        assert_eq!(progress.phase(), Phase::Evaluation);
        progress.take(&bar(7, 7), 8.0);
        progress.take("{'eval_loss': 2.4, 'eval_runtime': 1.9}", 8.1);
        for (done, at) in [(3, 9.0), (4, 10.0)] {
            progress.take(&bar(done, 4), at);
        }
        progress.take("{'loss': 2.0, 'num_tokens': 300, 'epoch': 1.0}", 10.0);
        progress.take("{'train_runtime': 9.0, 'train_loss': 2.2}", 10.1);
        assert_eq!(
            (progress.step(), progress.total(), progress.loss),
            (4, Some(4), Some(2.0))
        );
        assert_eq!(progress.phase(), Phase::Ending);
        assert_eq!(progress.evaluations(), [(6.1, 8.1)]);
        let spans = progress.step_spans();
        let seconds: Vec<f64> = spans.iter().map(StepSpan::seconds).collect();
        assert_eq!(seconds, [1.0, 1.0], "{spans:?}");
        assert_eq!(progress.tokens.per_second(), Some(50.0));
    }

    #[test]
    fn an_evaluation_begins_before_its_first_bar() {
        let mut progress = Progress::default();
        progress.take(&bar(1, 4), 1.0);
        progress.take(&bar(2, 4), 2.0);
        progress.take(&bar(1, 2), 5.0);
        progress.take("{'eval_loss': 2.4, 'eval_runtime': 5.5}", 8.0);
        progress.take(&bar(3, 4), 9.0);
        assert_eq!(progress.evaluations(), [(2.5, 8.0)]);
        for wrong in ["nan", "inf", "-inf", "-1.0", "1e9"] {
            progress.take(&format!("{{'eval_loss': 2.4, 'eval_runtime': {wrong}}}"), 9.5);
        }
        assert_eq!(progress.evaluations(), [(2.5, 8.0)]);
    }

    #[test]
    fn epochs_with_bars_of_their_own_count_on_and_logs_stand_in_for_bars() {
        let mut progress = Progress::default();
        for (epoch, at) in [(1, 0.0), (2, 10.0)] {
            for done in 0..=2 {
                let line = format!("Epoch {epoch}: 50%|#  | {done}/2 [00:01<00:01, 1.0it/s]");
                progress.take(&line, at + done as f64);
            }
        }
        assert_eq!(progress.step(), 4);
        let mut logs = Progress::default();
        for step in 1..=3 {
            let line = format!("{{\"current_steps\": {step}, \"total_steps\": 9, \"loss\": 1.0}}");
            logs.take(&line, step as f64);
        }
        assert_eq!((logs.step(), logs.total(), logs.step_spans().len()), (3, Some(9), 1));
    }

    #[test]
    fn a_bar_before_the_training_is_not_the_trainings() {
        let mut progress = Progress::default();
        for (done, at) in [(0, 0.1), (3, 0.2), (5, 0.3)] {
            progress.take(&bar(done, 5), at);
        }
        for done in 0..=3 {
            progress.take(&bar(done, 9), 1.0 + done as f64);
        }
        assert_eq!(progress.phase(), Phase::Evaluation);
        progress.take("{'loss': 2.5, 'epoch': 0.5}", 4.0);
        assert_eq!((progress.step(), progress.total()), (3, Some(9)));
        progress.take(&bar(4, 9), 5.0);
        assert_eq!((progress.step(), progress.phase()), (4, Phase::Steps));
        assert!(progress.evaluations().is_empty());
        assert_eq!(progress.step_spans().len(), 3);
        // The Trainer says beforehand how many steps there are to be.
        let mut told = Progress::default();
        told.take(&bar(5, 5), 0.1);
        told.take("  Total optimization steps = 9", 0.2);
        told.take(&bar(2, 9), 0.3);
        assert_eq!((told.step(), told.phase()), (2, Phase::Steps));
    }

    #[test]
    fn of_a_bar_in_another_the_inner_one_counts_the_steps() {
        let mut progress = Progress::default();
        for epoch in 0..3 {
            progress.take(
                &format!("Epoch: 3%|# | {epoch}/3 [00:01<00:01, 1.0it/s]"),
                5.0 * epoch as f64,
            );
            for done in 0..=4 {
                let line = format!("Iteration: 5%|# | {done}/4 [00:01<00:01, 1.0it/s]");
                progress.take(&line, (5 * epoch + done) as f64);
            }
        }
        assert_eq!(progress.step(), 12);
    }

    #[test]
    fn numbers_that_count_no_steps_are_none() {
        let mut progress = Progress::default();
        progress.take("{'lr': 1e-4, 'max_steps': -1}", 0.1);
        progress.take("{'lr': 1e-4, 'max_steps': 8}", 0.2);
        assert_eq!(progress.total(), None);
        for line in [
            "{'loss': 1, 'step': 1e300}",
            "{'loss': 1, 'step': 5, 'total_steps': -1}",
            "{'loss': 1, 'step': nan}",
            "{'loss': 1, 'step': 999999999999999}",
        ] {
            progress.take(line, 1.0);
        }
        assert_eq!((progress.step(), progress.total()), (999_999_999_999_999, None));
        for done in [u64::MAX, 1, u64::MAX, 1] {
            progress.take_named(
                &TqdmBar {
                    name: "Step".to_owned(),
                    done,
                    total: u64::MAX,
                },
                2.0,
            );
        }
        assert_eq!(progress.step(), u64::MAX);
    }

    #[test]
    fn long_trainings_keep_a_part_of_their_marks() {
        let mut progress = Progress::default();
        for step in 0..200_000u64 {
            progress.mark(step, step as f64);
        }
        let spans = progress.step_spans();
        assert!(spans.len() < MOST_MARKS && spans.iter().all(|span| (span.seconds() - 1.0).abs() < 1e-9));
        assert!(progress.step() > 199_990);
    }

    #[test]
    fn messages_are_kept_with_their_phase_and_not_without_end() {
        let mut progress = Progress::default();
        for _ in 0..1000 {
            progress.take("torch.OutOfMemoryError: CUDA out of memory.", 1.0);
        }
        assert_eq!(progress.told.len(), MOST_TOLD);
        assert_eq!(progress.told[0].1, Phase::Starting);
    }
}
