//! Trials in TRL that other programs slow down: what the worker in Python makes of a machine's counters, and what becomes
//! of such trials in a search. PyTorch and TRL are stand-ins of plain Python.

use std::collections::VecDeque;

use peft_tune_engine::profile::DeviceSample;
use peft_tune_engine::profile::disturbance::{Counters, DisturbanceWatch, Load, MachineCounters, lost_on_gpu};
use peft_tune_engine::profile::sample::HeldBy;
use serde_json::{Value, json};

use crate::faults::bench::Bench;
use crate::trl_backend::{has_python, search};
use crate::trl_search::is_golden;

/// Counters that were written down.
struct Scripted(VecDeque<Counters>);

impl MachineCounters for Scripted {
    fn read(&mut self) -> Counters {
        self.0.pop_front().unwrap_or_default()
    }
}

/// What the engine says of these readings: one at the start, one behind each step, and a last one.
fn watched(load: Load, readings: &[Counters]) -> Value {
    let counters = Scripted(readings.iter().copied().collect());
    let mut watch = DisturbanceWatch::start(Box::new(counters), load);
    for _ in 2..readings.len() {
        watch.step_ended();
    }
    let found = watch.finish();
    let reading = |one: &Counters| {
        json!({
            "at_s": one.at_s,
            "own_s": one.own_s,
            "waiting_s": one.waiting_s,
            "busy_s": one.busy_s,
            "stolen_s": one.stolen_s,
            "clock_mhz": one.clock_mhz,
        })
    };
    json!({
        "load": {"threads": load.threads, "cores": load.cores, "ranks": load.ranks},
        "readings": readings.iter().map(reading).collect::<Vec<_>>(),
        "lost": found.lost,
        "share": found.share(),
        "own_share": found.own_share,
        "waiting_share": found.waiting_share,
        "other_cores": found.other_cores,
        "clock_mhz": found.clock_mhz,
    })
}

/// Readings a second apart, of steps that each had such a share of two processors while something waited for such a share.
fn under_pressure(steps: &[(f64, f64)]) -> Vec<Counters> {
    let (mut own, mut waiting) = (0.0, 0.0);
    let mut readings = vec![Counters::default()];
    for (number, (own_share, waiting_share)) in steps.iter().enumerate() {
        own += 2.0 * own_share;
        waiting += waiting_share;
        readings.push(Counters {
            at_s: number as f64 + 1.0,
            own_s: Some(own),
            waiting_s: Some(waiting),
            clock_mhz: Some(2000.0 + 100.0 * number as f64),
            ..Counters::default()
        });
    }
    readings[0] = Counters {
        own_s: Some(0.0),
        waiting_s: Some(0.0),
        ..Counters::default()
    };
    let last = readings[steps.len()];
    readings.push(Counters {
        at_s: last.at_s + 0.05,
        ..last
    });
    readings
}

/// Readings of a system that counts no pressure, two seconds apart.
fn beside(own_s: f64, busy_s: f64, stolen_s: f64) -> Vec<Counters> {
    let reading = |at: f64| Counters {
        at_s: 2.0 * at,
        own_s: Some(at * own_s),
        busy_s: Some(at * busy_s),
        stolen_s: Some(at * stolen_s),
        ..Counters::default()
    };
    [0.0, 1.0, 1.0].map(reading).into()
}

/// Shares that other programs took, as the engine has them: the worker in Python is compared with this table by its own tests.
/// `UPDATE_GOLDEN=1 cargo test --test it trl_disturbed` writes it.
#[test]
fn shares_that_others_took_are_a_table_that_python_is_compared_with() {
    let load = |threads: usize, cores: usize, ranks: usize| Load { threads, cores, ranks };
    let (quiet, busy) = ((1.0, 0.01), (0.5, 0.9));
    let short: Vec<Counters> = (0..7)
        .map(|step| Counters {
            at_s: 0.04 * f64::from(step),
            own_s: Some(0.05 * f64::from(step)),
            waiting_s: Some(0.03 * f64::from(step)),
            ..Counters::default()
        })
        .collect();
    let host = [
        watched(load(2, 2, 1), &under_pressure(&[quiet; 3])),
        watched(load(2, 2, 1), &under_pressure(&[busy, quiet, busy, quiet, busy])),
        watched(load(1, 2, 1), &under_pressure(&[busy, quiet])),
        watched(load(2, 2, 1), &short),
        watched(load(2, 2, 1), &beside(2.0, 4.0, 0.0)),
        watched(load(2, 8, 1), &beside(2.0, 8.0, 0.0)),
        watched(load(2, 2, 2), &beside(2.0, 4.0, 0.0)),
        watched(load(2, 2, 1), &beside(3.0, 3.0, 1.0)),
        watched(load(2, 2, 1), &[Counters::default(); 3]),
    ];
    let sample = |other: Option<f64>, clock: Option<f64>, held_by: Option<HeldBy>| DeviceSample {
        other_utilisation: other,
        clock_mhz: clock,
        held_by,
        ..DeviceSample::default()
    };
    let samples = [
        vec![],
        vec![sample(Some(0.2), Some(2000.0), None), sample(Some(0.6), None, None)],
        vec![
            sample(None, Some(2000.0), Some(HeldBy::Power)),
            sample(None, Some(1000.0), Some(HeldBy::Power)),
        ],
        vec![
            sample(Some(0.1), Some(2000.0), None),
            sample(Some(0.1), Some(1000.0), Some(HeldBy::Heat)),
        ],
        vec![
            sample(None, Some(1500.0), Some(HeldBy::Hardware)),
            sample(None, Some(1200.0), None),
        ],
    ];
    let gpu = samples.iter().map(|samples| {
        let of_gpu = |one: &DeviceSample| {
            json!({
                "other_utilisation": one.other_utilisation,
                "clock_mhz": one.clock_mhz,
                "is_held": matches!(one.held_by, Some(HeldBy::Heat | HeldBy::Hardware)),
            })
        };
        json!({
            "samples": samples.iter().map(of_gpu).collect::<Vec<_>>(),
            "lost": lost_on_gpu(samples),
        })
    });
    is_golden("disturbed.json", &json!({"host": host, "gpu": gpu.collect::<Vec<_>>()}));
}

/// A study whose one trial was searched with a fault.
fn searched(fault: &str) -> Bench {
    let bench = Bench::new();
    let mut command = search(&bench, &["--trials", "1"]);
    command.env("PEFT_TUNE_FAULT", fault);
    Bench::succeed(command);
    bench
}

/// Marks of a trial's measurements, in their order; `null` for one that was quiet.
fn marks(bench: &Bench) -> Vec<Value> {
    let rows = bench.rows(
        "select max(case when metric = 'disturbed' then value end) as lost from trial_measurement \
         where trial = 0 group by attempt order by attempt",
    );
    rows.into_iter().map(|row| row["lost"].clone()).collect()
}

#[test]
fn what_another_program_slows_down_is_measured_again_and_marked_where_it_stays_so() {
    if !has_python() {
        return;
    }
    // Half of each of two processors at different times: a quarter of the speed is left.
    let bench = searched("busy:profile");
    let shown = Bench::succeed(bench.command(&["show", "--trial", "0"]));
    assert!(shown.contains("disturbed: something else slowed"), "{shown}");
    assert_eq!(marks(&bench), vec![json!(0.75); 4]);
    let found = bench.rows("select trial, lost from disturbed_trial");
    assert_eq!(Value::from(found), json!([{"trial": 0, "lost": 0.75}]));
    let shares = "select count(*) as n from trial_metric where name = 'own_cpu_share' and value = 0.5";
    assert_eq!(bench.count(shares), 1);
}

#[test]
fn what_was_disturbed_once_is_measured_again() {
    if !has_python() {
        return;
    }
    let bench = searched("busy:profile,attempts=1");
    // Whatever else runs beside this test may disturb the repeats.
    let marks = marks(&bench);
    assert!(marks.len() > 1 && marks[0] == json!(0.75), "{marks:?}");
    assert!(marks[1..].iter().all(|mark| *mark != json!(0.75)), "{marks:?}");
}
