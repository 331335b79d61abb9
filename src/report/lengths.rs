//! [`Lengths`]: how long the rows of a study's data are, what is cut and padded of them, and what packing would gain.

use std::fmt::Write;
use std::path::PathBuf;

use serde::Serialize;

use peft_tune_core::predict::{mean_longest, padding_share};
use peft_tune_core::recipe::BatchSettings;

/// Lengths of the rows to train on, in tokens; of pairs, lengths of their sequences.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Lengths {
    /// Rows to train on; held-out ones are not among them.
    pub rows: u64,
    /// Sequences of a row: both answers of a pair with their prompt.
    #[serde(skip_serializing_if = "is_one")]
    pub sequences: usize,
    pub tokens: u64,
    pub mean: f64,
    pub median: usize,
    /// Length that nineteen of twenty rows keep to.
    pub most_rows: usize,
    pub longest: usize,
    /// Rows that were looked at, where not all were.
    pub sample: Option<SampleOf>,
    pub histogram: Vec<LengthBin>,
    /// Sets of a mixture, where sets are mixed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sets: Vec<SetShare>,
    /// Rows at each sequence length of the study.
    pub at: Vec<AtLength>,
}

/// A set of a mixture.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SetShare {
    pub files: Vec<PathBuf>,
    /// Share of the rows of an epoch.
    pub share: f64,
    /// How often an epoch goes through its rows; `None` where not all rows were looked at.
    pub passes: Option<f64>,
}

/// What a sample is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct SampleOf {
    /// The first rows of the files, which were looked at.
    pub first_rows: u64,
    /// All rows, about; `None` where their number is not known.
    pub all_rows: Option<u64>,
}

/// Rows of similar length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LengthBin {
    /// Shortest and longest that count.
    pub from: usize,
    pub to: usize,
    pub rows: u64,
}

/// What becomes of the rows at one sequence length.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AtLength {
    pub sequence_length: usize,
    /// Rows whose end is cut away.
    pub cut_rows: u64,
    pub cut_tokens: u64,
    /// Rows of which nothing is left to learn.
    pub dropped_rows: u64,
    /// Rows that are left out as they are longer.
    pub too_long_rows: u64,
    /// Tokens of the longest row after the cut.
    pub longest: usize,
    pub padding: Vec<MicroBatchPadding>,
    /// Rows that packing makes of them; absent of pairs, which nobody packs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packed_rows: Option<u64>,
    /// Share of those rows that holds tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packed_full: Option<f64>,
}

/// What micro-batches of one size pad, where rows are made as long as the longest of theirs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct MicroBatchPadding {
    pub micro_batch: usize,
    /// Share of padding among all tokens.
    pub share: f64,
    /// Tokens with padding over those of packed rows: what packing saves a stack that pads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packing_saves: Option<f64>,
}

/// Whether rows of a micro-batch are padded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Padder {
    /// Rows are laid end to end, as this engine does.
    Nobody,
    /// Other stacks make them as long as the longest.
    Stack,
}

/// The rows at one sequence length, as they are dealt out.
#[derive(Clone, Debug, Default)]
pub struct RowsAtLength {
    pub sequence_length: usize,
    /// Tokens of each row after the cut; of pairs those of one sequence after the other.
    pub lengths: Vec<usize>,
    pub cut_rows: u64,
    pub cut_tokens: u64,
    pub dropped_rows: u64,
    pub too_long_rows: u64,
    /// Rows that packing makes of them, where rows are packed at all.
    pub packed_rows: Option<u64>,
}

/// Lines of the chart are at most so long.
const BAR: usize = 40;

/// What stands before a bar: a name, the rows and the blanks between.
const BEFORE_BAR: usize = 26;
/// Bins of the histogram are powers of two, and at most so many.
const BINS: usize = 12;

impl Lengths {
    /// Tokens of the longest row that is trained on where that is known: packed rows are filled up, and a sample does not know it.
    pub fn longest_of(&self, batch: &BatchSettings) -> Option<usize> {
        if batch.packing || self.sample.is_some() {
            return None;
        }
        let mut at = self.at.iter();
        at.find(|at| at.sequence_length == batch.sequence_length)
            .map(|at| at.longest)
    }

    /// The lengths of rows of so many sequences before any cut, and at each sequence length with these micro-batches.
    pub fn new(
        mut lengths: Vec<usize>,
        sequences: usize,
        at: Vec<RowsAtLength>,
        micro_batches: &[usize],
        sample: Option<SampleOf>,
    ) -> Self {
        let sequences = sequences.max(1);
        let at = at.into_iter().map(|rows| AtLength::new(rows, sequences, micro_batches));
        lengths.sort_unstable();
        let tokens: usize = lengths.iter().sum();
        let quantile = |share: f64| {
            let place = (share * lengths.len() as f64).ceil() as usize;
            lengths.get(place.saturating_sub(1)).copied().unwrap_or(0)
        };
        Self {
            rows: (lengths.len() / sequences) as u64,
            sequences,
            tokens: tokens as u64,
            mean: tokens as f64 / lengths.len().max(1) as f64,
            median: quantile(0.5),
            most_rows: quantile(0.95),
            longest: quantile(1.0),
            sample,
            histogram: histogram(&lengths),
            sets: Vec::new(),
            at: at.collect(),
        }
    }

    /// Adds the sets that the rows are a mixture of.
    pub fn with_sets(self, sets: Vec<SetShare>) -> Self {
        Self { sets, ..self }
    }

    /// Text for people, with a chart, of what `padder` does.
    pub fn to_text(&self, padder: Padder, width: Option<usize>) -> String {
        let mut text = "\ndata\n".to_owned();
        let mut line = |name: &str, value: &str| {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "  {name:<14}{value}");
        };
        let Self { rows, tokens, mean, .. } = self;
        let of = match self.sample {
            None => String::new(),
            Some(SampleOf { first_rows, all_rows }) => {
                let all = all_rows.map_or_else(String::new, |all| format!(" of about {all}"));
                format!(", a sample: the first {first_rows} rows{all}")
            }
        };
        line("rows", &format!("{rows} to train on, {tokens} tokens{of}"));
        for (set, name) in self.sets.iter().zip(short_names(&self.sets)) {
            let passes = set.passes.map_or_else(String::new, |passes| match passes < 0.995 {
                true => format!(": an epoch sees {:.0}% of its rows", 100.0 * passes),
                false => format!(": an epoch goes {passes:.1} times through its rows"),
            });
            line(
                "mixed",
                &format!("{} of the rows are of {name}{passes}", percent(set.share)),
            );
        }
        let (median, most, longest) = (self.median, self.most_rows, self.longest);
        let lengths = format!("mean {mean:.1}, median {median}, 95% up to {most}, longest {longest}");
        match self.sequences {
            1 => line("tokens a row", &lengths),
            sequences => line(
                "sequences",
                &format!("{sequences} a row, each with its prompt; tokens: {lengths}"),
            ),
        }
        let highest = self.histogram.iter().map(|bin| bin.rows).max().unwrap_or(1).max(1);
        // What stands before a bar takes its part of a narrow terminal.
        let longest_bar = width.map_or(BAR, |width| width.saturating_sub(BEFORE_BAR).clamp(1, BAR));
        for bin in &self.histogram {
            let bar = (bin.rows as f64 / highest as f64 * longest_bar as f64).ceil() as usize;
            let range = format!("{} to {}", bin.from, bin.to);
            line(&range, format!("{:>8}  {}", bin.rows, "#".repeat(bar)).trim_end());
        }
        for at in &self.at {
            at.lines(self.sample.is_some(), padder, &mut line);
        }
        text
    }
}

impl AtLength {
    fn new(rows: RowsAtLength, sequences: usize, micro_batches: &[usize]) -> Self {
        let RowsAtLength {
            sequence_length,
            lengths,
            cut_rows,
            cut_tokens,
            dropped_rows,
            too_long_rows,
            packed_rows,
        } = rows;
        let tokens: usize = lengths.iter().sum();
        let mean = tokens as f64 / lengths.len().max(1) as f64;
        // The longest sequence of a micro-batch is that of one of its rows.
        let of_rows = lengths.chunks(sequences).filter_map(|row| row.iter().max());
        let mut longest: Vec<usize> = of_rows.copied().collect();
        longest.sort_unstable();
        let room = packed_rows.map(|rows| (rows as f64 * sequence_length as f64).max(1.0));
        let padding = micro_batches.iter().map(|micro_batch| MicroBatchPadding {
            micro_batch: *micro_batch,
            share: padding_share(&longest, mean, *micro_batch),
            packing_saves: room.map(|room| longest.len() as f64 * mean_longest(&longest, *micro_batch) / room),
        });
        Self {
            sequence_length,
            cut_rows,
            cut_tokens,
            dropped_rows,
            too_long_rows,
            padding: padding.collect(),
            longest: longest.last().copied().unwrap_or(0),
            packed_rows,
            packed_full: room.map(|room| tokens as f64 / room),
        }
    }

    fn lines(&self, is_sample: bool, padder: Padder, line: &mut impl FnMut(&str, &str)) {
        let length = self.sequence_length;
        let cut = match self.cut_rows {
            0 => "no row is cut".to_owned(),
            rows => format!("{rows} rows are cut, which loses {} tokens", self.cut_tokens),
        };
        let dropped = match self.dropped_rows {
            0 => String::new(),
            rows => format!(", {rows} have nothing left to learn"),
        };
        let too_long = match self.too_long_rows {
            0 => String::new(),
            rows => format!(", {rows} are longer and left out"),
        };
        let peak = match (is_sample, self.longest < length) {
            (true, _) => format!("peaks are those of rows of {length}, as others may be longer"),
            (false, true) => {
                // Packed rows are full, and rows that no trainer packs have no other peaks to be told from.
                let unpacked = if self.packed_rows.is_some() {
                    " without packing"
                } else {
                    ""
                };
                format!(
                    "peaks{unpacked} are those of the longest rows, of up to {} tokens and not {length}",
                    self.longest
                )
            }
            (false, false) => "peaks are those of the longest rows, which are full".to_owned(),
        };
        line(
            &format!("cut at {length}"),
            &format!("{cut}{dropped}{too_long}; {peak}"),
        );
        let shares = self.padding.iter().map(|one| {
            let percent = 100.0 * one.share;
            format!("{percent:.0}% at micro-batch {}", one.micro_batch)
        });
        let shares = shares.collect::<Vec<_>>().join(", ");
        let whose = match padder {
            Padder::Nobody => "none here; where rows are padded to the longest: ",
            Padder::Stack => "",
        };
        line("padding", &format!("{whose}{shares}"));
        let Some((rows, full)) = self.packed_rows.zip(self.packed_full) else {
            return;
        };
        let saves = self.padding.iter().filter_map(|one| {
            let times = one.packing_saves?;
            Some(format!("{times:.2} at micro-batch {}", one.micro_batch))
        });
        let saves = saves.collect::<Vec<_>>().join(", ");
        let full = 100.0 * full;
        line(
            "packing",
            &format!("{rows} rows that are {full:.0}% full; tokens with padding over tokens with packing: {saves}"),
        );
    }
}

/// Whether rows have one sequence each, which need not be said.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands fields over by reference")]
fn is_one(sequences: &usize) -> bool {
    *sequences == 1
}

/// `70%`, `12.5%`, `0.04%`.
pub fn percent(share: f64) -> String {
    let percent = 100.0 * share;
    let decimals = match percent {
        whole if (whole - whole.round()).abs() < 1e-6 => 0,
        small if small < 1.0 => 2,
        _ => 1,
    };
    format!("{percent:.decimals$}%")
}

/// Names of the sets: without their folders, where that tells them apart.
fn short_names(sets: &[SetShare]) -> Vec<String> {
    let of = |set: &SetShare| {
        let first = set.files.first();
        let name = first.and_then(|path| path.file_name());
        let others = match set.files.len() {
            0 | 1 => String::new(),
            many => format!(" and {} more", many - 1),
        };
        name.map_or_else(String::new, |name| name.to_string_lossy().into_owned() + &others)
    };
    let names: Vec<String> = sets.iter().map(of).collect();
    let is_clear = |name: &String| names.iter().filter(|other| *other == name).count() == 1;
    match names.iter().all(is_clear) {
        true => names,
        false => sets
            .iter()
            .map(|set| {
                set.files
                    .first()
                    .map_or_else(String::new, |path| path.display().to_string())
            })
            .collect(),
    }
}

/// Rows by length, in steps of a factor of two.
fn histogram(lengths: &[usize]) -> Vec<LengthBin> {
    let Some(longest) = lengths.last() else {
        return Vec::new();
    };
    let last = longest.max(&1).next_power_of_two();
    let mut to = (last >> (BINS - 1)).max(1);
    let mut bins = Vec::new();
    let (mut from, mut counted) = (1, 0);
    while from <= *longest {
        let below = lengths.partition_point(|length| *length <= to);
        bins.push(LengthBin {
            from,
            to: to.min(*longest),
            rows: (below - counted) as u64,
        });
        (from, counted) = (to + 1, below);
        to *= 2;
    }
    let first = bins.iter().position(|bin| bin.rows > 0).unwrap_or(0);
    bins.split_off(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_in_one_bin_of_a_short_histogram() {
        let lengths: Vec<usize> = (1..=3000).collect();
        let bins = histogram(&lengths);
        assert_eq!(bins.iter().map(|bin| bin.rows).sum::<u64>(), 3000);
        assert!(
            bins.len() <= BINS && bins.windows(2).all(|pair| pair[0].to + 1 == pair[1].from),
            "{bins:?}"
        );
        assert_eq!(bins.last().unwrap().to, 3000);
        let one = histogram(&[5, 5]);
        assert_eq!(
            one,
            [LengthBin {
                from: 5,
                to: 5,
                rows: 2
            }]
        );
    }

    #[test]
    fn a_sample_says_so_and_cut_rows_are_counted() {
        let at = RowsAtLength {
            sequence_length: 8,
            lengths: vec![2, 8, 8],
            cut_rows: 2,
            cut_tokens: 5,
            dropped_rows: 0,
            too_long_rows: 4,
            packed_rows: Some(3),
        };
        let sample = SampleOf {
            first_rows: 3,
            all_rows: Some(90),
        };
        let lengths = Lengths::new(vec![11, 2, 10], 1, vec![at], &[1, 2], Some(sample));
        let text = lengths.to_text(Padder::Nobody, None);
        for part in [
            "3 to train on, 23 tokens, a sample: the first 3 rows of about 90",
            "2 rows are cut, which loses 5 tokens, 4 are longer and left out; peaks are those of rows of 8, as others",
            "0% at micro-batch 1, 25% at micro-batch 2",
            "3 rows that are 75% full",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn pairs_are_padded_to_the_longest_of_both_sequences_and_never_packed() {
        let at = RowsAtLength {
            sequence_length: 16,
            lengths: vec![4, 8, 10, 6],
            ..RowsAtLength::default()
        };
        let lengths = Lengths::new(vec![4, 8, 10, 6], 2, vec![at], &[1], None);
        assert_eq!((lengths.rows, lengths.tokens, lengths.longest), (2, 28, 10));
        // Of 8 and 10 tokens in the mean 7 are none.
        let share = lengths.at[0].padding[0].share;
        assert!((share - (1.0 - 7.0 / 9.0)).abs() < 1e-12, "{share}");
        let text = lengths.to_text(Padder::Stack, None);
        assert!(
            text.contains("2 to train on, 28 tokens") && text.contains("2 a row"),
            "{text}"
        );
        assert!(!text.contains("packing"), "{text}");
    }
}
