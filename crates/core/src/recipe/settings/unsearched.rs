//! Fields of a recipe that no row covers: they are given, never searched.

use serde::Serialize;
use serde_json::Value;

use super::Outcome;
use crate::recipe::{
    AdapterSettings, BatchSettings, DataSettings, OptimizerSettings, Recipe, ScheduleSettings, TorchSettings,
    TrainingSettings,
};

/// Field of a recipe that no study searches, with its value.
#[derive(Clone, Debug, PartialEq)]
pub struct Unsearched {
    /// Dotted path, as a row's.
    pub field: &'static str,
    pub value: Value,
    changes: Changes,
}

/// The outcomes that can depend on a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Changes {
    All,
    /// How long and on what a recipe trains says nothing about the cost of a step.
    Loss,
    /// No outcome: the field acts before the first step, and leaves what trains as it is.
    Nothing,
}

impl Unsearched {
    /// Whether an outcome can depend on it.
    pub fn can_change(&self, outcome: Outcome) -> bool {
        match self.changes {
            Changes::All => true,
            Changes::Loss => outcome == Outcome::Loss,
            Changes::Nothing => false,
        }
    }

    /// Whether it says nothing: absent or empty.
    pub fn is_off(&self) -> bool {
        match &self.value {
            Value::Null => true,
            Value::Object(entries) => entries.is_empty(),
            Value::Array(items) => items.is_empty(),
            Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
        }
    }
}

/// The fields of `recipe` that no row covers.
pub fn unsearched(recipe: &Recipe) -> Vec<Unsearched> {
    // All is taken apart field by field: a new field does not compile until it has a row (then it is `_` here) or stands in
    // the list, and so is in the keys and told by exports.
    let Recipe {
        model,
        data,
        adapter,
        precision: _,
        activation_quantization: _,
        weight_sparsity: _,
        quantization_aware: _,
        precision_schedule: _,
        batch,
        gradient_checkpointing: _,
        optimizer,
        schedule,
        training,
        torch,
        trainer: _,
        beta: _,
        reference: _,
    } = recipe;
    let DataSettings {
        train,
        held_out,
        held_out_length,
        retain,
        format,
        columns,
        loss_on,
        template_targets,
        long_rows,
        chat_template,
        max_rows,
        tokenizing_workers,
    } = data;
    let BatchSettings {
        micro_batch: _,
        gradient_accumulation: _,
        devices: _,
        sharding: _,
        sequence_length: _,
        packing: _,
        group_by_length: _,
        prefetch_depth: _,
    } = batch;
    let OptimizerSettings {
        kind: _,
        learning_rate: _,
        weight_decay: _,
        beta1: _,
        beta2: _,
        epsilon: _,
        momentum: _,
        nesterov: _,
        loraplus_ratio: _,
        max_grad_norm: _,
        offload: _,
    } = optimizer;
    let ScheduleSettings {
        kind: _,
        warmup: _,
        decay: _,
        decay_type: _,
        min_lr_rate: _,
    } = schedule;
    let TrainingSettings {
        length,
        evaluate_every,
        evaluation_rows,
        shuffle,
        seed,
    } = training;
    let TorchSettings {
        attn_implementation: _,
        torch_compile: _,
        use_liger_kernel: _,
        dataloader_num_workers: _,
    } = torch;
    let mut fields = vec![
        cost_too("model", model),
        cost_too("data.train", train),
        loss_only("data.held_out", held_out),
        loss_only("data.held_out_length", held_out_length),
        cost_too("data.format", format),
        cost_too("data.columns", columns),
        cost_too("data.loss_on", loss_on),
        // What is meant where nothing is said is off: `all`, and `cut`.
        cost_too(
            "data.template_targets",
            &(!template_targets.is_all()).then_some(template_targets),
        ),
        cost_too("data.long_rows", &(!long_rows.is_cut()).then_some(long_rows)),
        cost_too("data.chat_template", chat_template),
        cost_too("data.max_rows", max_rows),
        nothing("data.tokenizing_workers", tokenizing_workers),
        loss_only("training.length", length),
        loss_only("training.evaluate_every", evaluate_every),
        loss_only("training.evaluation_rows", evaluation_rows),
        loss_only("training.shuffle", shuffle),
        loss_only("training.seed", seed),
    ];
    // Where there are none, keys are those of recipes without the field.
    fields.extend((!retain.is_empty()).then(|| loss_only("data.retain", retain)));
    fields.extend(adapter.iter().flat_map(of_adapter));
    fields
}

fn of_adapter(adapter: &AdapterSettings) -> [Unsearched; 6] {
    let AdapterSettings {
        rank: _,
        alpha: _,
        dropout: _,
        target_modules: _,
        target_parameters,
        rslora: _,
        dora: _,
        init: _,
        bias: _,
        lora_bias: _,
        rank_pattern,
        alpha_pattern,
        layers_to_transform,
        modules_to_save,
        adapter_init,
    } = adapter;
    [
        cost_too("adapter.target_parameters", target_parameters),
        cost_too("adapter.rank_pattern", rank_pattern),
        // Numbers of the same shapes; starting values cost no step.
        loss_only("adapter.alpha_pattern", alpha_pattern),
        cost_too("adapter.layers_to_transform", layers_to_transform),
        cost_too("adapter.modules_to_save", modules_to_save),
        loss_only("adapter.adapter_init", adapter_init),
    ]
}

fn cost_too(field: &'static str, value: &impl Serialize) -> Unsearched {
    unsearched_field(field, value, Changes::All)
}

fn loss_only(field: &'static str, value: &impl Serialize) -> Unsearched {
    unsearched_field(field, value, Changes::Loss)
}

fn nothing(field: &'static str, value: &impl Serialize) -> Unsearched {
    unsearched_field(field, value, Changes::Nothing)
}

fn unsearched_field(field: &'static str, value: &impl Serialize, changes: Changes) -> Unsearched {
    let value = json(value);
    Unsearched { field, value, changes }
}

/// A value of a recipe as JSON.
pub(super) fn json(value: &impl Serialize) -> Value {
    serde_json::to_value(value).expect("a recipe holds only values that JSON has")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::recipe::settings::settings;
    use crate::recipe::{ActivationQuantization, WeightSparsity};

    #[test]
    fn rows_and_unsearched_fields_are_the_whole_recipe() {
        let mut recipe = Recipe::new("model", DataSettings::default());
        // What is absent or empty is not written: the structs as a whole say what there is.
        let adapter = recipe.adapter.as_mut().unwrap();
        adapter.rank_pattern.insert("q".into(), 1);
        adapter.alpha_pattern.insert("q".into(), 1.0);
        adapter.layers_to_transform = Some(vec![0]);
        adapter.modules_to_save.push("lm_head".into());
        adapter.target_parameters.push("experts.down_proj".into());
        adapter.adapter_init = Some("adapter".into());
        recipe.data.columns.insert("text".into(), "body".into());
        recipe.data.chat_template = Some("chat.jinja".into());
        recipe.data.max_rows = Some(1);
        recipe.data.tokenizing_workers = Some(2);
        recipe.data.held_out_length = Some(1);
        recipe.data.retain = vec!["other.jsonl".into()];
        recipe.data.long_rows = crate::recipe::LongRows::Drop;
        recipe.data.template_targets = crate::recipe::TemplateTargets::StopTokens;
        recipe.precision_schedule = crate::recipe::PrecisionSchedule::from_name("fp32_2").unwrap();
        recipe.batch.devices = 2;
        recipe.batch.sharding = crate::recipe::Sharding::Full;
        recipe.batch.prefetch_depth = 0;
        recipe.batch.group_by_length = true;
        recipe.optimizer.beta2 = Some(0.9);
        recipe.optimizer.loraplus_ratio = Some(2.0);
        recipe.optimizer.offload = crate::recipe::OptimizerOffload::Host;
        (recipe.schedule.decay, recipe.schedule.decay_type) = (Some(0.2), Some(Default::default()));
        recipe.schedule.min_lr_rate = Some(0.0);
        recipe.training.evaluate_every = Some(1);
        recipe.training.evaluation_rows = Some(1);
        recipe.activation_quantization = ActivationQuantization::Int8Forward;
        recipe.weight_sparsity = WeightSparsity::Wanda;
        recipe.quantization_aware = crate::recipe::QuantizationAware::Int8;
        recipe.torch.torch_compile = true;
        recipe.trainer = crate::recipe::TrainerKind::Dpo;
        recipe.beta = Some(0.2);
        recipe.reference = crate::recipe::ReferencePass::Precomputed;
        let mut written = BTreeSet::new();
        for (name, value) in json(&recipe).as_object().unwrap() {
            match (name.as_str(), value.as_object()) {
                (
                    "model"
                    | "precision"
                    | "activation_quantization"
                    | "weight_sparsity"
                    | "quantization_aware"
                    | "precision_schedule"
                    | "gradient_checkpointing"
                    | "trainer"
                    | "beta"
                    | "reference",
                    _,
                ) => written.extend([name.clone()]),
                (_, inner) => written.extend(inner.unwrap().keys().map(|key| format!("{name}.{key}"))),
            }
        }
        let rows = settings()
            .filter(|row| row.name != "method")
            .map(|row| row.field.to_owned());
        let known: BTreeSet<String> = rows
            .chain(unsearched(&recipe).into_iter().map(|field| field.field.to_owned()))
            .collect();
        assert_eq!(known, written);
    }
}
