//! Chat templates: from messages to the text that the model sees.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use minijinja::{Environment, Value};
use serde_json::json;

use super::bounds::{check_safe, check_size};
use super::generation::{reserved_in, rewrite, take_markers};
use super::jinja::{environment, from_json};
use super::places::{Marked, MarkedMessages, Places};
use super::{SpecialTokens, TokenizerError};

/// A model's chat template, compiled, or several by name of which `default` and `tool_use` are used.
#[derive(Clone)]
pub struct ChatTemplate {
    environment: Arc<Environment<'static>>,
    /// Special tokens by the names that templates know them by.
    special: Arc<BTreeMap<&'static str, String>>,
    /// Names of the templates whose generated parts are marked.
    marked: Arc<Vec<String>>,
    /// Texts of the special tokens, by which turns are told apart.
    controls: Arc<Vec<String>>,
    writes: Arc<OnceLock<Writes>>,
    /// Whether it asks for the day.
    asks_for_day: bool,
    origin: Arc<str>,
}

/// Parts of chats with tools that a template writes.
#[derive(Clone, Copy, Debug)]
struct Writes {
    tools: bool,
    /// Calls of a message that says something besides, and of one that does not.
    calls_beside_text: bool,
    calls_alone: bool,
}

/// Name of the template that is used unless a chat comes with tools.
pub(super) const DEFAULT: &str = "default";
/// Name of the one for chats with tools.
const TOOL_USE: &str = "tool_use";

/// Whether the text ends in what opens the model's next answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GenerationPrompt {
    Add,
    Omit,
}

/// A rendered chat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendered {
    pub text: String,
    /// Byte ranges of `text` inside the template's `{% generation %}` blocks; `None` where it has no such blocks.
    pub generated: Option<Vec<Range<usize>>>,
}

impl ChatTemplate {
    /// Compiles templates, given by name; `origin` is told in errors.
    ///
    /// # Errors
    /// Fails on a template that does not compile.
    pub fn new(templates: &[(String, String)], special: &SpecialTokens, origin: &str) -> Result<Self, TokenizerError> {
        let mut environment = environment();
        let mut marked = Vec::new();
        let asks_for_day = templates.iter().any(|(_, template)| template.contains("strftime_now("));
        for (name, template) in templates {
            // Jinja takes every line end for `\n`.
            let source = template.replace("\r\n", "\n").replace('\r', "\n");
            let rewritten = rewrite(&source);
            if rewritten.is_some() {
                marked.push(name.clone());
            }
            let source = rewritten.unwrap_or(source);
            check_size(&source)
                .and_then(|()| check_safe(&source))
                .and_then(|()| environment.add_template_owned(name.clone(), source))
                .map_err(|source| TokenizerError::TemplateSyntax {
                    origin: origin.to_owned(),
                    source,
                })?;
        }
        let tokens = [
            ("bos_token", &special.bos),
            ("eos_token", &special.eos),
            ("pad_token", &special.pad),
            ("unk_token", &special.unk),
        ];
        let special = tokens
            .into_iter()
            .filter_map(|(name, token)| Some((name, token.as_ref()?.text.clone())))
            .collect();
        Ok(Self {
            environment: Arc::new(environment),
            special: Arc::new(special),
            marked: Arc::new(marked),
            controls: Arc::default(),
            writes: Arc::default(),
            asks_for_day,
            origin: origin.into(),
        })
    }

    /// Whether it asks for the day, which is always the same one.
    pub(crate) fn asks_for_day(&self) -> bool {
        self.asks_for_day
    }

    /// Whether the tools of a chat are written.
    pub(crate) fn writes_tools(&self) -> bool {
        self.writes().tools
    }

    /// Whether the calls of a message are written: some templates write none, some only those of a message without text.
    pub(crate) fn writes_calls(&self, has_text: bool) -> bool {
        match has_text {
            true => self.writes().calls_beside_text,
            false => self.writes().calls_alone,
        }
    }

    /// Tries the template on a few chats with names that are nowhere else.
    fn writes(&self) -> Writes {
        const NAME: &str = "zqxlook";
        *self.writes.get_or_init(|| {
            let tools = json!([{"type": "function", "function": {"name": NAME, "description": "d",
                "parameters": {"type": "object", "properties": {}, "required": []}}}]);
            let shows = |messages: &[serde_json::Value], tools: Option<&serde_json::Value>| {
                let chat = self.conversation(messages, tools);
                let rendered = chat.and_then(|chat| chat.render(messages.len(), GenerationPrompt::Omit));
                rendered.is_ok_and(|rendered| rendered.text.contains(NAME))
            };
            let user = || json!({"role": "user", "content": "q"});
            let calls = |text: Option<&str>| {
                // Templates want arguments as an object or as JSON text, and calls with an answer behind them or not.
                [json!({"x": NAME}), json!(format!("{{\"x\": \"{NAME}\"}}"))]
                    .into_iter()
                    .any(|arguments| {
                        let mut call = json!({"role": "assistant", "tool_calls": [
                        {"type": "function", "id": "abcdefghi", "function": {"name": NAME, "arguments": arguments}}]});
                        if let Some(text) = text {
                            call["content"] = text.into();
                        }
                        let result = json!({"role": "tool", "content": "r", "tool_call_id": "abcdefghi", "name": "r"});
                        let answer = json!({"role": "assistant", "content": "a"});
                        let chat = [user(), call, result, answer];
                        shows(&chat, None) || shows(&chat[..2], None) || shows(&chat, Some(&json!([])))
                    })
            };
            Writes {
                tools: shows(&[user(), json!({"role": "assistant", "content": "a"})], Some(&tools))
                    || shows(&[user()], Some(&tools)),
                calls_beside_text: calls(Some("t")),
                calls_alone: calls(None) || calls(Some("")),
            }
        })
    }

    /// The template of a tokenizer whose special tokens have these texts.
    #[must_use]
    pub fn with_controls(mut self, controls: Vec<String>) -> Self {
        self.controls = Arc::new(controls);
        self
    }

    /// The file that it comes from.
    pub fn origin(&self) -> &str {
        &self.origin
    }

    /// Whether the template of chats marks what the model generates.
    pub fn marks_answers(&self) -> bool {
        self.marked.iter().any(|marked| marked == DEFAULT)
    }

    /// A chat to render, whole or in part. Messages are objects as the template expects them, usually with `role`
    /// and `content`; `tools` is a list of function schemas.
    ///
    /// # Errors
    /// Fails where a message holds one of the two characters that mark answers during rendering.
    pub fn conversation<'a>(
        &self,
        messages: &'a [serde_json::Value],
        tools: Option<&serde_json::Value>,
    ) -> Result<Conversation<'a>, TokenizerError> {
        let has_tools = tools.is_some_and(|tools| !tools.is_null());
        let has_tool_use = self.environment.get_template(TOOL_USE).is_ok();
        let name = if has_tools && has_tool_use { TOOL_USE } else { DEFAULT };
        let is_marked = self.marked.iter().any(|marked| marked == name);
        if let Some(code) = messages.iter().find_map(reserved).filter(|_| is_marked) {
            return Err(TokenizerError::ReservedCharacter { code });
        }
        Ok(Conversation {
            template: self.clone(),
            name,
            is_marked,
            source: messages,
            messages: messages.iter().map(from_json).collect(),
            tools: tools.map_or_else(|| Value::from(()), from_json),
            marked: OnceCell::new(),
        })
    }
}

impl fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChatTemplate")
            .field("origin", &self.origin)
            .finish_non_exhaustive()
    }
}

/// The messages of one chat, ready to be rendered.
#[derive(Clone, Debug)]
pub struct Conversation<'a> {
    template: ChatTemplate,
    name: &'static str,
    is_marked: bool,
    source: &'a [serde_json::Value],
    messages: Vec<Value>,
    tools: Value,
    /// The messages with marks in their texts, in the way that the template does not mind, and where these stand.
    marked: OnceCell<Option<(MarkedMessages, Vec<Value>, Places)>>,
}

impl Conversation<'_> {
    /// The text that the template knows as the end of a document; empty where the model has none.
    pub fn eos(&self) -> &str {
        self.template.special.get("eos_token").map_or("", String::as_str)
    }

    /// Whether the template marks answers itself.
    pub(crate) fn is_marked(&self) -> bool {
        self.is_marked
    }

    /// Texts of the tokenizer's special tokens.
    pub(crate) fn controls(&self) -> &[String] {
        &self.template.controls
    }

    /// Places of the texts of all messages in `rendered`, the rendering of all; `None` where the template changes texts
    /// so that they cannot be followed.
    pub(crate) fn whole_places(&self, rendered: &str) -> Option<&Places> {
        let found = self.marked.get_or_init(|| {
            [Marked::Everything, Marked::Contents].into_iter().find_map(|kind| {
                let marked = MarkedMessages::new(self.source, kind)?;
                let messages: Vec<Value> = marked.messages.iter().map(from_json).collect();
                let with_marks = self.render_messages(messages.iter().cloned().collect(), GenerationPrompt::Omit);
                let places = marked.places(&with_marks.ok()?.text, rendered)?;
                Some((marked, messages, places))
            })
        });
        found.as_ref().map(|(_, _, places)| places)
    }

    /// Places of the texts of the first `count` messages in `rendered`, their rendering, once
    /// [`Conversation::whole_places`] has found those of all.
    pub(crate) fn places(&self, count: usize, rendered: &str, prompt: GenerationPrompt) -> Option<Places> {
        let (marked, messages, _) = self.marked.get()?.as_ref()?;
        let with_marks = self.render_messages(messages.iter().take(count).cloned().collect(), prompt);
        marked.places(&with_marks.ok()?.text, rendered)
    }

    /// Places of the texts of all messages in `rendered`, which [`Conversation::render_continued`] rendered.
    pub(crate) fn continued_places(&self, rendered: &str) -> Option<Places> {
        let (marked, messages, _) = self.marked.get()?.as_ref()?;
        let with_marks = self.render_with_next(messages);
        marked.places(&with_marks.ok()?.text, rendered)
    }

    /// Renders all messages and one more behind them: of a tool where the last one calls it, else of the user.
    ///
    /// # Errors
    /// Fails where the template does, as [`Conversation::render`].
    pub(crate) fn render_continued(&self) -> Result<Rendered, TokenizerError> {
        self.render_with_next(&self.messages)
    }

    fn render_with_next(&self, messages: &[Value]) -> Result<Rendered, TokenizerError> {
        let calls = self.source.last().is_some_and(|last| last.get("tool_calls").is_some());
        let role = if calls { "tool" } else { "user" };
        let next = Value::from_pairs([("role", role), ("content", "zqx")]);
        self.render_messages(messages.iter().cloned().chain([next]).collect(), GenerationPrompt::Omit)
    }

    /// Renders the first `count` messages.
    ///
    /// # Errors
    /// Fails where the template does: on roles that it refuses, or fields that it misses.
    pub fn render(&self, count: usize, prompt: GenerationPrompt) -> Result<Rendered, TokenizerError> {
        self.render_messages(self.messages.iter().take(count).cloned().collect(), prompt)
    }

    fn render_messages(&self, messages: Value, prompt: GenerationPrompt) -> Result<Rendered, TokenizerError> {
        let special = self.template.special.iter();
        let context = special.map(|(name, text)| (*name, Value::from(text.as_str()))).chain([
            ("messages", messages),
            ("tools", self.tools.clone()),
            ("documents", Value::from(())),
            ("add_generation_prompt", Value::from(prompt == GenerationPrompt::Add)),
        ]);
        let rendered = self
            .template
            .environment
            .get_template(self.name)
            .and_then(|template| template.render(Value::from_pairs(context)))
            .map_err(|source| TokenizerError::Template {
                origin: self.template.origin.to_string(),
                source,
            })?;
        if !self.is_marked {
            return Ok(Rendered {
                text: rendered,
                generated: None,
            });
        }
        let (text, ranges) = take_markers(&rendered);
        Ok(Rendered {
            text,
            generated: Some(ranges),
        })
    }
}

/// The first marker character anywhere in a message.
fn reserved(value: &serde_json::Value) -> Option<u32> {
    match value {
        serde_json::Value::String(text) => reserved_in(text),
        serde_json::Value::Array(items) => items.iter().find_map(reserved),
        serde_json::Value::Object(map) => map.values().find_map(reserved),
        _ => None,
    }
}
