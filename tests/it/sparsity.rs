//! Weights of which two of each four values are left out, as a person uses them: what stays, what trains, what is told and refused.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use peft_tune_core::architecture::Architecture;
use peft_tune_core::recipe::{
    AdapterSettings, BatchSettings, DataFormat, DataSettings, HeldOut, Precision, PrecisionSchedule, Recipe,
    WeightSparsity,
};
use peft_tune_engine::data::{Document, MicroBatch, PreparedData};
use peft_tune_engine::hub::ModelFiles;
use peft_tune_engine::{BaseModel, Sparsity, Trainer, load_base};
use serde_json::Value;

use crate::calls::{quickstart, run, text};
use crate::golden::{base, folder as golden, json, recipe as golden_recipe, tensors, whole_batch};

fn written(settings: &str) -> String {
    let quickstart = quickstart();
    format!(
        "model: {quickstart}/base\ndata: {{train: {quickstart}/train.jsonl, held_out: {quickstart}/held_out.jsonl}}\n\
         batch: {{micro_batch: 4, sequence_length: 128}}\noptimizer: {{learning_rate: 2e-3}}\n\
         training: {{length: {{steps: 6}}, evaluation_rows: 8}}\n{settings}\n"
    )
}

fn values(tensor: &Tensor) -> Vec<f64> {
    let wide = tensor.to_dtype(DType::F32).unwrap().flatten_all().unwrap();
    wide.to_vec1::<f32>().unwrap().into_iter().map(f64::from).collect()
}

/// The weight with zeros in place of all but the two of each four with the largest scores, the lower column of equal ones: plain
/// loops in F64.
fn masked(weight: &[f64], inputs: usize, norms: &[f64]) -> Vec<f64> {
    let mut masked = vec![0.0; weight.len()];
    for (group, four) in weight.chunks(4).enumerate() {
        let score = |place: usize| four[place].abs() * norms[(4 * group + place) % inputs];
        for place in 0..4 {
            let before = (0..4)
                .filter(|other| score(*other) > score(place) || (score(*other) == score(place) && *other < place));
            if before.count() < 2 {
                masked[4 * group + place] = four[place];
            }
        }
    }
    masked
}

/// Tensors of `model`, those of linear weights masked by size.
fn masked_by_size(model: &Path) -> BTreeMap<String, Tensor> {
    let of = |(name, tensor): (String, Tensor)| {
        if !name.ends_with("_proj.weight") {
            return (name, tensor);
        }
        let inputs = tensor.dim(1).unwrap();
        let masked = masked(&values(&tensor), inputs, &vec![1.0; inputs]);
        let masked = Tensor::from_vec(masked, tensor.dims(), &Device::Cpu).unwrap();
        (name, masked.to_dtype(DType::F32).unwrap())
    };
    tensors(&model.join("model.safetensors")).into_iter().map(of).collect()
}

fn losses(base: &Arc<BaseModel>, recipe: &Recipe, batch: &[MicroBatch]) -> Vec<f64> {
    let mut trainer = Trainer::new(Arc::clone(base), recipe, 4).unwrap();
    let mut losses: Vec<f64> = (0..4).map(|_| trainer.step(batch).unwrap().loss).collect();
    losses.push(trainer.evaluate(batch).unwrap().loss);
    losses
}

/// Checks that a dense model on weights that were masked beforehand, by loops of this test, trains to the same losses
/// in every bit.
#[test]
fn a_sparse_model_trains_as_a_dense_one_of_masked_weights() {
    for family in ["ref_llama", "ref_qwen2"] {
        let model = golden(family).join("model");
        let architecture = Architecture::from_config(&model.join("config.json")).unwrap();
        let dense =
            BaseModel::from_tensors(architecture, masked_by_size(&model), Precision::Fp32, &Device::Cpu).unwrap();
        let sparsity = Sparsity::magnitude(Precision::Fp32);
        let sparse = BaseModel::load_sparse(&model, Precision::Fp32, sparsity, &Device::Cpu).unwrap();
        assert!(sparse.bytes() < dense.bytes());
        let (dense, sparse) = (Arc::new(dense), Arc::new(sparse));
        let mut recipe = golden_recipe(&golden(family).join("adapter_init"));
        let mut dora = recipe.clone();
        dora.adapter = Some(AdapterSettings {
            dora: true,
            dropout: 0.1,
            ..AdapterSettings::default()
        });
        for recipe in [&mut recipe, &mut dora] {
            let expected = losses(&dense, recipe, &whole_batch(family));
            recipe.weight_sparsity = WeightSparsity::Magnitude;
            assert_eq!(losses(&sparse, recipe, &whole_batch(family)), expected, "{family}");
        }
    }
}

/// Checks every family, experts and other mixers among them, in every dense precision.
#[test]
fn every_family_trains_sparse_as_its_expanded_weights_do() {
    let families = [
        "ref_phi3",
        "ref_gemma3",
        "ref_qwen3_moe",
        "ref_gpt_oss",
        "ref_deepseek_v3",
        "ref_llama4",
        "ref_lfm2",
        "ref_qwen3_5",
    ];
    for family in families {
        for precision in [Precision::Fp32, Precision::Bf16, Precision::Fp16] {
            let sparse = Arc::into_inner(base(family, precision)).unwrap();
            let architecture = sparse.architecture().clone();
            let dense_bytes = sparse.bytes();
            let sparse = sparse.sparsified(Sparsity::magnitude(precision)).unwrap();
            assert!(sparse.bytes() < dense_bytes, "{family}");
            let expanded = architecture.tensors().into_iter().map(|tensor| {
                let value = sparse.tensor(&tensor.name).unwrap();
                (tensor.name, value)
            });
            let expanded: BTreeMap<String, Tensor> = expanded.collect();
            let dense = BaseModel::from_tensors(architecture, expanded, precision, &Device::Cpu).unwrap();
            let mut recipe = golden_recipe(&golden(family).join("adapter_init"));
            recipe.precision = precision;
            let mut expected = Trainer::new(Arc::new(dense), &recipe, 4).unwrap();
            recipe.weight_sparsity = WeightSparsity::Magnitude;
            let mut trainer = Trainer::new(Arc::new(sparse), &recipe, 4).unwrap();
            for step in 0..3 {
                let batch = whole_batch(family);
                let (expected, got) = (expected.step(&batch).unwrap().loss, trainer.step(&batch).unwrap().loss);
                assert_eq!(got, expected, "{family} {precision:?} step {step}");
            }
        }
    }
}

#[test]
fn steps_in_fp32_read_the_sparse_weights_too() {
    let family = "ref_llama";
    let sparse = Arc::into_inner(base(family, Precision::Bf16)).unwrap();
    let sparse = Arc::new(sparse.sparsified(Sparsity::magnitude(Precision::Bf16)).unwrap());
    let expanded = sparse.architecture().tensors().into_iter().map(|tensor| {
        let value = sparse.tensor(&tensor.name).unwrap().to_dtype(DType::F32).unwrap();
        (tensor.name, value)
    });
    let wide = BaseModel::from_tensors(
        sparse.architecture().clone(),
        expanded.collect(),
        Precision::Fp32,
        &Device::Cpu,
    );
    let mut recipe = golden_recipe(&golden(family).join("adapter_init"));
    let expected = losses(&Arc::new(wide.unwrap()), &recipe, &whole_batch(family));
    recipe.precision = Precision::Bf16;
    recipe.weight_sparsity = WeightSparsity::Magnitude;
    recipe.precision_schedule = PrecisionSchedule::from_name("fp32_9").unwrap();
    // The evaluation behind the steps is in BF16.
    assert_eq!(losses(&sparse, &recipe, &whole_batch(family))[..4], expected[..4]);
}

/// Rows of a matrix in F64.
type Matrix = Vec<Vec<f64>>;

/// A Llama in F64, in plain loops.
struct Llama {
    weights: BTreeMap<String, (Vec<f64>, usize)>,
    heads: [usize; 2],
    width: usize,
    epsilon: f64,
    theta: f64,
}

impl Llama {
    fn open(model: &Path) -> Self {
        let config = json(&model.join("config.json"));
        let number = |key: &str| config[key].as_f64().unwrap();
        let weights = tensors(&model.join("model.safetensors"))
            .into_iter()
            .map(|(name, tensor)| {
                let inputs = *tensor.dims().last().unwrap();
                (name, (values(&tensor), inputs))
            });
        Self {
            weights: weights.collect(),
            heads: [
                number("num_attention_heads") as usize,
                number("num_key_value_heads") as usize,
            ],
            width: number("head_dim") as usize,
            epsilon: number("rms_norm_eps"),
            theta: number("rope_theta"),
        }
    }

    fn product(&self, x: &Matrix, name: &str) -> Matrix {
        let (weight, inputs) = &self.weights[name];
        let dot = |row: &[f64], out: &[f64]| row.iter().zip(out).map(|(a, b)| a * b).sum::<f64>();
        let of_row = |row: &Vec<f64>| weight.chunks(*inputs).map(|out| dot(row, out)).collect();
        x.iter().map(of_row).collect()
    }

    fn norm(&self, x: &Matrix, name: &str) -> Matrix {
        let gains = &self.weights[name].0;
        let of_row = |row: &Vec<f64>| {
            let mean = row.iter().map(|value| value * value).sum::<f64>() / row.len() as f64;
            let factor = 1.0 / (mean + self.epsilon).sqrt();
            row.iter()
                .zip(gains)
                .map(|(value, gain)| value * factor * gain)
                .collect()
        };
        x.iter().map(of_row).collect()
    }

    fn rotated(&self, x: &Matrix) -> Matrix {
        let half = self.width / 2;
        let of_row = |(position, row): (usize, &Vec<f64>)| {
            let mut turned = row.clone();
            for head in 0..row.len() / self.width {
                for place in 0..half {
                    let angle = position as f64 / self.theta.powf(2.0 * place as f64 / self.width as f64);
                    let (first, second) = (head * self.width + place, head * self.width + place + half);
                    turned[first] = row[first] * angle.cos() - row[second] * angle.sin();
                    turned[second] = row[second] * angle.cos() + row[first] * angle.sin();
                }
            }
            turned
        };
        x.iter().enumerate().map(of_row).collect()
    }

    fn attention(&self, q: &Matrix, k: &Matrix, v: &Matrix) -> Matrix {
        let [heads, key_heads] = self.heads;
        let mut out = vec![vec![0.0; heads * self.width]; q.len()];
        for (token, out) in out.iter_mut().enumerate() {
            for head in 0..heads {
                let (mine, theirs) = (head * self.width, head / (heads / key_heads) * self.width);
                let score = |other: usize| {
                    let dot: f64 = (0..self.width)
                        .map(|at| q[token][mine + at] * k[other][theirs + at])
                        .sum();
                    (dot / (self.width as f64).sqrt()).exp()
                };
                let scores: Vec<f64> = (0..=token).map(score).collect();
                let all: f64 = scores.iter().sum();
                for (other, score) in scores.iter().enumerate() {
                    for at in 0..self.width {
                        out[mine + at] += score / all * v[other][theirs + at];
                    }
                }
            }
        }
        out
    }

    /// Output of the layer on x; `read` is told what each linear layer reads.
    fn layer(&self, index: usize, x: &Matrix, read: &mut dyn FnMut(&[&str], &Matrix)) -> Matrix {
        let name = |part: &str| format!("model.layers.{index}.{part}.weight");
        let sum = |a: &Matrix, b: &Matrix| -> Matrix {
            let rows = a.iter().zip(b);
            rows.map(|(a, b)| a.iter().zip(b).map(|(a, b)| a + b).collect())
                .collect()
        };
        let normed = self.norm(x, &name("input_layernorm"));
        read(&["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"], &normed);
        let [q, k, v] = ["q", "k", "v"].map(|part| self.product(&normed, &name(&format!("self_attn.{part}_proj"))));
        let mixed = self.attention(&self.rotated(&q), &self.rotated(&k), &v);
        read(&["self_attn.o_proj"], &mixed);
        let x = sum(x, &self.product(&mixed, &name("self_attn.o_proj")));
        let normed = self.norm(&x, &name("post_attention_layernorm"));
        read(&["mlp.gate_proj", "mlp.up_proj"], &normed);
        let [gate, up] = ["gate", "up"].map(|part| self.product(&normed, &name(&format!("mlp.{part}_proj"))));
        let gated = |(gate, up): (&Vec<f64>, &Vec<f64>)| {
            let both = gate.iter().zip(up);
            both.map(|(gate, up)| gate / (1.0 + (-gate).exp()) * up).collect()
        };
        let inner: Matrix = gate.iter().zip(&up).map(gated).collect();
        read(&["mlp.down_proj"], &inner);
        sum(&x, &self.product(&inner, &name("mlp.down_proj")))
    }

    /// Sparsifies layer by layer on `rows`, and returns the norms of what each linear weight reads.
    fn sparsify(&mut self, rows: &[Vec<usize>]) -> BTreeMap<String, Vec<f64>> {
        let (table, hidden) = self.weights["model.embed_tokens.weight"].clone();
        let embed = |row: &Vec<usize>| {
            row.iter()
                .map(|id| table[id * hidden..(id + 1) * hidden].to_vec())
                .collect()
        };
        let mut streams: Vec<Matrix> = rows.iter().map(embed).collect();
        let mut all = BTreeMap::new();
        for index in 0..2 {
            let mut sums: BTreeMap<String, Vec<f64>> = BTreeMap::new();
            for stream in &streams {
                self.layer(index, stream, &mut |modules, x| {
                    for module in modules {
                        let sums = sums.entry(format!("model.layers.{index}.{module}.weight")).or_default();
                        sums.resize(x[0].len(), 0.0);
                        for row in x {
                            sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += value * value);
                        }
                    }
                });
            }
            for (name, sums) in sums {
                let norms: Vec<f64> = sums.into_iter().map(f64::sqrt).collect();
                let (weight, inputs) = self.weights.get_mut(&name).unwrap();
                *weight = masked(weight, *inputs, &norms);
                all.insert(name, norms);
            }
            streams = streams
                .iter()
                .map(|stream| self.layer(index, stream, &mut |_, _| {}))
                .collect();
        }
        all
    }
}

/// Rows of token ids, and a recipe that trains the toy Llama on them.
fn calibrated(folder: &Path, count: usize) -> (Recipe, Vec<Vec<usize>>) {
    let row = |row: usize| -> Vec<usize> {
        (0..5 + row * 7 % 8)
            .map(|place| (row * 31 + place * place * 17) % 500)
            .collect()
    };
    let rows: Vec<Vec<usize>> = (0..count).map(row).collect();
    let write = |name: &str, rows: &[Vec<usize>]| {
        let lines: Vec<String> = rows
            .iter()
            .map(|ids| serde_json::json!({"input_ids": ids}).to_string())
            .collect();
        std::fs::write(folder.join(name), lines.join("\n")).unwrap();
        folder.join(name)
    };
    let data = DataSettings {
        train: vec![write("train.jsonl", &rows)].into(),
        held_out: HeldOut::File(write("held_out.jsonl", &rows[..2])),
        format: DataFormat::Tokenized,
        ..DataSettings::default()
    };
    let model = golden("ref_llama").join("model");
    let mut recipe = Recipe::new(model.to_str().unwrap(), data);
    recipe.precision = Precision::Fp32;
    recipe.weight_sparsity = WeightSparsity::Wanda;
    recipe.batch = BatchSettings {
        micro_batch: 2,
        sequence_length: 16,
        ..BatchSettings::default()
    };
    (recipe, rows)
}

fn loaded(recipe: &Recipe) -> BaseModel {
    let files = ModelFiles::resolve_weights(&recipe.model, &mut ()).unwrap();
    let data = PreparedData::of_recipe(recipe, &files).unwrap();
    load_base(&files.folder, recipe, &data, None, &Device::Cpu).unwrap()
}

/// Against a Llama in F64, and masks by its norms, layer by layer.
#[test]
fn wanda_keeps_what_a_reference_in_f64_keeps() {
    let folder = tempfile::tempdir().unwrap();
    // More rows than decide: the first 32 do.
    let (recipe, rows) = calibrated(folder.path(), 40);
    let base = loaded(&recipe);
    let mut reference = Llama::open(&golden("ref_llama").join("model"));
    let norms = reference.sparsify(&rows[..32]);
    let found = base.sparsity().norms();
    assert_eq!(found.keys().collect::<Vec<_>>(), norms.keys().collect::<Vec<_>>());
    let dense = tensors(&golden("ref_llama/model/model.safetensors"));
    let (mut other, mut by_size) = (0, 0);
    for (name, norms) in &norms {
        for (found, norm) in found[name].iter().zip(norms) {
            assert!((f64::from(*found) / norm - 1.0).abs() < 1e-5, "{name}: {found} {norm}");
        }
        let (got, (expected, inputs)) = (values(&base.tensor(name).unwrap()), &reference.weights[name]);
        other += got
            .iter()
            .zip(expected)
            .filter(|(got, expected)| got != expected)
            .count();
        let size = masked(&values(&dense[name]), *inputs, &vec![1.0; *inputs]);
        by_size += got.iter().zip(&size).filter(|(got, size)| got != size).count();
    }
    // Not one score is as near to another as F32 is to F64; and the norms do decide.
    assert_eq!(other, 0);
    assert!(by_size > 1000, "{by_size}");
    // What decides is no matter of the batch.
    let mut again = recipe.clone();
    again.batch.micro_batch = 1;
    assert_eq!(loaded(&again).sparsity(), base.sparsity());
}

#[test]
fn other_models_and_bases_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let (mut recipe, _) = calibrated(folder.path(), 4);
    let files = ModelFiles::resolve_weights(&recipe.model, &mut ()).unwrap();
    let data = PreparedData::of_recipe(&recipe, &files).unwrap();
    // A base model that is not the recipe's.
    let error = Trainer::new(base("ref_llama", Precision::Fp32), &recipe, 1)
        .err()
        .unwrap()
        .to_string();
    assert!(
        error.contains("`weight_sparsity: wanda_2_4`") && error.contains("loaded with none"),
        "{error}"
    );
    // Codes.
    recipe.precision = Precision::Nf4;
    let error = load_base(&files.folder, &recipe, &data, None, &Device::Cpu)
        .unwrap_err()
        .to_string();
    assert!(error.contains("`precision` is nf4"), "{error}");
    let error = base("ref_llama", Precision::Int8);
    let error = Arc::into_inner(error)
        .unwrap()
        .sparsified(Sparsity::magnitude(Precision::Int8));
    assert!(error.unwrap_err().to_string().contains("`precision` is int8"));
    // Experts have inputs of their own, which are not measured.
    recipe.precision = Precision::Fp32;
    let moe = golden("ref_qwen3_moe").join("model");
    let error = load_base(&moe, &recipe, &data, None, &Device::Cpu)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("experts") && error.contains("set `weight_sparsity` to magnitude_2_4"),
        "{error}"
    );
    // Norms of another model.
    let model = golden("ref_llama").join("model");
    let none = Sparsity::wanda(Precision::Fp32, BTreeMap::new());
    let error = BaseModel::load_sparse(&model, Precision::Fp32, none, &Device::Cpu)
        .unwrap_err()
        .to_string();
    assert!(error.contains("no norms of activations for `model.layers.0"), "{error}");
    // A width that is no multiple of four.
    let config = r#"{"model_type": "llama", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_key_value_heads": 1, "intermediate_size": 26, "vocab_size": 96, "tie_word_embeddings": true,
        "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0}"#;
    let architecture = Architecture::from_json(Path::new("config.json"), config).unwrap();
    let odd = BaseModel::random(architecture, 1, Precision::Fp32, &Device::Cpu).unwrap();
    let error = odd
        .sparsified(Sparsity::magnitude(Precision::Fp32))
        .unwrap_err()
        .to_string();
    assert!(error.contains("mlp.down_proj.weight"), "{error}");
}

/// Whether each group of four has two zeros at least, and what is no zero is the dense weight's.
fn is_sparse(weight: &Tensor, dense: &Tensor) -> bool {
    let (weight, dense) = (values(weight), values(dense));
    let zeros = |four: &[f64]| four.iter().filter(|value| **value == 0.0).count();
    weight.chunks(4).all(|four| zeros(four) >= 2)
        && weight
            .iter()
            .zip(&dense)
            .all(|(value, dense)| *value == 0.0 || value == dense)
}

#[test]
fn a_merged_model_has_the_sparse_weights() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let dense = tensors(&Path::new(&quickstart()).join("base/model.safetensors"));
    for sparsity in ["magnitude_2_4", "wanda_2_4"] {
        let settings = format!("weight_sparsity: {sparsity}\nadapter: {{rank: 4, target_modules: [q_proj]}}");
        std::fs::write(folder.join("recipe.yaml"), written(&settings)).unwrap();
        let trained = run(folder, &["train", "recipe.yaml", "--output", sparsity, "--json"]);
        assert!(trained.status.success(), "{}", text(&trained));
        let merged_to = format!("{sparsity}_merged");
        let merged = run(folder, &["merge", "--adapter", sparsity, "--output", &merged_to]);
        let said = text(&merged);
        assert!(
            merged.status.success() && said.contains(&format!("`weight_sparsity: {sparsity}`")),
            "{said}"
        );
        let merged = tensors(&folder.join(merged_to).join("model.safetensors"));
        for (name, dense) in &dense {
            let weight = &merged[name];
            assert_eq!(weight.dtype(), dense.dtype());
            match (name.ends_with("_proj.weight"), name.contains("q_proj")) {
                // The adapter makes these dense.
                (true, true) => assert!(!is_sparse(weight, dense), "{name}"),
                (true, false) => assert!(is_sparse(weight, dense) && values(weight) != values(dense), "{name}"),
                (false, _) => assert_eq!(values(weight), values(dense), "{name}"),
            }
        }
        // What the training evaluated is what the merged model computes.
        let prompt = [
            "generate",
            "--prompt",
            "the",
            "--max-tokens",
            "8",
            "--adapter",
            sparsity,
            "--precision",
            "fp32",
        ];
        assert!(run(folder, &prompt).status.success());
        let base = format!("{}/base", quickstart());
        let beside = run(
            folder,
            &["infer-bench", "--model", &base, "--adapters", sparsity, "--no-store"],
        );
        assert!(
            !beside.status.success() && text(&beside).contains("measure it by itself"),
            "{}",
            text(&beside)
        );
    }
}

#[test]
fn a_search_tells_the_loss_of_the_dense_model_the_sparse_one_and_the_trained_one() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let quickstart = quickstart();
    let space = format!(
        "study: own\nmodel: {quickstart}/base\n\
         data: {{train: {quickstart}/train.jsonl, held_out: {quickstart}/held_out.jsonl}}\nconfirm: none\n\
         trial: {{sequence_length: 128, profile_steps: 1, profile_warmup: 1, training_steps: 8, evaluation: {{rows: 8}}}}\n\
         objectives: [throughput, peak_memory, loss]\nsampler: grid\nbudget: {{trials: 3}}\n\
         space:\n  precision: bf16\n  rank: 4\n  micro_batch: 4\n  learning_rate: 2e-3\n  \
         weight_sparsity: [none, magnitude_2_4, wanda_2_4]\n"
    );
    std::fs::write(folder.join("space.yaml"), space).unwrap();
    let output = run(folder, &["search", "space.yaml"]);
    assert!(output.status.success(), "{}", text(&output));
    let metric = |sparsity: &str, metric: &str| -> Option<f64> {
        let sql = format!(
            "select m.value from trial_metric m join trial_param p on p.study = m.study and p.trial = m.trial \
             where m.name = '{metric}' and p.name = 'weight_sparsity' and p.value = '{sparsity}'"
        );
        let output = run(folder, &["query", &sql, "--format", "csv"]);
        String::from_utf8(output.stdout)
            .unwrap()
            .lines()
            .nth(1)
            .and_then(|row| row.parse().ok())
    };
    let dense = metric("none", "loss_before").unwrap();
    assert_eq!(metric("none", "loss_before_dense"), None);
    for sparsity in ["magnitude_2_4", "wanda_2_4"] {
        let of = |name: &str| metric(sparsity, name).unwrap_or_else(|| panic!("{sparsity} has no {name}"));
        assert_eq!(of("loss_before_dense"), dense);
        assert!(
            of("loss_before") != dense && of("loss") < of("loss_before"),
            "{sparsity}"
        );
        assert!(of("base_memory_bytes") < 0.8 * metric("none", "base_memory_bytes").unwrap());
    }
    // Another choice of weights, and not the data's loss alone, decides.
    assert_ne!(
        metric("magnitude_2_4", "loss_before"),
        metric("wanda_2_4", "loss_before")
    );
    let shown = ["0", "1", "2"].map(|trial| text(&run(folder, &["show", "--trial", trial])));
    let told = shown.iter().filter(|shown| shown.contains("loss_before_dense"));
    assert_eq!(told.count(), 2, "{shown:?}");
}

#[test]
fn what_has_no_place_beside_it_is_refused_before_anything_runs() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let refused = |settings: &str| {
        std::fs::write(folder.join("recipe.yaml"), written(settings)).unwrap();
        let output = run(folder, &["train", "recipe.yaml", "--output", "out"]);
        assert!(!output.status.success(), "{}", text(&output));
        text(&output)
    };
    let said = refused("precision: nf4\nweight_sparsity: magnitude_2_4");
    assert!(
        said.contains("`weight_sparsity: magnitude_2_4`") && said.contains("`precision` is nf4"),
        "{said}"
    );
    let said = refused("adapter: null\nweight_sparsity: wanda_2_4");
    assert!(
        said.contains("train an adapter, or set `weight_sparsity` to none"),
        "{said}"
    );
    let said = refused("adapter: {init: pissa}\nweight_sparsity: wanda_2_4");
    assert!(said.contains("`init: pissa`"), "{said}");
    let said = refused("weight_sparsity: 2:4");
    assert!(said.contains("recipe.yaml") && said.contains("magnitude_2_4"), "{said}");
    let profile = {
        std::fs::write(folder.join("recipe.yaml"), written("weight_sparsity: wanda_2_4")).unwrap();
        run(folder, &["profile", "recipe.yaml", "--budget", "1s", "--json"])
    };
    assert!(profile.status.success(), "{}", text(&profile));
    let shown: Value = serde_json::from_slice(&profile.stdout).unwrap();
    assert!(shown.to_string().contains("sparse_bf16"), "{shown}");
    assert!(text(&profile).contains("two of each four values"));
}

/// Checks that nothing can be measured without rows.
#[test]
fn no_rows_to_measure_activations_on_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let (recipe, _) = calibrated(folder.path(), 4);
    let files = ModelFiles::resolve_weights(&recipe.model, &mut ()).unwrap();
    let batch = MicroBatch::from_documents(&[Document {
        input_ids: vec![1, 2],
        labels: vec![1, 2],
    }]);
    assert_eq!(batch.tokens(), 2);
    std::fs::write(folder.path().join("train.jsonl"), "").unwrap();
    let error = PreparedData::of_recipe(&recipe, &files).map(|data| {
        load_base(&files.folder, &recipe, &data, None, &Device::Cpu)
            .err()
            .map(|error| error.to_string())
    });
    match error {
        Ok(said) => assert!(said.unwrap().contains("there are none"), "no error"),
        Err(error) => assert!(error.to_string().contains("train.jsonl"), "{error}"),
    }
}
