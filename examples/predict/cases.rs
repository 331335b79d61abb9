//! Random recipes on small random models of all families, and what the engine's allocator counts for each.

use std::path::Path;
use std::sync::Arc;

use candle_core::{Device, Tensor};
use peft_tune_core::architecture::{Architecture, Family, LinearRole};
use peft_tune_core::plan::ModelPlan;
use peft_tune_core::predict::{Bytes, Host, Machine, Setting, StreamShape, Workload};
use peft_tune_core::recipe::{
    ActivationQuantization, AdapterSettings, Checkpointing, DataSettings, OptimizerKind, OptimizerOffload, Precision,
    QuantizationAware, Recipe, TargetModules, TargetPreset, WeightSparsity,
};
use peft_tune_engine::data::{Document, MicroBatch};
use peft_tune_engine::parallel::{Alone, Collective, CollectiveError};
use peft_tune_engine::profile::{HostMemory, ceilings};
use peft_tune_engine::{BaseModel, RankShare, Sparsity, Together, Trainer};
use peft_tune_kernels::device;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;

/// One setting.
#[derive(Debug)]
pub(crate) struct Case {
    pub family: &'static str,
    pub config: String,
    pub recipe: Recipe,
    pub rows: usize,
    pub length: usize,
}

/// Numbers that were counted, and that were predicted.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub counted: u64,
    pub counted_saved: u64,
    pub predicted: Bytes,
    pub predicted_saved: u64,
}

impl Outcome {
    /// Predicted over counted peak, minus one.
    pub(crate) fn error(&self) -> f64 {
        self.predicted.total() as f64 / self.counted as f64 - 1.0
    }
}

fn one<T: Clone>(random: &mut Pcg64, values: &[T]) -> T {
    values[random.random_range(0..values.len())].clone()
}

/// Runs `work` on so many threads of its own, and returns when they are gone: a thread frees what it kept for its next op as it
/// ends, and where that is in the midst of a count, the count lacks it.
fn on_own_threads<T: Send>(count: usize, work: impl FnOnce() -> T + Send) -> T {
    let mut threads = Vec::new();
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(count)
        .spawn_handler(|thread| {
            threads.push(std::thread::Builder::new().spawn(|| thread.run())?);
            Ok(())
        })
        .build()
        .expect("threads");
    let outcome = pool.install(work);
    drop(pool);
    for thread in threads {
        thread.join().expect("a thread that ends well");
    }
    outcome
}

/// Name that Gemma 4 with experts has here: its family has models without.
const GEMMA4_MOE: &str = "gemma4_moe";

/// `count` settings, the families by turns, with rows of some of these lengths; and an eighth as many of Gemma 4 with experts.
pub(crate) fn draw(count: usize, seed: u64, lengths: &[usize]) -> Vec<Case> {
    let mut random = Pcg64::seed_from_u64(seed);
    let names = Family::all().map(Family::name).cycle().take(count);
    let mut drawn: Vec<Case> = names.map(|name| Case::new(name, &mut random, lengths)).collect();
    drawn.extend((0..count.div_ceil(8)).map(|_| Case::new(GEMMA4_MOE, &mut random, lengths)));
    drawn
}

impl Case {
    fn new(family: &'static str, random: &mut Pcg64, lengths: &[usize]) -> Self {
        let mut recipe = Recipe::new("random", DataSettings::default());
        recipe.precision = one(
            random,
            &[
                Precision::Fp32,
                Precision::Bf16,
                Precision::Bf16,
                Precision::Fp16,
                Precision::Int8,
                Precision::Nf4,
                Precision::Nf4Double,
            ],
        );
        recipe.gradient_checkpointing = one(
            random,
            &[
                Checkpointing::None,
                Checkpointing::None,
                Checkpointing::EVERY_SECOND,
                Checkpointing::Full,
                Checkpointing::Offload,
            ],
        );
        recipe.optimizer.kind = one(
            random,
            &[
                OptimizerKind::AdamW,
                OptimizerKind::AdamW8bit,
                OptimizerKind::PagedAdamW,
                OptimizerKind::Lion,
                OptimizerKind::Lion8bit,
                OptimizerKind::Sgd,
                OptimizerKind::Adafactor,
                OptimizerKind::Muon,
            ],
        );
        // These have numbers, or layers, that cannot train as a whole.
        let is_adapted = ["apertus", "lfm2", "qwen3_5_text"].contains(&family) || is_stacked(family);
        let is_full = random.random_range(0..10) == 0 && !is_adapted;
        recipe.adapter = (!is_full).then(|| adapter(family, random));
        if let (Some(adapter), true) = (&mut recipe.adapter, has_experts(family)) {
            // PEFT refuses these on experts.
            (adapter.dora, adapter.dropout, adapter.layers_to_transform) = (false, 0.0, None);
            if random.random_range(0..3) == 0 {
                adapter.target_parameters = vec!["experts.gate_up_proj".to_owned(), "experts.down_proj".to_owned()];
            }
        }
        if is_full && recipe.precision.is_quantized() {
            recipe.precision = Precision::Bf16;
        }
        // Of the settings that are drawn already, by chance, those that can: what follows is drawn as before.
        if recipe.precision.is_quantized() && recipe.gradient_checkpointing != Checkpointing::Full {
            recipe.activation_quantization = match recipe.optimizer.kind {
                OptimizerKind::AdamW | OptimizerKind::Lion => ActivationQuantization::Int8Forward,
                OptimizerKind::PagedAdamW | OptimizerKind::Sgd | OptimizerKind::Muon => {
                    ActivationQuantization::Int8Both
                }
                _ => ActivationQuantization::None,
            };
        }
        let config = config(family, random);
        let narrowest = Architecture::from_json(Path::new("config.json"), &config).map_or(1, |model| narrowest(&model));
        if let Some(adapter) = &mut recipe.adapter {
            adapter.rank = adapter.rank.min(narrowest);
        }
        if let OptimizerKind::Lion8bit | OptimizerKind::Adafactor = recipe.optimizer.kind {
            recipe.optimizer.offload = OptimizerOffload::Host;
        }
        recipe.quantization_aware = match recipe.optimizer.kind {
            OptimizerKind::AdamW | OptimizerKind::Sgd => QuantizationAware::Nf4,
            OptimizerKind::Lion | OptimizerKind::Adafactor => QuantizationAware::Int8,
            _ => QuantizationAware::None,
        };
        let model = Architecture::from_json(Path::new("config.json"), &config);
        if model.is_ok_and(|model| ModelPlan::of_recipe(&model, &recipe).is_err()) {
            recipe.quantization_aware = QuantizationAware::None;
        }
        Self {
            family,
            config,
            recipe,
            rows: one(random, &[2, 4, 8]),
            length: one(random, lengths),
        }
    }

    /// Describes the case in a few words.
    pub(crate) fn describe(&self) -> String {
        let adapter = match &self.recipe.adapter {
            None => "full".to_owned(),
            Some(adapter) => {
                let targets = serde_json::to_value(&adapter.target_modules).unwrap_or_default();
                let list = targets.as_array().map(|names| names.len().to_string() + " modules");
                let targets = list.unwrap_or_else(|| targets.as_str().unwrap_or_default().to_owned());
                let extra = [(adapter.dora, " dora"), (adapter.dropout > 0.0, " dropout")];
                let extra: String = extra.iter().filter(|(on, _)| *on).map(|(_, name)| *name).collect();
                format!("r{} {targets}{extra}", adapter.rank)
            }
        };
        let name = |value: serde_json::Value| value.as_str().unwrap_or_default().to_owned();
        format!(
            "{} | {}{} | activations {} | aware {} | {} | {} | {adapter} | {} x {}",
            self.family,
            self.recipe.precision.name(),
            match (self.recipe.precision_schedule.is_none(), self.recipe.weight_sparsity) {
                (true, WeightSparsity::None) => String::new(),
                (true, sparsity) => format!(" {sparsity}"),
                (false, _) => format!(" {}", self.recipe.precision_schedule),
            },
            self.recipe.activation_quantization,
            self.recipe.quantization_aware,
            self.recipe.gradient_checkpointing,
            name(serde_json::to_value(self.recipe.optimizer.kind).unwrap_or_default()),
            self.rows,
            self.length,
        )
    }

    pub(crate) fn architecture(&self) -> Architecture {
        Architecture::from_json(Path::new("config.json"), &self.config).expect("the drawn configuration is valid")
    }

    /// Trains two steps, and predicts them.
    pub(crate) fn run(&self, host: Host) -> Outcome {
        self.outcome(host, self.count(host.threads))
    }

    /// Numbers that are predicted beside those that were counted: the peak, and what the forward pass keeps.
    fn outcome(&self, host: Host, (counted, counted_saved): (u64, u64)) -> Outcome {
        let predictor = peft_tune_engine::predictor(self.architecture(), Machine::Unmeasured(host));
        let stream = StreamShape::full(self.rows, self.length);
        let workload = Workload {
            longest: stream.clone(),
            mean: stream,
            rows: None,
        };
        let setting = Setting {
            recipe: &self.recipe,
            workload: &workload,
        };
        let predicted = predictor.predict(&setting).expect("the drawn recipe fits the model");
        Outcome {
            counted,
            counted_saved,
            predicted: predicted.bytes,
            predicted_saved: predictor
                .saved_bytes(&setting)
                .expect("the drawn recipe fits the model"),
        }
    }

    fn count(&self, threads: usize) -> (u64, u64) {
        let architecture = self.architecture();
        let precision = self.recipe.precision;
        let base = BaseModel::random(architecture, 1, precision, &Device::Cpu).expect("memory");
        let base = match self.recipe.weight_sparsity {
            WeightSparsity::None => base,
            // What decides which values stay takes no other bytes.
            WeightSparsity::Magnitude | WeightSparsity::Wanda => base
                .sparsified(Sparsity::magnitude(precision))
                .expect("widths of whole groups"),
        };
        let beside: Arc<dyn Collective> = match self.recipe.batch.ranks_of_weights() {
            1 => Arc::new(Alone),
            ranks => Arc::new(FirstOf { ranks }),
        };
        let base = match RankShare::of(&self.recipe, beside.as_ref()) {
            Some(share) => base.share_of(share).expect("memory"),
            None => base,
        };
        let base = Arc::new(base);
        let rows = self.documents();
        let steps = self.recipe.batch.prefetch_depth + 1;
        on_own_threads(threads, || {
            // What the threads keep of another case, or of the warming op, would be missing in this one's count: all of it
            // goes, that of the thread that trains too, which is this one.
            ceilings::warm_threads().expect("a small op runs");
            device::forget_scratch();
            let before = HostMemory::in_use_bytes() - base.bytes() as u64;
            HostMemory::reset_peak();
            // As a training holds them: the step under way, and those that are ready.
            let micro_batches = self.recipe.batch.micro_batches();
            let of_step = |_| -> Vec<_> { (0..micro_batches).map(|_| MicroBatch::from_documents(&rows)).collect() };
            let prepared: Vec<_> = (0..steps).map(of_step).collect();
            let batch = &prepared[0];
            let trainer = Trainer::new(base, &self.recipe, 10).expect("the recipe fits");
            let mut trainer = trainer.with_collective(beside).expect("a rank of its own");
            for _ in 0..2 {
                trainer.step(batch).expect("a step of valid tokens");
            }
            let peak = HostMemory::peak_bytes();
            let saved = trainer.saved_bytes(&batch[0]).expect("a forward pass");
            (peak - before, (saved.device + saved.host) as u64)
        })
    }

    fn documents(&self) -> Vec<Document> {
        let vocabulary = self.architecture().vocabulary as u32;
        let document = |row: usize| {
            let ids = (0..self.length).map(|place| (row * 31 + place * 17) as u32 % vocabulary);
            let input_ids: Vec<u32> = ids.collect();
            let labels = input_ids.iter().map(|id| i64::from(*id)).collect();
            Document { input_ids, labels }
        };
        (0..self.rows).map(document).collect()
    }

    /// The recipe, the same with another rank and optimizer, and the same with other modules; `None` where it trains alone only.
    fn recipes_together(&self) -> Option<[Recipe; 3]> {
        let first = self.recipe.clone();
        let (mut second, mut third) = (first.clone(), first.clone());
        second.optimizer.kind = OptimizerKind::AdamW;
        second.adapter.as_mut()?.rank *= 2;
        third.adapter.as_mut()?.target_modules = TargetModules::Preset(TargetPreset::Attention);
        first.check_in_group().is_ok().then_some([first, second, third])
    }

    /// Trains the recipe and two like it together, two steps each, and returns the bytes that are counted and those that are predicted;
    /// `None` where the recipe trains alone only, or the model has no form for several.
    pub(crate) fn run_together(&self, host: Host) -> Option<(u64, Bytes)> {
        let recipes = self.recipes_together()?;
        let base = BaseModel::random(self.architecture(), 1, self.recipe.precision, &Device::Cpu).expect("memory");
        Together::check_base(&base).ok()?;
        let (base, rows) = (Arc::new(base), self.documents());
        let counted = on_own_threads(host.threads, || {
            ceilings::warm_threads().expect("a small op runs");
            device::forget_scratch();
            let before = HostMemory::in_use_bytes() - base.bytes() as u64;
            HostMemory::reset_peak();
            let prepared = |recipe: &Recipe| -> Vec<Vec<MicroBatch>> {
                let of_step = || (0..recipe.batch.micro_batches()).map(|_| MicroBatch::from_documents(&rows));
                let steps = recipe.batch.prefetch_depth + 1;
                (0..steps).map(|_| of_step().collect()).collect()
            };
            let prepared: Vec<_> = recipes.iter().map(prepared).collect();
            let trainer = |recipe| Trainer::new(Arc::clone(&base), recipe, 10).expect("the recipe fits");
            let mut trainers: Vec<Trainer> = recipes.iter().map(trainer).collect();
            let mut passes = Together::new(&trainers.iter().collect::<Vec<_>>()).expect("recipes that share a base");
            let batches: Vec<&[MicroBatch]> = prepared.iter().map(|steps| steps[0].as_slice()).collect();
            for _ in 0..2 {
                let mut all: Vec<&mut Trainer> = trainers.iter_mut().collect();
                let events = passes.step(&mut all, &batches).expect("a step of valid tokens");
                assert!(events.iter().all(Result::is_ok), "a step of each");
            }
            HostMemory::peak_bytes() - before
        });
        let predictor = peft_tune_engine::predictor(self.architecture(), Machine::Unmeasured(host));
        let stream = StreamShape::full(self.rows, self.length);
        let workload = Workload {
            longest: stream.clone(),
            mean: stream,
            rows: None,
        };
        let settings = recipes.iter().map(|recipe| Setting {
            recipe,
            workload: &workload,
        });
        let predicted = predictor.predict_group(&settings.collect::<Vec<_>>());
        Some((counted, predicted.expect("the drawn recipes fit the model")))
    }
}

/// Rank 0 of several whose others are not there: what they would give is what this one has. So the bytes of one rank are all
/// that its process holds.
#[derive(Debug)]
struct FirstOf {
    ranks: usize,
}

impl Collective for FirstOf {
    fn rank(&self) -> usize {
        0
    }

    fn ranks(&self) -> usize {
        self.ranks
    }

    fn all_reduce_sum(&self, _: &Tensor) -> Result<(), CollectiveError> {
        Ok(())
    }

    fn sum_numbers(&self, _: &mut [f64]) -> Result<(), CollectiveError> {
        Ok(())
    }

    fn broadcast(&self, _: &Tensor) -> Result<(), CollectiveError> {
        Ok(())
    }

    fn all_gather(&self, own: &Tensor, all: &Tensor) -> Result<(), CollectiveError> {
        let size = own.elem_count();
        (0..self.ranks).try_for_each(|rank| Ok(all.slice_set(own, 0, rank * size)?))
    }

    fn gathers_beside(&self) -> bool {
        true
    }

    fn barrier(&self) -> Result<(), CollectiveError> {
        Ok(())
    }
}

fn adapter(family: &str, random: &mut Pcg64) -> AdapterSettings {
    let (output, down) = match family {
        "granitemoehybrid" => ("o_proj", "output_linear"),
        "lfm2" => ("out_proj", "w2"),
        _ => ("o_proj", "down_proj"),
    };
    let targets = [
        TargetModules::Preset(TargetPreset::AllLinear),
        TargetModules::Preset(TargetPreset::AllLinear),
        TargetModules::Preset(TargetPreset::Attention),
        TargetModules::Preset(TargetPreset::Mlp),
        TargetModules::Named(vec![down.to_owned()]),
        TargetModules::Named(vec![output.to_owned(), down.to_owned()]),
    ];
    // The MLPs of gpt_oss are no modules: only parameters name them.
    let targets = match family {
        "gpt_oss" => &targets[..3],
        _ => &targets[..],
    };
    AdapterSettings {
        rank: one(random, &[1, 2, 3, 4, 8, 16, 32]),
        dropout: one(random, &[0.0, 0.0, 0.1]),
        dora: random.random_range(0..6) == 0,
        target_modules: one(random, targets),
        layers_to_transform: (random.random_range(0..6) == 0).then(|| vec![1]),
        ..AdapterSettings::default()
    }
}

/// Fewest outputs or inputs of a linear layer of attention, or of what reads a layer's own input.
fn narrowest(model: &Architecture) -> usize {
    let modules = (0..model.layers.len()).flat_map(|index| model.layer_modules(index));
    let attention = modules.filter(|module| module.role.attends() || module.role == LinearRole::InputGate);
    let widths = attention.map(|module| module.out_features.min(module.in_features));
    widths.min().unwrap_or(1)
}

/// Ranks that `q_lora_rank` is drawn from.
fn query_ranks(family: &str) -> &'static [&'static str] {
    match family {
        "deepseek_v2" => &["null"],
        _ => &["48", "64"],
    }
}

fn is_latent(family: &str) -> bool {
    Family::from_model_type(family).is_some_and(|family| family.row().switches.latent)
}

fn is_stacked(family: &str) -> bool {
    let experts = Family::from_model_type(family).and_then(|family| family.row().switches.experts);
    family == GEMMA4_MOE || experts.is_some_and(|experts| experts.enabled.is_none() && experts.names.stacked)
}

fn has_experts(family: &str) -> bool {
    let experts = Family::from_model_type(family).and_then(|family| family.row().switches.experts);
    // Families of both kinds are drawn without.
    family == GEMMA4_MOE || experts.is_some_and(|experts| experts.enabled.is_none())
}

/// Layers of both kinds, with and without a projection for values, in all layers of the full kind.
fn gemma4(random: &mut Pcg64, head_dim: usize) -> String {
    let heads = match random.random_range(0..2) {
        0 => r#""attention_k_eq_v": true, "num_global_key_value_heads": 1"#,
        _ => r#""attention_k_eq_v": false"#,
    };
    let layers = match random.random_range(0..2) {
        0 => r#""hidden_size_per_layer_input": 0"#,
        _ => {
            r#""hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": 4096, "num_hidden_layers": 5,
            "num_kv_shared_layers": 2, "use_double_wide_mlp": true, "layer_types": ["sliding_attention",
            "sliding_attention", "full_attention", "sliding_attention", "full_attention"]"#
        }
    };
    format!(
        r#", "head_dim": {head_dim}, "global_head_dim": {}, "sliding_window": 100, "final_logit_softcapping": 30.0,
        {layers}, {heads}"#,
        2 * head_dim
    )
}

fn experts(random: &mut Pcg64) -> String {
    format!(
        r#""num_experts": 8, "num_experts_per_tok": {}, "moe_intermediate_size": {}"#,
        one(random, &[2, 4]),
        one(random, &[64, 96]),
    )
}

fn config(family: &str, random: &mut Pcg64) -> String {
    let hidden = one(random, &[128, 192, 256]);
    let head_dim = one(random, &[16, 32, 64]);
    let heads = one(random, &[2, 4]);
    let extra = match family {
        "gemma2" => format!(
            r#", "head_dim": {head_dim}, "query_pre_attn_scalar": 32, "sliding_window": 100,
            "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "hidden_activation": "gelu_pytorch_tanh""#
        ),
        "gemma3_text" => {
            format!(
                r#", "head_dim": {head_dim}, "query_pre_attn_scalar": 32, "sliding_window": 100, "sliding_window_pattern": 2"#
            )
        }
        "granite" => format!(
            r#", "head_dim": {head_dim}, "residual_multiplier": 0.25, "logits_scaling": 8, "embedding_multiplier": 12"#
        ),
        "granitemoehybrid" => format!(
            r#", "head_dim": {head_dim}, "residual_multiplier": 0.25, "shared_intermediate_size": {},
            "position_embedding_type": "rope""#,
            2 * hidden
        ),
        "ministral3" => format!(
            r#", "head_dim": {head_dim}, "rope_parameters": {{"rope_type": "yarn", "factor": 16.0, "mscale": 1.0,
            "mscale_all_dim": 1.0, "original_max_position_embeddings": 64, "llama_4_scaling_beta": 0.1}}"#
        ),
        "exaone4" | "olmo3" | "cohere2" => format!(r#", "head_dim": {head_dim}, "sliding_window": 100"#),
        "mistral" => format!(r#", "head_dim": {head_dim}, "sliding_window": 150"#),
        "phi3" => r#", "pad_token_id": 0, "original_max_position_embeddings": 4096"#.to_owned(),
        "qwen3_moe" => format!(
            r#", "head_dim": {head_dim}, "mlp_only_layers": [1], {}"#,
            experts(random)
        ),
        "qwen2_moe" => format!(
            r#", "head_dim": {head_dim}, "shared_expert_intermediate_size": 160, {}"#,
            experts(random)
        ),
        "glm4_moe" => format!(
            r#", "head_dim": {head_dim}, "first_k_dense_replace": 1, "n_shared_experts": 1, "n_routed_experts": 8, {}"#,
            experts(random)
        ),
        "gpt_oss" => format!(
            r#", "head_dim": {head_dim}, "sliding_window": 100, "num_local_experts": 8, "num_experts_per_tok": {}"#,
            one(random, &[2, 4])
        ),
        "olmoe" => format!(r#", "num_experts": 8, "num_experts_per_tok": {}"#, one(random, &[2, 4])),
        "deepseek_v3" | "deepseek_v2" | "glm4_moe_lite" => format!(
            r#", "q_lora_rank": {}, "kv_lora_rank": {}, "qk_nope_head_dim": {head_dim}, "qk_rope_head_dim": 16,
            "v_head_dim": {}, "first_k_dense_replace": 1, "n_shared_experts": 1, "n_routed_experts": 8, {}"#,
            one(random, query_ranks(family)),
            one(random, &[32, 64]),
            one(random, &[32, 48]),
            experts(random)
        ),
        "lfm2" => {
            format!(r#", "head_dim": {head_dim}, "block_auto_adjust_ff_dim": false, "full_attn_idxs": [1]"#)
        }
        "qwen3_5_text" => format!(
            r#", "head_dim": {head_dim}, "partial_rotary_factor": 0.5, "full_attention_interval": 2, "linear_num_key_heads": 2,
            "linear_num_value_heads": {heads}, "linear_key_head_dim": {}, "linear_value_head_dim": {}"#,
            one(random, &[16, 32]),
            one(random, &[16, 32]),
        ),
        "gemma4_text" => gemma4(random, head_dim),
        GEMMA4_MOE => format!(
            r#", "head_dim": {head_dim}, "global_head_dim": {}, "sliding_window": 100, "attention_k_eq_v": true,
            "num_global_key_value_heads": 1, "hidden_size_per_layer_input": 0, "enable_moe_block": true, "num_experts": 8,
            "top_k_experts": {}, "moe_intermediate_size": {}"#,
            2 * head_dim,
            one(random, &[2, 4]),
            one(random, &[64, 96])
        ),
        "llama4_text" => format!(
            r#", "head_dim": {head_dim}, "intermediate_size_mlp": 256, "interleave_moe_layer_step": 2,
            "attention_chunk_size": {}, "num_local_experts": 4, "num_experts_per_tok": {}"#,
            one(random, &[48, 100, 8192]),
            one(random, &[1, 2])
        ),
        "qwen3" => format!(r#", "tie_word_embeddings": true, "head_dim": {head_dim}"#),
        _ => format!(r#", "tie_word_embeddings": false, "head_dim": {head_dim}"#),
    };
    let model_type = if family == GEMMA4_MOE { "gemma4_text" } else { family };
    format!(
        r#"{{"model_type": "{model_type}", "hidden_size": {hidden}, "num_hidden_layers": {}, "num_attention_heads": {heads},
        "num_key_value_heads": {}, "intermediate_size": {}, "vocab_size": {},
        "max_position_embeddings": 4096{extra}}}"#,
        random.random_range(2..5),
        heads / if is_latent(family) { 1 } else { one(random, &[1, 2]) },
        hidden * one(random, &[2, 3]),
        one(random, &[512, 1000, 4096]),
    )
}
