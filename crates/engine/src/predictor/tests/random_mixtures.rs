//! Predictions of random recipes on random mixtures of experts.

use std::path::Path;

use proptest::prelude::*;
use proptest::sample::select;

use crate::model::PaperModel;

use super::random_recipes::{architecture, gpus, means, predicted, processors, recipes, streams};
use peft_tune_core::architecture::Architecture;
use peft_tune_core::plan::{LayerKeep, ModelPlan, Vectors};
use peft_tune_core::predict::{ExpertLoad, Host, Machine, Segment, Setting, StepModel, StreamShape, Workload, device};
use peft_tune_core::recipe::{AdapterSettings, DataSettings, Precision, Recipe, TargetModules, TargetPreset};

/// Families whose layers have experts, and what their configurations have beside the sizes of any.
const FAMILIES: &[(&str, &str)] = &[
    ("qwen3_moe", r#", "norm_topk_prob": true"#),
    ("qwen3_moe", r#", "mlp_only_layers": [1]"#),
    ("qwen2_moe", ""),
    ("olmoe", ""),
    (
        "glm4_moe",
        r#", "first_k_dense_replace": 1, "use_qk_norm": true, "attention_bias": true, "routed_scaling_factor": 1.5"#,
    ),
    ("glm4_moe", r#", "n_shared_experts": 0"#),
    ("gpt_oss", r#", "sliding_window": 100"#),
    (
        "deepseek_v3",
        r#", "q_lora_rank": 48, "kv_lora_rank": 32, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 48,
        "first_k_dense_replace": 1, "n_group": 2, "topk_group": 1"#,
    ),
    (
        "deepseek_v2",
        r#", "q_lora_rank": null, "kv_lora_rank": 32, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 48,
        "first_k_dense_replace": 2, "scoring_func": "softmax""#,
    ),
    (
        "glm4_moe_lite",
        r#", "q_lora_rank": 48, "kv_lora_rank": 32, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 48,
        "mlp_layer_types": ["dense", "sparse", "sparse"]"#,
    ),
    (
        "llama4_text",
        r#", "moe_layers": [0, 2], "intermediate_size_mlp": 160, "no_rope_layers": [1, 1, 0],
        "attention_chunk_size": 90"#,
    ),
    (
        "gemma4_text",
        r#", "enable_moe_block": true, "global_head_dim": 64, "sliding_window": 100, "final_logit_softcapping": 30.0,
        "hidden_size_per_layer_input": 0, "attention_k_eq_v": true, "num_global_key_value_heads": 1"#,
    ),
];

/// Parameters of a mixture that get adapters by their names.
#[derive(Clone, Copy, Debug)]
enum OnExperts {
    /// Parameters that names of modules stand for, and no others.
    None,
    GateUp,
    Down,
    Both,
    Router,
}

fn mixtures() -> impl Strategy<Value = (String, String)> {
    let sizes = (select(vec![64, 128, 192]), select(vec![2, 4]), select(vec![16, 32, 64]));
    let experts = (select(vec![4, 8, 24]), select(vec![1, 2, 4]), select(vec![16, 48, 160]));
    let of_family = (select(FAMILIES.to_vec()), sizes, experts);
    (of_family, select(vec![512, 40_000])).prop_map(|((family, (hidden, heads, width), experts), vocabulary)| {
        let (count, chosen, inner) = experts;
        // With groups the best of two are chosen from.
        let chosen = chosen.min(count / 2);
        let more = format!(
            r#"{}, "num_experts": {count}, "n_routed_experts": {count}, "num_local_experts": {count},
            "num_experts_per_tok": {chosen}, "top_k_experts": {chosen}, "moe_intermediate_size": {inner},
            "shared_expert_intermediate_size": {}{}"#,
            family.1,
            inner + 16,
            match family.1.contains("n_shared_experts") {
                true => "",
                false => r#", "n_shared_experts": 2"#,
            },
        );
        architecture((family.0, more.as_str()), [hidden, heads, width], vocabulary)
    })
}

/// The recipe with adapters on these parameters, without what goes with modules only.
fn with_parameters(mut recipe: Recipe, architecture: &Architecture, on: OnExperts) -> Recipe {
    let (Some(adapter), Some(experts)) = (&mut recipe.adapter, &architecture.experts) else {
        return recipe;
    };
    let (gate_up, down) = (experts.names.gate_up.to_owned(), experts.names.down.to_owned());
    adapter.target_parameters = match on {
        OnExperts::None => Vec::new(),
        OnExperts::GateUp => vec![gate_up],
        OnExperts::Down => vec![down],
        OnExperts::Both => vec![gate_up, down],
        OnExperts::Router => vec![format!("{}.weight", experts.names.router)],
    };
    let names_are_experts =
        experts.names.modules_are_experts && adapter.target_modules != TargetModules::Preset(TargetPreset::Attention);
    if names_are_experts || !adapter.target_parameters.is_empty() {
        (adapter.dropout, adapter.layers_to_transform) = (0.0, None);
    }
    recipe
}

fn on_experts() -> impl Strategy<Value = OnExperts> {
    select(vec![
        OnExperts::None,
        OnExperts::GateUp,
        OnExperts::Down,
        OnExperts::Both,
        OnExperts::Router,
    ])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn whatever_has_a_place_in_a_mixture_can_be_predicted(
        (family, json) in mixtures(),
        (recipe, on) in (recipes(), on_experts()),
        host in prop_oneof![4 => processors(), 1 => gpus()],
        stream in prop_oneof![streams(), means()],
    ) {
        let architecture = Architecture::from_json(Path::new("config.json"), &json).unwrap();
        let recipe = with_parameters(recipe, &architecture, on);
        let found = predicted(&architecture, recipe, Machine::Unmeasured(host), [&stream, &stream])?;
        prop_assert!(found.is_none_or(|found| found.peak_bytes() > 0), "{}", family);
    }
}

fn mixture_of_sixteen() -> (Architecture, Recipe) {
    let sizes = r#", "num_experts": 16, "num_experts_per_tok": 2, "moe_intermediate_size": 48"#;
    let (_, json) = architecture(("qwen3_moe", sizes), [128, 4, 32], 512);
    let mut recipe = Recipe::new("random", DataSettings::default());
    recipe.adapter = Some(AdapterSettings::default());
    let architecture = Architecture::from_json(Path::new("config.json"), &json).unwrap();
    (architecture, recipe)
}

#[test]
fn how_tokens_lie_on_experts_decides_the_scratch() {
    let (architecture, recipe) = mixture_of_sixteen();
    let stream = StreamShape::full(2, 64);
    let scratch = |load, (precision, vectors): (Precision, Vectors)| {
        let recipe = Recipe {
            precision,
            ..recipe.clone()
        };
        let host = Host {
            threads: 4,
            vectors,
            device_bytes: 0,
        };
        let plan = ModelPlan::of_recipe(&architecture, &recipe).unwrap();
        let model = PaperModel::new(&plan, &recipe, host).unwrap();
        let forward = Segment::Forward {
            layer: 0,
            keep: LayerKeep::Saved,
        };
        model
            .on(&[&stream], load)
            .unwrap()
            .trace(forward)
            .unwrap()
            .scratch
            .bytes(4)
    };
    // Of sixteen experts none has more than a thread's share of the rows, of two both have.
    let differs = |on: &(Precision, Vectors)| scratch(ExpertLoad::Even, *on) != scratch(ExpertLoad::Crowded, *on);
    let all = [Precision::Fp32, Precision::Bf16, Precision::Nf4]
        .map(|precision| [Vectors::Amx, Vectors::Avx512, Vectors::Other].map(|vectors| (precision, vectors)));
    assert!(all.as_flattened().iter().any(differs));
}

#[test]
fn how_tokens_lie_on_experts_decides_the_seconds() {
    let (architecture, recipe) = mixture_of_sixteen();
    let workload = Workload::full(2, 64);
    let setting = Setting {
        recipe: &recipe,
        workload: &workload,
    };
    let predictor = crate::predictor(architecture, Machine::DataSheet(device("A100 80GB").unwrap()));
    let imbalance = predictor.imbalance(&setting).unwrap().unwrap();
    assert!(imbalance.zipf != 1.0 && imbalance.crowded != 1.0, "{imbalance:?}");
}
