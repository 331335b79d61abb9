//! Spans that the engine reports while it trains: FLOPs against formulas, phases that hold the step, numbers that stay
//! the same.

use std::sync::Arc;

use candle_core::Device;
use peft_tune_core::recipe::{AdapterSettings, Checkpointing, DataSettings, Precision, Recipe};
use peft_tune_engine::data::{Document, MicroBatch};
use peft_tune_engine::span::{MemoryReading, Module, Probe, Range, Recording, SpanTree, StepPhase};
use peft_tune_engine::{BaseModel, Trainer};

use crate::golden::base;

const TOKENS: usize = 24;
const RANK: usize = 4;

fn recipe(checkpointing: Checkpointing) -> Recipe {
    let mut recipe = Recipe::new("model", DataSettings::default());
    recipe.precision = Precision::Fp32;
    recipe.gradient_checkpointing = checkpointing;
    recipe.adapter = Some(AdapterSettings {
        rank: RANK,
        ..AdapterSettings::default()
    });
    recipe
}

fn batch() -> [MicroBatch; 1] {
    let input_ids: Vec<u32> = (10..10 + TOKENS as u32).collect();
    let labels = input_ids.iter().map(|id| i64::from(*id)).collect();
    [MicroBatch::from_documents([&Document { input_ids, labels }])]
}

/// The spans of one step, as trees.
fn recorded(base: Arc<BaseModel>, checkpointing: Checkpointing) -> (Vec<SpanTree>, f64) {
    let mut trainer = Trainer::new(base, &recipe(checkpointing), 10).unwrap();
    let recording = Recording::start(Probe {
        memory: Box::new(MemoryReading::default),
        device: None,
    });
    let loss = trainer.step(&batch()).unwrap().loss;
    (recording.take(), loss)
}

fn flops(trees: &[SpanTree]) -> u64 {
    let spans = trees.iter().flat_map(|tree| &tree.spans);
    spans.map(|span| span.work.flops).sum()
}

#[test]
fn flops_are_those_of_the_formulas() {
    let base = base("ref_llama", Precision::Fp32);
    let architecture = base.architecture();
    let (hidden, inner) = (architecture.hidden_size, architecture.intermediate_size);
    let (query, kv) = (architecture.query_size(0), architecture.kv_size(0));
    let layers = architecture.layers.len();
    // (in, out) of the seven linear layers.
    let linears = [
        (hidden, query),
        (hidden, kv),
        (hidden, kv),
        (query, hidden),
        (hidden, inner),
        (hidden, inner),
        (inner, hidden),
    ];
    let weights: usize = linears.iter().map(|(input, output)| input * output).sum();
    let (inputs, outputs) = linears
        .iter()
        .fold((0, 0), |(i, o), (input, output)| (i + input, o + output));
    // Forward and dX of each base weight; forward, dA, dB, d(xA) and dX of each adapter.
    let base_weights = 2 * 2 * TOKENS * weights * layers;
    let adapters = 2 * TOKENS * RANK * layers * ((inputs + outputs) + (2 * inputs + 2 * outputs));
    // Below the first layer nothing trains, so that q, k and v of it pass no gradient on.
    let not_passed_on = 2 * TOKENS * (hidden * (query + 2 * kv) + 3 * RANK * hidden);
    // Logits and their gradient, at all positions but the last, which has no target.
    let head = 2 * 2 * (TOKENS - 1) * architecture.vocabulary * hidden;
    let pairs = TOKENS * (TOKENS + 1) / 2;
    let attention = (4 + 10) * query * pairs * layers;
    // The stream behind attention is made again.
    let (o_proj, o_update) = (2 * TOKENS * query * hidden, 2 * TOKENS * RANK * hidden);
    let again = layers * (o_proj + o_update);
    let expected = base_weights + adapters - not_passed_on + head + attention + again;

    let (trees, _) = recorded(Arc::clone(&base), Checkpointing::None);
    assert_eq!(flops(&trees), expected as u64);

    let adapter_flops: u64 = trees
        .iter()
        .flat_map(|tree| tree.spans.iter().enumerate().map(move |span| (tree, span)))
        .map(|(tree, (index, span))| {
            let alone = tree
                .around(index)
                .any(|span| span.range == Range::Module(Module::Adapters));
            if alone {
                span.work.flops
            } else {
                span.work.adapter_flops
            }
        })
        .sum();
    let expected = adapters - 2 * TOKENS * 3 * RANK * hidden + layers * o_update;
    assert_eq!(adapter_flops, expected as u64);
}

#[test]
fn checkpointing_adds_recomputation_and_nothing_else() {
    let base = base("ref_llama", Precision::Fp32);
    let (plain, _) = recorded(Arc::clone(&base), Checkpointing::None);
    let (full, _) = recorded(base, Checkpointing::Full);
    let recomputed = |trees: &[SpanTree]| -> u64 {
        let spans = trees
            .iter()
            .flat_map(|tree| tree.spans.iter().enumerate().map(move |span| (tree, span)));
        let again = spans.filter(|(tree, (index, _))| {
            tree.around(*index)
                .any(|span| span.range == Range::Phase(StepPhase::Recompute))
        });
        again.map(|(_, (_, span))| span.work.flops).sum()
    };
    assert!(recomputed(&full) > 4 * recomputed(&plain));
    assert_eq!(flops(&full) - recomputed(&full), flops(&plain) - recomputed(&plain));
}

#[test]
fn every_family_reports_phases_layers_and_products() {
    for reference in ["ref_gemma2", "ref_qwen3", "ref_phi3", "ref_mistral"] {
        let base = base(reference, Precision::Fp32);
        let layers = base.architecture().layers.len();
        let (trees, _) = recorded(base, Checkpointing::EVERY_SECOND);
        let spans: Vec<_> = trees.iter().flat_map(|tree| &tree.spans).collect();
        for phase in [
            StepPhase::HostToDevice,
            StepPhase::Forward,
            StepPhase::Backward,
            StepPhase::Recompute,
            StepPhase::Optimizer,
        ] {
            assert!(
                spans.iter().any(|span| span.range == Range::Phase(phase)),
                "{reference}: {phase:?}"
            );
        }
        for layer in 0..layers {
            let module = Range::Layer(layer as u16);
            // Forward and backward.
            assert_eq!(
                spans.iter().filter(|span| span.range == module).count(),
                2,
                "{reference}: layer {layer}"
            );
        }
        let products = spans.iter().filter(|span| span.work.flops > 0);
        assert!(
            products.clone().count() > 0 && products.clone().all(|span| span.work.bytes > 0),
            "{reference}"
        );
    }
}

#[test]
fn a_recorded_step_computes_the_same() {
    let base = base("ref_llama", Precision::Fp32);
    let mut trainer = Trainer::new(Arc::clone(&base), &recipe(Checkpointing::None), 10).unwrap();
    let unrecorded = trainer.step(&batch()).unwrap().loss;
    let (_, loss) = recorded(base, Checkpointing::None);
    assert_eq!(loss.to_bits(), unrecorded.to_bits());
}

#[test]
fn quantized_weights_are_told_by_their_storage() {
    let folder = crate::golden::folder("ref_llama").join("model");
    let base = BaseModel::load(&folder, Precision::Nf4, &Device::Cpu).unwrap();
    let (trees, _) = recorded(Arc::new(base), Checkpointing::None);
    let spans = trees.iter().flat_map(|tree| &tree.spans);
    let coded: Vec<_> = spans.filter(|span| span.work.storage == "nf4").collect();
    assert!(!coded.is_empty());
    // A quarter of a byte less than in bf16: the codes and their constants.
    let bytes = |span: &&&peft_tune_engine::span::SpanRecord| span.work.bytes;
    assert!(coded.iter().map(|span| bytes(&span)).all(|bytes| bytes > 0));
}
