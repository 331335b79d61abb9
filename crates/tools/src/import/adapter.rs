//! The adapter: which modules it is for, and what stands beside its numbers.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{Keys, Reader, StackFileError, adapter_start};
use crate::keys::ANYWHERE;
use peft_tune_core::plan::names_within;
use peft_tune_core::recipe::settings::setting;
use peft_tune_core::recipe::{AdapterSettings, ParamValue, TargetModules, TargetPreset};

/// Keys of what has no number.
pub(crate) struct AdapterKeys {
    pub targets: &'static str,
    pub modules_to_save: &'static str,
    pub target_parameters: &'static str,
    pub layers: &'static str,
    pub rank_pattern: &'static str,
    pub alpha_pattern: &'static str,
    /// Key of how it starts.
    pub init: &'static str,
}

impl AdapterKeys {
    /// Counts all of them as read.
    fn pass_over(&self, keys: &Keys<'_>) {
        let Self {
            targets,
            modules_to_save,
            target_parameters,
            layers,
            rank_pattern,
            alpha_pattern,
            init,
        } = self;
        let all = [
            targets,
            modules_to_save,
            target_parameters,
            layers,
            rank_pattern,
            alpha_pattern,
            init,
        ];
        for key in all {
            let _ = keys.has(key);
        }
    }
}

/// PEFT's own names, which unsloth has too.
pub(crate) const OF_PEFT: AdapterKeys = AdapterKeys {
    targets: "target_modules",
    modules_to_save: "modules_to_save",
    target_parameters: "target_parameters",
    layers: "layers_to_transform",
    rank_pattern: "rank_pattern",
    alpha_pattern: "alpha_pattern",
    init: "init_lora_weights",
};

/// An adapter as the tool has it where the file says nothing.
pub(crate) fn default(rank: usize, alpha: f64, dropout: f64) -> AdapterSettings {
    AdapterSettings {
        rank,
        alpha,
        dropout,
        // PEFT's for most families.
        target_modules: TargetModules::Named(vec!["q_proj".into(), "v_proj".into()]),
        ..AdapterSettings::default()
    }
}

/// Reads the keys of an adapter, as far as the recipe has one.
///
/// # Errors
/// A value of another kind.
pub(crate) fn read(reader: &mut Reader<'_>, names: &AdapterKeys) -> Result<(), StackFileError> {
    let keys = reader.keys;
    let Some(mut adapter) = reader.recipe.adapter.take() else {
        names.pass_over(keys);
        return Ok(());
    };
    targets(reader, &mut adapter, names.targets)?;
    if let Some(init) = adapter_start::read(reader, names.init)? {
        adapter.init = init;
        reader.said("init");
    }
    adapter.modules_to_save = keys.names(names.modules_to_save)?.unwrap_or_default();
    adapter.target_parameters = keys.names(names.target_parameters)?.unwrap_or_default();
    if let Some(value) = keys.raw(names.layers) {
        let layers: Option<Vec<usize>> = match value {
            Value::Array(all) => all.iter().map(|one| Some(one.as_u64()? as usize)).collect(),
            one => one.as_u64().map(|one| vec![one as usize]),
        };
        let layers = layers.ok_or_else(|| keys.wrong(names.layers, value, "write a list of layer numbers"))?;
        adapter.layers_to_transform = Some(layers);
    }
    if let Some(ranks) = pattern(keys, names.rank_pattern, rank)? {
        adapter.rank_pattern = ranks;
    }
    if let Some(alphas) = pattern(keys, names.alpha_pattern, Value::as_f64)? {
        adapter.alpha_pattern = alphas;
    }
    reader.recipe.adapter = Some(adapter);
    Ok(())
}

/// The modules: a list, a text with commas, a shorthand, or a regular expression. One that `export` writes is a list again; others wait
/// for the names of the model.
fn targets(reader: &mut Reader<'_>, adapter: &mut AdapterSettings, key: &str) -> Result<(), StackFileError> {
    let Some(names) = reader.keys.names(key)? else {
        return Ok(());
    };
    reader.said("target_modules");
    // An expression may have commas of its own.
    let text = reader.keys.raw(key).and_then(Value::as_str);
    let names = text
        .filter(|text| is_expression(text))
        .map_or(names, |text| vec![text.to_owned()]);
    let is_all = |name: &str| ["all-linear", "all"].contains(&name);
    adapter.target_modules = match names.as_slice() {
        [one] if is_all(one) => TargetModules::Preset(TargetPreset::AllLinear),
        [one] if is_expression(one) => match (names_within(one), one_anywhere(one)) {
            (Some((names, layers)), _) => {
                adapter.layers_to_transform = layers;
                TargetModules::Named(names)
            }
            (None, Some(name)) => TargetModules::Named(vec![name]),
            (None, None) => {
                reader.expression = Some(one.clone());
                TargetModules::Preset(TargetPreset::AllLinear)
            }
        },
        _ => TargetModules::Named(names),
    };
    Ok(())
}

/// Whether a text is a regular expression and no name of modules.
fn is_expression(text: &str) -> bool {
    text.contains(['*', '+', '?', '(', '[', '{', '\\', '|', '^', '$'])
}

/// The module of an expression for all that end in its name; `None` of others.
fn one_anywhere(expression: &str) -> Option<String> {
    let name = expression.strip_prefix(ANYWHERE)?.replace("\\.", ".");
    (!name.contains(['*', '(', '\\', '|'])).then_some(name)
}

/// A rank, as far as adapters have it.
fn rank(value: &Value) -> Option<usize> {
    let rank = value.as_i64()?;
    let is_legal = setting("rank").is_some_and(|row| row.legal.allows(&ParamValue::Int(rank)));
    usize::try_from(rank).ok().filter(|_| is_legal)
}

/// Other values for some modules.
fn pattern<T>(
    keys: &Keys<'_>,
    key: &str,
    of: impl Fn(&Value) -> Option<T>,
) -> Result<Option<BTreeMap<String, T>>, StackFileError> {
    let Some(value) = keys.raw(key) else {
        return Ok(None);
    };
    let entries = value.as_object().and_then(|entries| {
        let all = entries.iter().map(|(name, value)| Some((name.clone(), of(value)?)));
        all.collect::<Option<BTreeMap<_, _>>>()
    });
    entries
        .map(Some)
        .ok_or_else(|| keys.wrong(key, value, "write numbers by module name, none too large"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;

    use super::super::parse_recipe;

    #[test]
    fn ranks_of_single_modules_are_those_that_an_adapter_may_have() {
        let of = |ranks: &str| {
            let text = format!(r#"{{"peft_type": "LORA", "r": 4, "rank_pattern": {{"q_proj": {ranks}}}}}"#);
            parse_recipe(Path::new("adapter_config.json"), &text, None)
        };
        let adapter = of("16").unwrap().recipe.adapter.unwrap();
        assert_eq!(adapter.rank_pattern, BTreeMap::from([("q_proj".to_owned(), 16)]));
        for wrong in ["0", "-1", "1.5", "1000000", "18446744073709551615", "\"many\""] {
            let error = of(wrong).unwrap_err().to_string();
            assert!(error.contains("rank_pattern"), "{wrong}: {error}");
        }
    }
}
