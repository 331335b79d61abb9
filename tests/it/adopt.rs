//! `peft-tune adopt`: a model with a `model_type` of its own, read as one of a known family.

use std::path::Path;
use std::process::Output;
use std::sync::Arc;

use candle_core::Device;
use peft_tune_core::recipe::Precision;
use peft_tune_engine::{BaseModel, Trainer};

use crate::golden::{assert_close, folder, json, losses, numbers, recipe, whole_batch};

/// The toy Llama under a `model_type` that nobody knows.
fn house_model(place: &Path) -> std::path::PathBuf {
    let model = place.join("model");
    std::fs::create_dir(&model).unwrap();
    let source = folder("ref_llama/model");
    std::fs::copy(source.join("model.safetensors"), model.join("model.safetensors")).unwrap();
    let mut config = json(&source.join("config.json"));
    config["model_type"] = "house_model".into();
    std::fs::write(model.join("config.json"), config.to_string()).unwrap();
    model
}

fn adopt(model: &Path, family: &str, output: &Path) -> Output {
    let mut command = crate::program();
    command
        .arg("adopt")
        .arg(model)
        .args(["--as-family", family, "--output"])
        .arg(output);
    command.output().unwrap()
}

#[test]
fn a_model_of_another_name_trains_as_its_family() {
    let place = tempfile::TempDir::new().unwrap();
    let (model, adopted) = (house_model(place.path()), place.path().join("adopted"));
    let error = BaseModel::load(&model, Precision::Fp32, &Device::Cpu)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("`house_model`") && error.contains("peft-tune adopt --as-family llama"),
        "{error}"
    );
    let output = adopt(&model, "llama", &adopted);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(
        said.contains("read as llama: 2 layers") && said.contains("every tensor fits"),
        "{said}"
    );
    let base = BaseModel::load(&adopted, Precision::Fp32, &Device::Cpu).unwrap();
    let mut trainer = Trainer::new(Arc::new(base), &recipe(&folder("ref_llama/adapter_init")), 20).unwrap();
    let expected = numbers(&json(&folder("ref_llama/ref.json"))["losses_f64"]);
    assert_close(
        &losses(&mut trainer, &whole_batch("ref_llama"), 20),
        &expected,
        1e-5,
        "loss",
    );
}

#[test]
fn a_model_of_other_layers_is_not_adopted() {
    let place = tempfile::TempDir::new().unwrap();
    let (model, adopted) = (house_model(place.path()), place.path().join("adopted"));
    for (family, reason) in [("qwen3", "q_norm"), ("phi3", "qkv_proj"), ("bert", "no such family")] {
        let output = adopt(&model, family, &adopted);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{family}: {errors}");
        assert!(errors.contains(reason), "{family}: {errors}");
        assert!(!adopted.exists());
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_folder_that_cannot_be_filled_is_not_left() {
    let place = tempfile::TempDir::new().unwrap();
    let model = house_model(place.path());
    // A path has 4095 bytes at most: that of the folder has fewer, and that of a file in it would have more.
    let mut parent = place.path().to_owned();
    while parent.as_os_str().len() < 3850 {
        parent.push("x".repeat(200));
    }
    std::fs::create_dir_all(&parent).unwrap();
    let adopted = parent.join("y".repeat(4093 - parent.as_os_str().len()));
    let output = adopt(&model, "llama", &adopted);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(errors.contains("cannot write"), "{errors}");
    assert_eq!(std::fs::read_dir(&parent).unwrap().count(), 0);
}
