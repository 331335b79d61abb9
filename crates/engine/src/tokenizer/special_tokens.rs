//! The special tokens of a model, read from `tokenizer_config.json` and its neighbours.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::TokenizerError;
use crate::hub::TokenizerFiles;
use peft_tune_core::bounded;

/// A special token: its text and its id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpecialToken {
    pub text: String,
    pub id: u32,
}

/// The special tokens of a model, where it has them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpecialTokens {
    pub bos: Option<SpecialToken>,
    pub eos: Option<SpecialToken>,
    pub pad: Option<SpecialToken>,
    pub unk: Option<SpecialToken>,
    /// `add_bos_token`, where the file says it; otherwise `tokenizer.json` decides alone.
    pub add_bos: Option<bool>,
    /// `add_eos_token`, likewise.
    pub add_eos: Option<bool>,
}

/// A JSON file beside the tokenizer, read whole.
pub(super) struct SideFile {
    pub path: PathBuf,
    pub bytes: Vec<u8>,
    pub json: Map<String, Value>,
}

impl SideFile {
    /// Reads `path`, which must hold a JSON object.
    pub(super) fn read(path: &Path) -> Result<Self, TokenizerError> {
        let bytes = bounded::read(path, bounded::SETTINGS_BYTES).map_err(|source| TokenizerError::Read {
            path: path.to_owned(),
            source,
        })?;
        let json = serde_json::from_slice(strip_bom(&bytes)).map_err(|source| TokenizerError::BadJson {
            path: path.to_owned(),
            source,
        })?;
        Ok(Self {
            path: path.to_owned(),
            bytes,
            json,
        })
    }

    pub(super) fn bad_key(&self, key: &str, expected: &'static str) -> TokenizerError {
        TokenizerError::BadKey {
            path: self.path.clone(),
            key: key.to_owned(),
            expected,
        }
    }

    /// The text of a special token, given as a string or as an object with `content`.
    fn token(&self, key: &str) -> Result<Option<String>, TokenizerError> {
        match self.json.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(Value::Object(object)) => match object.get("content") {
                Some(Value::String(text)) => Ok(Some(text.clone())),
                _ => Err(self.bad_key(key, "a string or an object with `content`")),
            },
            Some(_) => Err(self.bad_key(key, "a string or an object with `content`")),
        }
    }

    fn flag(&self, key: &str) -> Result<Option<bool>, TokenizerError> {
        match self.json.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(_) => Err(self.bad_key(key, "true or false")),
        }
    }
}

impl SpecialTokens {
    /// Reads the special tokens; `id_of` finds a token's id. The first file that names a token decides.
    pub(super) fn read(files: &[SideFile], id_of: impl Fn(&str) -> Option<u32>) -> Result<Self, TokenizerError> {
        let token = |key: &str| -> Result<Option<SpecialToken>, TokenizerError> {
            for file in files {
                let Some(text) = file.token(key)? else { continue };
                let id = id_of(&text).ok_or_else(|| TokenizerError::NotInVocabulary {
                    path: file.path.clone(),
                    key: key.to_owned(),
                    token: text.clone(),
                })?;
                return Ok(Some(SpecialToken { text, id }));
            }
            Ok(None)
        };
        let flag = |key: &str| files.first().map_or(Ok(None), |file| file.flag(key));
        Ok(Self {
            bos: token("bos_token")?,
            eos: token("eos_token")?,
            // A pad token outside the vocabulary harms nobody here: nothing is ever padded.
            pad: token("pad_token").unwrap_or_default(),
            unk: token("unk_token").unwrap_or_default(),
            add_bos: flag("add_bos_token")?,
            add_eos: flag("add_eos_token")?,
        })
    }
}

/// The ids of `eos_token_id` in `generation_config.json`: one number or a list; empty where the file or key is absent.
pub(super) fn stop_ids(files: &TokenizerFiles) -> Result<Vec<u32>, TokenizerError> {
    let Some(path) = &files.generation_config else {
        return Ok(Vec::new());
    };
    let file = SideFile::read(path)?;
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    let bad = || file.bad_key("eos_token_id", "a token id or a list of them");
    match file.json.get("eos_token_id") {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(ids)) => ids.iter().map(|value| id(value).ok_or_else(bad)).collect(),
        Some(value) => Ok(vec![id(value).ok_or_else(bad)?]),
    }
}

/// Drops a UTF-8 byte order mark.
pub(super) fn strip_bom(bytes: &[u8]) -> &[u8] {
    bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(json: &str) -> SideFile {
        SideFile {
            path: "tokenizer_config.json".into(),
            bytes: Vec::new(),
            json: serde_json::from_str(json).unwrap(),
        }
    }

    fn read(files: &[SideFile]) -> Result<SpecialTokens, TokenizerError> {
        SpecialTokens::read(files, |text| {
            ["<s>", "</s>"].iter().position(|t| *t == text).map(|i| i as u32)
        })
    }

    #[test]
    fn tokens_are_strings_or_objects_and_the_first_file_wins() {
        let config = file(r#"{"bos_token": {"content": "<s>", "lstrip": false}, "add_bos_token": true}"#);
        let map = file(r#"{"bos_token": "</s>", "eos_token": "</s>", "pad_token": null}"#);
        let tokens = read(&[config, map]).unwrap();
        assert_eq!(tokens.bos.unwrap().id, 0);
        assert_eq!(tokens.eos.unwrap().id, 1);
        assert_eq!((tokens.pad, tokens.add_bos, tokens.add_eos), (None, Some(true), None));
    }

    #[test]
    fn mistakes_name_the_key() {
        let wrong = read(&[file(r#"{"eos_token": 3}"#)]).unwrap_err();
        assert!(wrong.to_string().contains("`eos_token`"), "{wrong}");
        let unknown = read(&[file(r#"{"eos_token": "<e>"}"#)]).unwrap_err();
        assert!(unknown.to_string().contains("`<e>`"), "{unknown}");
        let flag = read(&[file(r#"{"add_bos_token": "yes"}"#)]).unwrap_err();
        assert!(flag.to_string().contains("add_bos_token"), "{flag}");
    }
}
