//! `rank_pattern` and `alpha_pattern`: values for single modules, matched as PEFT does.
//!
//! A key k matches a module name n if the regular expression `^(.*\.)?(k)$` does; the first matching key of the map
//! wins (PEFT 0.21, `get_pattern_key`). The maps are sorted by key here, and are written in that order.

use std::collections::BTreeMap;

use regex::Regex;

use super::error::PlanError;

/// A compiled pattern map.
pub(super) struct Patterns<'a, V> {
    setting: &'static str,
    entries: Vec<(&'a str, Regex, V)>,
}

impl<'a, V: Copy> Patterns<'a, V> {
    /// Compiles the keys of `map`; `setting` is its name in the recipe, for messages.
    pub(super) fn new(setting: &'static str, map: &'a BTreeMap<String, V>) -> Result<Self, PlanError> {
        let mut entries = Vec::with_capacity(map.len());
        for (key, value) in map {
            entries.push((key.as_str(), compile(setting, key)?, *value));
        }
        Ok(Self { setting, entries })
    }

    /// The value of the first key that matches `module`, or `default`.
    pub(super) fn value(&self, module: &str, default: V) -> V {
        self.find(module).unwrap_or(default)
    }

    fn find(&self, module: &str) -> Option<V> {
        let found = self.entries.iter().find(|(_, regex, _)| regex.is_match(module));
        found.map(|(.., value)| *value)
    }

    /// Fails on a key that matches none of `modules`: a misspelt key would silently do nothing.
    pub(super) fn check_used(&self, modules: &[&str], known: &str) -> Result<(), PlanError> {
        for (key, regex, _) in &self.entries {
            if !modules.iter().any(|module| regex.is_match(module)) {
                return Err(PlanError::UnusedPattern {
                    setting: self.setting,
                    key: (*key).to_owned(),
                    known: known.to_owned(),
                });
            }
        }
        Ok(())
    }
}

/// The map of a PEFT configuration as one that gives the same values here: `entries` are in the file's order, where the
/// first match wins, and may match nothing; `modules` are the modules with an adapter.
///
/// # Errors
/// A key that is no regular expression.
pub fn from_file<V: Copy + PartialEq>(
    setting: &'static str,
    entries: &[(String, V)],
    modules: &[String],
) -> Result<BTreeMap<String, V>, PlanError> {
    let compiled: Vec<_> = entries
        .iter()
        .map(|(key, value)| Ok((key, compile(setting, key)?, *value)))
        .collect::<Result<_, PlanError>>()?;
    let is_used = |regex: &Regex| modules.iter().any(|module| regex.is_match(module));
    let used = compiled.iter().filter(|(_, regex, _)| is_used(regex));
    let sorted: BTreeMap<String, V> = used.map(|(key, _, value)| ((*key).clone(), *value)).collect();
    let patterns = Patterns::new(setting, &sorted)?;
    let first = |module: &str| {
        compiled
            .iter()
            .find(|(_, regex, _)| regex.is_match(module))
            .map(|(.., value)| *value)
    };
    let agrees = |module: &String| first(module) == patterns.find(module);
    if modules.iter().all(agrees) {
        return Ok(sorted);
    }
    // Keys overlap and their order decides: the full names have no order.
    Ok(modules
        .iter()
        .filter_map(|module| Some((module.clone(), first(module)?)))
        .collect())
}

fn compile(setting: &'static str, key: &str) -> Result<Regex, PlanError> {
    Regex::new(&format!(r"^(.*\.)?({key})$")).map_err(|error| PlanError::BadPattern {
        setting,
        key: key.to_owned(),
        reason: error.to_string().lines().last().unwrap_or_default().trim().to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_matches_whole_components_at_the_end() {
        let map = BTreeMap::from([("down_proj".to_owned(), 4), ("layers.1.self_attn.q_proj".to_owned(), 2)]);
        let patterns = Patterns::new("rank_pattern", &map).unwrap();
        assert_eq!(patterns.value("model.layers.0.mlp.down_proj", 8), 4);
        assert_eq!(patterns.value("model.layers.0.mlp.updown_proj", 8), 8);
        assert_eq!(patterns.value("model.layers.1.self_attn.q_proj", 8), 2);
        assert_eq!(patterns.value("model.layers.11.self_attn.q_proj", 8), 8);
    }

    #[test]
    fn a_key_may_be_a_regular_expression() {
        let map = BTreeMap::from([(r"model\.layers\.[01]\..*".to_owned(), 4)]);
        let patterns = Patterns::new("rank_pattern", &map).unwrap();
        assert_eq!(patterns.value("model.layers.1.mlp.down_proj", 8), 4);
        assert_eq!(patterns.value("model.layers.2.mlp.down_proj", 8), 8);
    }

    #[test]
    fn a_key_that_is_no_expression_is_named() {
        let map = BTreeMap::from([("q_proj(".to_owned(), 4)]);
        let error = Patterns::new("rank_pattern", &map).err().unwrap().to_string();
        assert!(error.contains("`q_proj(` of `rank_pattern`"), "{error}");
    }

    #[test]
    fn a_files_order_is_kept_where_it_decides() {
        let modules = ["a.q_proj".to_owned(), "b.q_proj".to_owned(), "b.up".to_owned()];
        let read = |entries: &[(&str, i32)]| {
            let entries: Vec<_> = entries.iter().map(|(key, value)| ((*key).to_owned(), *value)).collect();
            let map = from_file("rank_pattern", &entries, &modules).unwrap();
            let patterns = Patterns::new("rank_pattern", &map).unwrap();
            let values = modules
                .iter()
                .map(|module| patterns.value(module, 0))
                .collect::<Vec<_>>();
            (map.len(), values)
        };
        assert_eq!(read(&[("q_proj", 1), ("unused", 2)]), (1, vec![1, 1, 0]));
        assert_eq!(read(&[("b.q_proj", 2), ("q_proj", 1)]), (2, vec![1, 2, 0]));
        assert_eq!(read(&[("q_proj", 1), ("b.q_proj", 2)]), (2, vec![1, 1, 0]));
    }
}
