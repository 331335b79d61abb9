//! A fair comparison of every choice: beside the best training, the same with another optimizer, other targets or another
//! batch, at the learning rate that is right for *it*.
//!
//! A model that met AdamW at Lion's learning rate takes it for worse everywhere, and a search that follows the model never
//! finds out: of ten searches of the quickstart one ended 4% above the others so. Therefore a choice is compared at
//! the rate that the best training's would usually be for it first, and then at rates below and above, until its best lies
//! between two others or learns clearly less.

use super::candidates::{Candidates, Choice};
use super::landscape::Landscape;
use super::observations::Observations;
use super::sampler::INITIAL_WITH_PRIOR;
use super::step::{STEP, Side, step, usual_rate};
use super::trainings::{Trainings, are_alike_but};
use crate::Problem;
use crate::encode::Point;
use crate::length::LEARNING_RATE;
use peft_tune_core::objective::LOSS;

/// Trainings before the first comparison: the best of fewer is not worth a comparison.
const BEFORE: usize = 6;
/// Trainings before the first of a choice that is expected to learn as a faster one does.
const BEFORE_ALIKE: usize = 12;
/// Trainings before which all proposals for the least loss are comparisons while one is owed; half of them behind that.
const FIRST: usize = 40;
/// Trainings that one choice gets beside one best training.
const MOST: usize = 5;
/// Trainings of a choice whose loss is far above the best: its best rate may be a lower one, as too high a rate spoils everything.
const MOST_FAR: usize = 3;
/// Comparisons of a choice, all of which it lost clearly, behind which it comes last.
const OFTEN: usize = 2;
/// Probability of less than the least loss so far below which a further rate of a choice that was compared can wait.
const UNLIKELY: f64 = 0.1;
/// Share of what counts as near the best within which a training is as good as the best.
const SAME: f64 = 0.1;
/// Distance within which two coordinates are one value that was rounded on its way.
const ROUNDING: f64 = 1e-9;

/// The trainings that choices are owed, as candidates, each choice's next one, the most urgent first.
pub(super) fn owed(
    problem: &Problem,
    observations: &Observations<'_>,
    candidates: &Candidates<'_>,
    landscape: &Landscape<'_>,
    is_tried: impl Fn(&Point) -> bool,
) -> Vec<Point> {
    let Some(comparison) = Comparison::new(problem, observations, candidates, landscape) else {
        return Vec::new();
    };
    let choices = comparison.choices().into_iter();
    let mut all: Vec<Owed> = choices
        .filter_map(|choice| comparison.owed(choice, &is_tried))
        .collect();
    // A model may be wrong of what it hardly knows, and every second training is the most that this is worth.
    let trainings = observations.data[comparison.loss].points.len();
    if !trainings.is_multiple_of(2) {
        all.retain(|one| !one.is_hopeless);
    }
    // What is expected to lose comes last, and before it what lost clearly wherever it was compared; of the others the least compared
    // come first, and of those the most promising.
    all.sort_by(|a, b| {
        (a.is_hopeless, a.is_far, a.compared)
            .cmp(&(b.is_hopeless, b.is_far, b.compared))
            .then(a.expected.total_cmp(&b.expected))
    });
    all.into_iter().map(|one| one.point).collect()
}

/// A training that a choice is owed, and what makes it urgent.
struct Owed {
    /// Whether the choice was compared, and the model expects no least loss of another rate.
    is_hopeless: bool,
    /// Whether several trainings learnt clearly less each than another that differs in nothing but the choice.
    is_far: bool,
    /// Trainings that the choice had beside the best one.
    compared: usize,
    /// Loss that the model expects of it.
    expected: f64,
    point: Point,
}

/// The best training, and all that choices are compared with it by.
struct Comparison<'a> {
    problem: &'a Problem,
    observations: &'a Observations<'a>,
    candidates: &'a Candidates<'a>,
    landscape: &'a Landscape<'a>,
    trainings: &'a Trainings<'a>,
    /// Index of the modelled metric that is the loss.
    loss: usize,
    /// Index of the parameter that is the learning rate.
    rate: usize,
    /// The least loss so far.
    least: f64,
    /// The loss up to which a training is near the best.
    near: f64,
    best: Point,
}

impl<'a> Comparison<'a> {
    /// A comparison with the best training so far; `None` where nothing can be compared.
    fn new(
        problem: &'a Problem,
        observations: &'a Observations<'a>,
        candidates: &'a Candidates<'a>,
        landscape: &'a Landscape<'a>,
    ) -> Option<Self> {
        let trainings = landscape.trainings.as_ref()?;
        let loss = trainings.loss();
        let used = &observations.modelled[loss].used;
        let named = |index: &usize| problem.space.parameters[*index].name == LEARNING_RATE;
        let rate = used.iter().copied().find(named)?;
        let losses = || {
            let feasible = observations.evaluated.iter().filter(|one| one.feasible);
            feasible.map(|one| (one, one.values[loss]))
        };
        let least = losses().map(|(_, value)| value).min_by(f64::total_cmp)?;
        // What the other trainings learn is no measure for it: a search that stays near its best has hardly a worse one.
        let near = observations.nearly_learned?;
        // The first that is hardly worse than the best: what was compared with it still counts when a little is gained.
        let (best, _) = losses().find(|(_, value)| *value <= least + SAME * (near - least))?;
        Some(Self {
            problem,
            observations,
            candidates,
            landscape,
            trainings,
            loss,
            rate,
            least,
            near,
            best: trainings.fastest_alike(best.point.clone(), None),
        })
    }

    /// The choices to compare: other values of each parameter, and the best training's own, whose rate may have come from
    /// elsewhere.
    fn choices(&self) -> Vec<Choice> {
        let used = self.observations.modelled[self.loss].used.iter();
        let others = used.flat_map(|index| {
            let levels = self.levels_of(*index).into_iter();
            levels.map(move |coordinate| Choice {
                parameter: *index,
                coordinate,
            })
        });
        let own = Choice {
            parameter: self.rate,
            coordinate: self.best[self.rate],
        };
        others.chain([own]).collect()
    }

    /// Other values of a parameter that are worth a comparison. Of an ordered parameter these are the neighbours: its best rate moves as
    /// well, with the batch above all.
    fn levels_of(&self, index: usize) -> Vec<f64> {
        let own = self.best[index];
        let levels = self.candidates.levels(index);
        match self.candidates.is_choice(index) {
            true => {
                let others = levels.into_iter().filter(|level| *level != own);
                others.filter(|level| self.is_rival(index, *level)).collect()
            }
            false if index == self.rate || levels.is_empty() => Vec::new(),
            false => {
                let beside = [Side::Above, Side::Below].map(|side| step(own, &levels, side));
                beside.into_iter().flatten().collect()
            }
        }
    }

    /// Whether a value is no slower than others that learn alike.
    fn is_rival(&self, index: usize, level: f64) -> bool {
        let choice = Choice {
            parameter: index,
            coordinate: level,
        };
        let point = choice.in_point(&self.best);
        self.trainings.fastest_alike(point, None)[index] == level
    }

    /// The training that a choice is owed next; `None` where it was compared enough, or that training was tried.
    fn owed(&self, choice: Choice, is_tried: &impl Fn(&Point) -> bool) -> Option<Owed> {
        // Other parameters may exist beside another choice; what was trained is settled, too.
        let mut point = self.candidates.settled(&choice.in_point(&self.best));
        let compared = self.compared(&point);
        let is_lower = |one: f64, other: f64| {
            let points = [one, other].map(|rate| {
                let rate = Choice {
                    parameter: self.rate,
                    coordinate: rate,
                };
                rate.in_point(&point)
            });
            let expected = self.landscape.surrogates.outputs[self.loss].predict_many(&points);
            expected[0].0 <= expected[1].0
        };
        let usual = usual_rate(self.problem, self.candidates, &self.best, choice, self.rate);
        let levels = self.candidates.levels(self.rate);
        point[self.rate] = next_rate(&compared, usual, self.near, &levels, is_lower)?;
        if is_tried(&point) {
            return None;
        }
        let surrogates = &self.landscape.surrogates;
        let shift = surrogates.shifts_at(&point)?[self.loss];
        let marginal = surrogates.outputs[self.loss].marginal_at(&point, shift);
        let is_unlikely = marginal.log_below(self.least).value < UNLIKELY.ln();
        let lost = self.lost_by(choice);
        Some(Owed {
            is_hopeless: is_unlikely && !compared.is_empty(),
            is_far: lost.len() >= OFTEN && lost.iter().all(|lost| *lost > self.near - self.least),
            compared: compared.len(),
            expected: marginal.median(),
            point,
        })
    }

    /// Rates and losses of the trainings that differ from a point in nothing but perhaps the rate, in ascending order; of trainings
    /// that were stopped the losses that they were expected to end with.
    fn compared(&self, point: &Point) -> Vec<(f64, f64)> {
        let data = &self.observations.data[self.loss];
        let used = &self.observations.modelled[self.loss].used;
        let known = data.points.iter().zip(&data.values);
        let of_choice = known.filter(|(trained, _)| are_alike_but(used, self.rate, ROUNDING, [trained, point]));
        let mut compared: Vec<(f64, f64)> = of_choice.map(|(trained, value)| (trained[self.rate], *value)).collect();
        compared.sort_by(|a, b| a.0.total_cmp(&b.0));
        compared.dedup_by(|a, b| a.0 == b.0);
        compared
    }

    /// How much more loss trainings with a choice had than those with the best one's own that differ in nothing else.
    fn lost_by(&self, choice: Choice) -> Vec<f64> {
        let data = &self.observations.data[self.loss];
        let index = choice.parameter;
        let with = |level: f64| {
            let known = data.points.iter().zip(&data.values);
            known.filter(move |(point, _)| (point[index] - level).abs() <= ROUNDING)
        };
        let used = &self.observations.modelled[self.loss].used;
        let is_pair = |one: &Point, other: &Point| are_alike_but(used, index, ROUNDING, [one, other]);
        let own = self.best[index];
        let differences = with(choice.coordinate).flat_map(|(point, lost)| {
            let partners = with(own).filter(move |(partner, _)| is_pair(partner, point));
            partners.map(move |(_, won)| lost - won)
        });
        differences.collect()
    }
}

/// A choice (a target, an optimizer) that was in no training since there is a model. What was met at random before may have been met
/// at a bad learning rate. One that is expected to learn as a faster one does is tried beside the best training once that is nearly
/// known: it can hardly win.
pub(super) fn untrained_choice(
    candidates: &Candidates<'_>,
    observations: &Observations<'_>,
    trainings: &Trainings<'_>,
    tried: &[Point],
) -> Option<Choice> {
    let loss = observations.modelled.iter().position(|one| one.metric == LOSS)?;
    let used = observations.modelled[loss].used.iter();
    let choices = used.filter(|index| candidates.is_choice(**index));
    let mut all = choices.flat_map(|index| {
        let levels = candidates.levels(*index).into_iter();
        levels.map(move |coordinate| Choice {
            parameter: *index,
            coordinate,
        })
    });
    let modelled = tried.get(INITIAL_WITH_PRIOR.min(tried.len())..).unwrap_or_default();
    let is_trained = |choice: &Choice| {
        let mut points = modelled.iter();
        points.any(|point| point[choice.parameter] == choice.coordinate)
    };
    let can_wait = |choice: &Choice| tried.len() < BEFORE_ALIKE && trainings.has_faster_alike(*choice);
    all.find(|choice| !is_trained(choice) && !can_wait(choice))
}

/// Whether it is time for a comparison behind so many trainings.
pub(super) fn is_time(trainings: usize) -> bool {
    trainings >= BEFORE && (trainings < FIRST || trainings.is_multiple_of(4))
}

/// The next rate at which a choice is to be compared that was compared at these, in ascending order, with these losses:
/// first the best training's, `usual`, then those beside its own best one, of two the one at which `is_lower` expects the
/// lower loss. `levels` are those that there are; none where the range is continuous.
fn next_rate(
    compared: &[(f64, f64)],
    usual: f64,
    near: f64,
    levels: &[f64],
    is_lower: impl Fn(f64, f64) -> bool,
) -> Option<f64> {
    let within = if levels.is_empty() { STEP / 2.0 } else { ROUNDING };
    let is_open = |rate: &f64| compared.iter().all(|(known, _)| (known - rate).abs() > within);
    // What was met elsewhere, in the initial design above all, says little of the choice.
    if is_open(&usual) {
        return Some(usual);
    }
    let (rate, loss) = compared.iter().min_by(|a, b| a.1.total_cmp(&b.1))?;
    let is_far = *loss > near;
    if compared.len() >= if is_far { MOST_FAR } else { MOST } {
        return None;
    }
    let above = step(*rate, levels, Side::Above).filter(|next| !is_far && is_open(next));
    let below = step(*rate, levels, Side::Below).filter(is_open);
    match (above, below) {
        (Some(above), Some(below)) if is_lower(below, above) => Some(below),
        _ => above.or(below),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{categorical, drive, parameter, trial};
    use crate::{Bayes, Prior, Sampler};
    use peft_tune_core::objective::{LOSS_BEFORE, Objective, PEAK_MEMORY, THROUGHPUT};
    use peft_tune_core::space::{Distribution, Scale, SearchSpace};
    use peft_tune_core::study::{ParamValue, Params, Trial, TrialState};
    use std::sync::Arc;

    /// The next rate where the higher one of two is expected to learn as much.
    fn next_rate(compared: &[(f64, f64)], usual: f64, near: f64, levels: &[f64]) -> Option<f64> {
        super::next_rate(compared, usual, near, levels, |one, other| one >= other)
    }

    #[test]
    fn a_choice_is_compared_until_its_best_rate_lies_between_two_others() {
        assert_eq!(next_rate(&[], 0.5, 1.0, &[]), Some(0.5));
        assert_eq!(next_rate(&[(0.8, 1.3)], 0.5, 1.0, &[]), Some(0.5));
        // One that was met far above does not stand for the rate beside the best.
        let next = next_rate(&[(0.3, 0.9), (0.9, 1.3)], 0.3, 1.0, &[]).unwrap();
        assert!((next - 0.48).abs() < 1e-12);
        let next = next_rate(&[(0.5, 0.9)], 0.5, 1.0, &[]).unwrap();
        assert!((next - 0.68).abs() < 1e-12);
        // The higher one was worse: lower.
        let next = next_rate(&[(0.5, 0.9), (0.68, 0.95)], 0.5, 1.0, &[]).unwrap();
        assert!((next - 0.32).abs() < 1e-12);
        assert_eq!(
            next_rate(&[(0.32, 0.92), (0.5, 0.9), (0.68, 0.95)], 0.5, 1.0, &[]),
            None
        );
        // Where the lower one is expected to learn more, it comes first.
        let next = super::next_rate(&[(0.5, 0.9)], 0.5, 1.0, &[], |one, other| one < other).unwrap();
        assert!((next - 0.32).abs() < 1e-12);
        // Beaten by too much: lower, for a while.
        let next = next_rate(&[(0.5, 1.3)], 0.5, 1.0, &[]).unwrap();
        assert!((next - 0.32).abs() < 1e-12);
        assert_eq!(next_rate(&[(0.32, 1.4), (0.5, 1.3)], 0.5, 1.0, &[]), None);
        let lower = [(0.14, 1.1), (0.32, 1.2), (0.5, 1.3)];
        assert_eq!(next_rate(&lower, 0.5, 1.0, &[]), None);
    }

    #[test]
    fn it_stays_within_the_range_and_among_the_levels() {
        assert_eq!(
            next_rate(&[(0.9, 0.9)], 0.9, 1.0, &[]).map(|rate| (rate * 100.0).round()),
            Some(72.0)
        );
        let levels = [0.1, 0.3, 0.9];
        assert_eq!(next_rate(&[(0.3, 0.9)], 0.3, 1.0, &levels), Some(0.9));
        assert_eq!(next_rate(&[(0.3, 0.9), (0.9, 1.0)], 0.3, 1.0, &levels), Some(0.1));
        assert_eq!(next_rate(&[(0.9, 0.5)], 0.9, 1.0, &levels), Some(0.3));
    }

    /// Throughput and memory of a setting, known beforehand.
    struct Costs;

    fn number(params: &Params, name: &str) -> f64 {
        params.get(name).and_then(ParamValue::as_f64).unwrap_or(0.0)
    }

    impl Prior for Costs {
        fn expected(&self, params: &Params, metric: &str) -> Option<f64> {
            match metric {
                THROUGHPUT => Some(1e4 * number(params, "global_batch").powf(0.1) / number(params, "rank").powf(0.2)),
                PEAK_MEMORY => Some(1e6 * (10.0 + number(params, "rank"))),
                _ => None,
            }
        }

        fn impossible(&self, _: &Params) -> Option<String> {
            None
        }
    }

    /// A training's loss, much like the quickstart's: its best learning rate is another one for each optimizer and batch, and a
    /// rate that is too high spoils more than one that is too low.
    fn loss(params: &Params) -> f64 {
        let doublings = (number(params, "global_batch") / 8.0).log2();
        let is_lion = params.get("optimizer") == Some(&"lion".into());
        let (least, best_rate) = match is_lion {
            true => (1.83 + 0.06 * doublings, 1.2e-3 * 2f64.powf(1.1 * doublings)),
            false => (BEST + 0.2 * doublings, 4.3e-3 * 2f64.powf(0.5 * doublings)),
        };
        let decades = (number(params, "learning_rate") / best_rate).log10();
        let steepness = match (decades > 0.0, is_lion) {
            (true, _) => 8.0,
            (false, true) => 2.4,
            (false, false) => 1.3,
        };
        let of_targets = |name: &str, more: f64| match params.get("target_modules") == Some(&name.into()) {
            true => more,
            false => 0.0,
        };
        let targets = of_targets("mlp", 0.33) + of_targets("attention", 0.9);
        least + (steepness * decades * decades).min(3.0) + targets + 0.11 * (32.0 / number(params, "rank")).log2()
    }

    /// The least loss.
    const BEST: f64 = 1.65;

    /// A space much like the quickstart's.
    fn like_quickstart() -> Problem {
        let rate = Distribution::Float {
            low: 1e-3,
            high: 3e-2,
            scale: Scale::Log,
            step: None,
        };
        let parameters = vec![
            parameter("rank", categorical([2i64, 4, 8, 16, 32])),
            parameter("target_modules", categorical(["attention", "mlp", "all-linear"])),
            parameter("learning_rate", rate),
            parameter("global_batch", categorical([8i64, 16, 32])),
            parameter("optimizer", categorical(["adamw", "lion"])),
        ];
        Problem {
            space: SearchSpace { parameters },
            objectives: [THROUGHPUT, PEAK_MEMORY, LOSS].map(Objective::new).into(),
            constraints: Vec::new(),
        }
    }

    fn trained(params: &Params) -> TrialState {
        let cost = |metric: &str| Costs.expected(params, metric).unwrap();
        let metrics = [
            (THROUGHPUT, cost(THROUGHPUT)),
            (PEAK_MEMORY, cost(PEAK_MEMORY)),
            (LOSS, loss(params)),
            (LOSS_BEFORE, 8.5),
        ];
        TrialState::Complete {
            metrics: metrics.into(),
        }
    }

    fn least(history: &[Trial]) -> f64 {
        let losses = history.iter().map(|trial| loss(&trial.params));
        losses.fold(f64::INFINITY, f64::min)
    }

    #[test]
    fn a_search_finds_the_batch_and_the_optimizer_that_another_rate_hides() {
        let problem = like_quickstart();
        let mut misses = Vec::new();
        for seed in 10..22 {
            let mut sampler = Bayes::new(seed).with_prior(Arc::new(Costs));
            let best = least(&drive(&mut sampler, &problem, 40, |_, params| trained(params)));
            if best > 1.02 * BEST {
                misses.push((seed, best));
            }
        }
        // Of 60 seeds one misses it.
        assert!(misses.len() <= 1, "{misses:?}");
    }

    #[test]
    fn a_few_trainings_behind_a_usual_setting_are_enough() {
        let problem = like_quickstart();
        for (rank, batch, rate) in [(4i64, 32i64, 8.6e-3), (16, 16, 4.3e-3)] {
            let usual = Params::from([
                ("rank".to_owned(), rank.into()),
                ("target_modules".to_owned(), "all-linear".into()),
                ("learning_rate".to_owned(), rate.into()),
                ("global_batch".to_owned(), batch.into()),
                ("optimizer".to_owned(), "adamw".into()),
            ]);
            for seed in 10..16 {
                let mut sampler = Bayes::new(seed).with_prior(Arc::new(Costs));
                let mut history = vec![trial(0, usual.clone(), trained(&usual))];
                while history.len() < 8 {
                    let params = sampler.ask(&problem, &history).unwrap();
                    history.push(trial(history.len(), params.clone(), trained(&params)));
                }
                let best = least(&history);
                assert!(best <= 1.02 * BEST, "rank {rank}, seed {seed}: {best}");
            }
        }
    }
}
