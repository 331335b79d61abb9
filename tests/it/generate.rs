//! `peft-tune generate` and `peft-tune merge`.

use std::path::{Path, PathBuf};
use std::process::Output;

use candle_core::{Device, Tensor};
use peft_tune_core::recipe::Precision;
use peft_tune_engine::data::MicroBatch;
use peft_tune_engine::{BaseModel, Control, GenerationSettings, Generator, TextEnd, Trainer};
use peft_tune_kernels::ops::loss_head::IGNORE;

use crate::golden::{Sample, base, documents, folder, recipe, relative_error, tensors, whole_batch};

fn run(arguments: &[&str]) -> Output {
    crate::program().args(arguments).output().unwrap()
}

/// Standard output of a command that succeeds.
fn shown(arguments: &[&str]) -> String {
    let output = run(arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Standard error of a command that refuses.
fn refused(arguments: &[&str]) -> String {
    let output = run(arguments);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// The toy model with the tokenizer of the fixtures.
pub(crate) fn model_with_tokenizer(folder_to_fill: &Path) -> PathBuf {
    let model = folder_to_fill.join("model");
    std::fs::create_dir(&model).unwrap();
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tokenizer");
    for path in [
        folder("ref_llama/model/config.json"),
        folder("ref_llama/model/model.safetensors"),
        fixture.join("tokenizer.json"),
        fixture.join("tokenizer_config.json"),
    ] {
        std::fs::copy(&path, model.join(path.file_name().unwrap())).unwrap();
    }
    model
}

fn generator(adapter: Option<&Path>) -> Generator {
    generator_of("ref_llama", adapter)
}

fn generator_of(family: &str, adapter: Option<&Path>) -> Generator {
    let model = folder(family).join("model");
    let model = BaseModel::load(&model, Precision::Fp32, &Device::Cpu).unwrap();
    Generator::new(model, adapter).unwrap()
}

/// Logits of every position of one document, by the trainer's forward pass.
fn logits(family: &str, adapter: &Path, tokens: &[u32]) -> Vec<Vec<f32>> {
    let mut trainer = Trainer::new(base(family, Precision::Fp32), &recipe(adapter), 1).unwrap();
    let mut batch = MicroBatch::new();
    batch.push(tokens, std::iter::repeat_n(IGNORE, tokens.len()));
    trainer.logits(&batch).unwrap().to_vec2().unwrap()
}

fn greatest(logits: &[f32]) -> u32 {
    let best = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
    best.unwrap().0 as u32
}

fn greedy(max_tokens: usize) -> GenerationSettings {
    GenerationSettings {
        max_tokens,
        temperature: 0.0,
        seed: 0,
        stop_ids: Vec::new(),
    }
}

#[test]
fn greedy_tokens_are_the_most_likely_ones() {
    for family in ["ref_llama", "ref_gemma4", "ref_gemma4_e2b"] {
        let adapter = folder(family).join("adapter_init");
        let prompt = &documents(family, "input_ids", "input_ids")[0].input_ids[..9];
        let generated = generator_of(family, Some(&adapter))
            .generate(prompt, &greedy(12), &mut |_| Control::Continue)
            .unwrap();
        assert_eq!((generated.tokens.len(), generated.end), (12, TextEnd::MaxTokens));
        // One pass over the whole text predicts each of its tokens from those before.
        let whole: Vec<u32> = prompt.iter().chain(&generated.tokens).copied().collect();
        let logits = logits(family, &adapter, &whole);
        for (place, token) in generated.tokens.iter().enumerate() {
            assert_eq!(
                greatest(&logits[prompt.len() - 1 + place]),
                *token,
                "{family} token {place}"
            );
        }
        let plain = generator_of(family, None)
            .generate(prompt, &greedy(12), &mut |_| Control::Continue)
            .unwrap();
        assert_ne!(plain.tokens, generated.tokens, "{family}: the adapter does nothing");
        let merged = generator_of(family, Some(&adapter)).into_merged().unwrap();
        let merged = { merged }.generate(prompt, &greedy(12), &mut |_| Control::Continue);
        assert_eq!(merged.unwrap().tokens, generated.tokens, "{family}: merged");
    }
}

#[test]
fn logits_of_the_last_position_are_pefts() {
    for family in ["ref_llama", "ref_gemma4", "ref_gemma4_e2b"] {
        let expected = &Sample::read(&folder(family).join("logits.safetensors"))["logits"];
        let rows = documents(family, "input_ids", "input_ids");
        let mut generator = generator_of(family, Some(&folder(family).join("adapter_init")));
        let mut positions = 0;
        for row in &rows {
            let actual = generator.next_logits(&row.input_ids).unwrap();
            positions += row.input_ids.len();
            let error = expected.error_of_part(&actual, (positions - 1) * actual.len());
            assert!(error < 1e-5, "{family}: {error:.1e}");
        }
    }
}

#[test]
fn text_ends_at_a_stop_token_at_the_last_position_and_when_told() {
    let mut generator = generator(None);
    // A random model likes to repeat itself: the first prompt after which it says two different tokens.
    let mut free_after = |prompt: [u32; 2]| {
        let generated = generator.generate(&prompt, &greedy(6), &mut |_| Control::Continue);
        (prompt, generated.unwrap().tokens)
    };
    let (prompt, free) = (5..500)
        .map(|token| free_after([token, token + 1]))
        .find(|(_, free)| free.iter().any(|token| *token != free[0]))
        .unwrap();
    let last = *free.iter().find(|token| **token != free[0]).unwrap();
    let stop = GenerationSettings {
        stop_ids: vec![last],
        ..greedy(6)
    };
    let stopped = generator.generate(&prompt, &stop, &mut |_| Control::Continue).unwrap();
    assert_eq!(stopped.end, TextEnd::StopToken);
    assert_eq!(
        stopped.tokens,
        free[..free.iter().position(|token| *token == last).unwrap()]
    );
    let told = generator.generate(&prompt, &greedy(6), &mut |_| Control::Stop).unwrap();
    assert_eq!((told.tokens.as_slice(), told.end), (&free[..1], TextEnd::Stopped));
    let long = generator
        .generate(&[7; 254], &greedy(9), &mut |_| Control::Continue)
        .unwrap();
    assert_eq!((long.tokens.len(), long.end), (3, TextEnd::MaxPositions));
    let error = generator.next_logits(&[7; 257]).unwrap_err().to_string();
    assert!(
        error.contains("257 tokens") && error.contains("256 positions"),
        "{error}"
    );
    assert!(
        generator
            .next_logits(&[512])
            .unwrap_err()
            .to_string()
            .contains("vocabulary of 512")
    );
    assert!(
        generator
            .next_logits(&[])
            .unwrap_err()
            .to_string()
            .contains("no tokens")
    );
}

#[test]
fn the_command_prints_text_and_repeats_what_it_drew() {
    let place = tempfile::tempdir().unwrap();
    let model = model_with_tokenizer(place.path());
    let adapter = folder("ref_llama/adapter_init");
    let common = [
        "generate",
        "--model",
        text(&model),
        "--adapter",
        text(&adapter),
        "--max-tokens",
        "8",
    ];
    let with = |more: &[&str]| shown(&[&common[..], more].concat());
    let plain = with(&["--prompt", "The harbour"]);
    let json: serde_json::Value = serde_json::from_str(&with(&["--prompt", "The harbour", "--json"])).unwrap();
    assert_eq!(plain.trim_end_matches('\n'), json["text"].as_str().unwrap());
    assert!(json["tokens"].as_array().unwrap().len() <= 8 && json["prompt_tokens"].as_u64().unwrap() > 1);
    let drawn = |seed| with(&["--prompt", "The harbour", "--temperature", "1.5", "--seed", seed]);
    assert_eq!(drawn("1"), drawn("1"));
    assert!(["2", "3", "4"].iter().any(|seed| drawn(seed) != drawn("1")));
    let chat: serde_json::Value = serde_json::from_str(&with(&["--chat", "The harbour", "--json"])).unwrap();
    // The template's roles and special tokens come on top.
    assert!(chat["prompt_tokens"].as_u64() > json["prompt_tokens"].as_u64());
}

#[test]
fn text_ends_at_what_any_file_of_the_model_names_as_its_end() {
    let place = tempfile::tempdir().unwrap();
    let model = model_with_tokenizer(place.path());
    let generated = || -> (Vec<u64>, String) {
        let arguments = ["--prompt", "The harbour", "--max-tokens", "8", "--json"];
        let line = shown(&[&["generate", "--model", text(&model)][..], &arguments[..]].concat());
        let json: serde_json::Value = serde_json::from_str(&line).unwrap();
        let tokens = json["tokens"].as_array().unwrap().iter().filter_map(|id| id.as_u64());
        (tokens.collect(), json["end"].as_str().unwrap().to_owned())
    };
    let (free, _) = generated();
    assert!(!free.is_empty(), "the model says something");
    let stop = *free.iter().find(|id| **id != free[0]).unwrap_or(&free[0]);
    let until = free.iter().position(|id| *id == stop).unwrap();
    let path = model.join("config.json");
    let plain = std::fs::read_to_string(&path).unwrap();
    let mut config: serde_json::Value = serde_json::from_str(&plain).unwrap();
    config["eos_token_id"] = serde_json::json!([2, stop]);
    std::fs::write(&path, config.to_string()).unwrap();
    let expected = (free[..until].to_vec(), "stop_token".to_owned());
    assert_eq!(generated(), expected);
    // A file of its own that names others takes nothing away.
    std::fs::write(model.join("generation_config.json"), r#"{"eos_token_id": 2}"#).unwrap();
    assert_eq!(generated(), expected);
    std::fs::write(&path, plain).unwrap();
    assert_eq!(generated().0, free);
}

#[test]
fn what_cannot_be_generated_says_why() {
    let place = tempfile::tempdir().unwrap();
    let model = model_with_tokenizer(place.path());
    let no_tokenizer = folder("ref_llama/model");
    let message = refused(&["generate", "--model", text(&no_tokenizer), "--prompt", "x"]);
    assert!(message.contains("tokenizer.json"), "{message}");
    let message = refused(&["generate", "--model", text(&model), "--prompt", ""]);
    assert!(message.contains("no tokens"), "{message}");
    let other = folder("ref_qwen3/adapter_init");
    let message = refused(&[
        "generate",
        "--model",
        text(&model),
        "--adapter",
        text(&other),
        "--prompt",
        "x",
    ]);
    assert!(message.contains("adapter_model.safetensors"), "{message}");
    std::fs::write(model.join("tokenizer_config.json"), r#"{"eos_token": "<|im_end|>"}"#).unwrap();
    let message = refused(&["generate", "--model", text(&model), "--chat", "x"]);
    assert!(message.contains("no chat template"), "{message}");
}

/// Loss of the model in `directory` as it is, on the reference's rows.
fn plain_logits(directory: &Path, precision: Precision) -> Tensor {
    let model = BaseModel::load(directory, precision, &Device::Cpu).unwrap();
    let mut full = recipe(&folder("ref_llama/adapter_init"));
    full.adapter = None;
    full.precision = precision;
    let mut trainer = Trainer::new(std::sync::Arc::new(model), &full, 1).unwrap();
    trainer.logits(&whole_batch("ref_llama")[0]).unwrap()
}

#[test]
fn merged_models_give_the_adapters_logits() {
    let place = tempfile::tempdir().unwrap();
    let model = model_with_tokenizer(place.path());
    for adapter in [
        "ref_llama/adapter_init",
        "ref_variants/dora",
        "ref_variants/modules_to_save_norm",
    ] {
        let adapter = folder(adapter);
        let mut trainer = Trainer::new(base("ref_llama", Precision::Fp32), &recipe(&adapter), 1).unwrap();
        let expected = trainer.logits(&whole_batch("ref_llama")[0]).unwrap();
        for (name, shard_size) in [("whole", "5GB"), ("shards", "100kB")] {
            let output = place.path().join(adapter.file_name().unwrap()).join(name);
            let said = shown(&[
                "merge",
                "--model",
                text(&model),
                "--adapter",
                text(&adapter),
                "--output",
                text(&output),
                "--max-shard-size",
                shard_size,
            ]);
            assert!(
                said.starts_with(&format!("merged model in {}", output.display())),
                "{said}"
            );
            assert_eq!(output.join("model.safetensors.index.json").exists(), name == "shards");
            let error = relative_error(&plain_logits(&output, Precision::Fp32), &expected);
            assert!(error < 1e-5, "{name} {adapter:?}: {error:.1e}");
            for file in ["tokenizer.json", "tokenizer_config.json"] {
                assert_eq!(
                    std::fs::read(output.join(file)).unwrap(),
                    std::fs::read(model.join(file)).unwrap()
                );
            }
        }
    }
}

#[test]
fn merged_weights_keep_the_dtype_of_the_base() {
    let place = tempfile::tempdir().unwrap();
    let model = model_with_tokenizer(place.path());
    // The toy model in bfloat16, but for its last norm.
    let stored: std::collections::HashMap<String, Tensor> = tensors(&folder("ref_llama/model/model.safetensors"))
        .into_iter()
        .map(|(name, tensor)| match name.as_str() {
            "model.norm.weight" => (name, tensor),
            _ => (name, tensor.to_dtype(candle_core::DType::BF16).unwrap()),
        })
        .collect();
    candle_core::safetensors::save(&stored, model.join("model.safetensors")).unwrap();
    let (adapter, output) = (folder("ref_llama/adapter_init"), place.path().join("merged"));
    let arguments = [
        "merge",
        "--model",
        text(&model),
        "--adapter",
        text(&adapter),
        "--output",
        text(&output),
    ];
    shown(&arguments);
    let merged = tensors(&output.join("model.safetensors"));
    let mut changed = 0;
    for (name, before) in &stored {
        assert_eq!(merged[name].dtype(), before.dtype(), "{name}");
        changed += usize::from(relative_error(&merged[name], before) > 0.0);
    }
    assert_eq!((merged.len(), changed), (stored.len(), 14));
    let message = refused(&arguments);
    assert!(message.contains("is not empty"), "{message}");
    shown(&[&arguments[..], &["--force"]].concat());
    let message = refused(&[
        "merge",
        "--model",
        text(&model),
        "--adapter",
        text(&adapter),
        "--output",
        text(&model),
    ]);
    assert!(message.contains("own directory"), "{message}");
}

/// The quickstart's model, whose chats end in `<|im_end|>` and whose files name another end of text.
fn model_with_another_end(folder: &Path) -> PathBuf {
    let model = folder.join("model");
    std::fs::create_dir(&model).unwrap();
    let base = Path::new(env!("CARGO_MANIFEST_DIR")).join("search_spaces/quickstart/base");
    for name in ["model.safetensors", "tokenizer.json"] {
        std::fs::copy(base.join(name), model.join(name)).unwrap();
    }
    let replaced = |name: &str, from: &str, to: &str| {
        let text = std::fs::read_to_string(base.join(name)).unwrap();
        assert!(text.contains(from), "{text}");
        std::fs::write(model.join(name), text.replace(from, to)).unwrap();
    };
    replaced(
        "tokenizer_config.json",
        "\"eos_token\": \"<|im_end|>\"",
        "\"eos_token\": \"<|endoftext|>\"",
    );
    replaced("config.json", "\"eos_token_id\": 2", "\"eos_token_id\": 0");
    model
}

#[test]
fn an_answer_ends_where_the_chat_template_ends_it_and_a_merged_model_says_so() {
    let scratch = tempfile::tempdir().unwrap();
    let model = model_with_another_end(scratch.path());
    let answer = |model: &Path| -> serde_json::Value {
        let line = shown(&[
            "generate",
            "--model",
            text(model),
            "--chat",
            "Marrin: the old fox",
            "--max-tokens",
            "60",
            "--json",
        ]);
        serde_json::from_str(&line).unwrap()
    };
    let said = answer(&model);
    assert_eq!(said["end"], "stop_token", "{said}");
    assert!(!said["tokens"].as_array().unwrap().contains(&2.into()), "{said}");

    let rows = scratch.path().join("rows.jsonl");
    let row = r#"{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]}"#;
    std::fs::write(&rows, format!("{row}\n{row}\n")).unwrap();
    let recipe = scratch.path().join("recipe.yaml");
    let settings = format!(
        "model: {}\ndata: {{train: rows.jsonl, held_out: rows.jsonl}}\nadapter: {{rank: 1}}\nprecision: fp32\n\
         training: {{length: {{steps: 1}}}}\n",
        model.display()
    );
    std::fs::write(&recipe, settings).unwrap();
    let (adapter, merged) = (scratch.path().join("adapter"), scratch.path().join("merged"));
    shown(&["train", text(&recipe), "--output", text(&adapter)]);
    shown(&[
        "merge",
        "--model",
        text(&model),
        "--adapter",
        text(&adapter),
        "--output",
        text(&merged),
    ]);
    let written = std::fs::read_to_string(merged.join("generation_config.json")).unwrap();
    let written: serde_json::Value = serde_json::from_str(&written).unwrap();
    let ids = written["eos_token_id"].as_array().unwrap();
    assert!(ids.contains(&0.into()) && ids.contains(&2.into()), "{written}");
    // Who loads it without its chat template ends there too.
    let prompt = "<|im_start|>user\nMarrin: the old fox<|im_end|>\n<|im_start|>assistant\n";
    let line = shown(&[
        "generate",
        "--model",
        text(&merged),
        "--prompt",
        prompt,
        "--max-tokens",
        "60",
        "--json",
    ]);
    assert!(line.contains("\"stop_token\""), "{line}");
}

#[test]
fn an_adapter_brings_the_chat_template_that_it_was_trained_with() {
    let scratch = tempfile::tempdir().unwrap();
    let path = |name: &str| scratch.path().join(name);
    let model = model_with_another_end(scratch.path());
    let row = r#"{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]}"#;
    std::fs::write(path("rows.jsonl"), format!("{row}\n{row}\n")).unwrap();
    let template = "the fox and the river{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n\
                    {% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
    std::fs::write(path("own.jinja"), template).unwrap();
    let settings = format!(
        "model: {}\ndata: {{train: rows.jsonl, held_out: rows.jsonl, chat_template: own.jinja}}\nadapter: {{rank: 1}}\n\
         precision: fp32\ntraining: {{length: {{steps: 1}}}}\n",
        model.display()
    );
    std::fs::write(path("recipe.yaml"), settings).unwrap();
    let (adapter, merged) = (path("adapter"), path("merged"));
    shown(&["train", text(&path("recipe.yaml")), "--output", text(&adapter)]);
    // Tokens of the prompt, and what is told.
    let asked = |more: &[&str]| -> (u64, String) {
        let chat = ["generate", "--chat", "hi", "--max-tokens", "1", "--json"];
        let output = run(&[&chat[..], more].concat());
        let told = String::from_utf8(output.stderr).unwrap();
        let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{told}"));
        (said["prompt_tokens"].as_u64().unwrap(), told)
    };
    let of_adapter = ["--model", text(&model), "--adapter", text(&adapter)];
    let merge = [
        "merge",
        "--model",
        text(&model),
        "--adapter",
        text(&adapter),
        "--output",
        text(&merged),
        "--force",
    ];
    let (plain, _) = asked(&["--model", text(&model)]);
    let (own, told) = asked(&of_adapter);
    assert!(
        own > plain && told.contains("own.jinja, with which the adapter was trained"),
        "{own}: {told}"
    );
    shown(&merge);
    assert_eq!(
        std::fs::read_to_string(merged.join("chat_template.jinja")).unwrap(),
        template
    );
    assert_eq!(asked(&["--model", text(&merged)]).0, own);
    // Where it is gone, that is told.
    std::fs::remove_file(path("own.jinja")).unwrap();
    let (without, told) = asked(&of_adapter);
    assert!(
        without == plain && told.contains("own.jinja (`data.chat_template`), which is not there"),
        "{told}"
    );
    let output = run(&merge);
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && told.contains("which is not there"), "{told}");
    assert_eq!(asked(&["--model", text(&merged)]).0, plain);
}
