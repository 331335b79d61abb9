//! The rows of the data counted in tokens, with the model's own tokenizer.

/// Rows of which at most one may be longer than the sequence length.
const ONE_LONGER_OF: usize = 100;

/// Tokens of the rows that were looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TokenLengths {
    /// Tokens of each row with something to learn, the shortest first.
    pub tokens: Vec<usize>,
    /// All rows that were read.
    pub rows: u64,
    /// Whether there are more rows, which were not looked at.
    pub is_sample: bool,
    /// Whether the rows are running text, which is split rather than cut.
    pub is_running: bool,
}

impl TokenLengths {
    /// Rows of these lengths, all that there are.
    pub(crate) fn new(mut tokens: Vec<usize>) -> Self {
        tokens.sort_unstable();
        Self {
            rows: tokens.len() as u64,
            tokens,
            is_sample: false,
            is_running: false,
        }
    }

    /// The length that less than one row in a hundred goes beyond.
    pub(super) fn nearly_all(&self) -> usize {
        let longer = self.tokens.len().saturating_sub(1) / ONE_LONGER_OF;
        let at = self.tokens.len().checked_sub(longer + 1);
        at.map_or(0, |at| self.tokens[at])
    }

    /// Rows that are cut, or left out, at a sequence length.
    pub(super) fn longer_than(&self, sequence_length: usize) -> u64 {
        match self.is_running {
            true => 0,
            false => (self.tokens.len() - self.up_to(sequence_length)) as u64,
        }
    }

    /// Tokens of the mean row where longer ones are cut.
    pub(super) fn mean_of_cut(&self, sequence_length: usize) -> f64 {
        let cut = self.tokens.iter().map(|tokens| (*tokens).min(sequence_length));
        mean(cut.sum(), self.tokens.len())
    }

    /// Tokens of the mean row where longer ones are left out.
    pub(super) fn mean_of_whole(&self, sequence_length: usize) -> f64 {
        let whole = &self.tokens[..self.up_to(sequence_length)];
        mean(whole.iter().sum(), whole.len())
    }

    /// Rows of at most so many tokens.
    fn up_to(&self, sequence_length: usize) -> usize {
        self.tokens.partition_point(|tokens| *tokens <= sequence_length)
    }
}

fn mean(tokens: usize, rows: usize) -> f64 {
    tokens as f64 / rows.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn less_than_one_row_in_a_hundred_is_longer() {
        let of =
            |short: usize, long: usize| TokenLengths::new([vec![100; short], vec![500; long]].concat()).nearly_all();
        assert_eq!(of(99, 1), 500);
        assert_eq!(of(100, 1), 100);
        assert_eq!(of(298, 2), 100);
        assert_eq!(of(40, 0), 100);
        assert_eq!(of(0, 0), 0);
    }

    #[test]
    fn means_are_of_what_is_trained_on() {
        let lengths = TokenLengths::new(vec![400, 100, 200]);
        assert_eq!((lengths.longer_than(200), lengths.longer_than(400)), (1, 0));
        assert_eq!((lengths.mean_of_cut(300), lengths.mean_of_whole(300)), (200.0, 150.0));
        let running = TokenLengths {
            is_running: true,
            ..lengths
        };
        assert_eq!(running.longer_than(200), 0);
    }
}
