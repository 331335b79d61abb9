//! Profiling one recipe: warm-up, then steps under recording until the median is known well enough.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::aggregate::{FreeSteps, Held, MemoryWatch, StepTotals};
use super::ceiling::Ceiling;
use super::kernels::{Activity, Collector, CuptiError, DriverCalls, GpuTimeline};
use super::sample::{DeviceSampler, EnergyMeter, EnergyUse, Sampling};
use super::steady::{Throughput, WarmupDetector, median};
use super::trace::Trace;
use super::{
    DataFacts, DataWaits, DeviceMemory, EvaluationCost, HostMemory, LibraryFolders, Profile, Setting, SpanTiming,
    SpannedSteps, StepFacts,
};
use crate::data::{BatchSource, DataError, Prefetch, PrefetchTimes, PreparedData, evaluation_batches};
use crate::span;
use crate::span::{MemoryReading, Probe, Recording, SpanRecord, SpanTree, StepPhase};
use crate::{BaseSource, StepEvent, StepObserver, TrainError, Trainer};
use peft_tune_core::recipe::{PrecisionSchedule, Recipe};
use peft_tune_kernels::device::Device;
use peft_tune_kernels::{attention_kernels, device, forget_launched, kernels, longer_sums};

/// Fewest measured steps: the interval of a median means little below.
const FEWEST_STEPS: usize = 6;

/// Steps that are taken for their spans alone, where those are others than the ones whose time counts.
const SPANNED_STEPS: u64 = 6;

/// Part of the time that is left to steps with spans then.
const SPANNED_SHARE: f64 = 0.3;

/// Held-out rows that are evaluated; the time of more is scaled up from them.
const MOST_EVALUATED_ROWS: usize = 64;

/// How long to measure, and how well.
#[derive(Clone, Debug, PartialEq)]
pub struct ProfileSettings {
    /// Seconds after which measuring ends, whatever is known by then.
    pub budget_s: f64,
    /// Relative half width of the throughput's confidence interval that is enough.
    pub interval: f64,
    pub max_warmup_steps: u64,
    /// Steps whose spans are kept for the trace.
    pub trace_steps: usize,
    /// Time from one look at the device to the next.
    pub sample_every: Duration,
    /// Whether spans are taken from steps of their own, so that nothing of the recording is in the steps whose time counts; where
    /// absent, on GPUs, where each span costs the host two events.
    pub spans_apart: Option<bool>,
}

impl Default for ProfileSettings {
    fn default() -> Self {
        Self {
            budget_s: 60.0,
            interval: 0.02,
            max_warmup_steps: 10,
            trace_steps: 3,
            sample_every: Duration::from_millis(200),
            spans_apart: None,
        }
    }
}

/// Model and data that are profiled, loaded.
pub struct ProfileInputs<'a> {
    pub recipe: &'a Recipe,
    pub base: BaseSource,
    pub data: &'a PreparedData,
    /// Bytes in use before the base model was loaded.
    pub program_bytes: u64,
    pub memory_limit_bytes: Option<u64>,
    /// Ceiling of the device, where it is known.
    pub ceiling: Option<Ceiling>,
    pub sampler: Option<Box<dyn DeviceSampler>>,
    /// Writes measured steps down as a training does, so that what this costs is measured too.
    pub log: Option<StepLog>,
}

/// Log that a training writes of its steps.
pub struct StepLog {
    pub observer: Box<dyn StepObserver>,
    /// One step in N is logged.
    pub every: u64,
}

/// A profile with the spans of its last steps.
#[derive(Debug)]
pub struct Measured {
    pub profile: Profile,
    pub trace: Trace,
}

/// A recipe that cannot be profiled.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    #[error(transparent)]
    Train(#[from] TrainError),
    #[error(transparent)]
    Data(#[from] DataError),
    #[error("cannot start the thread that watches the device: {0}")]
    Thread(std::io::Error),
    #[error("the data ended after {steps} steps; give the recipe more training rows")]
    NoData { steps: u64 },
}

impl From<candle_core::Error> for ProfileError {
    fn from(error: candle_core::Error) -> Self {
        Self::Train(error.into())
    }
}

/// Profiles `inputs`.
///
/// # Errors
/// Settings that do not fit the model, data that cannot be batched, memory.
pub fn profile(inputs: ProfileInputs<'_>, settings: &ProfileSettings) -> Result<Measured, ProfileError> {
    forget_launched();
    let source = Arc::new(source_of(&inputs)?);
    let base = inputs.base.open()?;
    let device = base.device().clone();
    let apart = settings.spans_apart.unwrap_or(!device.is_cpu());
    let memory = DeviceMemory::of(&device)?;
    let recording = Recording::start(Probe {
        memory: Box::new(move || read(&memory)),
        device: (!device.is_cpu()).then_some(device),
    });
    // A schedule of the precision would be at its beginning all the time: most steps compute in the recipe's own.
    let recipe = Recipe {
        precision_schedule: PrecisionSchedule::None,
        ..inputs.recipe.clone()
    };
    let trainer = Trainer::new(base, &recipe, u64::MAX)?;
    let mut session = Session {
        batches: Prefetch::start(Arc::clone(&source), 0..u64::MAX)?,
        recording,
        trainer,
        totals: StepTotals::default(),
        watch: MemoryWatch::default(),
        each: Vec::new(),
        spanned: apart.then(Vec::new),
        log: inputs.log,
        kept: Vec::new(),
        kept_steps: settings.trace_steps,
        warmup_steps: 0,
        waits: None,
    };
    let started = Instant::now();
    session.warm_up(&source, settings)?;
    let sampling = inputs
        .sampler
        .map(|sampler| Sampling::start(sampler, session.recording.started(), settings.sample_every));
    let sampling = sampling.transpose().map_err(ProfileError::Thread)?;
    let energy = session.measure(&source, started, settings)?;
    let samples = sampling.map(Sampling::finish).unwrap_or_default();
    let gpu = session.watch_gpu()?;
    let evaluation = session.evaluate(inputs.recipe, inputs.data, &source)?;

    let steps = session.facts(settings);
    let held = Held {
        program: inputs.program_bytes,
        base: inputs.base.frozen_bytes() as u64,
        adapters: flat_bytes(&session.trainer),
        gradients: flat_bytes(&session.trainer),
        optimizer: session
            .trainer
            .optimizer()
            .state_bytes_on(session.trainer.base().device()),
    };
    let totals = &session.totals;
    let profile = Profile {
        setting: Setting {
            log_every: session.log.as_ref().map_or(0, |log| log.every),
            ..setting_of(inputs.recipe, &session.trainer, inputs.memory_limit_bytes)
        },
        data: DataFacts {
            waits: session.waits,
            ..facts_of(inputs.recipe, &source)
        },
        phases: totals.phases(),
        modules: totals.modules(),
        ops: totals.ops(inputs.ceiling.as_ref()),
        memory: session.watch.facts(held),
        adapter: Some(totals.adapter()),
        arithmetic: totals.arithmetic(inputs.ceiling.as_ref(), session.free_steps()),
        evaluation: evaluation.map(|evaluation| share_of_training(evaluation, &steps, inputs.recipe, &source)),
        steps,
        samples,
        energy,
        gpu: gpu.as_ref().map(|watched| watched.timeline.clone()),
    };
    let trace = Trace {
        trees: session.kept,
        threads: session.recording.threads(),
        held,
        samples: profile.samples.clone(),
        activities: gpu.map(|watched| watched.spanned).unwrap_or_default(),
    };
    Ok(Measured { profile, trace })
}

/// Steps under way.
struct Session {
    // Dropped before the recording that its thread takes part in.
    batches: Prefetch,
    recording: Recording,
    trainer: Trainer,
    totals: StepTotals,
    watch: MemoryWatch,
    each: Vec<(f64, u64)>,
    /// (seconds, tokens) of the steps with spans, where they are others.
    spanned: Option<Vec<(f64, u64)>>,
    log: Option<StepLog>,
    /// Trees of the last steps, of all threads.
    kept: Vec<SpanTree>,
    kept_steps: usize,
    warmup_steps: u64,
    /// Waits for data in the measured steps.
    waits: Option<DataWaits>,
}

impl Session {
    /// Steps until two agree; the largest micro-batch is among them, as it decides the peak.
    fn warm_up(&mut self, source: &BatchSource, settings: &ProfileSettings) -> Result<(), ProfileError> {
        let span = span::phase(StepPhase::Step);
        self.trainer.step(&[source.longest_micro_batch()])?;
        drop(span);
        let mut warmup = WarmupDetector::new(settings.max_warmup_steps);
        while !warmup.is_over() {
            let (seconds, tokens) = self.step()?;
            warmup.push(seconds, tokens);
            self.warmup_steps += 1;
        }
        let mut spans = 0;
        for tree in self.recording.take() {
            if tree.thread == 0 {
                self.watch.push(&tree, recorded(spans));
            }
            spans += tree.spans.len();
        }
        self.kept.clear();
        Ok(())
    }

    /// Measures steps until the interval is small enough or the time is spent, and steps with spans where those are
    /// others.
    fn measure(
        &mut self,
        source: &BatchSource,
        started: Instant,
        settings: &ProfileSettings,
    ) -> Result<Option<EnergyUse>, ProfileError> {
        let until = match self.spanned {
            Some(_) => (1.0 - SPANNED_SHARE) * settings.budget_s,
            None => settings.budget_s,
        };
        let pause = self.spanned.is_some().then(|| self.recording.pause());
        if pause.is_some() {
            self.warm_up_freely(settings)?;
        }
        let mut meter = EnergyMeter::open(self.trainer.base().device());
        let (began, reading) = (Instant::now(), self.batches.times());
        loop {
            let step = self.step()?;
            self.each.push(step);
            if pause.is_none() {
                self.take_spans();
            }
            let interval = Throughput::from_steps(&self.each).map_or(f64::INFINITY, |known| known.interval);
            let settled = self.each.len() >= FEWEST_STEPS && interval <= settings.interval;
            if settled || (started.elapsed().as_secs_f64() >= until && self.each.len() > 1) {
                break;
            }
        }
        let reading = self.batches.times().since(&reading);
        self.waits = Some(waits_of(&reading, source.prefetch_depth(), began.elapsed()));
        let energy = meter.as_mut().map(|meter| EnergyUse {
            joules: meter.joules(),
            seconds: began.elapsed().as_secs_f64(),
            tokens: self.each.iter().map(|(_, tokens)| tokens).sum(),
        });
        drop(pause);
        self.measure_spans(started, settings)?;
        Ok(energy)
    }

    /// Steps that nobody records, until two agree: the first of them may be captured as graphs.
    fn warm_up_freely(&mut self, settings: &ProfileSettings) -> Result<(), ProfileError> {
        let mut warmup = WarmupDetector::new(settings.max_warmup_steps);
        while !warmup.is_over() {
            let (seconds, tokens) = self.step()?;
            warmup.push(seconds, tokens);
            self.warmup_steps += 1;
        }
        Ok(())
    }

    /// Steps for their spans alone, where the measured ones had none.
    fn measure_spans(&mut self, started: Instant, settings: &ProfileSettings) -> Result<(), ProfileError> {
        let Some(mut spanned) = self.spanned.take() else {
            return Ok(());
        };
        // The thread that prepares batches recorded meanwhile.
        drop(self.recording.take());
        while (spanned.len() as u64) < SPANNED_STEPS {
            spanned.push(self.step()?);
            self.take_spans();
            if started.elapsed().as_secs_f64() >= settings.budget_s && spanned.len() > 1 {
                break;
            }
        }
        self.spanned = Some(spanned);
        Ok(())
    }

    /// Adds the spans of the last step up.
    fn take_spans(&mut self) {
        for tree in self.recording.take() {
            if tree.thread == 0 {
                self.totals.push(&tree);
                let kept = self.kept.iter().map(|tree| tree.spans.len()).sum();
                self.watch.push(&tree, recorded(kept));
            }
            self.keep(tree);
        }
    }

    /// Runs some steps more, whose kernels CUPTI records: first with spans that wait, which tell which op launched
    /// what, then running freely. `None` where there is no GPU or no CUPTI.
    fn watch_gpu(&mut self) -> Result<Option<Watched>, ProfileError> {
        if !self.trainer.base().device().is_cuda() {
            return Ok(None);
        }
        match GpuWatch::start(&self.recording) {
            Ok(watch) => self.watch_with(&watch),
            Err(error) => {
                tracing::warn!(%error, "no kernels in the profile");
                Ok(None)
            }
        }
    }

    fn watch_with(&mut self, watch: &GpuWatch) -> Result<Option<Watched>, ProfileError> {
        let steps = self.kept_steps.max(1);
        self.recording.wait_in_spans(true);
        for _ in 0..steps {
            self.step()?;
            for tree in self.recording.take() {
                self.keep(tree);
            }
        }
        self.recording.wait_in_spans(false);
        let spanned = watch.take();
        let start_ns = self.recording.now_ns();
        let pause = self.recording.pause();
        (0..steps).try_for_each(|_| self.step().map(drop))?;
        drop(pause);
        let until = (start_ns, self.recording.now_ns());
        let free = watch.take();
        let calls = self.count_calls(watch, steps)?;
        Ok(spanned.zip(free).map(|(spanned, free)| Watched {
            timeline: GpuTimeline {
                calls,
                ..GpuTimeline::new(&free, until, steps as u64, &spanned, &self.kept)
            },
            spanned,
        }))
    }

    /// Calls of the driver that the host makes in a step, from some steps more: counting takes time.
    fn count_calls(&mut self, watch: &GpuWatch, steps: usize) -> Result<Option<DriverCalls>, ProfileError> {
        let told = |error: &CuptiError| tracing::warn!(%error, "the driver's calls are not counted");
        let _pause = self.recording.pause();
        if watch.collector.count_calls().inspect_err(told).is_err() {
            return Ok(None);
        }
        let taken = (0..steps).try_for_each(|_| self.step().map(drop));
        let calls = watch.collector.take_calls().inspect_err(told).ok();
        taken?;
        Ok(calls.map(|calls| DriverCalls::new(&calls, steps as u64)))
    }

    /// One step with the wait for its data, and written down: (seconds, tokens).
    fn step(&mut self) -> Result<(f64, u64), ProfileError> {
        let begun = Instant::now();
        let _step = span::phase(StepPhase::Step);
        let waiting = span::phase(StepPhase::Data);
        let batch = self.batches.next();
        drop(waiting);
        let steps = self.trainer.steps();
        let event = self.trainer.step(&batch.ok_or(ProfileError::NoData { steps })?)?;
        self.write_down(&event);
        Ok((begun.elapsed().as_secs_f64(), event.tokens))
    }

    fn write_down(&mut self, event: &StepEvent) {
        let Some(log) = &mut self.log else { return };
        if event.step.is_multiple_of(log.every.max(1)) {
            let _logging = span::phase(StepPhase::Logging);
            log.observer.step(event);
        }
    }

    fn keep(&mut self, tree: SpanTree) {
        self.kept.push(tree);
        let steps = self.kept.iter().filter(|tree| tree.thread == 0).count();
        if steps > self.kept_steps
            && let Some(oldest) = self.kept.iter().position(|tree| tree.thread == 0)
        {
            self.kept.drain(..=oldest);
        }
    }

    /// Seconds of an evaluation, from at most [`MOST_EVALUATED_ROWS`] rows.
    fn evaluate(
        &mut self,
        recipe: &Recipe,
        data: &PreparedData,
        source: &BatchSource,
    ) -> Result<Option<EvaluationCost>, ProfileError> {
        let all = data.held_out().len();
        let rows = recipe.training.evaluation_rows.map_or(all, |limit| limit.min(all));
        let some = rows.min(MOST_EVALUATED_ROWS);
        let batches: Vec<_> = evaluation_batches(data.held_out(), recipe.batch.micro_batch, Some(some)).collect();
        let targets: usize = batches.iter().map(|batch| batch.target_tokens()).sum();
        if targets == 0 || source.rows() == 0 {
            return Ok(None);
        }
        let mut evaluation = self.trainer.evaluate(&batches)?;
        for tree in self.recording.take() {
            self.kept.push(tree);
        }
        if self.spanned.is_some() {
            let _pause = self.recording.pause();
            evaluation = self.trainer.evaluate(&batches)?;
        }
        Ok(Some(EvaluationCost {
            rows: rows as u64,
            seconds: evaluation.seconds * rows as f64 / some as f64,
            share: 0.0,
        }))
    }

    fn facts(&self, settings: &ProfileSettings) -> StepFacts {
        let throughput = Throughput::from_steps(&self.each);
        let tokens: u64 = self.each.iter().map(|(_, tokens)| tokens).sum();
        let interval = throughput.map_or(f64::INFINITY, |throughput| throughput.interval);
        StepFacts {
            warmup_steps: self.warmup_steps,
            measured_steps: self.each.len() as u64,
            tokens_per_s: throughput.map_or(0.0, |throughput| throughput.tokens_per_s),
            interval,
            spread: throughput.map_or(0.0, |throughput| throughput.spread),
            step_s: median(self.each.iter().map(|(seconds, _)| *seconds)).unwrap_or(0.0),
            tokens_per_step: tokens as f64 / self.each.len().max(1) as f64,
            settled: self.each.len() >= FEWEST_STEPS && interval <= settings.interval,
            each: self.each.clone(),
            spanned: self.spanned.as_ref().and_then(|steps| {
                let rate = Throughput::from_steps(steps)?.tokens_per_s;
                Some(SpannedSteps {
                    steps: steps.len() as u64,
                    step_s: median(steps.iter().map(|(seconds, _)| *seconds))?,
                    slowdown: throughput?.tokens_per_s / rate,
                    timed_by: SpanTiming::Events,
                })
            }),
        }
    }

    /// The steps that nobody recorded, as arithmetic takes them; `None` where there are none.
    fn free_steps(&self) -> Option<FreeSteps> {
        let spanned = self.spanned.as_ref()?;
        let mean = |steps: &[(f64, u64)]| {
            let tokens: u64 = steps.iter().map(|(_, tokens)| tokens).sum();
            tokens as f64 / steps.len().max(1) as f64
        };
        let tokens = mean(&self.each);
        Some(FreeSteps {
            tokens_ratio: tokens / mean(spanned).max(1.0),
            step_s: tokens / Throughput::from_steps(&self.each)?.tokens_per_s,
        })
    }
}

/// Activities of a GPU that was watched.
struct Watched {
    timeline: GpuTimeline,
    /// Activities in the steps whose spans are kept.
    spanned: Vec<Activity>,
}

/// CUPTI's records by the recording's clock.
struct GpuWatch {
    collector: Collector,
    /// CUPTI's clock at the recording's beginning.
    origin_ns: u64,
}

impl GpuWatch {
    fn start(recording: &Recording) -> Result<Self, CuptiError> {
        let collector = Collector::start(&LibraryFolders::of_environment())?;
        // The middle of two readings around CUPTI's, which takes a microsecond.
        let before = recording.now_ns();
        let now = collector.now_ns()?;
        let elapsed = before.midpoint(recording.now_ns());
        Ok(Self {
            origin_ns: now.saturating_sub(elapsed),
            collector,
        })
    }

    fn take(&self) -> Option<Vec<Activity>> {
        let taken = self.collector.take(self.origin_ns);
        taken
            .inspect_err(|error| tracing::warn!(%error, "no kernels in the profile"))
            .ok()
    }
}

/// Reads the memory's counters and starts a new peak.
fn read(memory: &DeviceMemory) -> MemoryReading {
    if matches!(memory, DeviceMemory::Host) {
        // The face's own reset also starts a new resident peak, which takes a system call.
        return MemoryReading {
            in_use_bytes: HostMemory::in_use_bytes(),
            peak_bytes: HostMemory::take_peak(),
        };
    }
    let reading = MemoryReading {
        in_use_bytes: memory.in_use_bytes(),
        peak_bytes: memory.peak_bytes(),
    };
    memory.reset_peak();
    reading
}

/// Bytes of the records while a step runs, by the number of its spans so far; `kept` are those of steps before.
fn recorded(kept: usize) -> impl Fn(usize) -> u64 {
    move |spans| ((kept + (spans + 1).next_power_of_two()) * size_of::<SpanRecord>()) as u64
}

fn flat_bytes(trainer: &Trainer) -> u64 {
    4 * trainer.parameters().layout.elements() as u64
}

fn source_of(inputs: &ProfileInputs<'_>) -> Result<BatchSource, DataError> {
    // A step that the end of an epoch cuts short says nothing of the others.
    Ok(BatchSource::of_recipe(inputs.data, inputs.recipe)?.of_full_steps())
}

fn facts_of(recipe: &Recipe, source: &BatchSource) -> DataFacts {
    let steps = source.steps(recipe.training.length);
    DataFacts {
        rows: source.rows() as u64,
        mean_tokens_per_row: source.mean_tokens_per_row(),
        mean_documents_per_row: source.mean_documents_per_row(),
        largest_micro_batch_tokens: source.longest_micro_batch().tokens() as u64,
        target_share: source.target_tokens_per_epoch() as f64 / source.tokens_per_epoch().max(1) as f64,
        training_steps: steps,
        training_evaluations: evaluations(recipe, steps),
        waits: None,
    }
}

/// Waits that `reading` took of `elapsed`.
fn waits_of(reading: &PrefetchTimes, prefetch_depth: usize, elapsed: Duration) -> DataWaits {
    let share = |seconds: f64| (seconds / elapsed.as_secs_f64().max(f64::MIN_POSITIVE)).min(1.0);
    DataWaits {
        prefetch_depth,
        preparing_s: reading.preparing_s / reading.steps.max(1) as f64,
        compute_waits: share(reading.compute_waits_s),
        data_waits: share(reading.data_waits_s),
    }
}

/// Evaluations of a training of so many steps: the one at the end included.
fn evaluations(recipe: &Recipe, steps: u64) -> u64 {
    match recipe.training.evaluate_every {
        Some(every) => steps.div_ceil(every.max(1)),
        None => 1,
    }
}

fn share_of_training(
    evaluation: EvaluationCost,
    steps: &StepFacts,
    recipe: &Recipe,
    source: &BatchSource,
) -> EvaluationCost {
    let count = source.steps(recipe.training.length);
    let evaluating = evaluations(recipe, count) as f64 * evaluation.seconds;
    let share = evaluating / (evaluating + count as f64 * steps.step_s).max(f64::MIN_POSITIVE);
    EvaluationCost { share, ..evaluation }
}

fn setting_of(recipe: &Recipe, trainer: &Trainer, memory_limit_bytes: Option<u64>) -> Setting {
    let base = trainer.base();
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let adapter = recipe.adapter.as_ref();
    Setting {
        model: recipe.model.clone(),
        base_parameters: base.architecture().parameter_count().total() as u64,
        trained_parameters: trainer.parameters().layout.elements() as u64,
        device: device_name(base.device()),
        threads: rayon::current_num_threads(),
        cores,
        precision: named(&recipe.precision),
        compute_dtype: base.compute_dtype().as_str().to_owned(),
        rank: adapter.map(|adapter| adapter.rank),
        dropout: adapter.map_or(0.0, |adapter| adapter.dropout),
        optimizer: named(&recipe.optimizer.kind),
        checkpointing: named(&recipe.gradient_checkpointing),
        micro_batch: recipe.batch.micro_batch,
        gradient_accumulation: recipe.batch.gradient_accumulation,
        sequence_length: recipe.batch.sequence_length,
        packing: recipe.batch.packing,
        log_every: 0,
        kernels: kernels().name().to_owned(),
        attention: attention_kernels().map(|kernels| kernels.name().to_owned()),
        longer_sums: longer_sums(),
        memory_limit_bytes,
        stack: None,
    }
}

/// `cpu`, or what the driver calls the GPU.
fn device_name(device: &Device) -> String {
    let fallback = if device.is_cpu() { "cpu" } else { "cuda" };
    device::facts(device).map_or_else(|| fallback.to_owned(), |facts| facts.name)
}

/// The name of a variant as recipe files have it.
pub(super) fn named(value: &impl serde::Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(name)) => name,
        _ => String::new(),
    }
}
