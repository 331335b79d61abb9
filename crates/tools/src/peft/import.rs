//! `adapter_config.json`.

use crate::Tool;
use crate::import::{Reader, StackFileError, adapter};

pub(super) fn read(reader: &mut Reader<'_>) -> Result<(), StackFileError> {
    let keys = reader.keys;
    if let Some(kind) = keys.text("peft_type")?.filter(|kind| kind != "LORA") {
        return Err(keys.wrong(
            "peft_type",
            &kind.into(),
            "write LORA: no other adapter can be trained here",
        ));
    }
    reader.recipe.model = keys.text("base_model_name_or_path")?.unwrap_or_default();
    reader.recipe.adapter = Some(adapter::default(8, 8.0, 0.0));
    reader.assume(
        "an adapter's config says nothing of batch, length and dtype: one row of 1024 tokens in bf16 is assumed",
    );
    reader.values(&[Tool::Peft])?;
    adapter::read(reader, &adapter::OF_PEFT)
}
