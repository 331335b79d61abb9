//! Trials of one worker whose trainings go through the base model together.
//!
//! A trial's profile phase has the worker to itself: the trainings under way stand still meanwhile, so that what is measured is the
//! setting's own. Then its training joins them. Each has the losses that it has alone; what takes their time together is counted to
//! each in equal parts.
//!
//! Errors of a step of all say nothing about any of them: all trials are given back, to be run alone.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::control::Control;
use super::fault::Fault;
use super::interruption::{Interruption, failure, state_of};
use super::rival::{BesideRival, ToldEvaluation};
use super::trial::{Training, TrialRun, kernels_of};
use super::trial_inputs::{Fp32Key, TrialInputs};
use super::{Task, TrialEvent, TrialRequest};
use peft_tune_core::recipe::Recipe;
use peft_tune_core::study::{FailReason, Metrics, Phase, TrialNumber, TrialPlan};
use peft_tune_engine::data::MicroBatch;
use peft_tune_engine::parallel::Collective;
use peft_tune_engine::{RowWatch, StepEvent, Together, TrainError, Trainer};

/// Metric: the most trainings that a training shared its passes with.
const BESIDE: &str = "trainings_beside";

/// Whether a trial may train beside others. A trial that was lost runs alone: it may be what took them all.
pub(super) fn may_share(request: &TrialRequest) -> bool {
    let (Some((recipe, plan)), 1) = (parts(request), request.attempt) else {
        return false;
    };
    let trains_only = plan.train.as_ref().is_some_and(|train| train.accuracy.is_off());
    // What is measured behind a training of sparse weights loads the dense ones too.
    trains_only && !request.number.is_rehearsal() && recipe.weight_sparsity.is_none() && recipe.check_in_group().is_ok()
}

/// The recipe and the plan of a trial of the engine.
pub(super) fn parts(request: &TrialRequest) -> Option<(&Recipe, &TrialPlan)> {
    match &request.task {
        Task::Recipe { recipe, plan } => Some((recipe, plan)),
        Task::Params { .. } => None,
    }
}

/// Parts of a worker that all of its trials share.
pub(super) struct WorkerContext<'a> {
    pub(super) control: &'a Control,
    pub(super) collective: &'a Arc<dyn Collective>,
    pub(super) fault: &'a Fault,
    pub(super) fp32_accuracies: &'a RefCell<Vec<(Fp32Key, f64)>>,
}

/// A trial of the group, but for its training.
pub(super) struct Joined {
    pub(super) request: TrialRequest,
    pub(super) loaded: TrialInputs,
    pub(super) started: Instant,
    /// Time that others had.
    pub(super) waited: Cell<Duration>,
}

impl Joined {
    fn parts(&self) -> (&Recipe, &TrialPlan) {
        parts(&self.request).expect("only trials of recipes join")
    }

    /// The trial as one that runs alone is seen.
    fn run<'a>(&'a self, around: &WorkerContext<'a>) -> TrialRun<'a> {
        TrialRun {
            request: &self.request,
            recipe: self.parts().0,
            loaded: &self.loaded,
            fp32_accuracies: around.fp32_accuracies,
            control: around.control,
            waited: &self.waited,
            collective: around.collective,
            fault: around.fault,
            started: self.started,
            joins: true,
        }
    }

    fn wait(&self, time: Duration) {
        self.waited.set(self.waited.get() + time);
    }

    /// Ends the trial and tells how it ended.
    fn end(&self, ended: EndedTraining, around: &WorkerContext<'_>, emit: &mut dyn FnMut(TrialEvent)) {
        let EndedTraining {
            training,
            interruption,
            mut metrics,
            beside,
        } = ended;
        let number = self.request.number;
        let mut emit = with_faults(&self.request, around.fault, emit);
        let trial = self.run(around);
        let outcome = match (interruption, &self.parts().1.train) {
            (Some(interruption), _) => Err(trial.with_memory(interruption)),
            (None, Some(plan)) => trial.end_training(training, plan, &mut emit, &mut metrics),
            (None, None) => Ok(()),
        };
        if beside > 0 {
            metrics.insert(BESIDE, beside as f64);
        }
        emit(kernels_of(number, None));
        let (state, wall_s) = (state_of(outcome, metrics), own_seconds(self));
        emit(TrialEvent::Ended { number, state, wall_s });
        tracing::debug!(trial = number.0, beside, "a trial of a group ended");
    }
}

/// A training of the group that is over.
struct EndedTraining {
    training: Training,
    /// Reason why it did not complete.
    interruption: Option<Interruption>,
    metrics: Metrics,
    /// Most trainings beside it.
    beside: usize,
}

/// A trial whose training is under way.
pub(super) struct Member {
    joined: Joined,
    training: Training,
    metrics: Metrics,
    /// Most trainings beside this one so far.
    beside: usize,
}

impl Member {
    /// A trial that joins a group, with the metrics of its profile phase.
    pub(super) fn new(joined: Joined, training: Training, metrics: Metrics) -> Self {
        Self {
            joined,
            training,
            metrics,
            beside: 0,
        }
    }
}

/// Trainings under way over one base model.
#[derive(Default)]
pub(super) struct TrialGroup {
    members: Vec<Member>,
    /// Trial whose end is not told yet: its training is gone already.
    ending: Option<Joined>,
    /// Passes of the members; made again after a member joins or leaves.
    passes: Option<Together>,
}

/// Evaluation of a member, where it was due.
type DueEvaluation = Option<Result<ToldEvaluation, Interruption>>;

/// Failure of a step of all members.
pub(super) enum BrokenStep {
    /// The device answers nothing more to this process.
    DeviceLost { message: String, is_kernels: bool },
    /// All trials are given back for this.
    All(FailReason),
}

impl TrialGroup {
    pub(super) fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Whether `recipe` may train beside the members.
    pub(super) fn takes(&self, recipe: &Recipe) -> bool {
        let mut others = self.members.iter();
        others.all(|other| recipe.check_shares_base(other.joined.parts().0).is_ok())
    }

    pub(super) fn join(&mut self, member: Member) {
        self.members.push(member);
        self.passes = None;
    }

    /// Counts time for which all members stood still.
    pub(super) fn wait(&self, time: Duration) {
        self.members.iter().for_each(|member| member.joined.wait(time));
    }

    /// Sets the bytes up to which the process may allocate: what a trial may, beside what was there before the first.
    pub(super) fn set_limit(&self) {
        if let Some(Member { joined, .. }) = self.members.first() {
            joined.loaded.memory.set_limit(joined.request.memory_limit_bytes);
        }
    }

    /// Gives all trials back, to be run alone.
    pub(super) fn give_back(&mut self, reason: &FailReason, emit: &mut dyn FnMut(TrialEvent)) {
        self.passes = None;
        let members = self.members.drain(..).map(|member| member.joined);
        for joined in self.ending.take().into_iter().chain(members) {
            emit(TrialEvent::Lost {
                number: joined.request.number,
                reason: reason.clone(),
                wall_s: own_seconds(&joined),
            });
        }
    }

    pub(super) fn numbers(&self) -> impl Iterator<Item = TrialNumber> {
        self.members.iter().map(|member| member.joined.request.number)
    }

    /// Takes one step of all members, with the evaluations behind it; trials that end are told and leave.
    pub(super) fn step(
        &mut self,
        around: &WorkerContext<'_>,
        emit: &mut dyn FnMut(TrialEvent),
    ) -> Result<(), BrokenStep> {
        let mut ends: Vec<Option<Interruption>> = Vec::with_capacity(self.members.len());
        let mut batches: Vec<(Vec<MicroBatch>, f64)> = Vec::with_capacity(self.members.len());
        for member in &mut self.members {
            let next = member.training.run.next_batch(Phase::Train);
            let (batch, end) = match next {
                Ok(batch) => (batch, None),
                Err(interruption) => ((Vec::new(), 0.0), Some(interruption)),
            };
            batches.push(batch);
            ends.push(end);
        }
        let events = self.train(&batches)?;
        for (index, (member, event)) in self.members.iter_mut().zip(events).enumerate() {
            if ends[index].is_some() {
                continue;
            }
            let Member { joined, training, .. } = member;
            let mut emit = with_faults(&joined.request, around.fault, emit);
            let trial = joined.run(around);
            let took = event
                .map_err(|error| failure(error, Phase::Train))
                .and_then(|mut event| {
                    event.seconds.data = batches[index].1;
                    event.seconds.total += batches[index].1;
                    trial.took_step(event, &mut training.run, Phase::Train, &mut emit)
                });
            match took {
                Ok(event) => training.took(&event),
                Err(interruption) => ends[index] = Some(interruption),
            }
        }
        self.evaluate(&mut ends, around, emit)?;
        for end in &ends {
            if let Some(Interruption::DeviceLost { message, is_kernels }) = end {
                return Err(BrokenStep::DeviceLost {
                    message: message.clone(),
                    is_kernels: *is_kernels,
                });
            }
        }
        self.leave(ends, around, emit);
        Ok(())
    }

    /// Takes the step itself, whose time all members share.
    fn train(&mut self, batches: &[(Vec<MicroBatch>, f64)]) -> Result<Vec<Result<StepEvent, TrainError>>, BrokenStep> {
        let (began, count) = (Instant::now(), self.members.len());
        let trainers = self.members.iter().map(|member| &member.training.run.trainer);
        let passes = Together::kept(&mut self.passes, trainers).map_err(broken)?;
        let mut trainers: Vec<&mut Trainer> = self
            .members
            .iter_mut()
            .map(|member| &mut member.training.run.trainer)
            .collect();
        let batches: Vec<&[MicroBatch]> = batches.iter().map(|(batches, _)| batches.as_slice()).collect();
        let mut events = passes.step(&mut trainers, &batches).map_err(broken)?;
        for event in events.iter_mut().flatten() {
            event.seconds = event.seconds.share(count);
        }
        let others = began.elapsed().mul_f64(1.0 - 1.0 / count as f64);
        for member in &mut self.members {
            member.joined.wait(others);
            member.beside = member.beside.max(count - 1);
        }
        Ok(events)
    }

    /// Makes the evaluations that are due, all in the same passes.
    fn evaluate(
        &mut self,
        ends: &mut [Option<Interruption>],
        around: &WorkerContext<'_>,
        emit: &mut dyn FnMut(TrialEvent),
    ) -> Result<(), BrokenStep> {
        let due: Vec<bool> = self
            .members
            .iter()
            .zip(ends.iter())
            .map(|(member, end)| end.is_none() && member.training.is_evaluated())
            .collect();
        let count = due.iter().filter(|due| **due).count();
        if count == 0 {
            return Ok(());
        }
        for (member, _) in self.members.iter().zip(&due).filter(|(_, due)| **due) {
            let mut emit = with_faults(&member.joined.request, around.fault, emit);
            member.joined.run(around).evaluates(&mut emit);
        }
        let began = Instant::now();
        let told = self.evaluate_due(&due, around)?;
        let took = began.elapsed();
        for (index, (member, told)) in self.members.iter_mut().zip(told).enumerate() {
            member.joined.wait(match due[index] {
                true => took.mul_f64(1.0 - 1.0 / count as f64),
                false => took,
            });
            let Some(told) = told else { continue };
            let Member {
                joined,
                training,
                metrics,
                ..
            } = member;
            let mut emit = with_faults(&joined.request, around.fault, emit);
            let trial = joined.run(around);
            let kept = told.and_then(|told| trial.evaluated(told, training, &mut emit, metrics));
            ends[index] = kept.err();
        }
        Ok(())
    }

    /// Evaluates the members that are due in the same passes, each beside its rival; nothing of the others.
    fn evaluate_due(&mut self, due: &[bool], around: &WorkerContext<'_>) -> Result<Vec<DueEvaluation>, BrokenStep> {
        let trainers = self.members.iter().map(|member| &member.training.run.trainer);
        let passes = Together::kept(&mut self.passes, trainers).map_err(broken)?;
        let trainers: Vec<&Trainer> = self.members.iter().map(|member| &member.training.run.trainer).collect();
        let held_out = self.members.iter().zip(due);
        let held_out: Vec<Option<&[MicroBatch]>> = held_out
            .map(|(member, due)| due.then_some(member.training.held_out.as_slice()))
            .collect();
        let mut beside: Vec<Option<BesideRival>> = self
            .members
            .iter()
            .zip(&held_out)
            .map(|(member, held_out)| {
                let is_last = member.training.is_over();
                member.joined.run(around).beside_rival(is_last, (*held_out)?)
            })
            .collect();
        let mut watches: Vec<Option<&mut dyn RowWatch>> = beside
            .iter_mut()
            .map(|one| one.as_mut().map(|one| one as &mut dyn RowWatch))
            .collect();
        let found = passes
            .evaluate_rows(&trainers, &held_out, &mut watches)
            .map_err(broken)?;
        let count = due.iter().filter(|due| **due).count();
        let told = found.into_iter().zip(beside).map(|(found, beside)| {
            let found = found?.map_err(|error| failure(error, Phase::Evaluate));
            Some(found.map(|mut found| {
                found.evaluation.seconds /= count as f64;
                match beside {
                    Some(beside) => beside.told(found),
                    None => ToldEvaluation::whole(found.evaluation),
                }
            }))
        });
        Ok(told.collect())
    }

    /// Tells the ends of members that have ended, and lets them go.
    fn leave(&mut self, ends: Vec<Option<Interruption>>, around: &WorkerContext<'_>, emit: &mut dyn FnMut(TrialEvent)) {
        let mut index = 0;
        for end in ends {
            if end.is_none() && !self.members[index].training.is_over() {
                index += 1;
                continue;
            }
            self.passes = None;
            let Member {
                joined,
                training,
                metrics,
                beside,
            } = self.members.remove(index);
            let joined = self.ending.insert(joined);
            let ended = EndedTraining {
                training,
                interruption: end,
                metrics,
                beside,
            };
            joined.end(ended, around, emit);
            self.ending = None;
        }
    }
}

/// The failure that an error of all members means.
fn broken(error: TrainError) -> BrokenStep {
    match failure(error, Phase::Train) {
        Interruption::DeviceLost { message, is_kernels } => BrokenStep::DeviceLost { message, is_kernels },
        Interruption::Failed(reason) => BrokenStep::All(reason),
        Interruption::Stopped { .. } => BrokenStep::All(FailReason::Crashed {
            phase: Phase::Train,
            message: "the step of all trainings was stopped".to_owned(),
        }),
    }
}

/// Wall time of a trial without what others had of it.
fn own_seconds(joined: &Joined) -> f64 {
    let own = joined.started.elapsed().saturating_sub(joined.waited.get());
    own.as_secs_f64()
}

/// Wraps `emit` so that the faults of a phase are caused once the phase is told.
pub(super) fn with_faults<'e>(
    request: &'e TrialRequest,
    fault: &'e Fault,
    emit: &'e mut dyn FnMut(TrialEvent),
) -> impl FnMut(TrialEvent) + 'e {
    move |event| {
        let next = match &event {
            TrialEvent::Phase { phase, .. } => Some(*phase),
            _ => None,
        };
        emit(event);
        if let Some(next) = next {
            fault.at(request, next);
        }
    }
}
