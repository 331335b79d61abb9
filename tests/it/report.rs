//! `report` and `pareto --plot` as people call them, and the charts against golden files. After a wanted change, write those
//! again with `UPDATE_GOLDEN=1 cargo test --test it report` and look at them.

use assert_cmd::assert::OutputAssertExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use peft_tune::report::charts::charts;
use peft_tune::report::html::{
    Confirmation, ImportanceShare, ImportanceView, PageInput, Prediction, StudyView, document,
};
use peft_tune::store::{EvaluationRecord, StepRecord, Store, StudyRecord};
use peft_tune_core::objective::{Bound, Constraint, LOSS, PEAK_MEMORY, THROUGHPUT};
use peft_tune_core::study::{Confirmed, FailReason, Metrics, ParamValue, Params, Phase, TrialNumber, TrialState};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::json;

use crate::store::{recipe, study_record};

/// Text that breaks out of pages that do not escape.
pub(crate) const HOSTILE: &str = "</script><script>alert(1)</script> \"'<!-- é漢 &amp; $(rm)";

/// A study in a database: params decide the metrics by plain formulas with a little noise.
pub(crate) async fn synthetic(path: &Path, name: &str, trials: u64, steps: u64) {
    let store = Store::open(path).await.unwrap();
    let mut record: StudyRecord = study_record(name);
    record.constraints = vec![Constraint {
        metric: PEAK_MEMORY.to_owned(),
        bound: Bound::AtMost(140e6),
    }];
    let study = store.studies().begin(&record).await.unwrap();
    let mut random = StdRng::seed_from_u64(7);
    for number in (0..trials).map(TrialNumber) {
        let rank = [2i64, 4, 8, 16, 32][random.random_range(0..5)];
        let rate = 10f64.powf(random.random_range(-3.0..-1.5));
        let whole = random.random_range(0..2) == 1;
        let params = Params::from([
            ("rank".to_owned(), rank.into()),
            ("learning_rate".to_owned(), rate.into()),
            (
                "gradient_checkpointing".to_owned(),
                if whole { "full" } else { "none" }.into(),
            ),
            (name.to_owned(), ParamValue::from(if whole { HOSTILE } else { "plain" })),
        ]);
        store
            .trials()
            .start(study.id, number, &params, Some(&recipe()))
            .await
            .unwrap();
        let loss =
            2.0 + 0.25 * (rate.log10() + 2.2).powi(2) + 0.3 / (rank as f64).sqrt() + random.random_range(0.0..0.1);
        let memory = (60.0 + if whole { 20.0 } else { 70.0 } + rank as f64) * 1e6;
        let throughput = if whole { 7000.0 } else { 10_000.0 } - 40.0 * rank as f64 + random.random_range(0.0..300.0);
        let course = |step: u64| StepRecord {
            phase: Phase::Train,
            step,
            loss: loss + (4.5 - loss) * (-6.0 * step as f64 / steps as f64).exp(),
            tokens: 512,
            forward_s: 0.01,
            backward_s: 0.02,
            optimizer_s: 0.001,
            total_s: 0.032,
            ..StepRecord::default()
        };
        let courses: Vec<StepRecord> = (1..=steps).map(course).collect();
        store.steps().record(study.id, number, &courses).await.unwrap();
        let evaluation = EvaluationRecord {
            step: steps,
            tokens: 512 * steps,
            loss,
            ..EvaluationRecord::default()
        };
        store.evaluations().record(study.id, number, &evaluation).await.unwrap();
        let metrics: Metrics = [
            (THROUGHPUT, throughput),
            (PEAK_MEMORY, memory),
            (LOSS, loss),
            ("base_memory_bytes", 50e6),
            ("step_s", 0.04),
            ("forward_s", 0.012),
            ("backward_s", 0.024),
            ("optimizer_s", 0.002),
        ]
        .into();
        let state = match number.0 % 17 {
            5 => TrialState::Failed {
                reason: FailReason::Crashed {
                    phase: Phase::Train,
                    message: HOSTILE.to_owned(),
                },
                metrics: Metrics::default(),
            },
            11 => TrialState::Pruned {
                at_step: 3,
                rule: "median".to_owned(),
                metrics: Metrics::default(),
            },
            _ => TrialState::Complete { metrics },
        };
        store.trials().finish(study.id, number, &state, 1.5).await.unwrap();
    }
    drop(study);
    store.close().await.unwrap();
}

async fn view_of(path: &Path) -> StudyView {
    StudyView::new(&input_of(path).await)
}

/// A study with every part that a page may show.
pub(crate) async fn input_of(path: &Path) -> PageInput {
    let store = Store::open_read_only(path).await.unwrap();
    let study = store.studies().find(None).await.unwrap();
    let mut input = peft_tune::dashboard::Gatherer::default()
        .gather(&store, &study)
        .await
        .unwrap();
    store.close().await.unwrap();
    input.importance = vec![ImportanceView {
        metric: LOSS.to_owned(),
        shares: vec![
            ImportanceShare {
                param: "learning_rate".to_owned(),
                first: 0.6,
                total: 0.7,
            },
            ImportanceShare {
                param: HOSTILE.to_owned(),
                first: 0.1,
                total: 0.3,
            },
        ],
    }];
    input.predictions = (0..20)
        .map(|number| Prediction {
            number: TrialNumber(number),
            metric: PEAK_MEMORY.to_owned(),
            value: 120e6,
        })
        .collect();
    input.confirmation = vec![Confirmation {
        metric: LOSS.to_owned(),
        searched: 2.2,
        confirmed: 2.1,
        low: 2.0,
        high: 2.2,
    }];
    input
}

fn command(database: &Path, arguments: &[&str]) -> assert_cmd::assert::Assert {
    let mut command = crate::program();
    command.args(arguments).arg("--db").arg(database).assert()
}

/// The JSON that a page embeds.
fn embedded(page: &str) -> serde_json::Value {
    let (_, rest) = page
        .split_once("<script type=\"application/json\" id=\"view\">")
        .unwrap();
    serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap()
}

#[tokio::test]
async fn a_hostile_name_stays_text_in_the_page() {
    let folder = crate::folders::for_database();
    let database = folder.path().join("a.db");
    synthetic(&database, HOSTILE, 40, 4).await;
    let page = document(&view_of(&database).await).unwrap();
    // Every `<script` of the page is one of the template's: the values and the program.
    assert_eq!(page.matches("<script").count(), 2, "a name became an element");
    assert_eq!(page.matches("</script>").count(), 2);
    assert!(!page.contains("alert(1)</script>"));
    assert!(
        page.contains("&lt;script&gt;alert(1)"),
        "the heading has the name as text"
    );
    let view = embedded(&page);
    assert_eq!(view["study"]["name"], HOSTILE);
    assert_eq!(view["trials"][5]["outcome"], "crashed");
    assert_eq!(view["trials"][11]["outcome"], "pruned at step 3 (median)");
    assert_eq!(view["predictions"][0]["metric"], PEAK_MEMORY);
    for address in ["http://", "https://", "src=", "@import"] {
        let page = page.replace("http://www.w3.org/2000/svg", "");
        assert!(!page.contains(address), "the page reaches for {address}");
    }
    assert!(
        page.contains("default-src &#x27;none&#x27;") || page.contains("default-src 'none'"),
        "no policy"
    );
}

#[tokio::test]
async fn a_thousand_trials_fit_into_a_page() {
    let folder = crate::folders::for_database();
    let database = folder.path().join("a.db");
    synthetic(&database, "large", 1_000, 60).await;
    let started = Instant::now();
    let output = folder.path().join("large.html");
    command(&database, &["report", "large", "--output", output.to_str().unwrap()]).success();
    let page = std::fs::read_to_string(&output).unwrap();
    assert!(page.len() < 3_000_000, "{} bytes", page.len());
    // A debug build on a busy machine: only that nothing takes minutes.
    assert!(started.elapsed().as_secs() < 60, "{:?}", started.elapsed());
    assert_eq!(embedded(&page)["trials"].as_array().unwrap().len(), 1_000);
}

#[tokio::test]
async fn report_names_what_it_wrote_and_commands_that_use_it() {
    let folder = crate::folders::for_database();
    let database = folder.path().join("a.db");
    synthetic(&database, "small", 12, 3).await;
    let before = std::fs::read(&database).unwrap();
    let charts = folder.path().join("charts");
    let output = folder.path().join("page.html");
    let arguments = [
        "report",
        "--output",
        output.to_str().unwrap(),
        "--charts",
        charts.to_str().unwrap(),
    ];
    let assert = command(&database, &arguments).success();
    let stderr = String::from_utf8(assert.get_output().stderr.clone()).unwrap();
    assert!(
        stderr.contains("page.html") && stderr.contains("front-throughput-loss.svg"),
        "{stderr}"
    );
    assert!(
        std::fs::read(charts.join("settings.png"))
            .unwrap()
            .starts_with(b"\x89PNG")
    );
    let page = std::fs::read_to_string(output).unwrap();
    assert!(
        page.contains("peft-tune export --format peft --study small --trial"),
        "no command to use it"
    );
    assert_eq!(
        std::fs::read(&database).unwrap(),
        before,
        "a report leaves the database as it was"
    );
}

#[tokio::test]
async fn the_finding_comes_first_with_the_intervals_of_repeats() {
    let folder = crate::folders::for_database();
    let database = folder.path().join("a.db");
    synthetic(&database, "found", 40, 3).await;
    let best = view_of(&database).await.recommendation.unwrap().trial;
    let baseline = TrialNumber(if best == 0 { 1 } else { 0 });
    let store = Store::open(&database).await.unwrap();
    let study = store.studies().find(None).await.unwrap();
    store.baselines().record(study.id, baseline).await.unwrap();
    let trials = store.history().trials(study.id).await.unwrap();
    for number in [TrialNumber(best), baseline] {
        let metrics = trials[number.0 as usize].state.metrics().unwrap();
        let value = metrics.value(THROUGHPUT).unwrap();
        let confirmed = Confirmed {
            value,
            interval: 0.03,
            repeats: 3,
        };
        let all = [(number, [(THROUGHPUT.to_owned(), confirmed)].into())].into();
        let one = [(THROUGHPUT, value)].into();
        store.repeats().record(study.id, number, 3, &one, &all).await.unwrap();
    }
    drop(study);
    store.close().await.unwrap();
    let output = folder.path().join("found.html");
    command(&database, &["report", "--output", output.to_str().unwrap()]).success();
    let page = std::fs::read_to_string(output).unwrap();
    let view = embedded(&page);
    assert_eq!(view["baseline"], baseline.0);
    let gains = view["recommendation"]["gains"].as_array().unwrap();
    let speed = gains.iter().find(|gain| gain["metric"] == THROUGHPUT).unwrap();
    assert_eq!(
        (&speed["recommended_interval"], &speed["baseline_interval"]),
        (&json!(0.03), &json!(0.03))
    );
    let text = speed["text"].as_str().unwrap();
    assert!(text.contains("fast ±4.2%"), "{text}");
    let (finding, answers) = (page.find(text).unwrap(), page.find("id=\"front\"").unwrap());
    assert!(finding < answers, "the finding stands as text before the charts");
    let trial = &view["trials"][best as usize];
    let (index, low, high) = (
        &trial["intervals"][0][0],
        &trial["intervals"][0][1],
        &trial["intervals"][0][2],
    );
    let middle = (low.as_f64().unwrap() + high.as_f64().unwrap()) / 2.0;
    let value = trial["metrics"][index.as_u64().unwrap() as usize].as_f64().unwrap();
    assert!(
        (middle / value - 1.0).abs() < 1e-5 && low.as_f64() < high.as_f64(),
        "{trial}"
    );
    assert_eq!(
        view["trials"][baseline.0 as usize + 2]["intervals"],
        serde_json::Value::Null
    );
}

#[tokio::test]
async fn bad_input_says_what_to_do_and_writes_nothing() {
    let folder = crate::folders::for_database();
    let database = folder.path().join("a.db");
    synthetic(&database, "small", 3, 2).await;
    let stderr = |arguments: &[&str]| {
        let assert = command(&database, arguments).code(2);
        String::from_utf8(assert.get_output().stderr.clone()).unwrap()
    };
    assert!(stderr(&["report", "other"]).contains("no study `other`"));
    assert!(stderr(&["report", "--output", "/no/such/folder/a.html"]).contains("choose another path"));
    assert!(stderr(&["pareto", "--plot=speed,loss"]).contains("use two of throughput, peak_memory, loss"));
    let text = folder.path().join("text.db");
    std::fs::write(&text, "this is not a database").unwrap();
    let assert = command(&text, &["report", "--output", "x.html"]).code(2);
    let message = String::from_utf8(assert.get_output().stderr.clone()).unwrap();
    assert!(message.contains("is not a results database"), "{message}");
    assert_eq!(std::fs::read(&text).unwrap(), b"this is not a database");
}

#[tokio::test]
async fn the_front_is_drawn_in_the_terminal() {
    let folder = crate::folders::for_database();
    let database = folder.path().join("a.db");
    synthetic(&database, "small", 30, 2).await;
    let assert = command(&database, &["pareto", "--plot=throughput,loss"]).success();
    let text = String::from_utf8(assert.get_output().stdout.clone()).unwrap();
    assert!(
        text.starts_with("loss (less is better)\n") && text.contains('●') && text.contains('★'),
        "{text}"
    );
    assert!(text.lines().all(|line| line.chars().count() <= 110), "{text}");
}

#[tokio::test]
async fn charts_are_as_they_were() {
    let folder = crate::folders::for_database();
    let database = folder.path().join("a.db");
    synthetic(&database, "golden", 24, 6).await;
    let input = input_of(&database).await;
    let golden = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/charts");
    let drawn = charts(&StudyView::new(&input));
    assert_eq!(
        drawn.len(),
        10,
        "{:?}",
        drawn.iter().map(|chart| &chart.name).collect::<Vec<_>>()
    );
    for chart in drawn {
        let path = golden.join(format!("{}.svg", chart.name));
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::create_dir_all(&golden).unwrap();
            std::fs::write(&path, &chart.svg).unwrap();
        }
        let expected = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            chart.svg == expected,
            "{} differs: see the top of this file",
            path.display()
        );
    }
}
