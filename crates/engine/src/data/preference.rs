//! Rows of preferences: a chosen and a rejected answer to one prompt, or one answer that is good or bad.
//!
//! TRL's trainers of preferences read texts and messages, and make the tokens themselves. Here rows are checked, brought into the
//! one layout that all of these trainers read (the prompt apart), and counted by the tokens that the rows of supervised
//! fine-tuning have: of a pair, those of the prompt with either answer.

use serde_json::{Map, Value};

use super::columns::Columns;
use super::example::{Example, Preference};
use super::messages::{of_messages, read_messages};
use super::readers::kind_of;
use super::tokens::{NO_TARGET, RowKind, TokenRow};
use super::{DataError, RowLocation};

/// What prompts and answers are.
const ANSWER: &str = "text or a list of messages";
/// Columns that are handed on as they are.
const BESIDE: [&str; 2] = ["tools", "chat_template_kwargs"];

/// Reads a chosen and a rejected answer. The prompt is their common beginning where it has no column of its own.
pub(super) fn pair(location: &RowLocation, columns: &mut Columns) -> Result<Example, DataError> {
    let chosen = columns.required("chosen", ANSWER)?;
    let rejected = columns.required("rejected", ANSWER)?;
    let [prompt, chosen, rejected] = match columns.take("prompt") {
        Some(prompt) => [prompt, chosen, rejected],
        None => match apart(&chosen, &rejected) {
            Some(parts) => parts,
            None => {
                return Err(match (&chosen, &rejected) {
                    (Value::String(_), Value::String(_)) | (Value::Array(_), Value::Array(_)) => {
                        DataError::NoCommonPrompt {
                            location: location.clone(),
                        }
                    }
                    (Value::String(_) | Value::Array(_), other) => {
                        columns.wrong_type("rejected", "what `chosen` is", kind_of(other))
                    }
                    (other, _) => columns.wrong_type("chosen", ANSWER, kind_of(other)),
                });
            }
        },
    };
    row_of(
        location,
        columns,
        prompt,
        [("chosen", chosen), ("rejected", rejected)],
        None,
    )
}

/// Reads one answer, and whether it is good.
pub(super) fn answer(location: &RowLocation, columns: &mut Columns) -> Result<Example, DataError> {
    let prompt = columns.required("prompt", ANSWER)?;
    let completion = columns.required("completion", ANSWER)?;
    let label = columns.required("label", "true or false")?;
    if !label.is_boolean() {
        return Err(columns.wrong_type("label", "true or false", kind_of(&label)));
    }
    row_of(location, columns, prompt, [("completion", completion)], Some(label))
}

fn row_of<const N: usize>(
    location: &RowLocation,
    columns: &mut Columns,
    prompt: Value,
    answers: [(&'static str, Value); N],
    label: Option<Value>,
) -> Result<Example, DataError> {
    let mut row = Map::new();
    for key in BESIDE {
        row.extend(columns.take(key).map(|value| (key.to_owned(), value)));
    }
    let tools = row.get("tools").cloned().and_then(|tools| match tools {
        Value::String(text) => serde_json::from_str(&text).ok(),
        tools => Some(tools),
    });
    let tools = tools.filter(|tools| tools.as_array().is_some_and(|tools| !tools.is_empty()));
    let mut sequences = Vec::with_capacity(N);
    for (key, answer) in &answers {
        sequences.push(sequence(location, columns, &prompt, key, answer, tools.clone())?);
    }
    row.insert("prompt".to_owned(), prompt);
    row.extend(answers.map(|(key, answer)| (key.to_owned(), answer)));
    row.extend(label.map(|label| ("label".to_owned(), label)));
    Ok(Example::Preference(Box::new(Preference { sequences, row })))
}

/// The prompt with one answer.
fn sequence(
    location: &RowLocation,
    columns: &Columns,
    prompt: &Value,
    key: &'static str,
    answer: &Value,
    tools: Option<Value>,
) -> Result<Example, DataError> {
    match (prompt, answer) {
        (Value::String(prompt), Value::String(answer)) => Ok(Example::Completion {
            prompt: prompt.clone(),
            completion: answer.clone(),
        }),
        (Value::Array(prompt), Value::Array(answer)) => {
            let all = prompt.iter().chain(answer);
            if let Some(at) = all.clone().position(|message| !is_message(message)) {
                return Err(DataError::BadMessage {
                    location: location.clone(),
                    message: at + 1,
                    problem: "has no text `role` and no `content`, by which trainers of preferences know a message",
                });
            }
            if prompt.is_empty() || answer.is_empty() {
                let key = if prompt.is_empty() { "prompt" } else { key };
                return Err(columns.wrong_type(key, "a list of messages", "an empty list"));
            }
            let mut messages = read_messages(location, all.cloned().collect())?;
            for message in &mut messages[..prompt.len()] {
                message.is_target = false;
            }
            // The answer is compared whatever it is.
            let last = messages.len() - 1;
            messages[last].is_target = true;
            Ok(of_messages(messages, tools, Vec::new()))
        }
        (Value::String(_), other) => Err(columns.wrong_type(
            key,
            "text, as `prompt` is (leave `prompt` out where the answers hold the whole chat)",
            kind_of(other),
        )),
        (Value::Array(_), other) => Err(columns.wrong_type(key, "a list of messages, as `prompt` is", kind_of(other))),
        (other, _) => Err(columns.wrong_type("prompt", ANSWER, kind_of(other))),
    }
}

fn is_message(message: &Value) -> bool {
    message.get("role").is_some_and(Value::is_string) && message.get("content").is_some()
}

/// Prompt, chosen and rejected answer of two that begin alike, as TRL (1.16) takes them apart: the prompt ends before the first
/// difference, and before the space in front of it. `None` where nothing is common.
fn apart(chosen: &Value, rejected: &Value) -> Option<[Value; 3]> {
    match (chosen, rejected) {
        (Value::String(chosen), Value::String(rejected)) => {
            let [one, other] = [chosen, rejected].map(|text| text.chars().collect::<Vec<_>>());
            let mut end = end_of_common(&one, &other)?;
            if one[end] != other[end] && one[end - 1] == ' ' {
                end -= 1;
            }
            let text = |characters: &[char]| Value::String(characters.iter().collect());
            (end > 0).then(|| [text(&one[..end]), text(&one[end..]), text(&other[end..])])
        }
        (Value::Array(one), Value::Array(other)) => {
            let end = end_of_common(one, other)?;
            let list = |messages: &[Value]| Value::Array(messages.to_vec());
            Some([list(&one[..end]), list(&one[end..]), list(&other[end..])])
        }
        _ => None,
    }
}

/// End of what two lists have in common: where one is the beginning of the other, the last part of the shorter one is left to the
/// answers. `None` where that is nothing.
fn end_of_common<T: PartialEq>(one: &[T], other: &[T]) -> Option<usize> {
    let shorter = one.len().min(other.len());
    let differs = one.iter().zip(other).position(|(one, other)| one != other);
    let end = differs.unwrap_or(shorter.saturating_sub(1));
    (end > 0).then_some(end)
}

/// The tokens of a row's sequences, end to end; `None` where one of them teaches nothing.
pub(super) fn joined(sequences: Vec<Option<TokenRow>>) -> Option<TokenRow> {
    let kind = match sequences.len() {
        1 => RowKind::Whole,
        _ => RowKind::Pair,
    };
    let mut all = TokenRow {
        ids: Vec::new(),
        labels: Vec::new(),
        kind,
    };
    for sequence in sequences {
        let TokenRow { ids, labels, .. } = sequence?;
        let answer = labels.iter().skip(1).position(|label| *label != NO_TARGET)? + 1;
        // The answer reaches to the end, whatever a template writes there, and nothing predicts a first token.
        let labels = ids
            .iter()
            .enumerate()
            .map(|(at, id)| if at < answer { NO_TARGET } else { *id });
        all.labels.extend(labels);
        all.ids.extend(ids);
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;

    use serde_json::json;

    use super::*;
    use crate::data::Unit;

    fn read(row: Value, is_pair: bool) -> Result<Preference, String> {
        let location = RowLocation::new(&Path::new("pairs.jsonl").into(), Unit::Line, 7);
        let (renames, Value::Object(values)) = (BTreeMap::new(), row) else {
            panic!("a row is an object");
        };
        let mut columns = Columns::new(&location, &renames, values);
        let read = if is_pair { pair } else { answer };
        match read(&location, &mut columns).map_err(|error| error.to_string())? {
            Example::Preference(row) => Ok(*row),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_prompt_of_its_own_stays_and_a_common_beginning_becomes_one() {
        let own = read(json!({"prompt": "sky?", "chosen": " blue", "rejected": " green"}), true).unwrap();
        assert_eq!(
            Value::Object(own.row),
            json!({"prompt": "sky?", "chosen": " blue", "rejected": " green"})
        );
        let common = read(
            json!({"chosen": "The sky is blue.", "rejected": "The sky is green."}),
            true,
        )
        .unwrap();
        let apart = json!({"prompt": "The sky is", "chosen": " blue.", "rejected": " green."});
        assert_eq!(Value::Object(common.row), apart);
        let turn = |role: &str, text: &str| json!({"role": role, "content": text});
        let chat = |answer: &str| json!([turn("user", "sky?"), turn("assistant", answer)]);
        let chats = read(json!({"chosen": chat("blue"), "rejected": chat("green")}), true).unwrap();
        assert_eq!(chats.row["prompt"], json!([turn("user", "sky?")]));
        assert_eq!(chats.row["rejected"], json!([turn("assistant", "green")]));
        assert_eq!(chats.sequences.len(), 2);
    }

    #[test]
    fn rows_that_trainers_of_preferences_cannot_read_are_refused_with_their_line() {
        let chat = json!([{"role": "user", "content": "sky?"}, {"role": "assistant", "content": "blue"}]);
        for (row, is_pair, told) in [
            (json!({"prompt": "sky?", "chosen": "blue"}), true, "`rejected`"),
            (
                json!({"prompt": "sky?", "chosen": "blue", "rejected": 3}),
                true,
                "a number",
            ),
            (json!({"chosen": "blue", "rejected": "green"}), true, "begin"),
            (json!({"chosen": chat, "rejected": "green"}), true, "what `chosen` is"),
            (
                json!({"prompt": "sky?", "chosen": chat, "rejected": chat}),
                true,
                "leave `prompt` out",
            ),
            (
                json!({"prompt": [{"from": "user", "value": "sky?"}], "chosen": chat, "rejected": chat}),
                true,
                "`role`",
            ),
            (json!({"prompt": "sky?", "completion": "blue"}), false, "`label`"),
            (
                json!({"prompt": "sky?", "completion": "blue", "label": 1}),
                false,
                "true or false",
            ),
        ] {
            let error = read(row, is_pair).unwrap_err();
            assert!(error.contains("pairs.jsonl line 7") && error.contains(told), "{error}");
        }
    }

    #[test]
    fn sequences_are_joined_where_each_has_an_answer() {
        let row = |prompt: usize, tokens: usize| {
            let ids: Vec<u32> = (0..tokens as u32).collect();
            let label = |id: &u32| if (*id as usize) < prompt { NO_TARGET } else { *id };
            TokenRow {
                labels: ids.iter().map(label).collect(),
                ids: ids.clone(),
                kind: RowKind::Whole,
            }
        };
        let pair = joined(vec![Some(row(2, 4)), Some(row(2, 3))]).unwrap();
        assert_eq!((pair.ids, pair.kind), (vec![0, 1, 2, 3, 0, 1, 2], RowKind::Pair));
        let no = NO_TARGET;
        assert_eq!(pair.labels, [no, no, 2, 3, no, no, 2]);
        assert_eq!(joined(vec![Some(row(2, 4)), Some(row(3, 3))]), None);
        assert_eq!(joined(vec![Some(row(2, 4)), None]), None);
        assert_eq!(joined(vec![Some(row(0, 2))]).map(|row| row.labels), Some(vec![no, 1]));
    }
}
