//! What a search looks at before its first trial: the model and the data. A mistake there would fail every trial.

use super::changed_inputs::{TRAINING_WEIGHTS, fingerprint_of, inputs_of};
use super::other_family;
use crate::cli::CliError;
use crate::cli::data::epochs;
use crate::cli::data::mixture;
use crate::cli::data::mixture::text_of;
use crate::cli::data::model_family::{ModelFamily, SEARCH_IN_TRL, architecture_of};
use crate::cli::data::model_files::files_for;
use crate::cli::data::model_warnings::tell_of_model;
use crate::cli::data::prepare::prepared;
use crate::cli::terminal::download_progress::DownloadProgress;
use crate::cli::terminal::output::tell;
use crate::cli::terminal::reading_progress::Reading;
use crate::report::summary_line;
use crate::space::{Backend, Study, TrlBackend};
use crate::store::{DataSetRecord, InputRecord, ModelRecord};
use peft_tune_core::recipe::Recipe;
use peft_tune_engine::data::PreparedData;
use peft_tune_engine::hub::ModelFiles;

/// Model and data of a study, as they were found.
pub(super) struct Preflight {
    pub family: ModelFamily,
    pub model: ModelRecord,
    pub data_set: DataSetRecord,
    /// What the files hold.
    pub inputs: Vec<InputRecord>,
}

/// Finds (or downloads) the model, reads its dimensions, and reads and tokenises the data into the cache that the trials
/// use, as `reading` shows. Warnings go to standard error.
///
/// # Errors
/// Bad input: a model or data file that is missing or cannot be used; a model that the study's engine lacks.
pub(super) fn check(study: &Study, recipe: &Recipe, reading: Reading) -> Result<Preflight, CliError> {
    let files = files_for(&study.backend, &recipe.model, &mut DownloadProgress::default())?;
    let family = family_of(study, &files)?;
    let data = prepared(recipe, &files, reading)?;
    let lengths = study.sequence_lengths(recipe);
    let shortest = lengths.into_iter().min().unwrap_or(recipe.batch.sequence_length);
    if shortest == data.sequence_length() {
        family.check_fits(&data)
    } else {
        data.at_length(shortest).and_then(|data| family.check_fits(&data))
    }
    .map_err(CliError::bad_input)?;
    if let Some(architecture) = family.architecture() {
        tell_of_model(architecture, &study.adapters(recipe));
    }
    for warning in data.warnings() {
        tell(format_args!("warning: {warning}"));
    }
    for warning in mixture::warnings(&recipe.data.train, &recipe.batch, None, &data)? {
        tell(format_args!("warning: {warning}"));
    }
    if let Some(warning) = epochs::warning_of_study(study, recipe, &data)? {
        tell(format_args!("warning: {warning}"));
    }
    if let Some(stand_in) = epochs::stand_in_of_study(study) {
        tell(format_args!("{stand_in}"));
    }
    check_questions(study, &data)?;
    let (train, held_out) = (data.train().statistics(), data.held_out().statistics());
    let sources = text_of(&recipe.data.train);
    let inputs = inputs_of(recipe, &files)?;
    let tokens = mixture::tokens_of_epoch(&data)?;
    Ok(Preflight {
        model: ModelRecord {
            source: recipe.model.clone(),
            architecture: family.name().to_owned(),
            parameters: family.parameters(),
            fingerprint: fingerprint_of(&inputs, &["config", "weights"]),
        },
        data_set: DataSetRecord {
            source: sources,
            rows: Some(train.documents),
            tokens: Some(tokens),
            held_out_rows: Some(held_out.documents),
            learnt: Some(summary_line(&data.summary())),
            // Studies that read other parts of the same files, or cut their rows elsewhere, have other rows.
            fingerprint: format!(
                "{}-{}-{}-{tokens}",
                fingerprint_of(
                    &inputs,
                    &[
                        "tokenizer",
                        "chat template",
                        "training data",
                        TRAINING_WEIGHTS,
                        "held-out data"
                    ],
                ),
                train.documents,
                held_out.documents
            ),
        },
        inputs,
        family,
    })
}

/// The model's family, where the study's engine can train it.
fn family_of(study: &Study, files: &ModelFiles) -> Result<ModelFamily, CliError> {
    let Backend::Trl(TrlBackend { loader, .. }) = study.backend else {
        let architecture = architecture_of(&files.config, SEARCH_IN_TRL)?;
        return Ok(ModelFamily::Known(Box::new(architecture)));
    };
    if !files.tokenizer.are_there() {
        return Err(CliError::bad(format!(
            "trials in {} need the model's tokenizer, and {} has none; put its tokenizer.json there, or search with the native backend",
            loader.title(),
            files.folder.display()
        )));
    }
    let family = ModelFamily::read(&files.config)?;
    if let ModelFamily::Other(other) = &family {
        other.check_for(loader)?;
        other_family::check(study, other, &files.folder)?;
    }
    Ok(family)
}

/// Refuses a study whose trained models have nothing to answer, and says where they have less than the file asks for.
fn check_questions(study: &Study, data: &PreparedData) -> Result<(), CliError> {
    let score = study
        .plan
        .train
        .as_ref()
        .and_then(|train| train.accuracy.score.as_ref());
    let Some(score) = score else {
        return Ok(());
    };
    let questions = data.held_out().questions(score.rows).len();
    if questions == 0 {
        let message = "no held-out row has a prompt and a whole answer to it; give rows of messages, or of prompt and \
                       completion, that fit the sequence length, or remove this key";
        return Err(study.reject(&["score"], message).into());
    }
    if questions < score.rows {
        tell(format_args!(
            "warning: {questions} held-out rows have a prompt and a whole answer, and `score` asks for {}",
            score.rows
        ));
    }
    Ok(())
}
