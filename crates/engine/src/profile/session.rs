//! Steps of a training that is profiled.

use std::sync::Arc;
use std::time::Instant;

use super::aggregate::{FreeSteps, MemoryWatch, StepTotals};
use super::data_facts::waits_of;
use super::profile_error::ProfileError;
use super::profile_inputs::{ProfileSettings, StepLog};
use super::sample::{EnergyMeter, EnergyUse};
use super::steady::{Throughput, WarmupDetector};
use super::{DataWaits, DeviceMemory, EvaluationCost, HostMemory, SpanTiming, SpannedSteps, StepFacts};
use crate::base::BaseModel;
use crate::data::{BatchSource, Prefetch, PreparedData, evaluation_batches};
use crate::span;
use crate::span::{MemoryReading, Probe, Recording, SpanRecord, SpanTree, StepPhase};
use crate::{StepEvent, Trainer};
use peft_tune_core::median;
use peft_tune_core::recipe::{PrecisionSchedule, Recipe};

/// Fewest measured steps: the interval of a median means little below.
const FEWEST_STEPS: usize = 6;

/// Steps that are taken for their spans alone, where those are others than the ones whose time counts.
const SPANNED_STEPS: u64 = 6;

/// Part of the time that is left to steps with spans then.
const SPANNED_SHARE: f64 = 0.3;

/// Held-out rows that are evaluated; the time of more is scaled up from them.
const MOST_EVALUATED_ROWS: usize = 64;

/// Steps under way.
pub(super) struct Session {
    // Dropped before the recording that its thread takes part in.
    batches: Prefetch,
    pub recording: Recording,
    pub trainer: Trainer,
    pub totals: StepTotals,
    pub watch: MemoryWatch,
    each: Vec<(f64, u64)>,
    /// (seconds, tokens) of the steps with spans, where they are others.
    spanned: Option<Vec<(f64, u64)>>,
    pub log: Option<StepLog>,
    /// Trees of the last steps, of all threads.
    pub kept: Vec<SpanTree>,
    pub kept_steps: usize,
    warmup_steps: u64,
    /// Waits for data in the measured steps.
    pub waits: Option<DataWaits>,
}

impl Session {
    /// Begins a training of `recipe` whose steps are recorded; none is taken yet.
    ///
    /// # Errors
    /// Settings that do not fit the model, memory.
    pub(super) fn start(
        base: Arc<BaseModel>,
        recipe: &Recipe,
        source: &Arc<BatchSource>,
        log: Option<StepLog>,
        settings: &ProfileSettings,
    ) -> Result<Self, ProfileError> {
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
            ..recipe.clone()
        };
        let trainer = Trainer::new(base, &recipe, u64::MAX)?;
        Ok(Self {
            batches: Prefetch::start(Arc::clone(source), 0..u64::MAX)?,
            recording,
            trainer,
            totals: StepTotals::default(),
            watch: MemoryWatch::default(),
            each: Vec::new(),
            spanned: apart.then(Vec::new),
            log,
            kept: Vec::new(),
            kept_steps: settings.trace_steps,
            warmup_steps: 0,
            waits: None,
        })
    }

    /// Steps until two agree; the largest micro-batch is among them, as it decides the peak.
    pub(super) fn warm_up(&mut self, source: &BatchSource, settings: &ProfileSettings) -> Result<(), ProfileError> {
        let span = span::phase(StepPhase::Step);
        self.trainer.step(&[source.longest_micro_batch()])?;
        drop(span);
        self.step_until_steady(settings)?;
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
    pub(super) fn measure(
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
            // Nobody records these: the first of them may be captured as graphs.
            self.step_until_steady(settings)?;
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

    /// Takes steps of a warm-up until two agree.
    fn step_until_steady(&mut self, settings: &ProfileSettings) -> Result<(), ProfileError> {
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

    /// One step with the wait for its data, and written down: (seconds, tokens).
    pub(super) fn step(&mut self) -> Result<(f64, u64), ProfileError> {
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

    /// Keeps a tree among those of the last steps.
    pub(super) fn keep(&mut self, tree: SpanTree) {
        self.kept.push(tree);
        let steps = self.kept.iter().filter(|tree| tree.thread == 0).count();
        if steps > self.kept_steps
            && let Some(oldest) = self.kept.iter().position(|tree| tree.thread == 0)
        {
            self.kept.drain(..=oldest);
        }
    }

    /// Seconds of an evaluation, from at most [`MOST_EVALUATED_ROWS`] rows.
    pub(super) fn evaluate(
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

    /// Facts of the steps that were measured.
    pub(super) fn facts(&self, settings: &ProfileSettings) -> StepFacts {
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
    pub(super) fn free_steps(&self) -> Option<FreeSteps> {
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

/// Bytes of the records while a step runs, by the number of its spans so far; `kept` are those of steps before.
fn recorded(kept: usize) -> impl Fn(usize) -> u64 {
    move |spans| ((kept + (spans + 1).next_power_of_two()) * size_of::<SpanRecord>()) as u64
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
