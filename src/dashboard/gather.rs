//! From the database to what a page is made from.

use std::collections::HashMap;

use super::commands::commands;
use crate::report::Recommendation;
use crate::report::html::{Course, Measured, PageInput, PhaseTimes, Timing};
use crate::search::{Problem, Wish, recommend};
use crate::space::SearchSpace;
use crate::store::{EvaluationRecord, StepRecord, Store, StoreError, StudyId, StudyOverview, TrialTimes};
use crate::study::{Phase, Trial, TrialNumber};

/// Reads studies, and remembers what happened inside finished trials: that does not change any more.
#[derive(Debug, Default)]
pub struct Gatherer {
    /// By study, trial and attempt.
    finished: HashMap<(StudyId, u64, u64), Course>,
}

impl Gatherer {
    /// Everything that a page may show of a study.
    ///
    /// # Errors
    /// Where reading fails.
    pub async fn gather(&mut self, store: &Store, study: &StudyOverview) -> Result<PageInput, StoreError> {
        let trials = store.trials(study.id).await?;
        let times = store.trial_times(study.id).await?;
        let front = store.front(study.id).await?;
        let inherited = store.all_inherited(study.id).await?;
        let courses = self.courses(store, study.id, &trials, &times).await?;
        let recommendation = recommended(study, &trials);
        let recipe = match &recommendation {
            Some(chosen) => store.trial(study.id, chosen.trial).await?.recipe,
            None => None,
        };
        let commands = recommendation.as_ref().filter(|_| recipe.is_some());
        Ok(PageInput {
            study: study.name.clone(),
            space: study.space_path.display().to_string(),
            model: study.model.clone(),
            sampler: study.sampler.clone(),
            seed: study.seed,
            began: study.created_at.clone(),
            resumed: study.resumed_at.clone(),
            wall_s: study.wall_s,
            objectives: study.objectives.clone(),
            constraints: study.constraints.clone(),
            timings: times.iter().map(timing).collect(),
            front,
            inherited,
            courses,
            commands: commands
                .map(|chosen| commands_of(store, study, chosen.trial))
                .unwrap_or_default(),
            recipe: recipe.and_then(|recipe| serde_saphyr::to_string(&recipe).ok()),
            recommendation,
            trials,
            ..PageInput::default()
        })
    }

    async fn courses(
        &mut self,
        store: &Store,
        study: StudyId,
        trials: &[Trial],
        times: &[TrialTimes],
    ) -> Result<Vec<Course>, StoreError> {
        let mut courses = Vec::new();
        for (trial, times) in trials.iter().zip(times) {
            let key = (study, trial.number.0, times.attempt);
            if let Some(known) = self.finished.get(&key) {
                courses.push(known.clone());
                continue;
            }
            let course = course(store, study, trial.number).await?;
            if trial.state.is_finished() {
                self.finished.insert(key, course.clone());
            }
            courses.push(course);
        }
        courses.retain(|course| !course.curves.is_empty() || !course.phases.is_empty());
        Ok(courses)
    }
}

fn commands_of(store: &Store, study: &StudyOverview, trial: TrialNumber) -> Vec<crate::report::html::Command> {
    commands(store.path(), &study.name, trial)
}

fn recommended(study: &StudyOverview, trials: &[Trial]) -> Option<Recommendation> {
    let problem = Problem {
        space: SearchSpace::default(),
        objectives: study.objectives.clone(),
        constraints: study.constraints.clone(),
    };
    // That nothing can be recommended yet is seen on the page: the front is empty.
    let chosen = recommend(&problem, trials, &Wish::default()).ok()?;
    Some(Recommendation {
        trial: chosen.trial.number,
        reason: chosen.reason,
    })
}

fn timing(times: &TrialTimes) -> Timing {
    Timing {
        number: times.number.0,
        ended_at: times.ended_at.clone().unwrap_or_default(),
        wall_s: times.wall_s.unwrap_or(0.0),
    }
}

async fn course(store: &Store, study: StudyId, number: TrialNumber) -> Result<Course, StoreError> {
    let profile = store.steps(study, number, Phase::Profile).await?;
    let train = store.steps(study, number, Phase::Train).await?;
    let evaluations = store.evaluations_of(study, number).await?;
    let curves = [training_curve(&train), held_out_curve(&evaluations)];
    let phases = [(Phase::Profile, &profile), (Phase::Train, &train)];
    Ok(Course {
        number: number.0,
        curves: curves.into_iter().filter(|curve| !curve.points.is_empty()).collect(),
        phases: phases
            .into_iter()
            .filter(|(_, steps)| !steps.is_empty())
            .map(|(phase, steps)| phase_times(phase, steps))
            .collect(),
    })
}

/// Training loss over tokens.
pub(super) fn training_curve(steps: &[StepRecord]) -> Measured {
    let mut tokens = 0;
    let point = |step: &StepRecord| {
        tokens += step.tokens;
        (tokens as f64, step.loss)
    };
    Measured {
        name: "training loss".to_owned(),
        over: "tokens",
        points: steps.iter().map(point).filter(|(_, loss)| loss.is_finite()).collect(),
    }
}

fn held_out_curve(evaluations: &[EvaluationRecord]) -> Measured {
    let points = evaluations.iter().map(|one| (one.tokens as f64, one.loss));
    Measured {
        name: "held-out loss".to_owned(),
        over: "tokens",
        points: points.filter(|(_, loss)| loss.is_finite()).collect(),
    }
}

fn phase_times(phase: Phase, steps: &[StepRecord]) -> PhaseTimes {
    let sum = |part: fn(&StepRecord) -> f64| steps.iter().map(part).filter(|seconds| seconds.is_finite()).sum();
    PhaseTimes {
        phase,
        steps: steps.len() as u64,
        data_s: sum(|step| step.data_s),
        forward_s: sum(|step| step.forward_s),
        backward_s: sum(|step| step.backward_s),
        optimizer_s: sum(|step| step.optimizer_s),
        total_s: sum(|step| step.total_s),
    }
}
