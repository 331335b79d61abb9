//! A whole training step on random models: tokens/s, where the time goes, and the bytes that it takes.
//!
//! `cargo bench --bench step -- [--shapes 135m,5m] [--precisions fp32,bf16] [--checkpointing none,full] [--steps 5]
//! [--activations none,int8_forward,int8_both] [--adapter none] [--json]`
//!
//! A mixture of experts stands beside a dense model of the same active products: `--shapes 5m-experts,5m-dense` and
//! `--shapes 500m-experts,500m-dense`. A step of the mixture should take at most 1.3 times the dense one's time.
//!
//! Batch 4 x 256 tokens, all of them targets; rank 16 on all seven linear layers, AdamW. `peak` is the most that was
//! allocated at a time, base weights included; `GFLOP/s` counts the products with the base weights (one forward and the
//! input gradient, a second forward under checkpointing) and leaves out all else, so that it can be held against the
//! rate of the product alone. RAYON_NUM_THREADS sets the threads.
//!
//! The second line of a setting holds the phases against their floor: the time that a step on paper has for their ops, each
//! measured by itself before all settings. `forward` has the loss head and its gradient.

#![expect(
    clippy::print_stdout,
    clippy::panic,
    reason = "a bench prints its results and stops on a wrong argument"
)]

use std::path::Path;
use std::sync::Arc;

use candle_core::Device;
use peft_tune_core::architecture::Architecture;
use peft_tune_core::predict::{Ceilings, Machine, Segment, Setting, StepPart, Workload};
use peft_tune_core::recipe::{ActivationQuantization, AdapterSettings, Checkpointing, DataSettings, Precision, Recipe};
use peft_tune_engine::data::{Document, MicroBatch};
use peft_tune_engine::profile::ceilings;
use peft_tune_engine::profile::{CountingAllocator, HostMemory, median};
use peft_tune_engine::{BaseModel, StepSeconds, Trainer, predictor};

const ROWS: usize = 4;
const LENGTH: usize = 256;
const RANK: usize = 16;

/// Name and `config.json` of each shape.
const SHAPES: [(&str, &str); 6] = [
    (
        "135m",
        r#"{"model_type": "llama", "hidden_size": 576, "num_hidden_layers": 30, "num_attention_heads": 9,
            "num_key_value_heads": 3, "intermediate_size": 1536, "vocab_size": 49152, "tie_word_embeddings": true,
            "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 10000.0}"#,
    ),
    (
        "5m",
        r#"{"model_type": "llama", "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 8,
            "num_key_value_heads": 4, "intermediate_size": 688, "vocab_size": 4096, "tie_word_embeddings": false,
            "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 10000.0}"#,
    ),
    // Mixtures beside dense models of the same active products: two of eight experts of half the dense width.
    (
        "5m-experts",
        r#"{"model_type": "qwen3_moe", "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 8,
            "num_key_value_heads": 4, "head_dim": 32, "intermediate_size": 688, "moe_intermediate_size": 344,
            "num_experts": 8, "num_experts_per_tok": 2, "norm_topk_prob": true, "vocab_size": 4096,
            "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 10000.0}"#,
    ),
    (
        "5m-dense",
        r#"{"model_type": "qwen3", "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 8,
            "num_key_value_heads": 4, "head_dim": 32, "intermediate_size": 688, "vocab_size": 4096,
            "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 10000.0}"#,
    ),
    // Half a billion active parameters: eight of 64 experts.
    (
        "500m-experts",
        r#"{"model_type": "qwen3_moe", "hidden_size": 1024, "num_hidden_layers": 16, "num_attention_heads": 16,
            "num_key_value_heads": 4, "head_dim": 64, "intermediate_size": 6144, "moe_intermediate_size": 768,
            "num_experts": 64, "num_experts_per_tok": 8, "norm_topk_prob": true, "vocab_size": 32768,
            "tie_word_embeddings": true, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 10000.0}"#,
    ),
    (
        "500m-dense",
        r#"{"model_type": "qwen3", "hidden_size": 1024, "num_hidden_layers": 16, "num_attention_heads": 16,
            "num_key_value_heads": 4, "head_dim": 64, "intermediate_size": 6144, "vocab_size": 32768,
            "tie_word_embeddings": true, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 10000.0}"#,
    ),
];

const PRECISIONS: [(&str, Precision); 6] = [
    ("fp32", Precision::Fp32),
    ("bf16", Precision::Bf16),
    ("fp16", Precision::Fp16),
    ("int8", Precision::Int8),
    ("nf4", Precision::Nf4),
    ("nf4-double", Precision::Nf4Double),
];

const CHECKPOINTING: [(&str, Checkpointing); 3] = [
    ("none", Checkpointing::None),
    ("every-2", Checkpointing::EVERY_SECOND),
    ("full", Checkpointing::Full),
];

struct Options {
    shapes: Vec<String>,
    precisions: Vec<String>,
    checkpointing: Vec<String>,
    activations: Vec<ActivationQuantization>,
    steps: usize,
    /// Trains all parameters instead of an adapter.
    whole_model: bool,
    json: bool,
}

/// Measurements of one setting; times are medians over the steps.
struct Measured {
    tokens_per_s: f64,
    seconds: StepSeconds,
    /// GFLOP/s of the products with the base weights.
    rate: f64,
    peak_bytes: u64,
    base_bytes: usize,
    saved_bytes: usize,
    /// Page faults of a step: memory that the system's allocator gave back and took again.
    faults: f64,
}

/// Counts every allocation, so that peak memory is exact.
#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

fn main() {
    let options = options();
    HostMemory::keep_freed();
    if !options.json {
        println!(
            "{:6} {:10} {:12} {:12} {:>10} {:>9} {:>9} {:>9} {:>9} {:>8} {:>8} {:>8} {:>8}",
            "shape",
            "precision",
            "checkpoint",
            "activations",
            "tokens/s",
            "forward",
            "backward",
            "optimizer",
            "GFLOP/s",
            "peak MB",
            "base MB",
            "saved MB",
            "faults"
        );
    }
    let ceilings = ceilings_of(&options);
    for (shape, config) in chosen(&SHAPES, &options.shapes) {
        for (precision, kind) in chosen(&PRECISIONS, &options.precisions) {
            let architecture = Architecture::from_json(Path::new(shape), config).expect("the bench's shapes are valid");
            let base = BaseModel::random(architecture, 1, kind, &Device::Cpu).expect("a random model fits in memory");
            let base = Arc::new(base);
            for (checkpointing, setting) in chosen(&CHECKPOINTING, &options.checkpointing) {
                for activations in &options.activations {
                    if !activations.is_none() && !kind.is_quantized() {
                        continue;
                    }
                    let recipe = recipe(&base, setting, *activations, &options);
                    let measured = measure(&base, &recipe, &options);
                    let names = [shape, precision, checkpointing, activations.name()];
                    print(&names, &measured, options.json);
                    print_floor(&ceilings, &base, &recipe, &measured, options.json);
                }
            }
        }
    }
}

/// Times of the settings' ops on this machine, each by itself.
fn ceilings_of(options: &Options) -> Ceilings {
    let precisions = chosen(&PRECISIONS, &options.precisions);
    let precisions: Vec<Precision> = precisions.into_iter().map(|(_, kind)| kind).collect();
    let measured = ceilings::measure(&precisions, ceilings::Effort::Full).expect("small ops fit in memory");
    Ceilings {
        // What whole steps take over the sum of their ops is what is looked for.
        whole_steps: Default::default(),
        ..measured
    }
}

fn recipe(
    base: &BaseModel,
    checkpointing: Checkpointing,
    activations: ActivationQuantization,
    options: &Options,
) -> Recipe {
    let mut recipe = Recipe::new("random", DataSettings::default());
    recipe.precision = base.precision();
    recipe.gradient_checkpointing = checkpointing;
    recipe.activation_quantization = activations;
    recipe.batch.micro_batch = ROWS;
    recipe.batch.gradient_accumulation = 1;
    recipe.batch.sequence_length = LENGTH;
    recipe.adapter = (!options.whole_model).then(|| AdapterSettings {
        rank: RANK,
        ..AdapterSettings::default()
    });
    recipe
}

fn measure(base: &Arc<BaseModel>, recipe: &Recipe, options: &Options) -> Measured {
    let batch = [batch(base.architecture().vocabulary)];
    HostMemory::reset_peak();
    let mut trainer = Trainer::new(Arc::clone(base), recipe, 100).expect("the recipe fits the model");
    let mut step = || trainer.step(&batch).expect("a step of valid tokens").seconds;
    // The first step builds tables and the threads' scratch.
    step();
    let before = page_faults();
    let seconds: Vec<StepSeconds> = (0..options.steps).map(|_| step()).collect();
    let faults = (page_faults() - before) as f64 / options.steps as f64;
    let peak_bytes = HostMemory::peak_bytes();
    let middle = |part: fn(&StepSeconds) -> f64| {
        let values: Vec<f64> = seconds.iter().map(part).collect();
        median(values).expect("there is a step")
    };
    let seconds = StepSeconds {
        forward: middle(|seconds| seconds.forward),
        backward: middle(|seconds| seconds.backward),
        optimizer: middle(|seconds| seconds.optimizer),
        total: middle(|seconds| seconds.total),
        ..StepSeconds::default()
    };
    let tokens = batch[0].tokens() as f64;
    let counts = base.architecture().parameter_count();
    let passes = if recipe.gradient_checkpointing == Checkpointing::Full {
        3.0
    } else {
        2.0
    };
    let head = (base.architecture().vocabulary * base.architecture().hidden_size) as f64;
    let linear = counts.linear + counts.experts - base.architecture().idle_parameters();
    let flops = 2.0 * tokens * (passes * linear as f64 + 2.0 * head);
    Measured {
        tokens_per_s: tokens / seconds.total,
        seconds,
        rate: flops / (seconds.forward + seconds.backward) / 1e9,
        peak_bytes,
        base_bytes: base.bytes(),
        saved_bytes: trainer.saved_bytes(&batch[0]).expect("a forward pass").device,
        faults,
    }
}

fn batch(vocabulary: usize) -> MicroBatch {
    let mut state = 1u32;
    let mut token = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) % vocabulary as u32
    };
    let rows: Vec<Document> = (0..ROWS)
        .map(|_| {
            let input_ids: Vec<u32> = (0..LENGTH).map(|_| token()).collect();
            let labels = input_ids.iter().map(|id| i64::from(*id)).collect();
            Document { input_ids, labels }
        })
        .collect();
    MicroBatch::from_documents(&rows)
}

fn print(names: &[&str; 4], measured: &Measured, json: bool) {
    let megabytes = |bytes: usize| bytes as f64 / 1e6;
    let Measured { seconds, .. } = measured;
    if json {
        println!(
            r#"{{"shape": "{}", "precision": "{}", "checkpointing": "{}", "activations": "{}", "tokens_per_s": {:.1}, "forward_s": {:.5}, "backward_s": {:.5}, "optimizer_s": {:.5}, "gflop_per_s": {:.1}, "peak_bytes": {}, "base_bytes": {}, "saved_bytes": {}, "page_faults": {:.0}}}"#,
            names[0],
            names[1],
            names[2],
            names[3],
            measured.tokens_per_s,
            seconds.forward,
            seconds.backward,
            seconds.optimizer,
            measured.rate,
            measured.peak_bytes,
            measured.base_bytes,
            measured.saved_bytes,
            measured.faults
        );
        return;
    }
    println!(
        "{:6} {:10} {:12} {:12} {:>10.0} {:>6.0} ms {:>6.0} ms {:>6.1} ms {:>9.0} {:>8.0} {:>8.0} {:>8.0} {:>8.0}",
        names[0],
        names[1],
        names[2],
        names[3],
        measured.tokens_per_s,
        1e3 * seconds.forward,
        1e3 * seconds.backward,
        1e3 * seconds.optimizer,
        measured.rate,
        megabytes(measured.peak_bytes as usize),
        megabytes(measured.base_bytes),
        megabytes(measured.saved_bytes),
        measured.faults
    );
}

/// Prints how many times its floor each phase takes.
fn print_floor(ceilings: &Ceilings, base: &BaseModel, recipe: &Recipe, measured: &Measured, json: bool) {
    let machine = Machine::Measured(Box::new(ceilings.clone()));
    let workload = Workload::full(ROWS, LENGTH);
    let setting = Setting {
        recipe,
        workload: &workload,
    };
    let predictor = predictor(base.architecture().clone(), machine);
    let costs = predictor.step_costs(&[setting]).expect("the recipe fits the model");
    let floor = |is_in: fn(Segment) -> bool| -> f64 {
        let parts = costs.parts.iter().filter(|one| match one.part {
            StepPart::Segment(segment) => is_in(segment),
            StepPart::Begin | StepPart::Gather | StepPart::Sum | StepPart::HostUpdate => false,
        });
        parts.map(|part| part.seconds()).sum()
    };
    let of_backward = |segment| matches!(segment, Segment::Backward { .. } | Segment::EmbedBackward);
    let of_forward = |segment| {
        !matches!(
            segment,
            Segment::Backward { .. } | Segment::EmbedBackward | Segment::Update
        )
    };
    let StepSeconds {
        forward,
        backward,
        optimizer,
        total,
        ..
    } = measured.seconds;
    let forward = forward / floor(of_forward);
    let backward = backward / floor(of_backward);
    let optimizer = optimizer / floor(|segment| segment == Segment::Update);
    let (all, step) = (costs.seconds(), total / costs.seconds());
    if json {
        println!(
            r#"{{"floor_s": {all:.5}, "forward_over_floor": {forward:.3}, "backward_over_floor": {backward:.3}, "optimizer_over_floor": {optimizer:.3}, "step_over_floor": {step:.3}}}"#
        );
        return;
    }
    println!(
        "       times the floor: forward {forward:.2}, backward {backward:.2}, optimizer {optimizer:.2}, step {step:.2}"
    );
}

/// Page faults of this process that needed no disk.
fn page_faults() -> u64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name of the program, in parentheses, may hold spaces; the fields after it do not.
    let fields = text.rsplit(')').next().unwrap_or_default();
    let minor = fields.split_whitespace().nth(7);
    minor.and_then(|count| count.parse().ok()).unwrap_or(0)
}

fn chosen<T: Copy>(all: &[(&'static str, T)], names: &[String]) -> Vec<(&'static str, T)> {
    let place = |name: &String| match all.iter().find(|(known, _)| known == name) {
        Some(entry) => *entry,
        None => {
            let known: Vec<&str> = all.iter().map(|(name, _)| *name).collect();
            panic!("`{name}` is none of {}", known.join(", "))
        }
    };
    names.iter().map(place).collect()
}

fn options() -> Options {
    let names = |text: &str| text.split(',').map(str::to_owned).collect();
    let mut options = Options {
        shapes: names("135m,5m"),
        precisions: names("fp32,bf16"),
        checkpointing: names("none,full"),
        activations: vec![ActivationQuantization::None],
        steps: 5,
        whole_model: false,
        json: false,
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().unwrap_or_else(|| panic!("{argument} needs a value"));
        match argument.as_str() {
            "--shapes" => options.shapes = names(&value()),
            "--precisions" => options.precisions = names(&value()),
            "--checkpointing" => options.checkpointing = names(&value()),
            "--activations" => {
                let named = |name: String| {
                    let found = ActivationQuantization::from_name(&name);
                    found.unwrap_or_else(|| panic!("`{name}` is none of {}", ActivationQuantization::NAMES.join(", ")))
                };
                options.activations = names(&value()).into_iter().map(named).collect();
            }
            "--steps" => options.steps = value().parse().unwrap_or_else(|_| panic!("--steps takes a number")),
            "--adapter" => options.whole_model = value() == "none",
            "--json" => options.json = true,
            // cargo passes this to every bench.
            "--bench" => {}
            other => panic!("unknown argument {other}"),
        }
    }
    options
}
