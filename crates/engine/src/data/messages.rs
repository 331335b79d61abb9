//! Chat messages in the layouts that people have, brought into the one that chat templates expect.

use serde_json::{Map, Value, json};

use super::example::{Chat, Example};
use super::said::Said;
use super::{DataError, RowLocation};
use crate::tokenizer::REASONING;

/// One message, and whether it is an answer to learn.
pub(super) struct Message {
    /// Object with `role` and `content`, and what else the template may want (`tool_calls`, `name`, ...). No key is null.
    pub value: Value,
    pub is_target: bool,
    /// The text that a function call came as.
    pub call_text: Option<String>,
    /// Whether it asks to be learnt though it is no answer.
    pub asks: bool,
    /// Whether it is written as it is read here: a role that templates know, a text, and nothing else.
    pub is_plain: bool,
}

impl Message {
    /// A message that is known and not learnt.
    pub(super) fn known(value: Value) -> Self {
        Self {
            value,
            is_target: false,
            call_text: None,
            asks: false,
            is_plain: false,
        }
    }
}

/// Fields by which tools say whether a message is learnt, and whether their truth says so.
const MASKS: [(&str, bool); 6] = [
    ("weight", true),
    ("loss_weight", true),
    ("loss", true),
    ("train", true),
    ("training", true),
    ("masked", false),
];

/// Fields that say which parts of a message are learnt.
const PART_MASKS: [&str; 3] = ["train_detail", "training_detail", "loss_mask"];

/// Reads `{role, content}` or `{from, value}` messages. An assistant's message is a target unless it says otherwise, or is empty.
pub(super) fn read_messages(location: &RowLocation, items: Vec<Value>) -> Result<Vec<Message>, DataError> {
    let numbered = items.into_iter().enumerate();
    numbered
        .map(|(index, item)| read_message(location, index + 1, item))
        .collect()
}

/// The chat of some messages.
pub(super) fn of_messages(messages: Vec<Message>, tools: Option<Value>, mut said: Vec<Said>) -> Example {
    if messages.iter().any(|message| message.asks) {
        said.push(Said::AskedToLearn);
    }
    Example::Chat(Chat {
        is_plain: tools.is_none() && messages.iter().all(|message| message.is_plain),
        targets: messages.iter().map(|message| message.is_target).collect(),
        call_texts: messages.iter().map(|message| message.call_text.clone()).collect(),
        messages: messages.into_iter().map(|message| message.value).collect(),
        tools,
        said,
    })
}

/// A message with a role and a text.
pub(super) fn message(role: &str, content: impl Into<String>) -> Value {
    json!({"role": role, "content": content.into()})
}

fn read_message(location: &RowLocation, number: usize, item: Value) -> Result<Message, DataError> {
    let bad = |problem| DataError::BadMessage {
        location: location.clone(),
        message: number,
        problem,
    };
    let Value::Object(mut fields) = item else {
        return Err(bad("is not an object with `role` and `content`"));
    };
    let is_plain = is_plain(&fields);
    // Files with one schema for all rows have null where a field does not apply, and so have those of some services.
    fields.retain(|_, value| !value.is_null());
    let role = fields.remove("role").or_else(|| fields.remove("from"));
    let Some(Value::String(role)) = role else {
        return Err(bad("has no text `role` (or `from`)"));
    };
    let content = fields.remove("content").or_else(|| fields.remove("value"));
    let is_learnt = take_mask(&mut fields).map_err(bad)?;
    if PART_MASKS.iter().any(|key| fields.contains_key(*key)) {
        return Err(bad(
            "says which of its parts are learnt (`train_detail`), and answers are learnt whole",
        ));
    }

    let (role, is_call) = canonical_role(&role).ok_or_else(|| DataError::UnknownRole {
        location: location.clone(),
        message: number,
        role: role.clone(),
    })?;
    let mut content = content
        .map(|content| flatten(content).ok_or_else(|| bad("has content that is not text")))
        .transpose()?;
    let mut call_text = None;
    if let Some(calls) = content.as_deref().filter(|_| is_call).and_then(function_call) {
        fields.insert("tool_calls".to_owned(), calls);
        call_text = content.replace(String::new());
    }
    if let Some(calls) = fields.get_mut("tool_calls") {
        without_null(calls);
    }
    if fields
        .get("tool_calls")
        .and_then(Value::as_array)
        .is_some_and(Vec::is_empty)
    {
        fields.remove("tool_calls");
    }
    name_reasoning(&mut fields);
    let is_empty = content.as_deref().is_none_or(|text| text.trim().is_empty())
        && !["tool_calls", REASONING[0]].iter().any(|key| fields.contains_key(*key));
    if content.is_none() && is_empty {
        return Err(bad("has no `content` (or `value`)"));
    }
    let role_and_content = [("role".to_owned(), Value::from(role))]
        .into_iter()
        .chain(content.map(|content| ("content".to_owned(), Value::from(content))));
    let mut value = Map::from_iter(role_and_content);
    value.append(&mut fields);
    let is_answer = role == "assistant";
    Ok(Message {
        value: Value::Object(value),
        is_target: is_answer && is_learnt != Some(false) && !is_empty,
        call_text,
        asks: !is_answer && is_learnt == Some(true),
        is_plain: is_plain && !(is_answer && is_empty),
    })
}

/// Whether a message holds a role that templates know and a text, and nothing else.
fn is_plain(fields: &Map<String, Value>) -> bool {
    let role = fields.get("role").and_then(Value::as_str);
    let has_known_role = role.is_some_and(|role| ["system", "user", "assistant"].contains(&role));
    fields.len() == 2 && has_known_role && fields.get("content").is_some_and(Value::is_string)
}

/// Takes the fields by which other tools say whether a message is learnt; `None` where none says so in as many words. The
/// weight 1 is what messages have that say nothing.
fn take_mask(fields: &mut Map<String, Value>) -> Result<Option<bool>, &'static str> {
    let mut learnt = None;
    for (key, means) in MASKS {
        let Some(value) = fields.remove(key) else { continue };
        let is_true = match &value {
            Value::Bool(flag) => Some(*flag),
            Value::Number(number) => match number.as_f64() {
                Some(0.0) => Some(false),
                Some(1.0) => Some(true),
                _ => None,
            },
            Value::String(text) => match text.trim().to_ascii_lowercase().as_str() {
                "false" | "no" | "0" | "0.0" => Some(false),
                "true" | "yes" | "1" | "1.0" => Some(true),
                _ => None,
            },
            _ => None,
        };
        let is_true = is_true.ok_or(
            "has a weight (`weight`, `loss_weight`, `loss`, `train`, `training` or `masked`) other than yes, no, 0 and 1",
        )?;
        let says = is_true == means;
        // One that says no is not outvoted.
        learnt = match (learnt, says) {
            (Some(false), _) | (_, false) => Some(false),
            (known, true) if key.contains("weight") => known,
            (_, true) => Some(true),
        };
    }
    Ok(learnt)
}

/// Gives the reasoning the names that templates know it by, as transformers does.
fn name_reasoning(fields: &mut Map<String, Value>) {
    let Some(reasoning) = REASONING.iter().find_map(|key| fields.get(*key)).cloned() else {
        return;
    };
    fields.entry(REASONING[1]).or_insert_with(|| reasoning.clone());
    fields.insert(REASONING[0].to_owned(), reasoning);
}

/// Drops null keys, however deep: a file with one schema for all rows has the keys of all calls in each.
pub(super) fn without_null(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(without_null),
        Value::Object(fields) => {
            fields.retain(|_, value| !value.is_null());
            fields.values_mut().for_each(without_null);
        }
        _ => {}
    }
}

/// The role as templates know it, and whether it announces a function call.
fn canonical_role(role: &str) -> Option<(&'static str, bool)> {
    Some(match role.trim().to_ascii_lowercase().as_str() {
        "system" => ("system", false),
        "developer" => ("developer", false),
        "user" | "human" => ("user", false),
        "assistant" | "gpt" | "model" | "bot" | "chatgpt" | "chatbot" => ("assistant", false),
        "function_call" => ("assistant", true),
        "tool" | "ipython" | "function" | "function_response" | "observation" => ("tool", false),
        _ => return None,
    })
}

/// Content as one text: itself, or the parts of a list that are all text.
fn flatten(content: Value) -> Option<String> {
    let of_part = |part: &Value| match part {
        Value::String(text) => Some(text.clone()),
        Value::Object(part) => {
            let kind = part.get("type").and_then(Value::as_str).unwrap_or("text");
            let text = part
                .get("text")
                .or_else(|| part.get("value"))
                .filter(|_| kind == "text")?;
            text.as_str().map(str::to_owned)
        }
        _ => None,
    };
    match content {
        Value::String(text) => Some(text),
        Value::Array(parts) => parts.iter().map(of_part).collect(),
        _ => None,
    }
}

/// The `tool_calls` of a ShareGPT function call, which is JSON text.
fn function_call(content: &str) -> Option<Value> {
    let call: Value = serde_json::from_str(content).ok()?;
    let calls = match call {
        Value::Array(calls) => calls,
        other => vec![other],
    };
    let all_named = calls.iter().all(|call| call.get("name").is_some_and(Value::is_string));
    let wrap = |call| json!({"type": "function", "function": call});
    (all_named && !calls.is_empty()).then(|| calls.into_iter().map(wrap).collect())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::data::Unit;

    fn read(items: Value) -> Result<Vec<Message>, DataError> {
        let location = RowLocation::new(&Path::new("chat.jsonl").into(), Unit::Line, 7);
        let Value::Array(items) = items else { panic!("a list") };
        read_messages(&location, items)
    }

    #[test]
    fn both_layouts_become_one() {
        let messages = read(json!([
            {"from": "human", "value": "hi", "name": null},
            {"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "text", "value": "b"}]},
            {"role": "assistant", "content": "c", "weight": 0},
        ]))
        .unwrap();
        assert_eq!(messages[0].value, json!({"role": "user", "content": "hi"}));
        assert_eq!(messages[1].value, json!({"role": "assistant", "content": "ab"}));
        assert_eq!(
            messages.iter().map(|m| m.is_target).collect::<Vec<_>>(),
            [false, true, false]
        );
    }

    #[test]
    fn function_calls_become_tool_calls() {
        let messages = read(json!([
            {"from": "function_call", "value": "{\"name\": \"f\", \"arguments\": {\"x\": 1}}"},
            {"from": "observation", "value": "2"},
        ]))
        .unwrap();
        let function = &messages[0].value["tool_calls"][0]["function"];
        assert_eq!(function, &json!({"name": "f", "arguments": {"x": 1}}));
        assert_eq!(messages[1].value["role"], "tool");
        assert!(
            messages[0]
                .call_text
                .as_deref()
                .is_some_and(|text| text.contains("arguments"))
        );
    }

    #[test]
    fn null_keys_are_dropped_and_reasoning_has_the_names_that_templates_read() {
        let messages = read(json!([
            {"role": "assistant", "content": null, "name": null, "thinking": "2+2", "tool_calls": [
                {"type": "function", "function": {"name": "f", "arguments": {"x": 1, "y": null}}}]},
            {"role": "user", "content": "q", "tool_calls": null},
            {"role": "assistant", "content": "", "tool_calls": []},
        ]))
        .unwrap();
        let calls = json!([{"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}]);
        let expected = json!({"role": "assistant", "thinking": "2+2", "reasoning_content": "2+2", "tool_calls": calls});
        assert_eq!(messages[0].value, expected);
        assert_eq!(messages[1].value, json!({"role": "user", "content": "q"}));
        assert_eq!(messages[2].value, json!({"role": "assistant", "content": ""}));
        // An answer that says nothing teaches nothing.
        assert_eq!([0, 2].map(|index: usize| messages[index].is_target), [true, false]);
    }

    #[test]
    fn what_a_message_says_of_itself_decides() {
        let learnt = |field: Value| {
            let mut answer = json!({"role": "assistant", "content": "a"});
            answer
                .as_object_mut()
                .unwrap()
                .extend(field.as_object().unwrap().clone());
            read(json!([answer])).map(|messages| messages[0].is_target)
        };
        for no in [
            json!({"train": false}),
            json!({"training": "no"}),
            json!({"loss": false}),
            json!({"loss_weight": 0.0}),
            json!({"masked": true}),
            json!({"weight": 0}),
            json!({"weight": false}),
            json!({"weight": "0"}),
            json!({"weight": 1, "masked": 1}),
        ] {
            assert_eq!(learnt(no.clone()).ok(), Some(false), "{no}");
        }
        for yes in [
            json!({"train": true}),
            json!({"masked": 0}),
            json!({"weight": 1.0}),
            json!({"loss": null}),
        ] {
            assert_eq!(learnt(yes.clone()).ok(), Some(true), "{yes}");
        }
        for other in [
            json!({"weight": 0.5}),
            json!({"loss": "some"}),
            json!({"train_detail": [{"end": 3}]}),
        ] {
            assert!(learnt(other.clone()).is_err(), "{other}");
        }
        let asked = read(json!([{"role": "user", "content": "q", "train": true}])).unwrap();
        assert!(asked[0].asks && !asked[0].is_target);
    }

    #[test]
    fn mistakes_name_the_line_and_the_message() {
        let cases = [
            (
                json!([{"role": "user", "content": "a"}, {"role": "wizard", "content": "b"}]),
                "message 2",
                "`wizard`",
            ),
            (json!([{"content": "a"}]), "message 1", "`role`"),
            (json!([{"role": "user"}]), "message 1", "`content`"),
            (
                json!([{"role": "user", "content": [{"type": "image"}]}]),
                "message 1",
                "not text",
            ),
            (json!(["hello"]), "message 1", "object"),
        ];
        for (items, message, problem) in cases {
            let error = read(items).err().unwrap().to_string();
            for part in ["chat.jsonl line 7", message, problem] {
                assert!(error.contains(part), "{error}");
            }
        }
    }
}
