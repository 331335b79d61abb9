//! One trial on the native engine: the profile phase, then the training phase.
//! The metrics that it measures are the rows of `metric_rows`.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::control::Control;
use super::fault::Fault;
use super::interruption::{Interruption, failure, invalid};
use super::losses::Losses;
use super::mixed_throughput::mix_throughput;
use super::rival::{BesideRival, ToldEvaluation};
use super::trial_inputs::{Fp32Key, TrialInputs};
use super::trial_schedule::schedule_in_part;
use super::{TrialEvent, TrialRequest};
use peft_tune_core::objective::{LOSS, LOSS_BEFORE, LOSS_STANDARD_ERROR, TOKEN_ACCURACY, TRAIN_TOKENS};
use peft_tune_core::recipe::{Precision, Recipe};
use peft_tune_core::study::{FailReason, Metrics, Phase, SpikeCause, TrainPlan, TrialNumber, TrialPlan};
use peft_tune_engine::data::{BatchSource, MicroBatch, Prefetch, evaluation_batches};
use peft_tune_engine::parallel::Collective;
use peft_tune_engine::{OverflowWatch, StepEvent, Trainer};
use peft_tune_kernels::{attention_kernels, device, kernels, longer_sums};

/// A trial under way.
pub(super) struct TrialRun<'a> {
    pub(super) request: &'a TrialRequest,
    pub(super) recipe: &'a Recipe,
    pub(super) loaded: &'a TrialInputs,
    /// Token accuracies of trainings in F32 that were made before.
    pub(super) fp32_accuracies: &'a RefCell<Vec<(Fp32Key, f64)>>,
    pub(super) control: &'a Control,
    /// Time that was spent waiting for neighbours, which is none of the trial's.
    pub(super) waited: &'a Cell<Duration>,
    /// The other devices that run this trial too.
    pub(super) collective: &'a Arc<dyn Collective>,
    pub(super) fault: &'a Fault,
    pub(super) started: Instant,
    /// Whether the trial's training is left to a group of them.
    pub(super) joins: bool,
}

impl TrialRun<'_> {
    /// Runs the phases of `plan`; what was measured is in `metrics` however the trial ends. Returns the training where
    /// it is still to be made.
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
        let (measure, train) = (plan.measure.as_ref(), plan.train.as_ref());
        let mut training = None;
        if let Some(measure) = measure {
            self.wait(self.control.wait_for_turn(self.request.number));
            emit(TrialEvent::Phase {
                number: self.request.number,
                phase: Phase::Profile,
            });
            // Before the steps: a profile may lie within a training, whose time and memory are its own.
            if let Some(serve) = &measure.serve {
                self.measure_serving(serve, metrics)?;
            }
            training = self.profile(measure, train, emit, metrics)?;
            emit(TrialEvent::Measured {
                number: self.request.number,
                metrics: metrics.clone(),
            });
        }
        if let Some(train) = train {
            emit(TrialEvent::Phase {
                number: self.request.number,
                phase: Phase::Train,
            });
            let training = match training {
                Some(training) => training,
                None => self.begin_training(train, emit, metrics)?,
            };
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

    /// Adds how much was in use where a device only said that it has no more.
    pub(super) fn with_memory(&self, mut interruption: Interruption) -> Interruption {
        if let Interruption::Failed(FailReason::OutOfMemory {
            in_use_bytes: in_use @ None,
            limit_bytes,
            ..
        }) = &mut interruption
        {
            let loaded = self.loaded;
            *in_use = Some(loaded.memory.peak_bytes());
            let whole = || device::facts(loaded.base.device()).map(|facts| facts.memory_bytes);
            *limit_bytes = limit_bytes.or(self.request.memory_limit_bytes).or_else(whole);
        }
        interruption
    }

    /// A fresh adapter before its first step.
    pub(super) fn begin_training(
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
        recipe.schedule = schedule_in_part(&recipe.schedule, steps, source.steps(recipe.training.length));
        emit(TrialEvent::Training {
            number: self.request.number,
            steps,
        });
        let mut run = self.start(&recipe, &source, steps)?;
        if let Some(first) = &self.request.first_adapter {
            first.keep(&run.trainer, &recipe.model)?;
        }
        self.measure_start(&mut run, &held_out, metrics)?;
        Ok(Training {
            run,
            source: Arc::clone(&source),
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

    /// Keeps what a training took, and what it taught beside the loss.
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
        metrics.insert(TRAIN_TOKENS, training.tokens as f64);
        metrics.insert("train_epochs", training.epochs);
        let waited = self.waited.get() - training.waited;
        let train = training.started.elapsed().saturating_sub(waited);
        metrics.insert("train_s", train.as_secs_f64());
        self.measure_accuracy(plan, training.run, &training.held_out, emit, metrics)
    }

    /// The loss before the training, which is the same for all settings that start from one model.
    fn measure_start(&self, run: &mut Run, held_out: &[MicroBatch], metrics: &mut Metrics) -> Result<(), Interruption> {
        let known = &self.loaded.untrained.loss;
        let loss = match known.get() {
            Some(loss) => *loss,
            None => {
                let evaluation = run.trainer.evaluate(held_out);
                evaluation.map_err(|error| failure(error, Phase::Evaluate))?.loss
            }
        };
        metrics.insert(LOSS_BEFORE, *known.get_or_init(|| loss));
        Ok(())
    }

    fn evaluate(
        &self,
        training: &mut Training,
        emit: &mut dyn FnMut(TrialEvent),
        metrics: &mut Metrics,
    ) -> Result<(), Interruption> {
        self.evaluates(emit);
        let is_last = training.is_over();
        let Training { run, held_out, .. } = &mut *training;
        let told = match self.beside_rival(is_last, held_out) {
            None => run.trainer.evaluate(held_out).map(ToldEvaluation::whole),
            Some(mut watch) => {
                let found = run.trainer.evaluate_rows(held_out, &mut watch);
                found.map(|found| watch.told(found))
            }
        };
        let told = told.map_err(|error| failure(error, Phase::Evaluate))?;
        self.evaluated(told, training, emit, metrics)
    }

    /// The watch on an evaluation: at the last one of a trial whose request compares it.
    pub(super) fn beside_rival(&self, is_last: bool, held_out: &[MicroBatch]) -> Option<BesideRival> {
        let pairing = self.request.pairing.as_ref().filter(|_| is_last)?;
        Some(BesideRival::new(pairing.clone(), held_out))
    }

    /// Tells that the loss over the held-out rows comes next.
    pub(super) fn evaluates(&self, emit: &mut dyn FnMut(TrialEvent)) {
        emit(TrialEvent::Phase {
            number: self.request.number,
            phase: Phase::Evaluate,
        });
    }

    /// Keeps and tells an evaluation of the held-out rows.
    pub(super) fn evaluated(
        &self,
        told: ToldEvaluation,
        training: &Training,
        emit: &mut dyn FnMut(TrialEvent),
        metrics: &mut Metrics,
    ) -> Result<(), Interruption> {
        let number = self.request.number;
        told.note_rows(metrics);
        let ToldEvaluation { evaluation, rows, .. } = told;
        if !metrics.insert(LOSS, evaluation.loss) {
            return Err(Interruption::Failed(FailReason::Diverged {
                at_step: evaluation.step,
                loss: training.run.losses.last(),
                cause: training.run.losses.cause(),
            }));
        }
        metrics.insert(TOKEN_ACCURACY, evaluation.accuracy);
        if let Some(error) = evaluation.standard_error {
            metrics.insert(LOSS_STANDARD_ERROR, error);
        }
        emit(TrialEvent::Evaluation {
            number,
            evaluation,
            rows,
        });
        emit(TrialEvent::Phase {
            number,
            phase: Phase::Train,
        });
        Ok(())
    }

    /// Takes one step and tells it to the coordinator; fails where the loss explodes or the time is up.
    pub(super) fn step(
        &self,
        run: &mut Run,
        phase: Phase,
        emit: &mut dyn FnMut(TrialEvent),
    ) -> Result<StepEvent, Interruption> {
        self.wait(self.control.wait_while_held(self.request.number));
        let (batch, data) = run.next_batch(phase)?;
        let mut event = run.trainer.step(&batch).map_err(|error| failure(error, phase))?;
        event.seconds.data = data;
        event.seconds.total += data;
        self.took_step(event, run, phase, emit)
    }

    /// Takes in a step: checks it, tells it, and ends the trial where it is to end.
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

    /// Readings that decide how the trial continues, and the time of the step: the same on all devices, each of which
    /// sees another clock, another memory and other requests.
    fn seen_by_all(&self, event: &mut StepEvent, phase: Phase) -> Result<Seen, Interruption> {
        let peak_bytes = self.loaded.memory.peak_bytes();
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

    /// Replaces each number by the highest one on any device.
    pub(super) fn highest(&self, numbers: &mut [f64], phase: Phase) -> Result<(), Interruption> {
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
    pub(super) fn start(&self, recipe: &Recipe, source: &Arc<BatchSource>, steps: u64) -> Result<Run, Interruption> {
        let base = self.loaded.base.open().map_err(|error| failure(error, Phase::Load))?;
        let trainer = Trainer::new(base, recipe, steps)
            .and_then(|trainer| trainer.with_collective(self.collective.clone()))
            .map_err(|error| failure(error, Phase::Load))?;
        let batches = Prefetch::start(Arc::clone(source), 0..steps).map_err(invalid)?;
        Ok(Run {
            trainer,
            batches,
            most_micro_batches: usize::MAX,
            overflows: OverflowWatch::new(recipe.precision),
            losses: Losses::default(),
        })
    }
}

/// Readings that all devices of a trial share after a step.
struct Seen {
    peak_bytes: u64,
    after_s: f64,
    stopped: bool,
}

/// A training phase under way.
pub(super) struct Training {
    pub(super) run: Run,
    pub(super) source: Arc<BatchSource>,
    pub(super) held_out: Vec<MicroBatch>,
    steps: u64,
    /// Number of evaluations that the training has.
    evaluations: u64,
    /// Number of times that the training goes over its rows.
    epochs: f64,
    taken: u64,
    tokens: u64,
    fp32_steps: u64,
    started: Instant,
    /// Time that the trial had waited when the training began.
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
    /// Most micro-batches of each step that are trained on.
    pub(super) most_micro_batches: usize,
    overflows: OverflowWatch,
    losses: Losses,
}

impl Run {
    /// The micro-batches of the next step, with the seconds that they were waited for.
    pub(super) fn next_batch(&mut self, phase: Phase) -> Result<(Vec<MicroBatch>, f64), Interruption> {
        let waiting = Instant::now();
        let Some(mut batch) = self.batches.next() else {
            let message = "the data ended before the training".to_owned();
            return Err(Interruption::Failed(FailReason::Crashed { phase, message }));
        };
        batch.truncate(self.most_micro_batches);
        Ok((batch, waiting.elapsed().as_secs_f64()))
    }

    fn check_divergence(&mut self, event: &StepEvent) -> Result<(), Interruption> {
        let sound = self.losses.are_sound(event.loss);
        let overflowed = self.overflows.has_diverged(event.grad_norm);
        if !sound || overflowed {
            // In fp16 that takes steps in a row, with a loss that is a number.
            let is_fp16 = self.trainer.base().precision() == Precision::Fp16;
            let overflow = (sound && is_fp16).then_some(SpikeCause::Overflow);
            return Err(Interruption::Failed(FailReason::Diverged {
                at_step: event.step,
                loss: self.losses.last(),
                cause: overflow.or(self.losses.cause()),
            }));
        }
        self.losses.take(event.loss);
        Ok(())
    }
}

/// The event that tells in which form of the ops a trial computed.
pub(super) fn kernels_of(number: TrialNumber, fault: Option<String>) -> TrialEvent {
    TrialEvent::Kernels {
        number,
        kernels: kernels(),
        attention: attention_kernels(),
        longer_sums: longer_sums(),
        fault,
    }
}
