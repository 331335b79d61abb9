//! Generation with a cache against the same without.

use candle_core::{Device, Tensor};
use peft_tune_core::recipe::Precision;
use peft_tune_engine::{BaseModel, Generator};

use crate::golden::{folder, relative_error};

/// Families that differ in attention: plain, windows and soft caps, norms on queries and keys in each place, fused
/// projections, scaled ropes, queries that grow, and layers without a rope beside their MLP.
const REFERENCES: [&str; 11] = [
    "ref_llama",
    "ref_gemma2",
    "ref_gemma3",
    "ref_qwen3",
    "ref_phi3",
    "ref_mistral",
    "ref_llama31",
    "ref_hunyuan_dense",
    "ref_ministral3",
    "ref_olmo3",
    "ref_cohere2",
];

fn generator(reference: &str, precision: Precision) -> Generator {
    let folder = folder(reference);
    let base = BaseModel::load(&folder.join("model"), precision, &Device::Cpu).unwrap();
    Generator::new(base, Some(&folder.join("adapter_init"))).unwrap()
}

/// Two sequences of different length, and what follows each.
fn sequences() -> [Vec<u32>; 2] {
    let tokens = |count: u32, step: u32| (0..count).map(|place| 5 + (place * step) % 200).collect();
    [tokens(40, 7), tokens(31, 11)]
}

fn row(logits: &Tensor, row: usize) -> Tensor {
    logits.get(row).unwrap()
}

#[test]
fn logits_with_a_cache_are_those_without() {
    for reference in REFERENCES {
        let mut generator = generator(reference, Precision::Fp32);
        let [first, second] = sequences();
        let (read, further) = (25, 6);
        let prompts = [&first[..read], &second[..read - 9]];
        let (mut decoding, mut logits) = generator.begin(&prompts, 64).unwrap();
        for step in 0..=further {
            let seen = [&first[..read + step], &second[..read - 9 + step]];
            for (place, seen) in seen.iter().enumerate() {
                let expected = generator.next_logits(seen).unwrap();
                let expected = Tensor::new(expected, &Device::Cpu).unwrap();
                let error = relative_error(&row(&logits, place), &expected);
                assert!(
                    error < 1e-5,
                    "{reference}, sequence {place}, {} tokens: {error:.1e}",
                    seen.len()
                );
            }
            let next = [first[read + step], second[read - 9 + step]];
            logits = generator.advance(&mut decoding, &next).unwrap();
        }
        assert_eq!(decoding.lengths(), [read + further + 1, read - 9 + further + 1]);
    }
}

#[test]
fn a_cache_in_bf16_is_as_close_as_its_rounding() {
    let mut generator = generator("ref_llama", Precision::Bf16);
    let [tokens, _] = sequences();
    let (mut decoding, _) = generator.begin(&[&tokens[..20]], 32).unwrap();
    let logits = generator.advance(&mut decoding, &tokens[20..21]).unwrap();
    let expected = Tensor::new(generator.next_logits(&tokens[..21]).unwrap(), &Device::Cpu).unwrap();
    let error = relative_error(&row(&logits, 0), &expected);
    assert!(error < 3e-2, "{error:.1e}");
}

#[test]
fn a_full_cache_refuses_a_further_token() {
    let mut generator = generator("ref_llama", Precision::Fp32);
    let (mut decoding, _) = generator.begin(&[&[5, 6, 7]], 3).unwrap();
    assert!(!decoding.has_room());
    assert!(generator.advance(&mut decoding, &[8]).is_err());
    assert!(generator.begin(&[], 3).is_err());
}

#[test]
fn a_merged_model_says_what_its_adapter_says() {
    let mut generator = generator("ref_llama", Precision::Fp32);
    let [tokens, _] = sequences();
    let expected = Tensor::new(generator.next_logits(&tokens).unwrap(), &Device::Cpu).unwrap();
    let mut merged = generator.into_merged().unwrap();
    assert_eq!(merged.adapter_rank(), None);
    let actual = Tensor::new(merged.next_logits(&tokens).unwrap(), &Device::Cpu).unwrap();
    assert!(relative_error(&actual, &expected) < 1e-5);
}
