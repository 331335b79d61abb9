//! What a file says in shares of its rows or in times an epoch, which are numbers once the rows are counted.

use super::{AskedLater, Imported};
use peft_tune_core::recipe::{EpochSteps, HeldOut, TrainingLength};

impl Imported {
    /// Takes what the file asks for in shares, now that its data have so many rows; `None` where they cannot be counted, which is told.
    /// Returns the rows that are trained on.
    pub fn with_rows(&mut self, rows: Option<u64>) -> Option<u64> {
        let asked = std::mem::take(&mut self.later);
        self.read_share(asked.read, rows);
        let read = rows.map(|rows| rows.min(self.recipe.data.max_rows.unwrap_or(usize::MAX) as u64));
        self.hold_out(asked.held_out, read);
        let trained = read.map(|rows| rows - held_out_of(&self.recipe.data.held_out, rows));
        self.evaluate(&asked, trained);
        trained
    }

    fn read_share(&mut self, share: Option<f64>, rows: Option<u64>) {
        let Some(share) = share else { return };
        let percent = (share * 1e4).round() / 100.0;
        match rows {
            Some(rows) => {
                let read = ((rows as f64 * share).round() as usize).max(1);
                self.recipe.data.max_rows = Some(read);
                self.data_notes.push(format!(
                    "{percent}% of the rows are read there: the first {read} of {rows} are read (`data.max_rows`)"
                ));
            }
            None => {
                self.data_notes.push(untold(
                    &format!("the first {percent}% of the rows are read there"),
                    "data.max_rows",
                ));
            }
        }
    }

    fn hold_out(&mut self, held_out: Option<u64>, read: Option<u64>) {
        let Some(held_out) = held_out else { return };
        match read {
            Some(read) if held_out < read => {
                self.recipe.data.held_out = HeldOut::Fraction(held_out as f64 / read as f64);
            }
            Some(read) => self.data_notes.push(format!(
                "{held_out} rows are held out there, and the data have {read}: write `data.held_out`"
            )),
            None => self
                .data_notes
                .push(untold(&format!("{held_out} rows are held out there"), "data.held_out")),
        }
    }

    /// Takes the steps between two evaluations.
    fn evaluate(&mut self, asked: &AskedLater, trained: Option<u64>) {
        let epochs = trained.map(|rows| EpochSteps::new(rows, &self.recipe.batch));
        let steps = match self.recipe.training.length {
            TrainingLength::Steps(steps) => Some(steps),
            TrainingLength::Epochs(count) => epochs.map(|epochs| epochs.of_epochs(count)),
            TrainingLength::Tokens(_) => None,
        };
        let of_epoch = |times: f64| epochs.map(|epochs| epochs.per_epoch() as f64 / times);
        let of_all = |share: f64| steps.map(|steps| steps as f64 * share);
        let between = match (asked.evaluations_per_epoch, asked.evaluation_share) {
            (Some(times), _) => of_epoch(times),
            (None, Some(share)) => of_all(share),
            (None, None) => return,
        };
        match between {
            Some(between) => self.recipe.training.evaluate_every = Some((between.ceil() as u64).max(1)),
            None => {
                let told = untold("evaluations are counted in an epoch there", "training.evaluate_every");
                self.notes.push(told);
            }
        }
    }
}

fn untold(what: &str, key: &str) -> String {
    format!("{what}, and the number of rows is not known here: write `{key}`")
}

/// Rows of so many that are held out as a share of them, as the engine rounds it.
fn held_out_of(held_out: &HeldOut, rows: u64) -> u64 {
    match held_out {
        HeldOut::Fraction(fraction) if rows >= 2 => ((rows as f64 * fraction).round() as u64).clamp(1, rows - 1),
        HeldOut::Fraction(_) | HeldOut::File(_) | HeldOut::Files(_) => 0,
    }
}
