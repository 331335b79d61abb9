//! Rates of trainings as others published them: tokens a second of one GPU, with the model, the method and the source.
//!
//! A row is a measurement of its authors, in their stack and of their time; none was repeated here. It is a reference where model, method
//! and GPU are near, and nothing is scaled: whoever shows one says which it is and how far it is.
//!
//! | source | what its figures are |
//! |---|---|
//! | torchtune | tokens a second in its README, rows packed, compiled |
//! | Qwen | 8 micro-batches of one row over the seconds of an iteration in its README, padding counted; QLoRA on GPTQ of 4 bits |
//! | fms-acceleration | `train_tokens_per_second` of transformers' Trainer on one GPU, rows packed, without fused kernels; QLoRA of bitsandbytes |
//! | NeMo AutoModel | tokens a second and GPU in its performance summary, full rows |

use std::fmt;

use super::data_sheet::{DEVICES, DataSheet};
use crate::recipe::Recipe;

/// Method of a training, as far as rates differ by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TuningMethod {
    Full,
    Lora,
    /// Adapters on weights that are quantized.
    Qlora,
}

impl TuningMethod {
    /// Method by which a recipe trains.
    pub fn of(recipe: &Recipe) -> Self {
        match (&recipe.adapter, recipe.precision.is_quantized()) {
            (None, _) => Self::Full,
            (Some(_), false) => Self::Lora,
            (Some(_), true) => Self::Qlora,
        }
    }

    /// Method in words.
    pub fn words(self) -> &'static str {
        match self {
            Self::Full => "full fine-tuning",
            Self::Lora => "LoRA",
            Self::Qlora => "QLoRA",
        }
    }
}

/// One row of the table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PublishedRate {
    pub model: &'static str,
    /// Parameters of the model.
    pub parameters: f64,
    pub method: TuningMethod,
    /// Name in the table of data sheets.
    pub device: &'static str,
    /// GPUs that trained together.
    pub devices: u64,
    pub sequence_length: u64,
    /// Tokens a second of one GPU.
    pub tokens_per_s: f64,
    /// Address of the source.
    pub source: &'static str,
}

/// Source of several rows, and the length of rows in them.
struct Origin {
    source: &'static str,
    device: &'static str,
    sequence_length: u64,
}

impl Origin {
    const fn row(&self, model: &'static str, billions: f64, method: TuningMethod, tokens_per_s: f64) -> PublishedRate {
        PublishedRate {
            model,
            parameters: billions * 1e9,
            method,
            device: self.device,
            devices: 1,
            sequence_length: self.sequence_length,
            tokens_per_s,
            source: self.source,
        }
    }
}

const fn on_devices(devices: u64, row: PublishedRate) -> PublishedRate {
    PublishedRate { devices, ..row }
}

const TORCHTUNE: &str = "https://github.com/pytorch/torchtune/blob/bd2a0fc7c31430972728494fa01aaeeb0ebf1ba1/README.md";
const TORCHTUNE_4090: Origin = Origin {
    source: TORCHTUNE,
    device: "RTX 4090",
    sequence_length: 2048,
};
const TORCHTUNE_A6000: Origin = Origin {
    device: "RTX A6000",
    ..TORCHTUNE_4090
};
const TORCHTUNE_A100: Origin = Origin {
    source: TORCHTUNE,
    device: "A100 80GB",
    sequence_length: 4096,
};
const QWEN: Origin = Origin {
    source: "https://github.com/QwenLM/Qwen/blob/2df8e8ac450fa185c421a08b0090ef81826caa6e/README.md",
    device: "A100 80GB",
    sequence_length: 2048,
};
const FMS: Origin = Origin {
    source: "https://github.com/foundation-model-stack/fms-acceleration/blob/876e2ed6fc4e966785e3f4315f5ee3cdf8e3d097/scripts/benchmarks/\
             refs/a100_80gb.csv",
    device: "A100 80GB",
    sequence_length: 4096,
};
const FMS_GRANITE: Origin = Origin {
    source: "https://github.com/foundation-model-stack/fms-acceleration/blob/876e2ed6fc4e966785e3f4315f5ee3cdf8e3d097/scripts/benchmarks/\
             refs/a100_80gb_granite.csv",
    ..FMS
};
const NEMO: Origin = Origin {
    source: "https://github.com/NVIDIA-NeMo/Automodel/blob/01926a5c443b7979463c73341bf64adf79de638e/docs/performance-summary.md",
    device: "H100 SXM",
    sequence_length: 4096,
};

use TuningMethod::{Full, Lora, Qlora};

/// The table. Billions of parameters, then tokens a second of one GPU.
pub const PUBLISHED_RATES: [PublishedRate; 22] = [
    TORCHTUNE_4090.row("Llama 3.1 8B", 8.03, Full, 1650.0),
    TORCHTUNE_A6000.row("Llama 3.1 8B", 8.03, Full, 2579.0),
    TORCHTUNE_4090.row("Llama 3.1 8B", 8.03, Lora, 3083.0),
    TORCHTUNE_A6000.row("Llama 3.1 8B", 8.03, Lora, 4699.0),
    TORCHTUNE_4090.row("Llama 3.1 8B", 8.03, Qlora, 2413.0),
    TORCHTUNE_A100.row("Llama 3.2 3B", 3.21, Full, 9174.0),
    TORCHTUNE_A100.row("Llama 3.2 3B", 3.21, Lora, 8210.0),
    TORCHTUNE_A100.row("Llama 3.2 3B", 3.21, Qlora, 8035.0),
    QWEN.row("Qwen 1.8B", 1.84, Full, 7123.5),
    QWEN.row("Qwen 1.8B", 1.84, Lora, 9637.6),
    QWEN.row("Qwen 1.8B", 1.84, Qlora, 8192.0),
    QWEN.row("Qwen 7B", 7.72, Lora, 3150.8),
    QWEN.row("Qwen 7B", 7.72, Qlora, 2340.6),
    QWEN.row("Qwen 14B", 14.17, Lora, 1950.5),
    QWEN.row("Qwen 14B", 14.17, Qlora, 1388.5),
    FMS.row("Mistral 7B v0.1", 7.24, Full, 3143.1),
    FMS.row("Mistral 7B v0.1", 7.24, Lora, 3353.8),
    FMS.row("Mistral 7B v0.1", 7.24, Qlora, 2987.5),
    FMS_GRANITE.row("PowerLM 3B", 3.51, Full, 5224.0),
    FMS_GRANITE.row("PowerLM 3B", 3.51, Lora, 5106.0),
    FMS_GRANITE.row("PowerLM 3B", 3.51, Qlora, 4317.2),
    on_devices(8, NEMO.row("Llama 3 70B", 70.6, Lora, 608.42)),
];

/// Training that a published rate is wanted for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AskedRate {
    /// Parameters of the base model.
    pub parameters: u64,
    pub method: TuningMethod,
    /// The GPU's data sheet; `None` for a device that has none.
    pub sheet: Option<&'static DataSheet>,
    pub sequence_length: u64,
}

/// The row that is nearest to a training, with its distance.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NearRate {
    pub row: &'static PublishedRate,
    /// Parameters of the row's model over those asked for.
    pub parameters_ratio: f64,
    /// Peak of the row's GPU in 16 bits over that of the one asked for.
    pub peak_ratio: f64,
    /// Tokens of a row that were asked for.
    asked_length: u64,
}

/// Reasons why there is no published rate for a training.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum NoPublishedRate {
    #[error("published rates are of GPUs, and this device has no data sheet to compare it by")]
    NoSheet,
    #[error("no published rate is known of {}", .method.words())]
    NoRow { method: TuningMethod },
    #[error("no published rate is near, within {most} times in parameters and in the GPU's peak; the nearest: {nearest}", most = NEAR)]
    TooFar { nearest: NearRate },
}

/// Most that parameters and peak may differ by, as a factor either way, where a row is near.
pub const NEAR: f64 = 1.5;
/// Weight of a difference in the length of rows, which decides between rows that are as near otherwise.
const LENGTH_WEIGHT: f64 = 0.1;

/// Whether a measurement is near in one size, by that size over the one asked for.
pub fn is_near(ratio: f64) -> bool {
    (1.0 / NEAR..=NEAR).contains(&ratio)
}

/// The published rate that is nearest in parameters and peak, among those of the method that are near in both.
///
/// # Errors
/// A device without data sheet; no row that is near.
pub fn nearest_rate(asked: &AskedRate) -> Result<NearRate, NoPublishedRate> {
    let sheet = asked.sheet.ok_or(NoPublishedRate::NoSheet)?;
    let of_method = PUBLISHED_RATES.iter().filter(|row| row.method == asked.method);
    let mut rows: Vec<NearRate> = of_method.filter_map(|row| NearRate::new(row, asked, sheet)).collect();
    rows.sort_by(|one, other| one.distance().total_cmp(&other.distance()));
    // The nearest of all may be too far in one of the two, and the next one in neither.
    let near = rows.iter().find(|row| row.is_near());
    match (near, rows.first()) {
        (Some(near), _) => Ok(*near),
        (None, Some(nearest)) => Err(NoPublishedRate::TooFar { nearest: *nearest }),
        (None, None) => Err(NoPublishedRate::NoRow { method: asked.method }),
    }
}

impl NearRate {
    /// The distance of a row; `None` where its device has no data sheet.
    fn new(row: &'static PublishedRate, asked: &AskedRate, sheet: &DataSheet) -> Option<Self> {
        let own = DEVICES.iter().find(|device| device.name == row.device)?;
        Some(Self {
            row,
            parameters_ratio: row.parameters / asked.parameters.max(1) as f64,
            peak_ratio: own.matrix / sheet.matrix,
            asked_length: asked.sequence_length,
        })
    }

    fn distance(&self) -> f64 {
        let length_ratio = self.row.sequence_length as f64 / self.asked_length.max(1) as f64;
        self.parameters_ratio.ln().abs() + self.peak_ratio.ln().abs() + LENGTH_WEIGHT * length_ratio.ln().abs()
    }

    fn is_near(&self) -> bool {
        is_near(self.parameters_ratio) && is_near(self.peak_ratio)
    }
}

impl fmt::Display for NearRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PublishedRate {
            model,
            method,
            device,
            devices,
            sequence_length,
            tokens_per_s,
            source,
            parameters: _,
        } = self.row;
        write!(
            f,
            "{model}, {}, {devices} x {device}, rows of {sequence_length} tokens, {tokens_per_s:.0} tokens/s a GPU; {:.2} times the \
             parameters, {:.2} times the peak, {:.2} times the length of rows of what is profiled; {source}",
            method.words(),
            self.parameters_ratio,
            self.peak_ratio,
            *sequence_length as f64 / self.asked_length.max(1) as f64
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::predict::device;

    fn asked(parameters: f64, method: TuningMethod, name: &str) -> AskedRate {
        AskedRate {
            parameters: parameters as u64,
            method,
            sheet: Some(device(name).unwrap()),
            sequence_length: 4096,
        }
    }

    #[test]
    fn rows_have_data_sheets_and_sources_and_no_gpu_does_more_than_its_peak() {
        for row in &PUBLISHED_RATES {
            let sheet = DEVICES.iter().find(|device| device.name == row.device).unwrap();
            assert!(
                row.source.starts_with("https://github.com/") && row.source.contains("/blob/"),
                "{row:?}"
            );
            // Forward and backward pass; full fine-tuning has the weights' gradients too.
            let of_parameter = if row.method == Full { 6.0 } else { 4.0 };
            let share = of_parameter * row.parameters * row.tokens_per_s / sheet.matrix;
            assert!((0.1..1.0).contains(&share), "{share}: {row:?}");
        }
    }

    #[test]
    fn the_nearest_row_of_the_method_is_told_with_its_distance() {
        let found = nearest_rate(&asked(7.0e9, Lora, "A100 80GB")).unwrap();
        assert_eq!((found.row.model, found.row.tokens_per_s), ("Mistral 7B v0.1", 3353.8));
        assert!((found.parameters_ratio - 7.24 / 7.0).abs() < 1e-9 && found.peak_ratio == 1.0);
        let text = found.to_string();
        assert!(
            text.contains("1.03 times the parameters") && text.contains("fms-acceleration"),
            "{text}"
        );
        // 154.8 TFLOP/s of the A6000 beside 165.2 of the 4090, whose own row is nearer.
        let found = nearest_rate(&asked(8.03e9, Qlora, "RTX A6000")).unwrap();
        assert_eq!(found.row.device, "RTX 4090");
        assert!((found.peak_ratio - 165.2 / 154.8).abs() < 1e-9, "{found}");
    }

    #[test]
    fn a_row_that_is_near_in_both_goes_before_a_nearer_one_that_is_too_far_in_one() {
        // Between the 165.2 TFLOP/s of the 4090, whose own rows have 8.03 billion parameters, and the 312 of the A100.
        let between: &'static DataSheet = Box::leak(Box::new(DataSheet {
            matrix: 210e12,
            ..*device("A100 80GB").unwrap()
        }));
        let asked = AskedRate {
            sheet: Some(between),
            sequence_length: 2048,
            ..asked(5.2e9, Lora, "A100 80GB")
        };
        let found = nearest_rate(&asked).unwrap();
        assert_eq!(found.row.device, "A100 80GB", "{found}");
        assert!(found.is_near() && found.row.parameters > 7e9, "{found}");
    }

    #[test]
    fn what_is_far_is_refused_with_the_nearest() {
        let far = nearest_rate(&asked(1.35e8, Lora, "A100 80GB")).unwrap_err();
        assert!(
            matches!(far, NoPublishedRate::TooFar { nearest } if nearest.row.model == "Qwen 1.8B"),
            "{far}"
        );
        assert!(far.to_string().contains("within 1.5 times"), "{far}");
        let other = nearest_rate(&asked(7.0e9, Lora, "T4")).unwrap_err();
        assert!(matches!(other, NoPublishedRate::TooFar { .. }), "{other}");
        let host = AskedRate {
            sheet: None,
            ..asked(7.0e9, Lora, "T4")
        };
        assert_eq!(nearest_rate(&host), Err(NoPublishedRate::NoSheet));
    }
}
