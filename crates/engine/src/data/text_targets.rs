//! Targets of a chat without what its template writes around texts: each text, and the token that ends its turn.
//!
//! axolotl learns chats so. A token counts as a text's where it holds a character of it, as there.

use std::collections::BTreeSet;
use std::ops::Range;

use super::tokens::NO_TARGET;
use crate::tokenizer::Encoded;

/// Tokens between a text and the token that ends its turn, at most: line breaks and the like.
const BETWEEN: usize = 3;

/// A rendered chat, and what of it is learnt.
pub(super) struct TextTargets<'a> {
    pub encoded: &'a Encoded,
    /// Places of the texts of each message to learn.
    pub messages: &'a [Vec<Range<usize>>],
    /// Answers to learn, each to the end of its turn.
    pub answers: &'a [Range<usize>],
    /// Whether a token is one that text never becomes, or ends generation.
    pub is_special: &'a dyn Fn(u32) -> bool,
}

impl TextTargets<'_> {
    /// The label of each token.
    pub(super) fn labels(&self) -> Vec<u32> {
        let ids = &self.encoded.ids;
        let mut labels = vec![NO_TARGET; ids.len()];
        let mut stops = BTreeSet::new();
        let end_of = |texts: &Vec<Range<usize>>| texts.iter().map(|text| text.end).max();
        for texts in self.messages {
            texts.iter().for_each(|text| self.learn(text, &mut labels));
            if let Some(stop) = end_of(texts).and_then(|end| self.stop_of_answer(end)) {
                labels[stop] = ids[stop];
                stops.insert(ids[stop]);
            }
        }
        // Texts of users and systems end in the token that ends answers, or in none to learn. Where nobody answers, it is not known which.
        let ends_turn = |id: u32| stops.contains(&id) || self.answers.is_empty() && (self.is_special)(id);
        for end in self.messages.iter().filter_map(end_of) {
            let behind = self.behind(end)..ids.len();
            if let Some(stop) = behind.take(BETWEEN + 1).find(|at| ends_turn(ids[*at])) {
                labels[stop] = ids[stop];
            }
        }
        labels
    }

    /// Learns the tokens that hold a character of `text`.
    fn learn(&self, text: &Range<usize>, labels: &mut [u32]) {
        let (mut start, mut last_end) = (0, 0);
        for (at, end) in self.encoded.ends.iter().enumerate() {
            // Tokens that make up one character share its end.
            if *end > last_end {
                (start, last_end) = (last_end, *end);
            }
            if *end > text.start && start < text.end {
                labels[at] = self.encoded.ids[at];
            }
        }
    }

    /// The token that ends the turn of an answer whose texts end at `end`, as the template writes it.
    fn stop_of_answer(&self, end: usize) -> Option<usize> {
        let answer = self.answers.iter().find(|span| span.start < end && end <= span.end)?;
        let behind = self.behind(end)..self.behind(answer.end);
        behind.rev().find(|at| (self.is_special)(self.encoded.ids[*at]))
    }

    /// Index of the first token that ends behind a byte.
    fn behind(&self, end: usize) -> usize {
        self.encoded.ends.partition_point(|token| *token <= end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The labels of `<u>ab</e>.<a>cd</e>.`, where specials are single tokens and the line's end behind a turn is `.`.
    fn labels(messages: &[Vec<Range<usize>>], answers: &[Range<usize>]) -> Vec<u32> {
        let encoded = Encoded {
            ids: vec![90, 1, 91, 9, 92, 2, 3, 91, 9],
            ends: vec![3, 5, 9, 10, 13, 14, 15, 19, 20],
        };
        let targets = TextTargets {
            encoded: &encoded,
            messages,
            answers,
            is_special: &|id| id >= 90,
        };
        targets.labels()
    }

    const NO: u32 = NO_TARGET;

    #[test]
    fn an_answer_is_learnt_to_the_token_that_ends_its_turn() {
        let text = 13..15;
        let answer = [vec![text]];
        let labels = |span| labels(&answer, std::slice::from_ref(&span));
        assert_eq!(labels(13..20), [NO, NO, NO, NO, NO, 2, 3, 91, NO]);
        // A template may mark answers without that token.
        assert_eq!(labels(13..15), [NO, NO, NO, NO, NO, 2, 3, NO, NO]);
    }

    #[test]
    fn texts_of_others_end_as_answers_do() {
        let (first, second) = (3..5, 13..15);
        let both = [vec![first], vec![second]];
        assert_eq!(
            labels(&both, std::slice::from_ref(&(13..20))),
            [NO, 1, 91, NO, NO, 2, 3, 91, NO]
        );
        // Of a chat without answers.
        assert_eq!(labels(&both[..1], &[]), [NO, 1, 91, NO, NO, NO, NO, NO, NO]);
    }

    #[test]
    fn a_token_that_holds_a_character_of_a_text_is_learnt_whole() {
        // Two tokens make up one character, and share its end; then a token across the end of a text.
        let encoded = Encoded {
            ids: vec![1, 2, 3, 4],
            ends: vec![1, 4, 4, 7],
        };
        let labels = |text: Range<usize>| {
            let targets = TextTargets {
                encoded: &encoded,
                messages: &[vec![text]],
                answers: &[],
                is_special: &|_| false,
            };
            targets.labels()
        };
        assert_eq!(labels(1..4), [NO, 2, 3, NO]);
        assert_eq!(labels(2..5), [NO, 2, 3, 4]);
    }
}
