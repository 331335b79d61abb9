//! `pareto_front`, in the database and in the program, against the definition, pair by pair.

use std::cell::Cell;

use peft_tune::store::Store;
use peft_tune_core::objective::{Bound, Constraint, Direction, Objective};
use peft_tune_core::study::{Confirmed, Metrics, Params, TrialNumber, TrialState};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use super::{front_in_view, recipe, study_record};

/// The objectives of a study, and for each of its trials their values (`None`: not measured).
#[derive(Clone, Debug)]
struct Case {
    directions: Vec<Direction>,
    at_most: Option<f64>,
    trials: Vec<Vec<Option<f64>>>,
    /// Repeats of a trial: what they say of its first objective, and how many there were.
    repeated: Vec<(usize, f64, u64)>,
}

fn case() -> impl Strategy<Value = Case> {
    // Few different values give ties and equal trials; wide ones must not overflow the scaling.
    let value = prop_oneof![
        6 => (0..6i32).prop_map(f64::from),
        2 => prop::num::f64::NORMAL,
        1 => prop::sample::select(vec![f64::MAX, f64::MIN, f64::MIN_POSITIVE, 5e-324, 0.0, -0.0]),
    ];
    let value = prop::option::weighted(0.95, value);
    (1..=6usize).prop_flat_map(move |count| {
        (
            prop::collection::vec(
                prop::sample::select(vec![Direction::Minimize, Direction::Maximize]),
                count,
            ),
            prop::option::weighted(0.3, 0.0..6.0),
            prop::collection::vec(prop::collection::vec(value.clone(), count), 0..40),
            prop::collection::vec((0..40usize, (0..6i32).prop_map(f64::from), 1..4u64), 0..8),
        )
            .prop_map(|(directions, at_most, trials, repeated)| Case {
                directions,
                at_most,
                repeated: repeated.into_iter().filter(|one| one.0 < trials.len()).collect(),
                trials,
            })
    })
}

impl Case {
    fn objectives(&self) -> Vec<Objective> {
        self.directions
            .iter()
            .enumerate()
            .map(|(index, direction)| Objective {
                direction: *direction,
                ..Objective::new(&format!("m{index}"))
            })
            .collect()
    }

    fn constraints(&self) -> Vec<Constraint> {
        self.at_most
            .map(|limit| Constraint {
                metric: "m0".into(),
                bound: Bound::AtMost(limit),
            })
            .into_iter()
            .collect()
    }

    /// The trials as they count: two repeats or more go before what was measured once; what was not measured stays unknown.
    fn counted(&self) -> Vec<Vec<Option<f64>>> {
        let mut trials = self.trials.clone();
        for (index, value, repeats) in &self.repeated {
            let first = &mut trials[*index][0];
            // The last one recorded is the one that is kept.
            let last = self.repeated.iter().rev().find(|one| one.0 == *index);
            if *repeats > 1 && last.is_some_and(|last| (last.1, last.2) == (*value, *repeats)) {
                *first = first.map(|_| *value);
            }
        }
        trials
    }

    /// The front by its definition.
    fn front(&self) -> Vec<TrialNumber> {
        let objectives = self.objectives();
        let trials = self.counted();
        let points: Vec<(u64, Vec<f64>)> = (0..)
            .zip(&trials)
            .filter(|(_, values)| values.iter().all(Option::is_some))
            .filter(|(_, values)| self.at_most.is_none_or(|limit| values[0].unwrap() <= limit))
            .map(|(number, values)| {
                let minimised = objectives
                    .iter()
                    .zip(values)
                    .map(|(objective, value)| objective.minimised(value.unwrap()));
                (number, minimised.collect())
            })
            .collect();
        let dominates =
            |b: &Vec<f64>, a: &Vec<f64>| b.iter().zip(a).all(|(b, a)| b <= a) && b.iter().zip(a).any(|(b, a)| b < a);
        points
            .iter()
            .filter(|(_, point)| !points.iter().any(|(_, other)| dominates(other, point)))
            .map(|(number, _)| TrialNumber(*number))
            .collect()
    }
}

#[test]
fn the_view_is_the_front_by_definition() {
    let folder = crate::folders::for_database();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let store = runtime.block_on(Store::open(&folder.path().join("a.db"))).unwrap();
    let count = Cell::new(0);
    TestRunner::new(ProptestConfig::with_cases(60))
        .run(&case(), |case| {
            count.set(count.get() + 1);
            let mut record = study_record(&format!("study {}", count.get()));
            record.objectives = case.objectives();
            record.constraints = case.constraints();
            let found = runtime.block_on(async {
                let study = store.studies().begin(&record).await.unwrap();
                for (number, values) in (0..).map(TrialNumber).zip(&case.trials) {
                    let mut metrics = Metrics::default();
                    for (index, value) in values.iter().enumerate() {
                        value.map(|value| metrics.insert(format!("m{index}"), value));
                    }
                    store
                        .trials()
                        .start(study.id, number, &Params::new(), Some(&recipe()))
                        .await
                        .unwrap();
                    let state = TrialState::Complete { metrics };
                    store.trials().finish(study.id, number, &state, 1.0).await.unwrap();
                }
                for (index, value, repeats) in &case.repeated {
                    let confirmed = Confirmed {
                        value: *value,
                        interval: 0.01,
                        repeats: *repeats,
                    };
                    let number = TrialNumber(*index as u64);
                    let all = [(number, [("m0".to_owned(), confirmed)].into())].into();
                    store
                        .repeats()
                        .record(study.id, number, *repeats, &[("m0", *value)].into(), &all)
                        .await
                        .unwrap();
                }
                let overview = store.studies().find(Some(&record.name)).await.unwrap();
                let (trials, _) = store.history().confirmed_trials(study.id).await.unwrap();
                (front_in_view(&store, &record.name).await, overview.front(&trials))
            });
            prop_assert_eq!(&found.0, &case.front());
            prop_assert_eq!(&found.0, &found.1);
            Ok(())
        })
        .unwrap();
}
