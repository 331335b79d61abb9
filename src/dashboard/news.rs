//! What changed between two views of a study, so that a page with a thousand trials is not sent again each second.

use std::collections::{HashMap, HashSet};

use serde::Serialize;

use crate::report::Counts;
use crate::report::html::{
    AxisView, CurveView, Finding, Growth, ImportanceView, MemoryView, ObjectiveView, PhaseView, PredictionView,
    RecommendationView, StudyHead, StudyView, TrialView,
};

/// What a page needs to go from an earlier view to a later one.
#[derive(Debug, Serialize)]
pub(super) struct News<'a> {
    /// Whether this is everything: what the page had is of no study, or of another one of the same name.
    pub whole: bool,
    pub head: Head<'a>,
    pub trials: Vec<&'a TrialView>,
    /// Trials that were started again: their earlier curves no longer count.
    pub repeated: Vec<u64>,
    pub curves: Vec<&'a CurveView>,
    pub phases: Vec<&'a PhaseView>,
    pub memory: Vec<&'a MemoryView>,
}

/// The small parts, which are sent whole.
#[derive(Debug, Serialize)]
pub(super) struct Head<'a> {
    pub study: &'a StudyHead,
    pub objectives: &'a [ObjectiveView],
    pub constraints: &'a [String],
    pub counts: &'a Counts,
    pub counts_text: &'a str,
    pub params: &'a [AxisView],
    pub metrics: &'a [String],
    pub growth: &'a Option<Growth>,
    pub importance: &'a [ImportanceView],
    pub predictions: &'a [PredictionView],
    pub recommendation: &'a Option<RecommendationView>,
    pub baseline: Option<u64>,
    pub findings: &'a [Finding],
}

impl<'a> News<'a> {
    /// What `new` has that `old` had not; everything where there is no `old`. `None` where nothing changed.
    pub(super) fn between(old: Option<&StudyView>, new: &'a StudyView) -> Option<Self> {
        if old == Some(new) {
            return None;
        }
        let old = old.filter(|old| old.study.began == new.study.began);
        let trials = old.map_or_else(HashMap::new, |old| by(&old.trials, |one| one.number));
        let curves = old.map_or_else(HashMap::new, |old| {
            by(&old.curves, |one| (one.trial, one.name.as_str()))
        });
        let phases = old.map_or_else(HashMap::new, |old| by(&old.phases, |one| one.trial));
        let memory = old.map_or_else(HashMap::new, |old| by(&old.memory, |one| one.trial));
        let present: HashSet<(u64, &str)> = new.curves.iter().map(|one| (one.trial, one.name.as_str())).collect();
        let mut repeated: Vec<u64> = curves
            .keys()
            .filter(|key| !present.contains(*key))
            .map(|(trial, _)| *trial)
            .collect();
        repeated.sort_unstable();
        repeated.dedup();
        let again = |trial: u64| repeated.binary_search(&trial).is_ok();
        Some(Self {
            whole: old.is_none(),
            head: Head::of(new),
            trials: new
                .trials
                .iter()
                .filter(|one| trials.get(&one.number) != Some(one))
                .collect(),
            curves: new
                .curves
                .iter()
                .filter(|one| again(one.trial) || curves.get(&(one.trial, one.name.as_str())) != Some(one))
                .collect(),
            phases: new
                .phases
                .iter()
                .filter(|one| phases.get(&one.trial) != Some(one))
                .collect(),
            memory: new
                .memory
                .iter()
                .filter(|one| memory.get(&one.trial) != Some(one))
                .collect(),
            repeated,
        })
    }
}

impl<'a> Head<'a> {
    fn of(view: &'a StudyView) -> Self {
        Self {
            study: &view.study,
            objectives: &view.objectives,
            constraints: &view.constraints,
            counts: &view.counts,
            counts_text: &view.counts_text,
            params: &view.params,
            metrics: &view.metrics,
            growth: &view.growth,
            importance: &view.importance,
            predictions: &view.predictions,
            recommendation: &view.recommendation,
            baseline: view.baseline,
            findings: &view.findings,
        }
    }
}

fn by<'a, K: std::hash::Hash + Eq, V>(values: &'a [V], key: impl Fn(&'a V) -> K) -> HashMap<K, &'a V> {
    values.iter().map(|value| (key(value), value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::html::{MeasuredCurve, PageInput, TrialCurves};
    use peft_tune_core::objective::{LOSS, Objective};
    use peft_tune_core::study::{Trial, TrialNumber, TrialState};

    fn view(count: u64, points: usize) -> StudyView {
        let trials = (0..count).map(|number| Trial {
            number: TrialNumber(number),
            params: Default::default(),
            state: TrialState::Complete {
                metrics: [(LOSS, number as f64)].into(),
            },
        });
        let curve = MeasuredCurve {
            name: "training loss".into(),
            over: "tokens",
            points: (0..points).map(|x| (x as f64, 1.0)).collect(),
        };
        StudyView::new(&PageInput {
            objectives: vec![Objective::new(LOSS)],
            trials: trials.collect(),
            trial_curves: vec![TrialCurves {
                number: 0,
                curves: vec![curve],
                phases: Vec::new(),
            }],
            ..PageInput::default()
        })
    }

    #[test]
    fn only_what_changed_is_sent() {
        let (old, new) = (view(3, 2), view(4, 2));
        assert!(News::between(Some(&old), &old).is_none());
        let news = News::between(Some(&old), &new).unwrap();
        assert_eq!(news.trials.iter().map(|one| one.number).collect::<Vec<_>>(), [3]);
        assert!(news.curves.is_empty() && news.repeated.is_empty());
        assert!(!news.whole);
        let whole = News::between(None, &new).unwrap();
        assert_eq!((whole.whole, whole.trials.len()), (true, 4));
    }

    #[test]
    fn a_study_that_took_another_one_s_name_is_sent_whole() {
        let (old, mut new) = (view(3, 2), view(3, 2));
        new.study.began = "2026-01-02T03:04:05".to_owned();
        let news = News::between(Some(&old), &new).unwrap();
        assert_eq!((news.whole, news.trials.len(), news.curves.len()), (true, 3, 1));
        assert!(news.repeated.is_empty());
    }

    #[test]
    fn curves_of_a_repeated_trial_go() {
        let (old, new) = (view(1, 2), view(1, 0));
        let news = News::between(Some(&old), &new).unwrap();
        assert_eq!(news.repeated, [0]);
    }
}
