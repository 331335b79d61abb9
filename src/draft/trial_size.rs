//! How much a trial trains and evaluates: enough steps to tell settings apart, in a time that a search can afford.
//!
//! | symbol | meaning |
//! |---|---|
//! | m | tokens of the mean row |
//! | g | rows of a global batch: 16, 8 or 4 |
//! | v | tokens a second, estimated; infinite where nothing is known |
//! | T | seconds that a trial should take at most |
//!
//! g is the largest whose 30 steps take at most T: 30 g m <= v T. A trial trains on max(30 g m, min(100,000, v T))
//! tokens.

use super::long_rows::whole;
use crate::report::about_duration;

/// Steps that a trial has at least: with fewer, learning rates cannot be told apart.
const LEAST_STEPS: u32 = 30;
/// Rows of a step, the usual number first.
const GLOBAL_BATCHES: [usize; 3] = [16, 8, 4];
/// Tokens that a trial trains on where there is time for them.
const USUAL_TOKENS: f64 = 100_000.0;
/// Tokens are written in thousands.
const ROUND: f64 = 1000.0;
/// Steps whose time and memory a trial measures before it trains.
pub(super) const PROFILE_STEPS: u32 = 5;
/// Fewest and most held-out rows of an evaluation, which has at most a quarter of the training's tokens in between.
const EVALUATION_ROWS: (usize, usize) = (32, 128);
/// Steps from which on a trial is evaluated on its way too.
const STEPS_FOR_TWO: u64 = 60;
/// A forward pass takes half of the time of forward and backward through frozen weights.
const FORWARD_SHARE: f64 = 0.5;
/// Seconds of the least training beyond which a machine is too slow for a model.
const SLOW_S: f64 = 600.0;

/// How fast a machine trains a model, and what a trial may take there.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Pace {
    /// Tokens per second by a rough estimate.
    pub tokens_per_s: f64,
    /// Seconds that a trial should take at most.
    pub most_s: f64,
}

/// The size of a trial.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct TrialSize {
    /// Rows of a step, whatever the micro-batch.
    pub global_batch: usize,
    pub training_tokens: u64,
    /// Tokens of the mean row.
    pub row_tokens: f64,
    pub evaluation_rows: usize,
    pub evaluation_times: u32,
    pub(super) pace: Option<Pace>,
}

impl TrialSize {
    /// The size for rows of so many tokens on the mean.
    pub(super) fn new(row_tokens: f64, pace: Option<Pace>) -> Self {
        let least = |rows: usize| f64::from(LEAST_STEPS) * rows as f64 * row_tokens;
        let affordable = pace.map_or(f64::INFINITY, |pace| pace.tokens_per_s * pace.most_s);
        let [_, _, smallest] = GLOBAL_BATCHES;
        let fitting = GLOBAL_BATCHES.into_iter().find(|rows| least(*rows) <= affordable);
        let global_batch = fitting.unwrap_or(smallest);
        let tokens = least(global_batch).max(USUAL_TOKENS.min(affordable));
        let tokens = (tokens / ROUND).ceil() * ROUND;
        let (fewest, most) = EVALUATION_ROWS;
        let quarter = (tokens / 4.0 / row_tokens) as usize;
        let mut size = Self {
            global_batch,
            training_tokens: tokens as u64,
            row_tokens,
            evaluation_rows: (quarter / 8 * 8).clamp(fewest, most),
            evaluation_times: 1,
            pace,
        };
        if size.steps() >= STEPS_FOR_TWO {
            size.evaluation_times = 2;
        }
        size
    }

    /// Steps of a trial.
    pub(super) fn steps(&self) -> u64 {
        self.steps_of(self.row_tokens)
    }

    /// Steps of a trial whose rows have so many tokens.
    pub(super) fn steps_of(&self, row_tokens: f64) -> u64 {
        (self.training_tokens as f64 / (self.global_batch as f64 * row_tokens)) as u64
    }

    /// `41 steps of 8 rows of 217 tokens`.
    pub(super) fn steps_text(&self) -> String {
        let (steps, rows) = (whole(self.steps()), self.global_batch);
        format!("{steps} steps of {rows} rows of {:.0} tokens", self.row_tokens)
    }

    /// Seconds of a trial, about: its profile, its training and its evaluations. `None` where the machine's speed is not
    /// known.
    pub(super) fn seconds(&self) -> Option<f64> {
        let profiled = f64::from(PROFILE_STEPS) * self.global_batch as f64 * self.row_tokens;
        let evaluated = f64::from(self.evaluation_times) * self.evaluation_rows as f64 * self.row_tokens;
        let tokens = self.training_tokens as f64 + profiled + FORWARD_SHARE * evaluated;
        self.pace.map(|pace| tokens / pace.tokens_per_s)
    }

    /// Seconds of the least training with the usual global batch, where this trial has a smaller one.
    pub(super) fn usual_seconds(&self) -> Option<f64> {
        let [usual, ..] = GLOBAL_BATCHES;
        let tokens = f64::from(LEAST_STEPS) * usual as f64 * self.row_tokens;
        let pace = self.pace.filter(|_| self.global_batch < usual)?;
        Some(tokens / pace.tokens_per_s)
    }

    /// Minutes after which a trial is stopped: three times what it is expected to take, and half an hour at least.
    pub(super) fn timeout_min(&self) -> u64 {
        let expected = self.seconds().unwrap_or(0.0) / 60.0;
        ((3.0 * expected / 10.0).ceil() as u64 * 10).max(30)
    }

    /// Says that the machine is too slow for the model, and what would do; `None` where it is not.
    pub(crate) fn slow_note(&self, is_gpu: bool) -> Option<String> {
        let least_s = f64::from(LEAST_STEPS) * self.global_batch as f64 * self.row_tokens / self.pace?.tokens_per_s;
        let faster = if is_gpu { "a faster GPU" } else { "a GPU" };
        (least_s > SLOW_S).then(|| {
            format!(
                "this machine is too slow for this model: {LEAST_STEPS} steps of {} rows take about {}, by a rough estimate; \
                 take a smaller model of its family, {faster}, or fewer tokens (`training_tokens`, `sequence_length`)",
                self.global_batch,
                about_duration(least_s)
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(row_tokens: f64, tokens_per_s: f64) -> TrialSize {
        let most_s = 120.0;
        TrialSize::new(row_tokens, Some(Pace { tokens_per_s, most_s }))
    }

    #[test]
    fn a_slow_machine_takes_smaller_steps_before_it_takes_longer() {
        let [usual, half, quarter, slow] = [10_000.0, 600.0, 300.0, 30.0].map(|rate| at(217.0, rate));
        let sizes = [usual, half, quarter, slow].map(|size| (size.global_batch, size.training_tokens));
        assert_eq!(sizes, [(16, 105_000), (8, 72_000), (4, 36_000), (4, 27_000)]);
        for size in [usual, half, quarter, slow] {
            assert!(size.steps() >= 30, "{size:?}");
        }
        assert_eq!(usual.usual_seconds(), None);
        assert_eq!(half.usual_seconds().unwrap().round(), 174.0);
        assert_eq!((half.timeout_min(), slow.timeout_min()), (30, 60));
        assert!(half.seconds().unwrap() > 120.0 && half.seconds().unwrap() < 180.0);
    }

    #[test]
    fn what_is_not_known_costs_nothing() {
        let size = TrialSize::new(70.0, None);
        assert_eq!(
            (size.global_batch, size.training_tokens, size.steps()),
            (16, 100_000, 89)
        );
        assert_eq!(
            (size.seconds(), size.timeout_min(), size.slow_note(false)),
            (None, 30, None)
        );
        assert_eq!(TrialSize::new(1000.0, None).training_tokens, 480_000);
    }

    #[test]
    fn evaluations_are_a_quarter_of_the_training() {
        let rows = |size: TrialSize| (size.evaluation_rows, size.evaluation_times);
        assert_eq!(rows(TrialSize::new(70.0, None)), (128, 2));
        assert_eq!(rows(at(217.0, 600.0)), (80, 1));
        assert_eq!(rows(at(217.0, 30.0)), (32, 1));
    }

    #[test]
    fn a_machine_that_is_too_slow_says_so_with_what_to_do() {
        assert_eq!(at(217.0, 60.0).slow_note(false), None);
        let note = at(217.0, 30.0).slow_note(false).unwrap();
        assert!(
            note.contains("30 steps of 4 rows take about 14 min") && note.contains("smaller model"),
            "{note}"
        );
    }
}
