//! A model's tokenizer, with its special tokens and chat template.

use std::path::Path;
use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::chat_template::DEFAULT;
use super::special_tokens::{SideFile, stop_ids, strip_bom};
use super::{ChatTemplate, GenerationPrompt, SpecialTokens, TokenizerError};
use crate::guarded::guarded;
use crate::hub::TokenizerFiles;
use peft_tune_core::bounded;

/// Bytes that a tokenizer may have at most; those of 256,000 tokens have 40 MB.
const TOKENIZER_BYTES: u64 = 512 << 20;

/// Turns text into token ids and back. Cheap to clone.
#[derive(Clone)]
pub struct Tokenizer {
    inner: Arc<tokenizers::Tokenizer>,
    special: SpecialTokens,
    template: Option<ChatTemplate>,
    stop_ids: Vec<u32>,
    /// Ids of special tokens, ascending.
    special_ids: Arc<Vec<u32>>,
    vocabulary: u32,
    fingerprint: [u8; 32],
}

/// Whether special tokens are put around a text, as the model expects them around a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Specials {
    Add,
    /// Omits them around text that brings its own, such as a rendered chat.
    Omit,
}

/// A tokenised text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Encoded {
    pub ids: Vec<u32>,
    /// Ends of the tokens in the text, in bytes; 0 for special tokens that were put in front. Same length as `ids`.
    pub ends: Vec<usize>,
}

impl Tokenizer {
    /// Opens a model's tokenizer and chat template (`chat_template.jinja` goes before `tokenizer_config.json`).
    ///
    /// # Errors
    /// Fails on files that cannot be read or make no sense; see [`TokenizerError`].
    pub fn open(files: &TokenizerFiles) -> Result<Self, TokenizerError> {
        let bytes = read(&files.tokenizer)?;
        let bad = |reason: String| TokenizerError::BadTokenizer {
            path: files.tokenizer.clone(),
            reason,
        };
        let mut inner = guarded(|| tokenizers::Tokenizer::from_bytes(strip_bom(&bytes))).map_err(bad)?;
        // What the file says about batches of requests must not cut or pad training data.
        guarded(|| inner.with_truncation(None).map(drop)).map_err(bad)?;
        inner.with_padding(None);

        let side_paths = files.config.iter().chain(&files.special_tokens_map);
        let side_files = side_paths
            .map(|path| SideFile::read(path))
            .collect::<Result<Vec<_>, _>>()?;
        let special = SpecialTokens::read(&side_files, |text| inner.token_to_id(text))?;
        let mut hash = Sha256::new_with_prefix(&bytes);
        for file in &side_files {
            hash.update((file.bytes.len() as u64).to_le_bytes());
            hash.update(&file.bytes);
        }
        // Which tokens end an answer decides what of it is learnt.
        let stop_ids = stop_ids(files)?;
        hash.update((stop_ids.len() as u64).to_le_bytes());
        stop_ids.iter().for_each(|id| hash.update(id.to_le_bytes()));
        let added = inner.get_added_tokens_decoder();
        let mut special_ids: Vec<u32> = added
            .iter()
            .filter(|(_, token)| token.special)
            .map(|(id, _)| *id)
            .collect();
        special_ids.sort_unstable();
        let vocabulary = inner.get_vocab(true).values().max().map_or(0, |id| id + 1);
        let mut tokenizer = Self {
            inner: Arc::new(inner),
            special,
            template: None,
            stop_ids,
            special_ids: Arc::new(special_ids),
            vocabulary,
            fingerprint: hash.finalize().into(),
        };
        if let Some(path) = &files.chat_template {
            return tokenizer.with_chat_template(path);
        }
        if let Some(file) = side_files.first().filter(|_| files.config.is_some()) {
            let templates = named_templates(file)?;
            if !templates.is_empty() {
                let origin = file.path.display().to_string();
                let template = ChatTemplate::new(&templates, &tokenizer.special, &origin)?;
                tokenizer.template = Some(template.with_controls(tokenizer.controls()));
            }
        }
        Ok(tokenizer)
    }

    /// Returns the tokenizer with the chat template of a file.
    ///
    /// # Errors
    /// Fails where the file cannot be read, is not UTF-8, or does not compile.
    pub fn with_chat_template(&self, path: &Path) -> Result<Self, TokenizerError> {
        let bytes = read(path)?;
        let text = std::str::from_utf8(strip_bom(&bytes)).map_err(|error| TokenizerError::Read {
            path: path.to_owned(),
            source: std::io::Error::new(std::io::ErrorKind::InvalidData, error),
        })?;
        let templates = [(DEFAULT.to_owned(), text.to_owned())];
        let template = ChatTemplate::new(&templates, &self.special, &path.display().to_string())?;
        let template = template.with_controls(self.controls());
        let hash = Sha256::new_with_prefix(self.fingerprint).chain_update(&bytes);
        Ok(Self {
            template: Some(template),
            fingerprint: hash.finalize().into(),
            ..self.clone()
        })
    }

    /// Tokenises `text`. Special tokens that are written out in it are recognised.
    ///
    /// # Errors
    /// Fails where the tokenizer does, for instance on a character that its vocabulary does not cover.
    pub fn encode(&self, text: &str, specials: Specials) -> Result<Encoded, TokenizerError> {
        let mut encoded = self.encode_as_filed(text, specials)?;
        if specials == Specials::Add {
            self.follow_bos_setting(&mut encoded);
            self.keep_one_bos(&mut encoded);
            self.follow_eos_setting(&mut encoded, text.len());
        }
        Ok(encoded)
    }

    /// Tokenises the start of a document: with the special tokens that belong in front, and none behind.
    ///
    /// # Errors
    /// Errors of [`Tokenizer::encode`].
    pub fn encode_open(&self, text: &str) -> Result<Encoded, TokenizerError> {
        let mut encoded = self.encode_as_filed(text, Specials::Add)?;
        if let Some(last) = encoded.ends.iter().rposition(|end| *end > 0) {
            // What the tokenizer puts behind the text ends at 0.
            encoded.ids.truncate(last + 1);
            encoded.ends.truncate(last + 1);
        }
        self.follow_bos_setting(&mut encoded);
        self.keep_one_bos(&mut encoded);
        Ok(encoded)
    }

    /// The text of `ids`.
    ///
    /// # Errors
    /// Fails where the tokenizer does.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String, TokenizerError> {
        guarded(|| self.inner.decode(ids, skip_special)).map_err(|reason| TokenizerError::Encode { reason })
    }

    /// The special tokens.
    pub fn special(&self) -> &SpecialTokens {
        &self.special
    }

    /// Id of the token that ends a document, where there is one.
    pub fn eos_id(&self) -> Option<u32> {
        self.special.eos.as_ref().map(|token| token.id)
    }

    /// Ids that end an answer when text is generated: those of `generation_config.json`, those of the model's `config.json`, and the
    /// end-of-document token.
    pub fn stop_ids(&self) -> Vec<u32> {
        let mut ids = self.stop_ids.clone();
        ids.extend(self.eos_id().filter(|eos| !self.stop_ids.contains(eos)));
        ids
    }

    /// [`Tokenizer::stop_ids`], and last the token that the chat template ends an answer with, where the others do not have it: a
    /// training on chats teaches it.
    pub fn chat_stop_ids(&self) -> Vec<u32> {
        let mut ids = self.stop_ids();
        ids.extend(self.turn_end().filter(|end| !ids.contains(end)));
        ids
    }

    /// The special token that the chat template ends an answer with; `None` where it writes none.
    pub fn turn_end(&self) -> Option<u32> {
        const ANSWER: &str = "zqxanswer";
        let message = |role: &str, content: &str| serde_json::json!({"role": role, "content": content});
        let messages = [message("user", "zqx"), message("assistant", ANSWER)];
        let chat = self.template.as_ref()?.conversation(&messages, None).ok()?;
        let text = chat.render(messages.len(), GenerationPrompt::Omit).ok()?.text;
        let (_, behind) = text.rsplit_once(ANSWER)?;
        let ids = self.encode(behind, Specials::Omit).ok()?.ids;
        ids.into_iter().find(|id| self.is_special(*id))
    }

    /// Whether a token is one of those that text never becomes, such as the ends of turns.
    pub(crate) fn is_special(&self, id: u32) -> bool {
        self.special_ids.binary_search(&id).is_ok()
    }

    fn controls(&self) -> Vec<String> {
        let texts = self.special_ids.iter().filter_map(|id| self.inner.id_to_token(*id));
        texts.collect()
    }

    /// Number of token ids: one more than the greatest. The model's embedding may have further rows.
    pub fn vocabulary(&self) -> u32 {
        self.vocabulary
    }

    /// The chat template, where the model or the user gave one.
    pub fn chat_template(&self) -> Option<&ChatTemplate> {
        self.template.as_ref()
    }

    /// Hash of all that decides how text becomes tokens, and which of them are learnt.
    pub fn fingerprint(&self) -> [u8; 32] {
        self.fingerprint
    }

    /// Tokenises as `tokenizer.json` says.
    fn encode_as_filed(&self, text: &str, specials: Specials) -> Result<Encoded, TokenizerError> {
        let encoding = guarded(|| self.inner.encode(text, specials == Specials::Add))
            .map_err(|reason| TokenizerError::Encode { reason })?;
        Ok(Encoded {
            ids: encoding.get_ids().to_vec(),
            ends: encoding.get_offsets().iter().map(|(_, end)| *end).collect(),
        })
    }

    /// Applies `add_bos_token`, which transformers puts above what `tokenizer.json` does.
    fn follow_bos_setting(&self, encoded: &mut Encoded) {
        if let (Some(bos), Some(add)) = (&self.special.bos, self.special.add_bos) {
            let is_there = encoded.ids.first() == Some(&bos.id);
            // A token at offset 0 was put there; one that ends later was written in the text.
            let was_put = is_there && encoded.ends.first() == Some(&0);
            if add && !is_there {
                encoded.ids.insert(0, bos.id);
                encoded.ends.insert(0, 0);
            } else if !add && was_put {
                encoded.ids.remove(0);
                encoded.ends.remove(0);
            }
        }
    }

    /// Drops the beginning of a document that was put before one which the text has itself.
    fn keep_one_bos(&self, encoded: &mut Encoded) {
        let Some(bos) = self.special.bos.as_ref().map(|token| token.id) else {
            return;
        };
        if encoded.ids.starts_with(&[bos, bos]) && encoded.ends[0] == 0 && encoded.ends[1] > 0 {
            encoded.ids.remove(0);
            encoded.ends.remove(0);
        }
    }

    /// Applies `add_eos_token`, likewise.
    fn follow_eos_setting(&self, encoded: &mut Encoded, text_bytes: usize) {
        if let (Some(eos), Some(true)) = (&self.special.eos, self.special.add_eos)
            && encoded.ids.last() != Some(&eos.id)
        {
            encoded.ids.push(eos.id);
            encoded.ends.push(text_bytes);
        }
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer")
            .field("vocabulary", &self.vocabulary)
            .field("special", &self.special)
            .field("template", &self.template)
            .finish_non_exhaustive()
    }
}

/// The templates of `tokenizer_config.json` by name: one string, or a list of `{name, template}`.
fn named_templates(file: &SideFile) -> Result<Vec<(String, String)>, TokenizerError> {
    let bad = || {
        file.bad_key(
            "chat_template",
            "a string or a list of objects with `name` and `template`",
        )
    };
    match file.json.get("chat_template") {
        None | Some(serde_json::Value::Null) => Ok(Vec::new()),
        Some(serde_json::Value::String(text)) => Ok(vec![(DEFAULT.to_owned(), text.clone())]),
        Some(serde_json::Value::Array(items)) => {
            let text = |item: &serde_json::Value, key: &str| Some(item.get(key)?.as_str()?.to_owned());
            let named = |item| Some((text(item, "name")?, text(item, "template")?));
            let mut templates: Vec<(String, String)> = items
                .iter()
                .map(|item| named(item).ok_or_else(bad))
                .collect::<Result<_, _>>()?;
            // A single one serves, whatever its name.
            if let [(name, _)] = templates.as_mut_slice() {
                DEFAULT.clone_into(name);
            }
            if templates.iter().all(|(name, _)| name != DEFAULT) {
                return Err(bad());
            }
            Ok(templates)
        }
        Some(_) => Err(bad()),
    }
}

fn read(path: &Path) -> Result<Vec<u8>, TokenizerError> {
    bounded::read(path, TOKENIZER_BYTES).map_err(|source| TokenizerError::Read {
        path: path.to_owned(),
        source,
    })
}
