//! Models with layers that do not attend, beyond the checks that all families share.

use std::path::Path;
use std::sync::Arc;

use candle_core::Device;
use peft_tune_core::architecture::{Architecture, Mixer};
use peft_tune_core::recipe::{AdapterSettings, Precision, TargetModules, TargetPreset};
use peft_tune_engine::adapter::{SavedAdapter, write};
use peft_tune_engine::data::{Document, MicroBatch};
use peft_tune_engine::{
    BaseModel, Control, GenerationSettings, Generator, ModelDirectory, TextEnd, Trainer, WrittenDtype,
};
use tempfile::TempDir;

use crate::golden::{assert_close, base, documents, folder, recipe, relative_error, tensors, whole_batch};

const FAMILIES: [&str; 2] = ["ref_lfm2", "ref_qwen3_5"];

fn trainer(family: &str) -> Trainer {
    Trainer::new(
        base(family, Precision::Fp32),
        &recipe(&folder(family).join("adapter_init")),
        20,
    )
    .unwrap()
}

/// Values that one layer of a model with several kinds of layers keeps for each token, without what adapters of rank 4 keep.
fn mixed_values(architecture: &Architecture, index: usize) -> usize {
    let hidden = architecture.hidden_size;
    let mixing = match architecture.mixer(index) {
        Mixer::Attention => {
            let heads = architecture.heads + architecture.kv_heads;
            let gates = if architecture.head_gates {
                architecture.query_size(index)
            } else {
                0
            };
            2 * heads * architecture.head_dim + architecture.heads + heads + gates
        }
        Mixer::Convolution(_) => 3 * hidden,
        Mixer::DeltaRule(rule) => rule.input_width() + 2 * rule.output_width() + 2 * rule.value_heads,
    };
    hidden + 2 + mixing + 2 * architecture.intermediate_size
}

#[test]
fn layers_that_do_not_attend_keep_what_is_listed() {
    for (family, adapters) in [("ref_lfm2", [5, 5, 7, 5].as_slice()), ("ref_qwen3_5", &[6, 7])] {
        let (batch, model) = (&whole_batch(family)[0], base(family, Precision::Fp32));
        let architecture = model.architecture();
        let recipe = recipe(&folder(family).join("adapter_init"));
        let mut trainer = Trainer::new(Arc::clone(&model), &recipe, 1).unwrap();
        let layers = adapters.iter().enumerate();
        let kept: usize = layers
            .map(|(index, count)| mixed_values(architecture, index) + 4 * count)
            .sum();
        let expected = 4 * batch.tokens() * (kept + architecture.hidden_size + 1);
        assert_eq!(trainer.saved_bytes(batch).unwrap().device, expected, "{family}");
    }
}

#[test]
fn documents_do_not_leak_where_layers_do_not_attend() {
    for family in FAMILIES {
        let rows = documents(family, "input_ids", "labels");
        let mut trainer = trainer(family);
        let whole = trainer
            .logits(&MicroBatch::from_documents(&rows))
            .unwrap()
            .to_vec2::<f32>()
            .unwrap();
        let alone = rows.iter().flat_map(|row| {
            let batch = MicroBatch::from_documents([row]);
            trainer.logits(&batch).unwrap().to_vec2::<f32>().unwrap()
        });
        let alone: Vec<Vec<f32>> = alone.collect();
        assert_eq!(whole.len(), alone.len());
        let far = whole
            .iter()
            .flatten()
            .zip(alone.iter().flatten())
            .map(|(a, b)| (a - b).abs());
        assert!(far.fold(0f32, f32::max) < 1e-5, "{family}");
        // Nor do gradients: what one document's tokens give another's parameters is what they give alone.
        let gradients = |documents: &[Document]| {
            let mut trainer = self::trainer(family);
            trainer.step(&[MicroBatch::from_documents(documents)]).unwrap();
            trainer.parameters().gradients.to_vec1::<f32>().unwrap()
        };
        let targets = |row: &Document| row.labels.iter().skip(1).filter(|label| **label >= 0).count() as f32;
        let counts: Vec<f32> = rows.iter().map(targets).collect();
        let all: f32 = counts.iter().sum();
        let each: Vec<Vec<f32>> = rows.iter().map(|row| gradients(std::slice::from_ref(row))).collect();
        for (index, together) in gradients(&rows).into_iter().enumerate() {
            let expected: f32 = each
                .iter()
                .zip(&counts)
                .map(|(one, count)| one[index] * count / all)
                .sum();
            assert!(
                (together - expected).abs() < 1e-6 + 1e-4 * expected.abs(),
                "{family} {index}"
            );
        }
    }
}

#[test]
fn a_text_goes_on_from_what_its_layers_keep() {
    for family in FAMILIES {
        let adapter = folder(family).join("adapter_init");
        let mut generator = Generator::new(base(family, Precision::Fp32), Some(&adapter)).unwrap();
        // Of the lengths of a prompt the first is less than what a convolution reads.
        for prompt in [1, 2, 9] {
            let prompt = &documents(family, "input_ids", "input_ids")[0].input_ids[..prompt];
            let settings = GenerationSettings {
                max_tokens: 12,
                temperature: 0.0,
                seed: 0,
                stop_ids: Vec::new(),
            };
            let generated = generator
                .generate(prompt, &settings, &mut |_| Control::Continue)
                .unwrap();
            assert_eq!((generated.tokens.len(), generated.end), (12, TextEnd::MaxTokens));
            let mut sequence = prompt.to_vec();
            for token in generated.tokens {
                let logits = generator.next_logits(&sequence).unwrap();
                let best = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).unwrap().0;
                assert_eq!(best as u32, token, "{family}");
                sequence.push(token);
            }
        }
    }
}

#[test]
fn sequences_side_by_side_keep_to_themselves() {
    for family in FAMILIES {
        let adapter = folder(family).join("adapter_init");
        let mut generator = Generator::new(base(family, Precision::Fp32), Some(&adapter)).unwrap();
        let rows = documents(family, "input_ids", "input_ids");
        let (first, second) = (&rows[0].input_ids, &rows[1].input_ids);
        let (mut decoding, _) = generator.begin(&[&first[..7], &second[..2]], 20).unwrap();
        for step in 0..4 {
            let logits = generator
                .advance(&mut decoding, &[first[7 + step], second[2 + step]])
                .unwrap();
            for (sequence, read) in [&first[..8 + step], &second[..3 + step]].into_iter().enumerate() {
                let expected = generator.next_logits(read).unwrap();
                let expected = candle_core::Tensor::new(expected, &Device::Cpu).unwrap();
                let error = relative_error(&logits.get(sequence).unwrap(), &expected);
                assert!(error < 1e-5, "{family} step {step} sequence {sequence}: {error:.1e}");
            }
        }
    }
}

fn loss(model: &Path, adapter: Option<&Path>, family: &str) -> f64 {
    let base = BaseModel::load(model, Precision::Fp32, &Device::Cpu).unwrap();
    let mut recipe = recipe(&folder(family).join("adapter_init"));
    match (&mut recipe.adapter, adapter) {
        (Some(settings), Some(adapter)) => settings.adapter_init = Some(adapter.to_owned()),
        // A fresh adapter changes nothing.
        (settings, _) => {
            *settings = Some(AdapterSettings {
                target_modules: TargetModules::Preset(TargetPreset::Mlp),
                ..AdapterSettings::default()
            });
        }
    }
    Trainer::new(Arc::new(base), &recipe, 1)
        .unwrap()
        .evaluate(&whole_batch(family))
        .unwrap()
        .loss
}

#[test]
fn a_merged_model_is_the_adapted_one() {
    for family in FAMILIES {
        let (model, place) = (folder(family).join("model"), TempDir::new().unwrap());
        let directory = ModelDirectory {
            source: &model,
            dtype: WrittenDtype::AsStored,
            shard_bytes: ModelDirectory::SHARD_BYTES,
            quantization: None,
        };
        directory
            .write(place.path(), &trainer(family).merged().unwrap())
            .unwrap();
        let names = |path: &Path| {
            let mut names: Vec<String> = tensors(&path.join("model.safetensors")).into_keys().collect();
            names.sort();
            names
        };
        assert_eq!(names(place.path()), names(&model), "{family}");
        let expected = loss(&model, Some(&folder(family).join("adapter_init")), family);
        assert_close(&[loss(place.path(), None, family)], &[expected], 1e-6, family);
    }
}

#[test]
fn adapters_are_written_under_pefts_names() {
    for family in FAMILIES {
        let (adapter, place) = (folder(family).join("adapter_init"), TempDir::new().unwrap());
        let trainer = trainer(family);
        write(
            place.path(),
            trainer.adapter_plan().unwrap(),
            None,
            trainer.parameters(),
        )
        .unwrap();
        let names = |path: &Path| {
            let mut names: Vec<String> = SavedAdapter::read(path).unwrap().names().map(str::to_owned).collect();
            names.sort();
            names
        };
        assert_eq!(names(place.path()), names(&adapter), "{family}");
        let model = folder(family).join("model");
        assert_eq!(
            loss(&model, Some(place.path()), family),
            loss(&model, Some(&adapter), family)
        );
    }
}

/// The modules of each preset, by the end of their names and the layer's number.
#[test]
fn presets_take_the_layers_that_do_not_attend_along() {
    for (family, attention, all) in [
        ("ref_lfm2", 2 * 3 + 4, 2 * 3 + 4 + 3 * 4),
        ("ref_qwen3_5", 5 + 4, 5 + 4 + 3 * 2),
    ] {
        for (preset, count) in [(TargetPreset::Attention, attention), (TargetPreset::AllLinear, all)] {
            let mut recipe = recipe(&folder(family).join("adapter_init"));
            recipe.adapter = Some(AdapterSettings {
                rank: 4,
                target_modules: TargetModules::Preset(preset),
                ..AdapterSettings::default()
            });
            let trainer = Trainer::new(base(family, Precision::Fp32), &recipe, 1).unwrap();
            assert_eq!(
                trainer.adapter_plan().unwrap().linears.len(),
                count,
                "{family} {preset:?}"
            );
        }
    }
}

#[test]
fn what_does_not_train_is_refused() {
    for (family, module) in [("ref_lfm2", "conv"), ("ref_qwen3_5", "conv1d")] {
        let mut whole = recipe(&folder(family).join("adapter_init"));
        whole.adapter = None;
        let error = Trainer::new(base(family, Precision::Fp32), &whole, 1)
            .err()
            .unwrap()
            .to_string();
        assert!(error.contains("train an adapter"), "{error}");
        let mut saved = recipe(&folder(family).join("adapter_init"));
        let settings = saved.adapter.as_mut().unwrap();
        (settings.adapter_init, settings.modules_to_save) = (None, vec![module.to_owned()]);
        let error = Trainer::new(base(family, Precision::Fp32), &saved, 1)
            .err()
            .unwrap()
            .to_string();
        assert!(error.contains(&format!("`{module}`")), "{error}");
    }
}
