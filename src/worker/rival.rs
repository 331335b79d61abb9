//! The last evaluation of a trial beside that of the best training so far, on the same held-out rows.
//!
//! Most settings are clearly worse than the best one after a few rows. Such an evaluation ends there: the setting cannot be
//! recommended any more, and its loss is the rival's over all rows with the difference on these rows
//! ([`peft_tune_search::PairedDifference`]). What the search asks it for decides whether that is wanted (`tune`).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use peft_tune_core::objective::{LOSS_ROWS, LOSS_ROWS_IN_ALL};
use peft_tune_core::study::Metrics;
use peft_tune_engine::data::MicroBatch;
use peft_tune_engine::{Control, EvaluatedRows, Evaluation, RowLoss, RowWatch};
use peft_tune_search::{NEAR_BEST_LOSS, PairedDifference, PairedRow, looks};

/// Rows whose losses are told at the most: a line of a megabyte.
const MOST_ROWS: usize = 1 << 16;

/// Comparison of a trial's last evaluation with a rival: it tells the losses of its rows, and ends early where the
/// trial is surely not near the best.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Pairing {
    /// The training that the trial is compared with; all rows are evaluated where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rival: Option<Rival>,
}

/// The training that a trial is compared with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Rival {
    /// Mean cross-entropy of the training per held-out target token, in nats.
    pub loss: f64,
    pub rows: HeldOutLosses,
}

/// Losses of all rows of an evaluation, in the order of the rows. A row is one of the data's, or a part of one that is longer than the
/// sequence length.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HeldOutLosses {
    /// Target tokens of each row.
    pub target_tokens: Vec<usize>,
    /// Cross-entropy summed over the target tokens of each row, in nats.
    pub losses: Vec<f32>,
}

impl HeldOutLosses {
    fn of(rows: &[RowLoss]) -> Self {
        Self {
            target_tokens: rows.iter().map(|row| row.target_tokens).collect(),
            losses: rows.iter().map(|row| row.loss as f32).collect(),
        }
    }

    /// Whether these are as many rows of the same lengths, and each has its loss.
    fn are_of(&self, held_out: &[MicroBatch]) -> bool {
        let rows = held_out.iter().flat_map(MicroBatch::target_tokens_of_rows);
        self.losses.len() == self.target_tokens.len() && rows.eq(self.target_tokens.iter().copied())
    }
}

/// An evaluation as a trial tells it.
pub(super) struct ToldEvaluation {
    pub(super) evaluation: Evaluation,
    /// Losses of all rows, where they are asked for and were evaluated.
    pub(super) rows: Option<HeldOutLosses>,
    /// Rows that the loss rests on, where those are a part.
    part: Option<RowsOfAll>,
}

#[derive(Clone, Copy)]
struct RowsOfAll {
    rows: usize,
    all: usize,
}

impl ToldEvaluation {
    /// An evaluation over all rows, without their own losses.
    pub(super) fn whole(evaluation: Evaluation) -> Self {
        Self {
            evaluation,
            rows: None,
            part: None,
        }
    }

    /// Notes the rows that the loss rests on, where those are a part.
    pub(super) fn note_rows(&self, metrics: &mut Metrics) {
        if let Some(RowsOfAll { rows, all }) = self.part {
            metrics.insert(LOSS_ROWS, rows as f64);
            metrics.insert(LOSS_ROWS_IN_ALL, all as f64);
        }
    }
}

/// A watch on an evaluation beside its rival.
pub(super) struct BesideRival {
    rival: Option<Rival>,
    /// Rows of the evaluation.
    all: usize,
    /// Numbers of rows after which it looks, all in all.
    looks: Vec<usize>,
    /// Number of looks so far.
    looked: usize,
    /// Difference by which the setting is worse, once that is sure.
    worse_by: Option<PairedDifference>,
}

impl BesideRival {
    pub(super) fn new(pairing: Pairing, held_out: &[MicroBatch]) -> Self {
        let rival = pairing.rival.filter(|rival| {
            let is_of_these = rival.rows.are_of(held_out) && rival.loss.is_finite();
            if !is_of_these {
                tracing::info!("the best trial so far was evaluated on other rows: all rows are evaluated");
            }
            is_of_these
        });
        let all = held_out.iter().map(|batch| batch.target_tokens_of_rows().count()).sum();
        Self {
            looks: rival.as_ref().map(|_| looks(all)).unwrap_or_default(),
            rival,
            all,
            looked: 0,
            worse_by: None,
        }
    }

    /// The evaluation as the trial tells it, with what this watch found.
    pub(super) fn told(self, found: EvaluatedRows) -> ToldEvaluation {
        let EvaluatedRows { mut evaluation, rows } = found;
        let Some((rival, difference)) = self.rival.zip(self.worse_by) else {
            let is_told = evaluation.loss.is_finite() && rows.len() <= MOST_ROWS;
            if rows.len() > MOST_ROWS {
                tracing::info!(rows = rows.len(), "too many held-out rows to compare trials row by row");
            }
            return ToldEvaluation {
                rows: is_told.then(|| HeldOutLosses::of(&rows)),
                evaluation,
                part: None,
            };
        };
        evaluation.loss = rival.loss + difference.value;
        evaluation.standard_error = Some(difference.standard_error);
        ToldEvaluation {
            evaluation,
            rows: None,
            part: Some(RowsOfAll {
                rows: rows.len(),
                all: self.all,
            }),
        }
    }
}

impl RowWatch for BesideRival {
    fn next_look(&self) -> Option<usize> {
        self.looks.get(self.looked).copied()
    }

    fn look(&mut self, rows: &[RowLoss]) -> Control {
        // A large micro-batch passes several.
        self.looked = self.looks.iter().filter(|look| **look <= rows.len()).count();
        let Some(rival) = &self.rival else {
            return Control::Continue;
        };
        let pairs: Vec<PairedRow> = rows
            .iter()
            .map(|row| PairedRow {
                difference: row.loss - f64::from(rival.rows.losses[row.row]),
                target_tokens: row.target_tokens as f64,
            })
            .collect();
        let near = NEAR_BEST_LOSS * rival.loss.abs();
        let difference = PairedDifference::of(&pairs);
        self.worse_by = difference.filter(|one| one.is_surely_above(near, self.looks.len()));
        match self.worse_by {
            Some(_) => Control::Stop,
            None => Control::Continue,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use peft_tune_engine::data::Document;

    const ROWS: usize = 40;
    const TOKENS: usize = 5;

    /// Rows of some target tokens each, in micro-batches of `size`.
    fn held_out(size: usize) -> Vec<MicroBatch> {
        let document = Document {
            input_ids: vec![1; TOKENS + 1],
            labels: vec![1; TOKENS + 1],
        };
        let all = vec![document; ROWS];
        all.chunks(size).map(MicroBatch::from_documents).collect()
    }

    fn rows(count: usize, per_token: impl Fn(usize) -> f64) -> Vec<RowLoss> {
        let row = |row| RowLoss {
            row,
            target_tokens: TOKENS,
            loss: TOKENS as f64 * per_token(row),
        };
        (0..count).map(row).collect()
    }

    /// Half of the rows are hard.
    fn of_rival(row: usize) -> f64 {
        if row.is_multiple_of(2) { 1.0 } else { 3.0 }
    }

    fn rival() -> Pairing {
        Pairing {
            rival: Some(Rival {
                loss: 2.0,
                rows: HeldOutLosses::of(&rows(ROWS, of_rival)),
            }),
        }
    }

    fn evaluation(loss: f64) -> Evaluation {
        Evaluation {
            step: 1,
            tokens: 1,
            loss,
            standard_error: Some(0.5),
            accuracy: 0.5,
            target_tokens: 1,
            seconds: 0.0,
            reward: None,
        }
    }

    fn told(watch: BesideRival, rows: Vec<RowLoss>) -> (ToldEvaluation, Metrics) {
        let found = EvaluatedRows {
            evaluation: evaluation(9.0),
            rows,
        };
        let (told, mut metrics) = (watch.told(found), Metrics::default());
        told.note_rows(&mut metrics);
        (told, metrics)
    }

    #[test]
    fn a_worse_setting_ends_at_the_first_look_with_the_rival_s_loss_and_the_difference() {
        let mut watch = BesideRival::new(rival(), &held_out(3));
        assert_eq!(watch.next_look(), Some(16));
        let seen = rows(18, |row| of_rival(row) + 0.25);
        assert_eq!(watch.look(&seen), Control::Stop);
        let (told, metrics) = told(watch, seen);
        assert!((told.evaluation.loss - 2.25).abs() < 1e-6 && told.rows.is_none());
        assert!(told.evaluation.standard_error.unwrap() < 1e-6);
        assert_eq!(metrics, [(LOSS_ROWS, 18.0), (LOSS_ROWS_IN_ALL, 40.0)].into());
    }

    #[test]
    fn one_that_is_nearly_as_good_is_evaluated_on_all_rows_and_tells_them() {
        let mut watch = BesideRival::new(rival(), &held_out(40));
        let seen = rows(ROWS, |row| of_rival(row) + 0.01);
        assert_eq!(watch.look(&seen), Control::Continue);
        assert_eq!(watch.next_look(), None);
        let (told, metrics) = told(watch, seen.clone());
        assert_eq!((told.evaluation.loss, metrics.is_empty()), (9.0, true));
        assert_eq!(told.rows, Some(HeldOutLosses::of(&seen)));
    }

    #[test]
    fn without_a_rival_on_the_same_rows_all_are_evaluated() {
        let mut other = rival();
        other.rival.as_mut().unwrap().rows.target_tokens[7] += 1;
        let mut fewer = rival();
        fewer.rival.as_mut().unwrap().rows.losses.pop();
        for pairing in [Pairing::default(), other, fewer] {
            let mut watch = BesideRival::new(pairing, &held_out(4));
            assert_eq!(watch.next_look(), None);
            assert_eq!(watch.look(&rows(20, |_| 90.0)), Control::Continue);
        }
    }

    #[test]
    fn what_is_not_finite_is_not_told() {
        let watch = BesideRival::new(Pairing::default(), &held_out(4));
        let found = EvaluatedRows {
            evaluation: evaluation(f64::NAN),
            rows: rows(ROWS, |_| f64::NAN),
        };
        assert!(watch.told(found).rows.is_none());
    }

    #[test]
    fn a_rival_survives_a_line() {
        let text = serde_json::to_string(&rival()).unwrap();
        assert_eq!(serde_json::from_str::<Pairing>(&text).unwrap(), rival());
    }
}
