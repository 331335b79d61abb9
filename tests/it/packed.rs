//! Model directories in the formats of compressed-tensors, GPTQ, AWQ and FP8 in tiles, against the values of their own readers
//! (`tests/golden/make_packed.py`), and what is wrong with damaged ones.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use candle_core::Device;
use peft_tune_core::recipe::{AdapterSettings, DataSettings, Precision, Recipe, TargetModules, TargetPreset};
use peft_tune_engine::data::{Document, MicroBatch};
use peft_tune_engine::{BaseModel, ModelDirectory, Trainer, WrittenDtype};
use proptest::prelude::*;
use safetensors::tensor::{SafeTensors, TensorView};
use tempfile::TempDir;

use crate::golden::{Sample, folder};

const FORMATS: [&str; 14] = [
    "awq",
    "fp8_block",
    "fp8_channel",
    "fp8_tensor",
    "fp8_tiles",
    "gptq",
    "gptq_int8",
    "gptq_ordered",
    "int4",
    "int4_zeros",
    "int8",
    "int8_packed",
    "mxfp4",
    "nvfp4",
];

fn load(directory: &Path, precision: Precision) -> Result<BaseModel, String> {
    BaseModel::load(directory, precision, &Device::Cpu).map_err(|error| error.to_string())
}

#[test]
fn weights_have_the_values_that_the_formats_own_readers_give() {
    let expected = Sample::read(&folder("ref_packed/values.safetensors"));
    assert_eq!(expected.len(), 2 * FORMATS.len());
    for format in FORMATS {
        let base = load(&folder("ref_packed").join(format), Precision::Fp32).unwrap();
        let of_format = expected.iter().filter_map(|(name, sample)| {
            let name = name.strip_prefix(format)?.strip_prefix('.')?;
            Some((name, sample))
        });
        let mut compared = 0;
        for (name, sample) in of_format {
            sample.assert_equal(&base.tensor(name).unwrap(), &format!("{format}: {name}"));
            compared += 1;
        }
        assert_eq!(compared, 2, "{format}");
    }
}

#[test]
fn every_format_trains_in_every_precision_and_is_written_plain() {
    for format in FORMATS {
        let directory = folder("ref_packed").join(format);
        assert_eq!(
            BaseModel::stored_precision(&directory).unwrap(),
            Precision::Bf16,
            "{format}"
        );
        for precision in [Precision::Bf16, Precision::Nf4, Precision::Int8] {
            let base = Arc::new(load(&directory, precision).unwrap());
            let mut recipe = Recipe::new("packed", DataSettings::default());
            recipe.precision = precision;
            let mut trainer = Trainer::new(base, &recipe, 4).unwrap();
            let ids: Vec<u32> = (0..24).map(|place| place * 7 % 64).collect();
            let labels = ids.iter().map(|id| i64::from(*id)).collect();
            let batch = [MicroBatch::from_documents(&[Document { input_ids: ids, labels }])];
            let losses: Vec<f64> = (0..3).map(|_| trainer.step(&batch).unwrap().loss).collect();
            assert!(
                losses[2] < losses[0] && losses[0] < 5.0,
                "{format} {precision:?}: {losses:?}"
            );
        }
    }
}

/// A tensor of a checkpoint: its dtype, shape and bytes.
type StoredTensor = (safetensors::Dtype, Vec<usize>, Vec<u8>);

/// A copy of a packed model whose tensors and configuration `change` may change.
fn changed(format: &str, change: impl FnOnce(&mut BTreeMap<String, StoredTensor>, &mut serde_json::Value)) -> TempDir {
    changed_model(&folder("ref_packed").join(format), change)
}

fn changed_model(
    source: &Path,
    change: impl FnOnce(&mut BTreeMap<String, StoredTensor>, &mut serde_json::Value),
) -> TempDir {
    let directory = TempDir::new().unwrap();
    let bytes = fs::read(source.join("model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let mut parts: BTreeMap<String, StoredTensor> = file
        .iter()
        .map(|(name, view)| {
            let part = (view.dtype(), view.shape().to_vec(), view.data().to_vec());
            (name.to_owned(), part)
        })
        .collect();
    let mut config = crate::golden::json(&source.join("config.json"));
    change(&mut parts, &mut config);
    fs::write(directory.path().join("config.json"), config.to_string()).unwrap();
    let views = parts
        .iter()
        .map(|(name, (dtype, shape, bytes))| (name.as_str(), TensorView::new(*dtype, shape.clone(), bytes).unwrap()));
    safetensors::serialize_to_file(views, None, &directory.path().join("model.safetensors")).unwrap();
    directory
}

fn error(format: &str, change: impl FnOnce(&mut BTreeMap<String, StoredTensor>, &mut serde_json::Value)) -> String {
    load(changed(format, change).path(), Precision::Bf16).unwrap_err()
}

/// Parts of a GPTQ weight of zeros in the place of `module`'s weight, one group of inputs.
fn pack_gptq(parts: &mut BTreeMap<String, StoredTensor>, module: &str) {
    let (_, shape, _) = parts.remove(&format!("{module}.weight")).unwrap();
    let [outputs, inputs] = shape[..] else {
        panic!("{module} is no matrix")
    };
    let mut put = |part: &str, dtype, shape: Vec<usize>, size: usize| {
        let bytes = vec![0; size * shape.iter().product::<usize>()];
        parts.insert(format!("{module}.{part}"), (dtype, shape, bytes));
    };
    put("qweight", safetensors::Dtype::I32, vec![inputs / 8, outputs], 4);
    put("qzeros", safetensors::Dtype::I32, vec![1, outputs / 8], 4);
    put("scales", safetensors::Dtype::F16, vec![1, outputs], 2);
    put("g_idx", safetensors::Dtype::I32, vec![inputs], 4);
}

#[test]
fn a_packed_mixture_is_merged_under_the_names_of_its_files() {
    let source = folder("ref_mixtral").join("model");
    let mut published = Vec::new();
    let packed = changed_model(&source, |parts, config| {
        published.extend(parts.keys().cloned());
        let is_packed = |name: &&String| name.contains(".experts.") || name.contains(".self_attn.");
        let packed: Vec<String> = parts.keys().filter(is_packed).cloned().collect();
        for name in packed {
            pack_gptq(parts, name.strip_suffix(".weight").unwrap());
        }
        config["quantization_config"] =
            serde_json::json!({"quant_method": "gptq", "bits": 4, "group_size": -1, "sym": true, "desc_act": false});
    });
    let mut recipe = Recipe::new("packed", DataSettings::default());
    recipe.precision = Precision::Bf16;
    let adapter = AdapterSettings {
        target_modules: TargetModules::Preset(TargetPreset::Attention),
        ..AdapterSettings::default()
    };
    recipe.adapter = Some(adapter);
    let base = Arc::new(load(packed.path(), Precision::Bf16).unwrap());
    let trainer = Trainer::new(base, &recipe, 1).unwrap();
    let output = TempDir::new().unwrap();
    let directory = ModelDirectory {
        source: packed.path(),
        dtype: WrittenDtype::AsStored,
        shard_bytes: usize::MAX,
        quantization: None,
    };
    directory.write(output.path(), &trainer.merged().unwrap()).unwrap();
    let bytes = fs::read(output.path().join("model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let mut written: Vec<String> = file.names().into_iter().map(str::to_owned).collect();
    written.sort();
    published.sort();
    assert_eq!(written, published);
}

const DOWN: &str = "model.layers.0.mlp.down_proj";

#[test]
fn what_is_wrong_with_a_packed_weight_is_said_with_its_name() {
    let missing = error("awq", |parts, _| drop(parts.remove(&format!("{DOWN}.scales"))));
    assert!(missing.contains(&format!("tensor `{DOWN}.weight` in ")), "{missing}");
    assert!(
        missing.contains(&format!("`{DOWN}.scales` is missing beside it")),
        "{missing}"
    );

    let shape = error("int4", |parts, _| {
        let part = parts.get_mut(&format!("{DOWN}.weight_scale")).unwrap();
        part.1 = vec![part.1.iter().product(), 1];
    });
    assert!(shape.contains("weight_scale` has shape [320, 1]"), "{shape}");

    let group = error("gptq_ordered", |parts, _| {
        parts.get_mut(&format!("{DOWN}.g_idx")).unwrap().2[..4].copy_from_slice(&9i32.to_le_bytes());
    });
    assert!(
        group.contains("g_idx` holds 9, but only the groups 0 to 4 are known"),
        "{group}"
    );

    let constant = error("fp8_channel", |parts, _| {
        parts.get_mut(&format!("{DOWN}.weight_scale")).unwrap().2[..2].copy_from_slice(&[0xc0, 0x7f]);
    });
    assert!(
        constant.contains("weight_scale` holds a value that is not finite, at element 0"),
        "{constant}"
    );

    let code = error("fp8_tensor", |parts, _| {
        parts.get_mut(&format!("{DOWN}.weight")).unwrap().2[3] = 0x7f
    });
    assert!(code.contains("its value at element 3 is not finite"), "{code}");

    let extra = error("gptq", |parts, _| {
        parts.get_mut(&format!("{DOWN}.bias")).unwrap().2[0] = 1
    });
    assert!(
        extra.contains(&format!("`{DOWN}.bias`")) && extra.contains("no place"),
        "{extra}"
    );

    let outputs = error("awq", |parts, config| {
        for part in ["qweight", "qzeros", "scales"] {
            parts.remove(&format!("{DOWN}.{part}"));
        }
        let plain = (safetensors::Dtype::BF16, vec![64, 164], vec![0; 2 * 64 * 164]);
        parts.insert(format!("{DOWN}.weight"), plain);
        config["intermediate_size"] = serde_json::json!(164);
    });
    assert!(outputs.contains("164 outputs, which are no multiple of 8"), "{outputs}");

    let whole = error("int8_packed", |parts, _| {
        drop(parts.remove(&format!("{DOWN}.weight_packed")))
    });
    assert!(
        whole.contains(&format!("tensor `{DOWN}.weight` is missing in ")),
        "{whole}"
    );
}

#[test]
fn formats_that_are_not_read_are_refused_by_name() {
    let method = error("awq", |_, config| {
        config["quantization_config"]["quant_method"] = "hqq".into()
    });
    assert!(method.contains("config.json says in `quantization_config` that the weights are quantized by `hqq`"));
    assert!(
        method.contains("known are bitsandbytes, compressed-tensors"),
        "{method}"
    );
    let form = error("gptq", |_, config| {
        config["quantization_config"]["checkpoint_format"] = "marlin".into()
    });
    assert!(form.contains("`gptq (marlin)`"), "{form}");
    let bits = error("gptq", |parts, _| {
        // Three bits take 15 rows of words for 160 inputs.
        let part = parts.get_mut(&format!("{DOWN}.qweight")).unwrap();
        (part.1[0], part.2) = (15, part.2[..15 * 64 * 4].to_vec());
    });
    assert!(
        bits.contains("15 rows of words for 160 inputs (2, 4 and 8 bits are read)"),
        "{bits}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Checks that reading ends with a model or a message, whatever the parts of a packed weight are.
    #[test]
    fn damaged_parts_never_end_the_process(
        format in proptest::sample::select(&FORMATS),
        which in any::<prop::sample::Index>(),
        place in any::<prop::sample::Index>(),
        byte in any::<u8>(),
        turned in any::<bool>(),
    ) {
        let directory = changed(format, |parts, _| {
            let names: Vec<String> = parts.keys().filter(|name| name.contains("layers")).cloned().collect();
            let part = parts.get_mut(which.get(&names)).unwrap();
            let at = place.index(part.2.len());
            part.2[at] = byte;
            if turned {
                part.1.reverse();
            }
        });
        let _ = load(directory.path(), Precision::Bf16);
    }
}
