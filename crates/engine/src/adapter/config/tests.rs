//! Files of PEFT's configuration, read and written.

use super::*;
use peft_tune_core::plan::LinearShape;

fn adapted(names: &[&str]) -> Vec<AdaptedLinear> {
    let linear = |name: &&str| AdaptedLinear {
        linear: LinearShape {
            name: (*name).to_owned(),
            ..LinearShape::default()
        },
        module: (*name).to_owned(),
        by_parameter: false,
        joined: 1,
        rank: 1,
        alpha: 1.0,
        scaling: 1.0,
        parts: Vec::new(),
    };
    names.iter().map(linear).collect()
}

fn read(change: impl Fn(&mut Map<String, Value>)) -> Result<PeftConfig, AdapterError> {
    let config = PeftConfig {
        base_model: Some("base".into()),
        ties_embeddings: false,
        settings: AdapterSettings::default(),
    };
    let mut map: Map<String, Value> = serde_json::from_str(&config.to_json(&adapted(&["a.q_proj"]), None)).unwrap();
    change(&mut map);
    let modules = ["a.q_proj".to_owned()];
    PeftConfig::from_json(
        &Value::Object(map).to_string(),
        Path::new("adapter_config.json"),
        &modules,
    )
}

#[test]
fn what_is_written_is_read() {
    let settings = AdapterSettings {
        rank: 8,
        alpha: 12.5,
        dropout: 0.1,
        target_modules: TargetModules::Named(vec!["k_proj".into(), "q_proj".into()]),
        target_parameters: vec!["experts.down_proj".into()],
        rslora: true,
        dora: true,
        init: AdapterInit::Gaussian,
        bias: AdapterBias::LoraOnly,
        lora_bias: false,
        rank_pattern: BTreeMap::from([("k_proj".into(), 4)]),
        alpha_pattern: BTreeMap::from([("k_proj".into(), 3.0)]),
        layers_to_transform: Some(vec![0, 2]),
        modules_to_save: vec!["lm_head".into()],
        adapter_init: None,
    };
    let config = PeftConfig {
        base_model: None,
        ties_embeddings: true,
        settings,
    };
    let text = config.to_json(&[], None);
    let modules = ["layers.0.k_proj".to_owned(), "layers.0.q_proj".to_owned()];
    assert_eq!(
        PeftConfig::from_json(&text, Path::new("c.json"), &modules).unwrap(),
        config
    );
}

#[test]
fn a_preset_is_written_as_endings_and_alpha_as_a_whole_number() {
    let config = PeftConfig {
        base_model: None,
        ties_embeddings: false,
        settings: AdapterSettings::default(),
    };
    let text = config.to_json(
        &adapted(&[
            "model.layers.0.q_proj",
            "model.layers.1.q_proj",
            "model.layers.0.k_proj",
        ]),
        None,
    );
    assert!(text.contains("\"lora_alpha\": 32,"), "{text}");
    assert!(
        text.contains("\"target_modules\": [\n    \"k_proj\",\n    \"q_proj\"\n  ]"),
        "{text}"
    );
}

#[test]
fn within_a_multimodal_model_the_targets_are_an_expression() {
    let written = |layers_to_transform| -> Value {
        let settings = AdapterSettings {
            layers_to_transform,
            ..AdapterSettings::default()
        };
        let config = PeftConfig {
            base_model: None,
            ties_embeddings: false,
            settings,
        };
        let text = config.to_json(
            &adapted(&["model.layers.1.q_proj", "model.layers.1.k_proj"]),
            Some("model.language_model"),
        );
        serde_json::from_str(&text).unwrap()
    };
    assert_eq!(
        written(None)["target_modules"],
        r".*language_model\.(?:.*\.)?(?:k_proj|q_proj)"
    );
    let some = written(Some(vec![1]));
    assert_eq!(
        some["target_modules"],
        r".*language_model\.(?:.*\.)?layers\.(?:1)\.(?:.*\.)?(?:k_proj|q_proj)"
    );
    assert_eq!(some["layers_to_transform"], Value::Null);
}

#[test]
fn a_regular_expression_becomes_the_modules_that_have_tensors() {
    let config = read(|map| {
        map.insert("target_modules".into(), json!(".*attn.*"));
    });
    let targets = TargetModules::Named(vec!["a.q_proj".into()]);
    assert_eq!(config.unwrap().settings.target_modules, targets);
}

#[test]
fn features_without_a_counterpart_are_refused_by_name() {
    for (key, value) in [
        ("peft_type", json!("LOHA")),
        ("fan_in_fan_out", json!(true)),
        ("layer_replication", json!([[0, 4]])),
        ("init_lora_weights", json!("loftq")),
        ("r", json!(0)),
        ("r", json!("8")),
        ("bias", json!(3)),
        ("lora_dropout", json!(1.5)),
        ("ensure_weight_tying", json!("yes")),
    ] {
        let result = read(|map| {
            map.insert(key.into(), value.clone());
        });
        let message = result.unwrap_err().to_string();
        assert!(
            message.starts_with(&format!("key `{key}` in adapter_config.json is")),
            "{message}"
        );
    }
}
