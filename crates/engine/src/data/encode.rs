//! Tokens and labels of examples.

use std::ops::Range;

use super::answers::answer_spans;
use super::example::{Chat, Example, Preference, RunningText};
use super::notes::{RowNotes, Said, Stop};
use super::preference::joined;
use super::rewritten::{argument_texts, note_rewritten};
use super::text_targets::TextTargets;
use super::tokens::{NO_TARGET, RowKind, TokenRow};
use super::{DataError, RowLocation, Vocabulary};
use crate::tokenizer::{
    ChatTemplate, Conversation, Encoded, GenerationPrompt, Places, Specials, Tokenizer, TokenizerError,
};
use peft_tune_core::recipe::{DataSettings, LossOn, TemplateTargets};

/// Result of an example: its tokens, unless there is nothing in it to learn from, and what is to be told.
#[derive(Debug, Default)]
pub(super) struct EncodedRow {
    pub row: Option<TokenRow>,
    pub notes: RowNotes,
}

impl EncodedRow {
    fn refused(reason: &'static str) -> Self {
        Self {
            row: None,
            notes: RowNotes {
                refused: Some(reason),
                ..Default::default()
            },
        }
    }
}

impl From<Option<TokenRow>> for EncodedRow {
    fn from(row: Option<TokenRow>) -> Self {
        Self {
            row,
            notes: RowNotes::default(),
        }
    }
}

/// Text that tokens were made of, for who looks at them.
#[derive(Debug, Default)]
pub(super) struct Trace {
    pub text: String,
    /// Ends of the tokens in the text, in bytes; 0 for special tokens that were put in front.
    pub ends: Vec<usize>,
    /// Texts of messages with their roles.
    roles: Vec<(Range<usize>, String)>,
}

impl Trace {
    /// The role of the message that a byte of the text is of.
    pub(super) fn role_at(&self, at: usize) -> Option<&str> {
        let mut roles = self.roles.iter();
        roles
            .find(|(range, _)| range.contains(&at))
            .map(|(_, role)| role.as_str())
    }
}

/// Why a row is left out of which texts alone are learnt.
const TEXTS_CHANGED: &str = "chat template changes texts, which cannot be told from what it writes itself; remove \
                             `data.template_targets: stop_tokens`";

/// Choice of what is learnt of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Learnt {
    loss_on: LossOn,
    template_targets: TemplateTargets,
}

impl Learnt {
    /// Whether every token of a chat is.
    fn is_everything(self) -> bool {
        self.loss_on == LossOn::All && self.template_targets == TemplateTargets::All
    }
}

impl From<&DataSettings> for Learnt {
    fn from(settings: &DataSettings) -> Self {
        Self {
            loss_on: settings.loss_on,
            template_targets: settings.template_targets,
        }
    }
}

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

fn encode_chat(
    location: &RowLocation,
    chat: &Chat,
    tokenizer: &Tokenizer,
    learnt: Learnt,
    trace: Option<&mut Trace>,
) -> Result<EncodedRow, DataError> {
    if chat.messages.is_empty() || !chat.targets.contains(&true) && learnt.loss_on == LossOn::Completions {
        return Ok(None.into());
    }
    let tokenize_error = |source| tokenize_error(location, source);
    let Some(template) = tokenizer.chat_template() else {
        return Err(DataError::NoChatTemplate {
            location: location.clone(),
        });
    };
    let mut said = chat.said.clone();
    let chat = &match with_written_calls(chat, template, &mut said) {
        Ok(chat) => chat,
        Err(reason) => return Ok(EncodedRow::refused(reason)),
    };
    if chat.tools.is_some() && !template.writes_tools() {
        said.push(Said::ToolsNotWritten);
    }
    let conversation = template
        .conversation(&chat.messages, chat.tools.as_ref())
        .map_err(tokenize_error)?;
    let full = conversation
        .render(chat.messages.len(), GenerationPrompt::Omit)
        .map_err(|source| {
            let has_texts = chat
                .messages
                .iter()
                .any(|message| argument_texts(message).next().is_some());
            match has_texts {
                true => DataError::ArgumentsAsText {
                    location: location.clone(),
                    source,
                },
                false => tokenize_error(source),
            }
        })?;
    note_rewritten(chat, &full.text, &mut said);
    if template.asks_for_day() {
        said.push(Said::FixedDay);
    }
    let spans = match learnt.is_everything() {
        true => std::iter::once(0..full.text.len()).collect(),
        false => match answer_spans(chat, &conversation, &full) {
            Ok(spans) => spans,
            Err(reason) => return Ok(EncodedRow::refused(reason)),
        },
    };
    // The template writes the special tokens itself.
    let encoded = tokenizer.encode(&full.text, Specials::Omit).map_err(tokenize_error)?;
    if let Some(trace) = trace {
        trace.ends.clone_from(&encoded.ends);
        trace.text.clone_from(&full.text);
        let places = conversation.whole_places(&full.text);
        for (index, message) in chat.messages.iter().enumerate() {
            let role = message["role"].as_str().unwrap_or_default();
            let texts = places.into_iter().flat_map(|places| places.each(index));
            trace.roles.extend(texts.map(|range| (range.clone(), role.to_owned())));
        }
    }
    let labels = match learnt.template_targets {
        TemplateTargets::All => label(&encoded, &spans),
        TemplateTargets::StopTokens => match conversation.whole_places(&full.text) {
            Some(places) => text_labels(chat, learnt.loss_on, places, &encoded, &spans, tokenizer),
            None => return Ok(EncodedRow::refused(TEXTS_CHANGED)),
        },
    };
    let mut row = TokenRow {
        ids: encoded.ids,
        labels,
        kind: RowKind::Whole,
    };
    let is_answered = chat.messages.last().is_some_and(|last| last["role"] == "assistant");
    let stops = match learnt.is_everything() {
        true if !is_answered => Vec::new(),
        _ => learn_stops(&mut row, &encoded.ends, &full.text, &spans, &conversation, tokenizer),
    };
    Ok(EncodedRow {
        row: Some(row),
        notes: RowNotes {
            refused: None,
            stops,
            said,
            is_beyond_texts: !chat.is_plain
                || learnt.template_targets == TemplateTargets::StopTokens && has_margins(chat),
        },
    })
}

/// The labels of a chat of which texts are learnt, and the tokens that end their turns.
fn text_labels(
    chat: &Chat,
    loss_on: LossOn,
    places: &Places,
    encoded: &Encoded,
    answers: &[Range<usize>],
    tokenizer: &Tokenizer,
) -> Vec<u32> {
    let is_learnt = |index: &usize| loss_on == LossOn::All || chat.targets[*index];
    let messages = (0..chat.messages.len()).filter(is_learnt);
    let messages: Vec<Vec<_>> = messages.map(|index| places.each(index).cloned().collect()).collect();
    let stop_ids = tokenizer.stop_ids();
    let targets = TextTargets {
        encoded,
        messages: &messages,
        answers,
        is_special: &|id| tokenizer.is_special(id) || stop_ids.contains(&id),
    };
    targets.labels()
}

/// Whether a text has white space around it, which other tools learn where the template keeps it.
fn has_margins(chat: &Chat) -> bool {
    let mut texts = chat.messages.iter().filter_map(|message| message["content"].as_str());
    texts.any(|text| text.trim() != text)
}

/// The chat with calls as the template writes them: where it writes none, those that came as text become the text of the answer.
fn with_written_calls<'a>(
    chat: &'a Chat,
    template: &ChatTemplate,
    said: &mut Vec<Said>,
) -> Result<std::borrow::Cow<'a, Chat>, &'static str> {
    let is_unwritten = |message: &serde_json::Value| {
        let has_content = message
            .get("content")
            .and_then(|content| content.as_str())
            .is_some_and(|text| !text.is_empty());
        message.get("tool_calls").is_some() && !template.writes_calls(has_content)
    };
    if !chat.messages.iter().any(is_unwritten) {
        return Ok(std::borrow::Cow::Borrowed(chat));
    }
    let mut chat = chat.clone();
    for (message, text) in chat.messages.iter_mut().zip(&chat.call_texts) {
        if is_unwritten(message) {
            let text = text.clone().ok_or("calls are not written by the chat template")?;
            *message = serde_json::json!({"role": "assistant", "content": text});
        }
    }
    said.push(Said::CallsAsText);
    Ok(std::borrow::Cow::Owned(chat))
}

/// Sees to it that each answer ends in a token at which generation stops, as far as it can: where the template writes none, the
/// token that begins the next turn, if it is one, or one put behind the row. What a template marks is left as it is.
fn learn_stops(
    row: &mut TokenRow,
    ends: &[usize],
    text: &str,
    spans: &[Range<usize>],
    conversation: &Conversation<'_>,
    tokenizer: &Tokenizer,
) -> Vec<Stop> {
    let stop_ids = tokenizer.stop_ids();
    let is_written = |id: u32| tokenizer.is_special(id) || stop_ids.contains(&id);
    let mut stops = Vec::with_capacity(spans.len());
    for span in spans {
        let behind = ends.partition_point(|end| *end <= span.end);
        let is_blank = |at: usize| {
            let start = if at == 0 { 0 } else { ends[at - 1] };
            text.get(start..ends[at]).is_some_and(|text| text.trim().is_empty())
        };
        let last = (0..behind).rev().find(|at| is_written(row.ids[*at]) || !is_blank(*at));
        stops.push(match last {
            Some(last) if is_written(row.ids[last]) && ends[last] > span.start => Stop::Written,
            _ if conversation.is_marked() => Stop::Nothing,
            _ if behind < ends.len() && stop_ids.contains(&row.ids[behind]) => {
                row.labels[behind] = row.ids[behind];
                Stop::NextTurn(row.ids[behind])
            }
            _ if behind == ends.len() => match next_turn(text, conversation, tokenizer, &stop_ids) {
                Some(stop) => {
                    row.ids.push(stop);
                    row.labels.push(stop);
                    Stop::Appended(stop)
                }
                None => Stop::Nothing,
            },
            _ => Stop::Nothing,
        });
    }
    stops
}

/// Ending that the last answer would have: the token that begins the next turn where generation stops at it, else the
/// end of a document.
fn next_turn(text: &str, conversation: &Conversation<'_>, tokenizer: &Tokenizer, stop_ids: &[u32]) -> Option<u32> {
    let continued = conversation.render_continued().ok();
    let behind = continued.and_then(|continued| Some(continued.text.strip_prefix(text)?.to_owned()));
    let first = behind.and_then(|behind| tokenizer.encode(&behind, Specials::Omit).ok()?.ids.first().copied());
    first.filter(|id| stop_ids.contains(id)).or_else(|| tokenizer.eos_id())
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
