//! Packing: filling rows with several documents.
//!
//! Best-fit decreasing: the documents are taken from the longest to the shortest, and each goes into the fullest row
//! that still holds it. That needs at most 11/9 of the fewest possible rows plus one (Johnson 1974).

use std::collections::BTreeMap;

/// Packs documents of the given lengths into rows of `capacity` tokens; no length may be greater. Returns the
/// documents of each row in ascending order, the rows ordered by their first document.
pub(super) fn best_fit_decreasing(lengths: &[usize], capacity: usize) -> Vec<Vec<u32>> {
    let mut order: Vec<u32> = (0..lengths.len() as u32).collect();
    order.sort_by_key(|document| std::cmp::Reverse(lengths[*document as usize]));
    let mut rows: Vec<Vec<u32>> = Vec::new();
    // Free tokens to the rows that have so many left.
    let mut free: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for document in order {
        let length = lengths[document as usize];
        let fullest = free.range_mut(length..).next().map(|(left, rows)| (*left, rows.pop()));
        let (left, row) = match fullest {
            Some((left, Some(row))) => {
                if free.get(&left).is_some_and(Vec::is_empty) {
                    free.remove(&left);
                }
                rows[row].push(document);
                (left - length, row)
            }
            _ => {
                rows.push(vec![document]);
                (capacity.saturating_sub(length), rows.len() - 1)
            }
        };
        if left > 0 {
            free.entry(left).or_default().push(row);
        }
    }
    rows.iter_mut().for_each(|row| row.sort_unstable());
    rows.sort_unstable_by_key(|row| row[0]);
    rows
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_fullest_row_that_fits_is_taken() {
        let rows = best_fit_decreasing(&[6, 4, 7, 3, 2, 8], 10);
        assert_eq!(rows, [vec![0, 1], vec![2, 3], vec![4, 5]]);
    }

    proptest! {
        #[test]
        fn every_document_has_one_place_and_no_row_overflows(
            lengths in prop::collection::vec(1_usize..=32, 0..300),
        ) {
            let capacity = 32;
            let rows = best_fit_decreasing(&lengths, capacity);
            let mut all: Vec<u32> = rows.iter().flatten().copied().collect();
            all.sort_unstable();
            prop_assert_eq!(all, (0..lengths.len() as u32).collect::<Vec<_>>());
            let fill = |row: &Vec<u32>| row.iter().map(|d| lengths[*d as usize]).sum::<usize>();
            prop_assert!(rows.iter().all(|row| fill(row) <= capacity));
            let half_empty = rows.iter().filter(|row| 2 * fill(row) <= capacity).count();
            prop_assert!(half_empty <= 1, "two such rows would be one");
        }
    }
}
