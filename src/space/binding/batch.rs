//! Parameters of batching and of what is kept for the backward pass.

use super::adapter::{count, name_of, named, put, truth};
use super::{Binding, Effect, Effects, Legal, SetError};
use peft_tune_core::study::ParamValue;

pub(super) const BINDINGS: &[Binding] = &[
    Binding {
        name: "sequence_length",
        field: "batch.sequence_length",
        about: "Longest row in tokens; longer ones are cut.",
        legal: Legal::Int {
            least: 2,
            most: 4_194_304,
        },
        elsewhere: &[
            "max_length",
            "max_seq_length",
            "max_seq_len",
            "cutoff_len",
            "sequence_len",
            "seq_len",
            "context_length",
        ],
        derived_from: None,
        effects: Effects::all(
            "attention grows with the square of a row's length",
            "activations of a micro-batch",
            "which tokens are seen at all",
        ),
        get: |recipe| Some(ParamValue::Int(recipe.batch.sequence_length as i64)),
        set: |recipe, value| put(&mut recipe.batch.sequence_length, count(value)),
    },
    Binding {
        name: "packing",
        field: "batch.packing",
        about: "Fills rows with several documents, each attending to itself only.",
        legal: Legal::Bool,
        elsewhere: &["sample_packing", "packed", "neat_packing"],
        derived_from: None,
        effects: Effects::all("tokens in a row", "tokens in a micro-batch", "documents in a step"),
        get: |recipe| Some(recipe.batch.packing.into()),
        set: |recipe, value| put(&mut recipe.batch.packing, truth(value)),
    },
    Binding {
        name: "group_by_length",
        field: "batch.group_by_length",
        about: "Puts rows of similar length into the same step. Saves padding in stacks that pad; this engine never does.",
        legal: Legal::Bool,
        elsewhere: &["length_grouped", "length_grouping", "train_sampling_strategy"],
        derived_from: None,
        effects: Effects {
            throughput: Effect::Changes("tokens of each step"),
            peak_memory: Effect::Same("the longest rows can meet in any order"),
            loss: Effect::Changes("which rows share a step"),
        },
        get: |recipe| Some(recipe.batch.group_by_length.into()),
        set: |recipe, value| put(&mut recipe.batch.group_by_length, truth(value)),
    },
    Binding {
        name: "micro_batch",
        field: "batch.micro_batch",
        about: "Rows that go through the model at once.",
        legal: Legal::Int { least: 1, most: 65_536 },
        elsewhere: &[
            "micro_batch_size",
            "batch_size",
            "per_device_train_batch_size",
            "batch",
            "train_micro_batch_size_per_gpu",
        ],
        derived_from: None,
        effects: Effects {
            throughput: Effect::Changes("size of every product"),
            peak_memory: Effect::Changes("activations"),
            loss: Effect::ThroughGlobalBatch("gradients are means over the global batch, however it is cut"),
        },
        get: |recipe| Some(ParamValue::Int(recipe.batch.micro_batch as i64)),
        set: |recipe, value| put(&mut recipe.batch.micro_batch, count(value)),
    },
    Binding {
        name: "devices",
        field: "batch.devices",
        about: "Devices of one node that share each step (data parallel).",
        legal: Legal::Int { least: 1, most: 64 },
        elsewhere: &[
            "num_devices",
            "n_gpus",
            "num_gpus",
            "gpus",
            "nproc_per_node",
            "num_processes",
            "world_size",
            "data_parallel_size",
        ],
        derived_from: None,
        effects: Effects {
            throughput: Effect::Changes("devices that work at once, and what adding up their gradients costs"),
            peak_memory: Effect::Changes("micro-batches under way, where the global batch is held fixed"),
            loss: Effect::ThroughGlobalBatch("gradients are means over the global batch, whoever computes its parts"),
        },
        get: |recipe| Some(ParamValue::Int(recipe.batch.devices as i64)),
        set: |recipe, value| put(&mut recipe.batch.devices, count(value)),
    },
    Binding {
        name: "gradient_accumulation",
        field: "batch.gradient_accumulation",
        about: "Micro-batches of each device whose gradients are added up before a step.",
        legal: Legal::Int { least: 1, most: 65_536 },
        elsewhere: &[
            "gradient_accumulation_steps",
            "grad_accum",
            "accumulate_grad_batches",
            "accumulation",
        ],
        derived_from: None,
        effects: Effects {
            throughput: Effect::Changes("fewer updates per token"),
            peak_memory: Effect::Changes("several micro-batches under way"),
            loss: Effect::ThroughGlobalBatch("gradients are means over the global batch, however it is cut"),
        },
        get: |recipe| Some(ParamValue::Int(recipe.batch.gradient_accumulation as i64)),
        set: |recipe, value| put(&mut recipe.batch.gradient_accumulation, count(value)),
    },
    Binding {
        name: "global_batch",
        field: "batch.gradient_accumulation",
        about: "Rows in one step: sets gradient accumulation to this divided by the micro-batch and the devices.",
        legal: Legal::Int {
            least: 1,
            most: 16_777_216,
        },
        elsewhere: &[
            "global_batch_size",
            "effective_batch_size",
            "train_batch_size",
            "total_batch_size",
        ],
        derived_from: Some("micro_batch"),
        effects: Effects::all(
            "fewer updates per token",
            "several micro-batches under way",
            "rows in a step",
        ),
        get: |recipe| Some(ParamValue::Int(recipe.batch.global_batch() as i64)),
        set: |recipe, value| {
            let global_batch = count(value).ok_or(SetError::Inapplicable)?;
            let micro_batch = recipe.batch.micro_batch.saturating_mul(recipe.batch.devices);
            if micro_batch == 0 || global_batch == 0 || global_batch % micro_batch != 0 {
                return Err(SetError::Indivisible {
                    global_batch,
                    micro_batch: recipe.batch.micro_batch,
                    devices: recipe.batch.devices,
                });
            }
            recipe.batch.gradient_accumulation = global_batch / micro_batch;
            Ok(())
        },
    },
    Binding {
        name: "gradient_checkpointing",
        field: "gradient_checkpointing",
        about: "Which activations are computed again in the backward pass instead of kept.",
        legal: Legal::Checkpointing,
        elsewhere: &[
            "activation_checkpointing",
            "use_gradient_checkpointing",
            "enable_activation_checkpointing",
            "checkpointing",
        ],
        derived_from: None,
        effects: Effects {
            throughput: Effect::Changes("layers computed twice"),
            peak_memory: Effect::Changes("activations kept"),
            loss: Effect::Same("recomputation gives the same numbers"),
        },
        get: |recipe| name_of(&recipe.gradient_checkpointing),
        set: |recipe, value| put(&mut recipe.gradient_checkpointing, named(value)),
    },
];
