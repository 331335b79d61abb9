//! The recipe: the typed settings of one fine-tuning, complete enough to train from.
//!
//! A search space fixes some of them and samples the rest; `recipe.yaml` files hold one. Every field has a default
//! except the model, the data and, for LoRA, nothing else: `peft-tune train` runs what is written here.

mod activation_quantization;
mod adapter;
mod batch;
mod data;
mod difference;
mod epoch_steps;
mod hub_data_set;
mod named;
mod optimizer;
mod optimizer_kind;
mod optimizer_offload;
mod optimizer_reads;
mod precision;
mod precision_schedule;
mod quantization_aware;
mod row_oddities;
mod schedule;
pub mod settings;
mod sharding;
mod together;
mod torch;
mod trained_rows;
mod trainer;
mod training;
mod training_data;
mod value;
mod weight_sparsity;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use activation_quantization::{ActivationQuantization, ActivationQuantizationRow};
pub use adapter::{
    AdapterBias, AdapterInit, AdapterInitRow, AdapterSettings, TargetModules, TargetPreset, TargetPresetRow,
};
pub use batch::{BatchSettings, Checkpointing, CheckpointingRow};
pub use data::{DataFormat, DataSettings, HeldOut, LongRows, LossOn, TemplateTargets};
pub use difference::Difference;
pub use epoch_steps::EpochSteps;
pub use hub_data_set::{BadHubDataSet, HubDataSet, HubPart, PARQUET_BRANCH};
pub use optimizer::OptimizerSettings;
pub use optimizer_kind::{OptimizerKind, OptimizerRow, Reads, States, Update, UpdateOrder};
pub use optimizer_offload::{BadOptimizerOffload, OptimizerOffload, OptimizerOffloadRow};
pub use precision::{BlockConstants, Precision, PrecisionRow};
pub use precision_schedule::{BadPrecisionSchedule, PrecisionSchedule};
pub use quantization_aware::{QuantizationAware, QuantizationAwareRow};
pub use row_oddities::RowOddities;
pub use schedule::{DecayType, ScheduleKind, ScheduleRow, ScheduleSettings};
pub use settings::RecipeKey;
pub use sharding::{BadSharding, Sharding, ShardingRow};
pub use together::BadGroup;
pub use torch::{AttentionImplementation, AttentionImplementationRow, TorchOnly, TorchSettings};
pub use trained_rows::TrainedRows;
pub use trainer::{BadTrainerRows, OnlyInTrl, ReferencePass, ReferencePassRow, TrainerKind, TrainerRow};
pub use training::{StudyLength, TrainingLength, TrainingSettings};
pub use training_data::{TrainingData, TrainingSet, WeightFault};
pub use value::ParamValue;
pub use weight_sparsity::{KEPT_OF_GROUP, SPARSE_GROUP, WeightSparsity, WeightSparsityRow};

/// Settings of one fine-tuning.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    /// Local Hugging Face model directory, or a hub id such as `Qwen/Qwen2.5-0.5B`.
    pub model: String,
    pub data: DataSettings,
    /// LoRA settings; `null` trains every parameter of the base model (full fine-tuning).
    #[serde(default = "default_adapter")]
    pub adapter: Option<AdapterSettings>,
    /// How the frozen base weights are stored and multiplied.
    #[serde(default)]
    pub precision: Precision,
    /// Products of quantized base weights that take their activations in 8 bits.
    #[serde(default, skip_serializing_if = "ActivationQuantization::is_none")]
    pub activation_quantization: ActivationQuantization,
    /// Values of the frozen linear weights that are left out at load.
    #[serde(default, skip_serializing_if = "WeightSparsity::is_none")]
    pub weight_sparsity: WeightSparsity,
    /// Form that the merged weights are rounded to in each pass, so that they can be quantized so after the training.
    #[serde(default, skip_serializing_if = "QuantizationAware::is_none")]
    pub quantization_aware: QuantizationAware,
    /// Steps that compute in fp32 instead.
    #[serde(default, skip_serializing_if = "PrecisionSchedule::is_none")]
    pub precision_schedule: PrecisionSchedule,
    #[serde(default)]
    pub batch: BatchSettings,
    #[serde(default)]
    pub gradient_checkpointing: Checkpointing,
    #[serde(default)]
    pub optimizer: OptimizerSettings,
    #[serde(default)]
    pub schedule: ScheduleSettings,
    #[serde(default)]
    pub training: TrainingSettings,
    /// Choices among what PyTorch's stack has; the built-in engine does without.
    #[serde(default, skip_serializing_if = "TorchSettings::is_usual")]
    pub torch: TorchSettings,
    /// What is learnt of the rows; all but `sft` run in TRL alone.
    #[serde(default, skip_serializing_if = "TrainerKind::is_sft")]
    pub trainer: TrainerKind,
    /// Factor of a preference's loss (`dpo`, `kto`, `orpo`); 0.1 where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub beta: Option<f64>,
    /// Moment at which the reference of `dpo` and `kto` is asked.
    #[serde(default, skip_serializing_if = "ReferencePass::is_each_step")]
    pub reference: ReferencePass,
}

fn default_adapter() -> Option<AdapterSettings> {
    Some(AdapterSettings::default())
}

impl Recipe {
    /// A recipe with default settings for a model and its data.
    pub fn new(model: impl Into<String>, data: DataSettings) -> Self {
        Self {
            model: model.into(),
            data,
            adapter: default_adapter(),
            precision: Precision::default(),
            activation_quantization: ActivationQuantization::default(),
            weight_sparsity: WeightSparsity::default(),
            quantization_aware: QuantizationAware::default(),
            precision_schedule: PrecisionSchedule::default(),
            batch: BatchSettings::default(),
            gradient_checkpointing: Checkpointing::default(),
            optimizer: OptimizerSettings::default(),
            schedule: ScheduleSettings::default(),
            training: TrainingSettings::default(),
            torch: TorchSettings::default(),
            trainer: TrainerKind::default(),
            beta: None,
            reference: ReferencePass::default(),
        }
    }
}

impl Recipe {
    /// The precision of the weights, and that of the codes that a training makes of them.
    pub fn precisions(&self) -> impl Iterator<Item = Precision> {
        std::iter::once(self.precision).chain(self.quantization_aware.row().precision)
    }

    /// Returns the training with nothing rounded or left out: weights and activations in F32 from the first step to the
    /// last.
    pub fn in_fp32(&self) -> Self {
        Self {
            precision: Precision::Fp32,
            activation_quantization: ActivationQuantization::None,
            weight_sparsity: WeightSparsity::None,
            quantization_aware: QuantizationAware::None,
            precision_schedule: PrecisionSchedule::None,
            ..self.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warmup_below_one_is_a_fraction() {
        let warmup = |warmup| {
            ScheduleSettings {
                warmup,
                ..ScheduleSettings::default()
            }
            .warmup_steps(50)
        };
        assert_eq!((warmup(0.0), warmup(0.1), warmup(4.0)), (0, 5, 4));
    }

    #[test]
    fn rslora_divides_by_the_root_of_the_rank() {
        let mut adapter = AdapterSettings {
            rslora: true,
            ..Default::default()
        };
        assert_eq!(adapter.scaling(16, 32.0), 8.0);
        adapter.rslora = false;
        assert_eq!(adapter.scaling(16, 32.0), 2.0);
    }

    #[test]
    fn a_recipe_survives_json() {
        let data = DataSettings {
            train: "train.jsonl".into(),
            ..Default::default()
        };
        let recipe = Recipe::new("model", data);
        let text = serde_json::to_string(&recipe).unwrap();
        assert_eq!(serde_json::from_str::<Recipe>(&text).unwrap(), recipe);
    }
}
