//! Settings of batching and of what is kept for the backward pass.

use super::effect::{Effects, changes, same, through_global_batch};
use super::field::{count, name_of, named, put, truth};
use super::{Legal, SetError, SettingRow};
use crate::recipe::{ParamValue, Sharding};

pub(super) const ROWS: &[SettingRow] = &[
    SettingRow {
        name: "sequence_length",
        field: "batch.sequence_length",
        about: "Longest row in tokens; longer ones are cut.",
        legal: Legal::Int {
            least: 2,
            most: 4_194_304,
        },
        widest: None,
        elsewhere: &["max_seq_length", "seq_len", "context_length"],
        unit: Some("tokens"),
        derived_from: None,
        effects: Effects::all(
            "attention grows with the square of a row's length",
            "activations of a micro-batch",
            "which tokens are seen at all",
        ),
        get: |recipe| Some(ParamValue::Int(recipe.batch.sequence_length as i64)),
        set: |recipe, value| put(&mut recipe.batch.sequence_length, count(value)),
    },
    SettingRow {
        name: "packing",
        field: "batch.packing",
        about: "Fills rows with several documents, each attending to itself only.",
        legal: Legal::Bool,
        widest: None,
        elsewhere: &["neat_packing"],
        unit: None,
        derived_from: None,
        effects: Effects::all("tokens in a row", "tokens in a micro-batch", "documents in a step"),
        get: |recipe| Some(recipe.batch.packing.into()),
        set: |recipe, value| put(&mut recipe.batch.packing, truth(value)),
    },
    SettingRow {
        name: "group_by_length",
        field: "batch.group_by_length",
        about: "Puts rows of similar length into the same step. Saves padding in stacks that pad; this engine never does.",
        legal: Legal::Bool,
        widest: None,
        elsewhere: &["length_grouped", "length_grouping"],
        unit: None,
        derived_from: None,
        effects: Effects {
            throughput: changes("tokens of each step"),
            peak_memory: same("the longest rows can meet in any order"),
            loss: changes("which rows share a step"),
        },
        get: |recipe| Some(recipe.batch.group_by_length.into()),
        set: |recipe, value| put(&mut recipe.batch.group_by_length, truth(value)),
    },
    SettingRow {
        name: "micro_batch",
        field: "batch.micro_batch",
        about: "Rows that go through the model at once.",
        legal: Legal::Int { least: 1, most: 65_536 },
        widest: None,
        elsewhere: &["batch", "train_micro_batch_size_per_gpu"],
        unit: Some("rows"),
        derived_from: None,
        effects: Effects {
            throughput: changes("size of every product"),
            peak_memory: changes("activations"),
            loss: through_global_batch("gradients are means over the global batch, however it is cut"),
        },
        get: |recipe| Some(ParamValue::Int(recipe.batch.micro_batch as i64)),
        set: |recipe, value| put(&mut recipe.batch.micro_batch, count(value)),
    },
    SettingRow {
        name: "devices",
        field: "batch.devices",
        about: "Devices of one node that share each step (data parallel).",
        legal: Legal::Int { least: 1, most: 64 },
        widest: None,
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
        unit: None,
        derived_from: None,
        effects: Effects {
            throughput: changes("devices that work at once, and what adding up their gradients costs"),
            peak_memory: changes("micro-batches under way, where the global batch is held fixed"),
            loss: through_global_batch("gradients are means over the global batch"),
        },
        get: |recipe| Some(ParamValue::Int(recipe.batch.devices as i64)),
        set: |recipe, value| put(&mut recipe.batch.devices, count(value)),
    },
    SettingRow {
        name: "sharding",
        field: "batch.sharding",
        about: "What each of several devices holds of the frozen weights: all, or a part, gathered layer by layer.",
        legal: Legal::Choice(&Sharding::NAMES),
        widest: None,
        elsewhere: &["fsdp", "sharding_strategy", "zero_stage", "zero3"],
        unit: None,
        derived_from: None,
        effects: Effects {
            throughput: changes("weights that are gathered before each layer"),
            peak_memory: changes("the part of the frozen weights that a device holds"),
            loss: same("each layer is computed with the same weights"),
        },
        get: |recipe| name_of(&recipe.batch.sharding),
        set: |recipe, value| put(&mut recipe.batch.sharding, named(value)),
    },
    SettingRow {
        name: "gradient_accumulation",
        field: "batch.gradient_accumulation",
        about: "Micro-batches of each device whose gradients are added up before a step.",
        legal: Legal::Int { least: 1, most: 65_536 },
        widest: None,
        elsewhere: &["grad_accum", "accumulate_grad_batches", "accumulation"],
        unit: Some("micro-batches"),
        derived_from: None,
        effects: Effects {
            throughput: changes("fewer updates per token"),
            peak_memory: changes("several micro-batches under way"),
            loss: through_global_batch("gradients are means over the global batch, however it is cut"),
        },
        get: |recipe| Some(ParamValue::Int(recipe.batch.gradient_accumulation as i64)),
        set: |recipe, value| put(&mut recipe.batch.gradient_accumulation, count(value)),
    },
    SettingRow {
        name: "global_batch",
        field: "batch.gradient_accumulation",
        about: "Rows in one step: sets gradient accumulation to this divided by the micro-batch and the devices.",
        legal: Legal::Int {
            least: 1,
            most: 16_777_216,
        },
        widest: None,
        elsewhere: &[
            "global_batch_size",
            "effective_batch_size",
            "train_batch_size",
            "total_batch_size",
        ],
        unit: Some("rows"),
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
    SettingRow {
        name: "prefetch_depth",
        field: "batch.prefetch_depth",
        about: "Steps whose rows are prepared ahead, on a thread of their own; 0 prepares each within its step.",
        legal: Legal::Int { least: 0, most: 1_024 },
        widest: None,
        elsewhere: &["prefetch_factor"],
        unit: Some("steps"),
        derived_from: None,
        effects: Effects {
            throughput: changes("how much of the reading hides behind the steps before"),
            peak_memory: changes("rows of the steps that wait, in the host's memory"),
            loss: same("the same rows in the same order"),
        },
        get: |recipe| Some(ParamValue::Int(recipe.batch.prefetch_depth as i64)),
        set: |recipe, value| put(&mut recipe.batch.prefetch_depth, count(value)),
    },
    SettingRow {
        name: "gradient_checkpointing",
        field: "gradient_checkpointing",
        about: "Which activations are computed again in the backward pass instead of kept.",
        legal: Legal::Checkpointing,
        widest: None,
        elsewhere: &["activation_checkpointing", "checkpointing"],
        unit: None,
        derived_from: None,
        effects: Effects {
            throughput: changes("layers computed twice"),
            peak_memory: changes("activations kept"),
            loss: same("recomputation gives the same numbers"),
        },
        get: |recipe| name_of(&recipe.gradient_checkpointing),
        set: |recipe, value| put(&mut recipe.gradient_checkpointing, named(value)),
    },
];
