//! Trainings that share a base, each with its own folder, length, evaluations, checkpoints and end.

use std::time::Instant;

use super::training::{AfterStep, TrainingRun};
use super::{Ending, Outcome, RunError};
use crate::data::{MicroBatch, Prefetch};
use crate::{StepObserver, Together, Trainer};

/// Trainings under way whose rows go through the frozen weights together. Each ends as it would alone; others may join at any time.
#[derive(Default)]
pub struct RunGroup<'a> {
    members: Vec<Member<'a>>,
    /// Passes that the trainings share, made again behind whoever joins or leaves.
    passes: Option<Together>,
}

/// A training that has ended, by the number that it joined with.
pub struct Ended {
    pub number: usize,
    pub outcome: Result<Outcome, RunError>,
}

struct Member<'a> {
    number: usize,
    run: TrainingRun,
    observer: Box<dyn StepObserver + 'a>,
    batches: Prefetch,
}

impl<'a> RunGroup<'a> {
    /// Takes in a training, which the others then step beside. Nothing changes where it cannot join them.
    ///
    /// # Errors
    /// A training that shares no base with the others, or differs in what they must agree on.
    pub fn join(
        &mut self,
        number: usize,
        run: TrainingRun,
        observer: Box<dyn StepObserver + 'a>,
    ) -> Result<(), RunError> {
        let trainers = self.members.iter().map(|member| &member.run.trainer);
        let passes = Together::new(&trainers.chain([&run.trainer]).collect::<Vec<_>>())?;
        self.members.push(Member {
            number,
            batches: run.batches()?,
            run,
            observer,
        });
        self.passes = Some(passes);
        Ok(())
    }

    /// Numbers of the trainings that are under way, in the order in which they joined.
    pub fn under_way(&self) -> Vec<usize> {
        self.members.iter().map(|member| member.number).collect()
    }

    /// One step of each, with the evaluations and checkpoints behind it. Returns those that ended.
    ///
    /// # Errors
    /// What keeps all of them from going on: memory, the device.
    pub fn step(&mut self) -> Result<Vec<Ended>, RunError> {
        // One that continues at its last step is over.
        let over = |member: &Member<'_>| member.run.trainer.steps() >= member.run.total_steps();
        let mut ends: Vec<Option<Result<Ending, RunError>>> = self
            .members
            .iter()
            .map(|member| over(member).then_some(Ok(Ending::Finished)))
            .collect();
        if ends.iter().all(Option::is_none) {
            self.train(&mut ends)?;
        }
        self.leave(ends)
    }

    fn train(&mut self, ends: &mut [Option<Result<Ending, RunError>>]) -> Result<(), RunError> {
        let waiting = Instant::now();
        let next = |member: &mut Member<'a>| {
            let batch = member.batches.next();
            batch.expect("there is data for every step of the training")
        };
        let batches: Vec<Vec<MicroBatch>> = self.members.iter_mut().map(next).collect();
        let data = waiting.elapsed().as_secs_f64();
        let trainers = self.members.iter().map(|member| &member.run.trainer);
        let passes = Together::kept(&mut self.passes, trainers)?;
        let mut trainers: Vec<&mut Trainer> = self.members.iter_mut().map(|member| &mut member.run.trainer).collect();
        let batches: Vec<&[MicroBatch]> = batches.iter().map(Vec::as_slice).collect();
        let events = passes.step(&mut trainers, &batches)?;
        let (mut after, others) = (Vec::with_capacity(events.len()), events.len() - 1);
        for (member, event) in self.members.iter_mut().zip(events) {
            member.run.beside(others);
            after.push(event.map_err(RunError::from).and_then(|event| {
                let event = member.run.took_step(event, data);
                member.run.stepped(&event, member.observer.as_mut())
            }));
        }
        self.evaluate(&mut after)?;
        for ((member, after), end) in self.members.iter_mut().zip(after).zip(ends) {
            let over = after.and_then(|after| member.run.step_over(after, member.observer.as_mut()));
            let finished = member.run.trainer.steps() >= member.run.total_steps();
            *end = match over {
                Ok(AfterStep::Ends(ending)) => Some(Ok(ending)),
                Ok(AfterStep::Returned) => match member.run.batches() {
                    Ok(batches) => {
                        member.batches = batches;
                        None
                    }
                    Err(error) => Some(Err(error)),
                },
                Ok(AfterStep::GoesOn | AfterStep::Evaluates) => finished.then_some(Ok(Ending::Finished)),
                Err(error) => Some(Err(error)),
            };
        }
        Ok(())
    }

    /// The evaluations that are due, all in the same passes.
    fn evaluate(&mut self, after: &mut [Result<AfterStep, RunError>]) -> Result<(), RunError> {
        let is_due = |after: &Result<AfterStep, RunError>| matches!(after, Ok(AfterStep::Evaluates));
        if !after.iter().any(is_due) {
            return Ok(());
        }
        let trainers = self.members.iter().map(|member| &member.run.trainer);
        let passes = Together::kept(&mut self.passes, trainers)?;
        let trainers: Vec<&Trainer> = self.members.iter().map(|member| &member.run.trainer).collect();
        let held_out = self.members.iter().zip(after.iter());
        let held_out: Vec<Option<&[MicroBatch]>> = held_out
            .map(|(member, after)| is_due(after).then_some(member.run.held_out.as_slice()))
            .collect();
        let evaluations = passes.evaluate(&trainers, &held_out)?;
        for ((member, evaluation), after) in self.members.iter_mut().zip(evaluations).zip(after) {
            let Some(evaluation) = evaluation else { continue };
            *after = evaluation
                .map_err(RunError::from)
                .and_then(|evaluation| member.run.evaluated(&evaluation, member.observer.as_mut()));
        }
        Ok(())
    }

    /// Takes out those that have ended, and writes what they leave.
    fn leave(&mut self, ends: Vec<Option<Result<Ending, RunError>>>) -> Result<Vec<Ended>, RunError> {
        let (mut staying, mut ended) = (Vec::with_capacity(self.members.len()), Vec::new());
        for (member, end) in std::mem::take(&mut self.members).into_iter().zip(ends) {
            match end {
                None => staying.push(member),
                Some(ending) => ended.push(Ended {
                    number: member.number,
                    outcome: ending.and_then(|ending| member.run.end(ending)),
                }),
            }
        }
        self.members = staying;
        if !ended.is_empty() {
            self.passes = None;
        }
        Ok(ended)
    }
}
