//! Median of numbers, and how far they lie from it. Single numbers that go astray move neither.

/// Standard deviations of normal noise in its median absolute deviation.
const NORMAL: f64 = 1.4826;

/// Median of numbers in any order; `None` of nothing.
pub fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        count if count % 2 == 1 => Some(values[middle]),
        _ => Some(f64::midpoint(values[middle - 1], values[middle])),
    }
}

/// Standard deviation from `center` of numbers that are normal but for a few: 1.4826 times their median absolute deviation; `None` of
/// nothing.
pub fn normal_deviation(values: impl IntoIterator<Item = f64>, center: f64) -> Option<f64> {
    let apart = values.into_iter().map(|value| (value - center).abs());
    Some(NORMAL * median(apart)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_are_of_what_is_there() {
        assert_eq!(median([3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median([4.0, 1.0]), Some(2.5));
        assert_eq!(median([]), None);
    }

    #[test]
    fn one_number_far_away_does_not_widen_the_deviation() {
        assert_eq!(normal_deviation([1.0, 2.0, 3.0, 2.0, 1e9], 2.0), Some(1.4826));
        assert_eq!(normal_deviation([2.0; 3], 2.0), Some(0.0));
        assert_eq!(normal_deviation([], 2.0), None);
    }
}
