//! Made-up trials: the whole protocol and every phase, with sleep in the place of work. They test what is around a
//! trial, and show what that costs.

use std::time::{Duration, Instant};

use super::control::Control;
use super::fault::Fault;
use super::runner::Runner;
use super::{Task, TrialEvent, TrialRequest};
use peft_tune_core::objective::{LOSS, PEAK_MEMORY, THROUGHPUT, TOKEN_ACCURACY};
use peft_tune_core::recipe::Recipe;
use peft_tune_core::study::{FailReason, Metrics, Phase, TrialState};
use peft_tune_engine::profile::disturbance::{Busy, DisturbanceWatch, Load};
use peft_tune_engine::{Evaluation, StepEvent, StepSeconds};

/// Steps of a made-up training.
const STEPS: u64 = 4;

/// Share of the throughput that is left beside another program.
const SLOWED: f64 = 0.4;

/// A runner that makes trials up.
pub(super) struct MockSession {
    seconds: f64,
    fault: Fault,
}

/// A trial under way.
struct MockTrial<'a> {
    request: &'a TrialRequest,
    fault: &'a Fault,
    control: &'a Control,
    step: Duration,
    waited: Duration,
}

impl MockSession {
    /// Trials that take `seconds` each.
    pub(super) fn new(seconds: f64, fault: Fault) -> Self {
        Self { seconds, fault }
    }
}

impl Runner for MockSession {
    fn run(
        &mut self,
        request: TrialRequest,
        _more: &mut dyn FnMut() -> Option<TrialRequest>,
        control: &Control,
        emit: &mut dyn FnMut(TrialEvent),
    ) -> std::io::Result<()> {
        let request = &request;
        if self.fault.traps(request, Phase::Load) {
            let fault = "DriverError(CUDA_ERROR_ILLEGAL_INSTRUCTION)";
            emit(TrialEvent::Kernels {
                number: request.number,
                kernels: request.kernels.unwrap_or_default(),
                attention: None,
                longer_sums: false,
                fault: Some(fault.to_owned()),
            });
            return Err(std::io::Error::other(fault));
        }
        let started = Instant::now();
        let mut metrics = Metrics::default();
        let seconds = if request.number.is_rehearsal() {
            0.0
        } else {
            self.seconds
        };
        let mut trial = MockTrial {
            request,
            fault: &self.fault,
            control,
            step: Duration::try_from_secs_f64(seconds / STEPS as f64).unwrap_or_default(),
            waited: Duration::ZERO,
        };
        let state = trial.run(&mut metrics, emit);
        emit(TrialEvent::Ended {
            number: request.number,
            state,
            wall_s: (started.elapsed() - trial.waited).as_secs_f64(),
        });
        Ok(())
    }
}

impl MockTrial<'_> {
    fn run(&mut self, metrics: &mut Metrics, emit: &mut dyn FnMut(TrialEvent)) -> TrialState {
        let request = self.request;
        self.phase(Phase::Load, emit);
        let Task::Recipe { recipe, plan } = &request.task else {
            let message = "params alone need a command backend".to_owned();
            let reason = FailReason::Invalid { message };
            return self.failed(reason, metrics);
        };
        if plan.measure.is_some() {
            self.measure(recipe, metrics, emit);
        }
        if plan.train.is_some()
            && let Some(ended) = self.train(recipe, metrics, emit)
        {
            return ended;
        }
        TrialState::Complete {
            metrics: metrics.clone(),
        }
    }

    /// The profile phase: throughput and memory follow from rank and micro-batch.
    fn measure(&mut self, recipe: &Recipe, metrics: &mut Metrics, emit: &mut dyn FnMut(TrialEvent)) {
        let number = self.request.number;
        let (rank, micro_batch) = (rank_of(recipe), recipe.batch.micro_batch as f64);
        self.waited += self.control.wait_for_turn(number);
        self.phase(Phase::Profile, emit);
        std::thread::sleep(self.step);
        let mut throughput = 1e5 * micro_batch / (8.0 + rank);
        if self.fault.makes_busy(self.request, Phase::Profile) {
            throughput *= SLOWED;
            // One step that it was watched for.
            let load = Load {
                threads: 2,
                cores: 2,
                ranks: 1,
            };
            let watch = DisturbanceWatch::start(Box::new(Busy::default()), load);
            watch.finish().keep(metrics);
        }
        metrics.insert(THROUGHPUT, throughput);
        metrics.insert(PEAK_MEMORY, 1e6 * (rank + 4.0 * micro_batch));
        emit(TrialEvent::Measured {
            number,
            metrics: metrics.clone(),
        });
    }

    /// The training phase and its evaluation; returns how the trial ended where it did on the way.
    fn train(
        &mut self,
        recipe: &Recipe,
        metrics: &mut Metrics,
        emit: &mut dyn FnMut(TrialEvent),
    ) -> Option<TrialState> {
        let number = self.request.number;
        self.phase(Phase::Train, emit);
        emit(TrialEvent::Training { number, steps: STEPS });
        for step in 1..=STEPS {
            self.waited += self.control.wait_while_held(number);
            std::thread::sleep(self.step);
            let loss = made_up_loss(recipe, step);
            emit(step_event(self.request, step, loss));
            if self.fault.spoils_loss(self.request, Phase::Train) {
                let reason = FailReason::Diverged {
                    at_step: step,
                    loss: Some(loss),
                    cause: None,
                };
                return Some(self.failed(reason, metrics));
            }
            if self.control.is_stopped(number) {
                return Some(TrialState::Pruned {
                    at_step: step,
                    rule: "stopped".to_owned(),
                    metrics: metrics.clone(),
                });
            }
        }
        self.phase(Phase::Evaluate, emit);
        let loss = made_up_loss(recipe, STEPS);
        metrics.insert(LOSS, loss);
        metrics.insert(TOKEN_ACCURACY, 0.5);
        emit(evaluation_event(self.request, loss));
        None
    }

    fn phase(&self, phase: Phase, emit: &mut dyn FnMut(TrialEvent)) {
        let number = self.request.number;
        emit(TrialEvent::Phase { number, phase });
        self.fault.at(self.request, phase);
    }

    fn failed(&self, reason: FailReason, metrics: &Metrics) -> TrialState {
        TrialState::Failed {
            reason,
            metrics: metrics.clone(),
        }
    }
}

/// The rank of a recipe; where every weight trains, a high one.
fn rank_of(recipe: &Recipe) -> f64 {
    recipe.adapter.as_ref().map_or(64, |adapter| adapter.rank) as f64
}

/// A loss that falls with the rank and the steps, with a best learning rate between.
fn made_up_loss(recipe: &Recipe, step: u64) -> f64 {
    let rank = rank_of(recipe);
    let off = (recipe.optimizer.learning_rate / 3e-3).ln();
    2.0 + off * off / 20.0 + 1.0 / (1.0 + rank) + 1.0 / step as f64
}

fn step_event(request: &TrialRequest, step: u64, loss: f64) -> TrialEvent {
    TrialEvent::Step {
        number: request.number,
        phase: Phase::Train,
        step: StepEvent {
            step,
            loss,
            learning_rate: 0.0,
            grad_norm: 1.0,
            tokens: 1,
            target_tokens: 1,
            seconds: StepSeconds::default(),
            precision: None,
            precision_decision: None,
        },
    }
}

fn evaluation_event(request: &TrialRequest, loss: f64) -> TrialEvent {
    TrialEvent::Evaluation {
        number: request.number,
        evaluation: Evaluation {
            step: STEPS,
            tokens: STEPS,
            loss,
            standard_error: None,
            accuracy: 0.5,
            target_tokens: 1,
            seconds: 0.0,
            reward: None,
        },
        rows: None,
    }
}
