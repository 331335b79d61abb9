//! Options of the trainer among PEFT's examples (`examples/sft/train.py`), as far as they are not those of TRL's commands.

use crate::import::{Reader, StackFileError, adapter};
use peft_tune_core::predict::stack::{AttentionForm, Number};
use peft_tune_core::recipe::{TargetModules, TargetPreset};

/// Flag of an adapter.
pub(super) const USES_LORA: &str = "use_peft_lora";
/// Flag of quantized constants.
pub(super) const IS_DOUBLE: &str = "use_nested_quant";

/// Takes the adapter that the example has where nothing is said.
pub(super) fn defaults(reader: &mut Reader<'_>) {
    if reader.keys.has(USES_LORA) {
        let mut adapter = adapter::default(64, 16.0, 0.1);
        adapter.target_modules = TargetModules::Preset(TargetPreset::AllLinear);
        reader.recipe.adapter = Some(adapter);
    }
}

/// Reads what it holds: attention, and the dtype that codes are stored in, which is that of all other weights.
///
/// # Errors
/// A value that the example would not take.
pub(super) fn read(reader: &mut Reader<'_>) -> Result<(), StackFileError> {
    let keys = reader.keys;
    if !keys.has(USES_LORA) {
        return Ok(());
    }
    if keys.flag("use_flash_attn")?.unwrap_or(false) {
        reader.choices.attention = Some(AttentionForm::Flash);
    }
    // Without codes, and with codes in whole bytes, weights are loaded in F32.
    let storage = keys.text("bnb_4bit_quant_storage_dtype")?.unwrap_or_default();
    let is_half = reader.recipe.precision.is_quantized() && storage.ends_with("float16");
    let loads = if is_half { Number::Half } else { Number::F32 };
    if let Some(dtypes) = &mut reader.choices.dtypes {
        dtypes.loads = loads;
    }
    // Neither changes what a step needs: products are in the trainer's dtype, and both forms of checkpointing keep the same.
    for key in ["bnb_4bit_compute_dtype", "use_reentrant"] {
        let _ = keys.has(key);
    }
    Ok(())
}
