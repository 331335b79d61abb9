//! Rows that led to a spike, one by one: their losses on good values, and where they stand in the files.

use std::ops::RangeInclusive;
use std::path::Path;

use super::RunInputs;
use crate::data::{BatchSource, DocumentRows, MicroBatch};
use crate::hub::ModelFiles;
use crate::{RowLoss, SpikeRow, TrainError, Trainer};

/// Steps before the suspected ones whose rows these are held against.
const OTHER_STEPS: u64 = 4;
/// Rows that are listed, at most.
const LISTED: usize = 64;
/// Tokens of a row whose text is told.
const TOLD_TOKENS: usize = 64;

/// Steps whose rows are looked at: suspected ones, and others before them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SpikeSteps {
    pub first: u64,
    pub first_suspect: u64,
    pub last: u64,
}

/// The rows of some steps.
#[derive(Debug)]
pub(super) struct StepRows {
    /// (step, document) in the order of the steps.
    rows: Vec<(u64, usize)>,
    /// Rows before the suspected ones.
    others: usize,
    losses: Vec<RowLoss>,
}

impl SpikeSteps {
    /// Steps that led to a spike at step `at`. Where the loss is no number the step before is suspected, too: its update made the values.
    pub(super) fn new(at: u64, is_number: bool) -> Self {
        let first_suspect = if is_number { at } else { at.saturating_sub(1).max(1) };
        Self {
            first: first_suspect.saturating_sub(OTHER_STEPS).max(1),
            first_suspect,
            last: at,
        }
    }

    /// Steps from the first to the last.
    pub(super) fn all(self) -> RangeInclusive<u64> {
        self.first..=self.last
    }
}

/// The rows of steps (from 1) as micro-batches for an evaluation. All ranks make the same.
pub(super) fn batches_of(source: &BatchSource, steps: RangeInclusive<u64>, micro_batch: usize) -> Vec<MicroBatch> {
    let documents: Vec<usize> = steps.flat_map(|step| source.documents_of(step - 1)).collect();
    let of_part = |part: &[usize]| {
        let mut batch = MicroBatch::new();
        for index in part {
            let document = source.documents().document(*index);
            batch.push(&document.input_ids, document.labels());
        }
        batch
    };
    documents.chunks(micro_batch.max(1)).map(of_part).collect()
}

impl StepRows {
    /// The rows of these steps, with their losses on the values that `trainer` has.
    ///
    /// # Errors
    /// Errors of [`Trainer::evaluate_rows`].
    pub(super) fn look(
        trainer: &mut Trainer,
        source: &BatchSource,
        steps: SpikeSteps,
        micro_batch: usize,
    ) -> Result<Self, TrainError> {
        let batches = batches_of(source, steps.all(), micro_batch);
        let losses = trainer.evaluate_rows(&batches, &mut ())?.rows;
        Ok(Self {
            losses,
            ..Self::unseen(source, steps)
        })
    }

    /// The rows of these steps, of whose losses nothing is known.
    pub(super) fn unseen(source: &BatchSource, steps: SpikeSteps) -> Self {
        let of_step = |step: u64| {
            source
                .documents_of(step - 1)
                .into_iter()
                .map(move |document| (step, document))
        };
        let rows: Vec<(u64, usize)> = steps.all().flat_map(of_step).collect();
        Self {
            others: rows.iter().filter(|(step, _)| *step < steps.first_suspect).count(),
            rows,
            losses: Vec::new(),
        }
    }

    /// Mean losses of rows before the suspected ones, and of these.
    pub(super) fn losses(&self) -> (Vec<f64>, Vec<f64>) {
        let means = self.losses.iter().map(|row| row.loss / row.target_tokens.max(1) as f64);
        let mut others: Vec<f64> = means.collect();
        let suspects = others.split_off(self.others.min(others.len()));
        (others, suspects)
    }

    /// The suspected rows to list, the most suspect first, and how many are not listed.
    pub(super) fn listed(
        &self,
        inputs: &RunInputs,
        source: &BatchSource,
        stands_out: &[bool],
        shows_text: bool,
    ) -> (Vec<SpikeRow>, usize) {
        let (_, losses) = self.losses();
        let suspects = &self.rows[self.others..];
        let loss_of = |index: usize| losses.get(index).copied();
        let mut order: Vec<usize> = (0..suspects.len()).collect();
        let rank = |index: &usize| {
            let loss = loss_of(*index).map_or(
                f64::NEG_INFINITY,
                |loss| if loss.is_nan() { f64::INFINITY } else { loss },
            );
            (stands_out.get(*index).copied().unwrap_or_default(), loss)
        };
        order.sort_by(|a, b| {
            let ((is_out, loss), (other_is_out, other_loss)) = (rank(a), rank(b));
            other_is_out.cmp(&is_out).then(other_loss.total_cmp(&loss))
        });
        let left_out = order.len().saturating_sub(LISTED);
        order.truncate(LISTED);
        let documents: Vec<usize> = order.iter().map(|index| suspects[*index].1).collect();
        let found = find(inputs, source, &documents);
        let of_row = |index: usize| {
            let (step, document) = suspects[index];
            let set = source.documents();
            let location = found.as_ref().and_then(|found| found.location(set, document));
            let text = |found: &DocumentRows| {
                let ids = set.document(document).input_ids;
                found.text(&ids[..ids.len().min(TOLD_TOKENS)])
            };
            SpikeRow {
                step,
                location: location.map_or_else(|| format!("training document {document}"), ToString::to_string),
                tokens: set.tokens(document),
                target_tokens: set.target_tokens(document),
                loss: loss_of(index).filter(|loss| loss.is_finite()),
                stands_out: stands_out.get(index).copied().unwrap_or_default(),
                text: found.as_ref().filter(|_| shows_text).map(text),
            }
        };
        (order.into_iter().map(of_row).collect(), left_out)
    }
}

/// Rows of the files; `None` where they cannot be read any more.
fn find(inputs: &RunInputs, source: &BatchSource, documents: &[usize]) -> Option<DocumentRows> {
    let model = match Path::new(&inputs.recipe.model).exists() {
        true => inputs.recipe.model.clone(),
        false => inputs.model_folder.to_string_lossy().into_owned(),
    };
    let warn = |error: &dyn std::fmt::Display| {
        tracing::warn!(%error, "the rows of a step cannot be found in their files");
    };
    let files = ModelFiles::resolve_weights(&model, &mut ())
        .inspect_err(|error| warn(error))
        .ok()?;
    DocumentRows::find(&inputs.recipe, &files, source.documents(), documents)
        .inspect_err(|error| warn(error))
        .ok()
}
