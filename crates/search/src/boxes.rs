//! The region that a front does not dominate, below a reference point, as disjoint boxes.
//!
//! The last objective is swept upwards: between two neighbouring values of it, the front so far (without that objective)
//! leaves a region one dimension lower, decomposed the same way; a lower box that stays the same over several slabs is
//! one box. For n points this gives n + 1 boxes with two objectives and at most about 3n with three (compare Lacour,
//! Klamroth and Fonseca 2017; Yang et al. 2019).

use std::collections::BTreeMap;

use super::pareto;

/// Boxes with open lower ends, their bounds as indices into each objective's coordinates.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Boxes {
    /// Ascending values of each objective; the first is minus infinity and the last the reference.
    pub(super) coordinates: Vec<Vec<f64>>,
    /// Per box and objective the indices of its lower and upper bound.
    pub(super) cells: Vec<Vec<(u32, u32)>>,
}

impl Boxes {
    /// Decomposes what `points` do not dominate below `reference`; points outside the reference do not matter.
    pub(super) fn new<P: AsRef<[f64]>>(points: &[P], reference: &[f64]) -> Self {
        let inside = |point: &&[f64]| point.iter().zip(reference).all(|(value, limit)| value < limit);
        let inside: Vec<&[f64]> = points.iter().map(AsRef::as_ref).filter(inside).collect();
        let front: Vec<&[f64]> = pareto::front(&inside).into_iter().map(|index| inside[index]).collect();
        let coordinates: Vec<Vec<f64>> = reference
            .iter()
            .enumerate()
            .map(|(objective, limit)| {
                let mut values: Vec<f64> = front.iter().map(|point| point[objective]).collect();
                values.extend([f64::NEG_INFINITY, *limit]);
                values.sort_by(f64::total_cmp);
                values.dedup();
                values
            })
            .collect();
        let index_of = |(objective, value): (usize, &f64)| {
            let values = &coordinates[objective];
            values.partition_point(|other| other < value) as u32
        };
        let indexed = front
            .iter()
            .map(|point| point.iter().enumerate().map(index_of).collect())
            .collect();
        let ends: Vec<u32> = coordinates.iter().map(|values| values.len() as u32 - 1).collect();
        Self {
            cells: decomposed(indexed, &ends),
            coordinates,
        }
    }
}

/// Boxes of the region that points on an integer grid leave below `ends`.
fn decomposed(mut points: Vec<Vec<u32>>, ends: &[u32]) -> Vec<Vec<(u32, u32)>> {
    let [lower_ends @ .., end] = ends else {
        return vec![Vec::new()];
    };
    let last = lower_ends.len();
    if last == 0 {
        let least = points.iter().map(|point| point[0]).min().unwrap_or(*end);
        return vec![vec![(0, least)]];
    }
    points.sort_by_key(|point| point[last]);
    let mut open: BTreeMap<Vec<(u32, u32)>, u32> = BTreeMap::new();
    let mut cells = Vec::new();
    let mut below: Vec<Vec<u32>> = Vec::new();
    let mut bottom = 0;
    let mut next = 0;
    loop {
        let layer = decomposed(below.clone(), lower_ends);
        let still: BTreeMap<_, _> = layer
            .into_iter()
            .map(|cell| {
                let start = open.remove(&cell).unwrap_or(bottom);
                (cell, start)
            })
            .collect();
        cells.extend(open.into_iter().map(|(cell, start)| closed(cell, start, bottom)));
        open = still;
        let Some(point) = points.get(next) else {
            break;
        };
        bottom = point[last];
        while let Some(point) = points.get(next).filter(|point| point[last] == bottom) {
            insert(&mut below, &point[..last]);
            next += 1;
        }
    }
    cells.extend(open.into_iter().map(|(cell, start)| closed(cell, start, *end)));
    cells
}

fn closed(mut cell: Vec<(u32, u32)>, start: u32, end: u32) -> Vec<(u32, u32)> {
    cell.push((start, end));
    cell
}

/// Adds a point to a set of points none of which dominates another.
fn insert(front: &mut Vec<Vec<u32>>, point: &[u32]) {
    let covers = |a: &[u32], b: &[u32]| a.iter().zip(b).all(|(a, b)| a <= b);
    if front.iter().any(|other| covers(other, point)) {
        return;
    }
    front.retain(|other| !covers(point, other));
    front.push(point.to_vec());
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::hypervolume;

    /// Volume of the boxes above `floor`.
    fn volume(boxes: &Boxes, floor: f64) -> f64 {
        let side = |objective: usize, (low, high): (u32, u32)| {
            let at = |index: u32| boxes.coordinates[objective][index as usize].max(floor);
            at(high) - at(low)
        };
        let one = |cell: &Vec<(u32, u32)>| cell.iter().enumerate().map(|(o, ends)| side(o, *ends)).product::<f64>();
        boxes.cells.iter().map(one).sum()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]

        #[test]
        fn boxes_fill_what_the_front_leaves(
            points in (1usize..5).prop_flat_map(|m| prop::collection::vec(prop::collection::vec((0..8).prop_map(|v| f64::from(v) / 7.0), m), 1..14))
        ) {
            let objectives = points[0].len();
            let reference = vec![1.0; objectives];
            let boxes = Boxes::new(&points, &reference);
            let left = 1.0 - hypervolume(&points, &reference);
            prop_assert!((volume(&boxes, 0.0) - left).abs() < 1e-12);
            // Disjoint: no two boxes share a grid cell.
            for (index, a) in boxes.cells.iter().enumerate() {
                for b in &boxes.cells[..index] {
                    prop_assert!(a.iter().zip(b).any(|(a, b)| a.1 <= b.0 || b.1 <= a.0));
                }
            }
        }
    }

    #[test]
    fn few_boxes_suffice() {
        let sphere: Vec<Vec<f64>> = (0..60)
            .map(|index| {
                let point = crate::sobol::sobol_point(index, 2, 1);
                let (a, b) = (point[0] * 1.57, point[1] * 1.57);
                vec![a.cos() * b.cos(), a.cos() * b.sin(), a.sin()]
            })
            .collect();
        let three = Boxes::new(&sphere, &[1.1; 3]).cells.len();
        assert!(three <= 3 * 60, "{three}");
        let two: Vec<[f64; 2]> = (0..20).map(|i| [f64::from(i), f64::from(20 - i)]).collect();
        assert_eq!(Boxes::new(&two, &[30.0; 2]).cells.len(), 21);
        assert_eq!(Boxes::new::<[f64; 2]>(&[], &[1.0, 1.0]).cells.len(), 1);
    }
}
