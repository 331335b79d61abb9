//! [`StoredWeights`]: codes that a checkpoint has its weights in, by `quantization_config` in `config.json`.

use serde_json::{Map, Value};

use super::weight_form::WeightForm;

/// Keys of the settings of a quantization; the second is the first one of compressed-tensors.
const KEYS: [&str; 2] = ["quantization_config", "compression_config"];

/// Codes of a checkpoint, which stay in a training on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredWeights {
    /// Method that made them, as the file names it.
    pub method: String,
    /// Form that is counted: their own, or the nearest one.
    pub form: WeightForm,
}

impl StoredWeights {
    /// Codes that a `config.json` tells of. `None` where it tells of none, or of some that trainings take apart (MXFP4).
    pub fn of(config: &Value) -> Option<Self> {
        let settings = KEYS.iter().find_map(|key| config.get(key)?.as_object())?;
        let is_on = |key: &str| settings.get(key).and_then(Value::as_bool).unwrap_or(false);
        let (in_4_bits, in_8_bits) = (is_on("load_in_4bit"), is_on("load_in_8bit"));
        let named = settings.get("quant_method").and_then(Value::as_str);
        let method = named.or((in_4_bits || in_8_bits).then_some("bitsandbytes"))?;
        let form = match (method, bits_of(settings)) {
            ("mxfp4", _) => return None,
            ("bitsandbytes", _) if in_4_bits && is_on("bnb_4bit_use_double_quant") => WeightForm::Nf4Double,
            ("bitsandbytes", _) if in_4_bits => WeightForm::Nf4,
            ("bitsandbytes", _) => WeightForm::Int8,
            ("fp8" | "fbgemm_fp8", _) | (_, Some(5..)) => WeightForm::Gptq8,
            _ => WeightForm::Gptq4,
        };
        Some(Self {
            method: method.to_owned(),
            form,
        })
    }
}

/// Bits of a code: as GPTQ and AWQ say them, or as the groups of compressed-tensors do.
fn bits_of(settings: &Map<String, Value>) -> Option<u64> {
    let own = ["bits", "w_bit"].iter().find_map(|key| settings.get(*key)?.as_u64());
    own.or_else(|| {
        let groups = settings.get("config_groups")?.as_object()?;
        groups
            .values()
            .find_map(|group| group.get("weights")?.get("num_bits")?.as_u64())
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_method_has_the_form_of_its_bits() {
        for (settings, expected) in [
            (json!({"quant_method": "gptq", "bits": 4}), Some(WeightForm::Gptq4)),
            (json!({"quant_method": "gptq", "bits": 8}), Some(WeightForm::Gptq8)),
            (json!({"quant_method": "awq", "w_bit": 4}), Some(WeightForm::Gptq4)),
            (
                json!({"quant_method": "bitsandbytes", "load_in_8bit": true}),
                Some(WeightForm::Int8),
            ),
            (json!({"load_in_4bit": true}), Some(WeightForm::Nf4)),
            (
                json!({"load_in_4bit": true, "bnb_4bit_use_double_quant": true}),
                Some(WeightForm::Nf4Double),
            ),
            (json!({"quant_method": "fp8"}), Some(WeightForm::Gptq8)),
            (
                json!({"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {"num_bits": 8}}}}),
                Some(WeightForm::Gptq8),
            ),
            (json!({"quant_method": "mxfp4"}), None),
            (json!({"load_in_4bit": false}), None),
            (json!(4), None),
        ] {
            let found = StoredWeights::of(&json!({"quantization_config": settings}));
            assert_eq!(found.map(|stored| stored.form), expected, "{settings}");
        }
    }
}
