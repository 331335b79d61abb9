//! Sets that are mixed by weights, from files to steps.

use peft_tune_core::recipe::{BatchSettings, DataSettings, HeldOut, TrainingData, TrainingSet};
use peft_tune_engine::data::{BatchSource, PreparedData, RowOrder, evaluation_batches};

use super::{data_file, prepare, tokenizer};

fn set(names: &[&str], weight: f64) -> TrainingSet {
    TrainingSet {
        files: names.iter().map(|name| data_file(name)).collect(),
        weight,
    }
}

/// Rows of two layouts: 12 of Alpaca's and 12 texts.
fn settings(weights: [f64; 2]) -> DataSettings {
    DataSettings {
        train: TrainingData::Mixture(vec![
            set(&["alpaca.json"], weights[0]),
            set(&["text.jsonl"], weights[1]),
        ]),
        held_out: HeldOut::Fraction(0.25),
        ..DataSettings::default()
    }
}

#[test]
fn a_share_of_each_set_is_held_out_and_all_else_is_trained_on() {
    let tokenizer = tokenizer("tokenizer");
    let mixed = prepare(&settings([0.7, 0.3]), &tokenizer, 256).unwrap();
    let alone = ["alpaca.json", "text.jsonl"].map(|name| {
        let settings = DataSettings {
            train: TrainingData::from(&data_file(name)),
            ..settings([1.0, 1.0])
        };
        prepare(&settings, &tokenizer, 256).unwrap()
    });
    for (mixed, alone) in [
        (mixed.train(), alone.each_ref().map(PreparedData::train)),
        (mixed.held_out(), alone.each_ref().map(PreparedData::held_out)),
    ] {
        let documents = alone
            .iter()
            .flat_map(|set| (0..set.len()).map(|index| set.document(index)));
        let documents: Vec<_> = documents.collect();
        let found: Vec<_> = (0..mixed.len()).map(|index| mixed.document(index)).collect();
        assert_eq!(found, documents);
        let tokens = alone.map(|set| set.statistics().tokens);
        assert_eq!(mixed.statistics().tokens, tokens[0] + tokens[1]);
    }
    assert_eq!((mixed.train().len(), mixed.held_out().len()), (18, 6));
    // A limit leaves all sets in.
    let text = |batch: &peft_tune_engine::data::MicroBatch| tokenizer.decode(&batch.input_ids, false).unwrap();
    let two: Vec<String> = evaluation_batches(mixed.held_out(), 1, Some(2))
        .map(|batch| text(&batch))
        .collect();
    assert!(
        two[0].contains("<|im_start|>user") != two[1].contains("<|im_start|>user"),
        "{two:?}"
    );
}

#[test]
fn weights_decide_the_steps_and_no_row_is_tokenised_again() {
    let tokenizer = tokenizer("tokenizer");
    let folder = tempfile::tempdir().unwrap();
    let of = |weights| PreparedData::prepare(&settings(weights), &tokenizer, 256, 0, Some(folder.path())).unwrap();
    let (most, few) = (of([0.75, 0.25]), of([0.25, 0.75]));
    let files = std::fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(files, 2, "a file of tokens for each set, whatever the weights");
    assert_ne!(most.fingerprint(), few.fingerprint());
    assert_eq!(most.fingerprint(), of([0.75, 0.25]).fingerprint());
    let batch = BatchSettings {
        micro_batch: 4,
        sequence_length: 256,
        ..BatchSettings::default()
    };
    for (data, share) in [(&most, 0.75), (&few, 0.25)] {
        let source = BatchSource::new(data.train().clone(), &batch, RowOrder::Shuffled { seed: 1 }).unwrap();
        // 18 rows of which 13.5 and 4.5 are due: 14 and 4, or 13 and 5. Two epochs, whose last steps have two rows.
        let (mut all, mut of_steps) = (0, Vec::new());
        for step in 0..10 {
            let micro_batches = source.global_batch(step);
            let ends = micro_batches[0].offsets.windows(2);
            let rows = ends.map(|row| &micro_batches[0].input_ids[row[0] as usize..row[1] as usize]);
            let is_alpaca = rows.map(|ids| tokenizer.decode(ids, false).unwrap().contains("<|im_start|>user"));
            let is_alpaca: Vec<bool> = is_alpaca.collect();
            let alpaca = is_alpaca.iter().filter(|is_alpaca| **is_alpaca).count();
            let due = share * is_alpaca.len() as f64;
            assert!((alpaca as f64 - due).abs() <= 1.0, "{alpaca} of {due} in step {step}");
            all += alpaca;
            of_steps.push(is_alpaca.len());
        }
        assert_eq!(of_steps, [4, 4, 4, 4, 2, 4, 4, 4, 4, 2]);
        assert!((all as f64 - 36.0 * share).abs() <= 2.0, "{all} of {}", 36.0 * share);
    }
}

#[test]
fn held_out_files_and_the_limit_of_rows_are_those_of_each_set() {
    let tokenizer = tokenizer("tokenizer");
    let settings = DataSettings {
        held_out: HeldOut::Files(vec![data_file("alpaca.csv"), data_file("text.jsonl")]),
        max_rows: Some(5),
        ..settings([0.5, 0.5])
    };
    let data = prepare(&settings, &tokenizer, 256).unwrap();
    assert_eq!((data.train().len(), data.held_out().len()), (10, 24));
    let warnings: Vec<String> = data.warnings().iter().map(ToString::to_string).collect();
    assert_eq!(warnings.len(), 1);
    assert!(
        warnings[0].contains("text.jsonl is both training and held-out data"),
        "{warnings:?}"
    );
}

#[test]
fn a_set_that_cannot_be_used_is_named() {
    let tokenizer = tokenizer("tokenizer");
    let folder = tempfile::tempdir().unwrap();
    let one = folder.path().join("one.jsonl");
    std::fs::write(&one, "{\"text\": \"a single row\"}\n").unwrap();
    let mut settings = settings([0.5, 0.5]);
    let TrainingData::Mixture(sets) = &mut settings.train else {
        panic!("it is a mixture");
    };
    sets[1].files = vec![one];
    let error = prepare(&settings, &tokenizer, 256).unwrap_err().to_string();
    assert!(
        error.contains("one.jsonl: 1 row(s) cannot be split into training and held-out rows"),
        "{error}"
    );
    let mut weightless = self::settings([0.5, 0.5]);
    weightless.train = TrainingData::Mixture(vec![set(&["alpaca.json"], f64::NAN), set(&["text.jsonl"], 1.0)]);
    let error = prepare(&weightless, &tokenizer, 256).unwrap_err().to_string();
    assert!(
        error.starts_with("`data.train`: the weight of ") && error.contains(" is NaN; write a number above 0"),
        "{error}"
    );
}
