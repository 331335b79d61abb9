//! Bytes that a layer saves, against those that PyTorch saves of transformers' and PEFT's own.

use super::super::behaviour::{Number, StackBehaviour};
use super::super::heap::Heap;
use super::super::role::ROLES;
use super::super::setting::{StackSetting, Trains};
use super::super::shape::ModelShape;
use super::super::weight_form::WeightForm;
use super::*;

const ATTENTION: [Role; 4] = [Role::Query, Role::Key, Role::Value, Role::Output];

struct Case {
    name: &'static str,
    attention: AttentionForm,
    loads: Number,
    autocast: bool,
    /// `None` trains everything.
    targets: Option<&'static [Role]>,
    has_dropout: bool,
    dora: bool,
    kv_heads: u64,
    /// Bytes that one more layer saves, as `tests/golden/stack_saved.py` prints them.
    saved: u64,
}

fn model(case: &Case, is_host: bool) -> Model {
    let mut setting = StackSetting::new(&StackBehaviour::PLAIN, WeightForm::Numbers);
    setting.attention = case.attention;
    setting.dora = case.dora;
    (setting.loads, setting.autocast) = (case.loads, case.autocast);
    if case.loads == Number::F32 && !case.autocast {
        setting.computes = Number::F32;
    }
    setting.trains = match case.targets {
        None => Trains::Everything,
        Some(targets) => Trains::Adapters {
            rank: 4,
            targets: targets.to_vec(),
            has_dropout: case.has_dropout,
            whole_embeddings: false,
        },
    };
    (setting.micro_batch, setting.sequence_length) = (2, 32);
    let config = format!(
        r#"{{"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 8,
                "num_key_value_heads": {}, "intermediate_size": 192, "vocab_size": 512}}"#,
        case.kv_heads
    );
    Model {
        shape: ModelShape::from_json("config.json", &serde_json::from_str(&config).unwrap()).unwrap(),
        setting,
        repeats_heads: false,
        is_wide: false,
        is_host,
        rows: 2,
    }
}

/// Bytes that a layer's nodes hold, without what the stream before it holds.
fn saved(model: &Model) -> u64 {
    let after = |layers: usize| {
        let mut tape = Tape::new(Heap::new(None));
        let mut stream = model.embedded(&mut tape);
        for index in 0..layers {
            stream = model.layer(&mut tape, index, stream);
        }
        tape.saved_bytes()
    };
    after(2) - after(1)
}

#[test]
fn a_layer_saves_what_transformers_and_peft_save_of_it() {
    let half = Case {
        name: "",
        attention: AttentionForm::Eager,
        loads: Number::Half,
        autocast: false,
        targets: Some(&ATTENTION),
        has_dropout: false,
        dora: false,
        kv_heads: 8,
        saved: 0,
    };
    let cases = [
        Case {
            name: "bf16 qkvo eager",
            saved: 299_520,
            ..half
        },
        Case {
            name: "bf16 all eager gqa",
            targets: Some(&ROLES),
            kv_heads: 4,
            saved: 384_512,
            ..half
        },
        Case {
            name: "bf16 all eager gqa dropout",
            targets: Some(&ROLES),
            has_dropout: true,
            kv_heads: 4,
            saved: 531_968,
            ..half
        },
        Case {
            name: "bf16 autocast all eager",
            targets: Some(&ROLES),
            autocast: true,
            saved: 317_440,
            ..half
        },
        Case {
            name: "fp32 autocast all eager",
            targets: Some(&ROLES),
            loads: Number::F32,
            autocast: true,
            saved: 423_936,
            ..half
        },
        Case {
            name: "fp32 all sdpa",
            attention: AttentionForm::Sdpa,
            loads: Number::F32,
            targets: Some(&ROLES),
            saved: 337_408,
            ..half
        },
        Case {
            name: "bf16 qkvo sdpa",
            attention: AttentionForm::Sdpa,
            saved: 211_456,
            ..half
        },
        Case {
            name: "bf16 full eager",
            targets: None,
            saved: 295_424,
            ..half
        },
        Case {
            name: "fp32 all sdpa dora",
            attention: AttentionForm::Sdpa,
            loads: Number::F32,
            targets: Some(&ROLES),
            dora: true,
            saved: 706_304,
            ..half
        },
        Case {
            name: "bf16 qkvo eager dora",
            dora: true,
            saved: 400_896,
            ..half
        },
        Case {
            name: "bf16 all eager gqa dora",
            targets: Some(&ROLES),
            dora: true,
            kv_heads: 4,
            saved: 637_952,
            ..half
        },
        Case {
            name: "bf16 all eager gqa dora dropout",
            targets: Some(&ROLES),
            has_dropout: true,
            dora: true,
            kv_heads: 4,
            saved: 1_063_936,
            ..half
        },
        Case {
            name: "bf16 autocast all eager dora",
            targets: Some(&ROLES),
            autocast: true,
            dora: true,
            saved: 506_112,
            ..half
        },
        Case {
            name: "bf16 autocast all eager dora dropout",
            targets: Some(&ROLES),
            autocast: true,
            has_dropout: true,
            dora: true,
            saved: 760_064,
            ..half
        },
        Case {
            name: "fp32 autocast all eager dora",
            targets: Some(&ROLES),
            loads: Number::F32,
            autocast: true,
            dora: true,
            saved: 612_608,
            ..half
        },
    ];
    for case in &cases {
        assert_eq!(saved(&model(case, true)), case.saved, "{}", case.name);
        // A processor's dropout keeps its mask in the input's dtype, a GPU's one byte for each element.
        let masks = if case.has_dropout { 36_864 * 3 } else { 0 };
        assert_eq!(saved(&model(case, false)), case.saved - masks, "{}", case.name);
    }
}
