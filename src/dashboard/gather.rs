//! Gathering what a page is made from in the database.

use std::collections::{BTreeMap, HashMap};

use super::commands::commands;
use crate::report::html::{
    Confirmation, Finding, ImportanceShare, ImportanceView, MeasuredCurve, MemoryParts, PageInput, PhaseTimes,
    Prediction, TrialCurves,
};
use crate::report::{Recommendation, against_baseline, gains, with_found_length, with_length};
use crate::store::{EvaluationRecord, StepRecord, Store, StoreError, StudyId, StudyOverview, TrialFinding, TrialTimes};
use peft_tune_core::objective::Objective;
use peft_tune_core::study::{Confirmations, Confirmed, Curve, Phase, Trial, TrialNumber, TrialState, with_confirmed};
use peft_tune_search::{Importance, Insight, Preference, Share, recommend};

/// Reads studies, and remembers what happened inside finished trials: that does not change any more.
#[derive(Debug, Default)]
pub struct Gatherer {
    /// Name and beginning of each study: the number of one that was deleted may be given to another.
    studies: HashMap<StudyId, (String, String)>,
    /// Curves of finished trials, by study, trial and attempt.
    finished: HashMap<(StudyId, u64, u64), TrialCurves>,
    /// What decides in each study, and from how many measured trials that is known.
    importance: HashMap<StudyId, (usize, Vec<ImportanceView>)>,
}

/// Share by which the measured trials of a study must grow before what decides is worked out again.
const IMPORTANCE_GROWTH: f64 = 0.2;
/// Trials from which it is worked out, the latest ones: the surrogates' cost grows with the cube of them.
const IMPORTANCE_TRIALS: usize = 150;

impl Gatherer {
    /// Everything that a page may show of a study.
    pub async fn gather(&mut self, store: &Store, study: &StudyOverview) -> Result<PageInput, StoreError> {
        self.forget_deleted(study);
        let measured = store.history().trials(study.id).await?;
        let confirmed = store.repeats().confirmations(study.id).await?;
        let trials = with_confirmed(&measured, &confirmed);
        let times = store.history().times(study.id).await?;
        let front = study.front(&trials);
        let inherited = store.inheritance().all(study.id).await?;
        let mut trial_curves = self.trial_curves(store, study.id, &trials, &times).await?;
        add_reports(
            &mut trial_curves,
            &store.reports().curves(study.id).await?,
            &study.objectives,
        );
        let recommendation = recommended(study, &trials);
        let recipe = match &recommendation {
            Some(chosen) => {
                let recipe = store.trial_details().of(study.id, chosen.trial).await?.recipe;
                recipe.map(|recipe| with_found_length(recipe, &trials))
            }
            None => None,
        };
        let baseline = store.baselines().of(study.id).await?;
        let pair = pair(&trials, recommendation.as_ref(), baseline);
        let commands = recommendation.as_ref().filter(|_| recipe.is_some());
        Ok(PageInput {
            study: study.name.clone(),
            space: study.space_path.display().to_string(),
            model: study.model.clone(),
            learnt: study.learnt.clone(),
            target: study.target,
            sampler: study.sampler.clone(),
            seed: study.seed,
            began: study.created_at.clone(),
            resumed: study.resumed_at.clone(),
            wall_s: study.wall_s,
            objectives: study.objectives.clone(),
            constraints: study.constraints.clone(),
            trial_wall_s: times.iter().filter_map(|one| Some((one.number, one.wall_s?))).collect(),
            front,
            inherited,
            trial_curves,
            confirmation: recommendation
                .as_ref()
                .map(|chosen| confirmation(chosen.trial, &measured, &confirmed))
                .unwrap_or_default(),
            commands: commands
                .map(|chosen| commands_of(store, study, chosen.trial))
                .unwrap_or_default(),
            recipe: recipe.and_then(|recipe| serde_saphyr::to_string(&recipe).ok()),
            against_baseline: pair
                .map(|(recommended, baseline)| against_baseline(&study.objectives, recommended, baseline, &confirmed)),
            gains: pair
                .map(|(recommended, baseline)| gains(&study.objectives, recommended, baseline, &confirmed))
                .unwrap_or_default(),
            baseline,
            recommendation,
            importance: self.importance(store, study, &trials).await?,
            // A page that is made again and again answers what is cheap to answer.
            answers: None,
            costs: None,
            scaling: Vec::new(),
            predictions: predictions(store, study.id).await?,
            memory: memory(store, study.id).await?,
            findings: store
                .profiles()
                .findings(study.id)
                .await?
                .into_iter()
                .map(finding)
                .collect(),
            trials,
            confirmed,
        })
    }

    /// Forgets what is known of an earlier study with this one's number.
    fn forget_deleted(&mut self, study: &StudyOverview) {
        let known_as = (study.name.clone(), study.created_at.clone());
        if self.studies.get(&study.id) != Some(&known_as) {
            self.finished.retain(|(of, ..), _| *of != study.id);
            self.importance.remove(&study.id);
            self.studies.insert(study.id, known_as);
        }
    }

    /// What decides, from the trials so far; nothing where the study's space cannot be read.
    async fn importance(
        &mut self,
        store: &Store,
        study: &StudyOverview,
        trials: &[Trial],
    ) -> Result<Vec<ImportanceView>, StoreError> {
        let measured: Vec<Trial> = trials
            .iter()
            .filter(|trial| matches!(trial.state, TrialState::Complete { .. }))
            .cloned()
            .collect();
        if let Some((known, importance)) = self.importance.get(&study.id)
            && (measured.len() as f64) < *known as f64 * (1.0 + IMPORTANCE_GROWTH)
            && measured.len() >= *known
        {
            return Ok(importance.clone());
        }
        let Some(space) = store.definitions().search_space(study.id).await? else {
            return Ok(Vec::new());
        };
        let problem = study.problem(Some(space));
        let history = measured[measured.len().saturating_sub(IMPORTANCE_TRIALS)..].to_vec();
        // Arithmetic of up to seconds, which would hold up all other answers of this thread.
        let found = tokio::task::spawn_blocking(move || Insight::new(&problem, &history, None).importance()).await;
        let importance: Vec<ImportanceView> = found.unwrap_or_default().into_iter().map(importance_view).collect();
        self.importance.insert(study.id, (measured.len(), importance.clone()));
        Ok(importance)
    }

    async fn trial_curves(
        &mut self,
        store: &Store,
        study: StudyId,
        trials: &[Trial],
        times: &[TrialTimes],
    ) -> Result<Vec<TrialCurves>, StoreError> {
        let mut trial_curves = Vec::new();
        for (trial, times) in trials.iter().zip(times) {
            let key = (study, trial.number.0, times.attempt);
            if let Some(known) = self.finished.get(&key) {
                trial_curves.push(known.clone());
                continue;
            }
            let one = one(store, study, trial.number).await?;
            if trial.state.is_finished() {
                self.finished.insert(key, one.clone());
            }
            trial_curves.push(one);
        }
        trial_curves.retain(|one| !one.curves.is_empty() || !one.phases.is_empty());
        Ok(trial_curves)
    }
}

/// What decides, as a page shows it.
pub fn importance_view(importance: Importance) -> ImportanceView {
    let share = |share: Share| ImportanceShare {
        param: share.parameter,
        first: share.first,
        total: share.total,
    };
    ImportanceView {
        metric: importance.metric,
        shares: importance.shares.into_iter().map(share).collect(),
    }
}

async fn predictions(store: &Store, study: StudyId) -> Result<Vec<Prediction>, StoreError> {
    let all = store.predictions().all(study).await?.into_iter();
    let one = |(number, metric, value)| Prediction { number, metric, value };
    Ok(all.map(one).collect())
}

/// What each trial's memory was predicted to consist of.
async fn memory(store: &Store, study: StudyId) -> Result<Vec<MemoryParts>, StoreError> {
    let mut memory: Vec<MemoryParts> = Vec::new();
    for (trial, part, bytes) in store.predictions().parts(study).await? {
        if memory.last().is_none_or(|last| last.number != trial.0) {
            memory.push(MemoryParts {
                number: trial.0,
                parts: Vec::new(),
            });
        }
        if let Some(last) = memory.last_mut() {
            last.parts.push((part.replace('_', " "), bytes as f64));
        }
    }
    Ok(memory)
}

fn finding(finding: TrialFinding) -> Finding {
    Finding {
        trial: finding.trial.0,
        rule: finding.rule.replace('_', " "),
        evidence: finding.evidence,
        change: finding.change,
        metric: finding.metric,
        predicted_gain: finding.predicted_gain,
        measured_gain: finding.measured_gain,
    }
}

fn commands_of(store: &Store, study: &StudyOverview, trial: TrialNumber) -> Vec<crate::report::html::Command> {
    commands(store.path(), &study.name, trial)
}

/// What repeats of a trial gave, beside what the search measured.
fn confirmation(trial: TrialNumber, measured: &[Trial], confirmed: &Confirmations) -> Vec<Confirmation> {
    let searched = measured
        .iter()
        .find(|one| one.number == trial)
        .and_then(|one| one.state.metrics());
    let (Some(searched), Some(values)) = (searched, confirmed.get(&trial)) else {
        return Vec::new();
    };
    let one = |(metric, one): (&String, &Confirmed)| {
        let half = one.value.abs() * one.interval;
        Some(Confirmation {
            metric: metric.clone(),
            searched: searched.value(metric)?,
            confirmed: one.value,
            low: one.value - half,
            high: one.value + half,
        })
    };
    values.iter().filter_map(one).collect()
}

/// Adds what programs of the user reported on their way; the native engine's evaluations are there already.
fn add_reports(trial_curves: &mut Vec<TrialCurves>, reported: &BTreeMap<TrialNumber, Curve>, objectives: &[Objective]) {
    for (number, curve) in reported {
        let known = trial_curves.iter().position(|one| one.number == number.0);
        if known.is_some_and(|index| !trial_curves[index].curves.is_empty()) {
            continue;
        }
        let reported = objectives.iter().map(|objective| MeasuredCurve {
            name: objective.metric.clone(),
            over: "steps",
            points: curve
                .of(&objective.metric)
                .into_iter()
                .map(|(step, value)| (step as f64, value))
                .collect(),
        });
        let curves: Vec<MeasuredCurve> = reported.filter(|one| !one.points.is_empty()).collect();
        match known {
            Some(index) => trial_curves[index].curves = curves,
            None => trial_curves.push(TrialCurves {
                number: number.0,
                curves,
                phases: Vec::new(),
            }),
        }
    }
}

/// The recommended trial and the study's baseline.
fn pair<'a>(
    trials: &'a [Trial],
    recommendation: Option<&Recommendation>,
    baseline: Option<TrialNumber>,
) -> Option<(&'a Trial, &'a Trial)> {
    let of = |number: TrialNumber| trials.iter().find(|trial| trial.number == number);
    Some((of(recommendation?.trial)?, of(baseline?)?))
}

fn recommended(study: &StudyOverview, trials: &[Trial]) -> Option<Recommendation> {
    let problem = study.problem(None);
    // That nothing can be recommended yet is seen on the page: the front is empty.
    let chosen = recommend(&problem, trials, &Preference::default()).ok()?;
    Some(Recommendation {
        trial: chosen.trial.number,
        reason: with_length(chosen.reason, study.finds_length, trials),
    })
}

async fn one(store: &Store, study: StudyId, number: TrialNumber) -> Result<TrialCurves, StoreError> {
    let profile = store.steps().of(study, number, Phase::Profile).await?;
    let train = store.steps().of(study, number, Phase::Train).await?;
    let evaluations = store.evaluations().of(study, number).await?;
    let curves = [training_curve(&train), held_out_curve(&evaluations)];
    let phases = [(Phase::Profile, &profile), (Phase::Train, &train)];
    Ok(TrialCurves {
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
pub(super) fn training_curve(steps: &[StepRecord]) -> MeasuredCurve {
    let mut tokens = 0;
    let point = |step: &StepRecord| {
        tokens += step.tokens;
        (tokens as f64, step.loss)
    };
    MeasuredCurve {
        name: "training loss".to_owned(),
        over: "tokens",
        points: steps.iter().map(point).filter(|(_, loss)| loss.is_finite()).collect(),
    }
}

fn held_out_curve(evaluations: &[EvaluationRecord]) -> MeasuredCurve {
    let points = evaluations.iter().map(|one| (one.tokens as f64, one.loss));
    MeasuredCurve {
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
