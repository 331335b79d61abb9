//! What a file says in shares of its rows or in times an epoch, which are numbers once the rows are counted.

use super::{AskedLater, Imported, WarmupCount};
use peft_tune_core::recipe::{EpochSteps, HeldOut, TrainingLength};

impl Imported {
    /// Takes what the file asks for in shares, now that its data have so many rows; `None` where they cannot be counted, which is told.
    /// Returns the rows that are trained on.
    pub fn with_rows(&mut self, rows: Option<u64>) -> Option<u64> {
        let asked = std::mem::take(&mut self.later);
        self.read_share(asked.read, rows);
        let read = rows.map(|rows| rows.min(self.recipe.data.max_rows.unwrap_or(usize::MAX) as u64));
        self.hold_out(asked.held_out, read);
        let trained = read.map(|rows| rows - self.recipe.data.held_out.count_of(rows));
        self.evaluate(&asked, trained);
        self.count_warmup(asked.warmup, trained);
        trained
    }

    fn read_share(&mut self, share: Option<f64>, rows: Option<u64>) {
        let Some(share) = share else { return };
        let percent = percent(share);
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
        let epochs = self.epochs(trained);
        let steps = self.steps(trained);
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
                self.notes.push(
                    "evaluations are counted by epochs there, and how many steps one has is not known here: write \
                     `training.evaluate_every`"
                        .to_owned(),
                );
            }
        }
    }

    /// Takes the steps to warm up that the tool makes of a share. One that is as many steps here stays a share.
    fn count_warmup(&mut self, count: Option<WarmupCount>, trained: Option<u64>) {
        let Some(count) = count else { return };
        let Some(steps) = self.steps(trained) else {
            let note = self.share_note(count);
            self.notes.push(note);
            return;
        };
        let share = self.recipe.schedule.warmup;
        let (counted, here) = (count.steps(share, steps), self.recipe.schedule.warmup_steps(steps));
        if counted == here {
            return;
        }
        self.recipe.schedule.warmup = counted as f64;
        // A share that the file does not say is the tool's own, and so are the steps of it.
        if count.most.is_none() {
            self.notes.push(format!(
                "{} makes {counted} steps to warm up of {}% of {steps}, and trainings here {here}: {counted} are taken (`warmup`)",
                self.tool.title(),
                percent(share),
            ));
        }
    }

    /// Line on a warm-up of which the tool counts the steps in another way, as long as they are not counted; `None` of others.
    pub fn warmup_note(&self) -> Option<String> {
        self.later.warmup.map(|count| self.share_note(count))
    }

    fn share_note(&self, count: WarmupCount) -> String {
        let (title, percent) = (self.tool.title(), percent(self.recipe.schedule.warmup));
        let how = match count.most {
            Some(most) => {
                format!("no warm-up is written: {title} takes {percent}% of the steps, {most} of them at the most")
            }
            None => {
                format!("{title} warms up for the whole steps of {percent}% of all, which may be one less than here")
            }
        };
        format!("{how}; how many steps there are is not known here, and the share is taken (`warmup`)")
    }

    /// Steps of the epochs of so many rows. How many packed ones those are is not known.
    fn epochs(&self, trained: Option<u64>) -> Option<EpochSteps> {
        let rows = trained.filter(|_| !self.recipe.batch.packing)?;
        Some(EpochSteps::new(rows, &self.recipe.batch))
    }

    /// Steps of the training, as far as its rows tell.
    fn steps(&self, trained: Option<u64>) -> Option<u64> {
        match self.recipe.training.length {
            TrainingLength::Steps(steps) => Some(steps),
            TrainingLength::Epochs(count) => Some(self.epochs(trained)?.of_epochs(count)),
            TrainingLength::Tokens(_) => None,
        }
    }
}

/// A share in percent, of two digits behind the point at the most.
fn percent(share: f64) -> f64 {
    (share * 1e4).round() / 100.0
}

fn untold(what: &str, key: &str) -> String {
    format!("{what}, and the number of rows is not known here: write `{key}`")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::parse_recipe;

    #[test]
    fn a_share_of_a_warm_up_is_told_until_its_steps_are_counted() {
        for (key, steps, before, behind) in [
            ("warmup_ratio: 0.1", 25, "the whole steps of 10%", "2 steps"),
            ("warmup_ratio: 0.1", 20, "the whole steps of 10%", ""),
            ("warmup_steps: 5", 30, "", ""),
            // The tool's own share is taken as the tool has it.
            ("logging_steps: 1", 25, "3% of the steps, 100 of them at the most", ""),
        ] {
            let text = format!("base_model: m\nadapter: lora\n{key}\nmax_steps: {steps}\n");
            let mut imported = parse_recipe(Path::new("a.yaml"), &text, None).unwrap();
            let note = imported.warmup_note().unwrap_or_default();
            assert!(
                note.contains(before) && note.is_empty() == before.is_empty(),
                "{text}: {note}"
            );
            imported.with_rows(Some(100));
            assert_eq!(imported.warmup_note(), None, "{text}");
            let told = imported.notes.concat();
            assert!(
                told.contains(behind) && told.contains("to warm up") != behind.is_empty(),
                "{text}: {told}"
            );
        }
    }
}
