//! The form: settings by name, as study files have them, and the recipe that they make.

use std::collections::BTreeMap;

use super::error::PageError;
use peft_tune_core::recipe::settings::{SettingRow, settings};
use peft_tune_core::recipe::{DataSettings, ParamValue, Recipe};

/// Settings that the page asks for: those that decide memory or speed in another tool.
const NAMES: [&str; 15] = [
    "method",
    "precision",
    "rank",
    "target_modules",
    "dropout",
    "dora",
    "micro_batch",
    "gradient_accumulation",
    "sequence_length",
    "packing",
    "gradient_checkpointing",
    "optimizer",
    "attn_implementation",
    "torch_compile",
    "use_liger_kernel",
];

/// Rows of the settings of the form, in the order in which they are applied.
pub(crate) fn rows() -> impl Iterator<Item = &'static SettingRow> {
    settings().filter(|row| NAMES.contains(&row.name))
}

/// A recipe of which nothing is said.
pub(crate) fn usual() -> Recipe {
    Recipe::new("", DataSettings::default())
}

/// The recipe of the form's settings; those that are not named are as usual.
///
/// # Errors
/// A name that the form has not, or a value that the setting cannot take.
pub(crate) fn recipe_of(values: &BTreeMap<String, ParamValue>) -> Result<Recipe, PageError> {
    let wrong = |name: &str, value: &ParamValue, legal: String| PageError::Setting {
        name: name.to_owned(),
        value: value.to_string(),
        legal,
    };
    if let Some((name, value)) = values.iter().find(|(name, _)| !NAMES.contains(&name.as_str())) {
        return Err(wrong(name, value, format!("one of {}", NAMES.join(", "))));
    }
    let mut recipe = usual();
    for row in rows() {
        let Some(value) = values.get(row.name) else { continue };
        // All parameters are trained: there is no adapter to set anything of.
        if (row.get)(&recipe).is_none() {
            continue;
        }
        if !row.legal.allows(value) || (row.set)(&mut recipe, value).is_err() {
            return Err(wrong(row.name, value, row.legal.to_string()));
        }
    }
    Ok(recipe)
}
