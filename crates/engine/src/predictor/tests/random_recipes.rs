//! Predictions of random recipes on random models of all families.

use std::path::Path;

use proptest::prelude::*;
use proptest::sample::select;

use crate::model::PaperModel;
use crate::optimizer::Optimizer;
use peft_tune_core::architecture::{Architecture, LinearRole};
use peft_tune_core::plan::{Memory, ModelPlan, Vectors};
use peft_tune_core::predict::{
    Bytes, Documents, Host, Machine, MemoryCategory, PredictError, Prediction, Predictor, Setting, StreamShape,
    Workload, device,
};
use peft_tune_core::recipe::{
    ActivationQuantization, AdapterBias, AdapterInit, AdapterSettings, Checkpointing, DataSettings, OptimizerKind,
    Precision, PrecisionSchedule, QuantizationAware, Recipe, Sharding, TargetModules, TargetPreset, WeightSparsity,
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
pub(super) fn architecture(
    (family, more): (&str, &str),
    [hidden, heads, width]: [usize; 3],
    vocabulary: usize,
) -> (String, String) {
    let is_latent = ["deepseek_v2", "deepseek_v3", "glm4_moe_lite"].contains(&family);
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

pub(super) fn recipes() -> impl Strategy<Value = Recipe> {
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
    let activations = [
        ActivationQuantization::None,
        ActivationQuantization::Int8Forward,
        ActivationQuantization::Int8Both,
    ];
    let rest = (
        select(precisions.to_vec()),
        select(checkpointing.to_vec()),
        select(activations.to_vec()),
        prop_oneof![3 => Just(QuantizationAware::None), 1 => select(QuantizationAware::ALL.to_vec())],
        prop_oneof![3 => Just(WeightSparsity::None), 1 => select(WeightSparsity::ALL.to_vec())],
        prop_oneof![3 => Just("none"), 1 => select(vec!["fp32_2", "adaptive_2"])],
    );
    // Without an adapter the whole model trains.
    let adapter = prop_oneof![4 => adapters().prop_map(Some), 1 => Just(None)];
    let optimizers = select(OptimizerKind::ALL.to_vec());
    // Ranks that share the weights out.
    let ranks = select(vec![1, 1, 2, 3]);
    (adapter, rest, (ranks, optimizers)).prop_map(|(adapter, rest, (ranks, optimizer))| {
        let mut recipe = Recipe::new("random", DataSettings::default());
        let (precision, checkpointing, activations, aware, sparsity, schedule) = rest;
        (recipe.precision, recipe.gradient_checkpointing) = (precision, checkpointing);
        if precision.is_quantized() {
            recipe.activation_quantization = activations;
        }
        let is_plain = adapter.as_ref().is_some_and(|one| !one.dora && one.dropout == 0.0);
        if is_plain && !precision.is_quantized() {
            recipe.quantization_aware = aware;
        }
        let is_rounded = !recipe.quantization_aware.is_none();
        if adapter.is_some() && !precision.is_quantized() && !is_rounded {
            recipe.weight_sparsity = sparsity;
        }
        if matches!(precision, Precision::Bf16 | Precision::Fp16) && !is_rounded {
            recipe.precision_schedule = PrecisionSchedule::from_name(schedule).unwrap();
        }
        recipe.adapter = adapter;
        recipe.optimizer.kind = optimizer;
        if ranks > 1 {
            (recipe.batch.devices, recipe.batch.sharding) = (ranks, Sharding::Full);
        }
        recipe
    })
}

fn adapters() -> impl Strategy<Value = AdapterSettings> {
    let targets = [TargetPreset::AllLinear, TargetPreset::Attention, TargetPreset::Mlp].map(TargetModules::Preset);
    let layers = select(vec![None, Some(vec![1]), Some(vec![2])]);
    let whole = ["norm", "embed_tokens", "lm_head", "down_proj", "o_proj"].map(|module| vec![module.to_owned()]);
    let whole = prop_oneof![2 => Just(Vec::new()), 1 => select(whole.to_vec())];
    let biases = [AdapterBias::None, AdapterBias::LoraOnly, AdapterBias::All];
    // The output side's own form: plain, with magnitudes, or with biases.
    let outputs = select(vec![(false, false), (true, false), (false, true)]);
    let inits = select(AdapterInit::ALL.to_vec());
    let sizes = (
        select(vec![1, 2, 3, 8, 16]),
        select(vec![0.0, 0.1]),
        any::<bool>(),
        inits,
    );
    let beside = (whole, select(biases.to_vec()));
    (sizes, select(targets.to_vec()), layers, outputs, beside).prop_map(|settings| {
        let (
            (rank, dropout, rslora, init),
            target_modules,
            layers_to_transform,
            (dora, lora_bias),
            (modules_to_save, bias),
        ) = settings;
        AdapterSettings {
            rank,
            dropout,
            rslora,
            // Biases start with one kind only.
            init: if lora_bias { AdapterInit::Kaiming } else { init },
            target_modules,
            layers_to_transform,
            dora,
            lora_bias,
            modules_to_save,
            bias,
            ..AdapterSettings::default()
        }
    })
}

/// Fewest inputs or outputs of a linear layer.
fn narrowest(model: &Architecture) -> usize {
    let modules = (0..model.layers.len()).flat_map(|index| model.layer_modules(index));
    // Adapters on what chooses may be as wide as they like.
    let modules = modules.filter(|module| !matches!(module.role, LinearRole::Router | LinearRole::SharedGate));
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

pub(super) fn processors() -> impl Strategy<Value = Host> {
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

pub(super) fn gpus() -> impl Strategy<Value = Host> {
    select(vec![0, 24 << 30, 80 << 30]).prop_map(Host::gpu)
}

/// Documents of two lengths, of which a part has targets.
pub(super) fn streams() -> impl Strategy<Value = StreamShape> {
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

/// Mean micro-batches: fractions of documents of some lengths.
pub(super) fn means() -> impl Strategy<Value = StreamShape> {
    let documents = (1usize..300, prop_oneof![Just(0.37), 0.01f64..3.0]);
    let documents = documents.prop_map(|(tokens, count)| Documents { tokens, count });
    let documents = proptest::collection::vec(documents, 1..5);
    let means = (documents, 0.1f64..1.0).prop_map(|(documents, share)| {
        let mut stream = StreamShape {
            documents,
            targets: 0.0,
        };
        stream.targets = share * stream.tokens();
        stream
    });
    means.prop_filter("a micro-batch has tokens", |stream| stream.tokens() >= 1.0)
}

/// Cost of a setting; `None` where the recipe has no place in the model. Whatever has one can be run on paper.
pub(super) fn predicted(
    architecture: &Architecture,
    recipe: Recipe,
    machine: Machine,
    [longest, mean]: [&StreamShape; 2],
) -> std::result::Result<Option<Prediction>, TestCaseError> {
    let recipe = of_rank(recipe, narrowest(architecture));
    let predictor = crate::predictor(architecture.clone(), machine);
    let workload = Workload {
        longest: longest.clone(),
        mean: mean.clone(),
        rows: None,
    };
    let setting = Setting {
        recipe: &recipe,
        workload: &workload,
    };
    match predictor.predict(&setting) {
        Ok(prediction) => Ok(Some(prediction)),
        Err(error @ (PredictError::Model { .. } | PredictError::OnPaper { .. })) => {
            Err(TestCaseError::fail(error.to_string()))
        }
        Err(_) => Ok(None),
    }
}

/// A model on paper may be asked about by threads.
#[test]
fn threads_share_a_predictor() {
    fn is_shared<T: Send + Sync>() {}
    is_shared::<Predictor>();
    is_shared::<PaperModel>();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn whatever_has_a_place_in_a_model_can_be_predicted(
        (family, json) in architectures(),
        recipe in recipes(),
        host in prop_oneof![4 => processors(), 1 => gpus()],
        stream in prop_oneof![streams(), means()],
    ) {
        let architecture = Architecture::from_json(Path::new("config.json"), &json).unwrap();
        let elements = |found: &Prediction| found.bytes.of(MemoryCategory::Gradients);
        let streams = [&stream, &stream];
        let found = predicted(&architecture, recipe.clone(), Machine::Unmeasured(host), streams)?;
        let Some(found) = found else { return Ok(()) };
        prop_assert!(found.peak_bytes() > 0 && found.tokens_per_s() == 0.0, "{} {:?}", family, found);
        // What does not depend on rows is the same of twice as many.
        let documents = stream.documents.iter().map(|one| Documents { count: 2.0 * one.count, ..*one });
        let twice = StreamShape { documents: documents.collect(), targets: 2.0 * stream.targets };
        let more = predicted(&architecture, recipe.clone(), Machine::Unmeasured(host), [&twice, &twice])?.unwrap();
        prop_assert_eq!(elements(&more), elements(&found));
        // Where a whole model trains, the highest moment may be before there are states.
        let states = found.bytes.of(MemoryCategory::OptimizerState);
        let is_paged = host.memory() == Memory::Device && recipe.optimizer.kind.is_paged();
        if states > 0 || recipe.adapter.is_some() && !is_paged {
            let recipe = of_rank(recipe, narrowest(&architecture));
            let plan = ModelPlan::of_recipe(&architecture, &recipe).unwrap();
            let optimizer = Optimizer::on_paper(&recipe.optimizer, &plan.layout).unwrap();
            prop_assert_eq!(optimizer.state_bytes(), states, "{:?}", recipe.optimizer.kind);
        }
    }

    #[test]
    fn what_was_predicted_before_changes_nothing(
        (family, json) in architectures(),
        (recipe, other) in (recipes(), recipes()),
        stream in streams(),
    ) {
        let architecture = Architecture::from_json(Path::new("config.json"), &json).unwrap();
        let machine = || Machine::DataSheet(device("A100 80GB").unwrap());
        let [asked, fresh] = [(); 2].map(|()| crate::predictor(architecture.clone(), machine()));
        let recipe = of_rank(recipe, narrowest(&architecture));
        // Another one with the same adapters, and one that differs from the recipe in all that a model does not depend on.
        let mut alike = recipe.clone();
        alike.optimizer.learning_rate *= 2.0;
        alike.gradient_checkpointing = other.gradient_checkpointing;
        alike.batch.sharding = Sharding::None;
        alike.batch.micro_batch += 1;
        if let Some(adapter) = &mut alike.adapter {
            (adapter.alpha, adapter.dropout) = (2.0 * adapter.alpha, 2.0 * adapter.dropout);
        }
        let other = Recipe { adapter: recipe.adapter.clone(), ..other };
        let workload = Workload { longest: stream.clone(), mean: stream, rows: None };
        let of = |predictor: &Predictor, recipe| predictor.predict(&Setting { recipe, workload: &workload });
        for one in [&alike, &other] {
            let _ = of(&asked, one);
        }
        prop_assert_eq!(of(&asked, &recipe), of(&fresh, &recipe), "{}", family);
    }

    #[test]
    fn seconds_and_flops_follow_the_mean_micro_batch(
        (family, json) in architectures(),
        recipe in recipes(),
        stream in means(),
    ) {
        let architecture = Architecture::from_json(Path::new("config.json"), &json).unwrap();
        let machine = Machine::DataSheet(device("A100 80GB").unwrap());
        let found = predicted(&architecture, recipe, machine, [&stream, &stream])?;
        let Some(found) = found else { return Ok(()) };
        prop_assert!(found.seconds.total().is_finite() && found.tokens_per_s() > 0.0, "{} {:?}", family, found);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Searches ask what fits by doubling micro-batches: nothing on paper is as long as they are.
    #[test]
    fn enormous_micro_batches_are_light(
        (family, json) in architectures(),
        recipe in recipes(),
        host in prop_oneof![4 => processors(), 1 => gpus()],
    ) {
        let architecture = Architecture::from_json(Path::new("config.json"), &json).unwrap();
        let architecture = Architecture { max_positions: 8192, ..architecture };
        let stream = StreamShape::full(65_536, 8192);
        let found = predicted(&architecture, recipe, Machine::Unmeasured(host), [&stream, &stream])?;
        let tokens = 65_536 * 8192;
        prop_assert!(found.is_none_or(|found| found.peak_bytes() > 4 * tokens), "{}", family);
    }
}

/// Families whose rows of several trainings can go through the layers together.
fn shared_architectures() -> impl Strategy<Value = (String, String)> {
    let have_inputs = |json: &str| json.contains("vocab_size_per_layer_input");
    architectures().prop_filter("layers have inputs of their own", move |(_, json)| !have_inputs(json))
}

/// The recipe as one of several that share passes, without biases of its own: those of one training are summed in another place.
fn in_group(mut recipe: Recipe) -> Recipe {
    recipe.activation_quantization = ActivationQuantization::None;
    (recipe.batch.devices, recipe.batch.sharding) = (1, Sharding::None);
    if let Some(adapter) = &mut recipe.adapter {
        adapter.lora_bias = false;
    }
    recipe
}

/// Bytes of trainings that share passes; `None` where a recipe has no place in the model.
fn of_group(architecture: &Architecture, all: &[(Recipe, StreamShape)], host: Host) -> Option<Bytes> {
    let workloads = all.iter().map(|(_, stream)| Workload {
        longest: stream.clone(),
        mean: stream.clone(),
        rows: None,
    });
    let workloads: Vec<Workload> = workloads.collect();
    let settings = all.iter().zip(&workloads);
    let settings = settings.map(|((recipe, _), workload)| Setting { recipe, workload });
    let predictor = crate::predictor(architecture.clone(), Machine::Unmeasured(host));
    match predictor.predict_group(&settings.collect::<Vec<_>>()) {
        Ok(bytes) => Some(bytes),
        Err(error @ (PredictError::Model { .. } | PredictError::OnPaper { .. })) => panic!("{error}"),
        Err(_) => None,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn trainings_that_share_passes_have_one_base_and_parameters_of_their_own(
        (family, json) in shared_architectures(),
        recipe in recipes(),
        host in prop_oneof![4 => processors(), 1 => gpus()],
        stream in streams(),
        count in 2usize..4,
    ) {
        let architecture = Architecture::from_json(Path::new("config.json"), &json).unwrap();
        let recipe = of_rank(in_group(recipe), narrowest(&architecture));
        let all = vec![(recipe, stream); count];
        let Some(together) = of_group(&architecture, &all, host) else { return Ok(()) };
        let alone = of_group(&architecture, &all[..1], host).unwrap();
        for category in [MemoryCategory::Adapters, MemoryCategory::Gradients] {
            prop_assert_eq!(together.of(category), count as u64 * alone.of(category), "{} {:?}", family, category);
        }
        prop_assert!(together.of(MemoryCategory::BaseWeights) <= alone.of(MemoryCategory::BaseWeights), "{}", family);
        prop_assert!(together.total() > alone.total(), "{}", family);
    }
}
