//! Places of the texts of messages in a rendered chat.
//!
//! A template may trim a text, split it at its reasoning, leave parts of it out, or move it to another message. So a text is
//! not searched for, since it may stand elsewhere too: the chat is rendered once more with a mark inside each text, and from a
//! mark on the text is followed to both sides. Marks are Unicode noncharacters, which no text may hold.

use std::collections::BTreeSet;
use std::ops::Range;

use serde_json::Value;

/// Begins a mark.
const MARK: char = '\u{fdd2}';
/// Digits of a mark's number: these and the characters behind.
const ZERO: u32 = 0xfdd4;
const BASE: usize = 24;
const DIGITS: usize = 3;
/// Names of a message's reasoning; templates read one of the first two.
pub(crate) const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// Texts of messages that are marked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Marked {
    /// Contents, reasoning, names and arguments of calls.
    Everything,
    Contents,
}

/// Messages with a mark inside each text.
#[derive(Clone, Debug)]
pub(super) struct MarkedMessages {
    pub messages: Vec<Value>,
    marks: Vec<Mark>,
}

/// A text that was marked.
#[derive(Clone, Debug)]
struct Mark {
    message: usize,
    text: String,
    /// Place of the mark in `text`, in bytes.
    at: usize,
    /// Range that has to be followed to both ends: what a content says behind its reasoning.
    whole: Option<Range<usize>>,
}

/// Places of the texts of each message, in bytes of the rendered chat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Places(Vec<Vec<Range<usize>>>);

impl Places {
    /// Range from the first text of a message to the end of its last; `None` for one without text there.
    pub(crate) fn of(&self, message: usize) -> Option<Range<usize>> {
        let ranges = self.0.get(message)?;
        let start = ranges.iter().map(|range| range.start).min()?;
        Some(start..ranges.iter().map(|range| range.end).max()?)
    }

    /// The texts of a message one by one: a system's may stand in two places.
    pub(crate) fn each(&self, message: usize) -> impl Iterator<Item = &Range<usize>> {
        self.0.get(message).into_iter().flatten()
    }
}

impl MarkedMessages {
    /// `None` where a text holds a character of marks, or there are more texts than numbers.
    pub(super) fn new(messages: &[Value], marked: Marked) -> Option<Self> {
        let mut marking = Self {
            messages: Vec::with_capacity(messages.len()),
            marks: Vec::new(),
        };
        for (index, message) in messages.iter().enumerate() {
            let mut message = message.clone();
            if let Some(fields) = message.as_object_mut() {
                for (key, value) in fields.iter_mut() {
                    match key.as_str() {
                        "content" => marking.mark(index, value, true),
                        "tool_calls" if marked == Marked::Everything => marking.mark_calls(index, value),
                        name if REASONING.contains(&name) && marked == Marked::Everything => {
                            marking.mark(index, value, false)
                        }
                        _ => {}
                    }
                }
            }
            marking.messages.push(message);
        }
        let is_free = |mark: &Mark| !mark.text.chars().any(is_reserved);
        (marking.marks.iter().all(is_free) && marking.marks.len() <= BASE.pow(DIGITS as u32)).then_some(marking)
    }

    fn mark_calls(&mut self, message: usize, calls: &mut Value) {
        for call in calls.as_array_mut().into_iter().flatten() {
            let call = if call["function"].is_object() {
                &mut call["function"]
            } else {
                call
            };
            if call["name"].is_string() {
                self.mark(message, &mut call["name"], false);
            }
            if let Some(arguments) = call.get_mut("arguments") {
                self.mark_leaves(message, arguments);
            }
        }
    }

    fn mark_leaves(&mut self, message: usize, value: &mut Value) {
        match value {
            Value::String(_) => self.mark(message, value, false),
            Value::Array(items) => items.iter_mut().for_each(|item| self.mark_leaves(message, item)),
            Value::Object(fields) => fields.values_mut().for_each(|item| self.mark_leaves(message, item)),
            _ => {}
        }
    }

    /// Puts a mark into the middle of a text, of what is said behind its reasoning where it has that; an empty one gets none.
    fn mark(&mut self, message: usize, value: &mut Value, is_content: bool) {
        let Value::String(text) = value else { return };
        let spoken = text.rfind("</think>").map_or(0, |at| at + "</think>".len());
        let core = |from: usize| {
            let rest = &text[from..];
            let start = from + (rest.len() - rest.trim_start().len());
            let end = from + rest.trim_end().len();
            (start < end).then_some(start..end)
        };
        let Some(core) = core(spoken).or_else(|| core(0)) else {
            return;
        };
        // Behind the first character at least: a text of one keeps its beginning.
        let at = text.ceil_char_boundary((core.start + core.end).div_ceil(2));
        let mark = Mark {
            message,
            text: text.clone(),
            at,
            whole: is_content.then_some(core),
        };
        let number = self.marks.len();
        let digit = |place: u32| char::from_u32(ZERO + (number / BASE.pow(place) % BASE) as u32).unwrap_or(MARK);
        let written: String = [MARK].into_iter().chain((0..DIGITS as u32).map(digit)).collect();
        text.insert_str(at, &written);
        self.marks.push(mark);
    }

    /// The places in a rendering of marked messages, which without the marks has to be `plain`; `None` where it is not, so
    /// that the template minds the marks.
    pub(super) fn places(&self, rendered: &str, plain: &str) -> Option<Places> {
        let (text, found) = take_marks(rendered)?;
        if text != plain {
            return None;
        }
        let mut places = vec![Vec::new(); self.messages.len()];
        let mut seen = BTreeSet::new();
        for (number, at) in found {
            let mark = self.marks.get(number)?;
            // Templates name a call again where its result stands.
            if mark.whole.is_some() || !seen.contains(&number) {
                places.get_mut(mark.message)?.push(mark.around(plain, at)?);
            }
            seen.insert(number);
        }
        Some(Places(places))
    }
}

impl Mark {
    /// How far the text goes on to both sides of its mark in `rendered`, without white space at its ends; `None` where a content
    /// that has to be whole is not.
    fn around(&self, rendered: &str, at: usize) -> Option<Range<usize>> {
        let (before, behind) = self.text.split_at(self.at);
        let pairs = rendered[..at].chars().rev().zip(before.chars().rev());
        let left: usize = pairs.take_while(|(a, b)| a == b).map(|(a, _)| a.len_utf8()).sum();
        let pairs = rendered[at..].chars().zip(behind.chars());
        let right: usize = pairs.take_while(|(a, b)| a == b).map(|(a, _)| a.len_utf8()).sum();
        let followed = self.at - left..self.at + right;
        if self
            .whole
            .as_ref()
            .is_some_and(|whole| whole.start < followed.start || followed.end < whole.end)
        {
            return None;
        }
        // White space that the template has there may only look like the text's.
        let text = &rendered[at - left..at + right];
        let start = at - left + (text.len() - text.trim_start().len());
        let end = at + right - (text.len() - text.trim_end().len());
        Some(start..end.max(start))
    }
}

/// Takes marks out of a rendered chat: their numbers, and where they stood. `None` where one is torn.
fn take_marks(rendered: &str) -> Option<(String, Vec<(usize, usize)>)> {
    let mut text = String::with_capacity(rendered.len());
    let mut found = Vec::new();
    let mut characters = rendered.chars();
    while let Some(character) = characters.next() {
        match character {
            MARK => {
                let mut number = 0;
                for place in 0..DIGITS as u32 {
                    let digit = u32::from(characters.next()?).checked_sub(ZERO)? as usize;
                    if digit >= BASE {
                        return None;
                    }
                    number += digit * BASE.pow(place);
                }
                found.push((number, text.len()));
            }
            other if is_reserved(other) => return None,
            other => text.push(other),
        }
    }
    Some((text, found))
}

fn is_reserved(character: char) -> bool {
    character == MARK || (ZERO..ZERO + BASE as u32).contains(&u32::from(character))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn places(messages: &Value, render: impl Fn(&[Value]) -> String) -> Option<Vec<Option<Range<usize>>>> {
        let messages = messages.as_array().unwrap();
        let marked = MarkedMessages::new(messages, Marked::Everything).unwrap();
        let places = marked.places(&render(&marked.messages), &render(messages))?;
        Some((0..messages.len()).map(|index| places.of(index)).collect())
    }

    fn content(message: &Value) -> &str {
        message["content"].as_str().unwrap()
    }

    #[test]
    fn texts_are_found_where_they_stand_and_not_where_the_same_words_do() {
        let chat = json!([{"role": "user", "content": " red or blue? red "}, {"role": "assistant", "content": "red"}]);
        let render = |messages: &[Value]| {
            let texts: Vec<String> = messages
                .iter()
                .map(|one| format!("[{}]", content(one).trim()))
                .collect();
            texts.concat()
        };
        assert_eq!(places(&chat, render), Some(vec![Some(1..17), Some(19..22)]));
    }

    #[test]
    fn what_a_template_drops_has_no_place() {
        let chat =
            json!([{"role": "assistant", "content": "<think>a</think>bcd"}, {"role": "assistant", "content": ""}]);
        let render = |messages: &[Value]| {
            let spoken = |one: &Value| content(one).split("</think>").last().unwrap().to_owned();
            messages.iter().map(spoken).collect::<Vec<_>>().join("|")
        };
        assert_eq!(places(&chat, render), Some(vec![Some(0..3), None]));
    }

    #[test]
    fn a_template_that_minds_marks_gives_no_places() {
        let chat = json!([{"role": "user", "content": "abc"}]);
        let render = |messages: &[Value]| content(&messages[0]).len().to_string();
        assert_eq!(places(&chat, render), None);
        // Nor one that changes the text.
        assert_eq!(places(&chat, |messages| content(&messages[0]).to_uppercase()), None);
    }

    #[test]
    fn calls_and_reasoning_belong_to_their_message() {
        let chat = json!([{"role": "assistant", "content": "", "reasoning_content": "why",
            "tool_calls": [{"function": {"name": "look", "arguments": {"city": "Bern", "days": [1, "two"]}}}]}]);
        let render = |messages: &[Value]| {
            let one = &messages[0];
            format!(
                "<{}>{}",
                one["reasoning_content"].as_str().unwrap(),
                one["tool_calls"][0]["function"]
            )
        };
        let found = places(&chat, render).unwrap();
        let text = render(chat.as_array().unwrap());
        let range = found[0].clone().unwrap();
        assert!(
            text[range.clone()].starts_with("why") && text[range].contains("Bern"),
            "{text}"
        );
    }

    #[test]
    fn reserved_characters_are_left_alone() {
        let chat = [json!({"role": "user", "content": "a\u{fdd2}b"})];
        assert!(MarkedMessages::new(&chat, Marked::Contents).is_none());
    }
}
