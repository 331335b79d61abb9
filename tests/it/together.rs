//! Trainings that share the passes over one base, against each of them alone: to the last bit.
//!
//! On a processor with AVX-512 as well as on others: what alone takes a product of its own number of rows has one of the same rows
//! here, or one whose rows do not depend on their number (`crates/kernels/src/ops/matmul/by_rows.rs`).

use std::path::Path;
use std::sync::Arc;

use candle_core::Device;
use peft_tune_core::architecture::Architecture;
use peft_tune_core::recipe::{
    AdapterSettings, Checkpointing, DataSettings, OptimizerKind, Precision, Recipe, ScheduleKind, TargetModules,
    TargetPreset,
};
use peft_tune_engine::data::{Document, MicroBatch};
use peft_tune_engine::{BaseModel, Control, Evaluation, RowLoss, RowWatch, StepEvent, Together, TrainError, Trainer};

const STEPS: u64 = 5;

const LLAMA: &str = r#"{"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 160, "vocab_size": 301, "rms_norm_eps": 1e-5,
    "max_position_embeddings": 256, "rope_theta": 10000.0, "tie_word_embeddings": false}"#;
const QWEN2: &str = r#"{"model_type": "qwen2", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 96, "vocab_size": 301, "rms_norm_eps": 1e-6,
    "max_position_embeddings": 256, "rope_theta": 10000.0, "tie_word_embeddings": true}"#;
const GEMMA2: &str = r#"{"model_type": "gemma2", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 96, "vocab_size": 301, "rms_norm_eps": 1e-6,
    "max_position_embeddings": 256, "query_pre_attn_scalar": 16, "sliding_window": 16,
    "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "hidden_activation": "gelu_pytorch_tanh"}"#;
const PHI3: &str = r#"{"model_type": "phi3", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 96, "vocab_size": 301, "rms_norm_eps": 1e-5,
    "max_position_embeddings": 256, "original_max_position_embeddings": 256, "rope_theta": 10000.0,
    "tie_word_embeddings": false, "pad_token_id": 0}"#;
const GEMMA4: &str = r#"{"model_type": "gemma4_text", "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "global_head_dim": 32, "intermediate_size": 96, "vocab_size": 301,
    "rms_norm_eps": 1e-6, "max_position_embeddings": 256, "sliding_window": 16, "hidden_size_per_layer_input": 0,
    "num_kv_shared_layers": 2, "layer_types": ["sliding_attention", "full_attention", "sliding_attention",
    "full_attention"]}"#;
const QWEN3_MOE: &str = r#"{"model_type": "qwen3_moe", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 96, "moe_intermediate_size": 32, "num_experts": 4,
    "num_experts_per_tok": 2, "norm_topk_prob": true, "decoder_sparse_step": 1, "mlp_only_layers": [], "vocab_size": 301,
    "rms_norm_eps": 1e-6, "max_position_embeddings": 256, "rope_theta": 10000.0, "tie_word_embeddings": false}"#;

fn recipe(precision: Precision, change: impl FnOnce(&mut Recipe, &mut AdapterSettings)) -> Recipe {
    let mut recipe = Recipe::new("random", DataSettings::default());
    let mut adapter = AdapterSettings::default();
    recipe.precision = precision;
    recipe.optimizer.learning_rate = 5e-3;
    recipe.optimizer.kind = OptimizerKind::AdamW;
    change(&mut recipe, &mut adapter);
    recipe.adapter = Some(adapter);
    recipe
}

/// Trainings that differ in all that may differ.
fn recipes(precision: Precision) -> [Recipe; 4] {
    [
        recipe(precision, |_, adapter| adapter.rank = 8),
        recipe(precision, |recipe, adapter| {
            (adapter.rank, adapter.alpha, adapter.rslora) = (3, 12.0, true);
            adapter.target_modules = TargetModules::Preset(TargetPreset::Attention);
            (recipe.optimizer.kind, recipe.optimizer.learning_rate) = (OptimizerKind::Lion, 1e-3);
            recipe.optimizer.weight_decay = 0.1;
        }),
        recipe(precision, |recipe, adapter| {
            (adapter.rank, adapter.dropout, adapter.lora_bias) = (5, 0.2, true);
            recipe.optimizer.kind = OptimizerKind::AdamWScheduleFree;
            recipe.optimizer.max_grad_norm = Some(0.05);
        }),
        recipe(precision, |recipe, adapter| {
            (adapter.rank, adapter.layers_to_transform) = (16, Some(vec![1]));
            adapter.target_modules = TargetModules::Preset(TargetPreset::Mlp);
            (recipe.optimizer.kind, recipe.optimizer.momentum) = (OptimizerKind::Sgd, 0.5);
            (recipe.schedule.kind, recipe.schedule.warmup) = (ScheduleKind::Cosine, 2.0);
        }),
    ]
}

fn base(config: &str, precision: Precision) -> Result<Arc<BaseModel>, TrainError> {
    let architecture = Architecture::from_json(Path::new("config.json"), config).unwrap();
    BaseModel::random(architecture, 7, precision, &Device::Cpu).map(Arc::new)
}

/// Rows of these lengths, with other tokens for each seed; some of them are no targets.
fn batch(seed: u32, lengths: &[usize]) -> MicroBatch {
    let mut state = seed.wrapping_mul(97).wrapping_add(5);
    let mut token = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) % 301
    };
    let document = |length: &usize| {
        let input_ids: Vec<u32> = (0..*length).map(|_| token()).collect();
        let target = |(place, id): (usize, &u32)| if place % 5 == 4 { -100 } else { i64::from(*id) };
        let labels = input_ids.iter().enumerate().map(target).collect();
        Document { input_ids, labels }
    };
    MicroBatch::from_documents(&lengths.iter().map(document).collect::<Vec<_>>())
}

/// The global batch of a step: two micro-batches, the second one shorter, and at step 2 one alone.
fn global_batch(step: u64) -> Vec<MicroBatch> {
    let seed = 10 * step as u32;
    let mut batches = vec![batch(seed, &[33, 20, 17]), batch(seed + 1, &[9, 40])];
    batches.truncate(if step == 2 { 1 } else { 2 });
    batches
}

fn held_out() -> Vec<MicroBatch> {
    vec![batch(901, &[31, 8]), batch(902, &[12])]
}

/// Numbers that are to be the same: everything but the clock.
#[derive(Debug, PartialEq)]
struct Seen {
    loss: u64,
    grad_norm: u64,
    learning_rate: u64,
    tokens: [u64; 3],
    values: Vec<u32>,
    gradients: Vec<u32>,
    held_out: [u64; 3],
}

fn seen(event: &StepEvent, trainer: &Trainer, evaluation: &Evaluation) -> Seen {
    let bits = |tensor: &candle_core::Tensor| tensor.to_vec1::<f32>().unwrap().into_iter().map(f32::to_bits).collect();
    let error = evaluation.standard_error.unwrap_or_default();
    Seen {
        loss: event.loss.to_bits(),
        grad_norm: event.grad_norm.to_bits(),
        learning_rate: event.learning_rate.to_bits(),
        tokens: [event.step, event.tokens, event.target_tokens],
        values: bits(&trainer.parameters().values),
        gradients: bits(&trainer.parameters().gradients),
        held_out: [evaluation.loss, evaluation.accuracy, error].map(f64::to_bits),
    }
}

fn alone(base: &Arc<BaseModel>, recipe: &Recipe) -> Vec<Seen> {
    let mut trainer = Trainer::new(Arc::clone(base), recipe, STEPS).unwrap();
    let step = |step| {
        let event = trainer.step(&global_batch(step)).unwrap();
        let evaluation = trainer.evaluate(&held_out()).unwrap();
        seen(&event, &trainer, &evaluation)
    };
    (0..STEPS).map(step).collect()
}

/// All begin but the last, which joins behind two steps; the second leaves behind three. Each goes through its own steps.
fn together(base: &Arc<BaseModel>, recipes: &[Recipe]) -> Vec<Vec<Seen>> {
    let trainer = |recipe| Trainer::new(Arc::clone(base), recipe, STEPS).unwrap();
    let mut trainers: Vec<Trainer> = recipes.iter().map(trainer).collect();
    let last = recipes.len() - 1;
    let mut all: Vec<Vec<Seen>> = recipes.iter().map(|_| Vec::new()).collect();
    for round in 0..STEPS + 2 {
        let is_here = |index: usize| match index {
            1 => round < 3,
            index if index == last => round >= 2,
            _ => round < STEPS,
        };
        let mut members: Vec<(usize, &mut Trainer)> = trainers
            .iter_mut()
            .enumerate()
            .filter(|(index, _)| is_here(*index))
            .collect();
        let views: Vec<&Trainer> = members.iter().map(|(_, trainer)| &**trainer).collect();
        let mut passes = Together::new(&views).unwrap();
        let batches: Vec<Vec<MicroBatch>> = views.iter().map(|trainer| global_batch(trainer.steps())).collect();
        let batches: Vec<&[MicroBatch]> = batches.iter().map(Vec::as_slice).collect();
        let mut stepping: Vec<&mut Trainer> = members.iter_mut().map(|(_, trainer)| &mut **trainer).collect();
        let events = passes.step(&mut stepping, &batches).unwrap();
        let rows = held_out();
        let views: Vec<&Trainer> = members.iter().map(|(_, trainer)| &**trainer).collect();
        let evaluations = passes
            .evaluate(&views, &vec![Some(rows.as_slice()); views.len()])
            .unwrap();
        ends_one_early(&mut passes, &views, &rows);
        for (((index, trainer), event), evaluation) in members.iter().zip(events).zip(evaluations) {
            all[*index].push(seen(&event.unwrap(), trainer, &evaluation.unwrap().unwrap()));
        }
    }
    all
}

/// Ends an evaluation at its first look, behind one row.
struct EndsAtOnce;

impl RowWatch for EndsAtOnce {
    fn next_look(&self) -> Option<usize> {
        Some(1)
    }

    fn look(&mut self, _: &[RowLoss]) -> Control {
        Control::Stop
    }
}

/// The first training's evaluation ends behind its first micro-batch; the others' go on, and have the rows of all.
fn ends_one_early(passes: &mut Together, trainers: &[&Trainer], rows: &[MicroBatch]) {
    let all_rows: usize = rows.iter().map(|batch| batch.offsets.len() - 1).sum();
    let held_out = vec![Some(rows); trainers.len()];
    let (mut ends, mut others) = (EndsAtOnce, vec![(); trainers.len() - 1]);
    let others = others.iter_mut().map(|one| Some(one as &mut dyn RowWatch));
    let first: Option<&mut dyn RowWatch> = Some(&mut ends);
    let mut watches: Vec<Option<&mut dyn RowWatch>> = std::iter::once(first).chain(others).collect();
    let found = passes.evaluate_rows(trainers, &held_out, &mut watches).unwrap();
    for (index, one) in found.into_iter().enumerate() {
        let one = one.unwrap().unwrap();
        assert_eq!(one.rows.len() < all_rows, index == 0 && rows.len() > 1);
        let sum: f64 = one.rows.iter().map(|row| row.loss).sum();
        let mean = sum / one.evaluation.target_tokens as f64;
        assert!(
            (mean / one.evaluation.loss - 1.0).abs() < 1e-6,
            "{mean} {}",
            one.evaluation.loss
        );
    }
}

/// Fails at the first step of a training that differs from the one alone.
fn compare(config: &str, recipes: &[Recipe], what: &str) {
    let base = base(config, recipes[0].precision).unwrap();
    let grouped = together(&base, recipes);
    for (index, (recipe, grouped)) in recipes.iter().zip(grouped).enumerate() {
        let alone = alone(&base, recipe);
        let expected = if index == 1 { 3 } else { STEPS as usize };
        assert_eq!(grouped.len(), expected, "{what}");
        for (step, (one, other)) in alone.iter().zip(&grouped).enumerate() {
            assert_eq!(one.loss, other.loss, "{what}: loss of training {index}, step {step}");
            assert!(one == other, "{what}: training {index}, step {step}");
        }
    }
}

#[test]
fn every_training_has_the_bits_that_it_has_alone_in_fp32() {
    for (name, config) in [
        ("llama", LLAMA),
        ("qwen2", QWEN2),
        ("gemma2", GEMMA2),
        ("phi3", PHI3),
        ("gemma4", GEMMA4),
    ] {
        compare(config, &recipes(Precision::Fp32), name);
    }
}

#[test]
fn so_has_it_on_weights_of_other_precisions() {
    for precision in [
        Precision::Bf16,
        Precision::Fp16,
        Precision::Int8,
        Precision::Nf4,
        Precision::Nf4Double,
    ] {
        compare(LLAMA, &recipes(precision), precision.name());
    }
}

#[test]
fn so_has_it_where_layers_are_computed_again() {
    for checkpointing in [Checkpointing::EVERY_SECOND, Checkpointing::Full, Checkpointing::Offload] {
        let mut all = recipes(Precision::Fp32);
        for recipe in &mut all {
            recipe.gradient_checkpointing = checkpointing;
        }
        compare(LLAMA, &all, &checkpointing.to_string());
        compare(GEMMA2, &all, &checkpointing.to_string());
    }
}

/// Checks with one training whose values overflow, and one whose data hold a token that the model does not know.
#[test]
fn a_training_that_fails_leaves_the_others_as_they_are() {
    let base = base(LLAMA, Precision::Fp32).unwrap();
    let mut all = recipes(Precision::Fp32);
    all[1].optimizer.learning_rate = 1e38;
    all[1].optimizer.max_grad_norm = None;
    let mut trainers: Vec<Trainer> = all
        .iter()
        .map(|recipe| Trainer::new(Arc::clone(&base), recipe, STEPS).unwrap())
        .collect();
    let mut passes = Together::new(&trainers.iter().collect::<Vec<_>>()).unwrap();
    let mut losses = Vec::new();
    for step in 0..STEPS {
        let right = global_batch(step);
        let mut wrong = right.clone();
        wrong[0].input_ids[3] = 301;
        let batches: Vec<&[MicroBatch]> = vec![&right, &right, &right, &wrong];
        let events = passes
            .step(&mut trainers.iter_mut().collect::<Vec<_>>(), &batches)
            .unwrap();
        let unknown = events[3].as_ref().unwrap_err().to_string();
        assert!(unknown.starts_with("token 301 is outside"), "{unknown}");
        losses.push([0, 1, 2].map(|index| events[index].as_ref().unwrap().loss));
    }
    assert!(!losses[STEPS as usize - 1][1].is_finite(), "{losses:?}");
    for index in [0, 2] {
        let expected = alone(&base, &all[index]);
        for (losses, expected) in losses.iter().zip(&expected) {
            assert_eq!(losses[index].to_bits(), expected.loss);
        }
    }
}

#[test]
fn what_cannot_share_passes_is_refused_by_name() {
    let llama = base(LLAMA, Precision::Fp32).unwrap();
    let refused = |trainers: &[&Trainer]| Together::new(trainers).map(drop).unwrap_err().to_string();
    let plain = recipe(Precision::Fp32, |_, adapter| adapter.rank = 2);
    let trainer = |base: &Arc<BaseModel>, recipe: &Recipe| Trainer::new(Arc::clone(base), recipe, STEPS).unwrap();
    let first = trainer(&llama, &plain);
    let dora = trainer(
        &llama,
        &recipe(Precision::Fp32, |_, adapter| (adapter.rank, adapter.dora) = (2, true)),
    );
    assert!(refused(&[&first, &dora]).starts_with("`dora: true` trains alone"));
    let longer = trainer(
        &llama,
        &recipe(Precision::Fp32, |recipe, _| recipe.batch.sequence_length = 77),
    );
    assert!(refused(&[&first, &longer]).starts_with("`batch.sequence_length` is 77 here and 1024"));
    let again = base(LLAMA, Precision::Fp32).unwrap();
    assert!(refused(&[&first, &trainer(&again, &plain)]).contains("have a base each"));
    let experts = base(QWEN3_MOE, Precision::Fp32).unwrap();
    let attention = recipe(Precision::Fp32, |_, adapter| {
        adapter.target_modules = TargetModules::Preset(TargetPreset::Attention);
    });
    let both = trainer(&experts, &attention);
    assert!(refused(&[&both, &both]).starts_with("layers of `qwen3_moe` have experts"));
    assert!(Together::new(&[]).is_err());
}
