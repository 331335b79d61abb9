//! What a model allocates and computes on paper, against what is predicted op by op.

mod mixtures;

use std::path::Path;

use proptest::prelude::*;
use proptest::sample::select;

use std::collections::BTreeMap;

use super::*;
use peft_tune_core::architecture::LinearRole;
use peft_tune_core::plan::Vectors;
use peft_tune_core::predict::{Bytes, Documents, Machine, MemoryCategory, Op, Predictor, Setting, Work, Workload};
use peft_tune_core::predict::{Segment, StepModel, Trace};
use peft_tune_core::recipe::{
    ActivationQuantization, AdapterBias, AdapterInit, AdapterSettings, Checkpointing, DataSettings, OptimizerKind,
    PrecisionSchedule, QuantizationAware, Sharding, TargetModules, TargetPreset, WeightSparsity,
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
        let is_factors_alone = adapter.as_ref().is_some_and(|one| one.modules_to_save.is_empty());
        recipe.adapter = adapter;
        recipe.optimizer.kind = match optimizer {
            // Predicted are three copies of a matrix, and a whole weight may take a fourth.
            OptimizerKind::Muon if !is_factors_alone => OptimizerKind::AdamW,
            kind => kind,
        };
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

/// Mean micro-batches: fractions of documents of some lengths.
fn means() -> impl Strategy<Value = StreamShape> {
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

/// A step on paper whose segments are held against those that are predicted op by op.
struct Compared<'a> {
    step: PaperStep<'a>,
    predictor: &'a Predictor,
    setting: Setting<'a>,
}

impl StepModel for Compared<'_> {
    fn in_fp32(&self) -> &dyn StepModel {
        self
    }

    fn trace(&self, segment: Segment) -> std::result::Result<Trace, String> {
        let trace = self.step.trace(segment)?;
        let predicted = self.predictor.segment(&self.setting, segment);
        let predicted = predicted.map_err(|error| error.to_string())?;
        let (found, expected) = (sums(&trace.ops), sums(&predicted.ops));
        let differ = |one: &Sums, other: &Sums| -> Vec<String> {
            let only = one.iter().filter(|(work, times)| other.get(*work) != Some(times));
            only.map(|(work, times)| format!("{times} x {work}")).collect()
        };
        match found == expected {
            true => Ok(trace),
            false => Err(format!(
                "computes {:#?} instead of {:#?}",
                differ(&found, &expected),
                differ(&expected, &found)
            )),
        }
    }
}

/// How often each op runs; of a pass over memory, how many elements.
type Sums = BTreeMap<String, f64>;

fn sums(ops: &[Op]) -> Sums {
    let mut sums = Sums::new();
    for Op { stage, work, times } in ops {
        let (key, amount) = match work {
            Work::Pass { pass, elements } => (format!("{stage:?} {pass:?}"), times * elements),
            work => (format!("{stage:?} {work:?}"), *times),
        };
        *sums.entry(key).or_default() += amount;
    }
    sums
}

/// Whether a recipe's ops are compared as well: those of a plain adapter on a model without experts.
fn is_plain(recipe: &Recipe, architecture: &Architecture) -> bool {
    let is_plain = |adapter: &AdapterSettings| {
        let is_plain = !adapter.dora && !adapter.lora_bias && adapter.bias == AdapterBias::None;
        is_plain && adapter.modules_to_save.is_empty()
    };
    let has_plain_weights =
        recipe.quantization_aware.is_none() && recipe.weight_sparsity.is_none() && recipe.precision_schedule.is_none();
    architecture.experts.is_none() && has_plain_weights && recipe.adapter.as_ref().is_some_and(is_plain)
}

/// Compares the bytes of a model on paper, and what it computes, with those that are predicted.
fn compare(
    family: &str,
    architecture: &Architecture,
    recipe: Recipe,
    host: Host,
    stream: &StreamShape,
) -> std::result::Result<(), TestCaseError> {
    let recipe = on_host(of_rank(recipe, narrowest(architecture)), host);
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
    let Ok(expected) = predictor.predict(&setting) else {
        return Ok(());
    };
    let plan = ModelPlan::of_recipe(architecture, &recipe).unwrap();
    let model = PaperModel::new(&plan, &recipe, host).unwrap();
    let step = model.on(stream, ExpertLoad::default());
    let found = predictor.bytes_on(&setting, &step).unwrap();
    prop_assert_eq!(found, expected.bytes, "{}", family);
    // Where a whole model trains, the highest moment may be before there are states.
    let states = found.of(MemoryCategory::OptimizerState);
    if states > 0 || recipe.adapter.is_some() {
        let kind = recipe.optimizer.kind;
        prop_assert_eq!(model.trainings[0].update.optimizer.state_bytes(), states, "{:?}", kind);
    }
    if !is_plain(&recipe, architecture) {
        return Ok(());
    }
    let compared = Compared {
        step,
        predictor: &predictor,
        setting,
    };
    let found = predictor.flops_on(&setting, &compared);
    let found = found.map_err(|error| TestCaseError::fail(format!("{family}: {error}")))?;
    let expected = predictor.flops(&setting).unwrap();
    for ((module, found), (_, expected)) in found.modules.iter().zip(&expected.modules) {
        prop_assert!((found - expected).abs() <= 1e-12 * expected, "{} {:?}", family, module);
    }
    Ok(())
}

/// A model on paper is kept for many settings, which threads ask about.
#[test]
fn threads_share_a_model() {
    fn is_shared<T: Send + Sync>() {}
    is_shared::<PaperModel>();
    is_shared::<PaperStep<'_>>();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn bytes_and_ops_are_those_that_are_predicted_op_by_op(
        (family, json) in architectures(),
        recipe in recipes(),
        host in prop_oneof![4 => processors(), 1 => gpus()],
        stream in prop_oneof![streams(), means()],
    ) {
        let architecture = Architecture::from_json(Path::new("config.json"), &json).unwrap();
        compare(&family, &architecture, recipe, host, &stream)?;
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
        compare(&family, &architecture, recipe, host, &StreamShape::full(65_536, 8192))?;
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
    let plans = all
        .iter()
        .map(|(recipe, _)| ModelPlan::of_recipe(&architecture, recipe));
    let plans: Vec<ModelPlan> = plans.collect::<std::result::Result<_, _>>().unwrap();
    let recipes: Vec<_> = plans.iter().zip(all.iter().map(|(recipe, _)| recipe)).collect();
    let streams: Vec<_> = all.iter().map(|(_, workload)| &workload.longest).collect();
    let model = PaperModel::of_group(&recipes, host).unwrap();
    let step = model.on_each(&streams, ExpertLoad::default()).unwrap();
    Some([predictor.group_bytes_on(&settings, &step).unwrap(), expected])
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
