//! The cache, the split and the way to the trainer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use peft_tune_core::recipe::{BatchSettings, DataSettings, HeldOut};
use peft_tune_engine::data::{
    BatchSource, DataWarning, Document, DocumentSet, MicroBatch, Prefetch, PrefetchTimes, PreparedData, RowOrder,
    evaluation_batches,
};
use peft_tune_engine::hub::TokenizerFiles;
use peft_tune_engine::tokenizer::Tokenizer;

use super::{data_file, prepare, settings, test_file, texts, tokenizer};

fn documents(set: &DocumentSet) -> Vec<Document> {
    (0..set.len()).map(|index| set.document(index).to_document()).collect()
}

fn same(a: &PreparedData, b: &PreparedData) {
    assert_eq!(documents(a.train()), documents(b.train()));
    assert_eq!(documents(a.held_out()), documents(b.held_out()));
    assert_eq!(a.train().statistics(), b.train().statistics());
    assert_eq!(a.held_out().statistics(), b.held_out().statistics());
}

#[test]
fn retained_rows_are_read_beside_the_others_and_change_none_of_them() {
    let tokenizer = tokenizer("tokenizer");
    let folder = tempfile::tempdir().unwrap();
    let without = prepare(&settings("messages.jsonl"), &tokenizer, 40).unwrap();
    assert!(without.retained().is_none());
    // Another layout than that of the training rows.
    let alone = DataSettings {
        held_out: HeldOut::File(data_file("text.jsonl")),
        ..settings("alpaca.csv")
    };
    let alone = prepare(&alone, &tokenizer, 40).unwrap();
    let with = DataSettings {
        retain: vec![data_file("text.jsonl")],
        ..settings("messages.jsonl")
    };
    // Twice with a cache: written, then read.
    for cache in [None, Some(folder.path()), Some(folder.path())] {
        let data = PreparedData::prepare(&with, &tokenizer, 40, 0, cache).unwrap();
        same(&data, &without);
        let retained = data.retained().unwrap();
        assert_eq!(texts(retained, &tokenizer), texts(alone.held_out(), &tokenizer));
        assert!(data.at_length(100).unwrap().retained().is_some());
    }
}

#[test]
fn the_cache_gives_what_was_tokenised() {
    let tokenizer = tokenizer("tokenizer");
    let folder = tempfile::tempdir().unwrap();
    let settings = settings("messages.jsonl");
    let fresh = prepare(&settings, &tokenizer, 40).unwrap();
    let cached = |length| PreparedData::prepare(&settings, &tokenizer, length, 0, Some(folder.path())).unwrap();
    same(&fresh, &cached(40));
    same(&fresh, &cached(40));
    same(&fresh.at_length(100).unwrap(), &cached(100));
    let files: Vec<_> = std::fs::read_dir(folder.path()).unwrap().collect();
    assert_eq!(files.len(), 1, "one file for every length");

    // A damaged file is written again.
    let path = files[0].as_ref().unwrap().path();
    let mut bytes = std::fs::read(&path).unwrap();
    let whole = bytes.clone();
    bytes[200] ^= 1;
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, bytes).unwrap();
    same(&fresh, &cached(40));
    assert_eq!(std::fs::read(&path).unwrap(), whole);

    // Another seed splits otherwise and has its own file.
    let other = PreparedData::prepare(&settings, &tokenizer, 40, 1, Some(folder.path())).unwrap();
    assert_ne!(documents(other.held_out()), documents(fresh.held_out()));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
}

#[test]
fn many_may_fill_the_cache_at_once() {
    let tokenizer = tokenizer("tokenizer");
    let folder = tempfile::tempdir().unwrap();
    let settings = settings("messages.jsonl");
    let fresh = prepare(&settings, &tokenizer, 64).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let cached = PreparedData::prepare(&settings, &tokenizer, 64, 0, Some(folder.path())).unwrap();
                same(&fresh, &cached);
            });
        }
    });
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn a_cache_that_cannot_be_written_is_a_warning() {
    let tokenizer = tokenizer("tokenizer");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let prepared = PreparedData::prepare(&settings("text.jsonl"), &tokenizer, 64, 0, Some(&file)).unwrap();
    assert!(matches!(prepared.warnings()[..], [DataWarning::CacheNotWritten { .. }]));
}

#[test]
fn held_out_rows_are_apart_from_training_rows() {
    let tokenizer = tokenizer("tokenizer");
    let settings = DataSettings {
        held_out: HeldOut::Fraction(0.25),
        ..settings("alpaca.json")
    };
    let prepared = prepare(&settings, &tokenizer, 256).unwrap();
    assert_eq!((prepared.train().len(), prepared.held_out().len()), (9, 3));
    let train = documents(prepared.train());
    assert!(
        documents(prepared.held_out())
            .iter()
            .all(|document| !train.contains(document))
    );
    // The same rows whatever the sequence length.
    let longer = prepare(&settings, &tokenizer, 512).unwrap();
    assert_eq!(documents(longer.held_out()), documents(prepared.held_out()));
}

#[test]
fn held_out_files_are_read_on_their_own() {
    let tokenizer = tokenizer("tokenizer");
    let held_out = HeldOut::Files(vec![data_file("text.jsonl"), data_file("alpaca.csv")]);
    let settings = DataSettings {
        held_out,
        ..settings("text.jsonl")
    };
    let prepared = prepare(&settings, &tokenizer, 256).unwrap();
    assert_eq!((prepared.train().len(), prepared.held_out().len()), (12, 24));
    assert!(matches!(
        prepared.warnings()[..],
        [DataWarning::HeldOutIsTrained { .. }]
    ));
}

/// Times of what was prepared once nothing more is: the same for a while.
fn settled(batches: &Prefetch) -> PrefetchTimes {
    let until = Instant::now() + Duration::from_secs(20);
    let mut before = batches.times();
    while Instant::now() < until {
        std::thread::sleep(Duration::from_millis(50));
        let now = batches.times();
        if now.steps == before.steps && now.data_waits_s > before.data_waits_s {
            return now;
        }
        before = now;
    }
    panic!("the thread is never held up: {before:?}");
}

#[test]
fn so_many_steps_are_ready_ahead_and_no_more() {
    let tokenizer = tokenizer("tokenizer");
    let prepared = prepare(&settings("alpaca.json"), &tokenizer, 96).unwrap();
    let start = |prefetch_depth, steps| {
        let batch = BatchSettings {
            prefetch_depth,
            ..BatchSettings::default()
        };
        let source = BatchSource::new(prepared.train().clone(), &batch, RowOrder::File).unwrap();
        Prefetch::start(Arc::new(source), steps).unwrap()
    };
    for depth in [1, 2, 5] {
        let mut batches = start(depth, 0..u64::MAX);
        assert_eq!(settled(&batches).steps, depth as u64);
        (0..3).for_each(|_| drop(batches.next().unwrap()));
        let times = settled(&batches);
        assert_eq!(times.steps, 3 + depth as u64);
        assert!(times.preparing_s > 0.0 && times.data_waits_s > 0.0, "{times:?}");
    }
    // Nothing is prepared before it is asked for, and then the step waits as long as that takes.
    let mut batches = start(0, 0..2);
    assert_eq!(batches.times(), PrefetchTimes::default());
    assert_eq!(batches.by_ref().count(), 2);
    let times = batches.times();
    assert_eq!((times.steps, times.data_waits_s), (2, 0.0));
    assert_eq!(times.preparing_s, times.compute_waits_s);
    assert!(times.preparing_s > 0.0);
}

#[test]
fn tokens_are_the_same_whoever_makes_them() {
    let tokenizer = tokenizer("tokenizer");
    let with = |tokenizing_workers| DataSettings {
        tokenizing_workers,
        ..settings("alpaca.json")
    };
    let expected = prepare(&with(None), &tokenizer, 96).unwrap();
    for workers in [1, 3] {
        let prepared = prepare(&with(Some(workers)), &tokenizer, 96).unwrap();
        assert_eq!(prepared.fingerprint(), expected.fingerprint(), "{workers}");
    }
    // They are found in the cache, too, whoever made them.
    let folder = tempfile::tempdir().unwrap();
    for workers in [None, Some(1), Some(3)] {
        let cache = Some(folder.path());
        let prepared = PreparedData::prepare(&with(workers), &tokenizer, 96, 0, cache).unwrap();
        assert_eq!(prepared.fingerprint(), expected.fingerprint(), "{workers:?}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}

#[test]
fn prefetched_steps_are_the_steps_and_packing_loses_nothing() {
    let tokenizer = tokenizer("tokenizer");
    let prepared = prepare(&settings("alpaca.json"), &tokenizer, 96).unwrap();
    for packing in [false, true] {
        let batch = BatchSettings {
            micro_batch: 2,
            gradient_accumulation: 2,
            sequence_length: 96,
            packing,
            ..BatchSettings::default()
        };
        let order = RowOrder::Shuffled { seed: 3 };
        let source = Arc::new(BatchSource::new(prepared.train().clone(), &batch, order).unwrap());
        let direct: Vec<Vec<MicroBatch>> = (2..9).map(|step| source.global_batch(step)).collect();
        for prefetch_depth in [0, 1, 2, 20] {
            let batch = BatchSettings {
                prefetch_depth,
                ..batch.clone()
            };
            let source = Arc::new(BatchSource::new(prepared.train().clone(), &batch, order).unwrap());
            let ahead: Vec<Vec<MicroBatch>> = Prefetch::start(source, 2..9).unwrap().collect();
            assert_eq!(direct, ahead, "{prefetch_depth}");
        }
        // Each epoch begins with a step of its own.
        for epoch in 0..2 {
            let steps = epoch * source.steps_per_epoch()..(epoch + 1) * source.steps_per_epoch();
            let batches = steps.flat_map(|step| source.global_batch(step));
            let tokens: usize = batches.map(|batch| batch.tokens()).sum();
            assert_eq!(tokens as u64, source.tokens_per_epoch());
        }
        // Dropping it early ends the thread.
        drop(Prefetch::start(source, 0..u64::MAX).unwrap());
    }
    let evaluated: usize = evaluation_batches(prepared.held_out(), 4, None)
        .map(|b| b.target_tokens())
        .sum();
    assert_eq!(evaluated as u64, prepared.held_out().statistics().target_tokens);
}

#[test]
fn another_end_of_answers_is_another_cache_file() {
    let folder = tempfile::tempdir().unwrap();
    let (model, cache) = (folder.path().join("model"), folder.path().join("cache"));
    std::fs::create_dir(&model).unwrap();
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(test_file("fixtures/tokenizer").join(name), model.join(name)).unwrap();
    }
    // Only the next turn ends an answer: its token is learnt where generation stops at it.
    let template = folder.path().join("open.jinja");
    std::fs::write(
        &template,
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% endfor %}",
    )
    .unwrap();
    let settings = DataSettings {
        chat_template: Some(template),
        ..settings("messages.jsonl")
    };
    let targets = || {
        let files = TokenizerFiles::resolve(model.to_str().unwrap()).unwrap();
        let tokenizer = Tokenizer::open(&files).unwrap();
        let data = PreparedData::prepare(&settings, &tokenizer, 512, 0, Some(&cache)).unwrap();
        data.train().statistics().target_tokens
    };
    let before = targets();
    let ends = r#"{"eos_token_id": [1, 2]}"#;
    std::fs::write(model.join("generation_config.json"), ends).unwrap();
    assert!(targets() > before);
    assert_eq!(std::fs::read_dir(&cache).unwrap().count(), 2);
}
