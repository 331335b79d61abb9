//! The special tokens of a model, read from `tokenizer_config.json` and its neighbours.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::TokenizerError;
use crate::hub::TokenizerFiles;
use peft_tune_core::{bounded, python_json};

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
        let json = python_json::from_slice(strip_bom(&bytes)).map_err(|source| TokenizerError::BadJson {
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

/// The ids that end a text: those of `eos_token_id` in `generation_config.json` and in `config.json`, whose `text_config` counts too;
/// empty where the files or keys are absent. transformers makes the first file of the second where there is no first.
pub(super) fn stop_ids(files: &TokenizerFiles) -> Result<Vec<u32>, TokenizerError> {
    let mut ids = Vec::new();
    for path in files.generation_config.iter().chain(&files.model_config) {
        let file = SideFile::read(path)?;
        let of_text = file.json.get("text_config").and_then(Value::as_object);
        for part in [Some(&file.json), of_text].into_iter().flatten() {
            for id in end_ids(&file, part.get("eos_token_id"))? {
                if !ids.contains(&id) {
                    ids.push(id);
                }
            }
        }
    }
    Ok(ids)
}

/// One id or a list of them.
fn end_ids(file: &SideFile, value: Option<&Value>) -> Result<Vec<u32>, TokenizerError> {
    let values: &[Value] = match value {
        None | Some(Value::Null) => &[],
        Some(Value::Array(all)) => all,
        Some(one) => std::slice::from_ref(one),
    };
    let bad = || file.bad_key("eos_token_id", "a token id or a list of them");
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok()).ok_or_else(bad);
    // A negative number stands for no token.
    let named = values.iter().filter(|value| value.as_i64().is_none_or(|id| id >= 0));
    named.map(id).collect()
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
    fn all_files_of_a_model_name_what_ends_a_text() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: Option<&str>| {
            let path = folder.path().join(name);
            text.map(|text| std::fs::write(&path, text).unwrap()).map(|()| path)
        };
        let found = |generation: Option<&str>, model: Option<&str>| {
            stop_ids(&TokenizerFiles {
                tokenizer: folder.path().join("tokenizer.json"),
                config: None,
                special_tokens_map: None,
                chat_template: None,
                generation_config: write("generation_config.json", generation),
                model_config: write("config.json", model),
            })
        };
        let ids = |generation, model| found(generation, model).unwrap();
        assert_eq!(ids(None, None), [0; 0]);
        assert_eq!(ids(None, Some(r#"{"eos_token_id": [2, 7]}"#)), [2, 7]);
        assert_eq!(
            ids(Some(r#"{"eos_token_id": 5}"#), Some(r#"{"eos_token_id": [2, 5]}"#)),
            [5, 2]
        );
        let multimodal = r#"{"eos_token_id": null, "text_config": {"eos_token_id": 9}}"#;
        assert_eq!(ids(Some("{}"), Some(multimodal)), [9]);
        assert_eq!(ids(None, Some(r#"{"eos_token_id": -1}"#)), [0; 0]);
        for wrong in [r#"{"eos_token_id": "</s>"}"#, r#"{"eos_token_id": [2, 5000000000]}"#] {
            let error = found(None, Some(wrong)).unwrap_err().to_string();
            assert!(
                error.contains("config.json") && error.contains("eos_token_id"),
                "{error}"
            );
        }
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
