//! Candidate settings in encoded form: drawn, mutated, neighbours of each other, or all there are.
//!
//! A candidate is a coordinate for *every* parameter, active or not, so that a parameter that a move brings to life has a
//! value; `settled` then puts the inactive ones in their resting place, which makes equal settings equal points.

use std::collections::BTreeMap;

use rand::RngExt;
use rand_distr::{Distribution as _, StandardNormal};
use rand_pcg::Pcg64;

use crate::encode::{Axis, Encoding, Point};
use peft_tune_core::space::{Distribution, SearchSpace};
use peft_tune_core::study::{ParamValue, Params};

/// A range with more values than this is searched like a continuous one and rounded.
const MOST_LEVELS: u64 = 256;
/// Deviations of a mutation along a continuous axis; one is drawn for each candidate.
const REACHES: [f64; 4] = [0.3, 0.1, 0.03, 0.01];
/// Probability that a mutation of an ordered level goes to a neighbour rather than anywhere.
const TO_NEIGHBOUR: f64 = 0.6;

/// Coordinates that each parameter of a space may have.
#[derive(Clone, Debug)]
pub(super) struct Candidates<'a> {
    space: &'a SearchSpace,
    domains: Vec<Domain>,
}

/// A value of one parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Choice {
    /// Index of the parameter.
    pub(super) parameter: usize,
    pub(super) coordinate: f64,
}

impl Choice {
    /// A point with this value of the parameter.
    pub(super) fn in_point(self, point: &Point) -> Point {
        let mut point = point.clone();
        point[self.parameter] = self.coordinate;
        point
    }
}

#[derive(Clone, Debug)]
struct Domain {
    /// Coordinate and value number, by coordinate; empty for a continuous range.
    levels: Vec<(f64, u64)>,
    /// Coordinate of the parameter while it is inactive.
    resting: f64,
    ordered: bool,
    /// Parent and the coordinates of it under which the parameter exists.
    condition: Option<(usize, Vec<f64>)>,
}

impl<'a> Candidates<'a> {
    pub(super) fn new(space: &'a SearchSpace, encoding: &'a Encoding) -> Self {
        let domains = (0..space.parameters.len())
            .map(|index| domain(space, encoding, index))
            .collect();
        Self { space, domains }
    }

    /// Number of coordinates.
    pub(super) fn dimensions(&self) -> usize {
        self.domains.len()
    }

    /// Coordinates that a parameter may have; empty for a continuous range.
    pub(super) fn levels(&self, index: usize) -> Vec<f64> {
        self.domains[index]
            .levels
            .iter()
            .map(|(coordinate, _)| *coordinate)
            .collect()
    }

    /// Whether a parameter's values have no order.
    pub(super) fn is_choice(&self, index: usize) -> bool {
        !self.domains[index].ordered
    }

    /// Indices of the continuous parameters that are active in a candidate.
    pub(super) fn continuous(&self, candidate: &[f64]) -> Vec<usize> {
        let active = self.active(candidate);
        (0..candidate.len())
            .filter(|index| active[*index] && self.domains[*index].levels.is_empty())
            .collect()
    }

    /// The candidate at a point of the unit cube.
    pub(super) fn at(&self, unit: &[f64]) -> Point {
        let coordinate = |(domain, unit): (&Domain, &f64)| match domain.levels.len() {
            0 => *unit,
            count => domain.levels[((unit * count as f64) as usize).min(count - 1)].0,
        };
        self.domains.iter().zip(unit).map(coordinate).collect()
    }

    /// The candidate of a tried setting; inactive parameters get drawn coordinates.
    pub(super) fn of(&self, point: &Point, random: &mut Pcg64) -> Point {
        let mut drawn = self.at(&(0..point.len()).map(|_| random.random()).collect::<Vec<f64>>());
        let active = self.active(point);
        for (index, coordinate) in point.iter().enumerate().filter(|(index, _)| active[*index]) {
            drawn[index] = *coordinate;
        }
        drawn
    }

    /// The encoded point of a candidate.
    pub(super) fn settled(&self, candidate: &[f64]) -> Point {
        let mut point = candidate.to_vec();
        let active = self.active(candidate);
        for (coordinate, (domain, active)) in point.iter_mut().zip(self.domains.iter().zip(active)) {
            if !active {
                *coordinate = domain.resting;
            }
        }
        point
    }

    /// The params of a candidate.
    pub(super) fn params(&self, candidate: &[f64]) -> Params {
        let active = self.active(candidate);
        let mut params = Params::new();
        for (index, parameter) in self
            .space
            .parameters
            .iter()
            .enumerate()
            .filter(|(index, _)| active[*index])
        {
            let value = self.value(index, candidate[index]);
            params.extend(value.map(|value| (parameter.name.clone(), value)));
        }
        params
    }

    /// The value of a parameter at a coordinate.
    pub(super) fn value(&self, index: usize, coordinate: f64) -> Option<ParamValue> {
        let (domain, distribution) = (&self.domains[index], &self.space.parameters[index].distribution);
        match domain.nearest(coordinate) {
            Some(level) => distribution.nth(domain.levels[level].1),
            None => Some(distribution.value_at(coordinate)),
        }
    }

    /// The coordinate at which a parameter comes nearest to a number above 0, by their ratio; `None` where its values are no
    /// numbers.
    pub(super) fn nearest_to(&self, index: usize, number: f64) -> Option<f64> {
        let value = |coordinate: f64| self.value(index, coordinate)?.as_f64();
        if self.domains[index].levels.is_empty() {
            let within = ParamValue::Float(number.clamp(value(0.0)?, value(1.0)?));
            return self.space.parameters[index].distribution.unit_of(&within);
        }
        let off = |level: f64| Some((level, (value(level)? / number).ln().abs()));
        let known = self.levels(index).into_iter().filter_map(off);
        known.min_by(|a, b| a.1.total_cmp(&b.1)).map(|(level, _)| level)
    }

    /// A copy with one to a few parameters changed.
    pub(super) fn mutated(&self, candidate: &[f64], random: &mut Pcg64) -> Point {
        let mut mutant = candidate.to_vec();
        let active = self.active(candidate);
        let movable: Vec<usize> = (0..mutant.len())
            .filter(|index| active[*index] && self.domains[*index].levels.len() != 1)
            .collect();
        if movable.is_empty() {
            return mutant;
        }
        let reach = REACHES[random.random_range(0..REACHES.len())];
        let share = 1.5 / movable.len() as f64;
        let certain = movable[random.random_range(0..movable.len())];
        for index in movable {
            if index == certain || random.random_bool(share.min(1.0)) {
                mutant[index] = self.domains[index].moved(mutant[index], reach, random);
            }
        }
        mutant
    }

    /// All candidates that differ in the level of one active parameter (at most two steps away where it is ordered).
    pub(super) fn neighbours(&self, candidate: &[f64]) -> Vec<Point> {
        let mut neighbours = Vec::new();
        for (index, active) in self.active(candidate).into_iter().enumerate() {
            let domain = &self.domains[index];
            let Some(at) = domain.nearest(candidate[index]).filter(|_| active) else {
                continue;
            };
            for (level, (coordinate, _)) in domain.levels.iter().enumerate() {
                let near = !domain.ordered || level.abs_diff(at) <= 2;
                if level != at && near {
                    let mut neighbour = candidate.to_vec();
                    neighbour[index] = *coordinate;
                    neighbours.push(neighbour);
                }
            }
        }
        neighbours
    }

    /// Settings of the space, or `None` where one is continuous or there are more than `most`.
    pub(super) fn all(&self, most: u64) -> Option<Vec<Point>> {
        if self.space.cardinality()? > most || self.domains.iter().any(|domain| domain.levels.is_empty()) {
            return None;
        }
        let mut all = Vec::new();
        self.extend_all(&mut Vec::new(), &mut all);
        Some(all)
    }

    fn extend_all(&self, start: &mut Point, all: &mut Vec<Point>) {
        let index = start.len();
        let Some(domain) = self.domains.get(index) else {
            all.push(start.clone());
            return;
        };
        if !self.is_active(index, start, &self.active(start)) {
            start.push(domain.resting);
            self.extend_all(start, all);
            start.pop();
            return;
        }
        for (coordinate, _) in &domain.levels {
            start.push(*coordinate);
            self.extend_all(start, all);
            start.pop();
        }
    }

    /// Whether a parameter is active in a candidate.
    pub(super) fn has(&self, candidate: &[f64], index: usize) -> bool {
        self.active(candidate)[index]
    }

    /// Activity of the leading parameters, as many as there are coordinates.
    fn active(&self, coordinates: &[f64]) -> Vec<bool> {
        let mut active = Vec::with_capacity(coordinates.len());
        for index in 0..coordinates.len() {
            active.push(self.is_active(index, coordinates, &active));
        }
        active
    }

    fn is_active(&self, index: usize, coordinates: &[f64], active: &[bool]) -> bool {
        let Some((parent, allowed)) = &self.domains[index].condition else {
            return true;
        };
        active[*parent]
            && allowed
                .iter()
                .any(|coordinate| (coordinate - coordinates[*parent]).abs() < 1e-9)
    }
}

impl Domain {
    /// Number of the level nearest to a coordinate; `None` for a continuous range.
    fn nearest(&self, coordinate: f64) -> Option<usize> {
        let above = self.levels.partition_point(|(other, _)| *other < coordinate);
        let candidates = [above.checked_sub(1), (above < self.levels.len()).then_some(above)];
        let distance = |level: &usize| (self.levels[*level].0 - coordinate).abs();
        candidates
            .into_iter()
            .flatten()
            .min_by(|a, b| distance(a).total_cmp(&distance(b)))
    }

    fn moved(&self, coordinate: f64, reach: f64, random: &mut Pcg64) -> f64 {
        let Some(at) = self.nearest(coordinate) else {
            let step: f64 = StandardNormal.sample(random);
            return (coordinate + reach * step).clamp(0.0, 1.0);
        };
        let count = self.levels.len();
        if self.ordered && random.random_bool(TO_NEIGHBOUR) {
            let up = at + 1 < count && (at == 0 || random.random_bool(0.5));
            return self.levels[if up { at + 1 } else { at - 1 }].0;
        }
        // Any level but the present one.
        let drawn = random.random_range(0..count - 1);
        self.levels[if drawn >= at { drawn + 1 } else { drawn }].0
    }
}

fn domain(space: &SearchSpace, encoding: &Encoding, index: usize) -> Domain {
    let parameter = &space.parameters[index];
    let axis = &encoding.axes()[index];
    let condition = parameter.condition.as_ref().and_then(|condition| {
        let parent = space
            .parameters
            .iter()
            .position(|other| other.name == condition.parameter)?;
        let allowed = condition.values.iter();
        let coordinates = allowed.filter_map(|value| encoding.coordinate(space, parent, value));
        Some((parent, coordinates.collect()))
    });
    Domain {
        levels: levels(space, encoding, index),
        resting: encoding.resting(index),
        ordered: *axis == Axis::Number,
        condition,
    }
}

fn levels(space: &SearchSpace, encoding: &Encoding, index: usize) -> Vec<(f64, u64)> {
    let distribution = &space.parameters[index].distribution;
    let count = match (distribution, distribution.cardinality()) {
        (Distribution::Categorical { choices }, _) => choices.len() as u64,
        (_, Some(count)) if count <= MOST_LEVELS => count,
        _ => return Vec::new(),
    };
    let at = |number: u64| {
        let value = distribution.nth(number)?;
        Some((encoding.coordinate(space, index, &value)?, number))
    };
    // Values that share a coordinate are one level.
    let by_coordinate: BTreeMap<u64, (f64, u64)> = (0..count)
        .filter_map(at)
        .map(|(coordinate, number)| (coordinate.to_bits(), (coordinate, number)))
        .collect();
    by_coordinate.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{conditional_space, mixed_space};
    use crate::seeded::{Stream, generator, uniform_point};

    #[test]
    fn candidates_become_params_of_the_space_and_back() {
        let space = mixed_space();
        let encoding = Encoding::new(&space);
        let candidates = Candidates::new(&space, &encoding);
        let mut random = generator(1, Stream::Bayes, 0);
        for _ in 0..200 {
            let candidate = candidates.at(&uniform_point(4, &mut random));
            let mutant = candidates.mutated(&candidate, &mut random);
            assert_ne!(candidates.settled(&mutant), candidates.settled(&candidate));
            for one in candidates.neighbours(&candidate).iter().chain([&candidate, &mutant]) {
                let params = candidates.params(one);
                assert_eq!(
                    params.contains_key("momentum"),
                    params["optimizer"].to_string() == "sgd"
                );
                let point = encoding.point(&space, &params).unwrap();
                for (a, b) in point.iter().zip(candidates.settled(one)) {
                    assert!((a - b).abs() < 1e-9, "{params:?}");
                }
            }
        }
    }

    #[test]
    fn all_settings_are_listed_once() {
        let space = conditional_space();
        let encoding = Encoding::new(&space);
        let candidates = Candidates::new(&space, &encoding);
        let all = candidates.all(1000).unwrap();
        assert_eq!(all.len(), 9);
        let mut params: Vec<String> = all.iter().map(|one| format!("{:?}", candidates.params(one))).collect();
        params.sort();
        params.dedup();
        assert_eq!(params.len(), 9);
        assert!(candidates.all(8).is_none());
        let mixed = mixed_space();
        let encoding = Encoding::new(&mixed);
        assert!(Candidates::new(&mixed, &encoding).all(1000).is_none());
    }
}
