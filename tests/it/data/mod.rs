//! The data path on the files of `tests/fixtures` and the numbers of `tests/golden/chat`.

mod formats;
mod masks;
mod mistakes;
mod mixtures;
mod prepare;
mod templates;
mod windows;

use std::path::PathBuf;

use peft_tune_core::recipe::DataSettings;
use peft_tune_engine::data::{DataError, DocumentSet, PreparedData};
use peft_tune_engine::hub::TokenizerFiles;
use peft_tune_engine::tokenizer::Tokenizer;
use peft_tune_kernels::ops::loss_head::IGNORE;

/// A file of the test folder.
fn test_file(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests").join(path)
}

/// A data file of the fixtures.
fn data_file(name: &str) -> PathBuf {
    test_file("fixtures/data").join(name)
}

/// A tokenizer of the fixtures.
fn tokenizer(name: &str) -> Tokenizer {
    let folder = test_file("fixtures").join(name);
    Tokenizer::open(&TokenizerFiles::resolve(folder.to_str().unwrap()).unwrap()).unwrap()
}

/// Settings for one fixture file, with half of it held out.
fn settings(name: &str) -> DataSettings {
    DataSettings {
        train: vec![data_file(name)].into(),
        held_out: peft_tune_core::recipe::HeldOut::Fraction(0.5),
        ..DataSettings::default()
    }
}

/// Prepares without a cache.
fn prepare(settings: &DataSettings, tokenizer: &Tokenizer, sequence_length: usize) -> Result<PreparedData, DataError> {
    PreparedData::prepare(settings, tokenizer, sequence_length, 0, None)
}

/// The text of each document, and of the targets in it.
fn texts(documents: &DocumentSet, tokenizer: &Tokenizer) -> Vec<(String, String)> {
    let texts = (0..documents.len()).map(|index| {
        let document = documents.document(index).to_document();
        let targets: Vec<u32> = document
            .labels
            .iter()
            .filter(|l| **l != IGNORE)
            .map(|l| *l as u32)
            .collect();
        let decode = |ids: &[u32]| tokenizer.decode(ids, false).unwrap();
        (decode(&document.input_ids), decode(&targets))
    });
    texts.collect()
}

/// Training and held-out texts together, in no order.
fn all_texts(prepared: &PreparedData, tokenizer: &Tokenizer) -> Vec<(String, String)> {
    let mut all = texts(prepared.train(), tokenizer);
    all.extend(texts(prepared.held_out(), tokenizer));
    all.sort();
    all
}
