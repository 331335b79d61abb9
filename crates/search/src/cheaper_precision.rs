//! A setting in a cheaper precision in place of one that chance made to look better.
//!
//! Rounding sets a training on another course, as another seed does. So two trainings that differ in nothing but the precision
//! have losses about as far apart as two seeds, and the larger loss says little. Where it is no farther off than that, the
//! cheaper of them is the one to take. A learning rate costs nothing, so a setting at another rate will do as well.

use super::Problem;
use super::history::Evaluated;
use super::length::{LEARNING_RATE, ROUNDS};
use super::loss_margins::LOSS_BY_CHANCE;
use super::reason::rate_text;
use peft_tune_core::objective::{LOSS, Objective};
use peft_tune_core::study::{Params, Trial, interval_of};

/// Share by which a value has to be better to count.
const CLEARLY: f64 = 0.05;

/// The trial of `front` that is the same as the chosen one in a cheaper precision, at its learning rate or another, if there is any: its loss is no more above than
/// chance may put it, as it counts and as it was measured, it is not known to be worse in anything else, and clearly better in
/// something.
pub(super) fn in_cheaper_precision<'a, 'b>(
    problem: &Problem,
    front: &'b [Evaluated<'a>],
    chosen: &Evaluated<'_>,
    measured: &[Trial],
) -> Option<&'b Evaluated<'a>> {
    let loss = problem.objectives.iter().position(|one| one.metric == LOSS)?;
    let measured_loss = |one: &Trial| {
        let trial = measured.iter().find(|trial| trial.number == one.number)?;
        trial.state.metrics()?.value(LOSS)
    };
    let own = measured_loss(chosen.trial)?;
    let is_cheaper = |one: &&Evaluated<'_>| {
        let is_near = |loss: f64, of_chosen: f64| loss <= of_chosen * (1.0 + LOSS_BY_CHANCE);
        let is_by_chance = is_near(one.values[loss], chosen.values[loss])
            && measured_loss(one.trial).is_some_and(|loss| is_near(loss, own));
        let mut others = problem
            .objectives
            .iter()
            .enumerate()
            .filter(|(index, _)| *index != loss);
        let gain = |index: usize| (chosen.values[index] - one.values[index]) / chosen.values[index].abs();
        is_by_chance
            && differ_in_precision(&one.trial.params, &chosen.trial.params)
            && others
                .clone()
                .all(|(index, objective)| gain(index) >= -unsure(objective, one.trial))
            && others.any(|(index, _)| gain(index) > CLEARLY)
    };
    // Of several precisions the one whose loss is nearest.
    let candidates = front.iter().filter(is_cheaper);
    candidates.min_by(|a, b| a.values[loss].total_cmp(&b.values[loss]))
}

/// What is said of a trial that is taken in place of the chosen one: `is trial 13 in precision bf16, which costs less and moves the
/// loss no further than chance may (1.4% more)`.
pub(super) fn instead_of(chosen: &Evaluated<'_>, taken: &Evaluated<'_>) -> String {
    let loss = |one: &Evaluated<'_>| one.trial.state.metrics().and_then(|metrics| metrics.value(LOSS));
    let more = match (loss(chosen), loss(taken)) {
        (Some(chosen), Some(taken)) => 100.0 * (taken / chosen - 1.0),
        _ => 0.0,
    };
    let side = if more < 0.0 { "less" } else { "more" };
    let value = |name: &str| taken.trial.params.get(name);
    let precision = value(ROUNDS).map(ToString::to_string).unwrap_or_default();
    let rate = value(LEARNING_RATE).filter(|rate| chosen.trial.params.get(LEARNING_RATE) != Some(*rate));
    let rate = rate.and_then(|rate| rate.as_f64());
    let rate = rate
        .map(|rate| format!(" at learning rate {}", rate_text(rate)))
        .unwrap_or_default();
    format!(
        "is trial {} in precision {precision}{rate}, which costs less and moves the loss no further than chance may ({:.1}% {side})",
        chosen.trial.number,
        more.abs()
    )
}

/// Share of itself by which a trial's value may be better than it was measured.
fn unsure(objective: &Objective, trial: &Trial) -> f64 {
    let metrics = trial.state.metrics();
    metrics
        .and_then(|metrics| metrics.value(&interval_of(&objective.metric)))
        .unwrap_or(0.0)
}

/// Whether two settings are the same but for the precision, and perhaps the learning rate.
fn differ_in_precision(one: &Params, other: &Params) -> bool {
    let same = |name: &String| name == ROUNDS || name == LEARNING_RATE || one.get(name) == other.get(name);
    one.get(ROUNDS) != other.get(ROUNDS) && one.keys().chain(other.keys()).all(same)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::trial;
    use crate::{Preference, evaluated, pareto_front, recommend};
    use peft_tune_core::objective::{PEAK_MEMORY, THROUGHPUT};
    use peft_tune_core::space::SearchSpace;
    use peft_tune_core::study::{ParamValue, TrialState};

    fn problem() -> Problem {
        Problem {
            space: SearchSpace { parameters: Vec::new() },
            objectives: [THROUGHPUT, PEAK_MEMORY, LOSS].map(Objective::new).to_vec(),
            constraints: Vec::new(),
        }
    }

    /// Trials of a precision and a rank with throughput, its interval, memory and loss.
    fn trials(rows: &[(&str, i64, [f64; 4])]) -> Vec<Trial> {
        let one = |(number, (precision, rank, values)): (usize, &(&str, i64, [f64; 4]))| {
            let params = Params::from([
                (ROUNDS.to_owned(), ParamValue::from(*precision)),
                ("rank".to_owned(), ParamValue::Int(*rank)),
            ]);
            let [throughput, interval, memory, loss] = *values;
            let metrics = [(THROUGHPUT, throughput), (PEAK_MEMORY, memory), (LOSS, loss)];
            let mut metrics: peft_tune_core::study::Metrics = metrics.into();
            metrics.insert(interval_of(THROUGHPUT), interval);
            trial(number, params, TrialState::Complete { metrics })
        };
        rows.iter().enumerate().map(one).collect()
    }

    fn chosen(rows: &[(&str, i64, [f64; 4])]) -> (u64, String) {
        let history = trials(rows);
        let found = recommend(&problem(), &history, &Preference::default()).unwrap();
        (found.trial.number.0, found.reason)
    }

    #[test]
    fn what_chance_made_better_in_a_dearer_precision_is_not_taken() {
        let fp32 = ("fp32", 32, [13_126.0, 0.01, 30.3, 2.0573]);
        // Slower than it was, as something else slowed it down.
        let (number, reason) = chosen(&[fp32, ("bf16", 32, [11_879.0, 3.6, 18.1, 2.0858])]);
        assert_eq!(number, 1, "{reason}");
        assert!(
            reason.contains("trial 1 is trial 0 in precision bf16, which costs less") && reason.contains("(1.4% more)"),
            "{reason}"
        );
        // Not by chance; surely slower; no cheaper; another rank.
        assert_eq!(chosen(&[fp32, ("bf16", 32, [15_000.0, 0.01, 18.1, 2.11])]).0, 0);
        assert_eq!(chosen(&[fp32, ("bf16", 32, [11_879.0, 0.01, 18.1, 2.0858])]).0, 0);
        assert_eq!(chosen(&[fp32, ("bf16", 32, [13_200.0, 0.01, 30.2, 2.0858])]).0, 0);
        assert_eq!(chosen(&[fp32, ("bf16", 16, [15_000.0, 0.01, 18.1, 2.0858])]).0, 0);
    }

    #[test]
    fn a_cheaper_precision_counts_at_another_learning_rate_too() {
        let mut history = trials(&[
            ("fp32", 32, [25_596.0, 0.01, 31.5, 1.699]),
            ("bf16", 32, [37_931.0, 0.01, 19.3, 1.717]),
        ]);
        for (trial, rate) in history.iter_mut().zip([0.0045, 0.005]) {
            trial.params.insert(LEARNING_RATE, ParamValue::Float(rate));
        }
        let found = recommend(&problem(), &history, &Preference::default()).unwrap();
        assert_eq!(found.trial.number.0, 1, "{}", found.reason);
        let said = "trial 1 is trial 0 in precision bf16 at learning rate 5.0e-3, which costs less";
        assert!(found.reason.contains(said), "{}", found.reason);
    }

    #[test]
    fn what_is_taken_is_on_the_front() {
        let rows = [
            ("fp32", 32, [100.0, 0.01, 30.0, 2.0]),
            ("bf16", 32, [120.0, 0.01, 20.0, 2.03]),
            ("bf16", 16, [130.0, 0.01, 15.0, 2.025]),
        ];
        let history = trials(&rows);
        let (front, all) = (pareto_front(&problem(), &history), evaluated(&problem(), &history));
        assert!(in_cheaper_precision(&problem(), &front, &all[0], &history).is_none());
    }
}
