//! The parameters of the native backend: one table that says which recipe field each sets, which values are legal, and
//! which metrics it can change.
//!
//! Everything else follows from the table: reading and checking a study file, making a recipe from sampled values,
//! checking a recipe file, the JSON schema and the table in docs/space-file.md.

mod adapter;
mod batch;
mod effect;
mod legal;
mod optimizer;
mod recipe_for;

pub use effect::{Effect, Effects};
pub use legal::{FloatRange, Legal, TARGET_PRESETS};
pub(super) use recipe_for::apply;
pub use recipe_for::{RecipeError, affected_metrics, recipe_for};

use peft_tune_core::recipe::Recipe;
use peft_tune_core::study::{ParamValue, Params};

/// One parameter of the native backend.
pub struct Binding {
    pub name: &'static str,
    /// Dotted path of the recipe field it sets.
    pub field: &'static str,
    /// One sentence for documentation and schema.
    pub about: &'static str,
    pub legal: Legal,
    /// Names that other tools give the same setting; suggested where someone writes one of them.
    pub elsewhere: &'static [&'static str],
    /// The parameter that must be set before, for one whose field is computed from it.
    pub derived_from: Option<&'static str>,
    pub effects: Effects,
    /// The value a recipe has, or `None` where the recipe does without (no adapter, say).
    pub get: fn(&Recipe) -> Option<ParamValue>,
    /// Sets the field; the value is one that [`Legal::allows`].
    pub set: fn(&mut Recipe, &ParamValue) -> Result<(), SetError>,
}

/// Why a legal value could not be set on a recipe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SetError {
    /// The recipe has no adapter, or the value is of the wrong kind.
    Inapplicable,
    /// Gradient accumulation would not be a whole number.
    Indivisible {
        global_batch: usize,
        micro_batch: usize,
        devices: usize,
    },
}

impl std::fmt::Debug for Binding {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Binding({})", self.name)
    }
}

/// All parameters, in the order in which they are applied: a derived one stands after what it is computed from.
pub fn bindings() -> impl Iterator<Item = &'static Binding> {
    adapter::BINDINGS
        .iter()
        .chain(batch::BINDINGS)
        .chain(optimizer::BINDINGS)
}

/// The parameter of that name.
pub fn binding(name: &str) -> Option<&'static Binding> {
    bindings().find(|binding| binding.name == name)
}

/// The parameter that other tools call `name`.
pub(crate) fn binding_called_elsewhere(name: &str) -> Option<&'static Binding> {
    let name = name.to_lowercase();
    bindings().find(|binding| binding.elsewhere.contains(&name.as_str()))
}

/// The values that a recipe gives to each parameter, derived ones included.
pub fn params_of(recipe: &Recipe) -> Params {
    bindings()
        .filter_map(|binding| Some((binding.name.to_owned(), (binding.get)(recipe)?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;
    use peft_tune_core::recipe::DataSettings;

    fn recipe() -> Recipe {
        Recipe::new("model", DataSettings::default())
    }

    /// Legal values of a binding, more than one where it has more than one.
    fn samples(binding: &Binding) -> BoxedStrategy<ParamValue> {
        let float = |range: FloatRange| {
            let low = range.low + if range.low_included { 0.0 } else { 1e-9 };
            let high = if range.high.is_finite() {
                range.high - 1e-9
            } else {
                range.low + 50.0
            };
            (low..high).prop_map(ParamValue::Float)
        };
        match binding.legal {
            // A multiple of every micro-batch below, so that derived values can be set.
            Legal::Int { .. } if binding.name == "global_batch" => (1..8i64).prop_map(|n| (n * 4).into()).boxed(),
            Legal::Int { least, most } => (least..=most.min(least + 500)).prop_map(ParamValue::Int).boxed(),
            Legal::Float(range) => float(range).boxed(),
            Legal::FloatOrNone(range) => prop_oneof![Just(ParamValue::from("none")), float(range)].boxed(),
            Legal::Bool => any::<bool>().prop_map(ParamValue::Bool).boxed(),
            Legal::Choice(names) => prop::sample::select(names.to_vec()).prop_map(ParamValue::from).boxed(),
            Legal::Checkpointing => prop::sample::select(vec!["none", "every_2", "every_7", "full", "offload"])
                .prop_map(ParamValue::from)
                .boxed(),
            Legal::Targets => prop_oneof![
                Just(ParamValue::from("attention")),
                Just(ParamValue::list(["q_proj", "v_proj"]))
            ]
            .boxed(),
        }
    }

    proptest! {
        #[test]
        fn what_is_set_is_what_is_read_back(
            (index, value) in (0..bindings().count())
                .prop_flat_map(|index| (Just(index), samples(bindings().nth(index).unwrap())))
        ) {
            let binding = bindings().nth(index).unwrap();
            prop_assert!(binding.legal.allows(&value), "{} {value}", binding.name);
            let mut recipe = recipe();
            (binding.set)(&mut recipe, &value).unwrap();
            let back = (binding.get)(&recipe).unwrap();
            match (value.as_f64(), back.as_f64()) {
                (Some(set), Some(read)) => prop_assert!((set - read).abs() <= 1e-12 * set.abs(), "{}", binding.name),
                _ => prop_assert_eq!(back, value),
            }
        }

        #[test]
        fn setting_changes_only_the_named_field(
            (index, value) in (0..bindings().count())
                .prop_flat_map(|index| (Just(index), samples(bindings().nth(index).unwrap())))
        ) {
            let binding = bindings().nth(index).unwrap();
            let before = serde_json::to_value(recipe()).unwrap();
            let mut recipe = recipe();
            (binding.set)(&mut recipe, &value).unwrap();
            let mut after = serde_json::to_value(&recipe).unwrap();
            let mut paths = BTreeSet::new();
            differences(&before, &mut after, String::new(), &mut paths);
            prop_assert!(
                paths.iter().all(|path| path == binding.field),
                "{} changed {paths:?}", binding.name
            );
        }
    }

    fn differences(before: &Value, after: &mut Value, path: String, paths: &mut BTreeSet<String>) {
        match (before, after) {
            (Value::Object(before), Value::Object(after)) => {
                let keys: BTreeSet<_> = before.keys().chain(after.keys()).cloned().collect();
                for key in keys {
                    let under = if path.is_empty() {
                        key.clone()
                    } else {
                        format!("{path}.{key}")
                    };
                    let null = Value::Null;
                    let other = before.get(&key).unwrap_or(&null);
                    differences(other, after.get_mut(&key).unwrap_or(&mut Value::Null), under, paths);
                }
            }
            (before, after) if before != after => {
                paths.insert(path);
            }
            _ => {}
        }
    }

    #[test]
    fn names_are_unique_and_derived_parameters_stand_below_their_source() {
        let names: Vec<_> = bindings().map(|binding| binding.name).collect();
        let unique: BTreeSet<_> = names.iter().collect();
        assert_eq!(unique.len(), names.len());
        for (index, binding) in bindings().enumerate() {
            if let Some(source) = binding.derived_from {
                assert!(names[..index].contains(&source), "{}", binding.name);
            }
        }
    }

    #[test]
    fn choices_are_all_the_names_the_recipe_knows() {
        let schema = serde_json::to_value(schemars::schema_for!(Recipe)).unwrap();
        let text = schema.to_string();
        for binding in bindings() {
            let Legal::Choice(names) = binding.legal else { continue };
            // `full` is a recipe without an adapter, not a name in it.
            for name in names.iter().filter(|_| binding.name != "method") {
                (binding.set)(&mut recipe(), &(*name).into()).unwrap();
                assert!(text.contains(&format!("\"{name}\"")), "{name}");
            }
        }
        let all = |definition: &str| -> BTreeSet<String> {
            let definition = &schema["$defs"][definition];
            let listed = definition["enum"].as_array().into_iter().flatten().cloned();
            let described = definition["oneOf"].as_array().into_iter().flatten();
            let described = described.flat_map(|one| {
                let consts = one.get("const").cloned();
                consts
                    .into_iter()
                    .chain(one["enum"].as_array().into_iter().flatten().cloned())
            });
            listed
                .chain(described)
                .map(|name| name.as_str().unwrap().to_owned())
                .collect()
        };
        for (name, definition) in [
            ("precision", "Precision"),
            ("optimizer", "OptimizerKind"),
            ("schedule", "ScheduleKind"),
            ("init", "AdapterInit"),
            ("bias", "AdapterBias"),
        ] {
            let Legal::Choice(names) = binding(name).unwrap().legal else {
                panic!("{name}")
            };
            let names: BTreeSet<_> = names.iter().map(|name| (*name).to_owned()).collect();
            assert_eq!(names, all(definition), "{name}");
        }
    }

    #[test]
    fn every_parameter_can_change_some_metric() {
        for binding in bindings() {
            let changes = binding.effects.iter().filter(|(_, effect)| effect.changes()).count();
            assert!(changes > 0, "{}", binding.name);
        }
    }
}
