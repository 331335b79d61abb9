//! Which parts of a rendered chat are answers to learn.
//!
//! A template may mark them with `{% generation %}`. Otherwise an answer lies between two renderings of the chat: of
//! what comes before it, with the prompt for an answer, and of everything up to it. Both must be beginnings of the whole
//! text. Some templates write a turn differently once others follow: they drop the reasoning of earlier turns, begin
//! it in the prompt, or end what is rendered with the end of the document. There the boundaries are found by what the
//! renderings share, and at last by the answer's own text.

use std::ops::Range;

use super::example::Chat;
use super::{DataError, RowLocation};
use crate::tokenizer::{Conversation, GenerationPrompt, Rendered};

/// The byte ranges of `full`, the whole rendered chat, that are answers to learn, in order.
pub(super) fn answer_spans(
    location: &RowLocation,
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
            location,
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
    location: &'a RowLocation,
    conversation: &'a Conversation,
    full: &'a str,
    content: &'a str,
    /// Of the message.
    index: usize,
}

impl Search<'_> {
    /// Where the answer begins, not before `after`.
    fn start(&self, after: usize) -> Result<usize, DataError> {
        let render = |prompt| Some(self.conversation.render(self.index, prompt).ok()?.text);
        let is_beginning = |text: &String| text.len() >= after && self.full.starts_with(text.as_str());
        let prompt = render(GenerationPrompt::Add);
        if let Some(prompt) = prompt.as_ref().filter(|prompt| is_beginning(prompt)) {
            return Ok(prompt.len());
        }
        // Templates may refuse to render nothing at all, or not end as they continue: then the content must tell.
        let before = render(GenerationPrompt::Omit).filter(is_beginning);
        if let (Some(before), Some(prompt)) = (&before, &prompt)
            && prompt.starts_with(before.as_str())
        {
            // The answer may begin with the same sign as what the prompt has instead, such as `<`.
            let shared = &prompt[before.len()..shared_beginning(prompt, self.full)];
            let closed = shared.rfind([' ', '\n', '>', ']']).map_or(0, |at| at + 1);
            return Ok(before.len() + closed);
        }
        let from = before.map_or(after, |text| text.len());
        self.find_content(from).map(|(at, _)| at).ok_or_else(|| self.error())
    }

    /// Where the answer that begins at `start` ends, the template's end of turn included.
    fn end(&self, start: usize, messages: usize) -> Result<usize, DataError> {
        if self.index + 1 == messages {
            return Ok(self.full.len());
        }
        let rendered = self.conversation.render(self.index + 1, GenerationPrompt::Omit);
        let upto = rendered.map(|rendered| rendered.text).unwrap_or_default();
        // Without the end of the document, where the template puts it behind whatever it renders.
        let open = upto.strip_suffix(self.conversation.eos()).unwrap_or(&upto);
        for text in [upto.as_str(), open] {
            if text.len() > start && self.full.starts_with(text) {
                return Ok(text.len());
            }
        }
        let found = [upto.as_str(), open].into_iter().find_map(|text| {
            self.end_by_suffix(start, text)
                .or_else(|| self.end_by_content(start, text))
        });
        found.ok_or_else(|| self.error())
    }

    /// The end, where the answer is what `upto` ends in: the answer as the last turn, without its beginning.
    fn end_by_suffix(&self, start: usize, upto: &str) -> Option<usize> {
        let answer = upto.strip_prefix(&self.full[..start])?;
        let mut suffixes = answer.char_indices().map(|(at, _)| &answer[at..]);
        let suffix = suffixes.find(|suffix| self.full[start..].starts_with(suffix))?;
        let is_whole = suffix.contains(self.spoken()) && !suffix.trim().is_empty();
        is_whole.then_some(start + suffix.len())
    }

    /// The end by the answer's text, followed by what `upto` has behind that text.
    fn end_by_content(&self, start: usize, upto: &str) -> Option<usize> {
        let (at, anchor) = self.find_content(start)?;
        let end = at + anchor.len();
        let closing = upto.rfind(anchor).map(|at| &upto[at + anchor.len()..])?;
        self.full[end..].starts_with(closing).then_some(end + closing.len())
    }

    /// The answer without its reasoning.
    fn spoken(&self) -> &str {
        self.content.rsplit("</think>").next().unwrap_or_default().trim()
    }

    /// Finds the answer's text, or what follows its reasoning, from `from` on.
    fn find_content(&self, from: usize) -> Option<(usize, &str)> {
        [self.content.trim(), self.spoken()]
            .into_iter()
            .filter(|anchor| !anchor.is_empty())
            .find_map(|anchor| Some((from + self.full[from..].find(anchor)?, anchor)))
    }

    fn error(&self) -> DataError {
        DataError::NotAPrefix {
            location: self.location.clone(),
            message: self.index + 1,
        }
    }
}

/// Bytes at which two texts stop being equal.
fn shared_beginning(a: &str, b: &str) -> usize {
    let differs = |((at, a), b): ((usize, char), char)| (a != b).then_some(at);
    let shorter = a.len().min(b.len());
    a.char_indices().zip(b.chars()).find_map(differs).unwrap_or(shorter)
}
