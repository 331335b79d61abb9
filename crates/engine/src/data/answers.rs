//! Answers to learn in a rendered chat.
//!
//! A template may mark them with `{% generation %}`. Otherwise an answer lies between two renderings of the chat: of
//! what comes before it, with the prompt for an answer, and of everything up to it. Where both are beginnings of the whole
//! text, that is certain. Some templates write a turn differently once others follow: they drop the reasoning of earlier
//! turns, begin it in the prompt, move the system's text, or end the last answer in another way. There the boundaries are
//! what the template has before and behind the texts of the messages, whose places are known by marks. An answer is never
//! searched for by its words, which may stand elsewhere, and where no way is certain the row is left out.

use std::ops::Range;

use super::example::Chat;
use crate::tokenizer::{Conversation, GenerationPrompt, Places, Rendered};

/// Why the answers of a chat cannot be told apart, in words that follow `their`.
pub(super) type Unclear = &'static str;

const BEGINNING: Unclear = "chat template does not show where an answer begins; mark answers with `{% generation %}` in a \
                            template named as `data.chat_template`, or set `data.loss_on: all`";
const END: Unclear = "chat template does not show where an answer ends; mark answers with `{% generation %}` in a template \
                      named as `data.chat_template`, or set `data.loss_on: all`";
const MARKS: Unclear = "chat template marks answers that cannot be told apart, and not all of them are to be learnt";
const MIXED: Unclear = "chat template writes other texts between the beginning and the end of an answer";

/// The byte ranges of `full`, the whole rendered chat, that are answers to learn, in order.
pub(super) fn answer_spans(
    chat: &Chat,
    conversation: &Conversation<'_>,
    full: &Rendered,
) -> Result<Vec<Range<usize>>, Unclear> {
    if let Some(marked) = &full.generated {
        return marked_spans(chat, conversation, &full.text, marked);
    }
    let search = Search {
        conversation,
        full: &full.text,
        messages: chat.messages.len(),
        places: conversation.whole_places(&full.text),
    };
    let mut spans: Vec<Range<usize>> = Vec::new();
    for (index, _) in chat.targets.iter().enumerate().filter(|(_, is_target)| **is_target) {
        let after = spans.last().map_or(0, |span| span.end);
        let start = search.start(index, after)?;
        let end = search.end(index, start)?;
        spans.push(start..end);
    }
    match search.is_of_answers_alone(chat, &spans) {
        true => Ok(spans),
        false => Err(MIXED),
    }
}

/// The spans that the template marked, without those of answers that are not to be learnt.
fn marked_spans(
    chat: &Chat,
    conversation: &Conversation<'_>,
    full: &str,
    marked: &[Range<usize>],
) -> Result<Vec<Range<usize>>, Unclear> {
    let is_answer = |index: &usize| chat.messages[*index]["role"] == "assistant";
    let answers: Vec<usize> = (0..chat.messages.len()).filter(is_answer).collect();
    let learns_all = answers.iter().all(|index| chat.targets[*index]);
    let is_one_each = marked.len() == answers.len();
    let message_of = |number: usize, span: &Range<usize>| {
        if is_one_each {
            return Some(answers[number]);
        }
        let places = conversation.whole_places(full)?;
        let is_in = |index: &usize| places.each(*index).any(|place| overlap(span, place));
        answers.iter().copied().find(is_in)
    };
    let mut spans = Vec::new();
    for (number, span) in marked.iter().enumerate() {
        let is_target = learns_all || chat.targets[message_of(number, span).ok_or(MARKS)?];
        if is_target && !span.is_empty() {
            spans.push(span.clone());
        }
    }
    Ok(spans)
}

fn overlap(one: &Range<usize>, other: &Range<usize>) -> bool {
    one.start < other.end && other.start < one.end
}

/// The search for the answers of a chat.
struct Search<'a> {
    conversation: &'a Conversation<'a>,
    full: &'a str,
    messages: usize,
    /// Places of the texts in `full`, where they can be followed.
    places: Option<&'a Places>,
}

impl Search<'_> {
    /// Beginning of the answer, not before `after`.
    fn start(&self, index: usize, after: usize) -> Result<usize, Unclear> {
        let render = |prompt| Some(self.conversation.render(index, prompt).ok()?.text);
        let place = self.place(index);
        let may_begin = |at: usize| {
            at >= after
                && at >= self.end_before(index).unwrap_or(0)
                && place.as_ref().is_none_or(|place| at <= place.start)
        };
        let prompt = render(GenerationPrompt::Add);
        if let Some(prompt) = &prompt
            && may_begin(prompt.len())
            && self.full.starts_with(prompt.as_str())
        {
            return Ok(prompt.len());
        }
        let limit = place.ok_or(BEGINNING)?.start;
        let (Some(prompt), Some(before)) = (prompt, self.end_before(index).or((index == 0).then_some(0))) else {
            return Err(BEGINNING);
        };
        // What follows the message before: its end, and what opens an answer.
        let gap = self.full.get(before..limit).ok_or(BEGINNING)?;
        let prompt_places = self.conversation.places(index, &prompt, GenerationPrompt::Add);
        let tail = match index.checked_sub(1) {
            None => Some(prompt.as_str()),
            Some(last) => prompt_places
                .and_then(|places| Some(places.of(last)?.end))
                .map(|end| &prompt[end..]),
        };
        if let Some(tail) = tail {
            let shared = shared_beginning(tail, gap);
            if shared == tail.len() || shared == gap.len() {
                return Ok(before + shared);
            }
            // The turn may be opened otherwise than here, up to the last special token that opens it.
            if let Some(header) = self.last_control(tail) {
                if let Some(at) = gap.rfind(&tail[header.start..]) {
                    return Ok(before + at + tail.len() - header.start);
                }
                // The answer may begin with the same sign as what the prompt has instead, such as `<`.
                let closed = gap[..shared].rfind([' ', '\n', '>', ']']).map(|at| at + 1);
                if let Some(at) = closed.filter(|at| *at >= header.end) {
                    return Ok(before + at);
                }
            }
        }
        // What opens an answer, by itself.
        let opening = render(GenerationPrompt::Omit).and_then(|open| Some(prompt.strip_prefix(&open)?.to_owned()));
        match opening.filter(|opening| !opening.is_empty()) {
            Some(opening) => gap
                .rfind(&opening)
                .map(|at| before + at + opening.len())
                .ok_or(BEGINNING),
            None => Err(BEGINNING),
        }
    }

    /// End of the answer that begins at `start`, the template's end of turn included.
    fn end(&self, index: usize, start: usize) -> Result<usize, Unclear> {
        if index + 1 == self.messages {
            return self.last_end();
        }
        let place = self.place(index);
        let next = self.start_behind(index);
        let upto = self.conversation.render(index + 1, GenerationPrompt::Omit);
        let upto = upto.map(|rendered| rendered.text).unwrap_or_default();
        // Without the end of the document, where the template puts it behind whatever it renders.
        let open = |text: &str| text.strip_suffix(self.conversation.eos()).map_or(text.len(), str::len);
        let may_end =
            |length: usize| length > start && length <= next && place.as_ref().is_none_or(|place| length >= place.end);
        let is_end = |length: &usize| may_end(*length) && self.full.starts_with(&upto[..*length]);
        let whole = Some(upto.len()).filter(is_end);
        let opened = Some(open(&upto)).filter(is_end);
        // An end without a sign of it is taken where nothing else is found.
        let closes = |length: &usize| {
            place
                .as_ref()
                .is_none_or(|place| !self.full[place.end..*length].trim().is_empty())
        };
        if let Some(length) = whole.or(opened).filter(closes) {
            return Ok(length);
        }
        let place = place.ok_or(END)?;
        let gap = self.full.get(place.end..next).ok_or(END)?;
        let places = self.conversation.places(index + 1, &upto, GenerationPrompt::Omit);
        let closing = places.and_then(|places| Some(&upto[places.of(index)?.end..]));
        let mut bare = whole.or(opened);
        if let Some(closing) = closing {
            for length in [closing.len(), open(closing)] {
                if gap.starts_with(&closing[..length]) {
                    if !closing[..length].trim().is_empty() {
                        return Ok(place.end + length);
                    }
                    bare = bare.or(Some(place.end + length));
                }
            }
            if let Some(length) = self.closed(&gap[..shared_beginning(closing, gap)]) {
                return Ok(place.end + length);
            }
        }
        // Another end than that of a last answer: what stands before the next message is opened.
        let opening = self.opening_control();
        let other = opening.and_then(|control| gap.find(&control)).filter(|at| *at > 0);
        other.map(|at| place.end + at).or(bare).ok_or(END)
    }

    /// End of the last answer: that of the text, unless the template opens another answer behind it, asked or not.
    fn last_end(&self) -> Result<usize, Unclear> {
        let whole = self.full.len();
        let prompted = self.conversation.render(self.messages, GenerationPrompt::Add);
        if prompted.is_ok_and(|prompted| prompted.text != self.full) {
            return Ok(whole);
        }
        let Ok(continued) = self.conversation.render_continued() else {
            return Ok(whole);
        };
        if continued.text.starts_with(self.full) {
            return Ok(whole);
        }
        let last = self.messages - 1;
        let place = self.place(last).ok_or(END)?;
        let places = self.conversation.continued_places(&continued.text).ok_or(END)?;
        let (tail, other) = (
            &self.full[place.end..],
            &continued.text[places.of(last).ok_or(END)?.end..],
        );
        let shared = shared_beginning(tail, other);
        match shared == tail.len() {
            true => Ok(whole),
            false => Ok(place.end + self.closed(&tail[..shared]).ok_or(END)?),
        }
    }

    /// Bytes up to the end of the last special token in `text`, with the white space behind it; `None` where there is none.
    fn closed(&self, text: &str) -> Option<usize> {
        let end = self.last_control(text)?.end;
        let rest = &text[end..];
        Some(end + (rest.len() - rest.trim_start().len()))
    }

    /// Range of the last special token in `text`.
    fn last_control(&self, text: &str) -> Option<Range<usize>> {
        let controls = self
            .conversation
            .controls()
            .iter()
            .filter(|control| !control.is_empty());
        let found = controls.filter_map(|control| {
            let at = text.rfind(control.as_str())?;
            Some(at..at + control.len())
        });
        found.max_by_key(|range| (range.end, range.len()))
    }

    /// The special token that opens an answer, and with it other turns.
    fn opening_control(&self) -> Option<String> {
        let before = (1..=self.messages).find_map(|count| {
            let open = self.conversation.render(count, GenerationPrompt::Omit).ok()?.text;
            let prompted = self.conversation.render(count, GenerationPrompt::Add).ok()?.text;
            Some(prompted.strip_prefix(&open)?.to_owned()).filter(|opening| !opening.is_empty())
        })?;
        let controls = self.conversation.controls().iter();
        let found = controls.filter_map(|control| Some((before.find(control.as_str())?, control)));
        found
            .min_by_key(|(at, control)| (*at, usize::MAX - control.len()))
            .map(|(_, control)| control.clone())
    }

    /// Whether the spans hold the texts of the answers to learn, and no other message's.
    fn is_of_answers_alone(&self, chat: &Chat, spans: &[Range<usize>]) -> bool {
        if spans.iter().any(|span| span.start > span.end) || spans.windows(2).any(|pair| pair[0].end > pair[1].start) {
            return false;
        }
        let overlaps = |place: &Range<usize>| spans.iter().any(|span| overlap(place, span));
        (0..self.messages).all(|index| chat.targets[index] || !self.each_place(index).any(overlaps))
    }

    fn place(&self, index: usize) -> Option<Range<usize>> {
        self.places?.of(index)
    }

    fn each_place(&self, index: usize) -> impl Iterator<Item = &Range<usize>> {
        self.places.into_iter().flat_map(move |places| places.each(index))
    }

    /// End of the text of the message before; `None` where it has none, or nothing is known.
    fn end_before(&self, index: usize) -> Option<usize> {
        Some(self.place(index.checked_sub(1)?)?.end)
    }

    /// Beginning of the text of the next message that has one behind this one's.
    fn start_behind(&self, index: usize) -> usize {
        let end = self.place(index).map_or(0, |place| place.end);
        let next = (index + 1..self.messages).filter_map(|other| self.place(other));
        next.map(|place| place.start)
            .find(|start| *start >= end)
            .unwrap_or(self.full.len())
    }
}

/// Bytes at which two texts stop being equal.
fn shared_beginning(a: &str, b: &str) -> usize {
    let differs = |((at, a), b): ((usize, char), char)| (a != b).then_some(at);
    let shorter = a.len().min(b.len());
    a.char_indices().zip(b.chars()).find_map(differs).unwrap_or(shorter)
}
