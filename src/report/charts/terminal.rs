//! The front as a scatter of characters, for the terminal.

use crate::report::{metric_heading, metric_value, printable};
use peft_tune_core::objective::Objective;
use peft_tune_core::study::{Trial, TrialNumber, TrialState};

/// Width of the plot itself where the terminal is wider, and where its width is not known.
const WIDEST: usize = 96;
const ROWS: usize = 16;
/// Narrowest plot that still shows anything.
const NARROWEST: usize = 20;

/// What a cell of the plot shows; the later wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Cell {
    Empty,
    Beaten,
    Front,
    Best,
}

/// A plot of two objectives over all complete trials in at most `width` columns: `·` beaten by another, `●` on the front,
/// `★` recommended. `None` without a trial that has both values.
pub fn plot(
    objectives: (&Objective, &Objective),
    trials: &[Trial],
    front: &[TrialNumber],
    recommended: Option<TrialNumber>,
    width: Option<usize>,
) -> Option<String> {
    let (x, y) = objectives;
    let points: Vec<(f64, f64, Cell)> = trials
        .iter()
        .filter_map(|trial| {
            let TrialState::Complete { metrics } = &trial.state else {
                return None;
            };
            let cell = match () {
                () if recommended == Some(trial.number) => Cell::Best,
                () if front.contains(&trial.number) => Cell::Front,
                () => Cell::Beaten,
            };
            Some((metrics.value(&x.metric)?, metrics.value(&y.metric)?, cell))
        })
        .collect();
    if points.is_empty() {
        return None;
    }
    let (x_span, y_span) = (
        span(points.iter().map(|point| point.0)),
        span(points.iter().map(|point| point.1)),
    );
    let labels = [y_span.1, y_span.0].map(|value| metric_value(&y.metric, value));
    let margin = labels.iter().map(|label| label.chars().count()).max().unwrap_or(0) + 1;
    let columns = width
        .unwrap_or(WIDEST)
        .min(WIDEST)
        .saturating_sub(margin + 1)
        .max(NARROWEST);
    let mut cells = vec![vec![Cell::Empty; columns]; ROWS];
    for (px, py, cell) in points {
        let column = place(px, x_span, columns);
        let row = ROWS - 1 - place(py, y_span, ROWS);
        cells[row][column] = cells[row][column].max(cell);
    }
    Some(drawn(&cells, margin, &labels, &named(y), &x_axis(x, x_span, columns)))
}

fn drawn(cells: &[Vec<Cell>], margin: usize, labels: &[String; 2], y_name: &str, x_axis: &str) -> String {
    let mut text = format!("{y_name}\n");
    for (index, row) in cells.iter().enumerate() {
        let label = match index {
            0 => labels[0].as_str(),
            _ if index == cells.len() - 1 => labels[1].as_str(),
            _ => "",
        };
        let row: String = row
            .iter()
            .map(|cell| match cell {
                Cell::Empty => ' ',
                Cell::Beaten => '·',
                Cell::Front => '●',
                Cell::Best => '★',
            })
            .collect();
        text.push_str(&format!("{label:>width$} ┤{}\n", row.trim_end(), width = margin - 1));
    }
    let columns = cells.first().map_or(0, Vec::len);
    text.push_str(&format!("{:margin$}└{}\n", "", "─".repeat(columns)));
    for line in x_axis.lines() {
        text.push_str(&format!("{:margin$} {line}\n", ""));
    }
    text.push_str(&format!(
        "{:margin$} ★ recommended  ● on the front  · beaten by another\n",
        ""
    ));
    text
}

/// Both ends of the axis, and its name on the right.
fn x_axis(objective: &Objective, span: (f64, f64), columns: usize) -> String {
    let (low, high) = (
        metric_value(&objective.metric, span.0),
        metric_value(&objective.metric, span.1),
    );
    let gap = columns
        .saturating_sub(low.chars().count() + high.chars().count())
        .max(1);
    format!("{low}{}{high}\n{:>columns$}", " ".repeat(gap), named(objective))
}

fn named(objective: &Objective) -> String {
    let better = match objective.direction {
        peft_tune_core::objective::Direction::Maximize => "more",
        peft_tune_core::objective::Direction::Minimize => "less",
    };
    format!("{} ({better} is better)", printable(&metric_heading(&objective.metric)))
}

fn span(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
        (low.min(value), high.max(value))
    })
}

/// Which of `count` cells a value falls into; the middle one where all values are the same.
fn place(value: f64, (low, high): (f64, f64), count: usize) -> usize {
    let share = (value - low) / (high - low);
    if share.is_finite() {
        (share * (count - 1) as f64).round() as usize
    } else {
        (count - 1) / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use peft_tune_core::objective::{LOSS, THROUGHPUT};

    fn trial(number: u64, throughput: f64, loss: f64) -> Trial {
        Trial {
            number: TrialNumber(number),
            params: Default::default(),
            state: TrialState::Complete {
                metrics: [(THROUGHPUT, throughput), (LOSS, loss)].into(),
            },
        }
    }

    #[test]
    fn the_plot_marks_front_and_recommendation() {
        let trials = [
            trial(0, 1000.0, 2.0),
            trial(1, 3000.0, 2.5),
            trial(2, 2000.0, 2.1),
            trial(3, 1500.0, 3.0),
        ];
        let front = [TrialNumber(0), TrialNumber(1), TrialNumber(2)];
        let objectives = (&Objective::new(THROUGHPUT), &Objective::new(LOSS));
        let plot = plot(objectives, &trials, &front, Some(TrialNumber(2)), Some(40)).unwrap();
        let lines: Vec<&str> = plot.lines().collect();
        assert_eq!(lines[0], "loss (less is better)");
        assert!(
            lines[1].starts_with("3.0000 ┤") && lines[16].starts_with("2.0000 ┤●"),
            "{plot}"
        );
        let count = |mark: char| {
            lines[1..17]
                .iter()
                .map(|line| line.matches(mark).count())
                .sum::<usize>()
        };
        assert_eq!((count('★'), count('●'), count('·')), (1, 2, 1), "{plot}");
        assert!(plot.contains("tokens/s (more is better)") && lines.iter().all(|line| line.chars().count() <= 60));
    }

    #[test]
    fn one_trial_stands_in_the_middle_and_none_draws_nothing() {
        let objectives = (&Objective::new(THROUGHPUT), &Objective::new(LOSS));
        assert!(
            plot(objectives, &[trial(0, 5.0, 1.0)], &[], None, Some(5))
                .unwrap()
                .contains('·')
        );
        assert_eq!(plot(objectives, &[], &[], None, None), None);
    }
}
