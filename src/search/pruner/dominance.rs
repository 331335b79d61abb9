//! Stops a trial once it cannot enter the front even if it ends optimistically.

use super::{Field, Progress, Pruner, Verdict};
use crate::search::hypervolume::{contribution, hypervolume};
use crate::search::learning_curve::extrapolate;

/// Stops where a finished trial is at least as good in every objective as this one's optimistic end: the known objectives
/// with the value that each unknown one undercuts with a probability of 0.05 only, from the trial's own curve, or, before
/// that says anything, from what the surrogate expects of its settings.
///
/// The bound is valid for the front, so the final front is that of full trials; and a stopped trial teaches "at least
/// this", not a made-up end (a naive extrapolation poisons the surrogate). With `least_gain` above 0 it also stops what
/// would add less than that share of the hypervolume, which is cheaper and leaves gaps of that size in the front.
#[derive(Clone, Debug, PartialEq)]
pub struct Dominance {
    /// Share of the trial's steps before which its own curve counts for nothing.
    pub warm_up: f64,
    /// Share of the hypervolume that is too little to go on for.
    pub least_gain: f64,
}

/// Where a trial will end at best.
struct Optimistic {
    values: Vec<f64>,
    /// Those of them that the trial's own curves say.
    from_curves: Vec<Option<f64>>,
}

impl Dominance {
    fn optimistic(&self, trial: &Progress) -> Option<Optimistic> {
        let from_curve = |objective: usize| {
            let total = trial.total_steps.filter(|_| !trial.is_warming_up(self.warm_up))?;
            extrapolate(&trial.curves[objective], total).map(|end| end.low)
        };
        let unknown = |objective: usize| trial.known[objective].is_none();
        let objectives = 0..trial.known.len();
        let from_curves: Vec<Option<f64>> = objectives
            .clone()
            .map(|objective| from_curve(objective).filter(|_| unknown(objective)))
            .collect();
        let values = objectives.map(|objective| {
            let own = trial.known[objective].or(from_curves[objective]);
            own.or(trial.expected_low[objective])
        });
        Some(Optimistic {
            values: values.collect::<Option<_>>()?,
            from_curves,
        })
    }
}

impl Pruner for Dominance {
    fn name(&self) -> &'static str {
        "dominance"
    }

    fn judge(&self, trial: &Progress, field: Field<'_>) -> Verdict {
        if trial.known.iter().all(Option::is_some) {
            return Verdict::Continue;
        }
        let Some(optimistic) = self.optimistic(trial) else {
            return Verdict::Continue;
        };
        let own = optimistic.from_curves.iter().any(Option::is_some);
        let least_gain = if own { self.least_gain } else { 0.0 };
        match hopeless(trial, &optimistic.values, (field, least_gain)) {
            None => Verdict::Continue,
            Some(reason) => Verdict::Stop {
                reason,
                at_least: optimistic.from_curves,
            },
        }
    }
}

/// Why the optimistic end is not worth reaching.
fn hopeless(trial: &Progress, optimistic: &[f64], (field, least_gain): (Field<'_>, f64)) -> Option<String> {
    let finished: Vec<(&Progress, Vec<f64>)> = field
        .others
        .iter()
        .filter(|other| other.number != trial.number && other.feasible)
        .filter_map(|other| Some((other, other.values()?)))
        .collect();
    let better = finished
        .iter()
        .find(|(_, values)| values.iter().zip(optimistic).all(|(value, limit)| value <= limit));
    if let Some((other, _)) = better {
        return Some(format!(
            "trial {} is better even if this one ends at its best",
            other.number
        ));
    }
    if least_gain <= 0.0 {
        return None;
    }
    let points: Vec<Vec<f64>> = finished.into_iter().map(|(_, values)| values).collect();
    let volume = hypervolume(&points, field.reference);
    let gain = contribution(optimistic, &points, field.reference);
    (volume > 0.0 && gain < least_gain * volume).then(|| {
        format!(
            "at its best this one adds {:.3}% to the hypervolume, below {:.3}%",
            100.0 * gain / volume,
            100.0 * least_gain
        )
    })
}

#[cfg(test)]
mod tests {
    use super::super::progress::tests::{field, progress};
    use super::*;

    const PRUNER: Dominance = Dominance {
        warm_up: 0.05,
        least_gain: 0.0,
    };

    #[test]
    fn a_hopeless_trial_stops_and_a_hopeful_or_cheaper_one_goes_on() {
        let finished = [progress(0, 1.0, 2.0, 100)];
        let Verdict::Stop { reason, at_least } = PRUNER.judge(&progress(1, 1.0, 3.0, 40), field(&finished)) else {
            panic!("a trial one worse in loss at the same cost goes on");
        };
        assert_eq!(reason, "trial 0 is better even if this one ends at its best");
        assert_eq!(at_least[0], None);
        assert!(
            at_least[1].is_some_and(|bound| bound > 2.1 && bound < 3.1),
            "{at_least:?}"
        );
        for hopeful in [
            progress(1, 1.0, 1.9, 40),
            progress(1, 0.5, 3.0, 40),
            progress(1, 1.0, 3.0, 0),
        ] {
            assert_eq!(PRUNER.judge(&hopeful, field(&finished)), Verdict::Continue);
        }
        assert_eq!(PRUNER.judge(&progress(1, 1.0, 3.0, 40), field(&[])), Verdict::Continue);
    }

    #[test]
    fn what_the_surrogate_expects_stops_a_trial_before_its_curve_begins() {
        let finished = [progress(0, 1.0, 2.0, 100)];
        let mut trial = progress(1, 1.0, 3.0, 0);
        trial.expected_low[1] = Some(2.5);
        let verdict = PRUNER.judge(&trial, field(&finished));
        assert!(
            matches!(&verdict, Verdict::Stop { at_least, .. } if at_least == &[None, None]),
            "{verdict:?}"
        );
        trial.expected_low[1] = Some(1.5);
        assert_eq!(PRUNER.judge(&trial, field(&finished)), Verdict::Continue);
    }

    #[test]
    fn a_small_gain_stops_only_where_it_is_asked_for() {
        let finished = [progress(0, 1.0, 2.0, 100)];
        // A hundredth cheaper, so it enters the front, but hardly.
        let trial = progress(1, 0.99, 3.0, 40);
        assert_eq!(PRUNER.judge(&trial, field(&finished)), Verdict::Continue);
        let strict = Dominance {
            least_gain: 0.01,
            ..PRUNER
        };
        assert!(matches!(strict.judge(&trial, field(&finished)), Verdict::Stop { .. }));
    }

    #[test]
    fn an_infeasible_trial_stops_nobody() {
        let mut finished = [progress(0, 1.0, 2.0, 100)];
        finished[0].feasible = false;
        assert_eq!(
            PRUNER.judge(&progress(1, 1.0, 3.0, 40), field(&finished)),
            Verdict::Continue
        );
    }
}
