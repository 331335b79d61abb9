//! Frozen weights that ranks share out (`sharding: full`): the bits of trainings on whole weights, less memory, and what
//! becomes of ranks that die or give something else.
#![cfg(target_os = "linux")]

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use candle_core::{DType, Device, Tensor};

use peft_tune_core::architecture::Architecture;
use peft_tune_core::plan::{ShardedBytes, gathers};
use peft_tune_core::recipe::{
    ActivationQuantization, BatchSettings, Checkpointing, DataSettings, Precision, PrecisionSchedule, Recipe, Sharding,
    TargetModules,
};
use peft_tune_engine::data::{Document, MicroBatch};
use peft_tune_engine::parallel::{Collective, CollectiveError, Segment, SharedMemory};
use peft_tune_engine::{BaseModel, RankShare, TrainError, Trainer};

const STEPS: usize = 3;
const PATIENCE: Duration = Duration::from_secs(300);

/// Five layers, which two windows take in turn. No number of elements is a multiple of three, nor of 64 where codes have constants.
const LLAMA: &str = r#"{"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 5, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 88, "vocab_size": 96, "rms_norm_eps": 1e-5,
    "max_position_embeddings": 64, "rope_theta": 10000.0, "tie_word_embeddings": false}"#;
/// Routers, which every rank has, and experts.
const MIXTURE: &str = r#"{"model_type": "qwen3_moe", "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 96, "moe_intermediate_size": 32, "num_experts": 4,
    "num_experts_per_tok": 2, "norm_topk_prob": true, "decoder_sparse_step": 1, "vocab_size": 96, "rms_norm_eps": 1e-6,
    "max_position_embeddings": 64, "rope_theta": 10000.0, "tie_word_embeddings": true}"#;

fn architecture(config: &str) -> Architecture {
    Architecture::from_json(Path::new("config.json"), config).unwrap()
}

fn recipe(ranks: usize, precision: Precision) -> Recipe {
    let mut recipe = Recipe::new("random", DataSettings::default());
    recipe.precision = precision;
    recipe.batch = BatchSettings {
        micro_batch: 2,
        gradient_accumulation: 2,
        devices: ranks,
        sequence_length: 12,
        ..BatchSettings::default()
    };
    let adapter = recipe.adapter.as_mut().unwrap();
    (adapter.rank, adapter.dropout) = (4, 0.1);
    recipe.optimizer.learning_rate = 1e-2;
    recipe
}

fn batch(seed: usize) -> MicroBatch {
    let document = |row: usize| {
        let ids = (0..12).map(|place| ((seed * 131 + row * 31 + place * 17) % 96) as u32);
        let input_ids: Vec<u32> = ids.collect();
        let labels = input_ids.iter().map(|id| i64::from(*id)).collect();
        Document { input_ids, labels }
    };
    MicroBatch::from_documents(&[document(0), document(1)])
}

/// Results of a training.
#[derive(Debug, PartialEq)]
struct Trained {
    losses: Vec<f64>,
    gradients: Vec<f32>,
    values: Vec<f32>,
    held_out_loss: f64,
}

/// Trains on one rank, and returns how many layers were gathered in the last step as well.
fn train(config: &str, recipe: &Recipe, collective: Arc<dyn Collective>) -> Result<(Trained, u64, usize), TrainError> {
    let share = RankShare::of(recipe, collective.as_ref());
    let base = BaseModel::random(architecture(config), 7, recipe.precision, &Device::Cpu)?;
    let base = match share {
        Some(share) => base.share_of(share)?,
        None => base,
    };
    let bytes = base.bytes();
    let mut trainer = Trainer::new(Arc::new(base), recipe, STEPS as u64)?.with_collective(collective)?;
    let (mut losses, mut gathered) = (Vec::new(), 0);
    for step in 0..STEPS {
        let before = trainer.gathered_layers();
        let count = recipe.batch.micro_batches();
        let batches: Vec<MicroBatch> = (0..count).map(|index| batch(step * count + index)).collect();
        losses.push(trainer.step(&batches)?.loss);
        gathered = trainer.gathered_layers() - before;
    }
    // Of no number of ranks a multiple: some rank has nothing to compute at the end.
    let held_out: Vec<MicroBatch> = (0..7).map(|index| batch(1_000 + index)).collect();
    let held_out_loss = trainer.evaluate(&held_out)?.loss;
    let parameters = trainer.parameters();
    let trained = Trained {
        losses,
        gradients: parameters.gradients.to_vec1()?,
        values: parameters.values.to_vec1()?,
        held_out_loss,
    };
    Ok((trained, gathered, bytes))
}

/// Runs `work` on every rank, each in a thread with its own view of the shared memory.
pub(crate) fn on_all<R: Send>(ranks: usize, work: impl Fn(Arc<dyn Collective>) -> R + Sync) -> Vec<R> {
    let segment = Segment::create(ranks).unwrap();
    std::thread::scope(|scope| {
        let start = |rank| {
            let view = Arc::new(segment.share().unwrap());
            let work = &work;
            scope.spawn(move || work(Arc::new(SharedMemory::new(view, rank, PATIENCE).unwrap())))
        };
        let threads: Vec<_> = (0..ranks).map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Trains with whole and with shared weights, and holds one against the other.
fn compare(config: &str, recipe: &Recipe, case: &str) {
    let ranks = recipe.batch.devices;
    let mut shared = recipe.clone();
    shared.batch.sharding = Sharding::Full;
    let run = |recipe: &Recipe| on_all(ranks, |collective| train(config, recipe, collective).unwrap());
    let whole = run(recipe);
    let architecture = architecture(config);
    let expected = ShardedBytes::new(&architecture, recipe.precision, ranks);
    let bytes = [expected.own, expected.windows].map(|bytes| bytes.values + bytes.constants);
    for (rank, (trained, gathered, held)) in run(&shared).into_iter().enumerate() {
        assert_eq!(trained, whole[rank].0, "{case}, rank {rank} of {ranks}");
        assert_eq!(whole[rank].1, 0, "{case}: nothing is gathered where all is there");
        // As many as the prediction counts, for each micro-batch of this rank.
        let first = match &recipe.adapter.as_ref().unwrap().layers_to_transform {
            Some(layers) => layers[0],
            None => 0,
        };
        let each = gathers(architecture.layers.len(), first).len() * recipe.batch.gradient_accumulation;
        assert_eq!(gathered, each as u64, "{case}, rank {rank} of {ranks}");
        assert_eq!(held as u64, bytes[0] + bytes[1], "{case}, rank {rank} of {ranks}");
    }
}

#[test]
fn trainings_on_shared_weights_are_those_on_whole_ones_to_the_last_bit() {
    for ranks in [2, 3] {
        for precision in Precision::ALL {
            let mut recipe = recipe(ranks, precision);
            if precision == Precision::Bf16 {
                recipe.gradient_checkpointing = Checkpointing::Full;
            }
            compare(LLAMA, &recipe, precision.name());
        }
    }
}

#[test]
fn shared_weights_go_with_what_reads_them_in_other_ways() {
    type Change = fn(&mut Recipe);
    let changes: [(&str, Change); 7] = [
        ("every_2", |recipe| {
            recipe.gradient_checkpointing = Checkpointing::EVERY_SECOND
        }),
        ("offload", |recipe| {
            recipe.gradient_checkpointing = Checkpointing::Offload
        }),
        ("8-bit activations", |recipe| {
            recipe.precision = Precision::Int8;
            recipe.activation_quantization = ActivationQuantization::Int8Both;
        }),
        ("steps in fp32", |recipe| {
            recipe.precision = Precision::Bf16;
            recipe.precision_schedule = PrecisionSchedule::from_name("fp32_1").unwrap();
        }),
        ("some layers", |recipe| {
            recipe.adapter.as_mut().unwrap().layers_to_transform = Some(vec![2, 3])
        }),
        ("the embedding trains", |recipe| {
            recipe.adapter.as_mut().unwrap().modules_to_save = vec!["embed_tokens".into(), "lm_head".into()];
        }),
        ("few modules", |recipe| {
            recipe.adapter.as_mut().unwrap().target_modules = TargetModules::Named(vec!["down_proj".into()]);
        }),
    ];
    for (case, change) in changes {
        let mut recipe = recipe(2, Precision::Fp32);
        change(&mut recipe);
        compare(LLAMA, &recipe, case);
    }
}

#[test]
fn a_rank_without_rows_in_a_step_gives_its_weights_all_the_same() {
    // As at the end of an epoch: one micro-batch for three ranks.
    let run = |recipe: &Recipe| {
        on_all(3, |collective| {
            let base = BaseModel::random(architecture(LLAMA), 7, recipe.precision, &Device::Cpu).unwrap();
            let base = match RankShare::of(recipe, collective.as_ref()) {
                Some(share) => base.share_of(share).unwrap(),
                None => base,
            };
            let trainer = Trainer::new(Arc::new(base), recipe, 2).unwrap();
            let mut trainer = trainer.with_collective(collective).unwrap();
            let losses = [[batch(0)], [batch(1)]].map(|batches| trainer.step(&batches).unwrap().loss);
            let values: Vec<f32> = trainer.parameters().values.to_vec1().unwrap();
            (losses, values)
        })
    };
    let mut recipe = recipe(3, Precision::Fp32);
    let whole = run(&recipe);
    assert!(whole.iter().all(|rank| *rank == whole[0]));
    recipe.batch.sharding = Sharding::Full;
    assert_eq!(run(&recipe), whole);
}

#[test]
fn experts_are_shared_out_and_routers_are_not() {
    for (ranks, precision) in [(2, Precision::Fp32), (3, Precision::Nf4)] {
        let mut recipe = recipe(ranks, precision);
        // Adapters on parameters allow none.
        recipe.adapter.as_mut().unwrap().dropout = 0.0;
        compare(MIXTURE, &recipe, precision.name());
    }
}

#[test]
fn what_one_rank_has_is_no_whole_model() {
    let load = || {
        let base = BaseModel::random(architecture(LLAMA), 7, Precision::Fp32, &Device::Cpu).unwrap();
        base.share_of(RankShare { rank: 1, ranks: 2 }).unwrap()
    };
    let name = "model.layers.3.mlp.down_proj.weight";
    let error = load().tensor(name).unwrap_err().to_string();
    assert!(
        error.contains(name) && error.contains("shared out among devices"),
        "{error}"
    );
    assert!(load().tensor("model.layers.3.input_layernorm.weight").is_ok());
    // Without the other ranks there is no pass.
    let mut recipe = recipe(2, Precision::Fp32);
    recipe.batch.sharding = Sharding::Full;
    let mut alone = Trainer::new(Arc::new(load()), &recipe, 1).unwrap();
    let error = alone.step(&[batch(0), batch(1)]).unwrap_err().to_string();
    assert!(error.contains("linked with no other"), "{error}");
    let (trainer, segment) = (
        Trainer::new(Arc::new(load()), &recipe, 1).unwrap(),
        Segment::create(1).unwrap(),
    );
    let one = SharedMemory::new(Arc::new(segment), 0, PATIENCE).unwrap();
    let error = trainer.with_collective(Arc::new(one)).err().unwrap().to_string();
    assert!(
        error.starts_with("the weights are those of rank 1 of 2, and this is rank 0 of 1"),
        "{error}"
    );
    // One device that computes all shares has all weights.
    recipe.batch.devices = 1;
    let whole = BaseModel::random(architecture(LLAMA), 7, Precision::Fp32, &Device::Cpu).unwrap();
    let error = Trainer::new(Arc::new(whole), &recipe, 1).err().unwrap().to_string();
    assert!(
        error.contains("`sharding: full` shares weights out among devices, and `devices` is 1"),
        "{error}"
    );
}

/// How the first step of rank 0 ends, where rank 1 does `other` in its place.
fn first_rank_beside(patience: Duration, other: impl FnOnce(SharedMemory, &Segment) + Send) -> TrainError {
    let segment = Segment::create(2).unwrap();
    let rank = |rank| SharedMemory::new(Arc::new(segment.share().unwrap()), rank, patience).unwrap();
    let mut recipe = recipe(2, Precision::Fp32);
    recipe.batch.sharding = Sharding::Full;
    std::thread::scope(|scope| {
        let (second, view) = (rank(1), segment.share().unwrap());
        scope.spawn(move || other(second, &view));
        train(LLAMA, &recipe, Arc::new(rank(0))).unwrap_err()
    })
}

/// Takes part in what all ranks do before the first gather: rank 0 tells the values that trainings start from.
fn receive_start(collective: &SharedMemory, config: &str) {
    let base = BaseModel::random(architecture(config), 7, Precision::Fp32, &Device::Cpu).unwrap();
    let trainer = Trainer::new(Arc::new(base), &recipe(2, Precision::Fp32), 1).unwrap();
    collective
        .broadcast(&trainer.parameters().values.zeros_like().unwrap())
        .unwrap();
}

#[test]
fn a_rank_that_is_gone_or_late_in_a_gather_ends_the_step_for_its_reason() {
    let gone = first_rank_beside(PATIENCE, |collective, segment| {
        receive_start(&collective, LLAMA);
        segment.tell_gone(1);
    });
    let TrainError::Collective(error) = &gone else {
        panic!("{gone}")
    };
    assert!(
        matches!(**error, CollectiveError::Gone { rank: 1, ranks: 2 }),
        "{error}"
    );
    let late = first_rank_beside(Duration::from_secs(2), |collective, _| {
        receive_start(&collective, LLAMA)
    });
    let TrainError::Collective(error) = &late else {
        panic!("{late}")
    };
    assert!(
        matches!(**error, CollectiveError::Late { rank: 1, ranks: 2, .. }),
        "{error}"
    );
}

#[test]
fn a_rank_that_gives_weights_of_another_size_ends_the_step_for_that_reason() {
    let error = first_rank_beside(PATIENCE, |collective, _| {
        receive_start(&collective, LLAMA);
        let [own, all] = [8, 16].map(|size| Tensor::zeros(size, DType::F32, &Device::Cpu).unwrap());
        let error = collective.all_gather(&own, &all).unwrap_err();
        assert!(
            matches!(error, CollectiveError::Size { rank: 1, got: 32, .. }),
            "{error}"
        );
    });
    assert!(
        error
            .to_string()
            .starts_with("rank 1 of 2 gave 32 bytes of weights where rank 0 gave "),
        "{error}"
    );
}

#[test]
fn parts_of_a_loaded_model_are_those_of_the_same_model_in_memory() {
    // A checkpoint in a folder, read by each rank for itself.
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.json"), LLAMA).unwrap();
    let whole = BaseModel::random(architecture(LLAMA), 7, Precision::Fp32, &Device::Cpu).unwrap();
    let of = |name: String| {
        let value = whole.tensor(&name).unwrap();
        (name, value)
    };
    let tensors = architecture(LLAMA).tensors().into_iter();
    let tensors: HashMap<String, Tensor> = tensors.map(|tensor| of(tensor.name)).collect();
    candle_core::safetensors::save(&tensors, folder.path().join("model.safetensors")).unwrap();
    let mut recipe = recipe(2, Precision::Nf4Double);
    recipe.batch.sharding = Sharding::Full;
    let run = |from_file: bool| {
        on_all(2, |collective| {
            let share = RankShare::of(&recipe, collective.as_ref());
            let base = match from_file {
                true => BaseModel::load_share(folder.path(), recipe.precision, &Device::Cpu, share),
                false => BaseModel::random(architecture(LLAMA), 7, recipe.precision, &Device::Cpu)
                    .and_then(|base| base.share_of(share.unwrap())),
            };
            let base = base.unwrap();
            assert_eq!(base.share(), share);
            let bytes = base.bytes();
            let mut trainer = Trainer::new(Arc::new(base), &recipe, 1)
                .unwrap()
                .with_collective(collective)
                .unwrap();
            let batches: Vec<MicroBatch> = (0..4).map(batch).collect();
            (trainer.step(&batches).unwrap().loss.to_bits(), bytes)
        })
    };
    assert_eq!(run(true), run(false));
}
