//! The profile phase of a trial: memory on the longest rows, then throughput over a few steps. Where the training has room for them,
//! these are its own first steps.

use std::sync::Arc;

use super::TrialEvent;
use super::interruption::{Interruption, failure};
use super::machine_load::MachineLoad;
use super::mixed_throughput::{FP32_THROUGHPUT, OWN_THROUGHPUT, mix_throughput};
use super::trial::{Run, Training, TrialRun};
use peft_tune_core::architecture::Architecture;
use peft_tune_core::objective::{JOULES_PER_TOKEN, LINK_S, MEASURED_STEPS, MFU, PEAK_MEMORY, STEP_S, THROUGHPUT};
use peft_tune_core::predict::{self, Host, Machine, RowLengths, Setting};
use peft_tune_core::study::{MeasurePlan, Metrics, Phase, THROUGHPUT_INTERVAL, TrainPlan, mark_disturbed};
use peft_tune_engine::StepEvent;
use peft_tune_engine::data::BatchSource;
use peft_tune_engine::profile::{Throughput, WarmupDetector, median};
use peft_tune_kernels::device;

/// Multiple of the median's time for a token above which a step is slow.
const SLOW: f64 = 1.5;

/// Bytes at the peak, and those that the device's allocator kept for it.
type Peak = [f64; 2];

/// Steps that were measured, and the machine meanwhile.
struct MeasuredSteps {
    events: Vec<StepEvent>,
    load: MachineLoad,
}

impl TrialRun<'_> {
    /// Measures what a setting costs. Returns the training whose first steps that took, where they did.
    pub(super) fn profile(
        &self,
        plan: &MeasurePlan,
        train: Option<&TrainPlan>,
        emit: &mut dyn FnMut(TrialEvent),
        metrics: &mut Metrics,
    ) -> Result<Option<Training>, Interruption> {
        match train
            .map(|train| self.profile_of_training(plan, train))
            .transpose()?
            .flatten()
        {
            Some((plan, train)) => self.measure_training(&plan, train, emit, metrics).map(Some),
            None => self.measure(plan, emit, metrics).map(|()| None),
        }
    }

    /// The plan of a profile phase within the training, where nothing forbids one: trainings that join others' have their costs
    /// measured alone, a schedule of the precision has steps of two kinds, and an epoch may end in a step cut short.
    fn profile_of_training<'p>(
        &self,
        plan: &MeasurePlan,
        train: &'p TrainPlan,
    ) -> Result<Option<(MeasurePlan, &'p TrainPlan)>, Interruption> {
        if self.joins || !self.recipe.precision_schedule.is_none() {
            return Ok(None);
        }
        let source = self.source(self.recipe)?;
        let within = plan.within(train, source.steps(train.length));
        let is_whole = |plan: &MeasurePlan| plan.max_warmup_steps + plan.steps < source.steps_per_epoch();
        Ok(within.filter(is_whole).map(|plan| (plan, train)))
    }

    /// Measures the first steps of a training, and returns it behind them.
    fn measure_training(
        &self,
        plan: &MeasurePlan,
        train: &TrainPlan,
        emit: &mut dyn FnMut(TrialEvent),
        metrics: &mut Metrics,
    ) -> Result<Training, Interruption> {
        let mut peak = self.peak_of_longest_rows()?;
        let mut training = self.begin_training(train, emit, metrics)?;
        // What an evaluation of the untrained model takes is none of the training's.
        self.loaded.memory.reset_peak();
        let source = Arc::clone(&training.source);
        let warmup = self.settle(&mut training.run, plan, Phase::Train, emit)?;
        metrics.insert("warmup_steps", warmup.len() as f64);
        let measured = self.measured_steps(&mut training.run, plan, Phase::Train, emit)?;
        let taken = warmup.iter().chain(&measured.events);
        taken.for_each(|event| training.took(event));
        let now = self.peak();
        peak = [peak[0].max(now[0]), peak[1].max(now[1])];
        self.keep_measured(measured, 1.0, peak, &source, metrics)?;
        Ok(training)
    }

    /// The peak of a step on the longest rows, by an adapter that is then thrown away: a few steps may miss them, and they decide
    /// whether the training fits.
    fn peak_of_longest_rows(&self) -> Result<Peak, Interruption> {
        self.loaded.memory.reset_peak();
        let source = Arc::new(self.source(self.recipe)?);
        let mut run = self.start(self.recipe, &source, 1)?;
        self.step_on_longest_rows(&mut run, &source)?;
        Ok(self.peak())
    }

    fn step_on_longest_rows(&self, run: &mut Run, source: &BatchSource) -> Result<(), Interruption> {
        let worst = vec![source.longest_micro_batch(); self.recipe.batch.devices];
        let stepped = run.trainer.step(&worst);
        stepped.map(drop).map_err(|error| failure(error, Phase::Profile))
    }

    /// The peak since it was reset.
    fn peak(&self) -> Peak {
        let memory = &self.loaded.memory;
        [
            memory.peak_bytes() as f64,
            memory.peak_reserved_bytes().unwrap_or(0) as f64,
        ]
    }

    /// Measures steps of an adapter that is then thrown away.
    fn measure(
        &self,
        plan: &MeasurePlan,
        emit: &mut dyn FnMut(TrialEvent),
        metrics: &mut Metrics,
    ) -> Result<(), Interruption> {
        self.loaded.memory.reset_peak();
        // A step that the end of an epoch cuts short says nothing of the others.
        let source = Arc::new(self.source(self.recipe)?.of_full_steps());
        let phases = 2 - u64::from(self.recipe.precision_schedule.is_none());
        let mut run = self.start(self.recipe, &source, phases * (plan.max_warmup_steps + plan.steps))?;
        // The steps in F32 of a schedule first: the others are what the metrics of times are about.
        let fp32 = match self.recipe.precision_schedule.is_none() {
            true => None,
            false => Some(self.fp32_throughput(&mut run, &source, plan, emit)?),
        };
        run.most_micro_batches = MeasurePlan::micro_batches(self.recipe);
        self.step_on_longest_rows(&mut run, &source)?;
        let warmup = self.settle(&mut run, plan, Phase::Profile, emit)?;
        metrics.insert("warmup_steps", warmup.len() as f64);
        let measured = self.measured_steps(&mut run, plan, Phase::Profile, emit)?;
        if let Some(fp32) = fp32 {
            metrics.insert(FP32_THROUGHPUT, fp32);
        }
        let times = self.recipe.batch.micro_batches() as f64 / run.most_micro_batches as f64;
        self.keep_measured(measured, times, self.peak(), &source, metrics)
    }

    /// Keeps the metrics of measured steps, where a whole step has `times` as many micro-batches.
    fn keep_measured(
        &self,
        measured: MeasuredSteps,
        times: f64,
        mut peak: Peak,
        source: &BatchSource,
        metrics: &mut Metrics,
    ) -> Result<(), Interruption> {
        let MeasuredSteps { events, load } = measured;
        let seen = load.finish(metrics);
        let mut lost = [seen.lost];
        self.highest(&mut peak, Phase::Profile)?;
        self.highest(&mut lost, Phase::Profile)?;
        metrics.insert(PEAK_MEMORY, peak[0]);
        metrics.insert("base_memory_bytes", self.loaded.base.frozen_bytes() as f64);
        if self.loaded.memory.peak_reserved_bytes().is_some() {
            metrics.insert("reserved_memory_bytes", peak[1]);
        }
        let whole: Vec<StepEvent> = events.iter().map(|event| whole_step(event, times)).collect();
        keep_times(&whole, metrics);
        if let (Some(_), Some(own)) = (metrics.value(FP32_THROUGHPUT), metrics.value(THROUGHPUT)) {
            metrics.insert(OWN_THROUGHPUT, own);
            let steps = source.steps(self.recipe.training.length) as f64;
            mix_throughput(self.recipe.precision_schedule.fp32_share(steps), metrics);
        }
        self.keep_energy(seen.joules, &events, metrics)?;
        if let Some(mfu) = self.mfu(source, metrics.value(THROUGHPUT)) {
            metrics.insert(MFU, mfu);
        }
        // All devices wait for the one that was disturbed most.
        mark_disturbed(metrics, lost[0]);
        Ok(())
    }

    /// The throughput of steps in F32, measured as that of all others.
    fn fp32_throughput(
        &self,
        run: &mut Run,
        source: &BatchSource,
        plan: &MeasurePlan,
        emit: &mut dyn FnMut(TrialEvent),
    ) -> Result<f64, Interruption> {
        run.trainer.hold_precision(Some(true));
        self.step_on_longest_rows(run, source)?;
        self.settle(run, plan, Phase::Profile, emit)?;
        let mut steps = Vec::new();
        while (steps.len() as u64) < plan.steps {
            let event = self.step(run, Phase::Profile, emit)?;
            steps.push((event.seconds.total, event.tokens));
        }
        run.trainer.hold_precision(Some(false));
        Ok(Throughput::from_steps(&steps).map_or(0.0, |throughput| throughput.tokens_per_s))
    }

    /// Takes steps until they take even times.
    fn settle(
        &self,
        run: &mut Run,
        plan: &MeasurePlan,
        phase: Phase,
        emit: &mut dyn FnMut(TrialEvent),
    ) -> Result<Vec<StepEvent>, Interruption> {
        let mut warmup = WarmupDetector::new(plan.max_warmup_steps);
        let mut events = Vec::new();
        while !warmup.is_over() {
            let event = self.step(run, phase, emit)?;
            warmup.push(event.seconds.total, event.tokens);
            events.push(event);
        }
        Ok(events)
    }

    /// Takes the steps that are measured, and watches the machine meanwhile.
    fn measured_steps(
        &self,
        run: &mut Run,
        plan: &MeasurePlan,
        phase: Phase,
        emit: &mut dyn FnMut(TrialEvent),
    ) -> Result<MeasuredSteps, Interruption> {
        let busy = self.fault.makes_busy(self.request, Phase::Profile);
        let mut load = MachineLoad::watch(self.loaded.base.device(), self.collective.ranks(), busy);
        let mut events = Vec::new();
        while (events.len() as u64) < plan.steps {
            events.push(self.step(run, phase, emit)?);
            load.step_ended();
        }
        Ok(MeasuredSteps { events, load })
    }

    /// Keeps the energy of a token, of all devices together, where each of them tells it.
    fn keep_energy(
        &self,
        joules: Option<f64>,
        events: &[StepEvent],
        metrics: &mut Metrics,
    ) -> Result<(), Interruption> {
        let mut sums = [joules.unwrap_or(0.0), f64::from(u8::from(joules.is_some()))];
        if self.collective.ranks() > 1 {
            let summed = self.collective.sum_numbers(&mut sums);
            summed.map_err(|error| failure(error.into(), Phase::Profile))?;
        }
        let tokens: u64 = events.iter().map(|event| event.tokens).sum();
        if sums[1] == self.collective.ranks() as f64 && tokens > 0 {
            metrics.insert(JOULES_PER_TOKEN, sums[0] / tokens as f64);
        }
        Ok(())
    }

    /// Model FLOPs a second over the peak that the GPU's maker publishes; `None` for other devices.
    fn mfu(&self, source: &BatchSource, throughput: Option<f64>) -> Option<f64> {
        let base = &self.loaded.base;
        let sheet = predict::device_of_driver(&device::facts(base.device())?.name)?;
        let per_token = self.model_flops_per_token(source)?;
        let devices = self.recipe.batch.devices as f64;
        Some(throughput? * per_token / (devices * sheet.peak_flops(self.recipe.precision)))
    }

    /// FLOPs that the training of a token needs, nothing computed twice.
    fn model_flops_per_token(&self, source: &BatchSource) -> Option<f64> {
        let architecture = Architecture::from_config(&self.loaded.folder.join("config.json")).ok()?;
        let workload = RowLengths::new(source.row_documents()).workload(self.recipe.batch.micro_batch);
        let setting = Setting {
            recipe: self.recipe,
            workload: &workload,
        };
        let flops = peft_tune_engine::predictor(architecture, Machine::Unmeasured(Host::GPU))
            .flops(&setting)
            .ok()?;
        let tokens = workload.mean.tokens() * self.recipe.batch.micro_batches() as f64;
        (tokens > 0.0).then(|| flops.model / tokens)
    }
}

/// A step with so many times the micro-batches of this one.
fn whole_step(event: &StepEvent, times: f64) -> StepEvent {
    let mut whole = event.clone();
    let seconds = &mut whole.seconds;
    // Ranks meet once a step, however many micro-batches it has.
    let passes = seconds.total - seconds.optimizer - seconds.link;
    seconds.total += (times - 1.0) * passes;
    seconds.backward -= seconds.link;
    for part in [&mut seconds.data, &mut seconds.forward, &mut seconds.backward] {
        *part *= times;
    }
    seconds.backward += seconds.link;
    whole.tokens = (event.tokens as f64 * times).round() as u64;
    whole
}

/// Reads one part of a step's time.
type Seconds = fn(&StepEvent) -> f64;

fn keep_times(events: &[StepEvent], metrics: &mut Metrics) {
    let steps: Vec<_> = events.iter().map(|event| (event.seconds.total, event.tokens)).collect();
    if let Some(throughput) = Throughput::from_steps(&steps) {
        metrics.insert(THROUGHPUT, throughput.tokens_per_s);
        metrics.insert("throughput_spread", throughput.spread);
        metrics.insert(THROUGHPUT_INTERVAL, throughput.interval);
        let is_slow = |(seconds, tokens): &&(f64, u64)| *seconds * throughput.tokens_per_s > SLOW * *tokens as f64;
        let slow = steps.iter().filter(is_slow).count();
        metrics.insert("slow_steps", slow as f64 / steps.len() as f64);
    }
    metrics.insert(MEASURED_STEPS, events.len() as f64);
    let times: [(&str, Seconds); 5] = [
        (STEP_S, |event| event.seconds.total),
        ("data_s", |event| event.seconds.data),
        ("forward_s", |event| event.seconds.forward),
        ("backward_s", |event| event.seconds.backward),
        ("optimizer_s", |event| event.seconds.optimizer),
    ];
    for (name, seconds) in times {
        if let Some(value) = median(events.iter().map(seconds)) {
            metrics.insert(name, value);
        }
    }
    if events.iter().any(|event| event.seconds.link > 0.0)
        && let Some(value) = median(events.iter().map(|event| event.seconds.link))
    {
        metrics.insert(LINK_S, value);
    }
}
