//! Fewer points of a curve, so that a thousand curves fit into a page.

/// Thins a curve to at most `most` points that look like all of them (largest triangle three buckets, Steinarsson
/// 2013): the ends, and of each stretch between them the point that bends the curve most.
pub(super) fn thinned(points: &[(f64, f64)], most: usize) -> Vec<(f64, f64)> {
    if points.len() <= most.max(3) {
        return points.to_vec();
    }
    let most = most.max(3);
    let inner = points.len() - 2;
    let bucket = |index: usize| 1 + index * inner / (most - 2);
    let mut kept = vec![points[0]];
    for index in 0..most - 2 {
        let here = &points[bucket(index)..bucket(index + 1)];
        let next = &points[bucket(index + 1)..(bucket(index + 2)).min(points.len())];
        let next = if next.is_empty() {
            &points[points.len() - 1..]
        } else {
            next
        };
        let mean = next
            .iter()
            .fold((0.0, 0.0), |sum, point| (sum.0 + point.0, sum.1 + point.1));
        let mean = (mean.0 / next.len() as f64, mean.1 / next.len() as f64);
        let last = kept[kept.len() - 1];
        let area = |point: &(f64, f64)| {
            ((last.0 - mean.0) * (point.1 - last.1) - (last.0 - point.0) * (mean.1 - last.1)).abs()
        };
        let widest = here.iter().max_by(|a, b| area(a).total_cmp(&area(b)));
        kept.extend(widest);
    }
    kept.push(points[points.len() - 1]);
    kept
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_spike_survives() {
        let mut points: Vec<(f64, f64)> = (0..10_000).map(|x| (f64::from(x), 1.0)).collect();
        points[4_321].1 = 9.0;
        let kept = thinned(&points, 50);
        assert!(kept.len() <= 50 && kept.contains(&(4_321.0, 9.0)));
    }

    proptest! {
        #[test]
        fn ends_and_order_are_kept(values in prop::collection::vec(-5.0..5.0f64, 0..300), most in 0usize..80) {
            let points: Vec<(f64, f64)> = values.iter().enumerate().map(|(x, y)| (x as f64, *y)).collect();
            let kept = thinned(&points, most);
            prop_assert!(kept.len() <= points.len() && kept.len() <= most.max(3));
            prop_assert_eq!(kept.first(), points.first());
            prop_assert_eq!(kept.last(), points.last());
            prop_assert!(kept.windows(2).all(|pair| pair[0].0 < pair[1].0));
        }
    }
}
