//! The time of one proposal by the number of trials it is made from: three objectives, eleven parameters, of which two are
//! conditional, and some trials that ran out of memory.
//!
//! `cargo bench --bench proposal`

mod lora;
#[expect(dead_code, reason = "the other benches of this folder use more of it")]
mod problems;

use peft_tune_core::study::{FailReason, Metrics, Phase, Trial, TrialNumber, TrialState};
use peft_tune_search::SamplerKind;
use peft_tune_search::{Problem, build};

fn main() {
    divan::main();
}

/// One proposal of the Bayesian sampler, as a study that is resumed makes it: nothing is kept from the one before.
#[divan::bench(args = [20, 60, 200, 1000], sample_count = 10, sample_size = 1)]
fn bayes(bencher: divan::Bencher<'_, '_>, trials: usize) {
    let (problem, history) = history(trials);
    bencher.bench(|| build(SamplerKind::Bayes, &problem, 1).map(|mut sampler| sampler.ask(&problem, &history)));
}

/// Requests of a study loop: a proposal, and what is expected of it and of ten others.
#[divan::bench(args = [60, 1000], sample_count = 10, sample_size = 1)]
fn bayes_with_prospects(bencher: divan::Bencher<'_, '_>, trials: usize) {
    let (problem, history) = history(trials);
    let others: Vec<_> = history.iter().take(10).map(|trial| trial.params.clone()).collect();
    bencher.bench(|| {
        build(SamplerKind::Bayes, &problem, 1).map(|mut sampler| sampler.choose(&problem, &history, &others))
    });
}

/// Trials of a random sampler on the LoRA problem.
fn history(trials: usize) -> (Problem, Vec<Trial>) {
    let lora = problems::all().into_iter().find(|black_box| black_box.name == "lora");
    let black_box = lora.expect("the race has this problem");
    let problem = black_box.problem;
    let mut sampler = build(SamplerKind::Random, &problem, 7).expect("random search suits every problem");
    let mut history: Vec<Trial> = Vec::with_capacity(trials);
    for number in 0..trials {
        let params = sampler
            .ask(&problem, &history)
            .expect("a continuous space is never used up");
        let state = match (black_box.evaluate)(&params) {
            Some(values) => {
                let mut metrics = Metrics::default();
                for (objective, value) in problem.objectives.iter().zip(values) {
                    metrics.insert(objective.metric.clone(), value);
                }
                TrialState::Complete { metrics }
            }
            None => TrialState::Failed {
                reason: FailReason::OutOfMemory {
                    phase: Phase::Profile,
                    in_use_bytes: None,
                    requested_bytes: None,
                    limit_bytes: None,
                },
                metrics: Metrics::default(),
            },
        };
        history.push(Trial {
            number: TrialNumber(number as u64),
            params,
            state,
        });
    }
    (problem, history)
}
