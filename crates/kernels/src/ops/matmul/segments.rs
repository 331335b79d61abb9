//! The rows of a sum, cut where some of them have more products.

use std::ops::Range;

/// Every row in one of the ranges: those of `own` by their number, and what lies between them.
pub(super) fn segments<'a>(
    own: impl Iterator<Item = &'a Range<usize>>,
    rows: usize,
) -> Vec<(Option<usize>, Range<usize>)> {
    let (mut segments, mut end) = (Vec::new(), 0);
    for (number, range) in own.enumerate() {
        segments.push((None, end..range.start));
        segments.push((Some(number), range.clone()));
        end = range.end;
    }
    segments.push((None, end..rows));
    segments.retain(|(_, range)| !range.is_empty());
    segments
}
