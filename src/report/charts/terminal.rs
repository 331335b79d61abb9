//! The front as a scatter of characters, for the terminal.

use super::text_plot::TextPlot;
use crate::report::{metric_heading, metric_value, printable};
use peft_tune_core::objective::Objective;
use peft_tune_core::study::{Trial, TrialNumber, TrialState};

/// How a trial is marked; the later wins where two stand in one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Mark {
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
    let mut points: Vec<(f64, f64, Mark)> = trials
        .iter()
        .filter_map(|trial| {
            let TrialState::Complete { metrics } = &trial.state else {
                return None;
            };
            let mark = match () {
                () if recommended == Some(trial.number) => Mark::Best,
                () if front.contains(&trial.number) => Mark::Front,
                () => Mark::Beaten,
            };
            Some((metrics.value(&x.metric)?, metrics.value(&y.metric)?, mark))
        })
        .collect();
    if points.is_empty() {
        return None;
    }
    points.sort_by_key(|(_, _, mark)| *mark);
    let (least, most) = span(points.iter().map(|point| point.0));
    let (low, high) = span(points.iter().map(|point| point.1));
    let mut plot = TextPlot::new([high, low].map(|value| metric_value(&y.metric, value)), width);
    for (px, py, mark) in points {
        let mark = match mark {
            Mark::Beaten => '·',
            Mark::Front => '●',
            Mark::Best => '★',
        };
        plot.mark((px - least) / (most - least), (py - low) / (high - low), mark);
    }
    let ends = [least, most].map(|value| metric_value(&x.metric, value));
    let under = [
        format!("{:>columns$}", named(x), columns = plot.columns()),
        "★ recommended  ● on the front  · beaten by another".to_owned(),
    ];
    Some(plot.finish(&named(y), [&ends[0], &ends[1]], &under))
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
