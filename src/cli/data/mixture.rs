//! The sets of a mixture in words: their shares, and how often a training goes through each.

use crate::cli::CliError;
use crate::report::percent;
use peft_tune_core::recipe::{BatchSettings, TrainingData, TrainingLength, TrainingSet};
use peft_tune_engine::data::{BatchSource, PreparedData, RowOrder};

/// Passes of an epoch over a set from which on the repetition of the set is told.
const OFTEN: f64 = 2.0;
/// Passes of an epoch over a set up to which is told that much of the set is left out.
const SELDOM: f64 = 0.5;

/// `a.jsonl (70%), b.jsonl (30%)`; files alone where nothing is mixed.
pub(in crate::cli) fn text_of(train: &TrainingData) -> String {
    let sets = train.sets();
    let parts: Vec<String> = match sets.is_empty() {
        true => train.files().map(|path| path.display().to_string()).collect(),
        false => {
            let sum: f64 = sets.iter().map(|set| set.weight).sum();
            let text = |set: &TrainingSet| format!("{} ({})", set.name(), percent(set.weight / sum));
            sets.iter().map(text).collect()
        }
    };
    parts.join(", ")
}

/// Sets that a mixture repeats much, or hardly uses; in a training of `length`, where there is one, else in an epoch.
///
/// # Errors
/// Bad input: settings that no rows can be made of.
pub(in crate::cli) fn warnings(
    train: &TrainingData,
    batch: &BatchSettings,
    length: Option<TrainingLength>,
    data: &PreparedData,
) -> Result<Vec<String>, CliError> {
    if train.sets().is_empty() {
        return Ok(Vec::new());
    }
    let source = BatchSource::new(data.train().clone(), batch, RowOrder::File).map_err(CliError::bad_input)?;
    let epochs = length.map(|length| source.epochs_of(source.steps(length)));
    let sets = train.sets().iter().zip(source.passes());
    Ok(sets
        .filter_map(|(set, passes)| warning(&set.name(), passes, epochs))
        .collect())
}

/// Tokens of the rows that an epoch takes: of a mixture those of a mean one.
///
/// # Errors
/// Bad input: there are no rows.
pub(in crate::cli) fn tokens_of_epoch(data: &PreparedData) -> Result<u64, CliError> {
    let batch = BatchSettings::default();
    let source = BatchSource::new(data.train().clone(), &batch, RowOrder::File).map_err(CliError::bad_input)?;
    Ok(source.tokens_per_epoch())
}

fn warning(name: &str, passes: f64, epochs: Option<f64>) -> Option<String> {
    let what = if epochs.is_some() { "the training" } else { "an epoch" };
    let times = passes * epochs.unwrap_or(1.0);
    if passes >= OFTEN && times >= OFTEN {
        return Some(format!(
            "{what} goes {times:.1} times through {name}, which has few rows for its weight: lower the weight, or add rows"
        ));
    }
    (passes <= SELDOM && times < 0.95).then(|| {
        format!(
            "{what} sees {} of the rows of {name}, which has many for its weight: raise the weight to use more of them",
            percent((100.0 * times).round().max(1.0) / 100.0)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_that_are_repeated_or_hardly_used_are_told() {
        assert_eq!(warning("a", 1.4, Some(3.0)), None);
        assert_eq!(warning("a", 0.6, None), None);
        assert!(
            warning("a", 3.24, None)
                .unwrap()
                .starts_with("an epoch goes 3.2 times through a,")
        );
        assert!(
            warning("a", 3.2, Some(2.0))
                .unwrap()
                .starts_with("the training goes 6.4 times through a,")
        );
        assert!(
            warning("a", 0.31, None)
                .unwrap()
                .starts_with("an epoch sees 31% of the rows of a,")
        );
        // Used up in four epochs.
        assert_eq!(warning("a", 0.31, Some(4.0)), None);
        assert_eq!(warning("a", 3.2, Some(0.2)), None);
    }
}
