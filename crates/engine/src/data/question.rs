//! Rows as questions: what comes before an answer, and the answer.

use super::DocumentSet;
use peft_tune_kernels::ops::loss_head::IGNORE;

/// The last answer of a row with all that leads to it, in tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// Tokens of the question, never empty.
    pub prompt: Vec<u32>,
    /// Answer of the row, with what ends it. Never empty.
    pub answer: Vec<u32>,
}

impl Question {
    /// The question of a row whose tokens have these labels; `None` where nothing comes before the answer, or there is none.
    fn of(ids: &[u32], labels: &[i64]) -> Option<Self> {
        let end = labels.iter().rposition(|label| *label != IGNORE)? + 1;
        let start = labels[..end].iter().rposition(|label| *label == IGNORE)? + 1;
        let answer = labels[start..end].iter().map(|label| u32::try_from(*label));
        Some(Self {
            prompt: ids[..start].to_vec(),
            answer: answer.collect::<Result<_, _>>().ok()?,
        })
    }
}

impl DocumentSet {
    /// First questions of the set, at most `most`, of a mixture from all of its sets: rows of running text, rows that
    /// are targets from their beginning and rows whose end was cut away ask none.
    pub fn questions(&self, most: usize) -> Vec<Question> {
        let whole = self.in_turns().filter(|index| self.is_whole_row(*index));
        let questions = whole.filter_map(|index| {
            let document = self.document(index);
            Question::of(&document.input_ids, &document.labels().collect::<Vec<_>>())
        });
        questions.take(most).collect()
    }

    /// Beginnings of the first documents of the set, at most `most`, of a mixture from all of its sets, each of at most `tokens` tokens
    /// (at least 1): what comes before the last answer, or the first half of a document that has no answer with something before it.
    pub fn beginnings(&self, most: usize, tokens: usize) -> Vec<Vec<u32>> {
        let beginnings = self.in_turns().take(most).map(|index| {
            let document = self.document(index);
            let labels: Vec<i64> = document.labels().collect();
            let mut beginning = beginning(&document.input_ids, &labels);
            beginning.truncate(tokens);
            beginning
        });
        beginnings.collect()
    }
}

/// What comes before the last answer, or the first half where nothing does. Never empty.
fn beginning(ids: &[u32], labels: &[i64]) -> Vec<u32> {
    match Question::of(ids, labels) {
        Some(question) => question.prompt,
        None => ids[..ids.len().div_ceil(2)].to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_answer_of_a_row_is_asked_for() {
        let (ids, no) = ([1, 2, 3, 4, 5, 6, 7], IGNORE);
        let question = Question::of(&ids, &[no, no, 3, no, 5, 6, no]).unwrap();
        assert_eq!((question.prompt, question.answer), (vec![1, 2, 3, 4], vec![5, 6]));
        assert_eq!(Question::of(&ids, &[1, 2, 3, 4, 5, 6, 7]), None);
        assert_eq!(Question::of(&ids, &[no; 7]), None);
    }

    #[test]
    fn a_document_that_asks_nothing_begins_with_its_first_half() {
        let (ids, no) = ([1, 2, 3], IGNORE);
        assert_eq!(beginning(&ids, &[1, 2, 3]), [1, 2]);
        assert_eq!(beginning(&ids, &[no, no, 3]), [1, 2]);
        assert_eq!(beginning(&ids, &[no, 2, 3]), [1]);
    }
}
