//! What axolotl holds, read from axolotl 0.19.

use super::keys::LIGER_KERNELS;
use crate::import::{Keys, Reader, StackFileError, choices};
use peft_tune_core::predict::stack::{AttentionForm, HostUpdates, LossForm, Raised, StackBehaviour};

pub(super) const BEHAVIOUR: StackBehaviour = StackBehaviour {
    name: super::NAME,
    pads_to: 64,
    autocast: true,
    raises: Raised::Nothing,
    foreach: false,
    says_sharding: true,
    host_updates: HostUpdates::DeepSpeed,
    unproven: Some("no measurement of axolotl was compared"),
    ..StackBehaviour::PLAIN
};

/// Forms of attention by the flags that earlier versions have for them.
const ATTENTION: [(&str, AttentionForm); 6] = [
    ("flash_attention", AttentionForm::Flash),
    ("xformers_attention", AttentionForm::Flash),
    ("sage_attention", AttentionForm::Flash),
    ("sdp_attention", AttentionForm::Sdpa),
    ("flex_attention", AttentionForm::Sdpa),
    ("eager_attention", AttentionForm::Eager),
];

/// Flags of losses that are one kernel behind the head.
const FUSED_LOSSES: [&str; 4] = [
    "liger_cross_entropy",
    "flash_attn_cross_entropy",
    "unsloth_cross_entropy_loss",
    "chunked_cross_entropy",
];

/// Parts of the names of plugins that are read, or that change no training.
const PLUGINS: [&str; 4] = ["liger", "cut_cross_entropy", "lm_eval", "swanlab"];

/// Reads what a file says of it.
///
/// # Errors
/// A value that the tool would not take.
pub(super) fn read(reader: &mut Reader<'_>) -> Result<(), StackFileError> {
    choices::of_trainer(reader, "attn_implementation")?;
    let keys = reader.keys;
    for (flag, form) in ATTENTION {
        if is_on(keys, flag)? {
            reader.choices.attention = Some(form);
        }
    }
    let plugins = keys.names("plugins")?.unwrap_or_default();
    for plugin in plugins
        .iter()
        .filter(|name| !PLUGINS.iter().any(|part| name.contains(part)))
    {
        reader.note(format!(
            "`plugins: {plugin}` is not carried over: trainings here have no plugins"
        ));
        reader.assume(format!("`plugins: {plugin}` is not counted"));
    }
    loss(reader, &plugins)?;
    kernels(reader, &plugins)
}

fn has(plugins: &[String], part: &str) -> bool {
    plugins.iter().any(|name| name.contains(part))
}

/// Loss and head, which the plugins of cut cross-entropy and liger have in one.
fn loss(reader: &mut Reader<'_>, plugins: &[String]) -> Result<(), StackFileError> {
    let keys = reader.keys;
    // The plugin alone turns it on.
    let is_cut = keys.flag("cut_cross_entropy")?.unwrap_or(true) && has(plugins, "cut_cross_entropy");
    let is_linear = is_on(keys, "liger_fused_linear_cross_entropy")? && has(plugins, "liger");
    let _ = keys.has("chunked_cross_entropy_num_chunks");
    let mut is_fused = false;
    for flag in FUSED_LOSSES {
        is_fused |= is_on(keys, flag)?;
    }
    reader.choices.loss = match () {
        () if is_cut || is_linear => Some(LossForm::FusedLinear),
        () if is_fused => Some(LossForm::FusedCrossEntropy),
        () => None,
    };
    if reader.choices.loss.is_some() {
        reader.note("head and loss in one are no setting of a study: `plan --check` of the file counts them, and a study does not");
    }
    Ok(())
}

/// Kernels of liger, and those that write LoRA's products by hand.
fn kernels(reader: &mut Reader<'_>, plugins: &[String]) -> Result<(), StackFileError> {
    let keys = reader.keys;
    let has_liger = has(plugins, "liger");
    // Earlier versions name the activation's kernel by its function.
    let has_swiglu = is_on(keys, "liger_swiglu")?;
    let mut on = 0;
    // All are looked at, so that none is told as one that nobody reads.
    for kernel in LIGER_KERNELS {
        on += usize::from(is_on(keys, kernel)? || has_swiglu && kernel == "liger_glu_activation");
    }
    reader.choices.fused = has_liger && on > 0;
    if has_liger && on == LIGER_KERNELS.len() {
        reader.recipe.torch.use_liger_kernel = true;
        reader.said("use_liger_kernel");
    }
    let (of_attention, of_mlp) = (is_on(keys, "lora_qkv_kernel")?, is_on(keys, "lora_mlp_kernel")?);
    reader.choices.fused_lora = of_attention && of_mlp;
    if of_attention != of_mlp {
        reader.assume("LoRA's products of some modules alone are written by hand there, which is not counted");
    }
    Ok(())
}

fn is_on(keys: &Keys<'_>, key: &str) -> Result<bool, StackFileError> {
    keys.flag(key).map(|flag| flag.unwrap_or(false))
}
