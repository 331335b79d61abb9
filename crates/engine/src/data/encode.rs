//! Tokens and labels of examples.

use super::encode_chat::encode_chat;
use super::encoded_row::EncodedRow;
use super::example::{Example, Preference, RunningText};
use super::labels::label;
use super::learnt::Learnt;
use super::notes::RowNotes;
use super::preference::joined;
use super::text_blocks::blocks;
use super::token_trace::Trace;
use super::tokens::{NO_TARGET, RowKind, TokenRow};
use super::{DataError, RowLocation, Vocabulary};
use crate::tokenizer::{Specials, Tokenizer, TokenizerError};
use peft_tune_core::recipe::{LossOn, TemplateTargets};

/// Tokenises one example, or checks its tokens.
pub(super) fn encode(
    location: &RowLocation,
    example: &Example,
    vocabulary: &Vocabulary,
    learnt: Learnt,
) -> Result<EncodedRow, DataError> {
    encode_with(location, example, vocabulary, learnt, None)
}

/// [`encode`], and what the tokens were made of.
pub(super) fn encode_traced(
    location: &RowLocation,
    example: &Example,
    vocabulary: &Vocabulary,
    learnt: Learnt,
    trace: &mut Trace,
) -> Result<EncodedRow, DataError> {
    encode_with(location, example, vocabulary, learnt, Some(trace))
}

fn encode_with(
    location: &RowLocation,
    example: &Example,
    vocabulary: &Vocabulary,
    learnt: Learnt,
    trace: Option<&mut Trace>,
) -> Result<EncodedRow, DataError> {
    let tokenizer = || {
        let tokenizer = vocabulary.tokenizer();
        tokenizer.ok_or_else(|| DataError::NoTokenizer {
            location: location.clone(),
        })
    };
    let encoded = match example {
        Example::Text(text) => encode_text(location, text, tokenizer()?, trace)?.into(),
        Example::Completion { prompt, completion } => {
            encode_completion(location, prompt, completion, tokenizer()?, learnt.loss_on, trace)?
        }
        Example::Chat(chat) => encode_chat(location, chat, tokenizer()?, learnt, trace)?,
        Example::Tokenized { ids, labels } => check_tokens(location, ids, labels.as_deref(), vocabulary.size())?.into(),
        Example::Preference(row) => encode_preference(location, row, vocabulary)?,
        Example::Refused(reason) => EncodedRow::refused(reason),
    };
    match &encoded.row {
        Some(row) if u32::try_from(row.ids.len()).is_err() => Err(DataError::RowTooLong {
            location: location.clone(),
            tokens: row.ids.len(),
        }),
        _ => Ok(encoded),
    }
}

/// The sequences of a row of preferences, each as the rows of supervised fine-tuning are tokenised.
fn encode_preference(
    location: &RowLocation,
    preference: &Preference,
    vocabulary: &Vocabulary,
) -> Result<EncodedRow, DataError> {
    let learnt = Learnt {
        loss_on: LossOn::Completions,
        template_targets: TemplateTargets::All,
    };
    let (mut sequences, mut notes) = (Vec::new(), RowNotes::default());
    for sequence in &preference.sequences {
        let encoded = encode(location, sequence, vocabulary, learnt)?;
        sequences.push(encoded.row);
        notes.refused = notes.refused.or(encoded.notes.refused);
        for said in encoded.notes.said {
            if !notes.said.contains(&said) {
                notes.said.push(said);
            }
        }
    }
    let row = joined(sequences);
    Ok(EncodedRow { row, notes })
}

fn encode_text(
    location: &RowLocation,
    text: &RunningText,
    tokenizer: &Tokenizer,
    mut trace: Option<&mut Trace>,
) -> Result<Option<TokenRow>, DataError> {
    if text.text.trim().is_empty() {
        return Ok(None);
    }
    let mut ids = Vec::new();
    for (index, block) in blocks(&text.text).enumerate() {
        let encoded = if index == 0 {
            tokenizer.encode_open(block)
        } else {
            tokenizer.encode(block, Specials::Omit)
        };
        let encoded = encoded.map_err(|source| tokenize_error(location, source))?;
        if let Some(trace) = trace.as_deref_mut() {
            let before = trace.text.len();
            trace.ends.extend(encoded.ends.iter().map(|end| before + end));
            trace.text.push_str(block);
        }
        ids.extend(encoded.ids);
    }
    if text.is_last {
        end_document(&mut ids, tokenizer);
    }
    Ok(Some(TokenRow {
        labels: ids.clone(),
        ids,
        kind: RowKind::Running,
    }))
}

fn encode_completion(
    location: &RowLocation,
    prompt: &str,
    completion: &str,
    tokenizer: &Tokenizer,
    loss_on: LossOn,
    trace: Option<&mut Trace>,
) -> Result<EncodedRow, DataError> {
    if completion.trim().is_empty() {
        return Ok(None.into());
    }
    let text = format!("{prompt}{completion}");
    let encoded = tokenizer
        .encode_open(&text)
        .map_err(|source| tokenize_error(location, source))?;
    let start = match loss_on {
        LossOn::Completions => prompt.len(),
        LossOn::All => 0,
    };
    if let Some(trace) = trace {
        trace.ends.clone_from(&encoded.ends);
        trace.text.clone_from(&text);
        trace.roles = vec![
            (0..prompt.len(), "prompt".to_owned()),
            (prompt.len()..text.len(), "completion".to_owned()),
        ];
    }
    let answer = start..text.len();
    // Who tokenises both texts by themselves has other tokens then.
    let is_beyond_texts = !prompt.is_empty() && !encoded.ends.contains(&prompt.len());
    let mut labels = label(&encoded, std::slice::from_ref(&answer));
    let mut ids = encoded.ids;
    end_document(&mut ids, tokenizer);
    // The end of the document belongs to the completion.
    labels.extend_from_slice(&ids[labels.len()..]);
    let row = TokenRow {
        ids,
        labels,
        kind: RowKind::Whole,
    };
    Ok(EncodedRow {
        row: Some(row),
        notes: RowNotes {
            is_beyond_texts,
            ..RowNotes::default()
        },
    })
}

fn check_tokens(
    location: &RowLocation,
    ids: &[i64],
    labels: Option<&[i64]>,
    vocabulary: u32,
) -> Result<Option<TokenRow>, DataError> {
    let known = |id: i64| {
        let number = u32::try_from(id).ok().filter(|number| *number < vocabulary);
        number.ok_or_else(|| DataError::TokenOutOfRange {
            location: location.clone(),
            id,
            vocabulary,
        })
    };
    let ids = ids.iter().map(|id| known(*id)).collect::<Result<Vec<_>, _>>()?;
    let labels = match labels {
        None => ids.clone(),
        Some(labels) => labels
            .iter()
            .map(|label| {
                if *label == peft_tune_kernels::ops::loss_head::IGNORE {
                    Ok(NO_TARGET)
                } else {
                    known(*label)
                }
            })
            .collect::<Result<_, _>>()?,
    };
    Ok((ids.len() > 1).then_some(TokenRow {
        ids,
        labels,
        kind: RowKind::Whole,
    }))
}

/// Adds the end-of-document token unless it is there.
fn end_document(ids: &mut Vec<u32>, tokenizer: &Tokenizer) {
    if let Some(eos) = tokenizer.eos_id().filter(|eos| ids.last() != Some(eos)) {
        ids.push(eos);
    }
}

fn tokenize_error(location: &RowLocation, source: TokenizerError) -> DataError {
    DataError::Tokenize {
        location: location.clone(),
        source,
    }
}
