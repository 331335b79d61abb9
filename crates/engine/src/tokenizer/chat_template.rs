//! Chat templates: from messages to the text that the model sees.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use minijinja::{Environment, Value};

use super::bounds::check_size;
use super::generation::{reserved_in, rewrite, take_markers};
use super::jinja::{environment, from_json};
use super::{SpecialTokens, TokenizerError};

/// A model's chat template, compiled, or several by name of which `default` and `tool_use` are used.
#[derive(Clone)]
pub struct ChatTemplate {
    environment: Arc<Environment<'static>>,
    /// Special tokens by the names that templates know them by.
    special: Arc<BTreeMap<&'static str, String>>,
    /// Names of the templates whose generated parts are marked.
    marked: Arc<Vec<String>>,
    origin: Arc<str>,
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
        for (name, template) in templates {
            // Jinja takes every line end for `\n`.
            let source = template.replace("\r\n", "\n").replace('\r', "\n");
            let rewritten = rewrite(&source);
            if rewritten.is_some() {
                marked.push(name.clone());
            }
            let source = rewritten.unwrap_or(source);
            check_size(&source)
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
            origin: origin.into(),
        })
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
    pub fn conversation(
        &self,
        messages: &[serde_json::Value],
        tools: Option<&serde_json::Value>,
    ) -> Result<Conversation, TokenizerError> {
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
            messages: messages.iter().map(from_json).collect(),
            tools: tools.map_or_else(|| Value::from(()), from_json),
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
pub struct Conversation {
    template: ChatTemplate,
    name: &'static str,
    is_marked: bool,
    messages: Vec<Value>,
    tools: Value,
}

impl Conversation {
    /// The text that the template knows as the end of a document; empty where the model has none.
    pub fn eos(&self) -> &str {
        self.template.special.get("eos_token").map_or("", String::as_str)
    }

    /// Renders the first `count` messages.
    ///
    /// # Errors
    /// Fails where the template does: on roles that it refuses, or fields that it misses.
    pub fn render(&self, count: usize, prompt: GenerationPrompt) -> Result<Rendered, TokenizerError> {
        let messages: Value = self.messages.iter().take(count).cloned().collect();
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
