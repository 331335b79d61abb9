//! Files whose tensors PyTorch drew from known seeds, made again from the recipes in `tests/golden/ref_*/seeded.json`.
//!
//! An entry of a recipe is a tensor's name, its shape and where its values come from (`tests/golden/README.md`). A file
//! whose bytes have another SHA-256 than its recipe says fails the test that asked for it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use safetensors::SafeTensors;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::torch_random::TorchRandom;

/// Values of the 4-bit codes of MXFP4.
const FP4: [f32; 16] = [
    0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0,
];

/// Sees to it that all files of the reference's recipe are there, once in a process.
pub(crate) fn make(reference: &Path) {
    // Design note: whoever asks for a folder may be the first, in any thread and in several processes at a time.
    static MADE: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    if made.contains(reference) {
        return;
    }
    if let Ok(text) = fs::read_to_string(reference.join("seeded.json")) {
        let recipes: BTreeMap<String, Value> = serde_json::from_str(&text).unwrap();
        let mut maker = Maker::new(reference);
        for (file, recipe) in &recipes {
            maker.see_to(file, recipe);
        }
    }
    made.insert(reference.to_owned());
}

/// The numbers that a reference's files are made from.
struct Maker<'a> {
    reference: &'a Path,
    /// The tensors that come from no seed; empty where there are none.
    kept: Vec<u8>,
    streams: BTreeMap<u64, TorchRandom>,
}

impl<'a> Maker<'a> {
    fn new(reference: &'a Path) -> Self {
        Self {
            reference,
            kept: fs::read(reference.join("kept.safetensors")).unwrap_or_default(),
            streams: BTreeMap::new(),
        }
    }

    /// Writes a file unless it is there: under another name first, so that no other process sees a part of it.
    fn see_to(&mut self, file: &str, recipe: &Value) {
        let path = self.reference.join(file);
        let expected = recipe["sha256"].as_str().unwrap();
        if fs::read(&path).is_ok_and(|bytes| sha256(&bytes) == expected) {
            return;
        }
        let bytes = self.bytes(recipe);
        assert_eq!(
            sha256(&bytes),
            expected,
            "the recipe of {} makes another file",
            path.display()
        );
        let unfinished = self.reference.join(format!("unfinished.{}", std::process::id()));
        fs::write(&unfinished, bytes).unwrap();
        fs::rename(&unfinished, &path).unwrap();
    }

    /// A safetensors file: the length of the header, the header, the tensors in the recipe's order.
    fn bytes(&mut self, recipe: &Value) -> Vec<u8> {
        let mut header = Vec::new();
        if recipe["metadata"].is_object() {
            header.push(format!("\"__metadata__\":{}", recipe["metadata"]));
        }
        let mut data = Vec::new();
        for entry in recipe["tensors"].as_array().unwrap() {
            let start = data.len();
            let dtype = self.push_values(entry, &mut data);
            header.push(format!(
                "{}:{{\"dtype\":\"{dtype}\",\"shape\":{},\"data_offsets\":[{start},{}]}}",
                entry[0],
                entry[1],
                data.len()
            ));
        }
        let mut header = format!("{{{}}}", header.join(","));
        header.extend(std::iter::repeat_n(
            ' ',
            header.len().next_multiple_of(8) - header.len(),
        ));
        let length = (header.len() as u64).to_le_bytes();
        [&length, header.as_bytes(), &data].concat()
    }

    /// Appends a tensor's bytes and returns its type.
    fn push_values(&mut self, entry: &Value, data: &mut Vec<u8>) -> String {
        let shape: Vec<usize> = entry[1].as_array().unwrap().iter().map(size).collect();
        let count = shape.iter().product();
        let number = |index: usize| entry[index].as_f64().unwrap() as f32;
        let kind = entry[2].as_str().unwrap();
        let values = match kind {
            "normal" => {
                let [factor, added, second] = [(5, 1.0), (6, 0.0), (7, 1.0)]
                    .map(|(index, usually)| entry[index].as_f64().unwrap_or(usually) as f32);
                let normal = self.stream(&entry[3]).normal(size(&entry[4]), count);
                normal.iter().map(|value| (value * factor + added) * second).collect()
            }
            "uniform" => {
                let bound = number(5);
                let uniform = self.stream(&entry[3]).uniform(size(&entry[4]), count);
                uniform.iter().map(|value| value.mul_add(2.0 * bound, -bound)).collect()
            }
            "fill" => vec![number(3); count],
            "values" => {
                let values = entry[3].as_array().unwrap().iter();
                values.map(|value| value.as_f64().unwrap() as f32).collect()
            }
            "mxfp4" => self.widened(entry[3].as_str().unwrap(), &shape),
            "kept" => {
                let kept = SafeTensors::deserialize(&self.kept).unwrap();
                let view = kept.tensor(entry[3].as_str().unwrap()).unwrap();
                data.extend_from_slice(view.data());
                return view.dtype().to_string();
            }
            _ => panic!("`{kind}` is no source of values"),
        };
        values
            .iter()
            .for_each(|value| data.extend_from_slice(&value.to_le_bytes()));
        "F32".to_owned()
    }

    fn stream(&mut self, seed: &Value) -> &mut TorchRandom {
        let seed = seed.as_u64().unwrap();
        self.streams
            .entry(seed)
            .or_insert_with(|| TorchRandom::new(seed as u32))
    }

    /// Values (experts, inputs, outputs) of MXFP4 codes (experts, outputs, inputs / 32, 16), the lower half of a byte
    /// first, and of their scales (experts, outputs, inputs / 32).
    fn widened(&self, name: &str, shape: &[usize]) -> Vec<f32> {
        let kept = SafeTensors::deserialize(&self.kept).unwrap();
        let [codes, scales] = ["_blocks", "_scales"].map(|part| kept.tensor(&format!("{name}{part}")).unwrap().data());
        let &[experts, inputs, outputs] = shape else {
            panic!("{name} has shape {shape:?}")
        };
        let mut values = vec![0.0; experts * inputs * outputs];
        for index in 0..values.len() {
            // Where the value lies among the codes.
            let (expert, output, input) = (index / (inputs * outputs), index / inputs % outputs, index % inputs);
            let code = (codes[index / 2] >> (4 * (index % 2))) & 15;
            // The scale is an F32's exponent.
            let scale = f32::from_bits(u32::from(scales[index / 32]) << 23);
            values[(expert * inputs + input) * outputs + output] = FP4[usize::from(code)] * scale;
        }
        values
    }
}

fn size(value: &Value) -> usize {
    value.as_u64().unwrap() as usize
}

fn sha256(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}
