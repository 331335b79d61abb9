//! Generation with a cache against the same without; with several adapters against each alone.

use std::path::{Path, PathBuf};

use candle_core::{Device, Tensor};
use peft_tune_core::recipe::Precision;
use peft_tune_engine::{AnswerSettings, BaseModel, Control, Generated, GenerationSettings, Generator, Prompt, TextEnd};
use proptest::prelude::*;
use serde_json::json;

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

/// The adapter of a reference cut down in `directory`: the first `rank` ranks of the modules that end in one of `targets`, with an
/// alpha of its own.
fn cut_adapter(reference: &str, directory: &Path, rank: usize, alpha: u32, targets: &[&str]) -> PathBuf {
    let original = folder(reference).join("adapter_init");
    let cut = directory.join(format!("r{rank}_{}", targets.join("_")));
    std::fs::create_dir_all(&cut).unwrap();
    let text = std::fs::read_to_string(original.join("adapter_config.json")).unwrap();
    let mut config: serde_json::Value = serde_json::from_str(&text).unwrap();
    for (key, value) in [
        ("r", json!(rank)),
        ("lora_alpha", json!(alpha)),
        ("target_modules", json!(targets)),
    ] {
        config[key] = value;
    }
    std::fs::write(cut.join("adapter_config.json"), config.to_string()).unwrap();
    let tensors = candle_core::safetensors::load(original.join("adapter_model.safetensors"), &Device::Cpu).unwrap();
    let kept = tensors
        .into_iter()
        .filter(|(name, _)| targets.iter().any(|target| name.contains(target)));
    let kept = kept.map(|(name, tensor)| {
        let rank_dimension = usize::from(name.contains("lora_B"));
        let tensor = tensor.narrow(rank_dimension, 0, rank).unwrap().contiguous().unwrap();
        (name, tensor)
    });
    candle_core::safetensors::save(&kept.collect(), cut.join("adapter_model.safetensors")).unwrap();
    cut
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
fn sequences_with_adapters_of_their_own_are_answered_as_with_each_alone() {
    let directory = tempfile::tempdir().unwrap();
    let families: [(&str, &[&str]); 4] = [
        ("ref_llama", &["q_proj", "down_proj"]),
        ("ref_gemma2", &["v_proj", "o_proj", "gate_proj"]),
        ("ref_phi3", &["qkv_proj"]),
        ("ref_qwen3_5", &["q_proj", "up_proj"]),
    ];
    for (reference, targets) in families {
        let whole = folder(reference).join("adapter_init");
        let of_family = directory.path().join(reference);
        let adapters = [
            whole.clone(),
            cut_adapter(reference, &of_family, 2, 9, targets),
            cut_adapter(reference, &of_family, 1, 5, &targets[..1]),
        ];
        let load = || BaseModel::load(&folder(reference).join("model"), Precision::Fp32, &Device::Cpu).unwrap();
        let paths: Vec<&Path> = adapters.iter().map(PathBuf::as_path).collect();
        let mut together = Generator::side_by_side(load(), &paths).unwrap();
        assert_eq!(together.adapters(), 3);
        let [first, second] = sequences();
        let tokens = [&first, &second, &first, &second];
        let (owners, lengths, further) = ([1, 0, 2, 1], [20, 9, 13, 17], 3);
        let prompts: Vec<&[u32]> = tokens
            .iter()
            .zip(lengths)
            .map(|(tokens, length)| &tokens[..length])
            .collect();
        let (mut decoding, mut logits) = together.begin_each(&prompts, &owners, 64).unwrap();
        for step in 0..=further {
            for (place, owner) in owners.into_iter().enumerate() {
                let mut alone = Generator::new(load(), Some(&adapters[owner])).unwrap();
                let expected = alone.next_logits(&tokens[place][..lengths[place] + step]).unwrap();
                let expected = Tensor::new(expected, &Device::Cpu).unwrap();
                let error = relative_error(&row(&logits, place), &expected);
                assert!(error < 1e-5, "{reference}, sequence {place}, step {step}: {error:.1e}");
            }
            let next: Vec<u32> = tokens
                .iter()
                .zip(lengths)
                .map(|(tokens, length)| tokens[length + step])
                .collect();
            logits = together.advance(&mut decoding, &next).unwrap();
        }
        // Nothing is answered without a word on whose it is.
        assert!(together.next_logits(&first).is_err());
        assert!(together.begin(&prompts, 64).is_err());
        let error = together
            .begin_each(&prompts, &[0, 1, 2, 3], 64)
            .unwrap_err()
            .to_string();
        assert!(error.contains("adapter 3 is asked for, and there are 3"), "{error}");
        assert!(together.begin_each(&prompts, &[0], 64).is_err());
        assert!(together.into_merged().is_err());
    }
}

#[test]
fn adapters_with_more_than_products_are_refused_beside_others() {
    let base = BaseModel::load(&folder("ref_olmoe").join("model"), Precision::Fp32, &Device::Cpu).unwrap();
    let adapter = folder("ref_olmoe").join("adapter_init");
    let refused = Generator::side_by_side(base, &[&adapter, &adapter])
        .err()
        .unwrap()
        .to_string();
    assert!(refused.contains("adapter 1 cannot answer beside others"), "{refused}");
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

fn answers(generator: &mut Generator, prompts: &[(&[u32], &[u32])], batch: usize, max_tokens: usize) -> Vec<Generated> {
    let prompts: Vec<Prompt<'_>> = prompts
        .iter()
        .map(|(tokens, stop_ids)| Prompt { tokens, stop_ids })
        .collect();
    let settings = AnswerSettings { max_tokens, batch };
    generator
        .answers(&prompts, &settings, &mut || Control::Continue)
        .unwrap()
}

/// Greedy generation by transformers 5.23.0 with PyTorch 2.15.0 in F32: 12 tokens behind prompts of `(length, step)`, made as below,
/// of `AutoModelForCausalLM.from_pretrained(model).generate(ids, do_sample=False, max_new_tokens=12, eos_token_id=None)`. The second
/// most likely token was at least 0.002 behind in each logit.
const BY_TRANSFORMERS: [(&str, [[u32; 12]; 3]); 3] = [
    (
        "ref_llama",
        [
            [174, 174, 174, 174, 348, 312, 312, 312, 312, 312, 312, 312],
            [432, 432, 432, 352, 34, 274, 235, 235, 235, 235, 403, 36],
            [332, 332, 332, 332, 332, 189, 189, 189, 189, 189, 189, 189],
        ],
    ),
    (
        "ref_qwen3",
        [
            [441; 12],
            [140, 140, 140, 140, 140, 140, 140, 140, 140, 140, 174, 174],
            [334, 334, 334, 23, 23, 23, 23, 23, 23, 23, 23, 23],
        ],
    ),
    (
        "ref_gemma2",
        [
            [236, 236, 83, 83, 83, 83, 83, 83, 83, 83, 83, 232],
            [49, 49, 298, 298, 298, 298, 298, 298, 298, 298, 298, 298],
            [270, 499, 264, 478, 478, 225, 225, 225, 225, 225, 225, 225],
        ],
    ),
];

#[test]
fn answers_of_a_batch_are_those_of_transformers_one_by_one() {
    for (reference, expected) in BY_TRANSFORMERS {
        let base = BaseModel::load(&folder(reference).join("model"), Precision::Fp32, &Device::Cpu).unwrap();
        let mut generator = Generator::new(base, None).unwrap();
        let prompts = [(25, 7), (16, 11), (3, 13)]
            .map(|(count, step): (u32, u32)| (0..count).map(|place| 5 + (place * step) % 200).collect::<Vec<u32>>());
        let prompts = [0, 1, 2].map(|place| (prompts[place].as_slice(), &[][..]));
        for batch in [1, 2, 3] {
            let got = answers(&mut generator, &prompts, batch, 12);
            let tokens: Vec<&[u32]> = got.iter().map(|answer| answer.tokens.as_slice()).collect();
            assert_eq!(tokens, expected, "{reference}, {batch} at once");
            assert!(got.iter().all(|answer| answer.end == TextEnd::MaxTokens));
        }
    }
}

#[test]
fn an_answer_ends_where_its_row_says_and_the_others_go_on() {
    let mut generator = generator("ref_llama", Precision::Fp32);
    let [first, second] = sequences();
    let whole = answers(&mut generator, &[(&first[..20], &[]), (&second[..9], &[])], 2, 10);
    // The second ends before a token that it would say, unless it says that at once.
    let stop = whole[1].tokens[5];
    let said_before = whole[1].tokens.iter().position(|token| *token == stop).unwrap();
    let got = answers(&mut generator, &[(&first[..20], &[]), (&second[..9], &[stop])], 2, 10);
    assert_eq!(got[0], whole[0]);
    assert_eq!(
        (got[1].tokens.as_slice(), got[1].end),
        (&whole[1].tokens[..said_before], TextEnd::StopToken)
    );
    let nothing = answers(&mut generator, &[(&first[..20], &[])], 2, 0);
    assert!(nothing[0].tokens.is_empty());
}

#[test]
fn an_answer_at_the_model_s_last_position_ends_and_a_shorter_one_goes_on() {
    let mut generator = generator("ref_llama", Precision::Fp32);
    let positions = generator.base().architecture().max_positions;
    let long: Vec<u32> = (0..positions as u32 - 2).map(|place| 5 + place % 200).collect();
    let short = [7; 5];
    let got = answers(&mut generator, &[(&long, &[]), (&short, &[])], 2, 6);
    let settings = GenerationSettings {
        max_tokens: 6,
        temperature: 0.0,
        seed: 0,
        stop_ids: Vec::new(),
    };
    for (prompt, got) in [(&long[..], &got[0]), (&short[..], &got[1])] {
        let alone = generator
            .generate(prompt, &settings, &mut |_| Control::Continue)
            .unwrap();
        assert_eq!(*got, alone);
    }
    assert_eq!((got[0].end, got[1].end), (TextEnd::MaxPositions, TextEnd::MaxTokens));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// Checks a cache of several sequences against each alone, whatever the prompts' lengths and where they end.
    #[test]
    fn prompts_are_answered_together_as_alone(
        lengths in prop::collection::vec(1_usize..40, 1..6),
        batch in 1_usize..7,
        stop in 0_u32..500,
        step in 1_u32..50,
    ) {
        let mut generator = generator("ref_qwen3", Precision::Fp32);
        let prompts: Vec<Vec<u32>> = lengths
            .iter()
            .enumerate()
            .map(|(place, length)| (0..*length as u32).map(|at| 5 + (at * step + 31 * place as u32) % 400).collect())
            .collect();
        let stops = [stop];
        let prompts: Vec<(&[u32], &[u32])> = prompts.iter().map(|prompt| (prompt.as_slice(), &stops[..])).collect();
        let together = answers(&mut generator, &prompts, batch, 8);
        for (prompt, together) in prompts.iter().zip(&together) {
            prop_assert_eq!(together, &answers(&mut generator, &[*prompt], 1, 8)[0]);
        }
    }
}
