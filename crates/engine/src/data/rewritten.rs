//! Changes that a chat template makes to a chat and that users may not expect: calls in quotes, or without their
//! reasoning.
//!
//! The text is what transformers renders, too; only it is not what the file seems to hold.

use serde_json::Value;

use super::example::Chat;
use super::said::Said;
use crate::tokenizer::REASONING;

/// Adds what holds of `text`, the whole rendered chat.
pub(super) fn note_rewritten(chat: &Chat, text: &str, said: &mut Vec<Said>) {
    if chat.messages.iter().any(|message| has_quoted_call(message, text)) {
        said.push(Said::ArgumentsQuoted);
    }
    if chat.messages.iter().any(|message| has_dropped_reasoning(message, text)) {
        said.push(Said::ReasoningDropped);
    }
}

/// The texts of arguments that are JSON text where templates expect an object.
pub(super) fn argument_texts(message: &Value) -> impl Iterator<Item = &str> {
    let calls = message
        .get("tool_calls")
        .and_then(Value::as_array)
        .into_iter()
        .flatten();
    calls.filter_map(|call| call.get("function").unwrap_or(call).get("arguments")?.as_str())
}

/// Whether arguments that came as JSON text stand in the chat as a JSON string (`"{\"x\": 1}"`), as `tojson` writes texts.
fn has_quoted_call(message: &Value, text: &str) -> bool {
    argument_texts(message).any(|arguments| {
        let quoted = Value::from(arguments).to_string();
        quoted.contains('\\') && text.contains(&quoted) && !text.contains(arguments)
    })
}

/// Whether an answer has reasoning that is not in the chat.
fn has_dropped_reasoning(message: &Value, text: &str) -> bool {
    let field = || REASONING.iter().find_map(|key| message.get(*key)?.as_str());
    // What templates take for reasoning in a text.
    let within = || {
        let (before, _) = message.get("content")?.as_str()?.split_once("</think>")?;
        Some(before.rsplit("<think>").next().unwrap_or(before))
    };
    let is_answer = message.get("role").is_some_and(|role| role == "assistant");
    let reasoning = field().or_else(within).map(str::trim).unwrap_or_default();
    is_answer && !text.contains(reasoning)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn said(message: Value, text: &str) -> Vec<Said> {
        let mut said = Vec::new();
        let chat = Chat {
            messages: vec![message],
            tools: None,
            targets: vec![true],
            call_texts: vec![None],
            said: Vec::new(),
            is_plain: false,
        };
        note_rewritten(&chat, text, &mut said);
        said
    }

    #[test]
    fn calls_in_quotes_are_told() {
        let call = |arguments: Value| {
            let call = json!({"function": {"name": "f", "arguments": arguments}});
            json!({"role": "assistant", "tool_calls": [call]})
        };
        let text = json!("{\"x\": 1}");
        assert_eq!(
            said(call(text.clone()), r#"{"arguments": "{\"x\": 1}"}"#),
            [Said::ArgumentsQuoted]
        );
        assert_eq!(said(call(text), r#"{"arguments": {"x": 1}}"#), []);
        assert_eq!(said(call(json!({"x": 1})), r#"{"arguments": {"x": 1}}"#), []);
        assert_eq!(said(call(json!("{}")), r#"{"arguments": "{}"}"#), []);
    }

    #[test]
    fn reasoning_that_is_dropped_is_told() {
        let field = json!({"role": "assistant", "content": "four", "reasoning_content": "two and two"});
        let within = json!({"role": "assistant", "content": "<think>\ntwo and two\n</think>\n\nfour"});
        for message in [field, within] {
            assert_eq!(said(message.clone(), "q four"), [Said::ReasoningDropped]);
            assert_eq!(said(message, "q two and two four"), []);
        }
        let empty = json!({"role": "assistant", "content": "<think>\n\n</think>\n\nfour"});
        assert_eq!(said(empty, "q four"), []);
    }
}
