//! Trials of earlier studies that a search starts from.

use crate::cli::CliError;
use crate::cli::terminal::output::tell;
use crate::space::{Backend, Study, WarmStart};
use crate::store::{Store, StoreError, StudyId};
use peft_tune_core::objective::{EXACT_MATCH, RETAINED_LOSS_INCREASE, SERVE_MS_PER_TOKEN, is_of_target};
use peft_tune_core::space::SearchSpace;
use peft_tune_core::study::{Params, Trial};
use peft_tune_kernels::Kernels;

/// Refuses names of studies that the database does not have, before a new study begins. One that continues has taken
/// their trials, and they may be gone since.
///
/// # Errors
/// Where a name is not known, or reading fails.
pub(super) async fn check(study: &Study, store: &Store) -> Result<(), CliError> {
    let WarmStart::Named(names) = &study.warm_start else {
        return Ok(());
    };
    let known = store.studies().all().await?;
    let is_known = |name: &String| known.iter().any(|one| one.name == *name);
    if is_known(&study.name) {
        return Ok(());
    }
    match names.iter().find(|name| !is_known(name)) {
        None => Ok(()),
        Some(name) => Err(study
            .reject(
                &["warm_start"],
                format!("the database has no study `{name}`: `peft-tune studies` lists those it has"),
            )
            .into()),
    }
}

/// The trials that `study` starts from, in params of its own space; records which studies they are from. A study that
/// continues takes the same as when it began. Trials that were computed with other kernels are left out: what they cost
/// does not compare.
///
/// # Errors
/// Where the file names a study that the database does not have, or reading fails.
pub(super) async fn earlier_trials(
    study: &Study,
    store: &Store,
    id: StudyId,
    kernels: Kernels,
) -> Result<Vec<Trial>, CliError> {
    let recorded = store.warm_starts().of(id).await?;
    let sources: Vec<(String, Option<u64>)> = match &study.warm_start {
        WarmStart::Off => return Ok(Vec::new()),
        _ if !recorded.is_empty() => recorded
            .into_iter()
            .map(|(name, trials)| (name, Some(trials)))
            .collect(),
        WarmStart::Alike => {
            let names = store.warm_starts().earlier_studies(id).await?;
            names.into_iter().map(|name| (name, None)).collect()
        }
        WarmStart::Named(names) => names.iter().map(|name| (name.clone(), None)).collect(),
    };
    let mut space = study.space.clone();
    space.widen(&store.widenings().of(id).await?);
    let mut earlier = Vec::new();
    for (name, most) in sources.into_iter().filter(|(name, _)| *name != study.name) {
        let found = match store.studies().find(Some(&name)).await {
            Ok(found) => found,
            // Its trials were taken when the study began; it may be gone since.
            Err(StoreError::NoStudy { .. }) if most.is_some() => continue,
            Err(error @ StoreError::NoStudy { .. }) => {
                return Err(study.reject(&["warm_start"], error.to_string()).into());
            }
            Err(error) => return Err(error.into()),
        };
        let settings = store.definitions().settings(found.id).await?;
        let (fixed, scores_alike) = (fixed_of(&settings), scores_alike(study, &settings));
        let (retains_alike, serves_alike) = (retains_alike(study, &settings), serves_alike(study, &settings));
        let mut trials = store.history().trials(found.id).await?;
        trials.truncate(most.map_or(usize::MAX, |most| usize::try_from(most).unwrap_or(usize::MAX)));
        store.warm_starts().record(id, &name, trials.len() as u64).await?;
        let forms = store.kernel_forms().forms(found.id).await?;
        let is_of_this_form = |trial: &Trial| match forms.get(&trial.number) {
            Some(form) => form == kernels.name(),
            // A command computes as it likes, and a trial that never started says nothing of it.
            None => study.backend != Backend::Native || kernels == Kernels::default(),
        };
        let known = trials
            .into_iter()
            .filter(is_of_this_form)
            .filter_map(|trial| in_space(&space, &fixed, trial))
            .map(|trial| match found.target == study.target {
                true => trial,
                false => without_target(trial),
            })
            .map(|trial| match scores_alike {
                true => trial,
                false => without_scores(study, trial),
            })
            .map(|trial| match retains_alike {
                true => trial,
                false => without(RETAINED_LOSS_INCREASE, trial),
            })
            .map(|trial| match serves_alike {
                true => trial,
                false => without(SERVE_MS_PER_TOKEN, trial),
            });
        let known: Vec<Trial> = known.collect();
        tell(format_args!("starts from {} trials of study `{name}`", known.len()));
        earlier.extend(known);
    }
    Ok(earlier)
}

/// A trial without what is predicted of another stack than that of this study.
fn without_target(mut trial: Trial) -> Trial {
    if let Some(metrics) = trial.state.metrics_mut() {
        metrics.retain(|name| !is_of_target(name));
    }
    trial
}

/// Whether an earlier study had its models answer the same in the same way: shares of other rows do not compare.
fn scores_alike(study: &Study, earlier: &serde_json::Value) -> bool {
    let plan = study
        .plan
        .train
        .as_ref()
        .and_then(|train| train.accuracy.score.as_ref());
    serde_json::to_value(plan).is_ok_and(|plan| plan == earlier["plan"]["train"]["score"])
}

/// A trial without what this study measures of answers.
fn without_scores(study: &Study, mut trial: Trial) -> Trial {
    let plan = study
        .plan
        .train
        .as_ref()
        .and_then(|train| train.accuracy.score.as_ref());
    let printed = plan.and_then(|plan| plan.command.as_ref());
    if let Some(metrics) = trial.state.metrics_mut() {
        metrics.retain(|name| name != EXACT_MATCH && printed.is_none_or(|command| !command.metrics.contains_key(name)));
    }
    trial
}

/// Whether an earlier study evaluated the same retained rows: losses of others do not compare.
fn retains_alike(study: &Study, earlier: &serde_json::Value) -> bool {
    let data = study.base.as_ref().map(|base| serde_json::json!(base.data));
    data.is_none_or(|data| data["retain"] == earlier["base"]["data"]["retain"])
}

/// Whether an earlier study served its models under the same load: times under others do not compare.
fn serves_alike(study: &Study, earlier: &serde_json::Value) -> bool {
    let plan = study.plan.measure.as_ref().and_then(|measure| measure.serve);
    serde_json::to_value(plan).is_ok_and(|plan| plan == earlier["plan"]["measure"]["serve"])
}

/// A trial without a metric.
fn without(metric: &str, mut trial: Trial) -> Trial {
    if let Some(metrics) = trial.state.metrics_mut() {
        metrics.retain(|name| name != metric);
    }
    trial
}

/// The params that a study's file fixed; none where it says so in another form.
fn fixed_of(settings: &serde_json::Value) -> Params {
    serde_json::from_value(settings["fixed"].clone()).unwrap_or_default()
}

/// A finished trial with params of another space: what its own study fixed counts like what it sampled. `None` where the
/// space does not have them, or asks for more.
fn in_space(space: &SearchSpace, fixed: &Params, mut trial: Trial) -> Option<Trial> {
    let mut params = fixed.clone();
    params.extend(std::mem::take(&mut trial.params));
    params.retain(|name, _| space.parameters.iter().any(|parameter| parameter.name == name));
    trial.params = params;
    (trial.state.is_finished() && space.point_of(&trial.params).is_some()).then_some(trial)
}

#[cfg(test)]
mod tests {
    use super::*;
    use peft_tune_core::space::{Distribution, Parameter};
    use peft_tune_core::study::{Metrics, ParamValue, TrialNumber, TrialState};

    #[test]
    fn what_was_fixed_counts_and_what_is_not_in_the_space_does_not() {
        let parameter = |name: &str| Parameter {
            name: name.to_owned(),
            distribution: Distribution::Categorical {
                choices: (1..4i64).map(ParamValue::Int).collect(),
            },
            condition: None,
            affects: None,
            widest: None,
        };
        let space = SearchSpace {
            parameters: vec![parameter("rank"), parameter("micro_batch")],
        };
        let trial = |params: &[(&str, i64)]| Trial {
            number: TrialNumber(0),
            params: params
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).into()))
                .collect(),
            state: TrialState::Complete {
                metrics: Metrics::default(),
            },
        };
        let fixed = trial(&[("micro_batch", 2), ("global_batch", 8)]).params;
        let known = |params: &[(&str, i64)]| in_space(&space, &fixed, trial(params)).map(|trial| trial.params.len());
        assert_eq!(known(&[("rank", 1), ("schedule", 1)]), Some(2));
        assert_eq!(known(&[("rank", 9)]), None, "out of range");
        assert_eq!(known(&[("schedule", 1)]), None, "the rank is missing");
    }
}
