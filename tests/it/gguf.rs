//! Models in GGUF form: read as gguf-py reads them (`tests/golden/make_gguf.py`), and written by `peft-tune merge`.

use std::path::{Path, PathBuf};
use std::process::Output;

use candle_core::quantized::gguf_file::Content;
use candle_core::{DType, Device, Tensor};
use peft_tune_core::architecture::Architecture;
use peft_tune_core::recipe::Precision;
use peft_tune_engine::BaseModel;

use crate::golden::{folder, relative_error, tensors};

fn run(arguments: &[&str]) -> Output {
    crate::program().args(arguments).output().unwrap()
}

fn load(directory: &Path) -> Result<BaseModel, String> {
    BaseModel::load(directory, Precision::Fp32, &Device::Cpu).map_err(|error| error.to_string())
}

#[test]
fn weights_have_the_values_that_gguf_py_gives() {
    let expected = tensors(&folder("ref_gguf/values.safetensors"));
    let base = load(&folder("ref_gguf")).unwrap();
    assert_eq!(expected.len(), 11);
    for (name, value) in &expected {
        let values = |tensor: &Tensor| -> Vec<f32> { tensor.flatten_all().unwrap().to_vec1().unwrap() };
        assert_eq!(values(&base.tensor(name).unwrap()), values(value), "{name}");
    }
    assert_eq!(
        BaseModel::stored_precision(&folder("ref_gguf")).unwrap(),
        Precision::Bf16
    );
}

/// A reference's model with the tokenizer of the fixtures.
fn model_with_tokenizer(reference: &str, place: &Path) -> PathBuf {
    let model = place.join("model");
    std::fs::create_dir_all(&model).unwrap();
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(folder(reference).join("model").join(file), model.join(file)).unwrap();
    }
    let tokenizer = Path::new(env!("CARGO_MANIFEST_DIR")).join("search_spaces/quickstart/base");
    for file in ["tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(tokenizer.join(file), model.join(file)).unwrap();
    }
    model
}

/// Merges a reference's adapter; the output folder, and what was said besides.
fn merged(model: &Path, reference: &str, output: &Path, more: &[&str]) -> Output {
    let adapter = folder(reference).join("adapter_init");
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let (model, adapter, output) = (text(model), text(&adapter), text(output));
    let arguments = ["merge", "--model", &model, "--adapter", &adapter, "--output", &output];
    run(&[&arguments, more].concat())
}

fn assert_success(output: &Output) {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn content(path: &Path) -> Content {
    Content::read(&mut std::fs::File::open(path).unwrap()).unwrap()
}

#[test]
fn a_merged_model_in_gguf_form_is_the_one_in_safetensors_form() {
    let references = [
        "ref_llama",
        "ref_llama31",
        "ref_mistral",
        "ref_qwen2",
        "ref_qwen3",
        "ref_gemma2",
        "ref_gemma3",
        "ref_phi3",
    ];
    for reference in references {
        let place = tempfile::tempdir().unwrap();
        let model = model_with_tokenizer(reference, place.path());
        let (plain, packed) = (place.path().join("plain"), place.path().join("packed"));
        assert_success(&merged(&model, reference, &plain, &[]));
        assert_success(&merged(&model, reference, &packed, &["--format", "gguf"]));
        std::fs::copy(model.join("config.json"), packed.join("config.json")).unwrap();
        let (plain, back) = (load(&plain).unwrap(), load(&packed).unwrap());
        for tensor in Architecture::from_config(&model.join("config.json")).unwrap().tensors() {
            let (left, right) = (plain.tensor(&tensor.name).unwrap(), back.tensor(&tensor.name).unwrap());
            let error = relative_error(&right, &left);
            // Norms of Gemma are one more there, and lose the last digits below one.
            assert!(error < 1e-6, "{reference}: {}: {error:.1e}", tensor.name);
        }
    }
}

#[test]
fn a_gguf_file_says_what_llama_cpp_asks_for() {
    let place = tempfile::tempdir().unwrap();
    let model = model_with_tokenizer("ref_llama31", place.path());
    let output = place.path().join("packed");
    let said = merged(
        &model,
        "ref_llama31",
        &output,
        &["--format", "gguf", "--outtype", "q8_0"],
    );
    assert_success(&said);
    let path = output.join("model.gguf");
    assert!(String::from_utf8_lossy(&said.stdout).starts_with(&format!("merged model in {}", path.display())));
    let content = content(&path);
    let text = |key: &str| content.metadata[key].to_string().unwrap().clone();
    let number = |key: &str| content.metadata[key].to_u32().unwrap();
    assert_eq!(text("general.architecture"), "llama");
    assert_eq!((number("llama.block_count"), number("llama.embedding_length")), (2, 64));
    assert_eq!(
        (
            number("llama.attention.head_count"),
            number("llama.attention.head_count_kv")
        ),
        (4, 2)
    );
    assert_eq!(
        (text("tokenizer.ggml.model"), text("tokenizer.ggml.pre")),
        ("gpt2".into(), "gpt-2".into())
    );
    assert_eq!(text("tokenizer.chat_template"), chat_template(&model));
    let tokens = content.metadata["tokenizer.ggml.tokens"].to_vec().unwrap();
    let kinds = content.metadata["tokenizer.ggml.token_type"].to_vec().unwrap();
    assert_eq!((tokens.len(), kinds.len()), (512, 512));
    assert_eq!(
        (tokens[1].to_string().unwrap().as_str(), kinds[1].to_i32().unwrap()),
        ("<|im_start|>", 3)
    );
    // Llama 3.1's frequencies, as divisors of the plain ones.
    let mut file = std::fs::File::open(&path).unwrap();
    let factors = content.tensor(&mut file, "rope_freqs.weight", &Device::Cpu).unwrap();
    let factors: Vec<f32> = factors.dequantize(&Device::Cpu).unwrap().to_vec1().unwrap();
    assert!(factors[0] == 1.0 && *factors.last().unwrap() > 1.0, "{factors:?}");
    // Codes of 8 bits are within half a step of what they stand for.
    let (exact, coded) = (place.path().join("exact"), "blk.0.ffn_up.weight");
    assert_success(&merged(&model, "ref_llama31", &exact, &[]));
    let exact = load(&exact)
        .unwrap()
        .tensor("model.layers.0.mlp.up_proj.weight")
        .unwrap();
    let coded = content.tensor(&mut file, coded, &Device::Cpu).unwrap();
    assert_eq!(coded.dtype(), candle_core::quantized::GgmlDType::Q8_0);
    let error = relative_error(
        &coded.dequantize(&Device::Cpu).unwrap().to_dtype(DType::F32).unwrap(),
        &exact,
    );
    assert!(error > 0.0 && error < 0.01, "{error}");
}

fn chat_template(model: &Path) -> String {
    let config = crate::golden::json(&model.join("tokenizer_config.json"));
    config["chat_template"].as_str().unwrap().to_owned()
}

#[test]
fn what_is_wrong_with_a_gguf_file_is_said() {
    let place = tempfile::tempdir().unwrap();
    let copy = |names: &[&str]| {
        for name in names {
            std::fs::copy(folder("ref_gguf").join("model.gguf"), place.path().join(name)).unwrap();
        }
    };
    std::fs::copy(folder("ref_gguf/config.json"), place.path().join("config.json")).unwrap();
    copy(&["a.gguf", "b.gguf"]);
    assert!(
        load(place.path())
            .unwrap_err()
            .contains("holds several GGUF files (a.gguf, b.gguf)")
    );
    std::fs::remove_file(place.path().join("b.gguf")).unwrap();
    std::fs::rename(place.path().join("a.gguf"), place.path().join("a-00001-of-00002.gguf")).unwrap();
    assert!(
        load(place.path())
            .unwrap_err()
            .contains("is a part of a model that was split")
    );
    std::fs::remove_file(place.path().join("a-00001-of-00002.gguf")).unwrap();

    let bytes = std::fs::read(folder("ref_gguf").join("model.gguf")).unwrap();
    for length in [0, 3, 20, 1000, bytes.len() - 100] {
        std::fs::write(place.path().join("a.gguf"), &bytes[..length]).unwrap();
        let message = load(place.path()).unwrap_err();
        assert!(message.contains("is not a whole GGUF file"), "{length}: {message}");
    }
    copy(&["a.gguf"]);
    let config = std::fs::read_to_string(folder("ref_qwen2/model/config.json")).unwrap();
    std::fs::write(place.path().join("config.json"), config).unwrap();
    let message = load(place.path()).unwrap_err();
    assert!(
        message.contains("architecture `llama`, but config.json beside it is of `qwen2`"),
        "{message}"
    );

    let other = run(&[
        "merge",
        "--adapter",
        "x",
        "--output",
        "y",
        "--model",
        "z",
        "--outtype",
        "f16",
    ]);
    assert_eq!(other.status.code(), Some(2));
}
