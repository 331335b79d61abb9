//! Tokens and labels of chats.

use std::ops::Range;

use super::answers::answer_spans;
use super::encoded_row::EncodedRow;
use super::example::Chat;
use super::labels::label;
use super::learnt::Learnt;
use super::notes::RowNotes;
use super::rewritten::{argument_texts, note_rewritten};
use super::said::Said;
use super::text_targets::TextTargets;
use super::token_trace::Trace;
use super::tokens::{RowKind, TokenRow};
use super::turn_ends::learn_stops;
use super::{DataError, RowLocation};
use crate::tokenizer::{ChatTemplate, Conversation, Encoded, GenerationPrompt, Places, Specials, Tokenizer};
use peft_tune_core::recipe::{LossOn, TemplateTargets};

/// Why a row is left out of which texts alone are learnt.
const TEXTS_CHANGED: &str = "chat template changes texts, which cannot be told from what it writes itself; remove \
                             `data.template_targets: stop_tokens`";

/// Tokenises a chat as the template writes it.
pub(super) fn encode_chat(
    location: &RowLocation,
    chat: &Chat,
    tokenizer: &Tokenizer,
    learnt: Learnt,
    trace: Option<&mut Trace>,
) -> Result<EncodedRow, DataError> {
    if chat.messages.is_empty() || !chat.targets.contains(&true) && learnt.loss_on == LossOn::Completions {
        return Ok(None.into());
    }
    let tokenize_error = |source| DataError::Tokenize {
        location: location.clone(),
        source,
    };
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
    let full = conversation.render(chat.messages.len(), GenerationPrompt::Omit);
    let full = full.map_err(|source| match has_argument_texts(chat) {
        true => DataError::ArgumentsAsText {
            location: location.clone(),
            source,
        },
        false => tokenize_error(source),
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
        note_texts(trace, chat, &conversation, &full.text, &encoded);
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

/// Whether arguments of calls came as text, which some templates cannot write.
fn has_argument_texts(chat: &Chat) -> bool {
    let mut messages = chat.messages.iter();
    messages.any(|message| argument_texts(message).next().is_some())
}

/// Notes the text of a chat, where its tokens end, and whose message each part of it is.
fn note_texts(trace: &mut Trace, chat: &Chat, conversation: &Conversation<'_>, text: &str, encoded: &Encoded) {
    trace.ends.clone_from(&encoded.ends);
    text.clone_into(&mut trace.text);
    let places = conversation.whole_places(text);
    for (index, message) in chat.messages.iter().enumerate() {
        let role = message["role"].as_str().unwrap_or_default();
        let texts = places.into_iter().flat_map(|places| places.each(index));
        trace.roles.extend(texts.map(|range| (range.clone(), role.to_owned())));
    }
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
