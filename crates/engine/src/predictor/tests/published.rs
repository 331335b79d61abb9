//! Predictions of models from their published dimensions.

use std::path::Path;

use proptest::prelude::*;

use peft_tune_core::architecture::Architecture;
use peft_tune_core::plan::{PlanError, Vectors};
use peft_tune_core::predict::{
    Host, Machine, MemoryCategory, PredictError, Prediction, Predictor, Seconds, Setting, Workload, device,
};
use peft_tune_core::recipe::{
    ActivationQuantization, AdapterSettings, Checkpointing, DataSettings, Precision, PrecisionSchedule, Recipe,
    TargetModules, TrainingLength, WeightSparsity,
};

/// Published dimensions.
const LLAMA_3_1_8B: &str = r#"{"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": false}"#;
const QWEN_2_5_7B: &str = r#"{"model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944,
    "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064,
    "max_position_embeddings": 131072, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "tie_word_embeddings": false}"#;
const GEMMA_2_9B: &str = r#"{"model_type": "gemma2", "hidden_size": 3584, "intermediate_size": 14336,
    "num_hidden_layers": 42, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 256,
    "vocab_size": 256000, "max_position_embeddings": 8192, "query_pre_attn_scalar": 256, "sliding_window": 4096,
    "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "hidden_activation": "gelu_pytorch_tanh"}"#;

const QWEN3_30B_A3B: &str = r#"{"model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144,
    "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151936,
    "max_position_embeddings": 40960, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "tie_word_embeddings": false,
    "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "norm_topk_prob": true}"#;

fn predictor(config: &str, machine: Machine) -> Predictor {
    crate::predictor(
        Architecture::from_json(Path::new("config.json"), config).unwrap(),
        machine,
    )
}

fn a100() -> Machine {
    Machine::DataSheet(device("A100 80GB").unwrap())
}

fn recipe() -> Recipe {
    let mut recipe = Recipe::new("published", DataSettings::default());
    recipe.batch.micro_batch = 1;
    recipe.batch.sequence_length = 2048;
    recipe
}

fn predict(predictor: &Predictor, recipe: &Recipe) -> Result<Prediction, PredictError> {
    let workload = Workload::full(recipe.batch.micro_batch, recipe.batch.sequence_length);
    predictor.predict(&Setting {
        recipe,
        workload: &workload,
    })
}

/// Parameter counts are those of the model cards: 8.03, 7.62 and 9.24 thousand million.
#[test]
fn published_models_are_predicted_from_their_dimensions_alone() {
    for (config, parameters) in [
        (LLAMA_3_1_8B, 8_030_261_248u64),
        (QWEN_2_5_7B, 7_615_616_512),
        (GEMMA_2_9B, 9_241_705_984),
    ] {
        let predictor = predictor(config, a100());
        let prediction = predict(&predictor, &recipe()).unwrap();
        assert_eq!(prediction.bytes.of(MemoryCategory::BaseWeights), 2 * parameters);
        assert!(prediction.tokens_per_s() > 300.0 && prediction.tokens_per_s() < 20_000.0);
        let mut quantized = recipe();
        quantized.precision = Precision::Nf4;
        let smaller = predict(&predictor, &quantized).unwrap();
        assert!(smaller.bytes.of(MemoryCategory::BaseWeights) < parameters);
        assert!(smaller.bytes.of(MemoryCategory::QuantizationConstants) > 0);
    }
}

#[test]
fn flops_are_two_for_each_weight_and_token_forward_and_as_many_for_dx() {
    let predictor = predictor(LLAMA_3_1_8B, a100());
    let mut recipe = recipe();
    recipe.adapter = Some(AdapterSettings {
        rank: 1,
        ..AdapterSettings::default()
    });
    let workload = Workload::full(1, 2048);
    let flops = |recipe: &Recipe| {
        let setting = Setting {
            recipe,
            workload: &workload,
        };
        predictor.flops(&setting).unwrap()
    };
    let plain = flops(&recipe);
    let count = predictor.architecture().parameter_count();
    let products = 2.0 * 2048.0 * (count.linear as f64 + count.lm_head as f64);
    let attention = 4.0 * 2048.0 * 1024.0 * 4096.0 * 32.0;
    assert!((plain.forward / (products + attention) - 1.0).abs() < 0.01, "{plain:?}");
    // The lowest layer's q, k and v need no dx, and dx of attention costs 2.5 times its forward.
    assert!(
        (plain.backward / (products + 2.5 * attention) - 1.0).abs() < 0.02,
        "{plain:?}"
    );
    assert_eq!(plain.recompute, 0.0);
    recipe.gradient_checkpointing = Checkpointing::Full;
    let again = flops(&recipe);
    assert_eq!(again.model, plain.model);
    // Neither the head nor the products that end each half of a layer, a third of it, are made again.
    let share = again.recompute / plain.forward;
    assert!((0.5..0.7).contains(&share), "{share}");
    let modules: f64 = again.modules.iter().map(|(_, flops)| flops).sum();
    assert!((modules / again.hardware - 1.0).abs() < 1e-9);
}

#[test]
fn a_gpu_multiplies_activations_in_eight_bits_sooner_and_needs_no_widened_weight() {
    let gpu = predictor(LLAMA_3_1_8B, a100());
    for precision in [Precision::Int8, Precision::Nf4] {
        let mut recipe = Recipe { precision, ..recipe() };
        recipe.batch.micro_batch = 4;
        let of = |recipe: &Recipe| predict(&gpu, recipe).unwrap();
        let plain = of(&recipe);
        recipe.activation_quantization = ActivationQuantization::Int8Forward;
        let forward = of(&recipe);
        recipe.activation_quantization = ActivationQuantization::Int8Both;
        let both = of(&recipe);
        let [seconds, of_forward, of_both] = [&plain, &forward, &both].map(|one| one.seconds.total());
        assert!(
            of_both < of_forward && of_forward < seconds,
            "{seconds} {of_forward} {of_both}"
        );
        // Less than twice as fast: half of the work has the passes around it, and the rest is as it was.
        assert!(of_both > 0.5 * seconds, "{seconds} {of_both}");
        // The forward form has the scratch of both.
        let [bytes, of_forward, of_both] = [&plain, &forward, &both].map(|one| one.bytes.of(MemoryCategory::Framework));
        assert!(
            of_both < of_forward && of_forward > bytes,
            "{bytes} {of_forward} {of_both}"
        );
    }
}

#[test]
fn activations_of_experts_are_refused_for_a_gpu_by_name() {
    let (mut recipe, host) = (
        recipe(),
        Host {
            vectors: Vectors::Amx,
            ..Host::GPU
        },
    );
    recipe.precision = Precision::Int8;
    let (gpu, cpu) = (
        predictor(QWEN3_30B_A3B, a100()),
        predictor(QWEN3_30B_A3B, Machine::Unmeasured(host)),
    );
    assert!(predict(&gpu, &recipe).is_ok());
    for activations in [ActivationQuantization::Int8Forward, ActivationQuantization::Int8Both] {
        recipe.activation_quantization = activations;
        assert!(predict(&cpu, &recipe).is_ok());
        let error = predict(&gpu, &recipe).unwrap_err().to_string();
        let said = format!("`activation_quantization: {activations}` has no kernels on a GPU for the experts");
        assert!(error.contains(&said) && error.contains("set it to none"), "{error}");
    }
}

#[test]
fn sparse_weights_take_less_and_are_refused_for_a_gpu_by_name() {
    let (mut recipe, host) = (
        recipe(),
        Host {
            vectors: Vectors::Amx,
            ..Host::GPU
        },
    );
    let gpu = predictor(LLAMA_3_1_8B, a100());
    let cpu = predictor(LLAMA_3_1_8B, Machine::Unmeasured(host));
    let base = |recipe: &Recipe| predict(&cpu, recipe).unwrap().bytes.of(MemoryCategory::BaseWeights);
    let dense = base(&recipe);
    // q and o, k and v, and the three of the MLP, in 32 layers.
    let linear = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14_336);
    for sparsity in [WeightSparsity::Magnitude, WeightSparsity::Wanda] {
        recipe.weight_sparsity = sparsity;
        // Of 16 bits each, 8 and one of position stay.
        assert_eq!(dense - base(&recipe), linear * 7 / 8);
        let error = predict(&gpu, &recipe).unwrap_err().to_string();
        assert!(
            error.contains(&format!("`weight_sparsity: {sparsity}` runs on the CPU only"))
                && error.contains("set it to none"),
            "{error}"
        );
    }
}

#[test]
fn recipes_that_cannot_exist_say_what_to_do() {
    let predictor = predictor(LLAMA_3_1_8B, a100());
    let adapted = |change: fn(&mut AdapterSettings)| {
        let mut recipe = recipe();
        change(recipe.adapter.as_mut().unwrap());
        predict(&predictor, &recipe).unwrap_err().to_string()
    };
    let error = adapted(|adapter| adapter.rank = 2000);
    assert!(
        error.contains("2000") && error.contains("k_proj") && error.contains("lower `rank`"),
        "{error}"
    );
    let error = adapted(|adapter| adapter.target_modules = TargetModules::Named(vec!["c_attn".to_owned()]));
    assert!(error.contains("c_attn") && error.contains("q_proj"), "{error}");
    let error = adapted(|adapter| adapter.layers_to_transform = Some(vec![32]));
    assert!(error.contains("32 decoder layers"), "{error}");
    let mut long = recipe();
    long.batch.sequence_length = 200_000;
    assert!(
        predict(&predictor, &long)
            .unwrap_err()
            .to_string()
            .contains("sequence_length")
    );
    let mut whole = recipe();
    (whole.adapter, whole.precision) = (None, Precision::Nf4);
    assert_eq!(predict(&predictor, &whole), Err(PlanError::QuantizedWhole.into()));
}

#[test]
fn offloaded_inputs_leave_a_gpu_but_for_those_under_way() {
    let predictor = predictor(LLAMA_3_1_8B, a100());
    let bytes = |form: Checkpointing| {
        let mut recipe = recipe();
        // Long rows, so that layers take more than the chunk of logits.
        recipe.batch.sequence_length = 32_768;
        recipe.gradient_checkpointing = form;
        predict(&predictor, &recipe).unwrap().bytes
    };
    let input = 2 * 32_768 * 4096u64;
    let (full, offload) = (bytes(Checkpointing::Full), bytes(Checkpointing::Offload));
    // With all inputs the peak is in the backward pass of the last layer, else in a layer's forward pass: it has its own, and two that
    // are on their way.
    assert!((29 * input..30 * input).contains(&(full.total() - offload.total())));
    assert_eq!(offload.of(MemoryCategory::SavedActivations), 3 * input);
}

#[test]
fn adapters_have_a_rounded_copy_where_a_gpu_multiplies_16_bits() {
    let adapters = |precision: Precision| {
        let mut recipe = recipe();
        recipe.precision = precision;
        let predicted = predict(&predictor(LLAMA_3_1_8B, a100()), &recipe).unwrap();
        predicted.bytes.of(MemoryCategory::Adapters)
    };
    for precision in [Precision::Bf16, Precision::Fp16, Precision::Nf4] {
        assert_eq!(2 * adapters(precision), 3 * adapters(Precision::Fp32));
    }
}

#[test]
fn the_chunk_of_logits_on_a_gpu_is_the_gpus() {
    let predictor = predictor(LLAMA_3_1_8B, a100());
    let mut recipe = recipe();
    recipe.gradient_checkpointing = Checkpointing::Offload;
    let logits = |recipe: &Recipe| predict(&predictor, recipe).unwrap().bytes.of(MemoryCategory::Logits);
    // Logits of a chunk, and a chunk's rows twice, since a row's last token has no target.
    let bytes = |chunk: u64| 4 * chunk * 128_256 + 2 * chunk * 2 * 4096;
    recipe.batch.sequence_length = 512;
    assert_eq!(logits(&recipe), bytes(511));
    // 1,308 rows of 128,256 logits are a 128th of its memory, and eight tiles of 128 are enough; that is more than any layer takes
    // for so few tokens.
    recipe.batch.sequence_length = 1100;
    assert_eq!(logits(&recipe), bytes(1024));
    // 523 rows fit into 256 MiB, which any GPU has: four tiles.
    let predictor = crate::predictor(
        predictor.architecture().clone(),
        Machine::Unmeasured(Host::gpu(24 << 30)),
    );
    let logits = |recipe: &Recipe| predict(&predictor, recipe).unwrap().bytes.of(MemoryCategory::Logits);
    recipe.batch.sequence_length = 600;
    assert_eq!(logits(&recipe), bytes(512));
}

proptest! {
    #[test]
    fn more_rows_and_more_saved_layers_never_take_less(rows in 1usize..16, length in 16usize..600, rank in 1usize..64) {
        let predictor = predictor(GEMMA_2_9B, a100());
        let bytes = |rows: usize, form: Checkpointing| {
            let mut recipe = recipe();
            recipe.batch.micro_batch = rows;
            recipe.batch.sequence_length = length;
            recipe.gradient_checkpointing = form;
            recipe.adapter.as_mut().unwrap().rank = rank;
            predict(&predictor, &recipe).unwrap().peak_bytes()
        };
        let (full, second, none) = (
            bytes(rows, Checkpointing::Full),
            bytes(rows, Checkpointing::EVERY_SECOND),
            bytes(rows, Checkpointing::None),
        );
        prop_assert!(full <= second && second <= none, "{full} {second} {none}");
        prop_assert!(none <= bytes(rows + 1, Checkpointing::None));
    }
}

#[test]
fn the_widest_steps_decide_the_memory_and_all_of_them_the_time() {
    let predictor = predictor(LLAMA_3_1_8B, a100());
    let of = |schedule: &str, precision, steps| {
        let mut recipe = recipe();
        recipe.precision = precision;
        recipe.precision_schedule = PrecisionSchedule::from_name(schedule).unwrap();
        recipe.training.length = TrainingLength::Steps(steps);
        predict(&predictor, &recipe)
    };
    let plain = of("none", Precision::Bf16, 100).unwrap();
    let mixed = of("fp32_25", Precision::Bf16, 100).unwrap();
    let fp32 = of("none", Precision::Fp32, 100).unwrap();
    // Weights stay as they are, and what is kept of layers is twice as wide.
    let saved = |prediction: &Prediction| prediction.bytes.of(MemoryCategory::SavedActivations);
    let base = |prediction: &Prediction| prediction.bytes.of(MemoryCategory::BaseWeights);
    assert_eq!((base(&mixed), saved(&mixed)), (base(&plain), saved(&fp32)));
    assert!(plain.peak_bytes() < mixed.peak_bytes() && mixed.peak_bytes() < fp32.peak_bytes());
    let share = |of: fn(&Seconds) -> f64| {
        let expected = 0.75 * of(&plain.seconds) + 0.25 * of(&fp32.seconds);
        of(&mixed.seconds) / expected - 1.0
    };
    assert!(share(|all| all.products).abs() < 1e-9);
    assert!(share(|all| all.adapters).abs() < 1e-9);
    assert!(share(|all| all.attention).abs() < 1e-9);
    // Passes widen what is stored in 16 bits besides.
    let passes = share(|all| all.passes);
    assert!((0.0..1e-3).contains(&passes), "{passes}");
    let longer = of("fp32_25", Precision::Bf16, 1000).unwrap();
    assert!(longer.tokens_per_s() > mixed.tokens_per_s());
    let error = of("fp32_25", Precision::Nf4, 100).unwrap_err().to_string();
    assert!(error.contains("nf4"), "{error}");
}
