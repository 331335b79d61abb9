//! Trials that each wish takes, and what is said of them.

use super::*;
use crate::fixtures::{out_of_memory, trial};
use peft_tune_core::objective::{
    FULL_TOKENS, LONGER_TOKENS, LOSS_BEFORE, LOSS_LONGER, PEAK_MEMORY, THROUGHPUT, TRAIN_TOKENS,
};
use peft_tune_core::space::SearchSpace;
use peft_tune_core::study::{ParamValue, Params, TrialState};

const GIB: f64 = 1024.0 * 1024.0 * 1024.0;

/// A study of settings, of which some trainings were made longer: precision, rate, throughput, loss, loss after ten times
/// the tokens.
fn lengths(rows: &[(&str, f64, f64, f64, Option<f64>)]) -> (Problem, Vec<Trial>) {
    let plain: Vec<(f64, f64, f64)> = rows.iter().map(|row| (row.2, GIB / row.2, row.3)).collect();
    let (mut problem, mut history) = study(&plain);
    problem.objectives.remove(1);
    for (trial, (precision, rate, _, _, longer)) in history.iter_mut().zip(rows) {
        trial.params.insert("precision", ParamValue::from(*precision));
        trial.params.insert("learning_rate", ParamValue::Float(*rate));
        if let TrialState::Complete { metrics } = &mut trial.state {
            metrics.insert(TRAIN_TOKENS, 8e4);
            if let Some(loss) = longer {
                metrics.insert(LONGER_TOKENS, 8e5);
                metrics.insert(LOSS_LONGER, *loss);
            }
        }
    }
    (problem, history)
}

const RATES: [(&str, f64, f64, f64, Option<f64>); 5] = [
    ("bf16", 8e-3, 900.0, 2.02, None),
    ("bf16", 4e-3, 910.0, 2.0, Some(1.5)),
    ("bf16", 2e-3, 890.0, 2.04, Some(1.4)),
    ("bf16", 1e-3, 880.0, 2.12, None),
    ("bf16", 5e-4, 900.0, 2.25, None),
];

#[test]
fn the_loss_expected_at_the_full_length_goes_before_that_of_short_trainings() {
    let (problem, history) = lengths(&RATES);
    let chosen = |history: &[Trial]| recommend(&problem, history, &Preference::default()).map(|one| one.trial.number.0);
    assert_eq!(chosen(&history), Ok(2));
    let reason = recommend(&problem, &history, &Preference::default()).unwrap().reason;
    assert!(
        reason.starts_with("trial 2 has the best throughput with loss at most 1.4")
            && reason.contains(" nats at 800,000 tokens, by 2 trainings made longer: throughput 890.0 tokens/s (2.2% below the best without that limit), loss 1.4")
            && reason.contains("; probability that this is within 1% of the best at 800,000 tokens: "),
        "{reason}"
    );
    // One alone has nothing to be compared with, and without the tokens of a trial nothing can be said of its length.
    let mut alone = RATES;
    alone[2].4 = None;
    assert_eq!(chosen(&lengths(&alone).1), Ok(1));
    let mut unknown = history.clone();
    for trial in &mut unknown {
        if let TrialState::Complete { metrics } = &mut trial.state {
            metrics.retain(|name| name != TRAIN_TOKENS);
        }
    }
    assert_eq!(chosen(&unknown), Ok(1));
    // Who asks for the knee is not asking for the loss.
    let knee = Preference {
        rule: Rule::Knee,
        ..Default::default()
    };
    let reason = recommend(&problem, &history, &knee).unwrap().reason;
    assert!(!reason.contains("longer"), "{reason}");
}

#[test]
fn the_rate_that_is_best_at_the_full_length_is_said_where_it_is_another() {
    let (problem, mut history) = lengths(&RATES);
    let loose = Preference {
        slack: vec![(LOSS.to_owned(), 0.5)],
        ..Default::default()
    };
    let chosen = recommend(&problem, &history, &loose).unwrap();
    assert_eq!(chosen.trial.number.0, 1, "{}", chosen.reason);
    assert!(
        chosen.reason.contains("; for 800,000 tokens the rate is best about "),
        "{}",
        chosen.reason
    );
    // The length is that of the recipe, however long the longest training was.
    for trial in &mut history {
        if let TrialState::Complete { metrics } = &mut trial.state {
            metrics.insert(FULL_TOKENS, 1e6);
        }
    }
    let reason = recommend(&problem, &history, &loose).unwrap().reason;
    assert!(
        reason.contains(" at 1,000,000 tokens, by 2 trainings made longer: "),
        "{reason}"
    );
}

#[test]
fn what_diverged_in_a_longer_training_is_not_taken_where_there_is_another() {
    // One longer training alone: it counts as ended at twice its loss.
    let mut rows = RATES;
    rows[1].4 = Some(4.0);
    rows[2].4 = None;
    let (problem, mut history) = lengths(&rows);
    let of = |history: &[Trial], preference: &Preference| {
        let chosen = recommend(&problem, history, preference).unwrap();
        (chosen.trial.number.0, chosen.reason)
    };
    let (number, reason) = of(&history, &Preference::default());
    assert_eq!(number, 0, "{reason}");
    assert!(
        reason.ends_with("; left out as the longer training diverged: trial 1"),
        "{reason}"
    );
    let fastest = Preference {
        limits: vec![Constraint {
            metric: THROUGHPUT.to_owned(),
            bound: Bound::AtLeast(905.0),
        }],
        ..Default::default()
    };
    let (number, reason) = of(&history, &fastest);
    assert_eq!(number, 1, "{reason}");
    assert!(reason.ends_with("; its longer training diverged"), "{reason}");
    // With the loss before the training, twice the loss is far from what stands for one that diverged.
    for trial in &mut history {
        if let TrialState::Complete { metrics } = &mut trial.state {
            metrics.insert(LOSS_BEFORE, 3.0);
        }
    }
    assert_eq!(of(&history, &Preference::default()).0, 1);
    // All that were made longer diverged.
    rows[2].4 = Some(4.08);
    let (_, history) = lengths(&rows);
    let loose = Preference {
        slack: vec![(LOSS.to_owned(), 9.0)],
        ..Default::default()
    };
    for preference in [Preference::default(), loose] {
        let (number, reason) = of(&history, &preference);
        assert!(![1, 2].contains(&number), "{reason}");
    }
}

#[test]
fn what_is_no_evidence_of_the_full_length_can_be_chosen_all_the_same() {
    // Sixty trainings that learn better are evidence, two of them made longer.
    let rate = |index: u32| 1e-3 * 1.02f64.powf(f64::from(index));
    let mut rows: Vec<(&str, f64, f64, f64, Option<f64>)> = (0..60)
        .map(|index| ("bf16", rate(index), 900.0, 2.0 + 0.001 * f64::from(index), None))
        .collect();
    (rows[0].4, rows[10].4) = (Some(1.4), Some(1.45));
    rows.push(("nf4", 1e-3, 2000.0, 2.2, None));
    let (problem, history) = lengths(&rows);
    let chosen = recommend(&problem, &history, &Preference::default()).unwrap();
    assert_ne!(chosen.trial.number.0, 60, "{}", chosen.reason);
    assert!(
        chosen.reason.contains("(55.0% below the best without that limit)"),
        "{}",
        chosen.reason
    );
    let loose = Preference {
        slack: vec![(LOSS.to_owned(), 2.0)],
        ..Default::default()
    };
    let chosen = recommend(&problem, &history, &loose).unwrap();
    assert_eq!(chosen.trial.number.0, 60, "{}", chosen.reason);
    assert!(
        chosen.reason.contains(" by 2 trainings made longer: ")
            && chosen
                .reason
                .contains(" times its own, as it is none of the 60 trainings that are evidence"),
        "{}",
        chosen.reason
    );
    // It is expected to fare no better than the worst that is evidence.
    let counted = crate::at_full_length(&history).unwrap();
    assert_eq!(counted.len(), 61);
    let losses: Vec<f64> = counted
        .iter()
        .filter_map(|one| one.state.metrics()?.value(LOSS))
        .collect();
    let of_evidence = losses[..60].iter().copied().fold(0.0, f64::max);
    assert!(losses[60] >= of_evidence && losses[60] < 3.0 * losses[0], "{losses:?}");
}

#[test]
fn a_longer_training_speaks_for_the_same_settings_in_another_precision() {
    let mut rows = RATES.map(|row| ("fp32", row.1, 500.0, row.3, row.4)).to_vec();
    rows.push(("bf16", 2e-3, 900.0, 2.042, None));
    let (problem, history) = lengths(&rows);
    let chosen = recommend(&problem, &history, &Preference::default()).unwrap();
    assert_eq!(chosen.trial.number.0, 5, "{}", chosen.reason);
    // Where the precision shows in the loss, it does not.
    rows.pop();
    rows.push(("bf16", 2e-3, 900.0, 2.2, None));
    let (problem, history) = lengths(&rows);
    let chosen = recommend(&problem, &history, &Preference::default()).unwrap();
    assert_eq!(chosen.trial.number.0, 2, "{}", chosen.reason);
}

#[test]
fn what_changes_no_loss_is_one_training() {
    let mut rows = RATES.to_vec();
    rows.push(RATES[2]);
    let (problem, mut history) = lengths(&rows);
    for trial in &mut history {
        trial.params.insert("micro_batch", ParamValue::Int(8));
    }
    if let Some(trial) = history.last_mut() {
        trial.params.insert("micro_batch", ParamValue::Int(2));
        if let TrialState::Complete { metrics } = &mut trial.state {
            metrics.insert(THROUGHPUT, 2000.0);
            metrics.retain(|name| name != LOSS_LONGER && name != LONGER_TOKENS);
        }
    }
    let chosen = recommend(&problem, &history, &Preference::default()).unwrap();
    assert_eq!(chosen.trial.number.0, 5, "{}", chosen.reason);
}

fn study(rows: &[(f64, f64, f64)]) -> (Problem, Vec<Trial>) {
    let problem = Problem {
        space: SearchSpace::default(),
        objectives: [THROUGHPUT, PEAK_MEMORY, LOSS].map(Objective::new).into(),
        constraints: Vec::new(),
    };
    let row = |(number, (throughput, memory, loss)): (usize, &(f64, f64, f64))| {
        let metrics = [(THROUGHPUT, *throughput), (PEAK_MEMORY, *memory * GIB), (LOSS, *loss)];
        trial(
            number,
            Params::new(),
            TrialState::Complete {
                metrics: metrics.into(),
            },
        )
    };
    (problem, rows.iter().enumerate().map(row).collect())
}

fn example() -> (Problem, Vec<Trial>) {
    study(&[
        (9000.0, 20.0, 2.40),
        (8000.0, 11.0, 2.00),
        (3000.0, 6.0, 2.10),
        (2000.0, 18.0, 1.90),
        (1000.0, 19.0, 2.50),
    ])
}

fn numbers(preference: &Preference) -> (u64, String) {
    let (problem, history) = example();
    let recommendation = recommend(&problem, &history, preference).unwrap();
    (recommendation.trial.number.0, recommendation.reason)
}

fn knee() -> Preference {
    Preference {
        rule: Rule::Knee,
        ..Preference::default()
    }
}

#[test]
fn by_default_it_is_the_fastest_with_nearly_the_best_loss() {
    let (problem, history) = study(&[
        (9000.0, 20.0, 2.00),
        (5000.0, 18.0, 1.915),
        (4000.0, 6.0, 1.905),
        (2000.0, 18.0, 1.90),
        (8000.0, 9.0, 1.94),
    ]);
    let of = |preference: &Preference| recommend(&problem, &history, preference).unwrap();
    let chosen = of(&Preference::default());
    assert_eq!(chosen.trial.number.0, 1);
    assert!(
        chosen
            .reason
            .starts_with("trial 1 has the best throughput with loss at most 1.919 nats: throughput 5,000"),
        "{}",
        chosen.reason
    );
    // The best loss is that of the trials that keep a limit, and slack of one's own counts instead.
    let mut preference = Preference::default();
    preference.limits.push(Constraint {
        metric: PEAK_MEMORY.to_owned(),
        bound: Bound::AtMost(10.0 * GIB),
    });
    assert_eq!(of(&preference).trial.number.0, 2);
    preference.slack.push((LOSS.to_owned(), 0.03));
    assert_eq!(of(&preference).trial.number.0, 4);
    // Without a loss it is the knee.
    let mut costs = problem.clone();
    costs.objectives.pop();
    let chosen = recommend(&costs, &history, &Preference::default()).unwrap();
    assert!(chosen.reason.contains("the knee of"), "{}", chosen.reason);
}

#[test]
fn the_knee_is_explained_with_its_numbers() {
    let (number, reason) = numbers(&knee());
    assert_eq!(number, 1);
    assert_eq!(
        reason,
        "trial 1 is the knee of a front of 4: throughput 8,000 tokens/s (11.1% below the best), peak memory 11.00 GiB \
         (83.3% above the best), loss 2.000 nats (5.3% above the best)"
    );
}

#[test]
fn the_knee_does_not_depend_on_units() {
    let (problem, history) = example();
    let plain = recommend(&problem, &history, &knee()).unwrap().trial.number;
    let rows: Vec<(f64, f64, f64)> = example()
        .1
        .iter()
        .map(|trial| {
            let metrics = trial.state.metrics().unwrap();
            let value = |name| metrics.value(name).unwrap();
            (
                value(THROUGHPUT) / 60.0,
                value(PEAK_MEMORY) / GIB * 7.0,
                value(LOSS) + 100.0,
            )
        })
        .collect();
    let (problem, history) = study(&rows);
    assert_eq!(recommend(&problem, &history, &knee()).unwrap().trial.number, plain);
}

#[test]
fn limits_preferences_and_weights_decide() {
    let prefer = |metric: &str| Rule::Prefer(metric.to_owned());
    let memory = |gib: f64| Constraint {
        metric: PEAK_MEMORY.to_owned(),
        bound: Bound::AtMost(gib * GIB),
    };
    let preference =
        |rule: Rule, limits: Vec<Constraint>, slack: Vec<(String, f64)>| Preference { rule, limits, slack };
    assert_eq!(numbers(&preference(prefer(THROUGHPUT), vec![], vec![])).0, 0);
    let (number, reason) = numbers(&preference(prefer(THROUGHPUT), vec![memory(10.0)], vec![]));
    assert_eq!(number, 2);
    assert!(
        reason.starts_with("trial 2 has the best throughput with peak_memory at most 10.00 GiB: throughput 3,000"),
        "{reason}"
    );
    assert_eq!(
        numbers(&preference(prefer(THROUGHPUT), vec![], vec![(LOSS.to_owned(), 0.01)])).0,
        3
    );
    assert_eq!(
        numbers(&preference(prefer(THROUGHPUT), vec![], vec![(LOSS.to_owned(), 0.06)])).0,
        1
    );
    let weights = Rule::Weights(vec![(PEAK_MEMORY.to_owned(), 1.0)]);
    assert_eq!(numbers(&preference(weights, vec![], vec![])).0, 2);
}

#[test]
fn what_must_give_is_said() {
    let (problem, mut history) = example();
    let mut preference = Preference::default();
    preference.limits.push(Constraint {
        metric: PEAK_MEMORY.to_owned(),
        bound: Bound::AtMost(4.0 * GIB),
    });
    assert_eq!(
        recommend(&problem, &history, &preference).unwrap_err().to_string(),
        "no complete trial has peak_memory at most 4.000 GiB: the closest is trial 2 with 6.000 GiB; relax that limit"
    );
    preference.limits[0].bound = Bound::AtMost(7.0 * GIB);
    preference.slack.push((LOSS.to_owned(), 0.01));
    let conflict = recommend(&problem, &history, &preference).unwrap_err().to_string();
    assert!(
        conflict.contains("peak_memory at most 7.000 GiB and loss at most 1.919 nats"),
        "{conflict}"
    );
    let unknown = Preference {
        rule: Rule::Prefer("speed".to_owned()),
        ..Preference::default()
    };
    let unknown = recommend(&problem, &history, &unknown).unwrap_err().to_string();
    assert!(
        unknown.contains("use one of throughput, peak_memory, loss"),
        "{unknown}"
    );
    history.clear();
    history.push(trial(0, Params::new(), out_of_memory()));
    assert_eq!(
        recommend(&problem, &history, &Preference::default()),
        Err(RecommendError::NothingComplete)
    );
}

#[test]
fn the_knee_is_one_that_learns_nearly_as_much_as_the_best() {
    let (problem, mut history) = example();
    for trial in &mut history {
        if let TrialState::Complete { metrics } = &mut trial.state {
            metrics.insert(LOSS_BEFORE, 3.0);
        }
    }
    // The best one gains 1.1 nats: 0.055 less is allowed, and only its own loss is that low.
    let alone = recommend(&problem, &history, &knee()).unwrap();
    assert_eq!(alone.trial.number.0, 3);
    assert!(
        alone.reason.starts_with(
            "trial 3 is the only one on the front whose loss fell at least 95% as far as the best one's: throughput 2,000"
        ),
        "{}",
        alone.reason
    );
    // Within a limit on memory the best that keeps it counts, and slack of one's own counts instead.
    let mut preference = knee();
    preference.limits.push(Constraint {
        metric: PEAK_MEMORY.to_owned(),
        bound: Bound::AtMost(12.0 * GIB),
    });
    let within = recommend(&problem, &history, &preference).unwrap();
    assert_eq!(within.trial.number.0, 1);
    assert!(
        within
            .reason
            .contains("as far as the best one's with peak_memory at most 12.00 GiB:"),
        "{}",
        within.reason
    );
    preference.slack.push((LOSS.to_owned(), 0.5));
    assert!(
        recommend(&problem, &history, &preference)
            .unwrap()
            .reason
            .contains("the knee of a front of 2 with")
    );
    // A training that taught nothing asks nothing.
    for trial in &mut history {
        if let TrialState::Complete { metrics } = &mut trial.state {
            metrics.insert(LOSS_BEFORE, 1.0);
        }
    }
    assert_eq!(recommend(&problem, &history, &knee()).unwrap().trial.number.0, 1);
}

#[test]
fn one_point_and_a_hollow_front_have_an_answer() {
    let (problem, history) = study(&[(10.0, 1.0, 1.0)]);
    let alone = recommend(&problem, &history, &knee()).unwrap();
    assert!(alone.reason.contains("better than or equal"), "{}", alone.reason);
    // All between the extremes lie above the plane: the most balanced one is taken.
    let (problem, history) = study(&[(10.0, 1.0, 5.0), (10.0, 4.0, 4.0), (10.0, 5.0, 1.0)]);
    assert_eq!(recommend(&problem, &history, &knee()).unwrap().trial.number.0, 0);
}
