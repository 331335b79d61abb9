//! Model directories that are damaged, hostile, or do not agree with their `config.json`: one clear error each.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Tensor};
use peft_tune_core::recipe::Precision;
use peft_tune_engine::{BaseModel, Checkpoint};
use proptest::prelude::*;
use tempfile::TempDir;

use crate::golden::{Sample, folder, tensors};

/// A copy of the toy Llama's directory whose tensors `change` may change.
fn model(change: impl FnOnce(&mut HashMap<String, Tensor>)) -> TempDir {
    let source = folder("ref_llama/model");
    let directory = TempDir::new().unwrap();
    fs::copy(source.join("config.json"), directory.path().join("config.json")).unwrap();
    let mut weights = tensors(&source.join("model.safetensors"));
    change(&mut weights);
    candle_core::safetensors::save(&weights, directory.path().join("model.safetensors")).unwrap();
    directory
}

fn load_error(directory: &Path) -> String {
    BaseModel::load(directory, Precision::Fp32, &Device::Cpu)
        .unwrap_err()
        .to_string()
}

fn zeros(shape: &[usize], dtype: DType) -> Tensor {
    Tensor::zeros(shape, dtype, &Device::Cpu).unwrap()
}

const NORM: &str = "model.norm.weight";

#[test]
fn tensors_that_do_not_agree_with_the_config_are_named() {
    let missing = load_error(
        model(|weights| {
            weights.remove(NORM);
        })
        .path(),
    );
    assert!(
        missing.starts_with("tensor `model.norm.weight` is missing in "),
        "{missing}"
    );
    let extra = load_error(
        model(|weights| {
            weights.insert("model.layers.2.mlp.up_proj.weight".into(), zeros(&[1], DType::F32));
        })
        .path(),
    );
    assert!(
        extra.contains("`model.layers.2.mlp.up_proj.weight`") && extra.contains("no place"),
        "{extra}"
    );
    let shape = load_error(
        model(|weights| {
            weights.insert(NORM.into(), zeros(&[63], DType::F32));
        })
        .path(),
    );
    assert!(
        shape.contains("has shape [63], but config.json asks for [64]"),
        "{shape}"
    );
    let dtype = load_error(
        model(|weights| {
            weights.insert(NORM.into(), zeros(&[64], DType::U8));
        })
        .path(),
    );
    assert!(
        dtype.contains("stored as U8; supported are F32, F16 and BF16"),
        "{dtype}"
    );
}

#[test]
fn a_weight_that_is_not_a_number_is_found() {
    let directory = model(|weights| {
        let values: Vec<f32> = (0..64).map(|index| if index == 9 { f32::NAN } else { 1.0 }).collect();
        weights.insert(NORM.into(), Tensor::from_vec(values, 64, &Device::Cpu).unwrap());
    });
    let error = load_error(directory.path());
    assert!(
        error.contains("`model.norm.weight`") && error.contains("not finite as f32, at element 9"),
        "{error}"
    );
}

#[test]
fn a_weight_too_large_for_fp16_asks_for_another_precision() {
    let directory = model(|weights| {
        weights.insert(NORM.into(), (zeros(&[64], DType::F32) + 1e6).unwrap());
    });
    let error = BaseModel::load(directory.path(), Precision::Fp16, &Device::Cpu)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("not finite as f16") && error.contains("another `precision`"),
        "{error}"
    );
}

#[test]
fn buffers_of_old_checkpoints_and_a_stored_tied_head_are_ignored() {
    let directory = model(|weights| {
        weights.insert(
            "model.layers.0.self_attn.rotary_emb.inv_freq".into(),
            zeros(&[8], DType::F32),
        );
        let embedding = weights["model.embed_tokens.weight"].clone();
        weights.insert("lm_head.weight".into(), embedding);
    });
    BaseModel::load(directory.path(), Precision::Bf16, &Device::Cpu).unwrap();
}

#[test]
fn a_directory_without_weights_names_what_it_needs() {
    let directory = model(|_| ());
    fs::remove_file(directory.path().join("model.safetensors")).unwrap();
    let error = load_error(directory.path());
    assert!(
        error.contains("holds neither model.safetensors nor model.safetensors.index.json"),
        "{error}"
    );
    fs::remove_file(directory.path().join("config.json")).unwrap();
    assert!(load_error(directory.path()).contains("config.json"));
}

/// Cuts the toy Llama into two shards with an index.
fn sharded() -> (TempDir, PathBuf) {
    let directory = model(|_| ());
    let single = directory.path().join("model.safetensors");
    let mut shards = [HashMap::new(), HashMap::new()];
    let mut map = serde_json::Map::new();
    for (index, (name, tensor)) in tensors(&single).into_iter().enumerate() {
        let shard = index % 2;
        map.insert(name.clone(), format!("model-{}-of-2.safetensors", shard + 1).into());
        shards[shard].insert(name, tensor);
    }
    for (index, shard) in shards.iter().enumerate() {
        let path = directory.path().join(format!("model-{}-of-2.safetensors", index + 1));
        candle_core::safetensors::save(shard, path).unwrap();
    }
    fs::remove_file(single).unwrap();
    let path = directory.path().join("model.safetensors.index.json");
    let index = serde_json::json!({"metadata": {"total_size": 1}, "weight_map": map});
    fs::write(&path, index.to_string()).unwrap();
    (directory, path)
}

#[test]
fn shards_give_the_same_model_as_one_file() {
    let load = |directory: &Path| BaseModel::load(directory, Precision::Fp32, &Device::Cpu).unwrap();
    let (directory, _) = sharded();
    let (one, two) = (load(&folder("ref_llama/model")), load(directory.path()));
    for tensor in one.architecture().tensors() {
        let values = |model: &BaseModel| {
            let tensor = model.tensor(&tensor.name).unwrap();
            tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap()
        };
        assert!(values(&one) == values(&two), "{}", tensor.name);
    }
    assert_eq!(one.bytes() as u64, 4 * one.architecture().parameter_count().total());
}

#[test]
fn models_that_bitsandbytes_quantized_load_with_equal_values() {
    let values = Sample::read(&folder("ref_bitsandbytes/values.safetensors"));
    let flat = |tensor: Tensor| tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap();
    for (name, precision) in [
        ("nf4", Precision::Nf4),
        ("nf4_double", Precision::Nf4Double),
        ("int8", Precision::Int8),
    ] {
        let directory = folder("ref_bitsandbytes").join(name);
        let codes = BaseModel::load(&directory, precision, &Device::Cpu).unwrap();
        let widened = BaseModel::load(&directory, Precision::Fp32, &Device::Cpu).unwrap();
        let mut compared = 0;
        for (key, expected) in &values {
            let Some(tensor) = key.strip_prefix(&format!("{name}.")) else {
                continue;
            };
            expected.assert_equal(&codes.tensor(tensor).unwrap(), key);
            expected.assert_equal(&widened.tensor(tensor).unwrap(), &format!("{key} in fp32"));
            compared += 1;
        }
        assert_eq!(compared, 2, "{name}");
        assert!(codes.bytes() < widened.bytes() / 2, "{name} keeps its codes");
        // Blocks of 64 in 8 bits are this engine's own, and the mean under nested constants may differ in its last bit;
        // plain 4-bit codes are those that bitsandbytes makes.
        if precision == Precision::Nf4 {
            let own = BaseModel::load(&folder("ref_llama/model"), precision, &Device::Cpu).unwrap();
            for tensor in own.architecture().tensors() {
                let pair = [&own, &codes].map(|model| model.tensor(&tensor.name).unwrap());
                let [own, theirs] = pair.map(|tensor| flat(tensor.to_dtype(DType::F32).unwrap()));
                assert!(own == theirs, "{name} {}", tensor.name);
            }
        }
    }
}

#[test]
fn an_index_that_lies_is_caught() {
    let (directory, path) = sharded();
    let index = fs::read_to_string(&path).unwrap();
    let with = |from: &str, to: &str| {
        fs::write(&path, index.replace(from, to)).unwrap();
        load_error(directory.path())
    };
    let outside = with("model-1-of-2.safetensors", "../model-1-of-2.safetensors");
    assert!(outside.contains("not a plain file name"), "{outside}");
    let absent = with("model-1-of-2.safetensors", "model-3-of-2.safetensors");
    assert!(absent.contains("model-3-of-2.safetensors"), "{absent}");
    let misplaced = with("\"model.norm.weight\"", "\"model.other.weight\"");
    assert!(misplaced.contains("`model.other.weight`"), "{misplaced}");
    let broken = with("{", "");
    assert!(broken.contains("not a valid index"), "{broken}");
}

/// Opens `bytes` as a checkpoint and reads whatever it claims to hold; only a panic fails.
fn open(bytes: &[u8]) -> Option<String> {
    let directory = TempDir::new().unwrap();
    fs::write(directory.path().join("model.safetensors"), bytes).unwrap();
    let checkpoint = match Checkpoint::open(directory.path()) {
        Ok(checkpoint) => checkpoint,
        Err(error) => return Some(error.to_string()),
    };
    let names: Vec<String> = checkpoint.names().map(str::to_owned).collect();
    for name in names {
        let _ = checkpoint.tensor(&name, &[2, 2], DType::F32, &Device::Cpu);
    }
    None
}

/// A safetensors file with this header and `data` zero bytes.
fn file(header: &str, data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + data, 0);
    bytes
}

#[test]
fn hostile_headers_are_refused() {
    let header =
        |shape: &str, offsets: &str| format!(r#"{{"a":{{"dtype":"F32","shape":{shape},"data_offsets":{offsets}}}}}"#);
    assert_eq!(open(&file(&header("[2,2]", "[0,16]"), 16)), None);
    for (shape, offsets) in [
        ("[2,2]", "[0,8]"),
        ("[2,2]", "[16,0]"),
        ("[2,2]", "[8,24]"),
        ("[2,2]", "[0,18446744073709551615]"),
        ("[4611686018427387904,4]", "[0,16]"),
        ("[-1]", "[0,16]"),
        ("[2,3]", "[0,24]"),
    ] {
        let error = open(&file(&header(shape, offsets), 16));
        assert!(
            error.is_some_and(|error| error.contains("not a whole safetensors file")),
            "{shape} {offsets}"
        );
    }
    // Each tensor is possible by itself; where the last one ends, the address space does too.
    let huge = (u64::MAX - 7) / 8;
    let chain: Vec<String> = (0..8)
        .map(|i| {
            let (start, end) = (i * huge, (i + 1) * huge);
            format!(r#""t{i}":{{"dtype":"U8","shape":[{huge}],"data_offsets":[{start},{end}]}}"#)
        })
        .collect();
    let error = open(&file(&format!("{{{}}}", chain.join(",")), 16));
    assert!(error.is_some_and(|error| error.contains("not a whole safetensors file")));
    for length in [u64::MAX, 1 << 40, 1000] {
        let mut bytes = file("{}", 0);
        bytes[..8].copy_from_slice(&length.to_le_bytes());
        assert!(open(&bytes).is_some(), "header length {length}");
    }
    assert!(open(b"").is_some() && open(b"1234567").is_some());
}

#[test]
fn every_truncation_is_refused() {
    let bytes = fs::read(folder("ref_llama/model/model.safetensors")).unwrap();
    for length in [0, 7, 8, 100, 2000, bytes.len() / 2, bytes.len() - 1] {
        assert!(open(&bytes[..length]).is_some(), "{length} of {} bytes", bytes.len());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn damaged_files_never_panic(damage in prop::collection::vec((0usize..160, any::<u8>()), 1..6)) {
        let header = r#"{"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},"b":{"dtype":"BF16","shape":[2,2],"data_offsets":[16,24]}}"#;
        let mut bytes = file(header, 24);
        for (place, byte) in damage {
            let place = place % bytes.len();
            bytes[place] = byte;
        }
        open(&bytes);
    }

    #[test]
    fn damaged_configs_never_panic(place in 0usize..900, text in "[0-9a-z{}\\[\\]\",:.-]{0,6}") {
        let path = folder("ref_llama31/model/config.json");
        let mut config = fs::read_to_string(&path).unwrap();
        let place = place.min(config.len());
        config.replace_range(place..(place + text.len()).min(config.len()), &text);
        let _ = peft_tune_core::architecture::Architecture::from_json(&path, &config);
    }
}
