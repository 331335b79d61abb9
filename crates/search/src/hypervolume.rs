//! Exact hypervolume of points that are minimised: the volume that they dominate below a reference point.
//!
//! One and two objectives are a sweep; more are the WFG recursion (While, Bradstreet, Barone 2012): a point's exclusive
//! volume is its own box less what the later points dominate inside it. For the fronts of a study (tens of points, up to
//! four objectives) this takes microseconds to milliseconds.

use super::pareto;

/// The hypervolume of `points` below `reference`. Points that are not better than the reference in every objective add
/// nothing; duplicates add nothing twice; NaN adds nothing.
pub fn hypervolume<P: AsRef<[f64]>>(points: &[P], reference: &[f64]) -> f64 {
    let inside = |point: &&P| point.as_ref().iter().zip(reference).all(|(value, limit)| value < limit);
    let points: Vec<Vec<f64>> = points
        .iter()
        .filter(inside)
        .map(|point| point.as_ref().to_vec())
        .collect();
    of_front(front_only(points), reference)
}

/// What `point` would add to the hypervolume of `points`.
pub(crate) fn contribution<P: AsRef<[f64]>>(point: &[f64], points: &[P], reference: &[f64]) -> f64 {
    if !point.iter().zip(reference).all(|(value, limit)| value < limit) {
        return 0.0;
    }
    let others: Vec<Vec<f64>> = points.iter().map(|other| other.as_ref().to_vec()).collect();
    exclusive(point, &others, reference)
}

/// Indices of at most `count` of `values`, each the one that adds most to those before it.
pub(crate) fn greedy_subset<P: AsRef<[f64]>>(values: &[P], reference: &[f64], count: usize) -> Vec<usize> {
    let mut left: Vec<usize> = (0..values.len()).collect();
    let mut taken = Vec::new();
    let mut points: Vec<&[f64]> = Vec::new();
    while taken.len() < count && !left.is_empty() {
        let gain = |index: usize| contribution(values[index].as_ref(), &points, reference);
        let best = (0..left.len()).max_by(|a, b| gain(left[*a]).total_cmp(&gain(left[*b])));
        let index = left.remove(best.unwrap_or(0));
        points.push(values[index].as_ref());
        taken.push(index);
    }
    taken
}

/// Keeps the points that no other dominates, each once.
fn front_only(points: Vec<Vec<f64>>) -> Vec<Vec<f64>> {
    let mut kept: Vec<Vec<f64>> = pareto::front(&points)
        .into_iter()
        .map(|index| points[index].clone())
        .collect();
    // Worst last objective first: the limited sets of the recursion then shrink fastest.
    kept.sort_by(|a, b| {
        let reversed = b.iter().rev().zip(a.iter().rev());
        reversed.fold(std::cmp::Ordering::Equal, |order, (b, a)| order.then(b.total_cmp(a)))
    });
    kept.dedup();
    kept
}

/// Hypervolume of mutually non-dominated points inside the reference.
fn of_front(points: Vec<Vec<f64>>, reference: &[f64]) -> f64 {
    match reference.len() {
        0 => 0.0,
        1 => points.first().map_or(0.0, |point| reference[0] - point[0]),
        2 => staircase(points, reference),
        _ => (0..points.len())
            .map(|index| exclusive(&points[index], &points[index + 1..], reference))
            .sum(),
    }
}

fn staircase(mut points: Vec<Vec<f64>>, reference: &[f64]) -> f64 {
    points.sort_by(|a, b| a[0].total_cmp(&b[0]));
    let mut above = reference[1];
    let mut area = 0.0;
    for point in &points {
        area += (reference[0] - point[0]) * (above - point[1]);
        above = point[1];
    }
    area
}

/// Volume that `point` dominates and none of `others` does.
fn exclusive(point: &[f64], others: &[Vec<f64>], reference: &[f64]) -> f64 {
    let own: f64 = point
        .iter()
        .zip(reference)
        .map(|(value, limit)| limit - value)
        .product();
    let limited = others
        .iter()
        .map(|other| other.iter().zip(point).map(|(a, b)| a.max(*b)).collect())
        .collect();
    own - of_front(front_only(inside_only(limited, reference)), reference)
}

fn inside_only(points: Vec<Vec<f64>>, reference: &[f64]) -> Vec<Vec<f64>> {
    let inside = |point: &Vec<f64>| point.iter().zip(reference).all(|(value, limit)| value < limit);
    points.into_iter().filter(inside).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand::{RngExt, SeedableRng};

    use super::*;

    #[test]
    fn known_volumes() {
        assert_eq!(hypervolume(&[[1.0, 2.0], [2.0, 1.0]], &[3.0, 3.0]), 3.0);
        // Two boxes of 2 and 2 that share a cube of 1.
        assert_eq!(hypervolume(&[[0.0, 1.0, 1.0], [1.0, 0.0, 1.0]], &[2.0, 2.0, 2.0]), 3.0);
        assert_eq!(hypervolume(&[[0.0; 4], [0.5; 4]], &[1.0; 4]), 1.0);
        assert_eq!(hypervolume(&[[0.25], [0.5]], &[1.0]), 0.75);
        assert_eq!(hypervolume::<[f64; 2]>(&[], &[1.0, 1.0]), 0.0);
        assert_eq!(hypervolume(&[[2.0, 0.0], [f64::NAN, 0.0]], &[1.0, 1.0]), 0.0);
    }

    #[test]
    fn a_dense_sphere_front_approaches_its_closed_form() {
        // DTLZ2's front with three objectives: 1.1^3 less an eighth of the unit ball.
        let mut points = Vec::new();
        let steps = 40;
        for a in 0..=steps {
            for b in 0..=steps {
                let (a, b) = (f64::from(a) / f64::from(steps), f64::from(b) / f64::from(steps));
                let (a, b) = (a * std::f64::consts::FRAC_PI_2, b * std::f64::consts::FRAC_PI_2);
                points.push([a.cos() * b.cos(), a.cos() * b.sin(), a.sin()]);
            }
        }
        let exact = 1.1f64.powi(3) - std::f64::consts::PI / 6.0;
        let volume = hypervolume(&points, &[1.1; 3]);
        assert!(volume < exact && volume > exact - 0.04, "{volume} of {exact}");
    }

    fn points(objectives: usize, most: usize) -> impl Strategy<Value = Vec<Vec<f64>>> {
        prop::collection::vec(prop::collection::vec(0.0..1.2f64, objectives), 0..most)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]

        #[test]
        fn it_never_falls_as_points_are_added(points in (1usize..5).prop_flat_map(|m| points(m, 14))) {
            let reference = vec![1.0; points.first().map_or(2, Vec::len)];
            let mut before = 0.0;
            for count in 0..=points.len() {
                let volume = hypervolume(&points[..count], &reference);
                prop_assert!(volume >= before - 1e-12, "{} after {}", volume, before);
                if count > 0 {
                    let added = contribution(&points[count - 1], &points[..count - 1], &reference);
                    prop_assert!((volume - before - added).abs() < 1e-12);
                }
                before = volume;
            }
        }

        #[test]
        fn it_equals_monte_carlo(points in (2usize..5).prop_flat_map(|m| points(m, 12)), seed: u64) {
            let objectives = points.first().map_or(2, Vec::len);
            let mut random = rand_pcg::Pcg64::seed_from_u64(seed);
            let samples = 20_000;
            let hits = (0..samples)
                .filter(|_| {
                    let sample: Vec<f64> = (0..objectives).map(|_| random.random()).collect();
                    points.iter().any(|point| point.iter().zip(&sample).all(|(a, b)| a <= b))
                })
                .count();
            let estimate = hits as f64 / samples as f64;
            let exact = hypervolume(&points, &vec![1.0; objectives]);
            // Five standard errors of a fraction of 20,000.
            prop_assert!((estimate - exact).abs() < 0.018, "{} against {}", estimate, exact);
        }
    }
}
