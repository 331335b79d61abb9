//! How adapters start: by PEFT's words for it, or by the flag that LLaMA-Factory has. A start that no recipe has is told, with the one
//! that is taken in its place.

use super::{Keys, Reader, StackFileError};
use crate::Tool;
use crate::known_keys::is_off;
use peft_tune_core::recipe::AdapterInit;

/// Flag of LLaMA-Factory, and its number of iterations: below 0 the decomposition is exact.
pub(crate) const PISSA_INIT: &str = "pissa_init";
const PISSA_ITERATIONS: &str = "pissa_iter";
const USUAL_ITERATIONS: f64 = 16.0;

/// Settings of a start that stands nowhere else.
const LOFTQ_SETTINGS: &str = "loftq_config";
const LOFTQ: &str = "starts adapters from what quantization left out (LoftQ)";

/// The start that a file says under `key`.
///
/// # Errors
/// A value of another kind.
pub(super) fn read(reader: &mut Reader<'_>, key: &'static str) -> Result<Option<AdapterInit>, StackFileError> {
    let keys = reader.keys;
    let Some(Said { word, words }) = Said::of(keys, key)? else {
        loftq(reader, LOFTQ_SETTINGS, keys);
        return Ok(None);
    };
    let same = AdapterInit::ALL.into_iter().find(|init| is_word(*init, &word));
    let (init, differs) = match (same, word.as_str()) {
        (Some(init), _) => (init, None),
        (None, "false") => (AdapterInit::Kaiming, Some("starts both factors at random")),
        (None, "loftq") => (AdapterInit::Kaiming, Some(LOFTQ)),
        (None, word) if word.starts_with("pissa") => (
            AdapterInit::Pissa,
            Some("approximates the decomposition, which is exact here"),
        ),
        (None, _) => (
            AdapterInit::Kaiming,
            Some("starts adapters in a way that no recipe has"),
        ),
    };
    if let Some(what) = differs {
        tell(reader, &words, what, init);
    }
    Ok(Some(init))
}

/// Tells of a start by LoftQ where a part of a file has settings of it.
pub(crate) fn loftq(reader: &mut Reader<'_>, words: &str, part: &Keys<'_>) {
    if part.raw(LOFTQ_SETTINGS).is_some_and(|settings| !is_off(settings)) {
        tell(reader, words, LOFTQ, AdapterInit::Kaiming);
    }
}

fn tell(reader: &mut Reader<'_>, words: &str, what: &str, init: AdapterInit) {
    reader.note(format!("`{words}` {what}: {init} is taken in its place"));
    reader.assume(format!(
        "`{words}` {what}: a step needs what it needs from another start"
    ));
}

/// A start as the file says it.
struct Said {
    /// PEFT's word for it.
    word: String,
    /// Key and value in messages.
    words: String,
}

impl Said {
    fn of(keys: &Keys<'_>, key: &str) -> Result<Option<Self>, StackFileError> {
        let Some(word) = keys.text(key)? else {
            return Ok(None);
        };
        if key != PISSA_INIT {
            return Ok(Some(Self {
                words: format!("{key}: {word}"),
                word: word.to_lowercase(),
            }));
        }
        let iterations = keys.number(PISSA_ITERATIONS)?.unwrap_or(USUAL_ITERATIONS);
        let word = match keys.flag(key)?.unwrap_or(false) {
            false => "true".to_owned(),
            true if iterations < 0.0 => "pissa".to_owned(),
            true => format!("pissa_niter_{iterations}"),
        };
        Ok(Some(Self {
            word,
            words: format!("{PISSA_ITERATIONS}: {iterations}"),
        }))
    }
}

/// Whether PEFT has this word for a start.
fn is_word(init: AdapterInit, word: &str) -> bool {
    let mut words = (Tool::Peft.keys().init)(init).into_iter().flatten();
    words.any(|(_, value)| match value.as_str() {
        Some(text) => text == word,
        None => {
            let text = value.to_string();
            text == word
        }
    })
}
