//! Which parts of a rendered chat are answers to learn.
//!
//! A template may mark them with `{% generation %}`. Otherwise an answer lies between two renderings of the chat: of
//! what comes before it, with the prompt for an answer, and of everything up to it. Both must be beginnings of the whole
//! text. Some templates write a turn differently once others follow (they drop the reasoning of earlier turns, or put
//! an empty one into the prompt); there the boundary is found by the answer's own text.

use std::ops::Range;

use super::example::Chat;
use super::{DataError, Place};
use crate::train::tokenizer::{Conversation, GenerationPrompt, Rendered};

/// The byte ranges of `full`, the whole rendered chat, that are answers to learn, in order.
pub(super) fn answer_spans(
    place: &Place,
    chat: &Chat,
    conversation: &Conversation,
    full: &Rendered,
) -> Result<Vec<Range<usize>>, DataError> {
    if let Some(marked) = &full.generated {
        let answers: Vec<bool> = (chat.messages.iter().zip(&chat.targets))
            .filter(|(message, _)| message["role"] == "assistant")
            .map(|(_, is_target)| *is_target)
            .collect();
        if marked.len() == answers.len() {
            let pairs = marked.iter().zip(answers);
            return Ok(pairs
                .filter(|(_, is_target)| *is_target)
                .map(|(span, _)| span.clone())
                .collect());
        }
    }
    let mut spans: Vec<Range<usize>> = Vec::new();
    for (index, _) in chat.targets.iter().enumerate().filter(|(_, is_target)| **is_target) {
        let after = spans.last().map_or(0, |span| span.end);
        let search = Search {
            place,
            conversation,
            full: &full.text,
            content: chat.messages[index]["content"].as_str().unwrap_or_default(),
            index,
        };
        let start = search.start(after)?;
        spans.push(start..search.end(start, chat.messages.len())?);
    }
    Ok(spans)
}

/// The search for one answer.
struct Search<'a> {
    place: &'a Place,
    conversation: &'a Conversation,
    full: &'a str,
    content: &'a str,
    /// Of the message.
    index: usize,
}

impl Search<'_> {
    /// Where the answer begins, not before `after`.
    fn start(&self, after: usize) -> Result<usize, DataError> {
        // Templates may refuse to render nothing at all, or end in mid-chat: then the content must tell.
        if let Ok(prompt) = self.conversation.render(self.index, GenerationPrompt::Add)
            && prompt.text.len() >= after
            && self.full.starts_with(&prompt.text)
        {
            return Ok(prompt.text.len());
        }
        let before = self.conversation.render(self.index, GenerationPrompt::Omit);
        let from = before
            .ok()
            .map(|rendered| rendered.text)
            .filter(|text| text.len() >= after && self.full.starts_with(text.as_str()))
            .map_or(after, |text| text.len());
        let (at, _) = self.find_content(from).ok_or_else(|| self.error())?;
        Ok(at)
    }

    /// Where the answer that begins at `start` ends, the template's end of turn included.
    fn end(&self, start: usize, messages: usize) -> Result<usize, DataError> {
        if self.index + 1 == messages {
            return Ok(self.full.len());
        }
        let Ok(upto) = self.conversation.render(self.index + 1, GenerationPrompt::Omit) else {
            return self.end_by_content(start, "");
        };
        if upto.text.len() > start && self.full.starts_with(&upto.text) {
            return Ok(upto.text.len());
        }
        self.end_by_content(start, &upto.text)
    }

    /// The end by the answer's text, followed by what `upto` has behind that text.
    fn end_by_content(&self, start: usize, upto: &str) -> Result<usize, DataError> {
        let (at, anchor) = self.find_content(start).ok_or_else(|| self.error())?;
        let end = at + anchor.len();
        let closing = upto.rfind(anchor).map_or("", |at| &upto[at + anchor.len()..]);
        if self.full[end..].starts_with(closing) {
            Ok(end + closing.len())
        } else {
            Err(self.error())
        }
    }

    /// Finds the answer's text, or what follows its reasoning, from `from` on.
    fn find_content(&self, from: usize) -> Option<(usize, &str)> {
        let spoken = self.content.rsplit("</think>").next().unwrap_or_default();
        [self.content.trim(), spoken.trim()]
            .into_iter()
            .filter(|anchor| !anchor.is_empty())
            .find_map(|anchor| Some((from + self.full[from..].find(anchor)?, anchor)))
    }

    fn error(&self) -> DataError {
        DataError::NotAPrefix {
            place: self.place.clone(),
            message: self.index + 1,
        }
    }
}
