//! Rows that a script trains on, as a recipe has them.

use super::Reader;
use peft_tune_core::recipe::{LossOn, TrainingData};

impl Reader<'_> {
    /// Takes the rows of the script; nothing where the file is none.
    pub(crate) fn rows_of_script(&mut self) {
        let Some(script) = self.script else { return };
        let rows = &script.rows;
        for note in &rows.notes {
            self.data_note(note.clone());
        }
        let train = match &rows.weights {
            Some(weights) if rows.sets.len() > 1 => {
                self.mixture("probabilities", rows.sets.clone(), Some(weights.clone()))
            }
            _ => TrainingData::from(rows.sets.concat()),
        };
        self.later.read = rows.share;
        let is_sft = self.recipe.trainer.is_sft();
        let data = &mut self.recipe.data;
        data.train = train;
        data.held_out.clone_from(&rows.held_out);
        data.max_rows = rows.max_rows;
        data.chat_template.clone_from(&script.chat_template);
        data.columns.clone_from(&rows.columns);
        // Rows of preferences have the layout of their trainer, and whole answers are compared.
        if is_sft {
            data.format = rows.format;
            data.loss_on = match script.is_masked {
                true => LossOn::Completions,
                false => LossOn::All,
            };
        }
    }
}
