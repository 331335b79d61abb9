//! Small random models of every family, and every kind of adapter: some steps on the device against as many on the CPU.

use std::path::Path;
use std::sync::Arc;

use candle_core::{Device, Tensor};

use crate::data::{Document, MicroBatch};
use crate::{BaseModel, TrainError, Trainer};
use peft_tune_core::architecture::Architecture;
use peft_tune_core::recipe::{AdapterSettings, Checkpointing, DataSettings, OptimizerKind, Precision, Recipe};
use peft_tune_kernels::compare::{Check, distance, on_cpu};

/// The step whose gradients are compared.
const GRADIENTS_AT: usize = 3;

/// `config.json` without what all have in common.
const FAMILIES: [(&str, &str); 29] = [
    ("llama", r#""head_dim": 16, "rope_theta": 10000.0"#),
    (
        "mistral",
        r#""head_dim": 16, "rope_theta": 10000.0, "sliding_window": 8"#,
    ),
    ("qwen2", r#""rope_theta": 1000000.0, "tie_word_embeddings": true"#),
    (
        "qwen3",
        r#""head_dim": 32, "rope_theta": 1000000.0, "tie_word_embeddings": true"#,
    ),
    (
        "gemma2",
        r#""head_dim": 32, "rope_theta": 10000.0, "sliding_window": 8, "query_pre_attn_scalar": 24,
           "attn_logit_softcapping": 1.5, "final_logit_softcapping": 3.0, "hidden_activation": "gelu_pytorch_tanh",
           "tie_word_embeddings": true"#,
    ),
    (
        "gemma3_text",
        r#""head_dim": 32, "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0, "sliding_window": 8,
           "query_pre_attn_scalar": 24, "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": true"#,
    ),
    (
        "phi3",
        r#""rope_theta": 10000.0, "sliding_window": 8, "partial_rotary_factor": 0.5,
           "original_max_position_embeddings": 256, "pad_token_id": 0"#,
    ),
    ("smollm3", r#""no_rope_layers": [1, 0]"#),
    (
        "granite",
        r#""embedding_multiplier": 3.0, "attention_multiplier": 0.1, "residual_multiplier": 0.4, "logits_scaling": 1.6"#,
    ),
    ("ernie4_5", r#""head_dim": 24"#),
    (
        "hunyuan_v1_dense",
        r#""rope_scaling": {"type": "dynamic", "alpha": 1000.0, "factor": 1.0}"#,
    ),
    (
        "ministral3",
        r#""head_dim": 24, "rope_parameters": {"rope_type": "yarn", "factor": 16.0, "mscale": 1.0, "mscale_all_dim": 1.0,
           "original_max_position_embeddings": 16, "llama_4_scaling_beta": 0.1, "rope_theta": 1000000.0}"#,
    ),
    ("exaone4", r#""sliding_window": 8, "sliding_window_pattern": "LG""#),
    (
        "olmo3",
        r#""sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]"#,
    ),
    ("glm4", r#""partial_rotary_factor": 0.5"#),
    (
        "cohere2",
        r#""sliding_window": 8, "sliding_window_pattern": 2, "logit_scale": 0.25"#,
    ),
    ("apertus", r#""hidden_act": "xielu""#),
    ("gemma", r#""head_dim": 24, "hidden_act": "gelu""#),
    ("olmo2", r#""rope_theta": 500000.0"#),
    ("glm", r#""partial_rotary_factor": 0.5"#),
    ("helium", r#""head_dim": 16"#),
    ("cohere", r#""logit_scale": 0.25"#),
    (
        "granitemoehybrid",
        r#""shared_intermediate_size": 176, "position_embedding_type": "rope", "residual_multiplier": 0.4"#,
    ),
    (
        "qwen3_moe",
        r#""head_dim": 16, "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24, "norm_topk_prob": true"#,
    ),
    (
        "qwen2_moe",
        r#""num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24, "norm_topk_prob": false,
           "shared_expert_intermediate_size": 40"#,
    ),
    (
        "glm4_moe",
        r#""head_dim": 16, "n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 3, "moe_intermediate_size": 24,
           "norm_topk_prob": true, "n_group": 4, "topk_group": 2, "routed_scaling_factor": 1.5, "first_k_dense_replace": 1,
           "partial_rotary_factor": 0.5, "use_qk_norm": true"#,
    ),
    (
        "gpt_oss",
        r#""head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2, "swiglu_limit": 0.6, "sliding_window": 8,
           "layer_types": ["sliding_attention", "full_attention"], "attention_bias": true,
           "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 8.0, "original_max_position_embeddings": 64,
           "rope_type": "yarn", "truncate": false}"#,
    ),
    (
        "gemma4_text",
        r#""head_dim": 16, "global_head_dim": 32, "num_global_key_value_heads": 1, "attention_k_eq_v": true,
           "sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"],
           "final_logit_softcapping": 3.0, "hidden_size_per_layer_input": 0"#,
    ),
    (
        "gemma4_text",
        r#""num_hidden_layers": 4, "num_key_value_heads": 1, "head_dim": 16, "global_head_dim": 32, "sliding_window": 8,
           "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
           "num_kv_shared_layers": 2, "use_double_wide_mlp": true, "hidden_size_per_layer_input": 8,
           "vocab_size_per_layer_input": 512, "final_logit_softcapping": 3.0"#,
    ),
];

/// The parameters that adapters of mixtures are on as well.
const EXPERTS: [&str; 2] = ["experts.gate_up_proj", "experts.down_proj"];

/// A change to the recipe.
type Change = fn(&mut Recipe);

/// Variants that PEFT has no form of for adapters on experts.
const WITHOUT_EXPERTS: [&str; 3] = ["dropout", "dora", "lora_bias"];

/// Variants that are tried on one family, beside rank 8 on all linear layers, and on one with experts.
const VARIANTS: [(&str, Precision, Change); 9] = [
    ("fp16", Precision::Fp16, |_| {}),
    ("nf4, double", Precision::Nf4Double, |_| {}),
    ("int8", Precision::Int8, |_| {}),
    ("dropout", Precision::Fp32, |recipe| {
        change(recipe, |adapter| adapter.dropout = 0.2)
    }),
    ("dora", Precision::Fp32, |recipe| {
        change(recipe, |adapter| adapter.dora = true)
    }),
    ("lora_bias", Precision::Fp32, |recipe| {
        change(recipe, |adapter| adapter.lora_bias = true)
    }),
    ("full checkpointing", Precision::Fp32, |recipe| {
        recipe.gradient_checkpointing = Checkpointing::Full;
    }),
    ("offload", Precision::Fp32, |recipe| {
        recipe.gradient_checkpointing = Checkpointing::Offload;
    }),
    ("all parameters, sgd", Precision::Fp32, |recipe| {
        recipe.adapter = None;
        recipe.optimizer.kind = OptimizerKind::Sgd;
    }),
];

fn change(recipe: &mut Recipe, change: impl FnOnce(&mut AdapterSettings)) {
    if let Some(adapter) = &mut recipe.adapter {
        change(adapter);
    }
}

/// Trains for `steps` steps each, at least three.
pub(super) fn run(device: &Device, steps: usize, push: &mut dyn FnMut(Check)) {
    let mut compare = |name: &str, (family, settings): (&'static str, &'static str), precision, change| {
        let comparison = Comparison {
            family,
            settings,
            precision,
            change,
            steps,
        };
        comparison.run(name, device, push);
    };
    for family in FAMILIES {
        for precision in [Precision::Fp32, Precision::Bf16] {
            compare(&format!("{} {precision:?}", family.0), family, precision, |_| {});
        }
    }
    let with_experts = FAMILIES.into_iter().find(|family| family.0 == "qwen3_moe");
    for (name, precision, change) in VARIANTS {
        compare(&format!("{}, {name}", FAMILIES[0].0), FAMILIES[0], precision, change);
        if let Some(family) = with_experts.filter(|_| !WITHOUT_EXPERTS.contains(&name)) {
            compare(&format!("{}, {name}", family.0), family, precision, change);
        }
    }
}

/// One model and one recipe.
struct Comparison {
    family: &'static str,
    settings: &'static str,
    precision: Precision,
    change: Change,
    steps: usize,
}

impl Comparison {
    fn run(&self, name: &str, device: &Device, push: &mut dyn FnMut(Check)) {
        // What is rounded to 8 bits of mantissa on both sides differs by a few of its last places, and trainings drift apart: by up to
        // 1.1e-2 after 20 steps where only the order of sums differs.
        let (gradients, losses) = match self.precision {
            Precision::Fp32 => (1e-3, 1e-4),
            Precision::Fp16 => (2e-2, 2e-3),
            _ => (1e-1, 2e-2),
        };
        let both = || {
            let ours = Training::new(self, device)?;
            Ok::<_, TrainError>((ours, on_cpu(|| Training::new(self, &Device::Cpu))?))
        };
        match both() {
            Ok((ours, expected)) => {
                let far = distance(&ours.gradients, &expected.gradients);
                push(Check::new(
                    format!("{name}: gradients of step {GRADIENTS_AT}"),
                    gradients,
                    far,
                ));
                let far = ours.losses.iter().zip(&expected.losses).map(|(a, b)| (a - b).abs() / b);
                let largest = far.fold(
                    0f64,
                    |largest, far| if far.is_nan() { f64::NAN } else { far.max(largest) },
                );
                push(Check::new(
                    format!("{name}: losses of {} steps", self.steps),
                    losses,
                    Ok(largest),
                ));
            }
            Err(error) => {
                let error = candle_core::Error::Msg(error.to_string());
                push(Check::new(name, gradients, Err(error)));
            }
        }
    }
}

/// Results of a training.
struct Training {
    losses: Vec<f64>,
    gradients: Tensor,
}

impl Training {
    fn new(comparison: &Comparison, device: &Device) -> Result<Self, TrainError> {
        let Comparison {
            family,
            settings,
            precision,
            change,
            steps,
        } = *comparison;
        let text = format!(
            r#"{{"model_type": "{family}", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
                "num_key_value_heads": 2, "intermediate_size": 176, "vocab_size": 512, "rms_norm_eps": 1e-5,
                "max_position_embeddings": 256, {settings}}}"#
        );
        let architecture = Architecture::from_json(Path::new("check"), &text)?;
        // Where `all-linear` does not mean the experts, their parameters have names.
        let experts = architecture.experts.as_ref();
        let named = experts.is_some_and(|experts| !experts.names.modules_are_experts);
        let base = Arc::new(BaseModel::random(architecture, 1, precision, device)?);
        let mut recipe = Recipe::new("random", DataSettings::default());
        recipe.precision = precision;
        recipe.adapter = Some(AdapterSettings {
            rank: 8,
            target_parameters: if named {
                EXPERTS.map(str::to_owned).to_vec()
            } else {
                Vec::new()
            },
            ..AdapterSettings::default()
        });
        recipe.optimizer.learning_rate = 1e-2;
        if precision != Precision::Fp32 {
            // AdamW makes full steps of gradients that are but noise, and noise differs.
            recipe.optimizer.kind = OptimizerKind::Sgd;
            recipe.optimizer.learning_rate = 0.5;
        }
        change(&mut recipe);
        let mut trainer = Trainer::new(base, &recipe, steps as u64)?;
        let batches = [batch(1), batch(2)];
        let (mut losses, mut gradients) = (Vec::new(), None);
        for step in 1..=steps {
            losses.push(trainer.step(&batches)?.loss);
            if step == GRADIENTS_AT {
                gradients = Some(trainer.parameters().gradients.copy()?);
            }
        }
        Ok(Self {
            losses,
            gradients: gradients.ok_or_else(|| candle_core::Error::Msg("no step".into()))?,
        })
    }
}

/// Two documents of random tokens, one longer than a tile.
fn batch(seed: u32) -> MicroBatch {
    let mut state = seed;
    let mut token = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) % 512
    };
    let documents: Vec<Document> = [70, 13]
        .into_iter()
        .map(|length| {
            let input_ids: Vec<u32> = (0..length).map(|_| token()).collect();
            let labels = input_ids.iter().map(|id| i64::from(*id)).collect();
            Document { input_ids, labels }
        })
        .collect();
    MicroBatch::from_documents(&documents)
}
