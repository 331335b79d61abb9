//! Quantized weights against bitsandbytes (`tests/golden/quant/make.py`, `tests/golden/make_variants.py`).

use std::collections::{BTreeMap, HashMap};

use candle_core::{DType, Device, Tensor};
use half::bf16;
use peft_tune_kernels::quant::{Constants, DynamicMap, Int8, Nf4, Quantized, RawTensor};
use proptest::prelude::*;
use safetensors::SafeTensors;

use crate::golden::{Sample, folder as golden};

fn load(name: &str) -> HashMap<String, Tensor> {
    candle_core::safetensors::load(golden(name), &Device::Cpu).unwrap()
}

fn bits(tensor: &Tensor) -> Vec<u32> {
    let values: Vec<f32> = tensor
        .to_dtype(DType::F32)
        .unwrap()
        .flatten_all()
        .unwrap()
        .to_vec1()
        .unwrap();
    values.iter().map(|value| value.to_bits()).collect()
}

/// Fails with the first difference: whole tensors would fill the screen.
#[track_caller]
fn assert_same_bits(found: &Tensor, expected: &Tensor, name: &str) {
    let (found, expected) = (bits(found), bits(expected));
    assert_eq!(found.len(), expected.len(), "{name}");
    let different: Vec<_> = (0..found.len())
        .filter(|&index| found[index] != expected[index])
        .collect();
    if let Some(&first) = different.first() {
        let (found, expected) = (f32::from_bits(found[first]), f32::from_bits(expected[first]));
        panic!(
            "{name}: {} differ, first at {first}: {found:e} instead of {expected:e}",
            different.len()
        );
    }
}

fn codes(tensor: &Tensor) -> Vec<u8> {
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

/// The three weights of `ref_variants/nf4.safetensors` with the codes and constants that bitsandbytes made of them.
fn references() -> Vec<(String, Tensor, HashMap<String, Tensor>)> {
    let made = load("ref_variants/nf4.safetensors");
    let model = load("ref_llama/model/model.safetensors");
    [
        "model.layers.0.self_attn.q_proj.weight",
        "model.layers.0.mlp.down_proj.weight",
        "rand_300x70",
    ]
    .map(|name| {
        let weight = made
            .get(&format!("{name}.w"))
            .or_else(|| model.get(name))
            .unwrap()
            .clone();
        (name.to_owned(), weight, made.clone())
    })
    .into()
}

/// The values that these codes and constants stand for.
fn reference_values() -> BTreeMap<String, Sample> {
    Sample::read(&golden("ref_variants/nf4_values.safetensors"))
}

/// The reference of `make_variants.py` for this weight was widened with the wrong constants (`make_qlora.py` says why).
fn is_widened_right(name: &str) -> bool {
    !name.contains("down_proj")
}

#[test]
fn nf4_is_that_of_bitsandbytes_bit_for_bit() {
    let values = reference_values();
    for (name, weight, made) in &references() {
        let name = name.as_str();
        let quantized = Nf4::quantize(weight, false).unwrap();
        let (packed, Constants::Plain(absmax)) = quantized.parts() else {
            panic!("constants are plain")
        };
        assert_eq!(codes(packed), codes(&made[&format!("{name}.packed")]), "{name}");
        assert_same_bits(absmax, &made[&format!("{name}.absmax")], name);
        if is_widened_right(name) {
            values[&format!("{name}.deq")].assert_equal(&quantized.dequantize(DType::F32).unwrap(), name);
        }
        assert_eq!(quantized.bytes(), packed.elem_count() + 4 * absmax.elem_count());
    }
}

#[test]
fn double_quantization_is_that_of_bitsandbytes_bit_for_bit() {
    let values = reference_values();
    for (name, weight, made) in &references() {
        let name = name.as_str();
        let quantized = Nf4::quantize(weight, true).unwrap();
        let (
            _,
            Constants::Double {
                codes: found,
                nested,
                offset,
            },
        ) = quantized.parts()
        else {
            panic!("constants are quantized")
        };
        let of = |part: &str| &made[&format!("{name}.dq.{part}")];
        assert_eq!(bits(of("offset")), [offset.to_bits()], "{name}");
        assert_eq!(codes(found), codes(of("absmax_q")), "{name}");
        assert_same_bits(nested, of("absmax2"), name);
        if is_widened_right(name) {
            values[&format!("{name}.dq.deq")].assert_equal(&quantized.dequantize(DType::F32).unwrap(), name);
        }
    }
}

#[test]
fn dynamic_maps_are_those_of_bitsandbytes() {
    let made = load("optimizer/whole.safetensors");
    for (name, map) in [
        ("map.signed", DynamicMap::signed()),
        ("map.unsigned", DynamicMap::unsigned()),
    ] {
        let expected: Vec<f32> = made[name].to_vec1().unwrap();
        assert_eq!(map.values().to_vec(), expected, "{name}");
    }
}

#[test]
fn checkpoints_of_bitsandbytes_load_with_equal_values() {
    let file = std::fs::read(golden("quant/checkpoint.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&file).unwrap();
    let views: HashMap<_, _> = tensors.tensors().into_iter().collect();
    let find = |name: &str| {
        let view = views.get(name)?;
        Some(RawTensor {
            dtype: view.dtype(),
            shape: view.shape(),
            bytes: view.data(),
        })
    };
    let values = load("quant/values.safetensors");
    for (name, shape) in [("nf4", (24, 80)), ("nf4_double", (136, 160))] {
        let weight = Nf4::from_bitsandbytes(&format!("{name}.weight"), find).unwrap();
        assert_eq!(weight.shape(), shape);
        assert_same_bits(
            &weight.dequantize(DType::F32).unwrap(),
            &values[&format!("{name}.deq")],
            name,
        );
        let rounded = weight.dequantize(DType::BF16).unwrap();
        assert_same_bits(&rounded, &values[&format!("{name}.deq_bf16")], name);
        let again = Nf4::quantize(&values[&format!("{name}.w")], name == "nf4_double").unwrap();
        assert_eq!(codes(again.parts().0), codes(weight.parts().0), "{name}");
    }
    let weight = Int8::from_bitsandbytes("int8.weight", find).unwrap();
    assert_same_bits(&weight.dequantize(DType::F32).unwrap(), &values["int8.deq"], "int8");
}

#[test]
fn int8_codes_are_those_of_bitsandbytes_in_blocks() {
    let values = load("quant/values.safetensors");
    let weight = Int8::quantize(&values["block64.w"]).unwrap();
    let found: Vec<f32> = weight
        .dequantize(DType::F32)
        .unwrap()
        .flatten_all()
        .unwrap()
        .to_vec1()
        .unwrap();
    let codes: Vec<i16> = values["block64.codes"].flatten_all().unwrap().to_vec1().unwrap();
    let scales: Vec<f32> = values["block64.scales"].to_vec1().unwrap();
    let expected = codes
        .iter()
        .zip(0..)
        .map(|(code, index)| f32::from(*code) * scales[index / 64] * 7.874_016e-3);
    // Row 3 is all zero, which bitsandbytes cannot quantize (0 / 0).
    let mut expected: Vec<f32> = expected.collect();
    expected.splice(3 * 64..3 * 64, [0.0; 64]);
    assert_eq!(found, expected);
}

#[test]
fn damaged_checkpoints_are_refused_by_name() {
    let file = std::fs::read(golden("quant/checkpoint.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&file).unwrap();
    let state = "nf4.weight.quant_state.bitsandbytes__nf4";
    let read = |name: &str, replaced: Option<(safetensors::Dtype, &[usize], &[u8])>| {
        let result = Nf4::from_bitsandbytes("nf4.weight", |wanted| {
            if wanted == name {
                let (dtype, shape, bytes) = replaced?;
                return Some(RawTensor { dtype, shape, bytes });
            }
            let info = tensors.tensor(wanted).ok()?;
            let shape: &'static [usize] = Box::leak(info.shape().to_vec().into_boxed_slice());
            Some(RawTensor {
                dtype: info.dtype(),
                shape,
                bytes: info.data(),
            })
        });
        result.unwrap_err().to_string()
    };
    let json = |text: &str| read(state, Some((safetensors::Dtype::U8, &[text.len()], text.as_bytes())));
    assert!(read("nf4.weight.absmax", None).contains("`nf4.weight.absmax` is missing"));
    let short = read("nf4.weight", Some((safetensors::Dtype::U8, &[8, 1], &[0; 8])));
    assert_eq!(
        short,
        "tensor `nf4.weight` has 8 elements of dtype U8; expected 960 of U8"
    );
    assert!(read("nf4.weight.absmax", Some((safetensors::Dtype::U8, &[30], &[0; 30]))).contains("expected 30 of F32"));
    assert!(json("{").contains("does not describe a quantized weight"));
    let with = |kind: &str, block: &str, shape: &str| {
        json(&format!(
            r#"{{"quant_type": "{kind}", "blocksize": {block}, "shape": {shape}}}"#
        ))
    };
    assert!(with("fp4", "64", "[24, 80]").contains("`quant_type` is fp4; expected nf4"));
    assert!(with("nf4", "0", "[24, 80]").contains("`blocksize` is 0"));
    assert!(with("nf4", "64", "[18446744073709551615, 2]").contains("`shape` is"));
    assert!(with("nf4", "64", "[24000000000, 80000]").contains("expected 960000000000000 of U8"));
    let infinite = [f32::INFINITY.to_le_bytes(); 30].concat();
    let message = read("nf4.weight.absmax", Some((safetensors::Dtype::F32, &[30], &infinite)));
    assert!(message.contains("holds a value that is not finite"), "{message}");
}

#[test]
fn weights_that_cannot_be_quantized_are_refused() {
    let mut values = vec![0.5f32; 12];
    values[7] = f32::NAN;
    let weight = Tensor::from_vec(values, (3, 4), &Device::Cpu).unwrap();
    assert!(
        Nf4::quantize(&weight, false)
            .unwrap_err()
            .to_string()
            .contains("not finite in row 1")
    );
    let vector = Tensor::ones(4, DType::F32, &Device::Cpu).unwrap();
    assert!(
        Int8::quantize(&vector)
            .unwrap_err()
            .to_string()
            .contains("expected a matrix")
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_rows_are_those_of_the_whole_weight(
        outputs in 1usize..40,
        inputs in 1usize..300,
        rows in any::<(prop::sample::Index, prop::sample::Index)>(),
        double in any::<bool>(),
    ) {
        let values: Vec<f32> = (0..outputs * inputs).map(|index| (index as f32 * 0.7).sin()).collect();
        let weight = Tensor::from_vec(values.clone(), (outputs, inputs), &Device::Cpu).unwrap();
        let (first, second) = (rows.0.index(outputs), rows.1.index(outputs));
        let rows = first.min(second)..first.max(second) + 1;
        let nf4 = Nf4::quantize(&weight, double).unwrap();
        let int8 = Int8::quantize(&weight).unwrap();
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            for (whole, part) in [
                (nf4.dequantize(dtype).unwrap(), nf4.dequantize_rows(rows.clone(), dtype).unwrap()),
                (int8.dequantize(dtype).unwrap(), int8.dequantize_rows(rows.clone(), dtype).unwrap()),
            ] {
                let expected = whole.narrow(0, rows.start, rows.len()).unwrap();
                prop_assert_eq!(bits(&part), bits(&expected));
            }
        }
        // 0.15 is half the widest gap between NF4's values, 1 / 254 half a step of int8; each of the block's constant.
        let within = |found: Tensor, bound: f32| {
            let found: Vec<f32> = found.flatten_all().unwrap().to_vec1().unwrap();
            found.iter().zip(&values).all(|(found, value)| (found - value).abs() <= bound)
        };
        prop_assert!(double || within(nf4.dequantize(DType::F32).unwrap(), 0.1525));
        prop_assert!(within(int8.dequantize(DType::F32).unwrap(), 1.0 / 253.0));
    }

    #[test]
    fn a_reused_buffer_holds_the_rows(rows in 1usize..8, inputs in 1usize..200) {
        let values: Vec<f32> = (0..8 * inputs).map(|index| (index as f32 * 0.3).cos()).collect();
        let weight = Tensor::from_vec(values, (8, inputs), &Device::Cpu).unwrap();
        let nf4 = Nf4::quantize(&weight, false).unwrap();
        let buffer = Tensor::zeros((8, inputs), DType::BF16, &Device::Cpu).unwrap();
        let view = buffer.narrow(0, 0, rows).unwrap();
        nf4.dequantize_rows_into(8 - rows..8, &view).unwrap();
        let mut slice = vec![bf16::ZERO; rows * inputs];
        nf4.fill_rows(8 - rows..8, &mut slice).unwrap();
        prop_assert_eq!(view.flatten_all().unwrap().to_vec1::<bf16>().unwrap(), slice);
    }
}
