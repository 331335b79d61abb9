//! The table of settings against the engine: every setting is changed, with every optimizer, on a tiny model, and what that
//! does to loss, peak memory and the work of a step is held against what the table says it can change.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use peft_tune_core::recipe::settings::{Legal, Outcome, SettingRow, settings};
use peft_tune_core::recipe::{
    AdapterBias, BatchSettings, DataFormat, DataSettings, HeldOut, OptimizerKind, ParamValue, Precision, Recipe,
    RecipeKey, ScheduleKind, WeightSparsity,
};
use peft_tune_engine::data::{BatchSource, Prefetch, PreparedData, RowOrder, evaluation_batches};
use peft_tune_engine::hub::ModelFiles;
use peft_tune_engine::optimizer::global_norm;
use peft_tune_engine::profile::{HostMemory, ceilings};
use peft_tune_engine::span::{MemoryReading, Probe, Range, Recording, Work};
use peft_tune_engine::{BaseModel, Trainer, load_base};
use peft_tune_kernels::device;

/// Steps of a training: the decay of a mean and a learning rate that falls show from the second one on, the first beta of
/// Schedule-Free from the third.
const STEPS: u64 = 3;

/// Relative difference of losses that are the same: with the same micro-batches to the last bit but for a few, and where a
/// global batch is cut otherwise, sums are taken in another order, which Lion and Muon blow up.
const SAME_LOSS: f64 = 1e-6;
const SAME_LOSS_IN_OTHER_PARTS: f64 = 2e-3;
/// Relative difference of peaks that are the same: names and lists of a recipe take a few bytes.
const SAME_PEAK: f64 = 1e-3;

/// Other tests of this process would be counted too: the comparison runs in a process of its own. It has one thread; where
/// that is not said, each of candle's products reads the list of processors.
#[test]
fn the_table_says_what_the_engine_does() {
    let program = std::env::current_exe().unwrap();
    let run = std::process::Command::new(program)
        .args(["--ignored", "--exact", "settings::alone", "--nocapture"])
        .env("RAYON_NUM_THREADS", "1")
        .output()
        .unwrap();
    let (said, wrong) = (
        String::from_utf8_lossy(&run.stdout),
        String::from_utf8_lossy(&run.stderr),
    );
    assert!(run.status.success(), "{said}{wrong}");
}

#[test]
#[ignore = "counts every byte of its process; the test above runs it"]
fn alone() {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    pool.install(|| {
        ceilings::warm_threads().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let mut engine = Engine::new(folder.path());
        let trials = engine.trials();
        // A key that forgets that Muon updates vectors by AdamW is found out: the comparison sees what it is for.
        let forgetful = |recipe: &Recipe, outcome| {
            let mut recipe = recipe.clone();
            if recipe.optimizer.kind == OptimizerKind::Muon {
                (recipe.optimizer.beta1, recipe.optimizer.beta2) = (0.9, None);
            }
            recipe.key(&[outcome])
        };
        assert!(!what_changes_under_one_key(&trials, forgetful).is_empty());
        let mut wrong = what_changes_under_one_key(&trials, |recipe, outcome| recipe.key(&[outcome]));
        wrong.extend(what_never_changes(&trials));
        assert!(
            wrong.is_empty(),
            "{} of {} trials\n{}",
            wrong.len(),
            trials.len(),
            wrong.join("\n")
        );
    });
}

/// Numbers that one training came to.
#[derive(Clone, Debug)]
struct Observed {
    loss: f64,
    peak: u64,
    work: WorkOfSteps,
}

/// Work that the steps had to do.
#[derive(Clone, Debug, PartialEq)]
struct WorkOfSteps {
    tokens: Vec<u64>,
    /// Steps whose rows are there before they are asked for.
    ready: u64,
    /// The ops of one of them.
    ops: Vec<(Range, Work)>,
    /// Whether its gradients were scaled down, which the trace does not tell.
    is_scaled: bool,
}

impl WorkOfSteps {
    fn has_the_ops_of(&self, other: &Self) -> bool {
        (&self.tokens, self.ready, &self.ops) == (&other.tokens, other.ready, &other.ops)
    }
}

/// One recipe and what became of it.
struct Trial {
    /// The setting that was changed; none for the recipe that it was changed in.
    row: Option<&'static SettingRow>,
    value: String,
    /// The trial of the recipe that it was changed in.
    context: usize,
    recipe: Recipe,
    observed: Observed,
}

impl Trial {
    fn describe(&self) -> String {
        let kind = self.recipe.optimizer.kind.name();
        let form = match &self.recipe.adapter {
            None => "full",
            Some(adapter) if adapter.dora => "rich adapter",
            Some(_) => "adapter",
        };
        match self.row {
            Some(row) => format!("{kind} | {form} | {} = {}", row.name, self.value),
            None => format!("{kind} | {form}"),
        }
    }

    fn parts(&self) -> (usize, usize, usize) {
        let batch = &self.recipe.batch;
        (batch.micro_batch, batch.gradient_accumulation, batch.devices)
    }
}

fn differs(one: &Trial, other: &Trial, outcome: Outcome) -> bool {
    let (a, b) = (&one.observed, &other.observed);
    match outcome {
        Outcome::Throughput => a.work != b.work,
        Outcome::PeakMemory => a.peak.abs_diff(b.peak) as f64 > SAME_PEAK * a.peak as f64,
        Outcome::Loss => {
            let same = if one.parts() == other.parts() {
                SAME_LOSS
            } else {
                SAME_LOSS_IN_OTHER_PARTS
            };
            // A loss that is no number differs.
            let is_same = (a.loss - b.loss).abs() <= same * a.loss;
            !is_same
        }
    }
}

/// Trials with the same key for an outcome, of which that outcome is not the same.
fn what_changes_under_one_key(trials: &[Trial], key: impl Fn(&Recipe, Outcome) -> RecipeKey) -> Vec<String> {
    let mut wrong = Vec::new();
    for outcome in Outcome::ALL {
        let mut groups: BTreeMap<RecipeKey, Vec<&Trial>> = BTreeMap::new();
        for trial in trials {
            groups.entry(key(&trial.recipe, outcome)).or_default().push(trial);
        }
        for group in groups.values() {
            let first = group[0];
            // Whether one more pass over the gradients scales them down is a matter of their values, and of no weight.
            let is_another = |other: &&&Trial| match outcome {
                Outcome::Throughput => !first.observed.work.has_the_ops_of(&other.observed.work),
                _ => differs(first, other, outcome),
            };
            for other in group.iter().filter(is_another) {
                let numbers = |trial: &Trial| (trial.observed.loss, trial.observed.peak, trial.observed.work.ops.len());
                wrong.push(format!(
                    "one key, but another {outcome:?}: [{}] {:?} and [{}] {:?}",
                    first.describe(),
                    numbers(first),
                    other.describe(),
                    numbers(other)
                ));
            }
        }
    }
    wrong
}

/// Settings that the table says can change an outcome, with an optimizer where it names optimizers, and that never did.
fn what_never_changes(trials: &[Trial]) -> Vec<String> {
    let mut wrong = Vec::new();
    // Weights are shared out among processes: `sharded_weights`, `predict` and `data_parallel` measure that. What updates on the host
    // change is a GPU's: the engine's tests emulate one. What PyTorch's stack alone has the engine refuses, and trainings on
    // preferences are TRL's alone.
    let elsewhere = ["sharding", "optimizer_offload", "trainer", "beta", "reference"];
    let of_engine = settings().filter(|row| !row.is_of_torch());
    for row in of_engine.filter(|row| !elsewhere.contains(&row.name)) {
        let of_row = || {
            trials
                .iter()
                .filter(|trial| trial.row.is_some_and(|of| of.name == row.name))
        };
        for outcome in Outcome::ALL {
            let effect = row.effects.on(outcome);
            let changed = |trial: &&Trial| differs(&trials[trial.context], trial, outcome);
            if effect.changes() && effect.only.is_none() && !of_row().any(|trial| changed(&trial)) {
                wrong.push(format!("{} never changed {outcome:?}", row.name));
            }
            if effect.only.is_none() {
                continue;
            }
            let mut is_tried = false;
            for kind in OptimizerKind::ALL {
                let reads = |trial: &&Trial| {
                    trial.recipe.optimizer.kind == kind && row.part(&trials[trial.context].recipe, outcome).is_some()
                };
                let mut tried = of_row().filter(reads).peekable();
                is_tried |= tried.peek().is_some();
                if tried.peek().is_some() && !tried.any(|trial| changed(&trial)) {
                    wrong.push(format!("{} never changed {outcome:?} with {}", row.name, kind.name()));
                }
            }
            if !is_tried {
                wrong.push(format!("{} was never tried where it changes {outcome:?}", row.name));
            }
        }
    }
    wrong
}

/// Waits until nothing more is prepared after `taken` steps. Returns how many are ready ahead.
fn wait_until_ready(batches: &Prefetch, taken: u64, depth: usize) -> u64 {
    let until = Instant::now() + Duration::from_secs(60);
    while batches.times().steps < taken + depth as u64 {
        assert!(Instant::now() < until, "{:?} after {taken} of {depth}", batches.times());
        std::thread::yield_now();
    }
    batches.times().steps - taken
}

/// The tiny model and its data.
struct Engine {
    recipe: Recipe,
    files: ModelFiles,
    data: PreparedData,
    bases: BTreeMap<(Precision, WeightSparsity), Arc<BaseModel>>,
}

impl Engine {
    fn new(folder: &Path) -> Self {
        let rows = |count: usize, name: &str| {
            let row = |row: usize| {
                let length = 5 + row * 7 % 8;
                let ids: Vec<usize> = (0..length).map(|place| (row * 31 + place * place * 17) % 500).collect();
                serde_json::json!({"input_ids": ids}).to_string()
            };
            let text: Vec<String> = (0..count).map(row).collect();
            let path = folder.join(name);
            std::fs::write(&path, text.join("\n")).unwrap();
            path
        };
        let data = DataSettings {
            train: vec![rows(64, "train.jsonl")].into(),
            held_out: HeldOut::File(rows(4, "held_out.jsonl")),
            format: DataFormat::Tokenized,
            ..DataSettings::default()
        };
        let model = crate::golden::folder("ref_qwen2/model");
        let mut recipe = Recipe::new(model.to_str().unwrap(), data);
        recipe.precision = Precision::Fp32;
        recipe.batch = BatchSettings {
            micro_batch: 2,
            gradient_accumulation: 2,
            sequence_length: 16,
            ..BatchSettings::default()
        };
        recipe.adapter.as_mut().unwrap().rank = 4;
        recipe.optimizer.learning_rate = 0.01;
        recipe.optimizer.weight_decay = 0.1;
        let files = ModelFiles::resolve_weights(&recipe.model, &mut ()).unwrap();
        let data = PreparedData::of_recipe(&recipe, &files).unwrap();
        Self {
            recipe,
            files,
            data,
            bases: BTreeMap::new(),
        }
    }

    /// Recipes in which settings are changed: an adapter, one with all that may come with it, the whole model, and, with the
    /// first optimizer, the other schedules and quantized weights.
    fn contexts(&self, kind: OptimizerKind) -> Vec<Recipe> {
        let mut plain = self.recipe.clone();
        plain.optimizer.kind = kind;
        let mut rich = plain.clone();
        let adapter = rich.adapter.as_mut().unwrap();
        (adapter.dora, adapter.bias, adapter.dropout) = (true, AdapterBias::All, 0.2);
        let mut full = plain.clone();
        full.adapter = None;
        let with_schedule = |schedule: ScheduleKind| {
            let mut recipe = plain.clone();
            recipe.schedule.kind = schedule;
            recipe.schedule.decay = Some(STEPS as f64);
            recipe
        };
        let schedules = ScheduleKind::ALL
            .into_iter()
            .filter(|_| kind == OptimizerKind::default());
        let mut others: Vec<_> = schedules.map(with_schedule).collect();
        if kind == OptimizerKind::default() {
            // What only some precisions read.
            for precision in [Precision::Int8, Precision::Bf16] {
                let mut other = plain.clone();
                other.precision = precision;
                others.push(other);
            }
        }
        [vec![plain, rich, full], others].concat()
    }

    /// Every setting changed with every optimizer. All values are tried with the first optimizer, and where it depends on the
    /// optimizer whether a setting is read; elsewhere each optimizer has one of them in turn, and where not all cases are asked
    /// for, of every third setting.
    fn trials(&mut self) -> Vec<Trial> {
        // What a process makes once for an optimizer, and keeps, is no trial's.
        for kind in OptimizerKind::ALL {
            self.observe(&self.contexts(kind)[0]).expect("a sound recipe");
        }
        let mut trials: Vec<Trial> = Vec::new();
        for (turn, kind) in OptimizerKind::ALL.into_iter().enumerate() {
            let contexts = self.contexts(kind);
            for (form, before) in contexts.iter().enumerate() {
                let (context, recipe) = (trials.len(), before.clone());
                let observed = self.observe(before).expect("a sound recipe");
                let (row, value) = (None, String::new());
                trials.push(Trial {
                    row,
                    value,
                    context,
                    recipe,
                    observed,
                });
                for (place, row) in settings().enumerate() {
                    let has_its_turn = (turn + place).is_multiple_of(crate::cases_of(1, 3));
                    let depends = Outcome::ALL
                        .iter()
                        .any(|outcome| row.effects.on(*outcome).only.is_some());
                    let is_read = row.is_read(before);
                    let as_in_the_first = form > 0 && is_read == row.is_read(&contexts[0]);
                    let mut values = changed(row, before);
                    let tried = match (turn == 0 && form < 3, depends) {
                        (true, _) => values.len(),
                        (false, true) if is_read && !as_in_the_first => values.len(),
                        (false, true) if !is_read => 1,
                        (false, false) if form == 0 && has_its_turn => 1,
                        _ => 0,
                    };
                    let shift = turn % values.len().max(1);
                    values.rotate_left(shift);
                    for (value, recipe) in values.into_iter().take(tried) {
                        // What the engine refuses beside other settings changes nothing.
                        if let Some(observed) = self.observe(&recipe) {
                            let (row, value) = (Some(row), value.to_string());
                            trials.push(Trial {
                                row,
                                value,
                                context,
                                recipe,
                                observed,
                            });
                        }
                    }
                }
                if form < 3 {
                    trials.extend(self.in_other_parts(context, before));
                }
            }
        }
        trials
    }

    /// Trials of the same global batch in other micro-batches.
    fn in_other_parts(&mut self, context: usize, recipe: &Recipe) -> Vec<Trial> {
        let parts = [(4, 1, 1), (1, 2, 2)];
        let trial = |(micro_batch, gradient_accumulation, devices)| {
            let mut recipe = recipe.clone();
            recipe.batch = BatchSettings {
                micro_batch,
                gradient_accumulation,
                devices,
                ..recipe.batch
            };
            let observed = self.observe(&recipe).expect("a sound recipe");
            let (row, value) = (None, String::new());
            Trial {
                row,
                value,
                context,
                recipe,
                observed,
            }
        };
        parts.into_iter().map(trial).collect()
    }

    /// Trains, or `None` where the settings exclude each other.
    fn observe(&mut self, recipe: &Recipe) -> Option<Observed> {
        let length = recipe.batch.sequence_length;
        if self.data.sequence_length() != length {
            self.data = self.data.at_length(length).unwrap();
        }
        let key = (recipe.precision, recipe.weight_sparsity);
        if !self.bases.contains_key(&key) {
            let device = device::open("cpu").unwrap();
            let base = load_base(&self.files.folder, recipe, &self.data, None, &device);
            self.bases.insert(key, Arc::new(base.ok()?));
        }
        let base = &self.bases[&key];
        let order = RowOrder::Shuffled { seed: 1 };
        let source = Arc::new(BatchSource::new(self.data.train().clone(), &recipe.batch, order).unwrap());
        let held_out: Vec<_> = evaluation_batches(self.data.held_out(), 4, None).collect();
        device::forget_scratch();
        let before = HostMemory::in_use_bytes() - base.bytes() as u64;
        HostMemory::reset_peak();
        let mut trainer = Trainer::new(Arc::clone(base), recipe, STEPS).ok()?;
        let mut batches = Prefetch::start(Arc::clone(&source), 0..u64::MAX).unwrap();
        let ready = wait_until_ready(&batches, 0, recipe.batch.prefetch_depth);
        let mut step = |step| {
            let tokens = trainer.step(&batches.next().unwrap()).unwrap().tokens;
            wait_until_ready(&batches, step + 1, recipe.batch.prefetch_depth);
            tokens
        };
        let tokens = (0..STEPS).map(&mut step).collect();
        let loss = trainer.evaluate(&held_out).unwrap().loss;
        // As a trial does before it measures: the rows that need the most memory.
        let worst = vec![source.longest_micro_batch(); recipe.batch.micro_batches()];
        for widest in [Some(true), Some(false), None] {
            trainer.hold_precision(widest);
            trainer.step(&worst).unwrap();
        }
        // Before the recording, whose own memory is many times that of such a step.
        let peak = HostMemory::peak_bytes() - before;
        let recording = Recording::start(Probe {
            memory: Box::new(MemoryReading::default),
            device: None,
        });
        let event = trainer.step(&worst).unwrap();
        let spans = recording.take().into_iter().flat_map(|tree| tree.spans);
        let work = WorkOfSteps {
            tokens,
            ready,
            ops: spans.map(|span| (span.range, span.work)).collect(),
            is_scaled: global_norm(&trainer.parameters().gradients).unwrap() < 0.999 * event.grad_norm,
        };
        Some(Observed { loss, peak, work })
    }
}

/// Recipes that differ from `recipe` in one setting, with its value.
fn changed(row: &SettingRow, recipe: &Recipe) -> Vec<(ParamValue, Recipe)> {
    let floats = |values: &[f64]| values.iter().map(|value| ParamValue::Float(*value)).collect::<Vec<_>>();
    let names = |names: &[&str]| names.iter().map(|name| ParamValue::from(*name)).collect::<Vec<_>>();
    let values = match row.legal {
        Legal::Int { .. } => [1, 2, 4, 16].map(ParamValue::Int).to_vec(),
        Legal::Float(_) => floats(&[0.0, 0.3, 2.0]),
        Legal::FloatOrNone(_) => [names(&["none"]), floats(&[0.3, 2.0])].concat(),
        Legal::Bool => vec![true.into(), false.into()],
        Legal::Choice(choices) => names(choices),
        Legal::Checkpointing => names(&["none", "every_2", "full", "offload"]),
        Legal::PrecisionSchedule => names(&["none", "fp32_1", "fp32_100", "adaptive_1", "adaptive_100"]),
        Legal::Targets => [names(&["attention", "mlp"]), vec![ParamValue::list(["q_proj"])]].concat(),
    };
    let with = |value: ParamValue| {
        let mut changed = recipe.clone();
        let is_set = row.legal.allows(&value) && (row.get)(recipe).is_some() && (row.set)(&mut changed, &value).is_ok();
        let is_quantized = changed.precision.is_quantized();
        let can_train = match is_quantized {
            true => changed.adapter.is_some(),
            false => changed.activation_quantization.is_none(),
        };
        (is_set && can_train && changed != *recipe).then_some((value, changed))
    };
    values.into_iter().filter_map(with).collect()
}

/// A setting that is not tried is not tested.
#[test]
fn every_setting_has_values_to_try() {
    let recipe = Recipe::new("model", DataSettings::default());
    let mut quantized = recipe.clone();
    quantized.precision = Precision::Int8;
    let untried: BTreeSet<_> = settings()
        .filter(|row| changed(row, &recipe).is_empty() && changed(row, &quantized).is_empty())
        .map(|row| row.name)
        .collect();
    assert_eq!(untried, BTreeSet::new());
}
