//! `merge --quantize`, as a person uses it: what is written, what reads it back, and what is refused.

use std::collections::BTreeMap;
use std::path::Path;

use candle_core::{DType, Device, Tensor};
use peft_tune_core::recipe::Precision;
use peft_tune_engine::{BaseModel, Generator};
use peft_tune_kernels::quant::{Int8, Nf4, Quantized};
use serde_json::Value;

use crate::calls::{quickstart, run, text};

/// Trains an adapter on the quickstart's model into `adapter`.
fn train(folder: &Path) {
    let quickstart = quickstart();
    let recipe = format!(
        "model: {quickstart}/base\ndata: {{train: {quickstart}/train.jsonl, held_out: {quickstart}/held_out.jsonl}}\n\
         batch: {{micro_batch: 4, sequence_length: 128}}\noptimizer: {{learning_rate: 2e-3}}\n\
         training: {{length: {{steps: 4}}, evaluation_rows: 4}}\n"
    );
    std::fs::write(folder.join("recipe.yaml"), recipe).unwrap();
    let output = run(folder, &["train", "recipe.yaml", "--output", "adapter"]);
    assert!(output.status.success(), "{}", text(&output));
}

/// Every tensor of a model in `precision`, with its adapter folded in where there is one.
fn tensors(model: &Path, adapter: Option<&Path>, precision: Precision) -> BTreeMap<String, Tensor> {
    let base = BaseModel::load(model, precision, &Device::Cpu).unwrap();
    let names: Vec<String> = base
        .architecture()
        .tensors()
        .into_iter()
        .map(|tensor| tensor.name)
        .collect();
    let generator = Generator::new(base, adapter).unwrap();
    let merged = generator.merged().unwrap();
    let tensor = |name: String| {
        let value = merged.tensor(&name).unwrap();
        (name, value)
    };
    names.into_iter().map(tensor).collect()
}

fn bits(tensor: &Tensor) -> Vec<u32> {
    let values: Vec<f32> = tensor.flatten_all().unwrap().to_vec1().unwrap();
    values.into_iter().map(f32::to_bits).collect()
}

#[test]
fn what_is_read_back_is_the_merged_weight_quantized_once() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    train(folder);
    let base = Path::new(&quickstart()).join("base");
    let plain = tensors(&base, Some(&folder.join("adapter")), Precision::Bf16);
    for (form, precision) in [("int8", Precision::Int8), ("nf4", Precision::Nf4)] {
        let merged = run(
            folder,
            &["merge", "--adapter", "adapter", "--output", form, "--quantize", form],
        );
        assert!(merged.status.success(), "{}", text(&merged));
        assert_eq!(BaseModel::stored_precision(&folder.join(form)).unwrap(), precision);
        let read = tensors(&folder.join(form), None, precision);
        let mut quantized = 0;
        for (name, value) in &plain {
            let is_linear = name.ends_with("_proj.weight");
            // Rows of 352 elements, the inputs of down_proj, end in the middle of blocks.
            let expected = match (is_linear, precision) {
                (false, _) => value.to_dtype(DType::BF16).unwrap().to_dtype(DType::F32).unwrap(),
                (true, Precision::Int8) => Int8::quantize_rows(value).unwrap().dequantize(DType::F32).unwrap(),
                (true, _) => Nf4::quantize(value, false).unwrap().dequantize(DType::F32).unwrap(),
            };
            assert_eq!(bits(&read[name]), bits(&expected), "{form} {name}");
            quantized += usize::from(is_linear);
        }
        assert_eq!(quantized, 4 * 7);
        let config = std::fs::read_to_string(folder.join(form).join("config.json")).unwrap();
        let config: Value = serde_json::from_str(&config).unwrap();
        let said = &config["quantization_config"];
        assert_eq!(said["quant_method"], "bitsandbytes");
        assert_eq!(said["load_in_4bit"], precision == Precision::Nf4);
        assert_eq!(said["load_in_8bit"], precision == Precision::Int8);
        // Whatever takes a model takes this one.
        let answer = run(
            folder,
            &["generate", "--model", form, "--prompt", "Ben", "--max-tokens", "4"],
        );
        assert!(answer.status.success(), "{}", text(&answer));
    }
    // Its weights are widened where they are merged again without the option.
    let again = run(
        folder,
        &["merge", "--model", "nf4", "--adapter", "adapter", "--output", "again"],
    );
    assert!(again.status.success(), "{}", text(&again));
    let config = std::fs::read_to_string(folder.join("again/config.json")).unwrap();
    assert!(!config.contains("quantization_config"), "{config}");
}

#[test]
fn what_has_no_such_form_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    train(folder);
    let refused = |arguments: &[&str], words: &[&str]| {
        let mut all = vec!["merge", "--adapter", "adapter", "--output", "out"];
        all.extend(arguments);
        let output = run(folder, &all);
        assert!(!output.status.success(), "{}", text(&output));
        assert!(
            words.iter().all(|word| text(&output).contains(word)),
            "{}",
            text(&output)
        );
    };
    refused(
        &["--quantize", "nf4", "--format", "gguf"],
        &["`--quantize` is for `--format safetensors`", "q8_0"],
    );
    refused(&["--quantize", "int4"], &["int4", "int8, nf4"]);
}
