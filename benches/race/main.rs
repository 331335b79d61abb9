//! The race: mean hypervolume of each sampler on the published problems, and the time of a proposal.
//!
//! `cargo bench --bench race -- [--samplers bayes,tpe] [--problems zdt1,lora] [--seeds 10] [--evaluations 60] [--json] [--trace]`

#![expect(
    clippy::print_stdout,
    clippy::panic,
    reason = "a bench prints its results and stops on a wrong argument"
)]

mod lora;
mod problems;

use std::time::Instant;

use peft_tune_core::study::{FailReason, Metrics, Phase, Trial, TrialNumber, TrialState};
use peft_tune_search::SamplerKind;
use peft_tune_search::{Problem, build, evaluated, hypervolume, reference_point};

struct Options {
    samplers: Vec<SamplerKind>,
    problems: Vec<String>,
    seeds: u64,
    first_seed: u64,
    evaluations: usize,
    json: bool,
    /// Prints every trial.
    trace: bool,
}

/// One study of the race.
struct Run {
    /// Hypervolume after each evaluation.
    volumes: Vec<f64>,
    failures: usize,
    /// Wall and processor seconds of each proposal.
    wall_s: Vec<f64>,
    cpu_s: Vec<f64>,
}

fn main() {
    let options = options();
    for black_box in problems::all() {
        if !options.problems.iter().any(|name| name == black_box.name) {
            continue;
        }
        for kind in &options.samplers {
            let seeds = options.first_seed..options.first_seed + options.seeds;
            let runs: Vec<Run> = seeds.map(|seed| run(&black_box, *kind, seed, &options)).collect();
            print(&black_box, *kind, &runs, options.json);
        }
    }
}

fn run(black_box: &problems::BlackBox, kind: SamplerKind, seed: u64, options: &Options) -> Run {
    let problem = &black_box.problem;
    let mut sampler = build(kind, problem, seed).expect("the race's problems suit its samplers");
    let mut history: Vec<Trial> = Vec::new();
    let mut run = Run {
        volumes: Vec::new(),
        failures: 0,
        wall_s: Vec::new(),
        cpu_s: Vec::new(),
    };
    for number in 0..options.evaluations {
        let (wall, cpu) = (Instant::now(), processor_s());
        let params = sampler
            .ask(problem, &history)
            .expect("the race's spaces are not exhausted");
        run.wall_s.push(wall.elapsed().as_secs_f64());
        run.cpu_s.push(processor_s() - cpu);
        let state = match (black_box.evaluate)(&params) {
            Some(values) => complete(problem, &values),
            None => out_of_memory(),
        };
        run.failures += usize::from(matches!(state, TrialState::Failed { .. }));
        history.push(Trial {
            number: TrialNumber(number as u64),
            params,
            state,
        });
        run.volumes.push(volume(problem, &history));
        if options.trace {
            trace(&history[number], run.volumes[number]);
        }
    }
    run
}

fn trace(trial: &Trial, volume: f64) {
    let values = |pairs: &mut dyn Iterator<Item = String>| pairs.collect::<Vec<_>>().join(" ");
    let params = values(&mut trial.params.iter().map(|(name, value)| format!("{name}={value:.5}")));
    let metrics = trial
        .state
        .metrics()
        .map(|metrics| values(&mut metrics.iter().map(|(name, value)| format!("{name}={value:.4}"))));
    println!(
        "{:3} {volume:.4} {} | {params} | {}",
        trial.number,
        trial.state.name(),
        metrics.unwrap_or_default()
    );
}

fn complete(problem: &Problem, values: &[f64]) -> TrialState {
    let mut metrics = Metrics::default();
    for (objective, value) in problem.objectives.iter().zip(values) {
        metrics.insert(objective.metric.clone(), *value);
    }
    TrialState::Complete { metrics }
}

fn out_of_memory() -> TrialState {
    TrialState::Failed {
        reason: FailReason::OutOfMemory {
            phase: Phase::Profile,
            in_use_bytes: None,
            requested_bytes: None,
            limit_bytes: None,
        },
        metrics: Metrics::default(),
    }
}

fn volume(problem: &Problem, history: &[Trial]) -> f64 {
    let complete = evaluated(problem, history);
    let reference = reference_point(problem, &complete);
    let values: Vec<Vec<f64>> = complete.into_iter().map(|one| one.values).collect();
    hypervolume(&values, &reference)
}

fn print(black_box: &problems::BlackBox, kind: SamplerKind, runs: &[Run], json: bool) {
    let count = runs.len() as f64;
    let at = |evaluation: usize| {
        runs.iter()
            .filter_map(|run| run.volumes.get(evaluation - 1))
            .sum::<f64>()
            / count
    };
    let last = runs.first().map_or(0, |run| run.volumes.len());
    let mean = at(last);
    let ends = runs.iter().map(|run| run.volumes[last - 1]);
    let deviation = (ends.clone().map(|volume| (volume - mean).powi(2)).sum::<f64>() / count).sqrt();
    let failures = runs.iter().map(|run| run.failures as f64).sum::<f64>() / count;
    let times = |of: fn(&Run) -> &Vec<f64>| {
        let all: Vec<f64> = runs.iter().flat_map(|run| of(run).iter().copied()).collect();
        let most = all.iter().copied().fold(0.0, f64::max);
        (1e3 * all.iter().sum::<f64>() / all.len() as f64, 1e3 * most)
    };
    let (wall, cpu) = (times(|run| &run.wall_s), times(|run| &run.cpu_s));
    let final_wall = 1e3 * runs.iter().map(|run| run.wall_s[last - 1]).sum::<f64>() / count;
    if json {
        let ends: Vec<f64> = ends.collect();
        println!(
            "{{\"problem\":\"{}\",\"sampler\":\"{}\",\"seeds\":{},\"hv_20\":{},\"hv_40\":{},\"hv\":{mean},\"sd\":{deviation},\"failed\":{failures},\"wall_ms\":{},\"cpu_ms\":{},\"ends\":{ends:?}}}",
            black_box.name,
            kind.name(),
            runs.len(),
            at(20.min(last)),
            at(40.min(last)),
            wall.0,
            cpu.0
        );
        return;
    }
    println!(
        "{:<10} {:<7} hv {:9.4} {:9.4} {:9.4} (sd {:.4}, {:.2}% of the most), failed {failures:.1}; proposal ms: wall {:.1} \
         (last {final_wall:.1}, most {:.1}), cpu {:.1} (most {:.1})",
        black_box.name,
        kind.name().to_owned(),
        at(20.min(last)),
        at(40.min(last)),
        mean,
        deviation,
        100.0 * mean / black_box.most,
        wall.0,
        wall.1,
        cpu.0,
        cpu.1
    );
}

/// Seconds of processor time that the process used, all threads together.
fn processor_s() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a live timespec of this function.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    time.tv_sec as f64 + 1e-9 * time.tv_nsec as f64
}

fn options() -> Options {
    let mut options = Options {
        samplers: vec![SamplerKind::Bayes],
        problems: problems::all()
            .into_iter()
            .map(|black_box| black_box.name.to_owned())
            .collect(),
        seeds: 10,
        first_seed: 0,
        evaluations: 60,
        json: false,
        trace: false,
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().unwrap_or_default();
        match argument.as_str() {
            "--samplers" => {
                options.samplers = value()
                    .split(',')
                    .map(|name| SamplerKind::from_name(name).expect("a sampler"))
                    .collect()
            }
            "--problems" => options.problems = value().split(',').map(str::to_owned).collect(),
            "--seeds" => options.seeds = value().parse().expect("a number"),
            "--first-seed" => options.first_seed = value().parse().expect("a number"),
            "--evaluations" => options.evaluations = value().parse().expect("a number"),
            "--json" => options.json = true,
            "--trace" => options.trace = true,
            // `cargo bench` adds this one.
            "--bench" => {}
            other => panic!("unknown argument {other}"),
        }
    }
    options
}
