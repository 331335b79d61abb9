//! Event files against a small reader of their own: framing, checksums and scalars.

use std::collections::BTreeMap;
use std::path::Path;

use super::{Workplace, column};

/// CRC-32C bit by bit, the slow way.
fn crc32c(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 {
                (crc >> 1) ^ 0x82f6_3b78
            } else {
                crc >> 1
            };
        }
    }
    !crc
}

fn assert_checksum(bytes: &[u8], stored: &[u8]) {
    let masked = crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8);
    assert_eq!(masked, u32::from_le_bytes(stored.try_into().unwrap()));
}

/// The records of an event file.
fn records(path: &Path) -> Vec<Vec<u8>> {
    let bytes = std::fs::read(path).unwrap();
    let (mut rest, mut records) = (bytes.as_slice(), Vec::new());
    while !rest.is_empty() {
        let length = u64::from_le_bytes(rest[..8].try_into().unwrap()) as usize;
        assert_checksum(&rest[..8], &rest[8..12]);
        let content = &rest[12..12 + length];
        assert_checksum(content, &rest[12 + length..16 + length]);
        records.push(content.to_vec());
        rest = &rest[16 + length..];
    }
    records
}

/// A field of a protobuf message.
#[derive(Debug, PartialEq)]
enum Field {
    Number(u64),
    Double(f64),
    Float(f32),
    Bytes(Vec<u8>),
}

fn fields(mut message: &[u8]) -> Vec<(u64, Field)> {
    fn varint(message: &mut &[u8]) -> u64 {
        let (mut value, mut shift) = (0, 0);
        loop {
            let byte = message[0];
            *message = &message[1..];
            value |= u64::from(byte & 0x7f) << shift;
            shift += 7;
            if byte < 0x80 {
                return value;
            }
        }
    }
    fn take<'a>(message: &mut &'a [u8], count: usize) -> &'a [u8] {
        let (taken, rest) = message.split_at(count);
        *message = rest;
        taken
    }
    let mut fields = Vec::new();
    while !message.is_empty() {
        let key = varint(&mut message);
        let field = match key & 7 {
            0 => Field::Number(varint(&mut message)),
            1 => Field::Double(f64::from_le_bytes(take(&mut message, 8).try_into().unwrap())),
            5 => Field::Float(f32::from_le_bytes(take(&mut message, 4).try_into().unwrap())),
            2 => {
                let length = varint(&mut message) as usize;
                Field::Bytes(take(&mut message, length).to_vec())
            }
            other => panic!("wire type {other}"),
        };
        fields.push((key >> 3, field));
    }
    fields
}

fn bytes_of(fields: &[(u64, Field)], number: u64) -> Vec<&[u8]> {
    let matching = fields.iter().filter_map(|(field, value)| match value {
        Field::Bytes(bytes) if *field == number => Some(bytes.as_slice()),
        _ => None,
    });
    matching.collect()
}

/// The values of each tag by step, over all files of a folder in the order of their names.
fn scalars(folder: &Path) -> BTreeMap<String, Vec<(u64, f32)>> {
    let mut paths: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    let mut scalars: BTreeMap<String, Vec<(u64, f32)>> = BTreeMap::new();
    for path in paths {
        let records = records(&path);
        assert_eq!(bytes_of(&fields(&records[0]), 3), [b"brain.Event:2"]);
        for event in records.iter().map(|record| fields(record)) {
            assert!(matches!(event[0], (1, Field::Double(time)) if time > 1.7e9));
            let step = event.iter().find_map(|(number, field)| match field {
                Field::Number(step) if *number == 2 => Some(*step),
                _ => None,
            });
            for summary in bytes_of(&event, 5) {
                for value in bytes_of(&fields(summary), 1) {
                    let value = fields(value);
                    let tag = String::from_utf8(bytes_of(&value, 1)[0].to_vec()).unwrap();
                    let Some((_, Field::Float(number))) = value.iter().find(|(number, _)| *number == 2) else {
                        panic!("{tag} has no value");
                    };
                    scalars.entry(tag).or_default().push((step.unwrap(), *number));
                }
            }
        }
    }
    scalars
}

#[test]
fn event_files_hold_what_was_printed() {
    let place = Workplace::new(&[("training", "{length: {steps: 6}, shuffle: false, evaluate_every: 3}")]);
    let lines = place.train(&["--output", "out"]);
    let scalars = scalars(&place.path("out/tensorboard"));
    let tags: Vec<&str> = scalars.keys().map(String::as_str).collect();
    assert_eq!(
        tags,
        [
            "held_out/accuracy",
            "held_out/loss",
            "memory/in_use",
            "memory/peak",
            "memory/resident",
            "train/grad_norm",
            "train/learning_rate",
            "train/loss",
            "train/tokens_per_s",
        ]
    );
    for (tag, event, key) in [
        ("train/loss", "step", "loss"),
        ("train/learning_rate", "step", "learning_rate"),
        ("train/grad_norm", "step", "grad_norm"),
        ("train/tokens_per_s", "step", "tokens_per_s"),
        ("held_out/loss", "evaluation", "held_out_loss"),
        ("held_out/accuracy", "evaluation", "held_out_accuracy"),
    ] {
        let steps = column(&lines, event, "step");
        let expected: Vec<(u64, f32)> = steps
            .iter()
            .zip(column(&lines, event, key))
            .map(|(step, value)| (*step as u64, value as f32))
            .collect();
        assert_eq!(scalars[tag], expected, "{tag}");
    }
    assert!(scalars["memory/peak"].iter().all(|(_, bytes)| *bytes > 1e5));
}

#[test]
fn a_resumed_training_takes_back_the_steps_that_it_repeats() {
    let place = Workplace::new(&[("training", "{length: {steps: 6}, shuffle: false}")]);
    place.train(&["--output", "out", "--checkpoint-every", "4", "--keep-checkpoints", "9"]);
    std::fs::remove_file(place.path("out/result.json")).unwrap();
    std::fs::remove_dir_all(place.path("out/checkpoints/step-00000006")).unwrap();
    place.train(&["--output", "out", "--resume"]);
    let steps: Vec<u64> = scalars(&place.path("out/tensorboard"))["train/loss"]
        .iter()
        .map(|(step, _)| *step)
        .collect();
    assert_eq!(steps, [1, 2, 3, 4, 5, 6, 5, 6]);
    let mut files: Vec<_> = std::fs::read_dir(place.path("out/tensorboard"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    // A session log with status START at step 5.
    let start = fields(&records(&files[1])[1]);
    assert_eq!(start[1..], [(2, Field::Number(5)), (7, Field::Bytes(vec![8, 1]))]);
}
