//! The race in training steps: how far a study of the LoRA problem comes when poor trials are stopped and nothing is
//! measured twice. The study loop, the samplers and the database are those of `search`; only the program that a trial runs
//! is replaced by a function of this process.
//!
//! `cargo bench --bench fidelity -- [--seeds 10] [--first-seed 0] [--steps 6000] [--trials 400] [--study FILE] [--trace]`

#![expect(
    clippy::print_stdout,
    clippy::panic,
    reason = "a bench prints its results and stops on a wrong argument"
)]

mod lora;
#[expect(dead_code, reason = "the other bench of this folder races on all of them")]
mod problems;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use lora::{CAPACITY, Lora, STEPS};
use peft_tune::space::{ReadOptions, Study, StudyFile};
use peft_tune::store::{Store, StudyRecord};
use peft_tune::tune::{Interrupt, Tuner, TunerParts};
use peft_tune::worker::{Evaluator, EvaluatorError, Task, TrialEvent, TrialRequest};
use peft_tune_core::study::{FailReason, Metrics, Params, Phase, Trial, TrialNumber, TrialState};
use peft_tune_search::{Problem, build, evaluated, hypervolume, reference_point};

/// Steps after which throughput and memory are known, and a trial that does not fit ends.
const EARLY: u64 = 2;

struct Options {
    seeds: u64,
    first_seed: u64,
    /// Training steps after which a study ends.
    steps: u64,
    trials: u64,
    study: PathBuf,
    trace: bool,
}

/// Points of a study at the end of each trial.
struct Run {
    /// Training steps, whole trials and hypervolume.
    points: Vec<(u64, f64)>,
    failures: usize,
    elapsed_s: f64,
}

fn main() {
    let options = options();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let seeds = options.first_seed..options.first_seed + options.seeds;
    let runs: Vec<Run> = seeds.map(|seed| runtime.block_on(run(seed, &options))).collect();
    print(&runs, &options);
}

async fn run(seed: u64, options: &Options) -> Run {
    let mut study = study(&options.study);
    study.seed = seed;
    study.budget.trials = Some(options.trials);
    let folder = tempfile::tempdir().expect("a folder");
    let store = Store::open(&folder.path().join("race.db")).await.expect("a database");
    let open = store.studies().begin(&record(&study)).await.expect("a study");
    let interrupt = Interrupt::default();
    let spent = Rc::new(RefCell::new(Vec::new()));
    let evaluator = Simulated {
        events: VecDeque::new(),
        current: None,
        interrupt: interrupt.clone(),
        limit: options.steps,
        total: 0,
        spent: spent.clone(),
    };
    let problem = study.problem();
    let parts = TunerParts {
        study: &study,
        store: &store,
        id: open.id,
        sampler: build(study.sampler.kind, &problem, seed).expect("a sampler"),
        evaluator: Box::new(evaluator),
        observer: &mut (),
        interrupt,
    };
    let started = Instant::now();
    let mut tuner = Tuner::new(parts).await.expect("a tuner");
    tuner.run().await.expect("a study that ends");
    let history = tuner.history().to_vec();
    let spent = spent.borrow().clone();
    points(
        &problem,
        &history,
        &spent,
        options.trace,
        started.elapsed().as_secs_f64(),
    )
}

/// Hypervolume of whole trials after each trial, by the steps spent until then.
fn points(problem: &Problem, history: &[Trial], spent: &[(TrialNumber, u64)], trace: bool, elapsed_s: f64) -> Run {
    let mut run = Run {
        points: Vec::new(),
        failures: 0,
        elapsed_s,
    };
    let mut steps = 0;
    for (index, trial) in history.iter().enumerate() {
        let own = spent.iter().find(|(number, _)| *number == trial.number);
        steps += own.map_or(0, |(_, steps)| *steps);
        let complete = evaluated(problem, &history[..=index]);
        let reference = reference_point(problem, &complete);
        let values: Vec<Vec<f64>> = complete.into_iter().map(|one| one.values).collect();
        let volume = hypervolume(&values, &reference);
        run.failures += usize::from(trial.state.name() == "failed");
        run.points.push((steps, volume));
        if trace {
            let rule = match &trial.state {
                TrialState::Pruned { rule, .. } => rule.as_str(),
                _ => "",
            };
            let text = |(name, value): (&String, _)| format!("{name}={value}");
            let params: Vec<String> = trial.params.iter().map(text).collect();
            println!(
                "{:3} {steps:5} (+{}) {volume:.4} {} {rule} | {} | {:?}",
                trial.number,
                own.map_or(0, |(_, steps)| *steps),
                trial.state.name(),
                params.join(" "),
                trial.state.metrics().map(|metrics| metrics.iter().collect::<Vec<_>>()),
            );
        }
    }
    run
}

/// Runs the LoRA problem step by step.
struct Simulated {
    events: VecDeque<TrialEvent>,
    current: Option<Current>,
    interrupt: Interrupt,
    limit: u64,
    total: u64,
    /// Steps of each trial.
    spent: Rc<RefCell<Vec<(TrialNumber, u64)>>>,
}

struct Current {
    number: TrialNumber,
    params: Params,
    step: u64,
}

impl Simulated {
    fn end(&mut self, number: TrialNumber, steps: u64, state: TrialState) {
        self.current = None;
        self.total += steps;
        self.spent.borrow_mut().push((number, steps));
        if self.total >= self.limit {
            self.interrupt.request();
        }
        self.events.push_back(TrialEvent::Ended {
            number,
            state,
            wall_s: 0.0,
        });
    }

    /// One more step of the trial under way.
    fn advance(&mut self) {
        let Some(current) = &mut self.current else { return };
        current.step += 1;
        let (number, step) = (current.number, current.step);
        let lora = Lora::new(&current.params);
        let memory = lora.memory_gib();
        if step == EARLY && memory > CAPACITY {
            return self.end(number, EARLY, out_of_memory());
        }
        let mut metrics = Metrics::from([("loss", lora.loss(step as f64) - 1.8)]);
        if step == EARLY {
            metrics.insert("speed", -lora.throughput() / 10000.0);
            metrics.insert("memory", memory / CAPACITY);
        }
        let whole = (step as f64 >= STEPS).then(|| {
            Metrics::from([
                ("loss", lora.loss(step as f64) - 1.8),
                ("speed", -lora.throughput() / 10000.0),
                ("memory", memory / CAPACITY),
            ])
        });
        self.events.push_back(TrialEvent::Report { number, step, metrics });
        if let Some(metrics) = whole {
            self.end(number, step, TrialState::Complete { metrics });
        }
    }
}

impl Evaluator for Simulated {
    fn capacity(&self) -> usize {
        1
    }

    fn submit(&mut self, request: TrialRequest) -> Result<(), EvaluatorError> {
        let Task::Params { params, .. } = request.task else {
            return Err(EvaluatorError::Unsupported { task: "a recipe" });
        };
        self.current = Some(Current {
            number: request.number,
            params,
            step: 0,
        });
        Ok(())
    }

    fn next_event(&mut self, _timeout: Duration) -> Result<Option<TrialEvent>, EvaluatorError> {
        if self.events.is_empty() {
            self.advance();
        }
        Ok(self.events.pop_front())
    }

    fn cancel(&mut self, number: TrialNumber) -> Result<(), EvaluatorError> {
        if let Some(current) = self.current.take() {
            let rule = "stopped".to_owned();
            let at_step = current.step;
            let metrics = Metrics::default();
            self.end(number, at_step, TrialState::Pruned { at_step, rule, metrics });
        }
        Ok(())
    }
}

fn out_of_memory() -> TrialState {
    TrialState::Failed {
        reason: FailReason::OutOfMemory {
            phase: Phase::Train,
            in_use_bytes: None,
            requested_bytes: None,
            limit_bytes: None,
        },
        metrics: Metrics::default(),
    }
}

fn study(path: &Path) -> Study {
    StudyFile::read_with(path, ReadOptions { check_files: false }).expect("a sound study file")
}

fn record(study: &Study) -> StudyRecord {
    StudyRecord {
        name: study.name.clone(),
        space_path: study.source.path().to_owned(),
        space_text: study.source.text().to_owned(),
        definition: serde_json::Value::Null,
        objectives: study.objectives.clone(),
        constraints: study.constraints.clone(),
        seed: study.seed,
        sampler: study.sampler.kind.name().to_owned(),
        model: None,
        data_set: None,
        machine: None,
    }
}

fn print(runs: &[Run], options: &Options) {
    let count = runs.len() as f64;
    let mean = |of: &dyn Fn(&Run) -> f64| runs.iter().map(of).sum::<f64>() / count;
    for steps in [1200, 2400, 4000, 6000]
        .into_iter()
        .filter(|steps| *steps <= options.steps)
    {
        let volume = |run: &Run| {
            run.points
                .iter()
                .take_while(|point| point.0 <= steps)
                .last()
                .map_or(0.0, |point| point.1)
        };
        println!("hypervolume after {steps} steps: {:.4}", mean(&volume));
    }
    for trials in [20, 40, 60] {
        let volume = |run: &Run| {
            run.points
                .get(trials - 1)
                .or(run.points.last())
                .map_or(0.0, |point| point.1)
        };
        let steps = |run: &Run| {
            run.points
                .get(trials - 1)
                .or(run.points.last())
                .map_or(0.0, |point| point.0 as f64)
        };
        println!(
            "hypervolume after {trials} trials: {:.4}, {:.0} steps",
            mean(&volume),
            mean(&steps)
        );
    }
    for target in [1.831, 2.06, 2.12] {
        let reached = |run: &Run| run.points.iter().find(|point| point.1 >= target).map(|point| point.0);
        let all: Vec<String> = runs
            .iter()
            .map(|run| reached(run).map_or("-".to_owned(), |steps| steps.to_string()))
            .collect();
        let steps = mean(&|run: &Run| reached(run).unwrap_or(options.steps) as f64);
        println!("steps to {target}: mean {steps:.0} ({})", all.join(" "));
    }
    println!(
        "trials {:.0}, failed {:.1}, {:.1} s a study",
        mean(&|run: &Run| run.points.len() as f64),
        mean(&|run: &Run| run.failures as f64),
        mean(&|run: &Run| run.elapsed_s)
    );
}

fn options() -> Options {
    let mut options = Options {
        seeds: 10,
        first_seed: 0,
        steps: 6000,
        trials: 400,
        study: Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/race/lora.yaml"),
        trace: false,
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().unwrap_or_default();
        match argument.as_str() {
            "--seeds" => options.seeds = value().parse().expect("a number"),
            "--first-seed" => options.first_seed = value().parse().expect("a number"),
            "--steps" => options.steps = value().parse().expect("a number"),
            "--trials" => options.trials = value().parse().expect("a number"),
            "--study" => options.study = value().into(),
            "--trace" => options.trace = true,
            // `cargo bench` adds this one.
            "--bench" => {}
            other => panic!("unknown argument {other}"),
        }
    }
    options
}
