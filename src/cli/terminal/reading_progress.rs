//! Progress of the reading of data, on standard error: a line that changes where that is a terminal, else a line now
//! and then. Data that are read within seconds get none.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::output::{keep_below, take_bar_away, tell};
use crate::report::{about_duration, bytes, grouped};
use peft_tune_engine::data::{DataProgress, ReadingStage, cache_folder};

/// Bytes of data that are read within a second or so.
pub(in crate::cli) const QUICK_BYTES: u64 = 4 << 20;
/// Seconds between two lines where there is no terminal; `PEFT_TUNE_READING_LINE_S` says otherwise.
const LINE_S: f64 = 30.0;
/// Time between two drawings of a terminal's line.
const DRAW: Duration = Duration::from_millis(200);
/// Seconds of a stage before its rate is told.
const SETTLED_S: f64 = 1.0;

/// Shows the reading of data.
pub(in crate::cli) struct Reading<'a> {
    line: Line<'a>,
    stage: Option<Stage>,
    /// Whether the bytes of the data were told.
    is_told: bool,
    /// Whether the space that the tokens take was told.
    is_space_told: bool,
}

/// Place that the progress of the reading is shown in.
enum Line<'a> {
    Nowhere,
    /// A line now and then.
    Lines {
        last: Instant,
        every: Duration,
    },
    /// A line of its own on a terminal.
    Bar {
        bar: ProgressBar,
        is_drawn: bool,
    },
    /// Whoever has a line on a terminal already.
    Told(Box<dyn Fn(&str) + 'a>),
}

/// A stage that was seen, for its pace.
struct Stage {
    stage: ReadingStage,
    since: Instant,
    bytes: u64,
    share: f64,
}

impl<'a> Reading<'a> {
    /// Shows the progress on standard error.
    pub(in crate::cli) fn shown() -> Self {
        let target = ProgressDrawTarget::stderr();
        if target.is_hidden() {
            return Self::lines();
        }
        let bar = ProgressBar::with_draw_target(None, target);
        if let Ok(style) = ProgressStyle::with_template("{spinner} {wide_msg}") {
            bar.set_style(style);
        }
        Self::new(Line::Bar { bar, is_drawn: false })
    }

    /// Shows nothing.
    pub(in crate::cli) fn unseen() -> Self {
        Self::new(Line::Nowhere)
    }

    /// Shows the progress as lines of standard error, now and then.
    pub(in crate::cli) fn lines() -> Self {
        let given = std::env::var("PEFT_TUNE_READING_LINE_S").ok();
        let seconds = given.and_then(|text| text.parse().ok()).unwrap_or(LINE_S);
        Self::new(Line::Lines {
            last: Instant::now(),
            every: Duration::try_from_secs_f64(seconds).unwrap_or_default(),
        })
    }

    /// Hands the progress to `listener`, who has a line on a terminal already, and says there how many bytes there are.
    pub(in crate::cli) fn told_to(listener: impl Fn(&str) + 'a) -> Self {
        Self::new(Line::Told(Box::new(listener)))
    }

    /// Leaves out how many bytes there are, as somebody has said it already.
    pub(in crate::cli) fn told(mut self) -> Self {
        self.is_told = true;
        self
    }

    fn new(line: Line<'a>) -> Self {
        Self {
            line,
            stage: None,
            is_told: false,
            is_space_told: false,
        }
    }

    /// Takes in how far the reading is.
    pub(in crate::cli) fn takes(&mut self, now: &DataProgress) {
        let Some(stage) = now.stage else { return };
        if matches!(self.line, Line::Nowhere) || now.of_bytes <= QUICK_BYTES {
            return;
        }
        let is_read = matches!(
            stage,
            ReadingStage::Hashing | ReadingStage::Counting | ReadingStage::Tokenising
        );
        if is_read && !std::mem::replace(&mut self.is_told, true) {
            tell(reading_text(now.of_bytes));
        }
        if let (Some(space), Some(folder)) = (now.space, cache_folder())
            && !std::mem::replace(&mut self.is_space_told, true)
        {
            tell(format_args!(
                "their tokens take about {} of the {} that are free in {}",
                bytes(space.needed_bytes as f64),
                bytes(space.free_bytes as f64),
                folder.display()
            ));
        }
        let text = self.text(stage, now);
        match &mut self.line {
            Line::Nowhere => {}
            Line::Lines { last, every } if last.elapsed() >= *every => {
                *last = Instant::now();
                tell(text);
            }
            Line::Lines { .. } => {}
            Line::Bar { bar, is_drawn } => {
                bar.set_message(text);
                if !std::mem::replace(is_drawn, true) {
                    bar.enable_steady_tick(DRAW);
                    keep_below(bar.clone());
                }
            }
            Line::Told(listener) => listener(&text),
        }
    }

    /// `tokenising 9.31 GiB of data: 12% · 21.3 MiB/s · 7 min left`.
    fn text(&mut self, stage: ReadingStage, now: &DataProgress) -> String {
        let share = now.share();
        let began = match &self.stage {
            Some(known) if known.stage == stage => known,
            _ => self.stage.insert(Stage {
                stage,
                since: Instant::now(),
                bytes: now.bytes,
                share,
            }),
        };
        let seconds = began.since.elapsed().as_secs_f64();
        // Where rows are limited, they end before the bytes do.
        let by_rows = now
            .rows
            .filter(|(done, all)| *done as f64 / (*all).max(1) as f64 >= share);
        let what = match by_rows {
            Some((_, all)) => format!("{} rows", grouped(all as f64)),
            None => format!("{} of {}", bytes(now.of_bytes as f64), noun(stage)),
        };
        let mut parts = vec![format!("{} {what}: {:.0}%", verb(stage), (100.0 * share).floor())];
        if seconds >= SETTLED_S && share > began.share {
            let rate = now.bytes.saturating_sub(began.bytes) as f64 / seconds;
            parts.push(format!("{}/s", bytes(rate)));
            let left_s = seconds * (1.0 - share) / (share - began.share);
            parts.push(format!("{} left", about_duration(left_s)));
        }
        parts.join(" · ")
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        if let Line::Bar { is_drawn: true, .. } = &self.line {
            take_bar_away();
        }
    }
}

/// What is said before data are read.
pub(in crate::cli) fn reading_text(data_bytes: u64) -> String {
    format!("reading {} of data, once", bytes(data_bytes as f64))
}

fn verb(stage: ReadingStage) -> &'static str {
    match stage {
        ReadingStage::Hashing => "hashing",
        ReadingStage::Counting => "counting the rows of",
        ReadingStage::Tokenising => "tokenising",
        ReadingStage::Storing => "storing",
        ReadingStage::Checking => "looking over",
    }
}

fn noun(stage: ReadingStage) -> &'static str {
    match stage {
        ReadingStage::Hashing | ReadingStage::Counting | ReadingStage::Tokenising => "data",
        ReadingStage::Storing | ReadingStage::Checking => "tokens",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_has_share_rate_and_time_left() {
        let mut reading = Reading::unseen();
        let mut now = DataProgress {
            stage: Some(ReadingStage::Tokenising),
            bytes: 1 << 30,
            of_bytes: 10 << 30,
            ..DataProgress::default()
        };
        assert_eq!(
            reading.text(ReadingStage::Tokenising, &now),
            "tokenising 10.00 GiB of data: 10%"
        );
        reading.stage.as_mut().unwrap().since -= Duration::from_secs(100);
        now.bytes = 2 << 30;
        assert_eq!(
            reading.text(ReadingStage::Tokenising, &now),
            "tokenising 10.00 GiB of data: 20% · 10.2 MiB/s · 13 min left"
        );
        now.rows = Some((4500, 5000));
        assert_eq!(
            reading.text(ReadingStage::Tokenising, &now),
            "tokenising 5,000 rows: 90% · 10.2 MiB/s · 13 s left"
        );
    }
}
