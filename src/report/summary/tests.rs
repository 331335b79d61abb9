//! Summaries as text and JSON.

use super::*;
use crate::report::TrainingCost;
use peft_tune_core::objective::{LOSS, PEAK_MEMORY, THROUGHPUT};
use peft_tune_core::predict::DevicePrice;
use peft_tune_core::study::{FailReason, TrialState};
use peft_tune_core::study::{Metrics, ParamValue, Params};

fn complete(number: u64, params: &[(&str, ParamValue)], metrics: [(&str, f64); 3]) -> Trial {
    Trial {
        number: TrialNumber(number),
        params: params
            .iter()
            .map(|(name, value)| ((*name).to_owned(), value.clone()))
            .collect(),
        state: TrialState::Complete {
            metrics: metrics.into(),
        },
    }
}

fn sample() -> (Vec<Objective>, Vec<Trial>) {
    let gib = 1073741824.0;
    let objectives = [THROUGHPUT, PEAK_MEMORY, LOSS].map(Objective::new).to_vec();
    let trials = vec![
        complete(
            0,
            &[
                ("rank", 8i64.into()),
                ("learning_rate", 2e-4.into()),
                ("optimizer", "adamw".into()),
            ],
            [(THROUGHPUT, 5120.4), (PEAK_MEMORY, 1.5 * gib), (LOSS, 2.12345)],
        ),
        complete(
            1,
            &[
                ("rank", 64i64.into()),
                ("learning_rate", 3.4567891e-5.into()),
                ("optimizer", "adamw".into()),
            ],
            [(THROUGHPUT, 12800.0), (PEAK_MEMORY, 2.25 * gib), (LOSS, 2.0)],
        ),
        Trial {
            number: TrialNumber(2),
            params: Params::new(),
            state: TrialState::Failed {
                reason: FailReason::Invalid {
                    message: "rank".to_owned(),
                },
                metrics: Metrics::default(),
            },
        },
    ];
    (objectives, trials)
}

fn summary() -> Summary {
    let (objectives, trials) = sample();
    Summary::new(SummaryInput {
        study: "quickstart",
        objectives: &objectives,
        trials: &trials,
        front: &[TrialNumber(0), TrialNumber(1)],
        recommendation: Some(&Recommendation {
            trial: TrialNumber(1),
            reason: "trial 1 is the knee of the front".to_owned(),
        }),
        wall_s: 161.0,
    })
}

#[test]
fn text_shows_counts_front_and_recommendation() {
    insta::assert_snapshot!(summary().to_text(None), @"
    study quickstart: 3 trials: 2 complete, 1 failed (invalid), 2m 41s

    Pareto front of throughput (max), peak memory (min), loss (min): 2 trials

     trial | tokens/s | peak memory |   loss | learning_rate | rank
    -------+----------+-------------+--------+---------------+------
       * 1 |   12,800 |    2.25 GiB | 2.0000 |      3.457e-5 |   64
         0 |    5,120 |    1.50 GiB | 2.1235 |          2e-4 |    8

    the same in all: optimizer adamw

    * recommended: trial 1 is the knee of the front
    ");
}

#[test]
fn a_long_front_is_shown_in_part() {
    let mut summary = summary();
    summary.recommendation = None;
    let text = summary.showing([TrialNumber(0)]).to_text(None);
    assert!(text.contains("loss (min): 2 trials, of which 1 are shown\n"), "{text}");
    assert!(
        text.ends_with("\nthe whole front: `peft-tune pareto quickstart`\n"),
        "{text}"
    );
    assert!(!text.contains("12,800"), "{text}");
}

#[test]
fn a_very_narrow_terminal_gets_one_block_a_trial() {
    insta::assert_snapshot!(summary().to_text(Some(15)), @"
    study quickstart: 3 trials: 2 complete, 1 failed (invalid), 2m 41s

    Pareto front of throughput (max), peak memory (min), loss (min): 2 trials

    trial          * 1
    tokens/s       12,800
    peak memory    2.25 GiB
    loss           2.0000
    learning_rate  3.457e-5
    rank           64

    trial          0
    tokens/s       5,120
    peak memory    1.50 GiB
    loss           2.1235
    learning_rate  2e-4
    rank           8

    the same in all: optimizer adamw

    * recommended: trial 1 is the knee of the front
    ");
}

#[test]
fn what_was_predicted_stands_beside_what_was_measured_where_there_is_room() {
    let predicted = || {
        [
            (TrialNumber(0), THROUGHPUT.to_owned(), 5000.0),
            (TrialNumber(2), LOSS.to_owned(), 1.0),
        ]
    };
    let text = summary().with_predicted(predicted()).to_text(None);
    assert!(text.contains(" trial | tokens/s | predicted | peak memory |"), "{text}");
    assert!(text.contains("     0 |    5,120 |     5,000 |    1.50 GiB |"), "{text}");
    assert!(text.contains("   * 1 |   12,800 |         - |    2.25 GiB |"), "{text}");
    assert!(
        !summary()
            .with_predicted(predicted())
            .to_text(Some(70))
            .contains("predicted")
    );
}

#[test]
fn costs_stand_in_the_front_and_below_it() {
    let price = DevicePrice {
        usd_per_h: 2.49,
        source: "the study file".to_owned(),
    };
    let training = TrainingCost {
        tokens: 1_000_000,
        seconds: 4500.0,
        devices: 1,
        usd: 3.1125,
    };
    let costs = StudyCosts {
        search_usd: 1.826,
        training_price: Some(price.clone()),
        price,
        full_trainings: [(TrialNumber(1), training)].into(),
    };
    let summary = summary().with_costs(Some(costs));
    let text = summary.to_text(None);
    assert!(text.contains("|   loss | full training |"), "{text}");
    assert!(
        text.contains("| 2.0000 |         $3.11 |") && text.contains("| 2.1235 |             - |"),
        "{text}"
    );
    assert!(
        text.ends_with(
            "\n  full training: $3.11 for 1h 15m\n\nthe search cost $1.83, at $2.49 an hour of a device (the study file)\n"
        ),
        "{text}"
    );
    let json: serde_json::Value = serde_json::from_str(&summary.to_json().unwrap()).unwrap();
    assert_eq!(json["costs"]["full_trainings"]["1"]["usd"], 3.1125);
}

#[test]
fn json_has_raw_numbers() {
    let json: serde_json::Value = serde_json::from_str(&summary().to_json().unwrap()).unwrap();
    assert_eq!(json["trials"]["failures"]["invalid"], 1);
    assert_eq!(json["front"][0]["trial"], 1);
    assert_eq!(json["front"][1]["metrics"]["throughput"], 5120.4);
    assert_eq!(json["recommendation"]["trial"], 1);
}

#[test]
fn a_study_without_a_front_says_so() {
    let summary = Summary::new(SummaryInput {
        study: "a\u{1b}[2J",
        objectives: &[],
        trials: &[],
        front: &[],
        recommendation: None,
        wall_s: f64::NAN,
    });
    insta::assert_snapshot!(summary.to_text(Some(80)), @r"
    study a\u{1b}[2J: no trials, 0 s

    no Pareto front: no trial is complete in every objective within the constraints
    ");
}
