//! FLOPs of models whose layers mix tokens in other ways than attention.

use std::path::Path;

use peft_tune_core::architecture::{Architecture, Mixer};
use peft_tune_core::predict::{Machine, Setting, Workload, device};
use peft_tune_core::recipe::{AdapterSettings, DataSettings, Recipe};

const SIZES: &str = r#""vocab_size": 65536, "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 12288, "max_position_embeddings": 32768"#;

#[test]
fn flops_are_those_of_the_linear_layers_of_attending_layers_and_of_states() {
    let tokens = 2048.0;
    for (family, more) in [
        ("lfm2", r#""full_attn_idxs": [2, 5, 8]"#),
        ("qwen3_5_text", r#""head_dim": 64"#),
    ] {
        let text = format!(r#"{{"model_type": "{family}", {SIZES}, {more}}}"#);
        let model = Architecture::from_json(Path::new("config.json"), &text).unwrap();
        let predictor = crate::predictor(model.clone(), Machine::DataSheet(device("A100 80GB").unwrap()));
        let mut recipe = Recipe::new("model", DataSettings::default());
        recipe.batch.micro_batch = 1;
        recipe.batch.sequence_length = 2048;
        recipe.adapter = Some(AdapterSettings {
            rank: 1,
            ..AdapterSettings::default()
        });
        let workload = Workload::full(1, 2048);
        let setting = Setting {
            recipe: &recipe,
            workload: &workload,
        };
        let flops = predictor.flops(&setting).unwrap();
        let count = model.parameter_count();
        let head = if model.tied_embeddings {
            count.embedding
        } else {
            count.lm_head
        };
        let of_mixer = |index: usize| match model.mixer(index) {
            Mixer::Attention => 4.0 * tokens * tokens / 2.0 * model.query_size(index) as f64,
            Mixer::Convolution(_) => 0.0,
            Mixer::DeltaRule(rule) => 6.0 * tokens * (rule.value_heads * rule.state()) as f64,
        };
        let expected = 2.0 * tokens * (count.linear + head) as f64 + (0..16).map(of_mixer).sum::<f64>();
        assert!((flops.forward / expected - 1.0).abs() < 0.01, "{family}: {flops:?}");
    }
}
