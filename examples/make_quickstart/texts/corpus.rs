//! The texts: what the base model reads, and the rows of the fine-tuning.

use std::collections::BTreeSet;

use super::dice::Dice;
use super::english;
use super::meaning::Sentence;
use super::story::Story;
use super::tongue::Tongue;

const BASE_SEED: u64 = 1;
const BASE_HELD_OUT_SEED: u64 = 2;
const TASK_SEED: u64 = 3;

/// One message of a conversation: who says what.
pub(crate) type Message = (&'static str, String);

/// One document of the base model's corpus.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Document {
    Text(String),
    Chat(Vec<Message>),
}

/// Endless documents for the base model, the same each time.
pub(crate) struct BaseCorpus {
    dice: Dice,
    marrin: Tongue,
}

impl BaseCorpus {
    /// Corpus that the base model is trained on.
    pub(crate) fn training() -> Self {
        Self::new(BASE_SEED)
    }

    /// Documents of the same kind that it never sees.
    pub(crate) fn held_out() -> Self {
        Self::new(BASE_HELD_OUT_SEED)
    }

    fn new(seed: u64) -> Self {
        Self {
            dice: Dice::new(seed),
            marrin: Tongue::marrin(),
        }
    }

    fn translation(&mut self) -> Vec<Message> {
        let sentence = Sentence::random(&mut self.dice);
        let (english, marrin) = (english::say(&sentence), self.marrin.say(&sentence));
        if self.dice.chance(70) {
            exchange(format!("Marrin: {english}"), marrin)
        } else {
            exchange(format!("English: {marrin}"), english)
        }
    }

    fn question(&mut self) -> Vec<Message> {
        let story = Story::random(&mut self.dice);
        let mut questions = story.questions;
        self.dice.shuffle(&mut questions);
        questions.truncate(2);
        let mut told = story.text;
        let mut messages = Vec::new();
        for (question, answer) in questions {
            messages.extend(exchange(format!("{told} {question}").trim_start().to_owned(), answer));
            told = String::new();
        }
        messages
    }
}

impl Iterator for BaseCorpus {
    type Item = Document;

    fn next(&mut self) -> Option<Document> {
        Some(match self.dice.below(10) {
            0..3 => Document::Text(Story::random(&mut self.dice).text),
            3..5 => Document::Text(english::say(&Sentence::random(&mut self.dice))),
            5..9 => Document::Chat(self.translation()),
            _ => Document::Chat(self.question()),
        })
    }
}

/// Rows of the fine-tuning task: say an English sentence in Oskel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TaskRows {
    pub train: Vec<Vec<Message>>,
    /// Sentences that are not among the training rows.
    pub held_out: Vec<Vec<Message>>,
}

impl TaskRows {
    /// The rows that are shipped.
    pub(crate) fn standard() -> Self {
        Self::new(2000, 200)
    }

    /// Makes so many rows, no sentence twice.
    fn new(train: usize, held_out: usize) -> Self {
        let (mut dice, oskel) = (Dice::new(TASK_SEED), Tongue::oskel());
        let mut said = BTreeSet::new();
        let mut rows = Vec::new();
        while rows.len() < train + held_out {
            let sentence = Sentence::random(&mut dice);
            let english = english::say(&sentence);
            if said.insert(english.clone()) {
                rows.push(exchange(format!("Oskel: {english}"), oskel.say(&sentence)));
            }
        }
        let held_out = rows.split_off(train);
        Self { train: rows, held_out }
    }
}

/// `rows` as JSON lines of `messages`.
pub(crate) fn to_jsonl(rows: &[Vec<Message>]) -> String {
    rows.iter()
        .map(|row| {
            let messages: Vec<_> = row
                .iter()
                .map(|(role, content)| serde_json::json!({ "role": role, "content": content }))
                .collect();
            serde_json::json!({ "messages": messages }).to_string() + "\n"
        })
        .collect()
}

fn exchange(question: String, answer: String) -> Vec<Message> {
    vec![("user", question), ("assistant", answer)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_texts_are_the_same_every_time() {
        let first: Vec<_> = BaseCorpus::training().take(300).collect();
        let second: Vec<_> = BaseCorpus::training().take(300).collect();
        assert_eq!(first, second);
        assert_eq!(TaskRows::new(100, 20), TaskRows::new(100, 20));
    }

    #[test]
    fn held_out_rows_are_new_sentences() {
        let rows = TaskRows::new(500, 100);
        let train: BTreeSet<_> = rows.train.iter().map(|row| &row[0].1).collect();
        assert!(rows.held_out.iter().all(|row| !train.contains(&row[0].1)));
    }

    #[test]
    fn every_held_out_word_of_the_answers_stands_in_the_training_rows() {
        let rows = TaskRows::standard();
        let words = |rows: &[Vec<Message>]| -> BTreeSet<String> {
            rows.iter()
                .flat_map(|row| {
                    row[1]
                        .1
                        .trim_end_matches('.')
                        .split(' ')
                        .map(str::to_owned)
                        .collect::<Vec<_>>()
                })
                .collect()
        };
        let (train, held_out) = (words(&rows.train), words(&rows.held_out));
        let unseen = held_out.difference(&train).count();
        assert!(unseen * 20 < held_out.len(), "{unseen} of {}", held_out.len());
    }
}
