//! From examples to tokens and labels.

use std::ops::Range;

use super::answers::answer_spans;
use super::example::{Chat, Example, RunningText};
use super::tokens::{NO_TARGET, RowKind, TokenRow};
use super::{DataError, RowLocation, Vocabulary};
use crate::tokenizer::{Encoded, GenerationPrompt, Specials, Tokenizer, TokenizerError};
use peft_tune_core::recipe::LossOn;

/// Tokenises one example, or checks its tokens; `None` where there is nothing in it to learn from.
pub(super) fn encode(
    location: &RowLocation,
    example: &Example,
    vocabulary: &Vocabulary,
    loss_on: LossOn,
) -> Result<Option<TokenRow>, DataError> {
    let tokenizer = || {
        let tokenizer = vocabulary.tokenizer();
        tokenizer.ok_or_else(|| DataError::NoTokenizer {
            location: location.clone(),
        })
    };
    let row = match example {
        Example::Text(text) => encode_text(location, text, tokenizer()?)?,
        Example::Completion { prompt, completion } => {
            encode_completion(location, prompt, completion, tokenizer()?, loss_on)?
        }
        Example::Chat(chat) => encode_chat(location, chat, tokenizer()?, loss_on)?,
        Example::Tokenized { ids, labels } => check_tokens(location, ids, labels.as_deref(), vocabulary.size())?,
    };
    match row {
        Some(row) if u32::try_from(row.ids.len()).is_err() => Err(DataError::RowTooLong {
            location: location.clone(),
            tokens: row.ids.len(),
        }),
        row => Ok(row),
    }
}

fn encode_text(
    location: &RowLocation,
    text: &RunningText,
    tokenizer: &Tokenizer,
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
        ids.extend(encoded.map_err(|source| tokenize_error(location, source))?.ids);
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
) -> Result<Option<TokenRow>, DataError> {
    if completion.trim().is_empty() {
        return Ok(None);
    }
    let text = format!("{prompt}{completion}");
    let encoded = tokenizer
        .encode_open(&text)
        .map_err(|source| tokenize_error(location, source))?;
    let start = match loss_on {
        LossOn::Completions => prompt.len(),
        LossOn::All => 0,
    };
    let answer = start..text.len();
    let mut labels = label(&encoded, std::slice::from_ref(&answer));
    let mut ids = encoded.ids;
    end_document(&mut ids, tokenizer);
    // The end of the document belongs to the completion.
    labels.extend_from_slice(&ids[labels.len()..]);
    Ok(Some(TokenRow {
        ids,
        labels,
        kind: RowKind::Whole,
    }))
}

fn encode_chat(
    location: &RowLocation,
    chat: &Chat,
    tokenizer: &Tokenizer,
    loss_on: LossOn,
) -> Result<Option<TokenRow>, DataError> {
    if chat.messages.is_empty() || !chat.targets.contains(&true) && loss_on == LossOn::Completions {
        return Ok(None);
    }
    let tokenize_error = |source| tokenize_error(location, source);
    let Some(template) = tokenizer.chat_template() else {
        return Err(DataError::NoChatTemplate {
            location: location.clone(),
        });
    };
    let conversation = template
        .conversation(&chat.messages, chat.tools.as_ref())
        .map_err(tokenize_error)?;
    let full = conversation
        .render(chat.messages.len(), GenerationPrompt::Omit)
        .map_err(tokenize_error)?;
    let spans = match loss_on {
        LossOn::Completions => answer_spans(location, chat, &conversation, &full)?,
        LossOn::All => std::iter::once(0..full.text.len()).collect(),
    };
    // The template writes the special tokens itself.
    let encoded = tokenizer.encode(&full.text, Specials::Omit).map_err(tokenize_error)?;
    Ok(Some(TokenRow {
        labels: label(&encoded, &spans),
        ids: encoded.ids,
        kind: RowKind::Whole,
    }))
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

/// The labels of a tokenised text: a token is a target where it ends inside one of the byte ranges, so that one
/// which begins in the prompt and ends in the answer is learnt. Special tokens that were put in front end at 0.
fn label(encoded: &Encoded, spans: &[Range<usize>]) -> Vec<u32> {
    let mut spans = spans.iter().peekable();
    let tokens = encoded.ids.iter().zip(&encoded.ends);
    tokens
        .map(|(id, end)| {
            while spans.next_if(|span| span.end < *end).is_some() {}
            match spans.peek() {
                Some(span) if *end > span.start => *id,
                _ => NO_TARGET,
            }
        })
        .collect()
}

/// Text is tokenised in blocks of about this size: the tokenizer needs many times a text's size in memory.
const BLOCK_BYTES: usize = 64 * 1024;

/// Cuts a long text at ends of paragraphs, lines or words, so that hardly any tokenizer sees a difference.
fn blocks(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let (block, tail) = rest.split_at(block_end(rest));
        rest = tail;
        Some(block)
    })
}

fn block_end(text: &str) -> usize {
    if text.len() <= BLOCK_BYTES {
        return text.len();
    }
    let window = &text[..text.floor_char_boundary(BLOCK_BYTES)];
    let after = |pattern: &str| window.rfind(pattern).map(|at| at + pattern.len());
    // A word takes the space before it along, as byte-level tokenizers do.
    let before_word = || window.rfind(' ').filter(|at| *at > 0);
    after("\n\n")
        .or_else(|| after("\n"))
        .or_else(before_word)
        .unwrap_or(window.len())
}

fn tokenize_error(location: &RowLocation, source: TokenizerError) -> DataError {
    DataError::Tokenize {
        location: location.clone(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_belongs_to_the_span_that_it_ends_in() {
        let encoded = Encoded {
            ids: vec![9, 1, 2, 3, 4, 5],
            ends: vec![0, 2, 5, 6, 8, 9],
        };
        let labels = label(&encoded, &[3..6, 8..9]);
        assert_eq!(labels, [NO_TARGET, NO_TARGET, 2, 3, NO_TARGET, 5]);
    }

    #[test]
    fn blocks_make_up_the_text() {
        let text = ("word ".repeat(5000) + "\n").repeat(7) + &"é".repeat(100_000);
        assert_eq!(blocks(&text).collect::<String>(), text);
        assert!(blocks(&text).all(|block| !block.is_empty() && block.len() <= BLOCK_BYTES));
    }
}
