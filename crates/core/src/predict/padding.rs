//! Costs of padding where the rows of a micro-batch are made as long as the longest of them.
//!
//! Rows are dealt without replacement, in an order that is drawn anew for each epoch: a micro-batch of m of n rows is any of
//! the n over m choices. With lengths l_1 <= .. <= l_n its longest row is at most l_k with probability
//! P_k = (k over m) / (n over m), so that its mean is the sum of l_k (P_k - P_(k-1)). P_n is 1, and P_(k-1) = P_k (k - m) / k.
//!
//! Where rows of similar length meet, spans of s rows are drawn, and micro-batches are taken from each in the order of its lengths. The
//! k-th shortest of s draws lies at the quantile k / (s + 1) of all rows in the mean.

/// Mean length of the longest of `rows` rows that are drawn without replacement from those of `lengths`, which are sorted; of all of
/// them, where there are fewer.
pub fn mean_longest(lengths: &[usize], rows: usize) -> f64 {
    let drawn = rows.max(1) as f64;
    let mut at_most = 1.0;
    let mut mean = 0.0;
    for (index, length) in lengths.iter().enumerate().rev() {
        let place = index as f64 + 1.0;
        let below = at_most * ((place - drawn) / place).max(0.0);
        mean += *length as f64 * (at_most - below);
        at_most = below;
        if at_most <= 0.0 {
            break;
        }
    }
    mean
}

/// Mean length of the longest of `rows` rows that are taken from spans of `span` drawn rows in the order of their lengths; those of
/// `lengths` are sorted.
pub(super) fn mean_longest_of_similar(lengths: &[usize], rows: usize, span: usize) -> f64 {
    let Some(last) = lengths.len().checked_sub(1) else {
        return 0.0;
    };
    let rows = rows.max(1);
    let span = span.max(rows).min(lengths.len());
    let at_rank = |rank: usize| lengths[(rank * lengths.len() / (span + 1)).min(last)] as f64;
    let sum: f64 = (1..=span).rev().step_by(rows).map(at_rank).sum();
    sum / span.div_ceil(rows) as f64
}

/// Share of padding among all tokens of micro-batches of `rows` rows, which are padded to the longest of these sorted `lengths`;
/// `mean` tokens of a row are none.
pub fn padding_share(lengths: &[usize], mean: f64, rows: usize) -> f64 {
    let longest = mean_longest(lengths, rows);
    match longest > 0.0 {
        true => (1.0 - mean / longest).max(0.0),
        false => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Mean of the longest of `rows` lengths, over all choices one by one.
    fn by_counting(lengths: &[usize], rows: usize) -> f64 {
        let (mut sum, mut count) = (0, 0);
        for choice in 0_u32..1 << lengths.len() {
            if choice.count_ones() as usize == rows {
                let chosen = (0..lengths.len()).filter(|index| choice >> index & 1 == 1);
                sum += chosen.map(|index| lengths[index]).max().unwrap_or(0);
                count += 1;
            }
        }
        sum as f64 / f64::from(count)
    }

    proptest! {
        #[test]
        fn the_mean_over_all_choices_is_what_the_formula_says(
            mut lengths in prop::collection::vec(1_usize..500, 1..11),
            rows in 1_usize..11,
        ) {
            lengths.sort_unstable();
            let rows = rows.min(lengths.len());
            let counted = by_counting(&lengths, rows);
            prop_assert!((mean_longest(&lengths, rows) - counted).abs() < 1e-9 * counted);
        }

        #[test]
        fn larger_micro_batches_never_pad_less(mut lengths in prop::collection::vec(1_usize..500, 1..40)) {
            lengths.sort_unstable();
            let mean = lengths.iter().sum::<usize>() as f64 / lengths.len() as f64;
            let shares: Vec<f64> = (1..=lengths.len()).map(|rows| padding_share(&lengths, mean, rows)).collect();
            prop_assert!(shares[0].abs() < 1e-9);
            prop_assert!(shares.windows(2).all(|pair| pair[0] <= pair[1] + 1e-12));
        }
    }

    #[test]
    fn rows_of_similar_length_pad_less_and_whole_data_in_their_order_pad_least() {
        let lengths: Vec<usize> = (1..=400).collect();
        let at_random = mean_longest(&lengths, 4);
        let similar = mean_longest_of_similar(&lengths, 4, 40);
        assert!(similar < 0.75 * at_random && similar > 200.0, "{similar} {at_random}");
        // 400, 396, .., 4.
        assert_eq!(mean_longest_of_similar(&lengths, 4, 4000), 202.0);
        assert_eq!(mean_longest_of_similar(&[3, 9], 8, 8), 9.0);
        assert_eq!(mean_longest_of_similar(&[], 2, 8), 0.0);
    }

    #[test]
    fn rows_of_one_length_and_data_smaller_than_a_micro_batch() {
        // The mean of equal numbers is one of them but for its last bit.
        assert!(padding_share(&[7; 5], 7.0, 3) < 1e-12);
        assert_eq!(mean_longest(&[3, 9], 8), 9.0);
        assert_eq!((mean_longest(&[], 2), padding_share(&[], 0.0, 2)), (0.0, 0.0));
    }
}
