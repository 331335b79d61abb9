//! What fits into the memory of a device, and what is left out of a plan as it does not.

use super::memory_needs::{Needs, Values};
use super::plan::{NothingFits, Plan};
use crate::report::bytes;
use peft_tune_core::recipe::{Checkpointing, Precision};

impl Plan {
    /// Keeps the values that fit into so many bytes, and notes the others.
    pub(super) fn fit(&mut self, needs: &Needs, memory: u64) -> Result<(), NothingFits> {
        let smallest = self.smallest_rank(needs);
        let values = |precision, rows, checkpointing| Values {
            precision,
            rank: smallest,
            rows,
            checkpointing,
        };
        let fits = |values: Values| needs.bytes(values).is_ok_and(|bytes| bytes <= memory);
        let frugal_of = |precision: &Precision| values(*precision, 1, Checkpointing::Full);
        let candidates = [Precision::Bf16, Precision::Nf4];
        self.precisions = candidates.to_vec();
        self.precisions.retain(|precision| fits(frugal_of(precision)));
        for precision in candidates {
            if !self.precisions.contains(&precision) {
                let what = format!("precision {}", precision.name());
                self.leave_out(&what, needs, frugal_of(&precision));
            }
        }
        let Some(frugal) = self.precisions.last().copied() else {
            return Err(NothingFits {
                needed: about(needs, frugal_of(&Precision::Nf4)),
                length: self.sequence_length,
                memory: bytes(memory as f64),
            });
        };
        self.smallest_bytes = needs.bytes(frugal_of(&frugal)).ok();
        // With much room to spare, four bits only cost time and loss.
        let roomy = needs.bytes(values(Precision::Bf16, 4, Checkpointing::None));
        if self.precisions.len() == 2 && roomy.is_ok_and(|bytes| bytes <= memory / 2) {
            self.precisions = vec![Precision::Bf16];
        }
        let frugal = *self.precisions.last().unwrap_or(&frugal);
        for rows in std::mem::take(&mut self.micro_batches) {
            let wanted = values(frugal, rows, Checkpointing::Full);
            match fits(wanted) {
                true => self.micro_batches.push(rows),
                false => self.leave_out(&format!("micro_batch {rows}"), needs, wanted),
            }
        }
        for rank in std::mem::take(&mut self.ranks) {
            let wanted = Values {
                rank,
                ..values(frugal, 1, Checkpointing::Full)
            };
            match fits(wanted) {
                true => self.ranks.push(rank),
                false => self.leave_out(&format!("rank {rank}"), needs, wanted),
            }
        }
        let kept = values(frugal, 1, Checkpointing::None);
        self.can_keep_activations = fits(kept);
        if !self.can_keep_activations {
            self.leave_out("gradient_checkpointing none", needs, kept);
        }
        Ok(())
    }

    /// The smallest rank that the model can have.
    fn smallest_rank(&self, needs: &Needs) -> usize {
        let possible = |rank: &usize| {
            let values = Values {
                precision: Precision::Bf16,
                rank: *rank,
                rows: 1,
                checkpointing: Checkpointing::Full,
            };
            needs.bytes(values).is_ok()
        };
        self.ranks.iter().copied().find(possible).unwrap_or(1)
    }

    fn leave_out(&mut self, what: &str, needs: &Needs, values: Values) {
        let why = match needs.bytes(values) {
            Ok(_) if values.rows == 1 => format!("needs {} for one row", about(needs, values)),
            Ok(_) => format!("needs {}", about(needs, values)),
            Err(error) => error.to_string(),
        };
        // What an error proposes is what is done here.
        let why = why.split(';').next().unwrap_or_default();
        self.left_out.push(format!("{what}, {why}"));
    }
}

/// How much it would take, or why it cannot be.
fn about(needs: &Needs, values: Values) -> String {
    match needs.bytes(values) {
        Ok(needed) => format!("about {}", bytes(needed as f64)),
        Err(error) => error.to_string(),
    }
}
