//! Costs of updates on the host beside a GPU.

use std::path::Path;

use peft_tune_core::architecture::Architecture;
use peft_tune_core::predict::{HostRates, Machine, MemoryCategory, Prediction, Predictor, Setting, Workload, device};
use peft_tune_core::recipe::{AdapterSettings, DataSettings, OptimizerKind, OptimizerOffload, Precision, Recipe};

fn predictor() -> Predictor {
    let config = r#"{"model_type": "llama", "hidden_size": 576, "num_hidden_layers": 30, "num_attention_heads": 9,
        "num_key_value_heads": 3, "intermediate_size": 1536, "vocab_size": 49152, "tie_word_embeddings": true,
        "max_position_embeddings": 8192, "rms_norm_eps": 1e-5}"#;
    let architecture = Architecture::from_json(Path::new("config.json"), config).unwrap();
    crate::predictor(architecture, Machine::DataSheet(device("H100 SXM").unwrap()))
}

/// All parameters of a model of 135M.
fn recipe(kind: OptimizerKind, offload: OptimizerOffload) -> Recipe {
    let mut recipe = Recipe::new("model", DataSettings::default());
    (recipe.adapter, recipe.precision) = (None, Precision::Bf16);
    (recipe.optimizer.kind, recipe.optimizer.offload) = (kind, offload);
    recipe.batch.micro_batch = 8;
    recipe
}

fn predict(predictor: &Predictor, recipe: &Recipe) -> Prediction {
    let workload = Workload::full(recipe.batch.micro_batch, recipe.batch.sequence_length);
    let setting = Setting {
        recipe,
        workload: &workload,
    };
    predictor.predict(&setting).unwrap()
}

#[test]
fn a_gpu_is_rid_of_the_states_and_the_host_has_them_with_values_and_gradients() {
    let predictor = predictor();
    for kind in OptimizerKind::ALL.into_iter().filter(|kind| !kind.is_paged()) {
        let [device, host] =
            [OptimizerOffload::None, OptimizerOffload::Host].map(|offload| predict(&predictor, &recipe(kind, offload)));
        let states = device.bytes.of(MemoryCategory::OptimizerState);
        assert!(
            states > 0 && host.bytes.of(MemoryCategory::OptimizerState) == 0,
            "{kind:?}"
        );
        // What the update itself takes for a moment is the host's as well.
        assert!(device.peak_bytes() - host.peak_bytes() >= states, "{kind:?}");
        let values = device.bytes.of(MemoryCategory::Adapters);
        assert_eq!(device.host_bytes, 0);
        match kind {
            OptimizerKind::Muon => assert!(host.host_bytes > states + 2 * values),
            _ => assert_eq!(host.host_bytes, states + 2 * values, "{kind:?}"),
        }
    }
    let paged = predict(&predictor, &recipe(OptimizerKind::PagedAdamW, OptimizerOffload::None));
    let unpaged = predict(&predictor, &recipe(OptimizerKind::AdamW, OptimizerOffload::None));
    assert_eq!(paged.host_bytes, unpaged.bytes.of(MemoryCategory::OptimizerState));
}

#[test]
fn what_the_backward_pass_hides_costs_nothing() {
    let seconds = |predictor: &Predictor, change: fn(&mut Recipe)| {
        let mut one = recipe(OptimizerKind::AdamW, OptimizerOffload::Host);
        change(&mut one);
        predict(predictor, &one).seconds.total()
    };
    let predictor = predictor();
    let waits = seconds(&predictor, |_| {});
    let follows = seconds(&predictor, |recipe| recipe.optimizer.max_grad_norm = None);
    let device = seconds(&predictor, |recipe| recipe.optimizer.offload = OptimizerOffload::None);
    assert!(device < follows && follows < waits, "{device} {follows} {waits}");
    // 28 bytes of an element's update and 8 of its copies, at 100 GB/s, and the first and last copies of a part.
    let elements = 134_515_008.0;
    let update = elements * 36.0 / 1e11;
    assert!(
        (update..1.2 * update).contains(&(waits - device)),
        "{} {update}",
        waits - device
    );
    // A faster host, and a host without an end.
    let faster = |memory_bytes_per_s| {
        let rates = HostRates {
            memory_bytes_per_s,
            ..HostRates::USUAL
        };
        seconds(&predictor.clone().with_host(rates), |recipe| {
            recipe.optimizer.max_grad_norm = None
        })
    };
    assert!(faster(4e11) < follows);
    // Whatever the host: the embedding comes and goes behind the pass, at 50 GB/s, and the layers before it in part.
    let (embedding, all) = (2.0 * 4.0 * 49_152.0 * 576.0 / 5e10, 2.0 * 4.0 * elements / 5e10);
    let left = faster(f64::INFINITY) - device;
    assert!((embedding..all).contains(&left), "{left} {embedding} {all}");
}

#[test]
fn updates_of_trainings_together_queue_behind_one_another_in_any_order() {
    let predictor = predictor();
    let one = |rank: u32, offload| {
        let mut one = recipe(OptimizerKind::AdamW, offload);
        one.adapter = Some(AdapterSettings {
            rank: rank as usize,
            ..AdapterSettings::default()
        });
        one
    };
    let wait_and_update = |recipes: &[&Recipe]| {
        let workload = Workload::full(8, recipes[0].batch.sequence_length);
        let settings = recipes.iter().map(|recipe| Setting {
            recipe,
            workload: &workload,
        });
        let costs = predictor.step_costs(&settings.collect::<Vec<_>>()).unwrap();
        let part = |name: &str| costs.parts.iter().find(|part| part.part.to_string() == name);
        let update = part("update").unwrap();
        let ops: f64 = update.kinds.iter().map(|kind| kind.ops).sum();
        (
            part("wait for updates on the host").map_or(0.0, |part| part.seconds()),
            ops,
        )
    };
    let (host, device) = (OptimizerOffload::Host, OptimizerOffload::None);
    let (wide, narrow, here) = (one(64, host), one(8, host), one(64, device));
    let (alone, norm) = wait_and_update(&[&wide]);
    let (twice, norms) = wait_and_update(&[&wide, &wide]);
    assert!(
        alone > 0.0 && twice > 1.5 * alone && norms == 2.0 * norm,
        "{alone} {twice}"
    );
    let [(first, _), (second, _)] = [[&wide, &narrow], [&narrow, &wide]].map(|pair| wait_and_update(&pair));
    assert!(first > alone && (first / second - 1.0).abs() < 0.05, "{first} {second}");
    // Who updates on the device does so beside one who does not.
    let (_, updates) = wait_and_update(&[&here]);
    for pair in [[&wide, &here], [&here, &wide]] {
        let (waits, ops) = wait_and_update(&pair);
        assert!(
            (waits / alone - 1.0).abs() < 0.05 && ops == norm + updates,
            "{waits} {alone} {ops}"
        );
    }
}
