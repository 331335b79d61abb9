//! How devices share work and tensors, by the keys of DeepSpeed and FSDP that all tools on transformers' Trainer have.

use serde_json::{Map, Value};

use super::data::located;
use super::settings_file::text_of;
use super::{Keys, Reader};
use crate::known_keys::{is_off, written};
use peft_tune_core::predict::stack::Sharing;
use peft_tune_core::recipe::Checkpointing;

/// What FSDP's keys begin with in some files, and in others not.
const PREFIX: &str = "fsdp_";

/// Reads both. DeepSpeed goes first, as it does in the Trainer.
pub(super) fn read(reader: &mut Reader<'_>) {
    if !deepspeed(reader) {
        fsdp(reader);
    }
}

/// DeepSpeed's stage: of the settings that are written out or lie beside the file, or by the name of theirs. Whether there is one.
fn deepspeed(reader: &mut Reader<'_>) -> bool {
    const KEY: &str = "deepspeed";
    let Some(said) = reader.keys.raw(KEY).filter(|said| !is_off(said)) else {
        return false;
    };
    let name = said.as_str().unwrap_or_default();
    let settings = match said {
        Value::Object(settings) => Some(settings.clone()),
        _ => settings_beside(reader.keys, name),
    };
    let zero = settings
        .as_ref()
        .and_then(|settings| settings.get("zero_optimization")?.as_object());
    let stage = match zero.and_then(|zero| zero.get("stage")?.as_u64()) {
        Some(stage) => Some(stage),
        None => (1..=3).find(|stage| {
            [format!("zero{stage}"), format!("z{stage}")]
                .iter()
                .any(|part| name.contains(part))
        }),
    };
    reader.choices.sharing = match stage {
        Some(1) => Some(Sharing::Zero1),
        Some(2) => Some(Sharing::Zero2),
        Some(3) => Some(Sharing::Zero3),
        _ => None,
    };
    let offloads = |part: &str| {
        zero.and_then(|zero| zero.get(part)?.get("device")?.as_str())
            .is_some_and(|to| to != "none")
    };
    reader.choices.offloads = match zero {
        Some(_) => offloads("offload_optimizer") || offloads("offload_param"),
        None => name.contains("offload"),
    };
    if stage.is_none() {
        let name = if name.is_empty() { "deepspeed" } else { name };
        reader.assume(format!(
            "the stage of DeepSpeed in `{name}` is not known here: name it with --sharing"
        ));
    }
    reader.choices.sharing.is_some()
}

/// Settings of DeepSpeed in a file that is on this machine.
fn settings_beside(keys: &Keys<'_>, name: &str) -> Option<Map<String, Value>> {
    let path = located(keys.path(), name);
    let text = path.is_file().then(|| text_of(&path).ok()).flatten()?;
    serde_json::from_str(&text).ok()
}

/// What FSDP shares out, what it recomputes, and whether weights lie in the host's memory.
fn fsdp(reader: &mut Reader<'_>) {
    let keys = reader.keys;
    let is_on = |key: &str| keys.raw(key).is_some_and(|value| !is_off(value));
    if ![is_on("fsdp"), is_on("fsdp_config")].contains(&true) {
        return;
    }
    let words = keys
        .raw("fsdp")
        .map_or_else(String::new, |words| words.to_string().to_lowercase());
    let part = keys.part("fsdp_config", "fsdp_config.");
    let said = |name: &str| {
        let value = part.as_ref().and_then(|part| value_of(part, name));
        value.unwrap_or_default()
    };
    let (strategy, reshards) = (said("sharding_strategy"), said("reshard_after_forward"));
    let has = |word: &str| [&strategy, &words, &reshards].iter().any(|text| text.contains(word));
    // Earlier versions of accelerate number the strategies.
    let keeps_weights = has("shard_grad_op") || strategy == "2" || reshards == "false";
    reader.choices.sharing = Some(match () {
        () if has("no_shard") || strategy == "3" => Sharing::Copies,
        () if keeps_weights => Sharing::Zero2,
        () => Sharing::Full,
    });
    if keeps_weights {
        reader.assume("FSDP shares gradients and states out, and no weights: counted as ZeRO 2");
    }
    if words.contains("offload") || said("offload_params") == "true" || said("cpu_offload") == "true" {
        reader.choices.offloads = true;
        reader.note("FSDP keeps weights and states in the host's memory there; here they lie on the device");
    }
    if said("activation_checkpointing") == "true" && reader.recipe.gradient_checkpointing == Checkpointing::None {
        reader.recomputes(Some(true), None);
    }
    if let Some(part) = part {
        reader.part_unread(&part, "fsdp_config.");
    }
}

/// A value of FSDP's settings as text in small letters, under its name with or without the prefix.
fn value_of(part: &Keys<'_>, name: &str) -> Option<String> {
    let value = part.raw(name).or_else(|| part.raw(&format!("{PREFIX}{name}")))?;
    Some(written(value).to_lowercase())
}
