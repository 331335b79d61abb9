//! How sure the loss of the recommended trial is, and which trainings lie within that.

use serde::Serialize;

use super::input::{ASSUMED_LOSS_NOISE, AnswersInput, own_interval};
use peft_tune_core::objective::LOSS;
use peft_tune_core::study::{Trial, TrialNumber};
use peft_tune_search::evaluated;

/// Rivals that are named.
const MOST_RIVALS: usize = 12;

/// The loss of the recommended trial.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LossCertainty {
    pub trial: TrialNumber,
    /// Loss in nats per target token.
    pub loss: f64,
    /// Half of its 95% interval, in nats.
    pub half_interval: f64,
    pub source: NoiseSource,
    /// Other trainings within the constraints by their loss, the best first: those that the noise could put in its place, and
    /// as many beyond as are needed to see it.
    pub rivals: Vec<Rival>,
}

/// Source of the interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum NoiseSource {
    /// The trial was run again.
    Repeats { repeats: u64 },
    /// The trial's own evaluation says how exact it is.
    Evaluation,
    /// An assumption, as the trial was trained once.
    Assumed,
}

/// Another training.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Rival {
    pub trial: TrialNumber,
    pub loss: f64,
    /// Whether the training's loss differs from the recommended trial's by no more than both stray.
    pub within_noise: bool,
}

/// How sure the recommended trial's loss is; `None` without one, and where the loss is no objective.
pub(super) fn loss_certainty(input: &AnswersInput<'_>) -> Option<LossCertainty> {
    let trial = input.recommended_trial()?;
    let index = input.problem.objectives.iter().position(|one| one.metric == LOSS)?;
    let loss = trial.state.metrics()?.value(LOSS)?;
    let (half_interval, source) = interval(input, trial, loss);
    let training = |number: TrialNumber| input.variants.get(&number).copied().unwrap_or(number);
    let own = training(trial.number);
    let all = evaluated(input.problem, input.trials).into_iter();
    let others = all.filter(|one| one.is_feasible() && !input.variants.contains_key(&one.trial.number));
    let mut rivals: Vec<Rival> = others
        .filter(|one| one.trial.number != own)
        .map(|one| {
            let both = half_interval.hypot(input.half_interval(one.trial, LOSS, one.values[index]));
            Rival {
                trial: one.trial.number,
                loss: one.values[index],
                within_noise: (one.values[index] - loss).abs() <= both,
            }
        })
        .collect();
    rivals.sort_by(|a, b| a.loss.total_cmp(&b.loss));
    rivals.truncate(MOST_RIVALS);
    Some(LossCertainty {
        trial: trial.number,
        loss,
        half_interval,
        source,
        rivals,
    })
}

fn interval(input: &AnswersInput<'_>, trial: &Trial, loss: f64) -> (f64, NoiseSource) {
    if let Some(one) = input.repeats(trial.number, LOSS) {
        let source = NoiseSource::Repeats { repeats: one.repeats };
        return (one.interval * loss.abs(), source);
    }
    if let Some(share) = trial.state.metrics().and_then(|metrics| own_interval(metrics, LOSS)) {
        return (share * loss.abs(), NoiseSource::Evaluation);
    }
    (ASSUMED_LOSS_NOISE * loss.abs(), NoiseSource::Assumed)
}

#[cfg(test)]
mod tests {
    use super::super::testing::study;
    use super::*;
    use peft_tune_core::objective::THROUGHPUT;
    use peft_tune_core::study::{Confirmed, TrialState};

    #[test]
    fn a_loss_that_was_trained_once_is_assumed_and_its_rivals_are_named() {
        let mut case = study(&[(16, 0.3), (16, 0.3), (8, 0.2), (4, 0.5)], |_, _| [1.0, 1.0]);
        for (trial, loss) in case.trials.iter_mut().zip([2.0, 2.0, 2.02, 2.2]) {
            trial.state = TrialState::Complete {
                metrics: [(THROUGHPUT, 1.0), (LOSS, loss)].into(),
            };
        }
        // A variant is no rival: it has the same loss.
        case.variants.insert(TrialNumber(1), TrialNumber(0));
        let one = case.with(|input| loss_certainty(&input)).unwrap();
        assert_eq!((one.source, one.half_interval), (NoiseSource::Assumed, 0.02));
        let within: Vec<(u64, bool)> = one
            .rivals
            .iter()
            .map(|rival| (rival.trial.0, rival.within_noise))
            .collect();
        assert_eq!(within, [(2, true), (3, false)]);
    }

    #[test]
    fn repeats_say_more_than_an_assumption() {
        let case = study(&[(16, 0.3), (8, 0.2)], |_, _| [1.0, 2.0]);
        let confirmed = Confirmed {
            value: 2.0,
            interval: 0.002,
            repeats: 3,
        };
        let confirmed = [(TrialNumber(0), [(LOSS.to_owned(), confirmed)].into())].into();
        let one = case.with(|input| {
            loss_certainty(&AnswersInput {
                confirmed: &confirmed,
                ..input
            })
        });
        let one = one.unwrap();
        assert_eq!(
            (one.source, one.half_interval),
            (NoiseSource::Repeats { repeats: 3 }, 0.004)
        );
    }
}
