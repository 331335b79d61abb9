//! Costs of recording spans in a step: the same step with nobody recording and with somebody, in turn.
//!
//! `cargo bench --bench spans -- [--pairs 30] [--config path/to/config.json]`
//!
//! Without a configuration: a llama of 5 million parameters, whose steps are short and so show the most. Batch 4 x 256
//! tokens, rank 16 on all linear layers, bf16. The ratio of each pair is taken before the median over the pairs, so that
//! what else the machine does falls on both alike.

#![expect(
    clippy::print_stdout,
    clippy::panic,
    reason = "a bench prints its results and stops on a wrong argument"
)]

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use candle_core::Device;
use peft_tune_core::architecture::Architecture;
use peft_tune_core::recipe::{DataSettings, Precision, Recipe};
use peft_tune_engine::data::{Document, MicroBatch};
use peft_tune_engine::profile::{CountingAllocator, HostMemory, Median};
use peft_tune_engine::span::{MemoryReading, Probe, Recording};
use peft_tune_engine::{BaseModel, Trainer};

const CONFIG: &str = r#"{"model_type": "llama", "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 8,
    "num_key_value_heads": 4, "intermediate_size": 688, "vocab_size": 4096, "tie_word_embeddings": false,
    "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 10000.0}"#;

/// Counts every allocation, so that peak memory is exact.
#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

fn main() {
    let (pairs, config) = options();
    HostMemory::keep_freed();
    let architecture = Architecture::from_json(Path::new("config.json"), &config).expect("a valid configuration");
    let batch = [batch(architecture.vocabulary)];
    let base = BaseModel::random(architecture, 1, Precision::Bf16, &Device::Cpu).expect("a model that fits in memory");
    let mut recipe = Recipe::new("random", DataSettings::default());
    recipe.precision = Precision::Bf16;
    let mut trainer = Trainer::new(Arc::new(base), &recipe, 1000).expect("a recipe that fits the model");
    let mut step = || {
        let started = Instant::now();
        trainer.step(&batch).expect("a step of valid tokens");
        started.elapsed().as_secs_f64()
    };
    for _ in 0..5 {
        step();
    }
    let (mut plain, mut overheads, mut spans) = (Vec::new(), Vec::new(), 0);
    for pair in 0..pairs {
        // Which of the two comes first changes from pair to pair.
        let first_on = pair % 2 == 0;
        let mut timed = |on: bool| {
            let recording = on.then(|| Recording::start(probe()));
            let seconds = step();
            if let Some(recording) = recording {
                spans = recording.take().iter().map(|tree| tree.spans.len()).sum();
            }
            seconds
        };
        let (first, second) = (timed(first_on), timed(!first_on));
        let (on, off) = if first_on { (first, second) } else { (second, first) };
        plain.push(off);
        overheads.push(on / off);
    }
    let plain = Median::of(&plain).expect("there is a pair");
    let overhead = Median::of(&overheads).expect("there is a pair");
    println!(
        "{spans} spans in a step of {:.2} ms: overhead {:+.2}% (median of {pairs} pairs, +- {:.2}%)",
        1e3 * plain.value,
        100.0 * (overhead.value - 1.0),
        100.0 * overhead.interval
    );
}

fn probe() -> Probe {
    Probe {
        memory: Box::new(|| MemoryReading {
            in_use_bytes: HostMemory::in_use_bytes(),
            peak_bytes: HostMemory::take_peak(),
        }),
        device: None,
    }
}

fn batch(vocabulary: usize) -> MicroBatch {
    let mut state = 1u32;
    let mut token = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) % vocabulary as u32
    };
    let rows: Vec<Document> = (0..4)
        .map(|_| {
            let input_ids: Vec<u32> = (0..256).map(|_| token()).collect();
            let labels = input_ids.iter().map(|id| i64::from(*id)).collect();
            Document { input_ids, labels }
        })
        .collect();
    MicroBatch::from_documents(&rows)
}

fn options() -> (usize, String) {
    let (mut pairs, mut config) = (30, CONFIG.to_owned());
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().unwrap_or_else(|| panic!("{argument} needs a value"));
        match argument.as_str() {
            "--pairs" => pairs = value().parse().unwrap_or_else(|_| panic!("--pairs takes a number")),
            "--config" => config = std::fs::read_to_string(value()).expect("the configuration can be read"),
            // cargo passes this to every bench.
            "--bench" => {}
            other => panic!("unknown argument {other}"),
        }
    }
    (pairs.max(1), config)
}
