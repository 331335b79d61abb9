//! A bar as tqdm draws it: `desc:  3%|▎  | 30/1000 [00:12<06:23,  2.53it/s, loss=2.1]`.

use std::sync::LazyLock;

use regex::Regex;

/// What a bar says.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TqdmBar {
    /// Words before it; empty where there are none.
    pub name: String,
    pub done: u64,
    pub total: u64,
}

/// What a bar counts, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Counts {
    /// Steps of a training, or batches of an evaluation: bars of the Trainer have no name.
    Steps,
    Evaluation,
    /// Rows, files or shards, before or beside a training.
    Other,
}

/// Counts from which on a number is none of steps.
const MOST: f64 = 1e15;

/// Names of bars whose counts are steps, in lower case.
const STEPS: [&str; 4] = ["step", "train", "epoch", "iter"];
/// Names of bars that evaluate.
const EVALUATION: [&str; 4] = ["eval", "predict", "valid", "test"];

static BAR: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let number = r"([0-9.]+[kKMG]?)";
    let pattern = format!(r"^(?:(.*?):\s*)?\s*[0-9]+%\|[^|]*\|\s*{number}/{number}\s*\[[0-9:]+<");
    Regex::new(&pattern).ok()
});

impl TqdmBar {
    /// The bar that a line is; `None` of any other line.
    pub(super) fn read(line: &str) -> Option<Self> {
        if !line.contains("%|") {
            return None;
        }
        // What steers the terminal stands before it where several bars are drawn.
        let line = line.rsplit_once('\u{1b}').map_or(line, |(_, rest)| {
            rest.trim_start_matches(|c: char| c == '[' || c.is_ascii_digit() || c == 'A')
        });
        let found = BAR.as_ref()?.captures(line)?;
        let name = found.get(1).map_or("", |name| name.as_str()).trim();
        Some(Self {
            name: name.to_owned(),
            done: count(&found[2])?,
            total: count(&found[3]).filter(|total| *total > 0)?,
        })
    }

    /// The name up to what differs from one bar of its kind to the next: numbers, and what is measured.
    pub(super) fn kind(&self) -> String {
        let letters = self.name.chars().filter(|letter| !letter.is_ascii_digit());
        let kind: String = letters
            .take_while(|letter| letter.is_alphabetic() || *letter == ' ')
            .collect();
        kind.trim().to_owned()
    }

    pub(super) fn counts(&self) -> Counts {
        let name = self.name.to_lowercase();
        let begins = |words: &[&str]| words.iter().any(|word| name.starts_with(word));
        // torchtune's begins with its epoch and its step: `1|25|Loss: 1.2`.
        let is_torchtune = name.contains("|loss");
        match name.as_str() {
            "" => Counts::Steps,
            _ if is_torchtune || begins(&STEPS) => Counts::Steps,
            _ if begins(&EVALUATION) => Counts::Evaluation,
            _ => Counts::Other,
        }
    }
}

/// A count as tqdm writes it, with a letter for thousands where its unit is scaled.
fn count(text: &str) -> Option<u64> {
    let (digits, times) = match text.char_indices().next_back()? {
        (end, 'k' | 'K') => (&text[..end], 1e3),
        (end, 'M') => (&text[..end], 1e6),
        (end, 'G') => (&text[..end], 1e9),
        _ => (text, 1.0),
    };
    let value: f64 = digits.parse().ok()?;
    let scaled = (value * times).round();
    (0.0..MOST).contains(&scaled).then_some(scaled as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Option<(String, u64, u64)> {
        TqdmBar::read(line).map(|bar| (bar.name, bar.done, bar.total))
    }

    #[test]
    fn bars_are_read_with_their_names_and_counts() {
        for (line, name, done, total) in [
            ("  3%|▎         | 30/1000 [00:12<06:23,  2.53it/s]", "", 30, 1000),
            ("100%|██████████| 5/5 [1:02:03<00:00, 12.4s/it, loss=1.2]", "", 5, 5),
            (
                "Map:  50%|█████     | 500/1000 [00:01<00:01, 400.00 examples/s]",
                "Map",
                500,
                1000,
            ),
            ("  0%|          | 0/7 [00:00<?, ?it/s]", "", 0, 7),
            (
                "Loading checkpoint shards: 50%|███| 1/2 [00:01<00:01,  1.0s/it]",
                "Loading checkpoint shards",
                1,
                2,
            ),
            (
                "1|25|Loss: 1.234:   5%|▌    | 25/500 [00:30<09:30,  1.20s/it]",
                "1|25|Loss: 1.234",
                25,
                500,
            ),
            (
                "model: 12%|█ | 1.50M/12.0M [00:01<00:08, 1.2MB/s]",
                "model",
                1_500_000,
                12_000_000,
            ),
            ("\u{1b}[A  4%|▍ | 2/50 [00:01<00:20, 2it/s]", "", 2, 50),
        ] {
            assert_eq!(read(line), Some((name.to_owned(), done, total)), "{line}");
        }
    }

    #[test]
    fn other_lines_are_no_bars() {
        for line in [
            "",
            "50% done",
            "a |b| 3/4",
            "100%|",
            "  3%|▎ | x/y [00:12<06:23]",
            "%|%|%|",
            "  0%|  | 0/99999999999999999999 [00:00<?, ?it/s]",
        ] {
            assert_eq!(read(line), None, "{line}");
        }
    }

    #[test]
    fn bars_of_one_kind_differ_in_numbers() {
        for (name, kind) in [
            ("Epoch 1/3", "Epoch"),
            ("Training loss: 2.1", "Training loss"),
            ("1|25|Loss: 1.2", ""),
        ] {
            let bar = TqdmBar {
                name: name.to_owned(),
                done: 1,
                total: 2,
            };
            assert_eq!(bar.kind(), kind);
        }
    }

    #[test]
    fn names_tell_what_is_counted() {
        let counts = |name: &str| {
            let bar = TqdmBar {
                name: name.to_owned(),
                done: 1,
                total: 2,
            };
            bar.counts()
        };
        assert_eq!(counts(""), Counts::Steps);
        assert_eq!(counts("Epoch 1"), Counts::Steps);
        assert_eq!(counts("1|25|Loss: 1.2"), Counts::Steps);
        assert_eq!(counts("Evaluating"), Counts::Evaluation);
        assert_eq!(counts("Map (num_proc=4)"), Counts::Other);
    }
}
