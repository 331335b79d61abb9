//! The next setting that a history leads to.

use super::Bayes;
use super::aim::Aim;
use super::candidates::Candidates;
use super::earlier::first_setting;
use super::fair_comparison;
use super::initial::{initial, stronger_than_last};
use super::maximise::{Search, good_points};
use super::model::Model;
use super::neighbourhood::Neighbourhood;
use super::observations::Observations;
use super::output::Output;
use super::proposal::{Proposal, described};
use super::score::of_params;
use super::trainings::Trainings;
use crate::encode::{Encoding, Point};
use crate::measured_prior::MeasuredPrior;
use crate::seeded::{Stream, Tried, generator};
use crate::{CandidateScore, Prior, Problem};
use peft_tune_core::study::{Params, Trial, TrialNumber, TrialState};

impl Bayes {
    /// The next setting with its reasons, or `None` when everything is tried.
    pub fn propose(&self, problem: &Problem, history: &[Trial]) -> Option<Proposal> {
        self.propose_beside(problem, history, &[]).map(|(proposal, _)| proposal)
    }

    /// The next setting, and what is expected of others; of none before there is a model.
    pub(super) fn propose_beside(
        &self,
        problem: &Problem,
        history: &[Trial],
        others: &[Params],
    ) -> Option<(Proposal, Vec<CandidateScore>)> {
        if let Some(proposal) = self.stronger(problem, history) {
            return Some((proposal, Vec::new()));
        }
        let without_model = || Some((self.initial(problem, history)?, Vec::new()));
        if self.is_initial(history) {
            return without_model();
        }
        let encoding = Encoding::new(&problem.space);
        let observations = self.observe(problem, &encoding, history);
        let model = self.model(problem, &encoding, &observations);
        let Some(mut landscape) = model.landscape() else {
            return without_model();
        };
        let candidates = Candidates::new(&problem.space, &encoding);
        let shifted: Vec<bool> = landscape.surrogates.outputs.iter().map(Output::is_shifted).collect();
        let shifts = |point: &Point| model.shifts(&shifted, &candidates, point);
        let prior = self.prior.as_deref();
        let prior = prior.map(|prior| MeasuredPrior::new(problem, history, prior));
        if let Some(prior) = &prior {
            landscape.surrogates.shifts = Some(&shifts);
            landscape.trainings = Trainings::new(problem, &observations, &candidates, prior, &landscape.counted);
        }
        let points = points_of(history, problem, &encoding);
        let tried = landscape.tried(&points);
        if let Some(trainings) = &landscape.trainings {
            // Trainings are counted: what measures a cost alone takes no turn.
            landscape.aim = Aim::of_turn(
                problem,
                &observations,
                trainings,
                &landscape.surrogates,
                &landscape.counted,
                tried.len(),
            );
        }
        let mut search = Search {
            candidates: &candidates,
            landscape: &landscape,
            tried,
            only: None,
            near: None,
            good: good_points(&observations.evaluated),
            conditioned: history.len(),
        };
        let owed = compare_fairly(&mut search, problem, &observations, &points);
        let mut random = generator(self.seed, Stream::Bayes, history.len());
        let Some((found, params)) = search.untried(owed, &Tried::new(history), &mut random) else {
            return without_model();
        };
        let point = candidates.settled(&found.candidate);
        let proposal = Proposal {
            tests_predictions: found.is_owed,
            ..described(problem, &landscape, &point, params, found.log_value)
        };
        let others = others
            .iter()
            .map(|params| of_params(problem, &landscape, &encoding, params));
        Some((proposal, others.collect()))
    }

    /// The next `count` settings, each proposed as if those before it were under way: for parallel workers, or to say what
    /// a study would try next.
    pub fn propose_many(&self, problem: &Problem, history: &[Trial], count: usize) -> Vec<Proposal> {
        let mut trials = history.to_vec();
        let next_number = trials.iter().map(|trial| trial.number.0 + 1).max().unwrap_or(0);
        let mut proposals = Vec::with_capacity(count);
        for number in next_number..next_number + count as u64 {
            let Some(proposal) = self.propose(problem, &trials) else {
                break;
            };
            trials.push(Trial {
                number: TrialNumber(number),
                params: proposal.params.clone(),
                state: TrialState::Running,
            });
            proposals.push(proposal);
        }
        proposals
    }

    /// What a history teaches, with the trials of earlier studies.
    fn observe<'a>(&'a self, problem: &Problem, encoding: &Encoding, history: &'a [Trial]) -> Observations<'a> {
        let cost = self.cost.as_deref();
        let mut observations = Observations::new(problem, encoding, history, cost);
        if !self.earlier.is_empty() {
            observations.take_earlier(problem, encoding, &self.earlier, cost);
        }
        observations.leave_out_unknown(problem.objectives.len());
        observations
    }

    pub(super) fn model<'a>(
        &'a self,
        problem: &'a Problem,
        encoding: &'a Encoding,
        observations: &'a Observations<'a>,
    ) -> Model<'a> {
        Model {
            problem,
            encoding,
            observations,
            prior: self.prior.as_deref().map(|prior| prior as &dyn Prior),
        }
    }

    /// A setting of the initial design.
    fn initial(&self, problem: &Problem, history: &[Trial]) -> Option<Proposal> {
        let params = first_setting(problem, &self.earlier, history)
            .or_else(|| initial(problem, self.seed, history, self.prior.as_deref()))?;
        Some(Proposal::of_design(params))
    }

    /// A step of a study's start towards what learns more, where nobody said how many settings the initial design has.
    fn stronger(&self, problem: &Problem, history: &[Trial]) -> Option<Proposal> {
        let prior = self
            .prior
            .as_deref()
            .filter(|_| self.initial.is_none() && self.earlier.is_empty())?;
        stronger_than_last(problem, prior, history).map(Proposal::of_design)
    }
}

/// The points of trials whose params are in the space.
fn points_of(history: &[Trial], problem: &Problem, encoding: &Encoding) -> Vec<Point> {
    let points = history
        .iter()
        .filter_map(|trial| encoding.point(&problem.space, &trial.params));
    points.collect()
}

/// Keeps a search for the least loss near the best training, and to a choice that has had too few trials. The points are
/// trainings that such choices are owed beside the best one, the most urgent first.
fn compare_fairly(
    search: &mut Search<'_>,
    problem: &Problem,
    observations: &Observations<'_>,
    tried: &[Point],
) -> Vec<Point> {
    let landscape = search.landscape;
    let Some(trainings) = landscape.trainings.as_ref().filter(|_| landscape.aim.is_loss()) else {
        return Vec::new();
    };
    let Some(near) = Neighbourhood::new(observations, trainings) else {
        return Vec::new();
    };
    search.only = fair_comparison::untrained_choice(search.candidates, observations, trainings, tried);
    let is_tried = |point: &Point| search.is_tried(point);
    let owed = match search.only {
        Some(choice) => vec![near.with(choice)],
        None if fair_comparison::is_time(search.tried.len()) => {
            fair_comparison::owed(problem, observations, search.candidates, landscape, is_tried)
        }
        None => Vec::new(),
    };
    search.near = Some(near);
    owed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{
        complete, continuous_space, drive, mixed_space, mixed_states, out_of_memory, problem, trial, volume,
    };
    use crate::{Random, Sampler};
    use peft_tune_core::objective::{Bound, Constraint, LOSS, Objective, THROUGHPUT};
    use peft_tune_core::study::{Metrics, ParamValue};
    use std::sync::Arc;

    fn number(params: &Params, name: &str) -> f64 {
        params.get(name).and_then(ParamValue::as_f64).unwrap_or(0.0)
    }

    fn state(values: [f64; 2]) -> TrialState {
        TrialState::Complete {
            metrics: [("f0", values[0]), ("f1", values[1])].into(),
        }
    }

    /// Two bowls with their bottoms at 0.2 and 0.8 of each axis.
    fn bowls(params: &Params) -> [f64; 2] {
        let bowl = |bottom: f64| params.keys().map(|name| (number(params, name) - bottom).powi(2)).sum();
        [bowl(0.2), bowl(0.8)]
    }

    #[test]
    fn it_beats_random_search_by_far() {
        let problem = problem(continuous_space(3), 2);
        let run = |sampler: &mut dyn Sampler| {
            let history = drive(sampler, &problem, 24, |_, params| state(bowls(params)));
            volume(&problem, &history)
        };
        let (ours, random) = (run(&mut Bayes::new(1)), run(&mut Random::new(1)));
        assert!(ours > random + 0.1, "{ours} {random}");
    }

    #[test]
    fn proposals_do_not_depend_on_the_number_of_threads() {
        let problem = problem(mixed_space(), 2);
        let history = drive(&mut Random::new(2), &problem, 24, mixed_states);
        let in_pool = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| {
                let lengths = [8, 15, 24].into_iter();
                lengths
                    .map(|count| Bayes::new(5).propose(&problem, &history[..count]))
                    .collect::<Vec<_>>()
            })
        };
        let alone = in_pool(1);
        assert!(
            alone
                .iter()
                .flatten()
                .all(|proposal| proposal.log_acquisition.is_some())
        );
        assert_eq!(alone, in_pool(2));
        assert_eq!(alone, in_pool(5));
    }

    #[test]
    fn proposals_made_together_keep_apart_and_are_nearly_as_good() {
        let problem = problem(continuous_space(2), 2);
        let sampler = Bayes::new(3);
        let mut history: Vec<Trial> = Vec::new();
        // Four workers: each round knows only the rounds before.
        for _ in 0..7 {
            let round = sampler.propose_many(&problem, &history, 4);
            for (index, one) in round.iter().enumerate() {
                for other in &round[..index] {
                    let gap = |name: &str| (number(&one.params, name) - number(&other.params, name)).abs();
                    assert!(gap("x0").max(gap("x1")) > 1e-3, "{:?} {:?}", one.params, other.params);
                }
            }
            for one in round {
                let [a, b] = bowls(&one.params);
                history.push(complete(history.len(), one.params, &[a, b]));
            }
        }
        let alone = drive(&mut Bayes::new(3), &problem, 28, |_, params| state(bowls(params)));
        let (together, alone) = (volume(&problem, &history), volume(&problem, &alone));
        assert!(together > 0.98 * alone, "{together} {alone}");
    }

    #[test]
    fn a_setting_under_way_is_not_proposed_again() {
        let problem = problem(continuous_space(1), 2);
        let mut history = drive(&mut Random::new(1), &problem, 8, |_, params| state(bowls(params)));
        let first = Bayes::new(1).propose(&problem, &history).unwrap();
        history.push(Trial {
            number: TrialNumber(8),
            params: first.params.clone(),
            state: TrialState::Running,
        });
        let second = Bayes::new(1).propose(&problem, &history).unwrap();
        assert!((number(&first.params, "x0") - number(&second.params, "x0")).abs() > 0.01);
        assert!(second.expected_improvement < first.expected_improvement);
    }

    #[test]
    fn what_runs_out_of_memory_and_what_a_constraint_forbids_is_left() {
        let mut problem = problem(continuous_space(2), 2);
        problem.constraints.push(Constraint {
            metric: "f1".to_owned(),
            bound: Bound::AtMost(0.6),
        });
        let mut failures = 0;
        let history = drive(&mut Bayes::new(2), &problem, 30, |_, params| {
            let full = number(params, "x0") + number(params, "x1") > 1.4;
            failures += usize::from(full);
            if full { out_of_memory() } else { state(bowls(params)) }
        });
        assert!(failures <= 6, "{failures}");
        let broken = history[10..].iter().filter(|trial| {
            let value = trial.state.metrics().and_then(|metrics| metrics.value("f1"));
            value.is_some_and(|value| value > 0.6)
        });
        assert!(broken.count() <= 4);
    }

    #[test]
    fn dear_settings_are_passed_over_where_cost_counts() {
        let problem = problem(continuous_space(2), 2);
        // The second axis changes nothing but the cost.
        let evaluate = |params: &Params| {
            let x = number(params, "x0");
            let cost = 1.0 + 99.0 * number(params, "x1");
            TrialState::Complete {
                metrics: [("f0", (x - 0.2).powi(2)), ("f1", (x - 0.8).powi(2)), ("seconds", cost)].into(),
            }
        };
        let history = drive(&mut Random::new(4), &problem, 12, |_, params| evaluate(params));
        let proposal = Bayes::new(4).per_cost("seconds").propose(&problem, &history).unwrap();
        assert!(number(&proposal.params, "x1") < 0.1, "{:?}", proposal.params);
    }

    #[test]
    fn a_cost_that_falls_towards_nothing_is_no_gain_without_end() {
        let problem = problem(continuous_space(1), 2);
        // Continued as it goes, the cost is below zero where nothing was tried.
        let evaluated = |index: usize| {
            let x = 0.3 + 0.09 * index as f64;
            let metrics = [
                ("f0", (x - 0.2).powi(2)),
                ("f1", (x - 0.8).powi(2)),
                ("seconds", 10.0 * (x - 0.25)),
            ];
            let state = TrialState::Complete {
                metrics: metrics.into(),
            };
            trial(index, Params::from([("x0".to_owned(), x.into())]), state)
        };
        let history: Vec<Trial> = (0..8).map(evaluated).collect();
        let proposal = Bayes::new(1).per_cost("seconds").propose(&problem, &history).unwrap();
        assert!(proposal.log_acquisition.unwrap() < 20.0, "{proposal:?}");
    }

    #[test]
    fn a_metric_that_is_not_known_yet_leaves_the_model_of_the_others() {
        let mut problem = problem(continuous_space(2), 2);
        let history = drive(&mut Random::new(4), &problem, 12, |number, params| {
            let [f0, f1] = bowls(params);
            let mut metrics: Metrics = [("f0", f0), ("f1", f1)].into();
            if number == 0 {
                metrics.insert("f2", 0.5);
            }
            TrialState::Complete { metrics }
        });
        let without = Bayes::new(4).propose(&problem, &history);
        assert!(without.as_ref().unwrap().expected_improvement.is_some());
        assert_eq!(Bayes::new(4).per_cost("seconds").propose(&problem, &history), without);
        problem.constraints.push(Constraint {
            metric: "f2".to_owned(),
            bound: Bound::AtMost(0.6),
        });
        let limited = Bayes::new(4).propose(&problem, &history).unwrap();
        assert!(limited.expected_improvement.is_some(), "{limited:?}");
    }

    /// Throughput that is the same throughput everywhere, known beforehand.
    struct Steady;

    impl Prior for Steady {
        fn expected(&self, _: &Params, metric: &str) -> Option<f64> {
            (metric == THROUGHPUT).then_some(100.0)
        }

        fn impossible(&self, _: &Params) -> Option<String> {
            None
        }
    }

    #[test]
    fn what_a_training_under_way_is_to_gain_is_no_gain_of_another() {
        let problem = Problem {
            space: continuous_space(1),
            objectives: [THROUGHPUT, LOSS].map(Objective::new).into(),
            constraints: Vec::new(),
        };
        // The least loss lies in the gap.
        let evaluated = |(index, x): (usize, f64)| {
            let metrics = [(THROUGHPUT, 100.0), (LOSS, 2.0 + (x - 0.5).powi(2))];
            let state = TrialState::Complete {
                metrics: metrics.into(),
            };
            trial(index, Params::from([("x0".to_owned(), x.into())]), state)
        };
        let places = [0.1, 0.2, 0.3, 0.4, 0.6, 0.7, 0.8, 0.9].into_iter().enumerate();
        let mut history: Vec<Trial> = places.map(evaluated).collect();
        let sampler = Bayes::new(1).with_prior(Arc::new(Steady));
        let first = sampler.propose(&problem, &history).unwrap();
        assert!((number(&first.params, "x0") - 0.5).abs() < 0.1, "{first:?}");
        history.push(trial(8, first.params.clone(), TrialState::Running));
        let second = sampler.propose(&problem, &history).unwrap();
        let gain = |proposal: &Proposal| proposal.log_acquisition.unwrap();
        assert!(gain(&second) < gain(&first) - 0.5, "{first:?} {second:?}");
    }
}
