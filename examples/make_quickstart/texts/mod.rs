//! The texts of the quickstart, made by rule from a seed: a little world told in English and in two invented tongues.
//!
//! `lexicon` says what there is in the world, `meaning` what can be said of it, `english` and `tongue` say it, `plots`
//! and `story` tell stories, and `corpus` puts documents and rows together.

mod corpus;
mod dice;
mod english;
mod lexicon;
mod meaning;
mod plots;
mod story;
mod tongue;

pub(crate) use corpus::{BaseCorpus, Document, Message, TaskRows, to_jsonl};
