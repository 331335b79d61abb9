//! Trainings that may go through one frozen base together.

use serde::Serialize;
use serde_json::Value;

use super::{AdapterInit, AdapterSettings, BatchSettings, Difference, Recipe, TrainingSettings};

/// Recipes whose trainings cannot share the passes over a base model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadGroup {
    #[error(
        "`{key}` is {other} here and {first} in the first one; trainings that share a base agree on it, so set it alike, or train this \
         one alone"
    )]
    Differs { key: String, first: String, other: String },
    #[error("{what} trains alone only so far, {why}; train it by itself, or leave it out")]
    Alone { what: String, why: &'static str },
}

impl Recipe {
    /// Refuses a recipe that cannot train beside others on one base.
    ///
    /// # Errors
    /// Whatever changes the frozen weights, or has them computed otherwise than by a plain adapter's rows.
    pub fn check_in_group(&self) -> Result<(), BadGroup> {
        let alone = |what: String, why| Err(BadGroup::Alone { what, why });
        let key = |name: &str, value: &dyn std::fmt::Display| format!("`{name}: {value}`");
        let Some(adapter) = &self.adapter else {
            return alone(
                "`adapter: null`".into(),
                "since it trains the weights that others share",
            );
        };
        let AdapterSettings {
            rank: _,
            alpha: _,
            dropout: _,
            target_modules: _,
            target_parameters,
            rslora: _,
            dora,
            init,
            bias,
            lora_bias: _,
            rank_pattern: _,
            alpha_pattern: _,
            layers_to_transform: _,
            modules_to_save,
            adapter_init: _,
        } = adapter;
        if *dora {
            return alone(
                "`dora: true`".into(),
                "since it multiplies each output behind the frozen weight",
            );
        }
        if *init == AdapterInit::Pissa {
            return alone("`init: pissa`".into(), "since it replaces frozen weights by its own");
        }
        if *bias != super::AdapterBias::None {
            return alone("`bias` of the base model".into(), "since it trains what others share");
        }
        if !modules_to_save.is_empty() {
            return alone("`modules_to_save`".into(), "since it trains copies of whole modules");
        }
        if !target_parameters.is_empty() {
            return alone(
                "`target_parameters`".into(),
                "since experts take the rows of all trainings by token",
            );
        }
        if self.batch.devices > 1 {
            return alone(
                key("devices", &self.batch.devices),
                "since ranks divide one training's micro-batches",
            );
        }
        if !self.activation_quantization.is_none() {
            let what = key("activation_quantization", &self.activation_quantization);
            return alone(what, "since products of bytes take no rows of several adapters");
        }
        if !self.quantization_aware.is_none() {
            let what = key("quantization_aware", &self.quantization_aware);
            return alone(what, "since it rounds each weight with its own adapter");
        }
        if !self.precision_schedule.is_none() {
            let what = key("precision_schedule", &self.precision_schedule);
            return alone(what, "since the others' steps would change their precision with it");
        }
        Ok(())
    }

    /// Refuses a recipe that differs from the `first` of a group in what trainings on one base share.
    ///
    /// # Errors
    /// The first key that differs.
    pub fn check_shares_base(&self, first: &Self) -> Result<(), BadGroup> {
        for ((key, first), (_, other)) in first.shared().into_iter().zip(self.shared()) {
            if let Some(Difference { key, first, second }) = Difference::of(key, &first, &other) {
                return Err(BadGroup::Differs {
                    key,
                    first,
                    other: second,
                });
            }
        }
        Ok(())
    }

    /// Settings that trainings on one base agree on, by their keys in a recipe file.
    fn shared(&self) -> Vec<(&'static str, Value)> {
        let Self {
            model,
            data,
            adapter: _,
            precision,
            activation_quantization,
            weight_sparsity,
            quantization_aware,
            precision_schedule,
            batch,
            gradient_checkpointing,
            optimizer: _,
            schedule: _,
            training,
            // The engine that trains groups refuses it.
            torch: _,
            // Those that share a base are trained here.
            trainer: _,
            beta: _,
            reference: _,
        } = self;
        let BatchSettings {
            micro_batch,
            gradient_accumulation,
            devices,
            sharding,
            sequence_length,
            packing,
            group_by_length,
            prefetch_depth: _,
        } = batch;
        let TrainingSettings {
            length: _,
            evaluate_every: _,
            evaluation_rows: _,
            shuffle,
            seed,
        } = training;
        fn value(value: &impl Serialize) -> Value {
            serde_json::to_value(value).unwrap_or(Value::Null)
        }
        vec![
            ("model", value(model)),
            ("data", value(data)),
            ("precision", value(precision)),
            ("activation_quantization", value(activation_quantization)),
            ("weight_sparsity", value(weight_sparsity)),
            ("quantization_aware", value(quantization_aware)),
            ("precision_schedule", value(precision_schedule)),
            ("batch.micro_batch", value(micro_batch)),
            ("batch.gradient_accumulation", value(gradient_accumulation)),
            ("batch.devices", value(devices)),
            ("batch.sharding", value(sharding)),
            ("batch.sequence_length", value(sequence_length)),
            ("batch.packing", value(packing)),
            ("batch.group_by_length", value(group_by_length)),
            ("gradient_checkpointing", value(gradient_checkpointing)),
            ("training.shuffle", value(shuffle)),
            // It decides the order of the rows, and which of them are held out.
            ("training.seed", value(seed)),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::{
        ActivationQuantization, AdapterBias, DataSettings, OptimizerKind, Precision, QuantizationAware, TrainingLength,
    };

    fn recipe() -> Recipe {
        let data = DataSettings {
            train: "rows.jsonl".into(),
            ..DataSettings::default()
        };
        Recipe::new("model", data)
    }

    #[test]
    fn adapters_optimizers_and_lengths_may_differ() {
        let (first, mut other) = (recipe(), recipe());
        let adapter = other.adapter.as_mut().unwrap();
        (adapter.rank, adapter.dropout, adapter.rslora) = (3, 0.1, true);
        (other.optimizer.kind, other.optimizer.learning_rate) = (OptimizerKind::Lion, 1e-5);
        other.schedule.warmup = 7.0;
        other.training.length = TrainingLength::Steps(3);
        other.training.evaluate_every = Some(2);
        other.batch.prefetch_depth = 0;
        assert_eq!(other.check_in_group(), Ok(()));
        assert_eq!(other.check_shares_base(&first), Ok(()));
    }

    #[test]
    fn what_differs_is_named_with_both_values() {
        let differs = |change: fn(&mut Recipe)| {
            let (first, mut other) = (recipe(), recipe());
            change(&mut other);
            match other.check_shares_base(&first) {
                Err(BadGroup::Differs { key, first, other }) => (key, first, other),
                other => panic!("{other:?}"),
            }
        };
        let text = |key: &str, first: &str, other: &str| (key.to_owned(), first.to_owned(), other.to_owned());
        assert_eq!(
            differs(|recipe| recipe.batch.sequence_length = 77),
            text("batch.sequence_length", "1024", "77")
        );
        assert_eq!(
            differs(|recipe| recipe.model = "other".into()),
            text("model", "\"model\"", "\"other\"")
        );
        assert_eq!(differs(|recipe| recipe.precision = Precision::Nf4).0, "precision");
        assert_eq!(
            differs(|recipe| recipe.training.seed = 9),
            text("training.seed", "0", "9")
        );
        assert_eq!(
            differs(|recipe| recipe.data.train = "b.jsonl".into()),
            text("data.train", "\"rows.jsonl\"", "\"b.jsonl\"")
        );
    }

    #[test]
    fn what_trains_alone_is_named() {
        let refused = |change: fn(&mut Recipe)| {
            let mut recipe = recipe();
            change(&mut recipe);
            recipe.check_in_group().unwrap_err().to_string()
        };
        fn adapter(recipe: &mut Recipe) -> &mut AdapterSettings {
            recipe.adapter.as_mut().unwrap()
        }
        for (message, named) in [
            (refused(|recipe| recipe.adapter = None), "`adapter: null`"),
            (refused(|recipe| adapter(recipe).dora = true), "`dora: true`"),
            (
                refused(|recipe| adapter(recipe).init = AdapterInit::Pissa),
                "`init: pissa`",
            ),
            (refused(|recipe| adapter(recipe).bias = AdapterBias::All), "`bias`"),
            (
                refused(|recipe| adapter(recipe).modules_to_save = vec!["lm_head".into()]),
                "`modules_to_save`",
            ),
            (
                refused(|recipe| adapter(recipe).target_parameters = vec!["experts".into()]),
                "`target_parameters`",
            ),
            (refused(|recipe| recipe.batch.devices = 2), "`devices: 2`"),
            (
                refused(|recipe| recipe.activation_quantization = ActivationQuantization::Int8Forward),
                "`activation_quantization: int8_forward`",
            ),
            (
                refused(|recipe| recipe.quantization_aware = QuantizationAware::Nf4),
                "`quantization_aware: nf4`",
            ),
        ] {
            assert!(message.starts_with(named), "{message}");
        }
    }
}
