//! Adapter directories that PEFT wrote (`tests/golden/make_refs.py`, `make_variants.py`), and damaged ones.

use std::collections::BTreeMap;
use std::path::Path;

use candle_core::{Device, Tensor};
use peft_tune_core::architecture::Architecture;
use peft_tune_core::plan::{AdapterPlan, BaseShape, LinearShape, ParameterLayout};
use peft_tune_core::recipe::{AdapterInit, AdapterSettings, TargetModules};
use peft_tune_engine::Parameters;
use peft_tune_engine::adapter::{SavedAdapter, fill, fill_pissa, write};
use proptest::prelude::*;

use crate::golden::{Sample, folder as golden, tensors};

/// The shape of the model in `tests/golden/ref_llama/model`.
fn llama() -> BaseShape {
    BaseShape::new(&Architecture::from_config(&golden("ref_llama/model/config.json")).unwrap())
}

fn parameters(plan: &AdapterPlan) -> Parameters {
    let mut layout = ParameterLayout::default();
    plan.push_slots(&mut layout);
    Parameters::zeros(layout, &Device::Cpu).unwrap()
}

fn bits(tensor: &Tensor) -> Vec<u32> {
    let values: Vec<f32> = tensor.flatten_all().unwrap().to_vec1().unwrap();
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn what_peft_wrote_fits_the_plan_of_its_settings_bit_for_bit() {
    for name in [
        "ref_llama/adapter_init",
        "ref_variants/dora",
        "ref_variants/layers_to_transform",
        "ref_variants/lora_bias",
        "ref_variants/modules_to_save_norm",
        "ref_variants/pissa",
        "ref_variants/rank_pattern",
    ] {
        let saved = SavedAdapter::read(&golden(name)).unwrap();
        let plan = AdapterPlan::new(&saved.config.settings, &llama()).unwrap();
        let parameters = parameters(&plan);
        saved
            .load_into(&parameters)
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        let file = golden(name).join("adapter_model.safetensors");
        let expected = candle_core::safetensors::load(file, &Device::Cpu).unwrap();
        assert_eq!(expected.len(), parameters.layout.slots().len(), "{name}");
        for (index, slot) in parameters.layout.slots().iter().enumerate() {
            assert_eq!(
                bits(&parameters.value(index).unwrap()),
                bits(&expected[&slot.name]),
                "{name} {}",
                slot.name
            );
        }
    }
}

#[test]
fn biases_and_targets_of_an_expression_fit_their_plan() {
    // The shape of the model in `tests/golden/peft_bias/make.py`.
    let mut base = BaseShape {
        layers: 2,
        ..Default::default()
    };
    for layer in 0..2 {
        for (name, outputs, bias) in [
            ("q_proj", 16, true),
            ("k_proj", 8, true),
            ("v_proj", 8, true),
            ("o_proj", 16, false),
        ] {
            base.linears.push(LinearShape {
                name: format!("model.layers.{layer}.self_attn.{name}"),
                inputs: 16,
                outputs,
                bias,
                ..LinearShape::default()
            });
        }
    }
    for (name, slots) in [("all", 10), ("lora_only", 10), ("expression", 12)] {
        let saved = SavedAdapter::read(&golden("peft_bias").join(name)).unwrap();
        let plan = AdapterPlan::new(&saved.config.settings, &base).unwrap();
        let parameters = parameters(&plan);
        saved
            .load_into(&parameters)
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(parameters.layout.slots().len(), slots, "{name}");
        for (index, slot) in parameters.layout.slots().iter().enumerate() {
            let expected = saved.tensor(&slot.name).unwrap();
            assert_eq!(
                bits(&parameters.value(index).unwrap()),
                bits(&expected),
                "{name} {}",
                slot.name
            );
        }
    }
}

#[test]
fn pissa_starts_where_pefts_does() {
    let saved = SavedAdapter::read(&golden("ref_variants/pissa")).unwrap();
    let plan = AdapterPlan::new(&saved.config.settings, &llama()).unwrap();
    let mut layout = ParameterLayout::default();
    let slots = plan.push_slots(&mut layout);
    let parameters = Parameters::zeros(layout, &Device::Cpu).unwrap();
    let model = tensors(&golden("ref_llama/model/model.safetensors"));
    let expected = Sample::read(&golden("ref_variants/pissa/residual_base.safetensors"));
    let residuals = fill_pissa(&plan, &slots, &parameters, |name| {
        Ok(model[&format!("{name}.weight")].clone())
    })
    .unwrap();
    let largest = |tensor: Tensor| tensor.abs().unwrap().max_all().unwrap().to_scalar::<f32>().unwrap();
    for ((linear, residual), slots) in plan.linears.iter().zip(&residuals).zip(&slots.linears) {
        let name = &linear.linear.name;
        let expected = &expected[&format!("base_model.model.{name}.base_layer.weight")];
        // torch decomposes in F32, whose error grows where the singular values at the cut are close.
        let error = expected.error_of(residual);
        assert!(error < 1e-4, "{name}: {error:e}");
        for (slot, ending, axis) in [(slots.lora_a, "lora_A", 0), (slots.lora_b, "lora_B", 1)] {
            let found = parameters.value(slot).unwrap();
            let expected = saved
                .tensor(&format!("base_model.model.{name}.{ending}.weight"))
                .unwrap();
            // Each component is right up to its sign.
            for component in 0..linear.rank {
                let pick = |tensor: &Tensor| tensor.narrow(axis, component, 1).unwrap();
                let (found, expected) = (pick(&found), pick(&expected));
                let error = largest((&found - &expected).unwrap()).min(largest((&found + &expected).unwrap()));
                assert!(
                    error < 1e-4 * largest(expected),
                    "{name} {ending} {component}: {error:e}"
                );
            }
        }
    }
}

#[test]
fn settings_come_back_from_pefts_configuration() {
    let settings = |name: &str| SavedAdapter::read(&golden(name)).unwrap().config.settings;
    let plain = settings("ref_llama/adapter_init");
    assert_eq!(
        (plain.rank, plain.alpha, plain.dora, plain.rslora),
        (8, 16.0, false, false)
    );
    assert_eq!(settings("ref_variants/pissa").init, AdapterInit::Pissa);
    assert!(settings("ref_variants/dora").dora);
    assert!(settings("ref_variants/lora_bias").lora_bias);
    assert_eq!(
        settings("ref_variants/layers_to_transform").layers_to_transform,
        Some(vec![1])
    );
    assert_eq!(settings("ref_variants/modules_to_save_norm").modules_to_save, ["norm"]);
    let pattern = settings("ref_variants/rank_pattern");
    assert_eq!(pattern.rank_pattern["layers.1.self_attn.q_proj"], 2);
    assert_eq!(pattern.alpha_pattern, BTreeMap::from([("down_proj".to_owned(), 32.0)]));
}

#[test]
fn the_configuration_has_the_fields_that_peft_writes() {
    let saved = SavedAdapter::read(&golden("ref_llama/adapter_init")).unwrap();
    let plan = AdapterPlan::new(&saved.config.settings, &llama()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &plan, Some("ref_llama/model"), &parameters(&plan)).unwrap();
    let read = |folder: &Path| -> serde_json::Value {
        let mut config: serde_json::Value =
            serde_json::from_str(&std::fs::read_to_string(folder.join("adapter_config.json")).unwrap()).unwrap();
        // PEFT writes a set: its order changes from run to run.
        let targets = config["target_modules"].as_array_mut().unwrap();
        targets.sort_by_key(|name| name.to_string());
        config
    };
    assert_eq!(read(folder.path()), read(&golden("ref_llama/adapter_init")));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn an_adapter_survives_its_directory(
        rank in 1usize..9,
        targets in proptest::sample::subsequence(vec!["q_proj", "v_proj", "down_proj"], 1..=3),
        flags in proptest::array::uniform3(any::<bool>()),
        seed in any::<u64>(),
    ) {
        let [dora, rslora, saves_norm] = flags;
        let settings = AdapterSettings {
            rank,
            alpha: 1.5 * rank as f64,
            dora,
            rslora,
            target_modules: TargetModules::Named(targets.iter().map(|&name| name.to_owned()).collect()),
            modules_to_save: saves_norm.then(|| "norm".to_owned()).into_iter().collect(),
            ..Default::default()
        };
        let plan = AdapterPlan::new(&settings, &llama()).unwrap();
        let mut layout = ParameterLayout::default();
        let slots = plan.push_slots(&mut layout);
        let before = Parameters::zeros(layout, &Device::Cpu).unwrap();
        fill(&plan, &slots, &before, seed).unwrap();
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), &plan, None, &before).unwrap();

        let saved = SavedAdapter::read(folder.path()).unwrap();
        let mut expected = settings;
        if let TargetModules::Named(names) = &mut expected.target_modules {
            names.sort();
        }
        prop_assert_eq!(&saved.config.settings, &expected);
        let after = parameters(&AdapterPlan::new(&saved.config.settings, &llama()).unwrap());
        saved.load_into(&after).unwrap();
        prop_assert_eq!(bits(&after.values), bits(&before.values));
    }

    #[test]
    fn a_damaged_tensor_file_is_an_error_and_never_a_panic(
        position in any::<prop::sample::Index>(),
        byte in any::<u8>(),
        cut in any::<bool>(),
    ) {
        let folder = copy_of("ref_variants/rank_pattern");
        let path = folder.path().join("adapter_model.safetensors");
        let mut bytes = std::fs::read(&path).unwrap();
        // The header is where damage can mislead; flips in the data only change values.
        let place = position.index(4096);
        if cut { bytes.truncate(place) } else { bytes[place] = byte }
        std::fs::write(&path, bytes).unwrap();
        if let Ok(saved) = SavedAdapter::read(folder.path()) {
            if let Ok(plan) = AdapterPlan::new(&saved.config.settings, &llama()) {
                let _ = saved.load_into(&parameters(&plan));
            }
        } else if cut {
            let message = SavedAdapter::read(folder.path()).unwrap_err().to_string();
            prop_assert!(message.contains("is not a valid safetensors file"), "{}", message);
        }
    }

    #[test]
    fn a_damaged_configuration_is_an_error_and_never_a_panic(position in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let folder = copy_of("ref_variants/rank_pattern");
        let path = folder.path().join("adapter_config.json");
        let mut bytes = std::fs::read(&path).unwrap();
        let place = position.index(bytes.len());
        bytes[place] = byte;
        std::fs::write(&path, bytes).unwrap();
        if let Ok(saved) = SavedAdapter::read(folder.path()) {
            let _ = AdapterPlan::new(&saved.config.settings, &llama());
        }
    }
}

fn copy_of(name: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for file in ["adapter_config.json", "adapter_model.safetensors"] {
        std::fs::copy(golden(name).join(file), folder.path().join(file)).unwrap();
    }
    folder
}

fn load_error(folder: &Path, base: &BaseShape) -> String {
    let load = || {
        let saved = SavedAdapter::read(folder)?;
        let plan = AdapterPlan::new(&saved.config.settings, base)?;
        saved.load_into(&parameters(&plan))
    };
    load().unwrap_err().to_string()
}

fn rewrite_tensors(folder: &Path, change: impl Fn(&mut std::collections::HashMap<String, Tensor>)) {
    let path = folder.join("adapter_model.safetensors");
    let mut tensors = candle_core::safetensors::load(&path, &Device::Cpu).unwrap();
    change(&mut tensors);
    candle_core::safetensors::save(&tensors, &path).unwrap();
}

#[test]
fn each_mismatch_is_one_clear_error() {
    let first = "base_model.model.model.layers.0.mlp.down_proj.lora_A.weight";
    let name = "ref_llama/adapter_init";

    let folder = copy_of(name);
    rewrite_tensors(folder.path(), |tensors| drop(tensors.remove(first)));
    assert!(load_error(folder.path(), &llama()).starts_with(&format!("tensor `{first}` is missing in")));

    let folder = copy_of(name);
    rewrite_tensors(folder.path(), |tensors| {
        let tensor = tensors[first].clone();
        tensors.insert("base_model.model.extra".into(), tensor);
    });
    assert!(load_error(folder.path(), &llama()).contains("`base_model.model.extra` in"));

    let folder = copy_of(name);
    rewrite_tensors(folder.path(), |tensors| {
        let tensor = tensors[first].narrow(0, 0, 4).unwrap().contiguous().unwrap();
        tensors.insert(first.into(), tensor);
    });
    let message = load_error(folder.path(), &llama());
    assert!(
        message.contains("has shape [4, 176]; this model and rank need [8, 176]"),
        "{message}"
    );

    let folder = copy_of(name);
    rewrite_tensors(folder.path(), |tensors| {
        let tensor = (tensors[first].clone() / 0.0).unwrap();
        tensors.insert(first.into(), tensor);
    });
    assert!(load_error(folder.path(), &llama()).contains("holds a value that is not finite"));

    let folder = copy_of(name);
    rewrite_tensors(folder.path(), |tensors| {
        let tensor = tensors[first].to_dtype(candle_core::DType::I64).unwrap();
        tensors.insert(first.into(), tensor);
    });
    assert!(load_error(folder.path(), &llama()).contains("has dtype I64; expected F32, BF16, F16 or F64"));

    let folder = copy_of(name);
    rewrite_tensors(folder.path(), |tensors| {
        tensors.retain(|name, _| name.contains("lora_B"))
    });
    assert!(load_error(folder.path(), &llama()).contains("holds no LoRA tensor"));

    let folder = copy_of(name);
    std::fs::remove_file(folder.path().join("adapter_config.json")).unwrap();
    assert!(load_error(folder.path(), &llama()).starts_with("cannot read "));

    let mut narrow = llama();
    narrow.linears.iter_mut().for_each(|linear| linear.inputs = 4);
    let message = load_error(copy_of(name).path(), &narrow);
    assert!(
        message.starts_with("rank 8 is above the smaller dimension"),
        "{message}"
    );
}
