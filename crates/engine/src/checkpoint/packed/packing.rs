//! Packing of a checkpoint's weights, by `quantization_config` in `config.json`.

use std::path::Path;

use serde::Deserialize;

use super::PackedError;
use crate::WeightsError;
use peft_tune_core::{bounded, python_json};

/// Formats whose weights are read.
const METHODS: [&str; 6] = ["bitsandbytes", "compressed-tensors", "fp8", "gptq", "awq", "mxfp4"];

/// Rows and columns of a tile where the file names none.
const TILE: [usize; 2] = [128, 128];

/// Facts about packed weights that the tensors do not tell.
#[derive(Clone, Debug, Default)]
pub(in crate::checkpoint) struct Packing {
    method: Option<String>,
    tile: Option<[usize; 2]>,
    /// GPTQ's first files hold each zero point less one.
    zeros_are_less_one: bool,
}

#[derive(Deserialize)]
struct Config {
    quantization_config: Option<Quantization>,
    /// Settings under the key that compressed-tensors had first.
    compression_config: Option<Quantization>,
}

#[derive(Deserialize)]
struct Quantization {
    quant_method: Option<String>,
    #[serde(default)]
    load_in_4bit: bool,
    #[serde(default)]
    load_in_8bit: bool,
    checkpoint_format: Option<String>,
    version: Option<serde_json::Value>,
    weight_block_size: Option<[usize; 2]>,
    #[serde(default)]
    config_groups: serde_json::Map<String, serde_json::Value>,
}

impl Packing {
    /// Packing of the model in `directory`; of a folder without `config.json`, what tensors alone tell.
    ///
    /// # Errors
    /// A `config.json` that names a format which is not read. What else is wrong with it is for its own reader.
    pub(crate) fn of(directory: &Path) -> Result<Self, WeightsError> {
        let path = directory.join("config.json");
        let Ok(text) = bounded::read_text(&path, bounded::SETTINGS_BYTES) else {
            return Ok(Self::default());
        };
        let Ok(config) = python_json::from_str::<Config>(&text) else {
            return Ok(Self::default());
        };
        let Some(quantization) = config.quantization_config.or(config.compression_config) else {
            return Ok(Self::default());
        };
        let is_bitsandbytes = quantization.load_in_4bit || quantization.load_in_8bit;
        let method = quantization.quant_method.clone();
        let method = method.or_else(|| is_bitsandbytes.then(|| "bitsandbytes".to_owned()));
        let unknown = |method: &String| !METHODS.contains(&method.as_str());
        if let Some(method) = method.clone().filter(unknown) {
            return Err(WeightsError::QuantizationMethod {
                path,
                method,
                known: METHODS.join(", "),
            });
        }
        let is_marlin = |text: &str| text.contains("marlin") || text.contains("bitblas");
        let gemv = quantization.version.as_ref().and_then(serde_json::Value::as_str);
        let form = quantization.checkpoint_format.as_deref();
        if let Some(form) = form
            .into_iter()
            .chain(gemv)
            .find(|text| is_marlin(text) || text.contains("gemv"))
        {
            return Err(WeightsError::QuantizationMethod {
                path,
                method: format!("{} ({form})", method.unwrap_or_default()),
                known: METHODS.join(", "),
            });
        }
        Ok(Self {
            tile: quantization.weight_block_size.or_else(|| quantization.tile()),
            zeros_are_less_one: form != Some("gptq_v2"),
            method,
        })
    }

    /// Name of the format, where `config.json` gives one.
    pub(super) fn method(&self) -> Option<&str> {
        self.method.as_deref()
    }

    /// Rows and columns of a tile with one scale.
    pub(crate) fn tile(&self) -> [usize; 2] {
        self.tile
            .filter(|tile| tile.iter().all(|length| *length > 0))
            .unwrap_or(TILE)
    }

    /// Number that GPTQ's stored zero points lack.
    pub(crate) fn missing_of_zeros(&self) -> i64 {
        i64::from(self.zeros_are_less_one)
    }

    /// Fails for a format of compressed-tensors whose values depend on more than its tensors.
    pub(super) fn refuse(&self, what: &str) -> PackedError {
        let method = self.method.as_deref().unwrap_or("compressed-tensors");
        PackedError::Unsupported {
            what: format!("{method}, {what}"),
        }
    }
}

impl Quantization {
    /// Tiles that a group of compressed-tensors names.
    fn tile(&self) -> Option<[usize; 2]> {
        let of_group = |group: &serde_json::Value| {
            let tile = group.get("weights")?.get("block_structure")?;
            serde_json::from_value(tile.clone()).ok()
        };
        self.config_groups.values().find_map(of_group)
    }
}
