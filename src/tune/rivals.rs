//! The best trainings so far, which the last evaluations of others are compared with, row by row.
//!
//! A trial whose loss is surely more than 1% above the best is not evaluated to the last row. So this is done only where such a
//! trial cannot be what the study asks for: where the fastest setting with nearly the least loss is recommended, or the one with the
//! least loss. The knee of a front of loss and memory may well be worse than that, and a limit on the loss needs the loss itself.
//! What is repeated to confirm a recommendation, or trained longer, is always evaluated on all rows.

use super::TuneError;
use super::whole_task::whole_task;
use crate::space::Study;
use crate::store::{HeldOutRecord, Store, StudyId};
use crate::worker::{HeldOutLosses, Pairing, Rival, Task, is_of_training};
use peft_tune_core::objective::{Direction, LOSS, THROUGHPUT, counted_as};
use peft_tune_core::recipe::{DataSettings, TrainerKind};
use peft_tune_core::study::{AccuracyPlan, TrainPlan, Trial, TrialNumber};
use peft_tune_search::{Evaluated, Problem, evaluated};

/// The best trainings so far that others can be compared with.
#[derive(Debug, Default)]
pub(super) struct Rivals {
    /// Whether the study's trials are compared at all.
    is_on: bool,
    best: Vec<BestTraining>,
}

#[derive(Debug)]
struct BestTraining {
    key: RivalKey,
    number: TrialNumber,
    rival: Rival,
}

/// What two trainings have in common whose held-out losses are compared: the rows, how long they are, and what is their loss.
#[derive(Clone, Debug, PartialEq)]
struct RivalKey {
    model: String,
    data: DataSettings,
    sequence_length: usize,
    /// Seed, which decides which rows are held out.
    seed: u64,
    trainer: TrainerKind,
    /// Scale of a preference's loss.
    beta: f64,
    train: TrainPlan,
}

impl RivalKey {
    /// The key of a task; `None` where it trains nothing, or measures more of its model than the loss.
    fn of(task: &Task) -> Option<Self> {
        let Task::Recipe { recipe, plan } = task else {
            return None;
        };
        let train = plan.train.clone()?;
        (train.accuracy == AccuracyPlan::default()).then(|| Self {
            model: recipe.model.clone(),
            data: recipe.data.clone(),
            sequence_length: recipe.batch.sequence_length,
            seed: recipe.training.seed,
            trainer: recipe.trainer,
            beta: recipe.beta(),
            train,
        })
    }
}

impl Rivals {
    pub(super) fn new(problem: &Problem) -> Self {
        Self {
            is_on: decides_by_the_least_loss(problem),
            best: Vec::new(),
        }
    }

    /// Rivals that a study's earlier trials left.
    ///
    /// # Errors
    /// The database cannot be read.
    pub(super) async fn stored(
        study: &Study,
        problem: &Problem,
        store: &Store,
        id: StudyId,
        history: &[Trial],
    ) -> Result<Self, TuneError> {
        let mut rivals = Self::new(problem);
        for (number, HeldOutRecord { target_tokens, losses }) in store.held_out_losses().of(id).await? {
            let rows = HeldOutLosses { target_tokens, losses };
            if let Some(trial) = history.iter().find(|trial| trial.number == number) {
                rivals.offer(study, problem, trial, rows);
            }
        }
        Ok(rivals)
    }

    /// The comparison of a task's last evaluation with its rival; `None` where trials are not compared.
    pub(super) fn pairing(&self, task: &Task) -> Option<Pairing> {
        let key = RivalKey::of(task).filter(|_| self.is_on)?;
        let rival = self.best.iter().find(|best| best.key == key);
        Some(Pairing {
            rival: rival.map(|best| best.rival.clone()),
        })
    }

    /// Keeps a finished trial where it is the best of its kind that keeps all limits; returns what is to be stored of it then.
    pub(super) fn offer(
        &mut self,
        study: &Study,
        problem: &Problem,
        trial: &Trial,
        rows: HeldOutLosses,
    ) -> Option<NewBest> {
        let one = std::slice::from_ref(trial);
        let is_feasible = evaluated(problem, one).iter().any(Evaluated::is_feasible);
        let loss = trial.state.metrics().and_then(|metrics| metrics.value(LOSS));
        let key = whole_task(study, &trial.params).ok().as_ref().and_then(RivalKey::of);
        let (Some(loss), Some(key), true) = (loss, key, self.is_on && is_feasible) else {
            return None;
        };
        let place = self.best.iter().position(|best| best.key == key);
        if place.is_some_and(|at| self.best[at].rival.loss <= loss) {
            return None;
        }
        let HeldOutLosses { target_tokens, losses } = rows.clone();
        let instead_of = place.map(|at| self.best.remove(at).number);
        self.best.push(BestTraining {
            key,
            number: trial.number,
            rival: Rival { loss, rows },
        });
        Some(NewBest {
            instead_of,
            rows: HeldOutRecord { target_tokens, losses },
        })
    }
}

/// A trial that is the best of its kind, as it is stored.
#[derive(Debug)]
pub(super) struct NewBest {
    /// The trial that was the best before, whose rows are asked for no more.
    pub(super) instead_of: Option<TrialNumber>,
    pub(super) rows: HeldOutRecord,
}

/// Whether a setting whose loss is more than 1% above another's is never what the study recommends, so that how far
/// above does not matter: the loss decides alone or with the throughput before all else, and no limit and no other
/// objective asks for what a training measures.
fn decides_by_the_least_loss(problem: &Problem) -> bool {
    let objectives = &problem.objectives;
    let speed = counted_as(THROUGHPUT, objectives);
    let is_least = objectives
        .iter()
        .any(|one| one.metric == LOSS && one.direction == Direction::Minimize);
    let decides = objectives.len() == 1 || objectives.iter().any(|one| one.metric == speed);
    let others = objectives
        .iter()
        .map(|one| &one.metric)
        .filter(|metric| *metric != LOSS);
    let mut asked = others.chain(problem.constraints.iter().map(|constraint| &constraint.metric));
    is_least && decides && !asked.any(|metric| is_of_training(metric))
}

#[cfg(test)]
mod tests {
    use super::*;
    use peft_tune_core::objective::{Bound, Constraint, Objective, PEAK_MEMORY, TOKEN_ACCURACY};
    use peft_tune_core::space::SearchSpace;

    fn problem(objectives: &[&str], limits: &[&str]) -> Problem {
        let limit = |metric: &&str| Constraint {
            metric: (*metric).to_owned(),
            bound: Bound::AtMost(1.0),
        };
        Problem {
            space: SearchSpace { parameters: Vec::new() },
            objectives: objectives.iter().map(|metric| Objective::new(metric)).collect(),
            constraints: limits.iter().map(limit).collect(),
        }
    }

    #[test]
    fn losses_are_compared_where_one_percent_more_of_it_decides() {
        let decides = |objectives: &[&str], limits: &[&str]| decides_by_the_least_loss(&problem(objectives, limits));
        assert!(decides(&[THROUGHPUT, PEAK_MEMORY, LOSS], &[PEAK_MEMORY]));
        assert!(decides(&[LOSS], &[PEAK_MEMORY, THROUGHPUT]));
        // The knee may be far above the least loss.
        assert!(!decides(&[LOSS, PEAK_MEMORY], &[]));
        assert!(!decides(&[THROUGHPUT, PEAK_MEMORY], &[]));
        // What a training measures is asked for itself.
        assert!(!decides(&[THROUGHPUT, LOSS], &[LOSS]));
        assert!(!decides(&[THROUGHPUT, LOSS, TOKEN_ACCURACY], &[]));
        assert!(!decides(&[THROUGHPUT, LOSS], &["f1"]));
    }
}
