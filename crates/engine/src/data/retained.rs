//! Rows that a training has nothing to do with (`data.retain`): what their loss gains by it is what the model forgets.
//!
//! They are read as held-out rows without training rows beside them, in the tokens of the same tokenizer and chat template. Their files
//! have a layout of their own: it is recognised from their columns.

use super::DataWarning;
use super::tokens::Tables;
use peft_tune_core::recipe::{DataSettings, HeldOut, TrainingData};

/// Name of the rows in messages.
pub(super) const RETAINED: &str = "retained";

/// The settings by which the rows of `data.retain` are read; `None` without such rows.
pub(super) fn retained_settings(settings: &DataSettings) -> Option<DataSettings> {
    (!settings.retain.is_empty()).then(|| DataSettings {
        train: TrainingData::Files(Vec::new()),
        held_out: HeldOut::Files(settings.retain.clone()),
        loss_on: settings.loss_on,
        template_targets: settings.template_targets,
        tokenizing_workers: settings.tokenizing_workers,
        ..DataSettings::default()
    })
}

/// Warnings of retained rows that are left out, each with its reason.
pub(super) fn left_out(tables: &Tables) -> Vec<DataWarning> {
    let rows = tables.held_out.extent().counts.read;
    let told = tables
        .notes
        .held_out
        .warnings(RETAINED, rows, &|token: u32| token.to_string());
    told.into_iter().filter(DataWarning::counts_rows).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use peft_tune_core::recipe::{DataFormat, LossOn};

    #[test]
    fn retained_rows_are_read_by_themselves() {
        let settings = DataSettings {
            train: "train.jsonl".into(),
            format: DataFormat::Alpaca,
            loss_on: LossOn::All,
            max_rows: Some(3),
            ..DataSettings::default()
        };
        assert_eq!(retained_settings(&settings), None);
        let retain = vec!["other.txt".into()];
        let own = retained_settings(&DataSettings { retain, ..settings }).unwrap();
        assert_eq!(own.train.files().count(), 0);
        assert_eq!(own.held_out, HeldOut::Files(vec!["other.txt".into()]));
        assert_eq!((own.format, own.loss_on), (DataFormat::Auto, LossOn::All));
        assert_eq!((own.max_rows, own.retain.len()), (None, 0));
    }
}
