//! Pareto dominance among points that are minimised.
//!
//! `a` dominates `b` where it is nowhere worse and somewhere better. Equal points do not dominate each other. A point with
//! a NaN dominates nothing and is never on a front.

use std::cmp::Ordering;

/// Whether `a` is nowhere worse than `b` and somewhere better.
pub fn dominates(a: &[f64], b: &[f64]) -> bool {
    let mut better = false;
    for (a, b) in a.iter().zip(b) {
        match a.partial_cmp(b) {
            Some(Ordering::Less) => better = true,
            Some(Ordering::Equal) => {}
            Some(Ordering::Greater) | None => return false,
        }
    }
    better
}

/// Indices of the points that no other dominates, ascending; equal points are all kept.
pub fn front<P: AsRef<[f64]>>(points: &[P]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..points.len())
        .filter(|index| !points[*index].as_ref().iter().any(|value| value.is_nan()))
        .collect();
    // A point can only be dominated by one that comes before it in lexicographic order.
    order.sort_by(|a, b| lexicographic(points[*a].as_ref(), points[*b].as_ref()));
    let mut kept: Vec<usize> = Vec::new();
    for index in order {
        let point = points[index].as_ref();
        if !kept.iter().any(|other| dominates(points[*other].as_ref(), point)) {
            kept.push(index);
        }
    }
    kept.sort_unstable();
    kept
}

/// Rank of each point: 0 on the front, 1 on the front of what is left without it, and so on (fast non-dominated sorting,
/// Deb et al. 2002). Points with a NaN share the last rank.
pub fn ranks<P: AsRef<[f64]>>(points: &[P]) -> Vec<usize> {
    let mut ranks = vec![usize::MAX; points.len()];
    let mut left: Vec<usize> = (0..points.len()).collect();
    let mut rank = 0;
    while !left.is_empty() {
        let layer: Vec<&[f64]> = left.iter().map(|index| points[*index].as_ref()).collect();
        let mut members = front(&layer);
        if members.is_empty() {
            members = (0..left.len()).collect();
        }
        for member in &members {
            ranks[left[*member]] = rank;
        }
        left.retain(|index| ranks[*index] == usize::MAX);
        rank += 1;
    }
    ranks
}

/// Crowding distance of each point among `points` (Deb et al. 2002): the sum over objectives of the gap between its
/// neighbours, as a share of the objective's range; infinite at the ends.
pub fn crowding<P: AsRef<[f64]>>(points: &[P]) -> Vec<f64> {
    let mut distance = vec![0.0; points.len()];
    let objectives = points.first().map_or(0, |point| point.as_ref().len());
    for objective in 0..objectives {
        let value = |index: usize| points[index].as_ref()[objective];
        let mut order: Vec<usize> = (0..points.len()).collect();
        order.sort_by(|a, b| value(*a).total_cmp(&value(*b)));
        let (first, last) = (order[0], order[order.len() - 1]);
        let range = value(last) - value(first);
        distance[first] = f64::INFINITY;
        distance[last] = f64::INFINITY;
        if range > 0.0 {
            for three in order.windows(3) {
                distance[three[1]] += (value(three[2]) - value(three[0])) / range;
            }
        }
    }
    distance
}

fn lexicographic(a: &[f64], b: &[f64]) -> Ordering {
    let unequal = a.iter().zip(b).map(|(a, b)| {
        // -0.0 and 0.0 are one value.
        (a + 0.0).total_cmp(&(b + 0.0))
    });
    unequal.fold(Ordering::Equal, Ordering::then)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn points(objectives: usize) -> impl Strategy<Value = Vec<Vec<f64>>> {
        // Few different values, so that ties and duplicates are common.
        prop::collection::vec(prop::collection::vec((0..6).prop_map(f64::from), objectives), 0..25)
    }

    proptest! {
        #[test]
        fn front_is_exactly_what_nothing_dominates(points in (1usize..5).prop_flat_map(points)) {
            let naive: Vec<usize> = (0..points.len())
                .filter(|index| !points.iter().any(|other| dominates(other, &points[*index])))
                .collect();
            prop_assert_eq!(front(&points), naive);
        }

        #[test]
        fn a_dominated_point_has_a_higher_rank(points in points(3)) {
            let ranks = ranks(&points);
            for (a, rank_a) in points.iter().zip(&ranks) {
                for (b, rank_b) in points.iter().zip(&ranks) {
                    prop_assert!(!dominates(a, b) || rank_a < rank_b);
                }
            }
        }
    }

    #[test]
    fn front_drops_dominated_and_nan_points_and_keeps_equal_ones() {
        let points = [[1.0, 2.0], [1.0, 2.0], [2.0, 2.0], [f64::NAN, 0.0], [2.0, 1.0]];
        assert_eq!(front(&points), [0, 1, 4]);
        assert_eq!(ranks(&points), [0, 0, 1, 2, 0]);
    }

    #[test]
    fn crowding_favours_the_ends_and_the_lonely() {
        let points = [[0.0, 1.0], [0.1, 0.9], [0.2, 0.8], [0.9, 0.1], [1.0, 0.0]];
        let distance = crowding(&points);
        assert!(distance[0].is_infinite() && distance[4].is_infinite());
        assert!(distance[3] > distance[1] && distance[2] > distance[1]);
    }
}
