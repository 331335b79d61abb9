//! A tokenizer as GGUF's metadata has it, from `tokenizer.json`.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;

use crate::gguf::{GgufError, Metadata, Value};
use crate::hub::TokenizerFiles;
use crate::tokenizer::{SpecialToken, Specials, Tokenizer};
use peft_tune_core::bounded;

/// Kinds of tokens.
const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;
const BYTE: i32 = 6;

/// Regular expressions that cut text before merging, and what llama.cpp calls them.
const SPLITS: &[(&str, &str)] = &[
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        "llama-bpe",
    ),
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        "qwen2",
    ),
];

/// Fields of `tokenizer.json` that become metadata.
#[derive(Deserialize)]
struct File {
    model: Model,
    #[serde(default)]
    added_tokens: Vec<Added>,
    #[serde(default)]
    pre_tokenizer: serde_json::Value,
}

#[derive(Deserialize)]
struct Model {
    #[serde(rename = "type")]
    kind: Option<String>,
    #[serde(default)]
    vocab: serde_json::Value,
    #[serde(default)]
    merges: Vec<Merge>,
    #[serde(default)]
    byte_fallback: bool,
    unk_token: Option<String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Merge {
    Text(String),
    Pair(String, String),
}

#[derive(Deserialize)]
struct Added {
    id: u32,
    content: String,
    #[serde(default)]
    special: bool,
}

/// Metadata that is written of a tokenizer.
pub(super) struct Vocabulary {
    pub keys: Metadata,
    /// Notes on where llama.cpp may cut text otherwise.
    pub notes: Vec<String>,
}

/// Keys and values for the tokenizer of a model with `rows` tokens.
///
/// # Errors
/// A file that cannot be read; a tokenizer that is not BPE.
pub(super) fn of_tokenizer(
    files: &TokenizerFiles,
    tokenizer: &Tokenizer,
    rows: usize,
) -> Result<Vocabulary, GgufError> {
    let path = files.tokenizer.as_path();
    let text = bounded::read(path, bounded::SETTINGS_BYTES).map_err(|source| GgufError::File {
        path: path.to_owned(),
        source,
    })?;
    let refused = |what: String| GgufError::Vocabulary {
        path: path.to_owned(),
        what,
    };
    let file: File = serde_json::from_slice(&text).map_err(|error| refused(error.to_string()))?;
    let kind = file.model.kind.clone().unwrap_or_default();
    let vocab: BTreeMap<String, u32> = match kind.as_str() {
        "BPE" => serde_json::from_value(file.model.vocab.clone()).map_err(|error| refused(error.to_string()))?,
        _ => return Err(refused(format!("its model is `{kind}`, not `BPE`"))),
    };
    let (tokens, kinds) = tokens(&file, &vocab, rows);
    let mut notes = Vec::new();
    let mut keys = Vec::new();
    if file.model.byte_fallback {
        keys.push(("model", Value::Text("llama".to_owned())));
        // Pieces are numbered from the most to the least probable, and only the order of their scores counts.
        keys.push((
            "scores",
            Value::F32s((0..tokens.len()).map(|id| -(id as f32)).collect()),
        ));
    } else {
        keys.push(("model", Value::Text("gpt2".to_owned())));
        let split = split_name(&file.pre_tokenizer).unwrap_or_else(|| {
            notes.push(
                "llama.cpp has no name for the way this tokenizer cuts text; `default` is written, and some texts may \
                 become other tokens there"
                    .to_owned(),
            );
            "default"
        });
        keys.push(("pre", Value::Text(split.to_owned())));
        keys.push((
            "merges",
            Value::Texts(file.model.merges.iter().map(merge_text).collect()),
        ));
    }
    keys.push(("tokens", Value::Texts(tokens)));
    keys.push(("token_type", Value::I32s(kinds)));
    keys.extend(specials(tokenizer));
    let mut named: Metadata = keys
        .into_iter()
        .map(|(key, value)| (format!("tokenizer.ggml.{key}"), value))
        .collect();
    if let Some(template) = chat_template(files) {
        named.push(("tokenizer.chat_template".to_owned(), Value::Text(template)));
    }
    Ok(Vocabulary { keys: named, notes })
}

/// The chat template as it is written: the file of that name, else what `tokenizer_config.json` says.
fn chat_template(files: &TokenizerFiles) -> Option<String> {
    let read = |path: &Path| bounded::read_text(path, bounded::SETTINGS_BYTES).ok();
    if let Some(text) = files.chat_template.as_deref().and_then(read) {
        return Some(text);
    }
    let config: serde_json::Value = serde_json::from_str(&read(files.config.as_deref()?)?).ok()?;
    let template = config.get("chat_template")?;
    let is_default = |named: &&serde_json::Value| named.get("name").is_some_and(|name| name == "default");
    let of_list = || template.as_array()?.iter().find(is_default)?.get("template")?.as_str();
    template.as_str().or_else(of_list).map(str::to_owned)
}

fn specials(tokenizer: &Tokenizer) -> Vec<(&'static str, Value)> {
    let special = tokenizer.special();
    let id = |token: &Option<SpecialToken>| token.as_ref().map(|token| Value::U32(token.id));
    let ids = [
        ("bos_token_id", id(&special.bos)),
        ("eos_token_id", id(&special.eos)),
        ("padding_token_id", id(&special.pad)),
        ("unknown_token_id", id(&special.unk)),
        ("add_bos_token", Some(Value::Bool(adds_bos(tokenizer)))),
    ];
    ids.into_iter().filter_map(|(key, value)| Some((key, value?))).collect()
}

/// Whether the tokenizer begins a text with the token that begins one.
fn adds_bos(tokenizer: &Tokenizer) -> bool {
    let bos = tokenizer.special().bos.as_ref().map(|bos| bos.id);
    let encoded = tokenizer.encode("a", Specials::Add);
    bos.is_some() && encoded.is_ok_and(|encoded| encoded.ids.first().copied() == bos)
}

/// Text and kind of every token, rows of the embedding without one included.
fn tokens(file: &File, vocab: &BTreeMap<String, u32>, rows: usize) -> (Vec<String>, Vec<i32>) {
    let mut tokens: Vec<String> = (0..rows).map(|id| format!("[PAD{id}]")).collect();
    let mut kinds = vec![UNUSED; rows];
    let mut put = |id: u32, text: &str, kind: i32| {
        if let (Some(token), Some(known)) = (tokens.get_mut(id as usize), kinds.get_mut(id as usize)) {
            text.clone_into(token);
            *known = kind;
        }
    };
    for (text, id) in vocab {
        let is_byte = file.model.byte_fallback && text.len() == 6 && text.starts_with("<0x") && text.ends_with('>');
        let is_unknown = file.model.unk_token.as_ref() == Some(text);
        put(
            *id,
            text,
            if is_byte {
                BYTE
            } else if is_unknown {
                UNKNOWN
            } else {
                NORMAL
            },
        );
    }
    for added in &file.added_tokens {
        let is_unknown = file.model.unk_token.as_ref() == Some(&added.content);
        let kind = if is_unknown {
            UNKNOWN
        } else if added.special {
            CONTROL
        } else {
            USER_DEFINED
        };
        put(added.id, &added.content, kind);
    }
    (tokens, kinds)
}

fn merge_text(merge: &Merge) -> String {
    match merge {
        Merge::Text(text) => text.clone(),
        Merge::Pair(left, right) => format!("{left} {right}"),
    }
}

/// Name that llama.cpp has for the way in which text is cut.
fn split_name(pre_tokenizer: &serde_json::Value) -> Option<&'static str> {
    let steps = match pre_tokenizer.get("pretokenizers") {
        Some(steps) => steps.as_array()?.clone(),
        None => vec![pre_tokenizer.clone()],
    };
    let expression = |step: &serde_json::Value| Some(step.get("pattern")?.get("Regex")?.as_str()?.to_owned());
    if let Some(expression) = steps.iter().find_map(expression) {
        return SPLITS
            .iter()
            .find(|(known, _)| *known == expression)
            .map(|(_, name)| *name);
    }
    let is_gpt2 = |step: &serde_json::Value| {
        step.get("type").is_some_and(|kind| kind == "ByteLevel")
            && step.get("use_regex").is_none_or(|cuts| cuts == true)
    };
    steps.iter().any(is_gpt2).then_some("gpt-2")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ways_to_cut_text_have_the_names_of_llama_cpp() {
        let of = |text: &str| split_name(&serde_json::from_str(text).unwrap());
        assert_eq!(of(r#"{"type": "ByteLevel", "use_regex": true}"#), Some("gpt-2"));
        assert_eq!(of(r#"{"type": "ByteLevel", "use_regex": false}"#), None);
        let split = |expression: &str| {
            let split = serde_json::json!({"type": "Split", "pattern": {"Regex": expression}});
            serde_json::json!({"pretokenizers": [split, {"type": "ByteLevel", "use_regex": false}]})
        };
        assert_eq!(split_name(&split(SPLITS[0].0)), Some("llama-bpe"));
        assert_eq!(split_name(&split(SPLITS[1].0)), Some("qwen2"));
        assert_eq!(split_name(&split("x+")), None);
    }
}
