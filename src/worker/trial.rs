//! One trial on the native engine: the profile phase, then the training phase.
//! The metrics that it measures are the rows of `metric_rows`.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::control::Control;
use super::fault::Fault;
use super::session::{Fp32Key, Loaded, invalid};
use super::surroundings::Surroundings;
use super::{TrialEvent, TrialRequest};
use peft_tune_core::architecture::Architecture;
use peft_tune_core::objective::{
    JOULES_PER_TOKEN, LOSS, LOSS_BEFORE, LOSS_STANDARD_ERROR, MFU, PEAK_MEMORY, THROUGHPUT, TOKEN_ACCURACY,
};
use peft_tune_core::predict::{self, Host, Machine, Predictor, RowLengths, Setting};
use peft_tune_core::recipe::{Precision, Recipe};
use peft_tune_core::study::{
    FailReason, MeasurePlan, Metrics, Phase, THROUGHPUT_INTERVAL, TrainPlan, TrialPlan, mark_disturbed,
};
use peft_tune_engine::data::{BatchSource, MicroBatch, Prefetch, evaluation_batches};
use peft_tune_engine::parallel::Collective;
use peft_tune_engine::profile::{Throughput, WarmupDetector, median};
use peft_tune_engine::{Evaluation, OverflowWatch, StepEvent, TrainError, Trainer};
use peft_tune_kernels::device;

/// Nats above the first loss at which a training counts as diverged. A uniform guess over a vocabulary of a million is
/// at 14 nats, so a healthy training never climbs this far.
const DIVERGED_NATS: f64 = 10.0;

/// Throughput of the steps that a schedule of the precision has in F32, and of all others.
const FP32_THROUGHPUT: &str = "throughput_fp32_steps";
const OWN_THROUGHPUT: &str = "throughput_own_steps";

/// A step that takes over so many times the median's time for a token is slow.
const SLOW: f64 = 1.5;

/// Why a trial did not complete.
pub(super) enum Interruption {
    Failed(FailReason),
    /// The device answers nothing more to this process.
    DeviceLost {
        message: String,
        /// Whether a kernel failed, and not the device; told already where ranks compute.
        is_kernels: bool,
    },
    /// It was asked to stop.
    Stopped {
        at_step: u64,
    },
}

/// A trial under way.
pub(super) struct TrialRun<'a> {
    pub(super) request: &'a TrialRequest,
    pub(super) recipe: &'a Recipe,
    pub(super) loaded: &'a Loaded,
    /// Token accuracies of trainings in F32 that were made before.
    pub(super) fp32_accuracies: &'a RefCell<Vec<(Fp32Key, f64)>>,
    pub(super) control: &'a Control,
    /// Time that was spent waiting for neighbours, which is none of the trial's.
    pub(super) waited: &'a Cell<Duration>,
    /// The other devices that run this trial too.
    pub(super) collective: &'a Arc<dyn Collective>,
    pub(super) fault: &'a Fault,
    pub(super) started: Instant,
    /// Whether its training is left to [`super::trial_group::TrialGroup`].
    pub(super) joins: bool,
}

impl TrialRun<'_> {
    /// Runs the phases of `plan`; what was measured is in `metrics` however the trial ends. The training where it is still to be made.
    pub(super) fn run(
        &self,
        plan: &TrialPlan,
        emit: &mut dyn FnMut(TrialEvent),
        metrics: &mut Metrics,
    ) -> Result<Option<Training>, Interruption> {
        self.phases(plan, emit, metrics)
            .map_err(|interruption| self.with_memory(interruption))
    }

    fn phases(
        &self,
        plan: &TrialPlan,
        emit: &mut dyn FnMut(TrialEvent),
        metrics: &mut Metrics,
    ) -> Result<Option<Training>, Interruption> {
        metrics.insert("load_s", self.loaded.seconds);
        self.check_schedule(plan)?;
        if let Some(measure) = &plan.measure {
            self.wait(self.control.wait_for_turn(self.request.number));
            emit(TrialEvent::Phase {
                number: self.request.number,
                phase: Phase::Profile,
            });
            self.measure(measure, emit, metrics)?;
            emit(TrialEvent::Measured {
                number: self.request.number,
                metrics: metrics.clone(),
            });
        }
        if let Some(train) = &plan.train {
            emit(TrialEvent::Phase {
                number: self.request.number,
                phase: Phase::Train,
            });
            let training = self.begin_training(train, emit, metrics)?;
            if self.joins {
                return Ok(Some(training));
            }
            self.train(training, train, emit, metrics)?;
        }
        Ok(None)
    }

    /// A schedule of the precision must end before the trial's own training and before the recipe's.
    fn check_schedule(&self, plan: &TrialPlan) -> Result<(), Interruption> {
        if self.recipe.precision_schedule.is_none() {
            return Ok(());
        }
        let source = self.source(self.recipe)?;
        let lengths = plan.train.as_ref().map(|train| train.length);
        for length in lengths.into_iter().chain([self.recipe.training.length]) {
            let checked = self.recipe.check_precision_schedule(Some(source.steps(length)));
            checked.map_err(invalid)?;
        }
        Ok(())
    }

    /// Says how much was in use where a device only said that it has no more.
    pub(super) fn with_memory(&self, mut interruption: Interruption) -> Interruption {
        if let Interruption::Failed(FailReason::OutOfMemory {
            in_use_bytes: in_use @ None,
            limit_bytes,
            ..
        }) = &mut interruption
        {
            let loaded = self.loaded;
            *in_use = Some(loaded.memory.peak_bytes().saturating_sub(loaded.beside_bytes));
            let whole = || device::facts(loaded.base.device()).map(|facts| facts.memory_bytes);
            *limit_bytes = limit_bytes.or(self.request.memory_limit_bytes).or_else(whole);
        }
        interruption
    }

    fn measure(
        &self,
        plan: &MeasurePlan,
        emit: &mut dyn FnMut(TrialEvent),
        metrics: &mut Metrics,
    ) -> Result<(), Interruption> {
        let (memory, beside) = (&self.loaded.memory, self.loaded.beside_bytes);
        memory.reset_peak();
        // A step that the end of an epoch cuts short says nothing of the others.
        let source = Arc::new(self.source(self.recipe)?.of_full_steps());
        let phases = 2 - u64::from(self.recipe.precision_schedule.is_none());
        let mut run = self.start(self.recipe, &source, phases * (plan.max_warmup_steps + plan.steps))?;
        // The steps in F32 of a schedule first: the others are what the metrics of times are about.
        let fp32 = match self.recipe.precision_schedule.is_none() {
            true => None,
            false => Some(self.fp32_throughput(&mut run, &source, plan, emit)?),
        };
        let warmup_steps = self.warm_up(&mut run, &source, plan, emit)?;
        let mut surroundings = Surroundings::watch(self);
        let mut events = Vec::new();
        while (events.len() as u64) < plan.steps {
            events.push(self.step(&mut run, Phase::Profile, emit)?);
            surroundings.step_ended();
        }
        let seen = surroundings.finish(metrics);
        let mut lost = [seen.lost];
        metrics.insert("warmup_steps", warmup_steps as f64);
        let mut bytes = [
            memory.peak_bytes().saturating_sub(beside) as f64,
            memory.peak_reserved_bytes().unwrap_or(0) as f64,
        ];
        self.highest(&mut bytes, Phase::Profile)?;
        self.highest(&mut lost, Phase::Profile)?;
        metrics.insert(PEAK_MEMORY, bytes[0]);
        metrics.insert("base_memory_bytes", self.loaded.base.frozen_bytes() as f64);
        if memory.peak_reserved_bytes().is_some() {
            metrics.insert("reserved_memory_bytes", bytes[1]);
        }
        keep_times(&events, metrics);
        if let (Some(fp32), Some(own)) = (fp32, metrics.value(THROUGHPUT)) {
            metrics.insert(FP32_THROUGHPUT, fp32);
            metrics.insert(OWN_THROUGHPUT, own);
            let steps = source.steps(self.recipe.training.length) as f64;
            mix_throughput(self.recipe.precision_schedule.fp32_share(steps), metrics);
        }
        self.keep_energy(seen.joules, &events, metrics)?;
        if let Some(mfu) = self.mfu(&source, metrics.value(THROUGHPUT)) {
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
        self.warm_up(run, source, plan, emit)?;
        let mut steps = Vec::new();
        while (steps.len() as u64) < plan.steps {
            let event = self.step(run, Phase::Profile, emit)?;
            steps.push((event.seconds.total, event.tokens));
        }
        run.trainer.hold_precision(Some(false));
        Ok(Throughput::from_steps(&steps).map_or(0.0, |throughput| throughput.tokens_per_s))
    }

    /// Takes steps until they take even times, and returns how many; first one on the longest rows: a few steps may miss them, and they
    /// decide whether the training fits.
    fn warm_up(
        &self,
        run: &mut Run,
        source: &BatchSource,
        plan: &MeasurePlan,
        emit: &mut dyn FnMut(TrialEvent),
    ) -> Result<u64, Interruption> {
        let worst = vec![source.longest_micro_batch(); self.recipe.batch.devices];
        run.trainer
            .step(&worst)
            .map_err(|error| failure(error, Phase::Profile))?;
        let mut warmup = WarmupDetector::new(plan.max_warmup_steps);
        let mut steps = 0;
        while !warmup.is_over() {
            let event = self.step(run, Phase::Profile, emit)?;
            warmup.push(event.seconds.total, event.tokens);
            steps += 1;
        }
        Ok(steps)
    }

    /// The energy of a token, of all devices together, where each of them tells it.
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

    /// Model FLOPs a second over the peak that the GPU's maker publishes; `None` of other devices.
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
        let flops = Predictor::new(architecture, Machine::Unmeasured(Host::GPU))
            .flops(&setting)
            .ok()?;
        let tokens = workload.mean.tokens() * self.recipe.batch.micro_batches() as f64;
        (tokens > 0.0).then(|| flops.model / tokens)
    }

    /// A fresh adapter before its first step.
    fn begin_training(
        &self,
        plan: &TrainPlan,
        emit: &mut dyn FnMut(TrialEvent),
        metrics: &mut Metrics,
    ) -> Result<Training, Interruption> {
        let (started, waited) = (Instant::now(), self.waited.get());
        let rows = self.recipe.batch.micro_batch;
        let held_out = evaluation_batches(self.loaded.data.held_out(), rows, plan.evaluation_rows).collect::<Vec<_>>();
        let mut recipe = self.recipe.clone();
        recipe.training.seed = recipe.training.seed.wrapping_add(plan.seed_offset);
        let source = Arc::new(self.source(&recipe)?);
        let steps = source.steps(plan.length);
        emit(TrialEvent::Training {
            number: self.request.number,
            steps,
        });
        let mut run = self.start(&recipe, &source, steps)?;
        self.measure_start(&mut run, &held_out, metrics)?;
        Ok(Training {
            run,
            held_out,
            steps,
            evaluations: plan.evaluations.max(1),
            epochs: source.epochs_of(steps),
            taken: 0,
            tokens: 0,
            fp32_steps: 0,
            started,
            waited,
        })
    }

    fn train(
        &self,
        mut training: Training,
        plan: &TrainPlan,
        emit: &mut dyn FnMut(TrialEvent),
        metrics: &mut Metrics,
    ) -> Result<(), Interruption> {
        while !training.is_over() {
            let event = self.step(&mut training.run, Phase::Train, emit)?;
            training.took(&event);
            if training.is_evaluated() {
                self.evaluate(&mut training, emit, metrics)?;
            }
        }
        self.end_training(training, plan, emit, metrics)
    }

    /// What a training took, and what it taught beside the loss.
    pub(super) fn end_training(
        &self,
        training: Training,
        plan: &TrainPlan,
        emit: &mut dyn FnMut(TrialEvent),
        metrics: &mut Metrics,
    ) -> Result<(), Interruption> {
        let (steps, fp32_steps) = (training.steps, training.fp32_steps);
        metrics.insert("train_steps", steps as f64);
        if !self.recipe.precision_schedule.is_none() {
            metrics.insert("train_fp32_steps", fp32_steps as f64);
        }
        if self.recipe.precision_schedule.is_adaptive() {
            // Only now is it known how many there are.
            mix_throughput(fp32_steps as f64 / steps as f64, metrics);
        }
        metrics.insert("train_tokens", training.tokens as f64);
        metrics.insert("train_epochs", training.epochs);
        let waited = self.waited.get() - training.waited;
        let train = training.started.elapsed().saturating_sub(waited);
        metrics.insert("train_s", train.as_secs_f64());
        self.measure_accuracy(plan, training.run, &training.held_out, emit, metrics)
    }

    /// The loss before the training, which is the same for all settings that start from one model.
    fn measure_start(&self, run: &mut Run, held_out: &[MicroBatch], metrics: &mut Metrics) -> Result<(), Interruption> {
        let loss = match self.loaded.loss_before.get() {
            Some(loss) => *loss,
            None => {
                let evaluation = run.trainer.evaluate(held_out);
                evaluation.map_err(|error| failure(error, Phase::Evaluate))?.loss
            }
        };
        metrics.insert(LOSS_BEFORE, *self.loaded.loss_before.get_or_init(|| loss));
        Ok(())
    }

    fn evaluate(
        &self,
        training: &mut Training,
        emit: &mut dyn FnMut(TrialEvent),
        metrics: &mut Metrics,
    ) -> Result<(), Interruption> {
        self.evaluates(emit);
        let evaluation = training.run.trainer.evaluate(&training.held_out);
        let evaluation = evaluation.map_err(|error| failure(error, Phase::Evaluate))?;
        self.evaluated(evaluation, training, emit, metrics)
    }

    /// Says that the loss over the held-out rows comes next.
    pub(super) fn evaluates(&self, emit: &mut dyn FnMut(TrialEvent)) {
        emit(TrialEvent::Phase {
            number: self.request.number,
            phase: Phase::Evaluate,
        });
    }

    /// Keeps and tells what the held-out rows said.
    pub(super) fn evaluated(
        &self,
        evaluation: Evaluation,
        training: &Training,
        emit: &mut dyn FnMut(TrialEvent),
        metrics: &mut Metrics,
    ) -> Result<(), Interruption> {
        let number = self.request.number;
        if !metrics.insert(LOSS, evaluation.loss) {
            return Err(Interruption::Failed(FailReason::Diverged {
                at_step: evaluation.step,
                loss: training.run.last_loss,
            }));
        }
        metrics.insert(TOKEN_ACCURACY, evaluation.accuracy);
        if let Some(error) = evaluation.standard_error {
            metrics.insert(LOSS_STANDARD_ERROR, error);
        }
        emit(TrialEvent::Evaluation { number, evaluation });
        emit(TrialEvent::Phase {
            number,
            phase: Phase::Train,
        });
        Ok(())
    }

    /// One step, told to the coordinator; fails where the loss explodes or the time is up.
    fn step(&self, run: &mut Run, phase: Phase, emit: &mut dyn FnMut(TrialEvent)) -> Result<StepEvent, Interruption> {
        self.wait(self.control.wait_while_held(self.request.number));
        let (batch, data) = run.next_batch(phase)?;
        let mut event = run.trainer.step(&batch).map_err(|error| failure(error, phase))?;
        event.seconds.data = data;
        event.seconds.total += data;
        self.took_step(event, run, phase, emit)
    }

    /// What follows on a step.
    pub(super) fn took_step(
        &self,
        mut event: StepEvent,
        run: &mut Run,
        phase: Phase,
        emit: &mut dyn FnMut(TrialEvent),
    ) -> Result<StepEvent, Interruption> {
        if self.fault.spoils_loss(self.request, phase) {
            event.loss = f64::NAN;
        }
        run.check_divergence(&event)?;
        let seen = self.seen_by_all(&mut event, phase)?;
        if !self.joins {
            // Among others, memory is that of all.
            self.check_memory(seen.peak_bytes, phase)?;
        }
        emit(TrialEvent::Step {
            number: self.request.number,
            phase,
            step: event.clone(),
        });
        if seen.stopped {
            return Err(Interruption::Stopped { at_step: event.step });
        }
        let after_s = seen.after_s;
        if self.request.time_limit_s.is_some_and(|limit| after_s > limit) {
            return Err(Interruption::Failed(FailReason::TimedOut { phase, after_s }));
        }
        Ok(event)
    }

    /// Counts time that was spent waiting for neighbours.
    pub(super) fn wait(&self, waited: Duration) {
        self.waited.set(self.waited.get() + waited);
    }

    /// What decides how the trial continues, and the time of the step: the same on all devices, each of which sees
    /// another clock, another memory and other requests.
    fn seen_by_all(&self, event: &mut StepEvent, phase: Phase) -> Result<Seen, Interruption> {
        let peak_bytes = self.loaded.memory.peak_bytes().saturating_sub(self.loaded.beside_bytes);
        let after_s = self.started.elapsed().saturating_sub(self.waited.get()).as_secs_f64();
        let stopped = f64::from(u8::from(self.control.is_stopped(self.request.number)));
        let mut seen = [event.seconds.total, peak_bytes as f64, after_s, stopped];
        self.highest(&mut seen, phase)?;
        event.seconds.total = seen[0];
        Ok(Seen {
            peak_bytes: seen[1] as u64,
            after_s: seen[2],
            stopped: seen[3] > 0.0,
        })
    }

    /// The highest of each number on any device.
    fn highest(&self, numbers: &mut [f64], phase: Phase) -> Result<(), Interruption> {
        let shared = self.collective.highest(numbers);
        shared.map_err(|error| failure(error.into(), phase))
    }

    /// Fails where the device has no hard limit of its own and the trial went above the one it was given.
    fn check_memory(&self, peak: u64, phase: Phase) -> Result<(), Interruption> {
        match self.request.memory_limit_bytes {
            Some(limit) if peak > limit => Err(Interruption::Failed(FailReason::OutOfMemory {
                phase,
                in_use_bytes: Some(peak),
                requested_bytes: None,
                limit_bytes: Some(limit),
            })),
            _ => Ok(()),
        }
    }

    pub(super) fn source(&self, recipe: &Recipe) -> Result<BatchSource, Interruption> {
        BatchSource::of_recipe(&self.loaded.data, recipe).map_err(invalid)
    }

    /// A fresh adapter, and the data of the next `steps` steps.
    fn start(&self, recipe: &Recipe, source: &Arc<BatchSource>, steps: u64) -> Result<Run, Interruption> {
        let base = self.loaded.base.open().map_err(|error| failure(error, Phase::Load))?;
        let trainer = Trainer::new(base, recipe, steps)
            .and_then(|trainer| trainer.with_collective(self.collective.clone()))
            .map_err(|error| failure(error, Phase::Load))?;
        let batches = Prefetch::start(Arc::clone(source), 0..steps).map_err(invalid)?;
        Ok(Run {
            trainer,
            batches,
            overflows: OverflowWatch::new(recipe.precision),
            first_loss: None,
            last_loss: None,
        })
    }
}

/// What all devices of a trial know after a step.
struct Seen {
    peak_bytes: u64,
    after_s: f64,
    stopped: bool,
}

/// A training phase under way.
pub(super) struct Training {
    pub(super) run: Run,
    pub(super) held_out: Vec<MicroBatch>,
    steps: u64,
    /// Of how many evaluations it has.
    evaluations: u64,
    /// How often it goes over its rows.
    epochs: f64,
    taken: u64,
    tokens: u64,
    fp32_steps: u64,
    started: Instant,
    /// How long the trial had waited by then.
    waited: Duration,
}

impl Training {
    /// Counts a step.
    pub(super) fn took(&mut self, event: &StepEvent) {
        self.taken += 1;
        self.tokens += event.tokens;
        self.fp32_steps += u64::from(event.precision == Some(Precision::Fp32));
    }

    pub(super) fn is_over(&self) -> bool {
        self.taken >= self.steps
    }

    /// Whether an evaluation follows on the last step.
    pub(super) fn is_evaluated(&self) -> bool {
        let part = |step: u64| step * self.evaluations / self.steps;
        part(self.taken) > part(self.taken - 1) || self.is_over()
    }
}

/// A trainer with its data.
pub(super) struct Run {
    pub(super) trainer: Trainer,
    batches: Prefetch,
    overflows: OverflowWatch,
    first_loss: Option<f64>,
    last_loss: Option<f64>,
}

impl Run {
    /// The micro-batches of the next step, with the seconds that they were waited for.
    pub(super) fn next_batch(&mut self, phase: Phase) -> Result<(Vec<MicroBatch>, f64), Interruption> {
        let waiting = Instant::now();
        let Some(batch) = self.batches.next() else {
            let message = "the data ended before the training".to_owned();
            return Err(Interruption::Failed(FailReason::Crashed { phase, message }));
        };
        Ok((batch, waiting.elapsed().as_secs_f64()))
    }

    fn check_divergence(&mut self, event: &StepEvent) -> Result<(), Interruption> {
        let first = *self.first_loss.get_or_insert(event.loss);
        let sound = event.loss.is_finite() && event.loss < first + DIVERGED_NATS;
        if !sound || self.overflows.has_diverged(event.grad_norm) {
            return Err(Interruption::Failed(FailReason::Diverged {
                at_step: event.step,
                loss: self.last_loss,
            }));
        }
        self.last_loss = Some(event.loss);
        Ok(())
    }
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
    metrics.insert("measured_steps", events.len() as f64);
    let times: [(&str, Seconds); 5] = [
        ("step_s", |event| event.seconds.total),
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
}

/// The throughput of a training that spends `share` of its steps in F32.
fn mix_throughput(share: f64, metrics: &mut Metrics) {
    if let (Some(fp32), Some(own)) = (metrics.value(FP32_THROUGHPUT), metrics.value(OWN_THROUGHPUT))
        && fp32 > 0.0
        && own > 0.0
    {
        metrics.insert(THROUGHPUT, 1.0 / (share / fp32 + (1.0 - share) / own));
    }
}

/// What an engine error means for the trial.
pub(super) fn failure(error: TrainError, phase: Phase) -> Interruption {
    if error.lost_device() {
        return Interruption::DeviceLost {
            message: error.to_string(),
            is_kernels: error.is_kernel_fault(),
        };
    }
    let reason = match error.out_of_memory() {
        true => FailReason::OutOfMemory {
            phase,
            in_use_bytes: None,
            requested_bytes: None,
            limit_bytes: None,
        },
        false if phase == Phase::Load => FailReason::Invalid {
            message: error.to_string(),
        },
        false => FailReason::Crashed {
            phase,
            message: error.to_string(),
        },
    };
    Interruption::Failed(reason)
}
