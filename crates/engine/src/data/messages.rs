//! Chat messages in the layouts that people have, brought into the one that chat templates expect.

use serde_json::{Map, Value, json};

use super::{DataError, RowLocation};

/// One message, and whether it is an answer to learn.
pub(super) struct Message {
    /// Object with `role` and `content`, and what else the template may want (`tool_calls`, `name`, ...).
    pub value: Value,
    pub is_target: bool,
}

/// Reads `{role, content}` or `{from, value}` messages. An assistant's message is a target unless its `weight` is 0.
pub(super) fn read_messages(location: &RowLocation, items: Vec<Value>) -> Result<Vec<Message>, DataError> {
    let numbered = items.into_iter().enumerate();
    numbered
        .map(|(index, item)| read_message(location, index + 1, item))
        .collect()
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
    let role = fields.remove("role").or_else(|| fields.remove("from"));
    let Some(Value::String(role)) = role.filter(|role| !role.is_null()) else {
        return Err(bad("has no text `role` (or `from`)"));
    };
    let content = fields
        .remove("content")
        .or_else(|| fields.remove("value"))
        .unwrap_or_default();
    let weight = fields.remove("weight").and_then(|weight| weight.as_f64());
    // Files with one schema for all rows have null where a field does not apply.
    fields.retain(|_, value| !value.is_null());

    let (role, is_call) = canonical_role(&role).ok_or_else(|| DataError::UnknownRole {
        location: location.clone(),
        message: number,
        role: role.clone(),
    })?;
    let mut content = flatten(content).ok_or_else(|| bad("has content that is not text"))?;
    if let (true, Some(calls)) = (is_call, function_call(&content)) {
        fields.insert("tool_calls".to_owned(), calls);
        content = Value::from("");
    }
    if content.is_null() && !fields.contains_key("tool_calls") {
        return Err(bad("has no `content` (or `value`)"));
    }
    let mut value = Map::from_iter([("role".to_owned(), Value::from(role)), ("content".to_owned(), content)]);
    value.append(&mut fields);
    Ok(Message {
        value: Value::Object(value),
        is_target: role == "assistant" && weight != Some(0.0),
    })
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

/// Content as one text: itself, or the parts of a list that are all text. Null stays null.
fn flatten(content: Value) -> Option<Value> {
    match content {
        Value::Null | Value::String(_) => Some(content),
        Value::Array(parts) => {
            let text = |part: &Value| match part {
                Value::String(text) => Some(text.clone()),
                Value::Object(part) => part.get("text")?.as_str().map(str::to_owned),
                _ => None,
            };
            Some(Value::from(parts.iter().map(text).collect::<Option<String>>()?))
        }
        _ => None,
    }
}

/// The `tool_calls` of a ShareGPT function call, which is JSON text.
fn function_call(content: &Value) -> Option<Value> {
    let call: Value = serde_json::from_str(content.as_str()?).ok()?;
    let calls = match call {
        Value::Array(calls) => calls,
        other => vec![other],
    };
    let all_named = calls.iter().all(|call| call.get("name").is_some_and(Value::is_string));
    let wrap = |call| json!({"type": "function", "function": call});
    all_named.then(|| calls.into_iter().map(wrap).collect())
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
            {"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
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
