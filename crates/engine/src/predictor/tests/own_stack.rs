//! The engine as a stack among others.

use peft_tune_core::architecture::Architecture;
use peft_tune_core::predict::device;
use peft_tune_core::predict::stack::{OwnEngine, StackDevice};
use peft_tune_core::recipe::{DataSettings, Recipe};

fn engine(device_name: Option<&str>) -> OwnEngine {
    let folder = std::env::temp_dir().join(format!("own-engine-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("config.json");
    let config = r#"{"model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32,
        "num_key_value_heads": 8, "intermediate_size": 8192, "vocab_size": 128256, "tie_word_embeddings": true,
        "max_position_embeddings": 131072, "rms_norm_eps": 1e-5}"#;
    std::fs::write(&path, config).unwrap();
    let device = device_name.map(|name| StackDevice {
        sheet: device(name).unwrap(),
    });
    let architecture = Architecture::from_config(&path).unwrap();
    OwnEngine::new(crate::predictor(architecture, OwnEngine::machine(device)), device)
}

fn recipe() -> Recipe {
    let mut recipe = Recipe::new("model", DataSettings::default());
    (recipe.batch.micro_batch, recipe.batch.gradient_accumulation) = (8, 2);
    recipe
}

#[test]
fn components_are_the_peak_and_one_row_more_than_the_largest_does_not_surely_fit() {
    let engine = engine(Some("T4"));
    let predicted = engine.predict(&recipe()).unwrap();
    let components: u64 = predicted.memory.components.iter().map(|(_, bytes)| bytes).sum();
    assert_eq!(components, predicted.memory.tensors_bytes);
    assert!(predicted.tokens_per_s.is_some_and(|speed| speed > 0.0));
    let limits = engine.limits(&recipe());
    let rows = limits.largest_micro_batch as usize;
    assert!(rows > 0 && limits.longest_sequence > 0, "{limits:?}");
    let verdict = |rows| {
        let mut recipe = recipe();
        recipe.batch.micro_batch = rows;
        engine.predict(&recipe).unwrap().verdict.unwrap()
    };
    assert!(verdict(rows).fit.is_fit() && !verdict(rows + 1).fit.is_fit());
    assert!(verdict(rows).unproven.is_some(), "no real GPU was compared");
}

#[test]
fn levers_save_what_they_say_and_keep_the_global_batch() {
    let engine = engine(None);
    let now = engine.predict(&recipe()).unwrap();
    assert_eq!((now.verdict, now.tokens_per_s), (None, None));
    let levers = engine.levers(&recipe()).unwrap();
    assert!(levers.len() > 3, "{levers:?}");
    for (name, changed) in OwnEngine::changes(&recipe()) {
        let then = engine.predict(&changed).unwrap().process_bytes;
        let told = levers.iter().find(|lever| lever.name == name);
        let saved = now.process_bytes.saturating_sub(then);
        assert_eq!(told.map_or(0, |lever| lever.saves_bytes), saved, "{name}");
        let rows = changed.batch.global_batch();
        assert_eq!(rows, recipe().batch.global_batch(), "{name}");
    }
}
