//! Costs of a step part by part: they add up to what is predicted of it.

use std::path::Path;

use peft_tune_core::architecture::Architecture;
use peft_tune_core::predict::{
    Machine, MemoryCategory, OpKind, PartCosts, Predictor, Setting, StepCosts, StepPart, Workload, device,
};
use peft_tune_core::recipe::{
    ActivationQuantization, AdapterSettings, Checkpointing, DataSettings, OptimizerOffload, Precision, Recipe, Sharding,
};

fn on_an_a100(family: &str, more: &str) -> Predictor {
    on("A100 80GB", family, more)
}

fn on(name: &str, family: &str, more: &str) -> Predictor {
    let text = format!(
        r#"{{"model_type": "{family}", "vocab_size": 65536, "hidden_size": 2048, "num_hidden_layers": 16,
            "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 8192,
            "max_position_embeddings": 32768{more}}}"#
    );
    let model = Architecture::from_json(Path::new("config.json"), &text).unwrap();
    crate::predictor(model, Machine::DataSheet(device(name).unwrap()))
}

fn recipe(change: impl FnOnce(&mut Recipe)) -> Recipe {
    let mut recipe = Recipe::new("model", DataSettings::default());
    (recipe.batch.micro_batch, recipe.batch.gradient_accumulation) = (2, 3);
    recipe.batch.sequence_length = 512;
    recipe.adapter = Some(AdapterSettings::default());
    change(&mut recipe);
    recipe
}

#[test]
fn parts_add_up_to_the_prediction_of_the_step() {
    let recipes = [
        recipe(|_| ()),
        recipe(|recipe| recipe.gradient_checkpointing = Checkpointing::EVERY_SECOND),
        recipe(|recipe| {
            recipe.precision = Precision::Int8;
            recipe.activation_quantization = ActivationQuantization::from_name("int8_both").unwrap();
        }),
        recipe(|recipe| recipe.optimizer.offload = OptimizerOffload::Host),
        recipe(|recipe| recipe.batch.devices = 4),
        recipe(|recipe| (recipe.batch.devices, recipe.batch.sharding) = (2, Sharding::Full)),
    ];
    for (family, more) in [("llama", ""), ("lfm2", r#", "full_attn_idxs": [2, 5, 8]"#)] {
        let predictor = on_an_a100(family, more);
        for recipe in &recipes {
            let workload = Workload::full(2, 512);
            let setting = Setting {
                recipe,
                workload: &workload,
            };
            let costs = predictor.step_costs(&[setting]).unwrap();
            let (predicted, flops) = (predictor.predict(&setting).unwrap(), predictor.flops(&setting).unwrap());
            let near = |one: f64, other: f64| (one - other).abs() <= 1e-9 * other.abs();
            let of_kind = |kind| {
                let found = costs.kinds().into_iter().find(|one| one.kind == kind);
                found.map_or(0.0, |one| one.seconds)
            };
            for (kind, seconds) in OpKind::all().zip(predicted.seconds.parts()) {
                assert!(near(of_kind(kind), seconds), "{family} {kind:?}: {recipe:?}");
            }
            let computed: f64 = costs.kinds().iter().map(|one| one.flops).sum();
            assert!(
                near(computed * recipe.batch.devices as f64, flops.hardware),
                "{family}: {recipe:?}"
            );
            assert_eq!(costs.tokens, predicted.tokens);
            let layers = costs.parts.iter().filter(|one| one.part.layer().is_some());
            let passes: f64 = layers.map(|one| one.times).sum();
            assert_eq!(passes, 3.0 * 2.0 * 16.0, "{family}: {recipe:?}");
            let waits = costs.parts.iter().any(|one| one.part == StepPart::HostUpdate);
            assert_eq!(waits, !recipe.optimizer.offload.is_none());
        }
    }
}

/// Seconds of a part of a step.
fn seconds_of(costs: &StepCosts, part: StepPart) -> f64 {
    let of_part = costs.parts.iter().filter(|one| one.part == part);
    of_part.map(PartCosts::seconds).sum()
}

#[test]
fn gradients_are_added_up_over_the_link_of_the_device() {
    let workload = Workload::full(2, 512);
    // One way of NVLink 3 and of 16 lanes of PCI Express 4, of which collectives reach three quarters and 60%.
    for (name, bytes_per_s) in [("A100 80GB", 0.75 * 300e9), ("A100 80GB PCIe", 0.6 * 31.5077e9)] {
        let predictor = on(name, "llama", "");
        let of = |devices: usize| {
            let recipe = recipe(|recipe| recipe.batch.devices = devices);
            let setting = Setting {
                recipe: &recipe,
                workload: &workload,
            };
            (
                predictor.step_costs(&[setting]).unwrap(),
                predictor.predict(&setting).unwrap(),
            )
        };
        let ((alone, one), (costs, four)) = (of(1), of(4));
        assert_eq!((seconds_of(&alone, StepPart::Sum), one.link_s), (0.0, 0.0));
        // Each sends three quarters of the gradients, and then of their sums.
        let gradients = four.bytes.of(MemoryCategory::Gradients) as f64;
        let expected = 2.0 * 0.75 * gradients / bytes_per_s;
        let sum = seconds_of(&costs, StepPart::Sum);
        assert!((sum / expected - 1.0).abs() < 1e-4, "{name}: {sum} {expected}");
        assert!((four.link_s - sum).abs() < 1e-12, "{name}");
        let more = four.seconds.total() - one.seconds.total();
        assert!((more - sum).abs() < 1e-9, "{name}: {more} {sum}");
    }
}

/// The weights are read, and widened, once for all of them.
#[test]
fn small_trainings_take_less_time_together_than_in_turn() {
    let (predictor, workload) = (on_an_a100("llama", ""), Workload::full(1, 64));
    let recipe = recipe(|recipe| {
        recipe.precision = Precision::Nf4;
        recipe.batch.micro_batch = 1;
    });
    let setting = Setting {
        recipe: &recipe,
        workload: &workload,
    };
    let costs = |trainings| predictor.step_costs(&vec![setting; trainings]).unwrap();
    let (one, four) = (costs(1), costs(4));
    assert!(four.seconds() < 0.7 * 4.0 * one.seconds());
    assert_eq!(four.tokens, 4.0 * one.tokens);
    let flops = |costs: &peft_tune_core::predict::StepCosts| costs.kinds().iter().map(|one| one.flops).sum::<f64>();
    assert!((flops(&four) / (4.0 * flops(&one)) - 1.0).abs() < 1e-9);
}
