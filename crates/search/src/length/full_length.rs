//! What trainings of several lengths say of the full length: the loss of each setting, which rate is best there, and how
//! probable it is that a setting is as good as any.

use std::f64::consts::SQRT_2;

use super::covariance::{LONGER, Others, Point};
use super::model::Model;
use crate::encode::{self, Encoding};
use peft_tune_core::space::{Distribution, Parameter, SearchSpace};
use peft_tune_core::study::{ParamValue, Params};

/// Share that squared distances in the precision count: what rounding takes from the loss of a short training it takes from a long
/// one's.
const ROUNDING: f64 = 0.001;
/// The parameter whose best value depends on the length.
pub(crate) const LEARNING_RATE: &str = "learning_rate";
/// The parameter that only rounds.
pub(crate) const ROUNDS: &str = "precision";
/// Factor between the rates that are taken into account beside those tried, and that of the finer ones of one setting.
const RATE_STEP: f64 = SQRT_2;
const FINE_STEP: f64 = 1.189_207_115_002_721;
/// Rates below the least tried that are taken into account, as a share of it.
const BELOW: f64 = 0.5;
/// Settings whose losses are drawn together: the most hopeful ones.
const MOST_RIVALS: usize = 64;
/// Deviations below the mean by which they are hopeful.
const HOPE: f64 = 1.5;
/// Probability that the best rate lies below its range, and above.
const TAIL: f64 = 0.1;

/// Log odds that are true of a share of draws with log odds 0, and by how much they grow with its log odds. Fitted to the 440 cases of
/// `cargo bench --bench length`, each table and length with the same weight: the draws alone say too little of most choices.
const TRUE_ODDS: (f64, f64) = (1.6, 0.53);
/// The least and the greatest share of draws that is told from none and from all.
const DRAWN: (f64, f64) = (0.005, 0.995);

/// A training that was made.
#[derive(Clone, Copy, Debug)]
pub struct Trained<'a> {
    /// Setting that was trained, without what changes no loss.
    pub params: &'a Params,
    pub tokens: f64,
    /// The held-out loss, in nats.
    pub loss: f64,
}

/// The best learning rate of a setting at the full length: its median, and the range with probability 0.8.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateRange {
    pub median: f64,
    pub low: f64,
    pub high: f64,
}

/// Losses at the full length, of the settings that were trained and of others at their rates.
#[derive(Clone, Debug)]
pub struct FullLength {
    model: Model,
    settings: TrainedSettings,
    /// Rates that are taken into account, ascending; one where no setting has any.
    rates: Vec<f64>,
    /// Least and greatest rate that was tried.
    tried: (f64, f64),
    log_tokens: f64,
}

impl FullLength {
    /// Compares trainings at a length of `tokens`; `None` where there is too little to compare: fewer than two
    /// trainings, all of one length, or a number that is none.
    pub fn of(trained: &[Trained<'_>], tokens: f64) -> Option<Self> {
        let tried = tried_rates(trained);
        let (low, high) = (*tried.first()?, *tried.last()?);
        let mut rates = if low < high {
            stepped(low * BELOW, high, RATE_STEP)
        } else {
            Vec::new()
        };
        rates.extend(tried);
        rates.sort_by(f64::total_cmp);
        Self::among(trained, tokens, rates)
    }

    /// Losses as [`FullLength::of`] has them, with these rates alone taken into account.
    pub fn among(trained: &[Trained<'_>], tokens: f64, rates: Vec<f64>) -> Option<Self> {
        let tried = tried_rates(trained);
        let counts = |one: &Trained<'_>| one.tokens > 0.0 && one.tokens.is_finite() && one.loss > 0.0;
        let shortest = trained.iter().map(|one| one.tokens).fold(f64::INFINITY, f64::min);
        let is_of_lengths = trained.iter().any(|one| one.tokens >= LONGER * shortest);
        let is_enough = is_of_lengths && trained.iter().all(counts);
        if !is_enough || tokens <= 0.0 || !tokens.is_finite() {
            return None;
        }
        let settings = TrainedSettings::of(trained)?;
        let point = |one: &Trained<'_>| settings.point(one.params, (one.tokens / shortest).ln());
        let points: Option<Vec<Point>> = trained.iter().map(point).collect();
        let log_losses: Vec<f64> = trained.iter().map(|one| one.loss.ln()).collect();
        let model = Model::new(settings.distances(), points?, &log_losses)?;
        Some(Self {
            model,
            settings,
            rates,
            tried: (*tried.first()?, *tried.last()?),
            log_tokens: (tokens / shortest).ln(),
        })
    }

    /// The loss that is expected of a setting which differs from one that was trained in its rate at most.
    pub fn expected_loss(&self, params: &Params) -> Option<f64> {
        Some(self.model.expected_loss(self.settings.point(params, self.log_tokens)?))
    }

    /// The losses by which settings are compared, each `None` where it is unknown: the expected one, and more by a standard deviation
    /// of what tells it from the setting whose loss is surely low. So nothing is chosen for what is not known of it.
    pub fn prudent_losses(&self, settings: &[&Params]) -> Vec<Option<f64>> {
        let points: Vec<Option<Point>> = settings
            .iter()
            .map(|params| self.settings.point(params, self.log_tokens))
            .collect();
        let high = |point: &Point| {
            let (mean, deviation) = self.model.roughly(*point);
            mean + deviation
        };
        let known = points.iter().flatten();
        let Some(sure) = known.copied().min_by(|a, b| high(a).total_cmp(&high(b))) else {
            return vec![None; settings.len()];
        };
        let prudent = |point: Point| {
            let apart = if point == sure {
                0.0
            } else {
                self.model.apart(point, sure)
            };
            (self.model.expected_loss(point) * apart.exp()).min(f64::MAX)
        };
        points.into_iter().map(|point| point.map(prudent)).collect()
    }

    /// The probability that a setting's loss is at most this share above the least of all settings, those at other rates
    /// included, as such probabilities were found to hold.
    pub fn probability_within(&self, params: &Params, share: f64) -> Option<f64> {
        let own = self.settings.point(params, self.log_tokens)?;
        let at = |others: usize, rate: &f64| Point {
            others,
            log_rate: rate.ln(),
            log_tokens: self.log_tokens,
        };
        let groups = 0..self.settings.groups.len();
        let rivals = groups.flat_map(|others| self.rates.iter().map(move |rate| at(others, rate)));
        let mut rivals: Vec<(f64, Point)> = rivals
            .filter(|rival| *rival != own)
            .map(|rival| {
                let (mean, deviation) = self.model.roughly(rival);
                (mean - HOPE * deviation, rival)
            })
            .collect();
        rivals.sort_by(|a, b| a.0.total_cmp(&b.0));
        let rivals = rivals.into_iter().map(|(_, rival)| rival);
        let points: Vec<Point> = std::iter::once(own).chain(rivals).take(MOST_RIVALS).collect();
        let draws = self.model.draws(&points);
        let least = |draw: &Vec<f64>| draw.iter().copied().fold(f64::INFINITY, f64::min);
        let within = draws
            .iter()
            .filter(|draw| draw.first().is_some_and(|own| *own <= least(draw) + share.ln_1p()));
        (!draws.is_empty()).then(|| calibrated(within.count() as f64 / draws.len() as f64))
    }

    /// The best rate of a setting at the full length; `None` where one rate alone was tried.
    pub fn best_rate(&self, params: &Params) -> Option<RateRange> {
        let own = self.settings.point(params, self.log_tokens)?;
        let (low, high) = self.tried;
        if low >= high {
            return None;
        }
        let rates = stepped(low * BELOW, high, FINE_STEP);
        let points: Vec<Point> = rates
            .iter()
            .map(|rate| Point {
                log_rate: rate.ln(),
                ..own
            })
            .collect();
        let best = |draw: Vec<f64>| {
            let least = draw.iter().enumerate().min_by(|a, b| a.1.total_cmp(b.1))?;
            rates.get(least.0).copied()
        };
        let mut found: Vec<f64> = self.model.draws(&points).into_iter().filter_map(best).collect();
        found.sort_by(f64::total_cmp);
        let at = |share: f64| found.get((share * found.len().saturating_sub(1) as f64).round() as usize);
        Some(RateRange {
            median: *at(0.5)?,
            low: *at(TAIL)?,
            high: *at(1.0 - TAIL)?,
        })
    }
}

/// Rates that were tried, ascending, each once; 1 where settings have none.
fn tried_rates(trained: &[Trained<'_>]) -> Vec<f64> {
    let mut rates: Vec<f64> = trained.iter().map(|one| rate_of(one.params)).collect();
    rates.sort_by(f64::total_cmp);
    rates.dedup();
    rates
}

fn rate_of(params: &Params) -> f64 {
    let rate = params.get(LEARNING_RATE).and_then(ParamValue::as_f64);
    rate.filter(|rate| *rate > 0.0 && rate.is_finite()).unwrap_or(1.0)
}

/// `low`, and so many times it as is not above `high`.
fn stepped(low: f64, high: f64, factor: f64) -> Vec<f64> {
    std::iter::successors(Some(low), |rate| Some(rate * factor))
        .take_while(|rate| *rate <= high * (1.0 + 1e-9))
        .take(1000)
        .collect()
}

/// The settings that were trained, but for the rate.
#[derive(Clone, Debug)]
struct TrainedSettings {
    /// Parameters that tell the settings apart, with all values that the settings have of them.
    space: SearchSpace,
    encoding: Encoding,
    groups: Vec<encode::Point>,
}

impl TrainedSettings {
    fn of(trained: &[Trained<'_>]) -> Option<Self> {
        let mut parameters: Vec<Parameter> = Vec::new();
        for (name, value) in trained.iter().flat_map(|one| one.params.iter()) {
            if name == LEARNING_RATE {
                continue;
            }
            match parameters.iter_mut().find(|parameter| parameter.name == *name) {
                Some(Parameter {
                    distribution: Distribution::Categorical { choices },
                    ..
                }) if !choices.contains(value) => choices.push(value.clone()),
                Some(_) => {}
                None => parameters.push(Parameter {
                    name: name.clone(),
                    distribution: Distribution::Categorical {
                        choices: vec![value.clone()],
                    },
                    condition: None,
                    affects: None,
                    widest: None,
                }),
            }
        }
        let space = SearchSpace { parameters };
        let mut settings = Self {
            encoding: Encoding::new(&space),
            space,
            groups: Vec::new(),
        };
        for one in trained {
            let group = settings.encoded(one.params)?;
            if !settings.groups.contains(&group) {
                settings.groups.push(group);
            }
        }
        Some(settings)
    }

    /// Coordinates of all but the rate; `None` where a value is not one of those trained.
    fn encoded(&self, params: &Params) -> Option<encode::Point> {
        let parameters = self.space.parameters.iter().enumerate();
        parameters
            .map(|(index, parameter)| match params.get(&parameter.name) {
                Some(value) => self.encoding.coordinate(&self.space, index, value),
                None => Some(self.encoding.resting(index)),
            })
            .collect()
    }

    fn point(&self, params: &Params, log_tokens: f64) -> Option<Point> {
        let own = self.encoded(params)?;
        Some(Point {
            others: self.groups.iter().position(|group| *group == own)?,
            log_rate: rate_of(params).ln(),
            log_tokens,
        })
    }

    fn distances(&self) -> Others {
        Others::new(self.groups.len(), |a, b| {
            let (a, b) = (&self.groups[a], &self.groups[b]);
            let axes = self.encoding.axes().iter().zip(&self.space.parameters);
            let squares = axes.zip(a.iter().zip(b)).map(|((axis, parameter), (a, b))| {
                let share = if parameter.name == ROUNDS { ROUNDING } else { 1.0 };
                share * axis.square(*a, *b)
            });
            squares.sum()
        })
    }
}

/// The probability of what a share of the draws has.
fn calibrated(share: f64) -> f64 {
    let share = share.clamp(DRAWN.0, DRAWN.1);
    let odds = TRUE_ODDS.0 + TRUE_ODDS.1 * (share / (1.0 - share)).ln();
    1.0 / (1.0 + (-odds).exp())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A setting.
    fn params(rank: i64, rate: f64) -> Params {
        let mut params = Params::new();
        params.insert("rank", ParamValue::Int(rank));
        params.insert(LEARNING_RATE, ParamValue::Float(rate));
        params
    }

    /// A loss whose best rate is 4e-3 at 1,000 tokens and falls like T^-0.3; rank 32 is better.
    fn loss(rank: i64, rate: f64, tokens: f64) -> f64 {
        let best = 4e-3 * (tokens / 1e3).powf(-0.3);
        let off: f64 = (rate / best).ln();
        let of_rank = if rank == 32 { 0.0 } else { 0.1 };
        (1.0 + 2.0 * (tokens / 1e3).powf(-0.3)) * (1.0 + 0.06 * off * off + of_rank)
    }

    const RATES: [f64; 6] = [5e-4, 1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2];

    /// All settings short, and some longer.
    fn example(longer: &[(i64, f64, f64)]) -> (Vec<Params>, Vec<(f64, f64)>) {
        let short = [8, 32].into_iter().flat_map(|rank| RATES.map(|rate| (rank, rate, 1e3)));
        let all: Vec<(i64, f64, f64)> = short.chain(longer.iter().copied()).collect();
        let of = |(rank, rate, tokens): &(i64, f64, f64)| (*tokens, loss(*rank, *rate, *tokens));
        (
            all.iter().map(|(rank, rate, _)| params(*rank, *rate)).collect(),
            all.iter().map(of).collect(),
        )
    }

    fn full_length(longer: &[(i64, f64, f64)], tokens: f64) -> FullLength {
        let (settings, numbers) = example(longer);
        let trained: Vec<Trained<'_>> = settings
            .iter()
            .zip(&numbers)
            .map(|(params, (tokens, loss))| Trained {
                params,
                tokens: *tokens,
                loss: *loss,
            })
            .collect();
        FullLength::of(&trained, tokens).unwrap()
    }

    #[test]
    fn the_best_rate_of_a_longer_training_is_lower() {
        let full = full_length(&[(32, 4e-3, 1e4), (32, 2e-3, 1e4)], 1e4);
        let best = full.best_rate(&params(32, 4e-3)).unwrap();
        assert!(best.low <= best.median && best.median <= best.high);
        assert!((1.4e-3..2.9e-3).contains(&best.median), "{best:?}");
        let expected = |rate: f64| full.expected_loss(&params(32, rate)).unwrap();
        assert!(expected(2e-3) < expected(4e-3) && expected(2e-3) < expected(1e-3));
        assert!((expected(2e-3) / loss(32, 2e-3, 1e4) - 1.0).abs() < 0.01);
        // What was never trained longer takes part.
        let other = full.expected_loss(&params(8, 2e-3)).unwrap();
        assert!((other / loss(8, 2e-3, 1e4) - 1.0).abs() < 0.05, "{other}");
    }

    /// Trainings of SmolLM2 on GSM8K as a search made them: losses that lie within 7%, three of them at the full length.
    #[test]
    fn a_loss_that_was_measured_there_counts_more_than_what_rates_usually_do() {
        let of = |rank: i64, optimizer: &str, rate: f64| {
            let mut params = params(rank, rate);
            params.insert("optimizer", ParamValue::from(optimizer));
            params
        };
        let (rank_32, best, lower) = (
            of(32, "adamw", 1.322e-3),
            of(64, "adamw", 1.322e-3),
            of(64, "adamw_8bit", 1.087e-3),
        );
        let settings = [
            (of(16, "adamw", 1.322e-3), 1.06e5, 0.8153),
            (rank_32.clone(), 1.06e5, 0.7978),
            (best.clone(), 1.06e5, 0.7877),
            (of(64, "adamw_8bit", 1.322e-3), 1.06e5, 0.7878),
            (of(64, "adamw_8bit", 6.007e-4), 1.06e5, 0.8061),
            (of(64, "adamw", 2.909e-3), 1.06e5, 0.8435),
            (lower.clone(), 1.06e5, 0.7946),
            (rank_32, 2e5, 0.7487),
            (best.clone(), 2e5, 0.7311),
            (lower.clone(), 2e5, 0.7373),
        ];
        let trained = settings.iter().map(|(params, tokens, loss)| Trained {
            params,
            tokens: *tokens,
            loss: *loss,
        });
        let full = FullLength::of(&trained.collect::<Vec<_>>(), 2e5).unwrap();
        let expected = full.expected_loss(&best).unwrap();
        assert!((expected / 0.7311 - 1.0).abs() < 0.003, "{expected}");
        let prudent = full.prudent_losses(&[&best, &lower]);
        assert!(prudent[0].unwrap() < prudent[1].unwrap(), "{prudent:?}");
    }

    #[test]
    fn more_evidence_makes_surer() {
        let of = |longer: &[(i64, f64, f64)]| {
            let full = full_length(longer, 1e4);
            full.probability_within(&params(32, 2e-3), 0.01).unwrap()
        };
        let few = of(&[(32, 4e-3, 1e4), (32, 2e-3, 1e4)]);
        let many = of(&[(32, 4e-3, 1e4), (32, 2e-3, 1e4), (32, 1e-3, 1e4), (8, 2e-3, 1e4)]);
        assert!(few > 0.2 && many > few, "{few} {many}");
        // Ten times longer than anything that was trained is less sure.
        let full = full_length(&[(32, 4e-3, 1e4), (32, 2e-3, 1e4)], 1e5);
        assert!(full.probability_within(&params(32, 2e-3), 0.01).unwrap() < few);
    }

    #[test]
    fn too_little_is_no_model() {
        let one = params(8, 1e-3);
        let trained = |tokens: f64, loss: f64| Trained {
            params: &one,
            tokens,
            loss,
        };
        assert!(FullLength::of(&[], 1e4).is_none());
        assert!(FullLength::of(&[trained(1e3, 2.0)], 1e4).is_none());
        assert!(FullLength::of(&[trained(1e3, 2.0), trained(1e3, 2.1)], 1e4).is_none());
        assert!(FullLength::of(&[trained(1e3, 2.0), trained(1e4, 0.0)], 1e4).is_none());
        assert!(FullLength::of(&[trained(1e3, 2.0), trained(1e4, 1.0)], f64::NAN).is_none());
        assert!(FullLength::of(&[trained(1e3, 2.0), trained(1e4, 1.5)], 1e4).is_some());
    }

    proptest! {
        /// Neither the unit of the loss nor the order of the trainings changes what is best.
        #[test]
        fn units_and_order_change_nothing(factor in 0.1f64..10.0, turned in 0usize..14) {
            let (settings, numbers) = example(&[(32, 4e-3, 1e4), (32, 2e-3, 1e4)]);
            let of = |factor: f64, turned: usize| {
                let mut trained: Vec<Trained<'_>> = settings
                    .iter()
                    .zip(&numbers)
                    .map(|(params, (tokens, loss))| Trained { params, tokens: *tokens, loss: factor * loss })
                    .collect();
                trained.rotate_left(turned);
                FullLength::of(&trained, 1e4).unwrap()
            };
            let (plain, other) = (of(1.0, 0), of(factor, turned));
            for rate in RATES {
                let setting = params(32, rate);
                let (a, b) = (plain.expected_loss(&setting).unwrap(), other.expected_loss(&setting).unwrap());
                prop_assert!((b / factor / a - 1.0).abs() < 1e-4, "{a} {b}");
            }
        }

        /// Whatever was trained, probabilities are some, and ranges are in order.
        #[test]
        fn anything_has_a_probability(losses in prop::collection::vec(1e-3f64..1e3, 4..12), times in 1.0f64..100.0) {
            let settings: Vec<Params> = (0..losses.len()).map(|index| params(8 << (index % 3), RATES[index % 6])).collect();
            let trained: Vec<Trained<'_>> = settings
                .iter()
                .zip(&losses)
                .enumerate()
                .map(|(index, (params, loss))| Trained {
                    params,
                    tokens: if index % 4 == 3 { 1e4 } else { 1e3 },
                    loss: *loss,
                })
                .collect();
            let full = FullLength::of(&trained, 1e3 * times).unwrap();
            let probability = full.probability_within(&settings[0], 0.01).unwrap();
            prop_assert!((0.0..=1.0).contains(&probability));
            let best = full.best_rate(&settings[0]).unwrap();
            prop_assert!(best.low <= best.median && best.median <= best.high);
            prop_assert!(full.expected_loss(&settings[0]).unwrap() > 0.0);
        }
    }
}
