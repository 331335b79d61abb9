//! Steps of epochs: their rows, their order and where they end.

use proptest::prelude::*;

use super::super::length_limit::LengthLimit;
use super::super::token_writer::{Set, TokenWriter};
use super::super::tokens::{RowKind, TokenRow, Width};
use super::*;

/// Tokens of the longest row.
const LENGTH: usize = 16;

/// Documents of the given lengths; every token of document i is i.
fn documents(lengths: &[usize]) -> DocumentSet {
    documents_from(0, lengths)
}

/// Documents of the given lengths; every token of document i is `first` + i.
fn documents_from(first: usize, lengths: &[usize]) -> DocumentSet {
    let mut writer = TokenWriter::in_memory(Width::Two);
    for (index, length) in lengths.iter().enumerate() {
        let ids = vec![(first + index) as u32; *length];
        let row = TokenRow {
            labels: ids.clone(),
            ids,
            kind: RowKind::Whole,
        };
        writer.push(Set::Train, Some(row)).unwrap();
    }
    DocumentSet::cut(&writer.into_tables().unwrap().train, LengthLimit::cutting(LENGTH))
}

fn source(lengths: &[usize], micro_batch: usize, gradient_accumulation: usize, packing: bool) -> BatchSource {
    let batch = BatchSettings {
        micro_batch,
        gradient_accumulation,
        sequence_length: LENGTH,
        packing,
        ..Default::default()
    };
    BatchSource::new(documents(lengths), &batch, RowOrder::Shuffled { seed: 1 }).unwrap()
}

/// The documents of a step, in order.
fn seen(source: &BatchSource, step: u64) -> Vec<u32> {
    let batches = source.global_batch(step);
    let starts = |batch: &MicroBatch| {
        let starts = batch.offsets[..batch.offsets.len() - 1].iter();
        starts.map(|at| batch.input_ids[*at as usize]).collect::<Vec<_>>()
    };
    batches.iter().flat_map(starts).collect()
}

proptest! {
    #[test]
    fn an_epoch_takes_every_document_once(
        lengths in prop::collection::vec(2_usize..=16, 1..60),
        packing: bool,
        micro_batch in 1_usize..4,
    ) {
        let source = source(&lengths, micro_batch, 2, packing);
        let steps = source.steps_per_epoch();
        prop_assert_eq!(steps, source.rows().div_ceil(2 * micro_batch) as u64);
        for epoch in 0..3 {
            let of_epoch = epoch * steps..(epoch + 1) * steps;
            let mut all: Vec<u32> = of_epoch.clone().flat_map(|step| seen(&source, step)).collect();
            all.sort_unstable();
            prop_assert_eq!(all, (0..lengths.len() as u32).collect::<Vec<_>>());
            // All steps but the last have all their micro-batches, and none is empty.
            for step in of_epoch {
                let batches = source.global_batch(step);
                prop_assert!(batches.iter().all(|batch| batch.tokens() > 0));
                prop_assert!(batches.len() == 2 || (step + 1).is_multiple_of(steps));
            }
        }
    }

    #[test]
    fn the_documents_of_a_step_are_those_of_its_micro_batches(
        lengths in prop::collection::vec(2_usize..=16, 1..60),
        packing: bool,
        step in 0_u64..50,
    ) {
        let source = source(&lengths, 3, 2, packing);
        let documents: Vec<u32> = source.documents_of(step).iter().map(|index| *index as u32).collect();
        prop_assert_eq!(documents, seen(&source, step));
    }

    #[test]
    fn the_division_into_micro_batches_changes_no_data(
        lengths in prop::collection::vec(2_usize..=16, 1..60),
        packing: bool,
        step in 0_u64..50,
    ) {
        let whole = seen(&source(&lengths, 12, 1, packing), step);
        for (micro_batch, accumulation) in [(1, 12), (3, 4), (6, 2)] {
            prop_assert_eq!(&whole, &seen(&source(&lengths, micro_batch, accumulation, packing), step));
        }
    }
}

/// Two sets with the given weights; tokens of the first are below 100, those of the second from 100 on.
fn mixed(sets: [(&[usize], f64); 2], batch: &BatchSettings, seed: u64) -> BatchSource {
    let [(first, _), (second, _)] = sets;
    let cut = vec![documents_from(0, first), documents_from(100, second)];
    let weights = sets.iter().map(|(_, weight)| *weight).collect();
    let documents = DocumentSet::mixed(cut, Some(weights)).unwrap();
    BatchSource::new(documents, batch, RowOrder::Shuffled { seed }).unwrap()
}

proptest! {
    #[test]
    fn a_mixture_is_the_same_however_a_global_batch_is_cut(
        first in prop::collection::vec(2_usize..=16, 1..60),
        second in prop::collection::vec(2_usize..=16, 1..60),
        weight in 0.05_f64..0.95,
        packing: bool,
        group_by_length: bool,
        step in 0_u64..50,
    ) {
        let of = |micro_batch, gradient_accumulation, devices| {
            let batch = BatchSettings {
                micro_batch,
                gradient_accumulation,
                devices,
                sharding: peft_tune_core::recipe::Sharding::None,
                sequence_length: LENGTH,
                packing,
                group_by_length,
                prefetch_depth: 0,
            };
            mixed([(&first, weight), (&second, 1.0 - weight)], &batch, 1)
        };
        let whole = of(12, 1, 1);
        for (micro_batch, accumulation, devices) in [(1, 12, 1), (3, 4, 1), (3, 2, 2), (2, 2, 3)] {
            prop_assert_eq!(seen(&whole, step), seen(&of(micro_batch, accumulation, devices), step));
        }
        // A resumed training asks for this step first.
        prop_assert_eq!(seen(&whole, step), seen(&of(12, 1, 1), step));
    }

    #[test]
    fn a_step_of_a_mixture_has_its_share_of_each_set(
        first in prop::collection::vec(2_usize..=16, 20..60),
        second in prop::collection::vec(2_usize..=16, 20..60),
        weight in 0.1_f64..0.9,
        seed: u64,
    ) {
        let batch = BatchSettings {
            micro_batch: 10,
            sequence_length: LENGTH,
            ..Default::default()
        };
        let source = mixed([(&first, weight), (&second, 1.0 - weight)], &batch, seed);
        let rows = (first.len() + second.len()) as f64;
        for step in 0..20 {
            let seen = seen(&source, step);
            let of_first = seen.iter().filter(|token| **token < 100).count();
            let of_step = seen.len() as f64;
            // Within a row at either end of the step, and half a row in an epoch for rounding.
            prop_assert!((of_first as f64 - of_step * weight).abs() < 2.0 + of_step * 0.5 / rows, "{of_first}");
        }
    }

    #[test]
    fn steps_of_a_mixture_hold_the_tokens_that_they_are_asked_for(
        first in prop::collection::vec(2_usize..=16, 1..30),
        second in prop::collection::vec(2_usize..=16, 1..30),
        tokens in 1_u64..5000,
        packing: bool,
    ) {
        let batch = BatchSettings {
            micro_batch: 1,
            sequence_length: LENGTH,
            packing,
            ..Default::default()
        };
        let source = mixed([(&first, 0.8), (&second, 0.2)], &batch, 3);
        let steps = source.steps(TrainingLength::Tokens(tokens));
        let of_step = |step| source.global_batch(step).iter().map(|batch| batch.tokens() as u64).sum::<u64>();
        let before: u64 = (0..steps - 1).map(of_step).sum();
        prop_assert!(before < tokens && tokens <= before + of_step(steps - 1));
    }
}

#[test]
fn packed_rows_hold_documents_of_one_set() {
    let batch = BatchSettings {
        micro_batch: 1,
        sequence_length: LENGTH,
        packing: true,
        ..Default::default()
    };
    let source = mixed([(&[3; 50], 0.5), (&[5; 50], 0.5)], &batch, 1);
    assert_eq!(source.rows(), 10 + 17);
    for step in 0..100 {
        let rows = seen(&source, step);
        assert!(rows.iter().all(|token| (*token < 100) == (rows[0] < 100)), "{rows:?}");
    }
}

#[test]
fn what_a_mixture_costs_is_that_of_its_shares() {
    let batch = BatchSettings {
        micro_batch: 2,
        sequence_length: LENGTH,
        ..Default::default()
    };
    let source = mixed([(&[2; 30], 0.9), (&[12; 30], 0.1)], &batch, 1);
    assert_eq!((source.rows(), source.passes()), (60, vec![1.8, 0.2]));
    assert_eq!(source.tokens_per_epoch(), 54 * 2 + 6 * 12);
    assert_eq!(source.target_tokens_per_epoch(), 54 + 6 * 11);
    let rows = source.row_documents();
    let tokens: usize = rows.iter().flatten().map(|(tokens, _)| tokens).sum();
    assert_eq!((rows.len(), tokens), (60, 54 * 2 + 6 * 12));
    assert_eq!(source.longest_micro_batch().tokens(), 24);
    assert_eq!(source.mean_documents_per_row(), 1.0);
}

#[test]
fn an_evaluation_takes_turns_among_the_sets() {
    let batch = BatchSettings {
        sequence_length: LENGTH,
        ..Default::default()
    };
    let source = mixed([(&[2; 30], 0.9), (&[12; 10], 0.1)], &batch, 1);
    let of_second = |limit| {
        let batches = evaluation_batches(&source.documents, 1, limit);
        batches.filter(|batch| batch.input_ids[0] >= 100).count()
    };
    assert_eq!((of_second(Some(8)), of_second(Some(20)), of_second(None)), (2, 5, 10));
    assert_eq!(evaluation_batches(&source.documents, 1, None).count(), 40);
}

#[test]
fn epochs_differ_and_a_seed_repeats() {
    let source = source(&[3; 20], 20, 1, false);
    assert_ne!(seen(&source, 0), seen(&source, 1));
    assert_eq!(seen(&source, 1), seen(&source.clone(), 1));
}

proptest! {
    #[test]
    fn grouped_rows_are_the_same_rows_whatever_the_micro_batch(
        lengths in prop::collection::vec(2_usize..=16, 4..200),
    ) {
        let grouped = |micro_batch, gradient_accumulation| {
            let batch = BatchSettings {
                micro_batch,
                gradient_accumulation,
                sequence_length: LENGTH,
                group_by_length: true,
                ..Default::default()
            };
            BatchSource::new(documents(&lengths), &batch, RowOrder::Shuffled { seed: 1 }).unwrap()
        };
        let (whole, halves) = (grouped(4, 1), grouped(2, 2));
        let mut all = Vec::new();
        for step in 0..2 * whole.steps_per_epoch() {
            let rows = seen(&whole, step);
            prop_assert_eq!(&rows, &seen(&halves, step));
            all.extend(rows);
        }
        all.sort_unstable();
        let expected: Vec<u32> = (0..lengths.len() as u32).flat_map(|d| std::iter::repeat_n(d, 2)).collect();
        prop_assert_eq!(all, expected);
    }
}

#[test]
fn grouping_puts_rows_of_similar_length_into_a_step() {
    let lengths: Vec<usize> = (0..400).map(|index| 2 + index * 7 % 15).collect();
    let spread = |group_by_length| {
        let batch = BatchSettings {
            micro_batch: 8,
            sequence_length: LENGTH,
            group_by_length,
            ..Default::default()
        };
        let source = BatchSource::new(documents(&lengths), &batch, RowOrder::Shuffled { seed: 1 }).unwrap();
        let of_step = |step| {
            let rows = seen(&source, step).into_iter().map(|row| lengths[row as usize]);
            let (least, most) = rows.fold((usize::MAX, 0), |(least, most), length| {
                (least.min(length), most.max(length))
            });
            most - least
        };
        (0..source.steps_per_epoch()).map(of_step).sum::<usize>()
    };
    assert!(
        spread(true) * 5 < spread(false),
        "{} of {}",
        spread(true),
        spread(false)
    );
}

#[test]
fn file_order_is_kept() {
    let batch = BatchSettings {
        micro_batch: 2,
        gradient_accumulation: 1,
        sequence_length: LENGTH,
        ..Default::default()
    };
    let source = BatchSource::new(documents(&[2; 3]), &batch, RowOrder::File).unwrap();
    let steps: Vec<Vec<u32>> = (0..4).map(|step| seen(&source, step)).collect();
    assert_eq!(steps, [vec![0, 1], vec![2], vec![0, 1], vec![2]]);
    let full = source.of_full_steps();
    assert_eq!((seen(&full, 0), seen(&full, 1)), (vec![0, 1], vec![0, 1]));
}

#[test]
fn data_with_fewer_rows_than_a_global_batch_are_one_step() {
    let source = source(&[5, 6, 7], 2, 4, false);
    for step in [0, 1, 7] {
        let batches = source.global_batch(step);
        let tokens: usize = batches.iter().map(MicroBatch::tokens).sum();
        assert_eq!((batches.len(), tokens), (2, 18));
    }
    // The one step of an epoch is a full one.
    assert_eq!(seen(&source.clone().of_full_steps(), 7), seen(&source, 7));
    assert_eq!(
        (source.steps(TrainingLength::Epochs(3.0)), source.epochs_of(3)),
        (3, 3.0)
    );
    let one = self::source(&[5, 6, 7], 8, 1, false);
    assert_eq!(one.longest_micro_batch().tokens(), 18);
}

#[test]
fn lengths_become_steps() {
    let source = source(&[4; 10], 2, 2, false);
    assert_eq!(source.steps_per_epoch(), 3);
    let cases = [
        (TrainingLength::Steps(7), 7),
        (TrainingLength::Epochs(0.5), 2),
        (TrainingLength::Epochs(1.0), 3),
        (TrainingLength::Epochs(2.0), 6),
        (TrainingLength::Tokens(1), 1),
        (TrainingLength::Tokens(16), 1),
        (TrainingLength::Tokens(17), 2),
        (TrainingLength::Tokens(40), 3),
        (TrainingLength::Tokens(41), 4),
        (TrainingLength::Tokens(80), 6),
    ];
    for (length, steps) in cases {
        assert_eq!(source.steps(length), steps, "{length:?}");
    }
}

#[test]
fn packed_rows_hold_whole_documents() {
    let source = source(&[10, 6, 16, 5, 5, 5], 1, 1, true);
    assert_eq!(source.rows(), 3);
    assert_eq!(source.mean_documents_per_row(), 2.0);
    for step in 0..3 {
        let [batch] = &source.global_batch(step)[..] else {
            panic!("one micro-batch")
        };
        assert!(batch.tokens() <= 16 && batch.longest() <= 16);
    }
}

#[test]
fn evaluation_goes_through_once() {
    let documents = documents(&[2, 3, 4, 5, 6]);
    let tokens = |limit| {
        evaluation_batches(&documents, 2, limit)
            .map(|b| b.tokens())
            .collect::<Vec<_>>()
    };
    assert_eq!(tokens(None), [5, 9, 6]);
    assert_eq!(tokens(Some(3)), [5, 4]);
}
