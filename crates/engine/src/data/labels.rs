//! Labels of a tokenised text.

use std::ops::Range;

use super::tokens::NO_TARGET;
use crate::tokenizer::Encoded;

/// The labels of a tokenised text: a token is a target where it ends inside one of the byte ranges, so that one
/// which begins in the prompt and ends in the answer is learnt. Special tokens that were put in front end at 0.
pub(super) fn label(encoded: &Encoded, spans: &[Range<usize>]) -> Vec<u32> {
    let mut spans = spans.iter().peekable();
    let tokens = encoded.ids.iter().zip(&encoded.ends);
    tokens
        .map(|(id, end)| {
            while spans.next_if(|span| span.end < *end).is_some() {}
            match spans.peek() {
                Some(span) if *end > span.start => *id,
                _ => NO_TARGET,
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_belongs_to_the_span_that_it_ends_in() {
        let encoded = Encoded {
            ids: vec![9, 1, 2, 3, 4, 5],
            ends: vec![0, 2, 5, 6, 8, 9],
        };
        let labels = label(&encoded, &[3..6, 8..9]);
        assert_eq!(labels, [NO_TARGET, NO_TARGET, 2, 3, NO_TARGET, 5]);
    }
}
