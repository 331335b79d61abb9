//! Params as coordinates that a covariance kernel can take distances between.
//!
//! Ordered values become numbers in [0, 1]: evenly in their scale; listed numbers by their logarithm where they span
//! orders of magnitude (ranks 4, 8, ..., 256 are evenly spaced). Unordered values become the number of their choice, with a
//! table of squared distances: 1 between different choices (a Hamming distance), and for lists of names (target modules)
//! the share of names that are in only one of the two (Jaccard), as lists that share members behave alike.
//!
//! An inactive parameter sits in the middle of its active values: at 0.5, or at the centroid of the choices. All distances
//! are then Euclidean in some space, so that kernels on them stay positive definite; and settings whose activity differs
//! always differ in the parent parameter too, which sets them apart.

use peft_tune_core::space::{Distribution, Parameter, SearchSpace};
use peft_tune_core::study::{ParamValue, Params};

/// One coordinate a parameter, in the order of the space.
pub(super) type Point = Vec<f64>;

/// The bits of a settled point, for hashing.
pub(super) fn key(point: &[f64]) -> Vec<u64> {
    point.iter().map(|coordinate| (coordinate + 0.0).to_bits()).collect()
}

/// The coordinate of an inactive number.
const MIDDLE: f64 = 0.5;

/// How one parameter's coordinates are compared.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Axis {
    Number,
    /// Coordinates are choice numbers, `choices` itself means inactive; `squares[a * (choices + 1) + b]` is the squared
    /// distance.
    Choice {
        choices: usize,
        squares: Vec<f64>,
    },
}

impl Axis {
    /// Squared distance of two coordinates.
    pub(super) fn square(&self, a: f64, b: f64) -> f64 {
        match self {
            Self::Number => (a - b) * (a - b),
            Self::Choice { choices, squares } => squares[a as usize * (choices + 1) + b as usize],
        }
    }
}

/// The coordinates of a search space.
#[derive(Clone, Debug)]
pub(super) struct Encoding {
    axes: Vec<Axis>,
    /// Coordinates of listed numbers, by choice; empty for other parameters.
    listed: Vec<Vec<f64>>,
}

impl Encoding {
    pub(super) fn new(space: &SearchSpace) -> Self {
        let (axes, listed) = space.parameters.iter().map(axis).unzip();
        Self { axes, listed }
    }

    pub(super) fn axes(&self) -> &[Axis] {
        &self.axes
    }

    /// Coordinates of params, or `None` where a value is not in the space.
    pub(super) fn point(&self, space: &SearchSpace, params: &Params) -> Option<Point> {
        let coordinate = |(index, parameter): (usize, &Parameter)| match params.get(&parameter.name) {
            Some(value) => self.coordinate(space, index, value),
            None => (!space.is_active(parameter, params)).then(|| self.resting(index)),
        };
        space.parameters.iter().enumerate().map(coordinate).collect()
    }

    /// The coordinate of one parameter's value, or `None` where it is not one of the parameter's.
    pub(super) fn coordinate(&self, space: &SearchSpace, index: usize, value: &ParamValue) -> Option<f64> {
        match &space.parameters[index].distribution {
            Distribution::Categorical { choices } => {
                let number = choices.iter().position(|choice| choice.is_same(value))?;
                let listed = self.listed[index].get(number);
                Some(listed.copied().unwrap_or(number as f64))
            }
            distribution => distribution.unit_of(value),
        }
    }

    /// The coordinate of an inactive parameter.
    pub(super) fn resting(&self, index: usize) -> f64 {
        match &self.axes[index] {
            Axis::Number => MIDDLE,
            Axis::Choice { choices, .. } => *choices as f64,
        }
    }
}

fn axis(parameter: &Parameter) -> (Axis, Vec<f64>) {
    let Distribution::Categorical { choices } = &parameter.distribution else {
        return (Axis::Number, Vec::new());
    };
    let numbers: Option<Vec<f64>> = choices.iter().map(ParamValue::as_f64).collect();
    match numbers {
        Some(numbers) => (Axis::Number, spaced(&numbers)),
        None => (choice_axis(choices), Vec::new()),
    }
}

/// Places numbers in [0, 1], by their logarithm where the largest is at least eight times the smallest.
fn spaced(numbers: &[f64]) -> Vec<f64> {
    let low = numbers.iter().copied().fold(f64::INFINITY, f64::min);
    let high = numbers.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let log = low > 0.0 && high / low >= 8.0;
    let scale = |value: f64| if log { value.ln() } else { value };
    let (start, width) = (scale(low), scale(high) - scale(low));
    let place = |value: &f64| {
        if width > 0.0 {
            (scale(*value) - start) / width
        } else {
            MIDDLE
        }
    };
    numbers.iter().map(place).collect()
}

fn choice_axis(choices: &[ParamValue]) -> Axis {
    let count = choices.len();
    let between = |a: usize, b: usize| list_distance(&choices[a], &choices[b]);
    let mean_to = |a: usize| (0..count).map(|b| between(a, b)).sum::<f64>() / count as f64;
    let spread = (0..count).map(mean_to).sum::<f64>() / count as f64 / 2.0;
    let width = count + 1;
    let mut squares = vec![0.0; width * width];
    for a in 0..count {
        for b in 0..count {
            squares[a * width + b] = between(a, b);
        }
        // Squared distance to the centroid of points with these mutual distances.
        let centroid = (mean_to(a) - spread).max(0.0);
        squares[a * width + count] = centroid;
        squares[count * width + a] = centroid;
    }
    Axis::Choice {
        choices: count,
        squares,
    }
}

fn list_distance(a: &ParamValue, b: &ParamValue) -> f64 {
    let (ParamValue::List(a), ParamValue::List(b)) = (a, b) else {
        return f64::from(u8::from(a != b));
    };
    let shared = a.iter().filter(|name| b.contains(name)).count();
    let all = a.len() + b.len() - shared;
    if all == 0 {
        0.0
    } else {
        1.0 - shared as f64 / all as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{categorical, mixed_space, parameter};

    #[test]
    fn coordinates_follow_scale_order_and_activity() {
        let space = mixed_space();
        let encoding = Encoding::new(&space);
        let point = space.params_at(&[0.5, 0.1, 0.9, 0.75]);
        // rank 8 of 4, 8, 16 (too narrow a range for logarithms); adamw; no momentum; 1e-2 on a log scale.
        let coordinates = encoding.point(&space, &point).unwrap();
        assert!((coordinates[0] - 1.0 / 3.0).abs() < 1e-12);
        assert_eq!(&coordinates[1..3], [0.0, MIDDLE]);
        assert!((coordinates[3] - 0.75).abs() < 1e-12);
        assert_eq!(encoding.point(&space, &Params::new()), None);
    }

    #[test]
    fn listed_numbers_that_span_magnitudes_are_spaced_by_logarithm() {
        assert!((spaced(&[4.0, 16.0, 64.0])[1] - 0.5).abs() < 1e-12);
        assert_eq!(spaced(&[0.0, 50.0, 100.0]), [0.0, 0.5, 1.0]);
        assert_eq!(spaced(&[3.0]), [MIDDLE]);
    }

    #[test]
    fn choices_are_equally_far_apart_and_from_the_inactive_one() {
        let space = SearchSpace {
            parameters: vec![parameter("optimizer", categorical(["adamw", "lion", "sgd"]))],
        };
        let encoding = Encoding::new(&space);
        let axis = &encoding.axes()[0];
        assert_eq!((axis.square(0.0, 1.0), axis.square(2.0, 2.0)), (1.0, 0.0));
        for choice in 0..3 {
            assert!((axis.square(f64::from(choice), 3.0) - 1.0 / 3.0).abs() < 1e-12);
        }
    }

    #[test]
    fn lists_are_near_where_they_share_names() {
        let list = |names: &[&str]| ParamValue::list(names.iter().copied());
        let axis = choice_axis(&[list(&["q", "v"]), list(&["q", "k", "v", "o"]), list(&["up"])]);
        assert_eq!((axis.square(0.0, 1.0), axis.square(0.0, 2.0)), (0.5, 1.0));
    }
}
