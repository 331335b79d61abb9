//! What a model allocates on paper, against what is predicted op by op.

use std::path::Path;

use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use peft_tune_core::plan::Vectors;
use peft_tune_core::predict::{Bytes, Documents, Machine, MemoryCategory, Predictor, Setting, Workload};
use peft_tune_core::recipe::{
    ActivationQuantization, AdapterSettings, Checkpointing, DataSettings, OptimizerKind, Sharding, TargetModules,
    TargetPreset,
};

/// Families whose layers have no experts, and what their configurations have beside the sizes of any.
const FAMILIES: &[(&str, &str)] = &[
    ("llama", ""),
    ("mistral", r#", "sliding_window": 150"#),
    ("qwen2", r#", "tie_word_embeddings": false"#),
    ("qwen3", r#", "tie_word_embeddings": true"#),
    ("gemma", ""),
    (
        "gemma2",
        r#", "query_pre_attn_scalar": 32, "sliding_window": 100, "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0, "hidden_activation": "gelu_pytorch_tanh""#,
    ),
    (
        "gemma3_text",
        r#", "query_pre_attn_scalar": 32, "sliding_window": 100, "sliding_window_pattern": 2"#,
    ),
    (
        "gemma4_text",
        r#", "global_head_dim": 64, "sliding_window": 100, "final_logit_softcapping": 30.0,
        "hidden_size_per_layer_input": 0, "attention_k_eq_v": true, "num_global_key_value_heads": 1"#,
    ),
    (
        "gemma4_text",
        r#", "global_head_dim": 64, "sliding_window": 100, "hidden_size_per_layer_input": 24,
        "vocab_size_per_layer_input": 40000"#,
    ),
    (
        "gemma4_text",
        r#", "global_head_dim": 64, "sliding_window": 100, "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 3,
        "num_hidden_layers": 6, "layer_types": ["sliding_attention", "full_attention", "sliding_attention",
        "full_attention", "sliding_attention", "sliding_attention"]"#,
    ),
    (
        "gemma4_text",
        r#", "global_head_dim": 64, "sliding_window": 100, "hidden_size_per_layer_input": 24,
        "vocab_size_per_layer_input": 40000, "num_kv_shared_layers": 3, "use_double_wide_mlp": true,
        "num_hidden_layers": 6, "layer_types": ["sliding_attention", "full_attention", "sliding_attention",
        "full_attention", "sliding_attention", "sliding_attention"]"#,
    ),
    (
        "granite",
        r#", "residual_multiplier": 0.25, "logits_scaling": 8, "embedding_multiplier": 12"#,
    ),
    (
        "phi3",
        r#", "pad_token_id": 0, "original_max_position_embeddings": 4096"#,
    ),
    ("olmo2", ""),
    ("olmo3", r#", "sliding_window": 100"#),
    ("exaone4", r#", "sliding_window": 100"#),
    ("cohere2", r#", "sliding_window": 100"#),
    ("apertus", ""),
    ("smollm3", ""),
    ("glm4", ""),
    ("cohere", ""),
    ("hunyuan_v1_dense", ""),
    ("helium", ""),
    (
        "granitemoehybrid",
        r#", "residual_multiplier": 0.25, "shared_intermediate_size": 256, "position_embedding_type": "rope""#,
    ),
    (
        "ministral3",
        r#", "rope_parameters": {"rope_type": "yarn", "factor": 16.0, "mscale": 1.0, "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 64, "llama_4_scaling_beta": 0.1}"#,
    ),
    ("lfm2", r#", "block_auto_adjust_ff_dim": false, "full_attn_idxs": [1]"#),
    (
        "qwen3_5_text",
        r#", "partial_rotary_factor": 0.5, "full_attention_interval": 2, "linear_num_key_heads": 2,
        "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 32"#,
    ),
    (
        "deepseek_v3",
        r#", "q_lora_rank": 48, "kv_lora_rank": 32, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 48,
        "first_k_dense_replace": 3, "n_shared_experts": 1, "n_routed_experts": 8, "num_experts_per_tok": 2,
        "moe_intermediate_size": 64"#,
    ),
];

/// A small model of a family.
fn architecture(
    (family, more): (&str, &str),
    [hidden, heads, width]: [usize; 3],
    vocabulary: usize,
) -> (String, String) {
    let is_latent = family == "deepseek_v3";
    let width = match family {
        // It has no width of its own for heads.
        "phi3" => hidden / heads,
        _ => width,
    };
    let layers = match more.contains("num_hidden_layers") {
        true => "",
        false => r#""num_hidden_layers": 3, "#,
    };
    let json = format!(
        r#"{{"model_type": "{family}", "hidden_size": {hidden}, {layers}"num_attention_heads": {heads},
        "num_key_value_heads": {}, "intermediate_size": {}, "vocab_size": {vocabulary}, "head_dim": {width},
        "max_position_embeddings": 4096{more}}}"#,
        if is_latent { heads } else { heads / 2 },
        2 * hidden + 32,
    );
    (family.to_owned(), json)
}

fn architectures() -> impl Strategy<Value = (String, String)> {
    let sizes = (select(vec![64, 128, 192]), select(vec![2, 4]), select(vec![16, 32, 64]));
    let vocabularies = select(vec![512, 1000, 40_000]);
    (select(FAMILIES.to_vec()), sizes, vocabularies).prop_map(|(family, (hidden, heads, width), vocabulary)| {
        architecture(family, [hidden, heads, width], vocabulary)
    })
}

fn recipes() -> impl Strategy<Value = Recipe> {
    let checkpointing = [
        Checkpointing::None,
        Checkpointing::EVERY_SECOND,
        Checkpointing::Full,
        Checkpointing::Offload,
    ];
    let precisions = [
        Precision::Fp32,
        Precision::Bf16,
        Precision::Fp16,
        Precision::Int8,
        Precision::Nf4,
        Precision::Nf4Double,
    ];
    let targets = [TargetPreset::AllLinear, TargetPreset::Attention, TargetPreset::Mlp].map(TargetModules::Preset);
    let layers = select(vec![None, Some(vec![1]), Some(vec![2])]);
    let activations = [
        ActivationQuantization::None,
        ActivationQuantization::Int8Forward,
        ActivationQuantization::Int8Both,
    ];
    let adapter = (
        select(vec![1, 2, 3, 8, 16]),
        select(vec![0.0, 0.1]),
        select(targets.to_vec()),
        layers,
    );
    let rest = (
        select(precisions.to_vec()),
        select(checkpointing.to_vec()),
        select(activations.to_vec()),
    );
    let optimizers = select(OptimizerKind::ALL.to_vec());
    // Ranks that share the weights out.
    let ranks = select(vec![1, 1, 2, 3]);
    (adapter, rest, (ranks, optimizers)).prop_map(|(adapter, rest, (ranks, optimizer))| {
        let (rank, dropout, target_modules, layers_to_transform) = adapter;
        let mut recipe = Recipe::new("random", DataSettings::default());
        (
            recipe.precision,
            recipe.gradient_checkpointing,
            recipe.activation_quantization,
        ) = rest;
        if !recipe.precision.is_quantized() {
            recipe.activation_quantization = ActivationQuantization::None;
        }
        recipe.optimizer.kind = optimizer;
        if ranks > 1 {
            (recipe.batch.devices, recipe.batch.sharding) = (ranks, Sharding::Full);
        }
        recipe.adapter = Some(AdapterSettings {
            rank,
            dropout,
            target_modules,
            layers_to_transform,
            ..AdapterSettings::default()
        });
        recipe
    })
}

/// The recipe on `host`. In tests pages and bands of a GPU's updates are smaller than the prediction has them.
fn on_host(mut recipe: Recipe, host: Host) -> Recipe {
    let kind = recipe.optimizer.kind;
    if host.memory() == Memory::Device && (kind.is_paged() || kind == OptimizerKind::Adafactor) {
        recipe.optimizer.kind = OptimizerKind::AdamW;
    }
    recipe
}

/// Fewest inputs or outputs of a linear layer.
fn narrowest(model: &Architecture) -> usize {
    let modules = (0..model.layers.len()).flat_map(|index| model.layer_modules(index));
    let widths = modules.map(|module| module.out_features.min(module.in_features));
    widths.min().unwrap_or(1)
}

/// The recipe with no higher rank than `most`.
fn of_rank(mut recipe: Recipe, most: usize) -> Recipe {
    if let Some(adapter) = &mut recipe.adapter {
        adapter.rank = adapter.rank.min(most);
    }
    recipe
}

fn processors() -> impl Strategy<Value = Host> {
    let vectors = [
        Vectors::Amx,
        Vectors::Avx512Bf16,
        Vectors::Avx512,
        Vectors::Avx2,
        Vectors::Other,
    ];
    (select(vectors.to_vec()), 1usize..9).prop_map(|(vectors, threads)| Host {
        threads,
        vectors,
        device_bytes: 0,
    })
}

fn gpus() -> impl Strategy<Value = Host> {
    select(vec![0, 24 << 30, 80 << 30]).prop_map(Host::gpu)
}

/// Documents of two lengths, of which a part has targets.
fn streams() -> impl Strategy<Value = StreamShape> {
    let lengths = (1usize..5, 2usize..300, 0usize..3, 2usize..40);
    (lengths, 0.1f64..1.0).prop_map(|((count, tokens, more, other), share)| {
        let documents = [(tokens, count), (other, more)];
        let all: usize = documents.iter().map(|(tokens, count)| tokens * count).sum();
        let documents = documents.into_iter().filter(|(_, count)| *count > 0);
        StreamShape {
            documents: documents
                .map(|(tokens, count)| Documents {
                    tokens,
                    count: count as f64,
                })
                .collect(),
            targets: (all as f64 * share).floor().max(1.0),
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn bytes_are_those_that_are_predicted_op_by_op(
        (family, json) in architectures(),
        recipe in recipes(),
        host in prop_oneof![4 => processors(), 1 => gpus()],
        stream in streams(),
    ) {
        let architecture = Architecture::from_json(Path::new("config.json"), &json).unwrap();
        let recipe = on_host(of_rank(recipe, narrowest(&architecture)), host);
        let predictor = Predictor::new(architecture.clone(), Machine::Unmeasured(host));
        let workload = Workload {
            longest: stream.clone(),
            mean: stream.clone(),
            rows: None,
        };
        let setting = Setting {
            recipe: &recipe,
            workload: &workload,
        };
        // A recipe may have no place in a model.
        let Ok(expected) = predictor.predict(&setting) else { return Ok(()) };
        let model = PaperModel::new(&architecture, &recipe, host, &stream).unwrap();
        let found = predictor.bytes_on(&setting, &model).unwrap();
        prop_assert_eq!(found, expected.bytes, "{}", family);
        let states = model.updates[0].optimizer.state_bytes();
        prop_assert_eq!(states, found.of(MemoryCategory::OptimizerState), "{:?}", recipe.optimizer.kind);
    }
}

/// Families whose rows of several trainings can go through the layers together.
fn shared_architectures() -> impl Strategy<Value = (String, String)> {
    let have_inputs = |json: &str| json.contains("vocab_size_per_layer_input");
    architectures().prop_filter("layers have inputs of their own", move |(_, json)| !have_inputs(json))
}

fn in_group(mut recipe: Recipe) -> Recipe {
    recipe.activation_quantization = ActivationQuantization::None;
    (recipe.batch.devices, recipe.batch.sharding) = (1, Sharding::None);
    recipe
}

/// What trainings allocate together on paper, and what is predicted op by op; `None` where a recipe has no place in the model.
fn of_group(json: &str, all: &[(Recipe, StreamShape)], host: Host) -> Option<[Bytes; 2]> {
    let architecture = Architecture::from_json(Path::new("config.json"), json).unwrap();
    let most = narrowest(&architecture);
    let all: Vec<(Recipe, Workload)> = all
        .iter()
        .map(|(recipe, stream)| {
            let workload = Workload {
                longest: stream.clone(),
                mean: stream.clone(),
                rows: None,
            };
            (on_host(of_rank(in_group(recipe.clone()), most), host), workload)
        })
        .collect();
    let settings: Vec<Setting<'_>> = all
        .iter()
        .map(|(recipe, workload)| Setting { recipe, workload })
        .collect();
    let predictor = Predictor::new(architecture.clone(), Machine::Unmeasured(host));
    let expected = predictor.predict_group(&settings).ok()?;
    let recipes: Vec<_> = all
        .iter()
        .map(|(recipe, workload)| (recipe, &workload.longest))
        .collect();
    let model = PaperModel::of_group(&architecture, &recipes, host).unwrap();
    Some([predictor.group_bytes_on(&settings, &model).unwrap(), expected])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn bytes_of_equal_trainings_are_those_that_are_predicted_op_by_op(
        (family, json) in shared_architectures(),
        recipe in recipes(),
        host in prop_oneof![4 => processors(), 1 => gpus()],
        stream in streams(),
        count in 2usize..4,
    ) {
        let Some([found, expected]) = of_group(&json, &vec![(recipe, stream); count], host) else { return Ok(()) };
        prop_assert_eq!(found, expected, "{} x {}", count, family);
    }
}

#[test]
fn what_has_no_form_on_paper_is_refused() {
    let (_, json) = architecture(("llama", ""), [64, 2, 32], 512);
    let architecture = Architecture::from_json(Path::new("config.json"), &json).unwrap();
    let mut recipe = Recipe::new("random", DataSettings::default());
    recipe.adapter = Some(AdapterSettings {
        dora: true,
        ..AdapterSettings::default()
    });
    let error = PaperModel::new(&architecture, &recipe, Host::GPU, &StreamShape::full(1, 8)).unwrap_err();
    assert!(error.to_string().contains("DoRA"), "{error}");
}
