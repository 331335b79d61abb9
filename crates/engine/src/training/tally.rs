//! Tally of an evaluation so far.
//!
//! Sums are kept for each micro-batch and added up at the end in the order of the micro-batches, so that the loss over all rows has the
//! same bits in whichever order they are gone through.
//!
//! An evaluation that may end early goes through them in an order of its own: rows that lie side by side in a file often are of one
//! kind, and the first ones would stand for that kind only. Multiples of the golden ratio, modulo one, are as evenly spread as a
//! sequence can be, however many of them there are (Knuth, The Art of Computer Programming 3, section 6.4).

use std::ops::Range;

use candle_core::Result;

use super::row_watch::{RowLoss, RowWatch};
use super::shares::Share;
use super::spread::Spread;
use super::step::Control;
use crate::data::MicroBatch;
use peft_tune_kernels::ops::loss_head::Sums;

/// The golden ratio's fraction in units of 2^-64.
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// An evaluation under way.
pub(super) struct Tally {
    /// Loss and right tokens of each micro-batch that was computed here.
    found: Vec<Option<(f64, u64)>>,
    /// Target tokens of each micro-batch.
    targets: Vec<usize>,
    /// Micro-batches that were gone through, here or on other ranks, in this order.
    done: Vec<usize>,
    rows: Rows,
}

/// The rows of an evaluation.
struct Rows {
    /// Rows of each micro-batch.
    of_batches: Vec<Range<usize>>,
    target_tokens: Vec<usize>,
    /// Losses of rows that were computed here, and of others' once they are told; `None` where nobody asks for them.
    losses: Option<Vec<f64>>,
    /// Micro-batches that were gone through whose rows all ranks know.
    known: usize,
}

/// The order in which so many micro-batches, or groups of them, are gone through: as they come, or spread over all of them.
pub(super) fn order(count: usize, is_spread: bool) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    if is_spread {
        order.sort_by_key(|index| (*index as u64).wrapping_mul(GOLDEN));
    }
    order
}

impl Tally {
    /// Begins a tally of these micro-batches; `tells_rows` says that the rows' own losses are asked for.
    pub(super) fn new(micro_batches: &[MicroBatch], tells_rows: bool) -> Self {
        let (mut of_batches, mut target_tokens) = (Vec::with_capacity(micro_batches.len()), Vec::new());
        let mut targets = Vec::with_capacity(micro_batches.len());
        for batch in micro_batches {
            let first = target_tokens.len();
            target_tokens.extend(batch.target_tokens_of_rows());
            targets.push(target_tokens[first..].iter().sum());
            of_batches.push(first..target_tokens.len());
        }
        Self {
            found: vec![None; micro_batches.len()],
            targets,
            done: Vec::with_capacity(micro_batches.len()),
            rows: Rows {
                losses: tells_rows.then(|| vec![0.0; target_tokens.len()]),
                of_batches,
                target_tokens,
                known: 0,
            },
        }
    }

    /// Takes in what the loss head found of a micro-batch; waits for the device.
    ///
    /// # Errors
    /// Those of the device.
    pub(super) fn take(&mut self, index: usize, sums: &Sums) -> Result<()> {
        self.found[index] = Some(sums.read()?);
        let Rows {
            of_batches,
            target_tokens,
            losses: Some(losses),
            ..
        } = &mut self.rows
        else {
            return Ok(());
        };
        let each = sums.of_targets()?;
        let (mut each, rows) = (each.iter(), of_batches[index].clone());
        for (loss, targets) in losses[rows.clone()].iter_mut().zip(&target_tokens[rows]) {
            *loss = each.by_ref().take(*targets).sum();
        }
        Ok(())
    }

    /// Notes that these micro-batches are evaluated, on whichever ranks.
    pub(super) fn pass(&mut self, batches: Range<usize>) {
        self.done.extend(batches);
    }

    /// Whether the evaluation is to be looked at by now.
    pub(super) fn is_looked_at(&self, watch: &dyn RowWatch) -> bool {
        let rows: usize = self.done.iter().map(|index| self.rows.of_batches[*index].len()).sum();
        let is_over = self.done.len() == self.found.len();
        !is_over && watch.next_look().is_some_and(|look| rows >= look)
    }

    /// Whether the evaluation goes on behind what `watch` sees of it.
    pub(super) fn shown_to(&self, watch: &mut dyn RowWatch) -> Control {
        watch.look(&self.row_losses())
    }

    /// Losses of the rows that were gone through, in the order of the rows; none where nobody asked for them.
    pub(super) fn row_losses(&self) -> Vec<RowLoss> {
        let Some(losses) = &self.rows.losses else {
            return Vec::new();
        };
        let mut done = self.done.clone();
        done.sort_unstable();
        let rows = done.into_iter().flat_map(|index| self.rows.of_batches[index].clone());
        rows.map(|row| RowLoss {
            row,
            target_tokens: self.rows.target_tokens[row],
            loss: losses[row],
        })
        .collect()
    }

    /// Losses of the rows that not all ranks know, zero where another rank computes them.
    pub(super) fn own_losses(&self) -> Vec<f64> {
        let losses = self.rows.losses.iter();
        losses
            .flat_map(|losses| self.new_rows().map(move |row| losses[row]))
            .collect()
    }

    /// Takes in the same of all ranks.
    pub(super) fn take_losses(&mut self, of_all: &[f64]) {
        let rows: Vec<usize> = self.new_rows().collect();
        if let Some(losses) = &mut self.rows.losses {
            rows.into_iter().zip(of_all).for_each(|(row, loss)| losses[row] = *loss);
        }
        self.rows.known = self.done.len();
    }

    fn new_rows(&self) -> impl Iterator<Item = usize> {
        let batches = self.done.iter().skip(self.rows.known);
        batches.flat_map(|index| self.rows.of_batches[*index].clone())
    }

    /// Target tokens of what was gone through.
    pub(super) fn target_tokens(&self) -> u64 {
        self.done.iter().map(|index| self.targets[*index] as u64).sum()
    }

    /// Right tokens and losses of what was computed here, share by share.
    pub(super) fn sums(&self, shares: &[Share]) -> (f64, Spread) {
        let (mut correct, mut spread) = (0, Spread::default());
        for share in shares {
            let mut of_share = Spread::default();
            for (index, found) in self.found.iter().enumerate() {
                if let Some((loss, hits)) = found.filter(|_| share.has(index)) {
                    of_share.add(loss, self.targets[index]);
                    correct += hits;
                }
            }
            spread.add_up(&of_share);
        }
        (correct as f64, spread)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::data::Document;
    use crate::parallel::Alone;

    fn rows(lengths: &[usize]) -> MicroBatch {
        let documents = lengths.iter().map(|length| Document {
            input_ids: vec![1; *length],
            labels: vec![1; *length],
        });
        MicroBatch::from_documents(&documents.collect::<Vec<_>>())
    }

    fn sums(each: &[f64]) -> Sums {
        Sums::Known {
            loss: each.iter().sum(),
            correct: 1,
            each: each.to_vec(),
        }
    }

    #[test]
    fn rows_have_their_numbers_in_whichever_order_they_come_and_sum_to_the_whole() {
        // Two, one and three target tokens; a row of one token has none.
        let batches = [rows(&[3, 2]), rows(&[1, 4])];
        let mut tally = Tally::new(&batches, true);
        tally.take(1, &sums(&[0.5, 0.25, 0.125])).unwrap();
        tally.pass(1..2);
        let row = |row, target_tokens, loss| RowLoss {
            row,
            target_tokens,
            loss,
        };
        assert_eq!(tally.row_losses(), [row(2, 0, 0.0), row(3, 3, 0.875)]);
        assert_eq!(tally.target_tokens(), 3);
        tally.take(0, &sums(&[1.0, 2.0, 4.0])).unwrap();
        tally.pass(0..1);
        assert_eq!(tally.row_losses()[..2], [row(0, 2, 3.0), row(1, 1, 4.0)]);
        let (correct, spread) = tally.sums(&Share::here(&Alone, 1));
        let of_rows: f64 = tally.row_losses().iter().map(|row| row.loss).sum();
        assert_eq!((correct, spread.loss(), of_rows), (2.0, 7.875, 7.875));
    }

    #[test]
    fn an_order_that_is_spread_has_all_parts_of_the_rows_among_its_first() {
        assert_eq!(order(3, false), [0, 1, 2]);
        for count in [16, 100, 257] {
            let all = order(count, true);
            let mut sorted = all.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, order(count, false));
            let mut first = all[..8].to_vec();
            first.sort_unstable();
            // No eight neighbours: each quarter has one.
            (0..4).for_each(|quarter| {
                let part = quarter * count / 4..(quarter + 1) * count / 4;
                assert!(first.iter().any(|index| part.contains(index)), "{count}: {first:?}");
            });
        }
    }

    /// Orders of evaluations that may end early: the worker in Python is compared with this table by its own tests.
    /// `UPDATE_GOLDEN=1 cargo test -p peft-tune-engine tally` writes it.
    #[test]
    fn orders_are_a_table_that_python_is_compared_with() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/backends/order.json");
        let orders = [1, 16, 100, 257].map(|count| order(count, true));
        let table = serde_json::to_string(&orders).unwrap() + "\n";
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::write(&path, &table).unwrap();
        }
        assert_eq!(std::fs::read_to_string(&path).unwrap(), table);
    }

    #[test]
    fn ranks_tell_each_other_what_is_new() {
        let batches = [rows(&[2]), rows(&[3]), rows(&[2])];
        let mut tally = Tally::new(&batches, true);
        tally.take(0, &sums(&[1.0])).unwrap();
        tally.pass(0..2);
        assert_eq!(tally.own_losses(), [1.0, 0.0]);
        tally.take_losses(&[1.0, 5.0]);
        tally.take(2, &sums(&[2.0])).unwrap();
        tally.pass(2..3);
        assert_eq!(tally.own_losses(), [2.0]);
        let losses: Vec<f64> = tally.row_losses().iter().map(|row| row.loss).collect();
        assert_eq!(losses, [1.0, 5.0, 2.0]);
    }
}
