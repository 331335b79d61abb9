//! Settings of trainings in PyTorch's stack, which the built-in engine does without.

use super::effect::{Effects, changes, same};
use super::field::{count, name_of, named, put, truth};
use super::{Legal, SettingRow};
use crate::recipe::{AttentionImplementation, ParamValue};

/// Most processes that read rows.
const MOST_WORKERS: i64 = 256;

pub(super) const ROWS: &[SettingRow] = &[
    SettingRow {
        name: "attn_implementation",
        field: "torch.attn_implementation",
        about: "How transformers computes attention. Only with `backend: trl`.",
        legal: Legal::Choice(&AttentionImplementation::NAMES),
        widest: None,
        elsewhere: &["attention", "flash_attention", "sdp_attention", "use_flash_attention_2"],
        unit: None,
        derived_from: None,
        effects: Effects {
            throughput: changes("other kernels"),
            peak_memory: changes("scores that are kept, or never made"),
            loss: same("the same sums in another order"),
        },
        get: |recipe| name_of(&recipe.torch.attn_implementation),
        set: |recipe, value| put(&mut recipe.torch.attn_implementation, named(value)),
    },
    SettingRow {
        name: "torch_compile",
        field: "torch.torch_compile",
        about: "Has the model compiled by `torch.compile`. Only with `backend: trl`.",
        legal: Legal::Bool,
        widest: None,
        elsewhere: &["compile_model", "torchcompile"],
        unit: None,
        derived_from: None,
        effects: Effects {
            throughput: changes("passes over memory that are fused"),
            peak_memory: changes("temporaries that are never made"),
            loss: changes("dropout draws other masks, and products of fp32 are of TF32 on a GPU"),
        },
        get: |recipe| Some(recipe.torch.torch_compile.into()),
        set: |recipe, value| put(&mut recipe.torch.torch_compile, truth(value)),
    },
    SettingRow {
        name: "use_liger_kernel",
        field: "torch.use_liger_kernel",
        about: "Takes norms, rotations and MLP activations from liger-kernel. Only with `backend: trl`.",
        legal: Legal::Bool,
        widest: None,
        elsewhere: &["use_liger", "liger", "liger_kernel"],
        unit: None,
        derived_from: None,
        effects: Effects {
            throughput: changes("passes over memory that are fused"),
            peak_memory: changes("temporaries that are never made"),
            loss: same("the same sums in another order"),
        },
        get: |recipe| Some(recipe.torch.use_liger_kernel.into()),
        set: |recipe, value| put(&mut recipe.torch.use_liger_kernel, truth(value)),
    },
    SettingRow {
        name: "dataloader_num_workers",
        field: "torch.dataloader_num_workers",
        about: "Processes that read rows beside the trainer's; 0 reads as `prefetch_depth` says. Only with `backend: trl` or `unsloth`.",
        legal: Legal::Int {
            least: 0,
            most: MOST_WORKERS,
        },
        widest: None,
        elsewhere: &["num_workers", "dataloader_workers"],
        unit: None,
        derived_from: None,
        effects: Effects {
            throughput: changes("how much of the reading hides behind the steps before"),
            peak_memory: changes("rows that wait, in the host's memory"),
            loss: same("the same rows in the same order"),
        },
        get: |recipe| Some(ParamValue::Int(recipe.torch.dataloader_num_workers as i64)),
        set: |recipe, value| put(&mut recipe.torch.dataloader_num_workers, count(value)),
    },
];
