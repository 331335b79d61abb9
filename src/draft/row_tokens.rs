//! How long the rows are in tokens, as well as it is known, and what sequence length follows from it.

use super::data_file::RowLengths;
use super::long_rows::LongerRows;
use super::token_lengths::TokenLengths;

/// Lengths come in steps of so many tokens.
const STEP: usize = 64;
/// Shortest and longest sequence length that is chosen.
const SHORTEST: usize = 128;
const LONGEST: usize = 8192;
/// Longest of what is guessed, and of running text, of which nothing is lost at any length.
const LONGEST_GUESS: usize = 4096;
const OF_RUNNING_TEXT: usize = 1024;
/// Bytes of a token, about.
const BYTES: usize = 4;

/// Lengths of the data's rows.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum RowTokens {
    /// Tokenised.
    Counted(TokenLengths),
    /// Guessed from the bytes of the rows' lines.
    Guessed(RowLengths),
    Unknown,
}

impl RowTokens {
    /// What the bytes of the rows tell, where these are known.
    pub(crate) fn guessed(rows: Option<RowLengths>) -> Self {
        rows.map_or(Self::Unknown, Self::Guessed)
    }

    /// The length that the rows ask for. Where they are counted it is the smallest multiple of 64 that cuts less than one
    /// in a hundred.
    pub(super) fn sequence_length(&self) -> usize {
        match self {
            Self::Counted(lengths) => {
                let most = if lengths.is_running { OF_RUNNING_TEXT } else { LONGEST };
                let wanted = lengths.nearly_all().min(most);
                wanted.next_multiple_of(STEP).max(SHORTEST)
            }
            Self::Guessed(rows) => (rows.long_bytes / BYTES)
                .next_power_of_two()
                .clamp(SHORTEST, LONGEST_GUESS),
            Self::Unknown => OF_RUNNING_TEXT,
        }
    }

    /// Rows that are longer than a length, where they are counted and there are any.
    pub(crate) fn longer(&self, sequence_length: usize) -> Option<LongerRows> {
        match self {
            Self::Counted(lengths) => LongerRows::of(lengths, sequence_length),
            Self::Guessed(_) | Self::Unknown => None,
        }
    }

    /// Tokens of the mean row as it is trained on, at least 2; half of the length where nothing is known.
    pub(super) fn mean(&self, sequence_length: usize) -> f64 {
        let mean = match self {
            Self::Counted(lengths) => match self.longer(sequence_length) {
                Some(few) if few.are_few() => lengths.mean_of_whole(sequence_length),
                _ => lengths.mean_of_cut(sequence_length),
            },
            Self::Guessed(rows) => rows.mean_bytes / BYTES as f64,
            Self::Unknown => sequence_length as f64 / 2.0,
        };
        mean.min(sequence_length as f64).max(2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(tokens: Vec<usize>) -> RowTokens {
        RowTokens::Counted(TokenLengths::new(tokens))
    }

    #[test]
    fn counted_rows_get_the_smallest_length_that_cuts_few() {
        assert_eq!(counted(vec![400; 50]).sequence_length(), 448);
        assert_eq!(counted(vec![448; 50]).sequence_length(), 448);
        assert_eq!(counted(vec![3; 50]).sequence_length(), 128);
        assert_eq!(counted(vec![20_000; 50]).sequence_length(), 8192);
        let rows = counted([vec![200; 150], vec![900; 1]].concat());
        assert_eq!((rows.sequence_length(), rows.mean(256)), (256, 200.0));
        assert_eq!(rows.longer(256).unwrap().to_string(), "1 of 151 rows");
        let text = RowTokens::Counted(TokenLengths {
            is_running: true,
            ..TokenLengths::new(vec![20_000])
        });
        assert_eq!((text.sequence_length(), text.longer(1024)), (1024, None));
    }

    #[test]
    fn without_a_tokenizer_bytes_tell() {
        let rows = RowLengths {
            long_bytes: 900,
            mean_bytes: 400.0,
            rows: 10,
        };
        let guessed = RowTokens::guessed(Some(rows));
        assert_eq!((guessed.sequence_length(), guessed.mean(256)), (256, 100.0));
        let unknown = RowTokens::guessed(None);
        assert_eq!((unknown.sequence_length(), unknown.mean(1024)), (1024, 512.0));
    }
}
