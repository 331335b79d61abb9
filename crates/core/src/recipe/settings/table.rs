//! All searchable settings.

use super::{SettingRow, adapter, batch, optimizer, preference, torch};

/// All settings, in the order in which they are applied: a derived one stands after what it is computed from.
pub fn settings() -> impl Iterator<Item = &'static SettingRow> {
    let of_training = adapter::ROWS.iter().chain(batch::ROWS).chain(optimizer::ROWS);
    of_training.chain(torch::ROWS).chain(preference::ROWS)
}

/// The setting of that name.
pub fn setting(name: &str) -> Option<&'static SettingRow> {
    settings().find(|row| row.name == name)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;
    use crate::recipe::settings::{FloatRange, Legal, Outcome};
    use crate::recipe::{DataSettings, ParamValue, Recipe};

    fn recipe() -> Recipe {
        Recipe::new("model", DataSettings::default())
    }

    /// Legal values of a setting, more than one where it has more than one.
    fn samples(row: &SettingRow) -> BoxedStrategy<ParamValue> {
        let float = |range: FloatRange| {
            let low = range.low + if range.low_included { 0.0 } else { 1e-9 };
            let high = if range.high.is_finite() {
                range.high - 1e-9
            } else {
                range.low + 50.0
            };
            (low..high).prop_map(ParamValue::Float)
        };
        match row.legal {
            // A multiple of every micro-batch below, so that derived values can be set.
            Legal::Int { .. } if row.name == "global_batch" => (1..8i64).prop_map(|n| (n * 4).into()).boxed(),
            Legal::Int { least, most } => (least..=most.min(least + 500)).prop_map(ParamValue::Int).boxed(),
            Legal::Float(range) => float(range).boxed(),
            Legal::FloatOrNone(range) => prop_oneof![Just(ParamValue::from("none")), float(range)].boxed(),
            Legal::Bool => any::<bool>().prop_map(ParamValue::Bool).boxed(),
            Legal::Choice(names) => prop::sample::select(names.to_vec()).prop_map(ParamValue::from).boxed(),
            Legal::Checkpointing => prop::sample::select(vec!["none", "every_2", "every_7", "full", "offload"])
                .prop_map(ParamValue::from)
                .boxed(),
            Legal::PrecisionSchedule => prop::sample::select(vec!["none", "fp32_7", "adaptive_20"])
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
            (index, value) in (0..settings().count())
                .prop_flat_map(|index| (Just(index), samples(settings().nth(index).unwrap())))
        ) {
            let row = settings().nth(index).unwrap();
            prop_assert!(row.legal.allows(&value), "{} {value}", row.name);
            let mut recipe = recipe();
            (row.set)(&mut recipe, &value).unwrap();
            let back = (row.get)(&recipe).unwrap();
            match (value.as_f64(), back.as_f64()) {
                (Some(set), Some(read)) => prop_assert!((set - read).abs() <= 1e-12 * set.abs(), "{}", row.name),
                _ => prop_assert_eq!(back, value),
            }
        }

        #[test]
        fn setting_changes_only_the_named_field(
            (index, value) in (0..settings().count())
                .prop_flat_map(|index| (Just(index), samples(settings().nth(index).unwrap())))
        ) {
            let row = settings().nth(index).unwrap();
            let mut recipe = recipe();
            // Choices of PyTorch are written where one is made, all of them.
            (recipe.torch.torch_compile, recipe.torch.use_liger_kernel) = (true, true);
            let before = serde_json::to_value(&recipe).unwrap();
            (row.set)(&mut recipe, &value).unwrap();
            let mut after = serde_json::to_value(&recipe).unwrap();
            let mut paths = BTreeSet::new();
            differences(&before, &mut after, String::new(), &mut paths);
            prop_assert!(
                paths.iter().all(|path| path == row.field),
                "{} changed {paths:?}", row.name
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
        let names: Vec<_> = settings().map(|row| row.name).collect();
        let unique: BTreeSet<_> = names.iter().collect();
        assert_eq!(unique.len(), names.len());
        for (index, row) in settings().enumerate() {
            if let Some(source) = row.derived_from {
                assert!(names[..index].contains(&source), "{}", row.name);
            }
        }
    }

    #[test]
    fn choices_are_all_the_names_the_recipe_knows() {
        let schema = serde_json::to_value(schemars::schema_for!(Recipe)).unwrap();
        let text = schema.to_string();
        for row in settings() {
            let Legal::Choice(names) = row.legal else { continue };
            // `full` is a recipe without an adapter, not a name in it.
            for name in names.iter().filter(|_| row.name != "method") {
                (row.set)(&mut recipe(), &(*name).into()).unwrap();
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
            ("trainer", "TrainerKind"),
            ("reference", "ReferencePass"),
        ] {
            let Legal::Choice(names) = setting(name).unwrap().legal else {
                panic!("{name}")
            };
            let names: BTreeSet<_> = names.iter().map(|name| (*name).to_owned()).collect();
            assert_eq!(names, all(definition), "{name}");
        }
    }

    #[test]
    fn ranges_widen_within_what_is_legal_where_they_change_the_loss_alone() {
        for row in settings() {
            let Some(widest) = row.widest else { continue };
            for bound in [widest.low, widest.high] {
                assert!(row.legal.allows(&ParamValue::Float(bound)), "{} {bound}", row.name);
            }
            assert!(row.effects.on(Outcome::Loss).changes(), "{}", row.name);
            for outcome in Outcome::ALL.iter().filter(|outcome| **outcome != Outcome::Loss) {
                assert!(!row.effects.on(*outcome).changes(), "{}", row.name);
            }
        }
    }

    #[test]
    fn every_setting_can_change_some_outcome() {
        for row in settings() {
            let changes = Outcome::ALL.iter().any(|outcome| row.effects.on(*outcome).changes());
            assert!(changes, "{}", row.name);
        }
    }
}
