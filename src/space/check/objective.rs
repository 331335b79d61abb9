//! Objectives and constraints.

use super::Context;
use crate::space::SpaceError;
use crate::space::error::nearest;
use crate::space::file::{Bytes, Count, Entries, FileValue, ObjectiveEntry};
use crate::space::yaml::Span;
use peft_tune_core::objective::{
    BASE_KL, Bound, Constraint, Direction, EXACT_MATCH, LOSS, LOSS_KEPT_PERCENT, Objective, PEAK_MEMORY,
    RETAINED_LOSS_INCREASE, SERVE_MS_PER_TOKEN, THROUGHPUT, TOKEN_ACCURACY_LOST_PERCENT, TOP1_AGREEMENT_PERCENT,
    is_share,
};
use peft_tune_core::space::SearchSpace;
use peft_tune_core::study::ParamValue;

pub(super) use crate::space::recipe_metrics::RECIPE_METRICS;

/// Metrics of a study's answers, each with what is better of it; `None` where a command runs the trials, which may report any.
pub(super) type Scored<'a> = Option<&'a [(String, Direction)]>;

/// Hypervolumes are computed for up to four objectives.
const MOST_OBJECTIVES: usize = 4;

impl Context<'_> {
    pub(super) fn objectives(
        &self,
        entries: &[ObjectiveEntry],
        scored: Scored<'_>,
    ) -> Result<Vec<Objective>, SpaceError> {
        if entries.is_empty() || entries.len() > MOST_OBJECTIVES {
            return Err(SpaceError::ObjectiveCount {
                at: self.document.key(&["objectives"]),
                count: entries.len(),
            });
        }
        let mut objectives: Vec<Objective> = Vec::new();
        for (index, entry) in entries.iter().enumerate() {
            let place = |last: &str| self.objective_place(index, last);
            let objective = self.objective(entry, scored, &place)?;
            if objectives.iter().any(|other| other.metric == objective.metric) {
                return Err(SpaceError::DuplicateObjective {
                    at: place("metric"),
                    metric: objective.metric,
                });
            }
            objectives.push(objective);
        }
        Ok(objectives)
    }

    /// The place of an objective's key; of the objective where it has no such key.
    pub(super) fn objective_place(&self, index: usize, last: &str) -> Box<Span> {
        let index = index.to_string();
        let keys = ["objectives", &index, last];
        self.document
            .value(if self.document.has(&keys) { &keys } else { &keys[..2] })
    }

    fn objective(
        &self,
        entry: &ObjectiveEntry,
        scored: Scored<'_>,
        place: &dyn Fn(&str) -> Box<Span>,
    ) -> Result<Objective, SpaceError> {
        let details = &entry.0;
        check_metric(&details.metric, scored, || place("metric"))?;
        self.check_retained(&details.metric, scored, || place("metric"))?;
        let mut natural = Objective::new(&details.metric);
        let mut named = scored.unwrap_or_default().iter();
        if let Some((_, direction)) = named.find(|(name, _)| *name == details.metric) {
            natural.direction = *direction;
        }
        if scored.is_some()
            && details
                .direction
                .is_some_and(|direction| direction != natural.direction)
        {
            let verb = match natural.direction {
                Direction::Minimize => "minimize",
                Direction::Maximize => "maximize",
            };
            return Err(SpaceError::Rejected {
                at: place("direction"),
                message: format!("the direction of `{}` is {verb}; remove this key", details.metric),
            });
        }
        let reference = match &details.reference {
            None => None,
            Some(value) => Some(reference(&details.metric, value).ok_or_else(|| SpaceError::WrongValue {
                at: place("reference"),
                found: value.to_string(),
                expected: expected_value(&details.metric).to_owned(),
            })?),
        };
        Ok(Objective {
            direction: details.direction.unwrap_or(natural.direction),
            reference,
            known_after: details.known_after,
            ..natural
        })
    }

    pub(super) fn constraints(
        &self,
        entries: &Entries<String>,
        scored: Scored<'_>,
    ) -> Result<Vec<Constraint>, SpaceError> {
        let mut constraints = Vec::new();
        for (metric, text) in &entries.0 {
            let keys = ["constraints", metric];
            check_metric(metric, scored, || self.document.key(&keys))?;
            self.check_retained(metric, scored, || self.document.key(&keys))?;
            let bound = bound(metric, text).ok_or_else(|| SpaceError::WrongValue {
                at: self.document.value(&keys),
                found: format!("`{text}`"),
                expected: format!(
                    "a bound in quotes, \"<= ..\" or \">= ..\", with {}",
                    expected_value(metric)
                ),
            })?;
            constraints.push(Constraint {
                metric: metric.clone(),
                bound,
            });
        }
        Ok(constraints)
    }

    /// Refuses the metric of retained rows where the file names none.
    fn check_retained(
        &self,
        metric: &str,
        scored: Scored<'_>,
        at: impl FnOnce() -> Box<Span>,
    ) -> Result<(), SpaceError> {
        if scored.is_none() || metric != RETAINED_LOSS_INCREASE || self.document.has(&["data", "retain"]) {
            return Ok(());
        }
        Err(SpaceError::Rejected {
            at: at(),
            message: format!(
                "`{RETAINED_LOSS_INCREASE}` is measured on rows that the training has nothing to do with; name a file of them as \
                 `data.retain`, or write `{BASE_KL}`, which needs none"
            ),
        })
    }
}

fn check_metric(metric: &str, scored: Scored<'_>, at: impl Fn() -> Box<Span>) -> Result<(), SpaceError> {
    if let Some(scored) = scored {
        let named = scored.iter().map(|(name, _)| name.clone());
        let known: Vec<String> = RECIPE_METRICS.map(String::from).into_iter().chain(named).collect();
        if metric == EXACT_MATCH && !known.iter().any(|name| name == metric) {
            return Err(SpaceError::Rejected {
                at: at(),
                message: "`exact_match` is measured on generated answers; add `score: {exact_match: {}}`".into(),
            });
        }
        if !known.iter().any(|name| name == metric) {
            return Err(SpaceError::UnknownMetric {
                at: at(),
                metric: metric.to_owned(),
                nearest: nearest(metric, &known),
                known,
            });
        }
    }
    if metric.trim().is_empty() {
        return Err(SpaceError::Rejected {
            at: at(),
            message: "the metric has no name; write the one that the command reports".into(),
        });
    }
    Ok(())
}

/// What a value of this metric looks like.
fn expected_value(metric: &str) -> &'static str {
    match metric {
        PEAK_MEMORY => "a size such as 22 GiB",
        metric if is_share(metric) => "a share from 0 to 1, such as 0.62 or 62%",
        TOKEN_ACCURACY_LOST_PERCENT => "a percentage of at most 100, such as 1.2",
        TOP1_AGREEMENT_PERCENT => "a percentage from 0 to 100, such as 98.8",
        LOSS_KEPT_PERCENT => "a percentage such as 99.5",
        RETAINED_LOSS_INCREASE => "a part of the loss before, at most all of it, such as 2% or 0.02",
        BASE_KL => "nats from 0 on, such as 0.05",
        SERVE_MS_PER_TOKEN => "milliseconds above 0, such as 20",
        _ => "a number such as 2.5 or 60k",
    }
}

fn reference(metric: &str, value: &FileValue) -> Option<f64> {
    match value {
        FileValue::One(ParamValue::Text(text)) => metric_value(metric, text),
        FileValue::One(value) => value.as_f64().filter(|value| is_possible(metric, *value)),
        FileValue::List(_) => None,
    }
}

fn bound(metric: &str, text: &str) -> Option<Bound> {
    let text = text.trim();
    let at_most = ["<=", "≤"].iter().find_map(|sign| text.strip_prefix(sign));
    let at_least = [">=", "≥"].iter().find_map(|sign| text.strip_prefix(sign));
    match (at_most, at_least) {
        (Some(value), _) => metric_value(metric, value).map(Bound::AtMost),
        (_, Some(value)) => metric_value(metric, value).map(Bound::AtLeast),
        _ => None,
    }
}

/// A value of a metric in its own unit.
fn metric_value(metric: &str, text: &str) -> Option<f64> {
    let text = text.trim();
    if metric == PEAK_MEMORY {
        return text.parse::<Bytes>().ok().map(|bytes| bytes.0 as f64);
    }
    let plain = |text: &str| text.parse::<f64>().ok().filter(|value| value.is_finite());
    let percent = text.strip_suffix('%').and_then(|text| plain(text.trim_end()));
    let number = match (percent, metric) {
        (Some(percent), metric) if is_share(metric) || metric == RETAINED_LOSS_INCREASE => Some(percent / 100.0),
        (Some(percent), LOSS_KEPT_PERCENT | TOP1_AGREEMENT_PERCENT | TOKEN_ACCURACY_LOST_PERCENT) => Some(percent),
        _ => plain(text),
    };
    let number = number.or_else(|| text.parse::<Count>().ok().map(|count| count.0 as f64));
    number.filter(|value| is_possible(metric, *value))
}

/// Whether a metric can have this value: a share of 62 is a mistake for 0.62, and an increase of 2 for 2%.
fn is_possible(metric: &str, value: f64) -> bool {
    match metric {
        metric if is_share(metric) => (0.0..=1.0).contains(&value),
        TOKEN_ACCURACY_LOST_PERCENT => value <= 100.0,
        TOP1_AGREEMENT_PERCENT => (0.0..=100.0).contains(&value),
        LOSS_KEPT_PERCENT | BASE_KL => value >= 0.0,
        SERVE_MS_PER_TOKEN => value > 0.0,
        RETAINED_LOSS_INCREASE => (-1.0..=1.0).contains(&value),
        _ => true,
    }
}

/// Lets whatever changes the loss change the other metrics of a training too, which are measured on the same trained values.
pub(super) fn follow_loss(objectives: &[Objective], constraints: &[Constraint], space: &mut SearchSpace) {
    let known_before = [THROUGHPUT, PEAK_MEMORY, LOSS, SERVE_MS_PER_TOKEN];
    let objectives = objectives.iter().map(|objective| &objective.metric);
    let names = objectives.chain(constraints.iter().map(|constraint| &constraint.metric));
    let mut learned: Vec<&String> = Vec::new();
    for name in names.filter(|name| !known_before.contains(&name.as_str())) {
        if !learned.contains(&name) {
            learned.push(name);
        }
    }
    for affects in space.parameters.iter_mut().filter_map(|one| one.affects.as_mut()) {
        if affects.iter().any(|metric| metric == LOSS) {
            affects.extend(learned.iter().map(|name| (*name).clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use peft_tune_core::objective::TOKEN_ACCURACY;

    #[test]
    fn bounds_are_read_in_the_metric_s_unit() {
        assert_eq!(
            bound(PEAK_MEMORY, "<= 22 GiB"),
            Some(Bound::AtMost((22u64 << 30) as f64))
        );
        assert_eq!(bound(THROUGHPUT, ">=1.5k"), Some(Bound::AtLeast(1500.0)));
        assert_eq!(bound(LOSS, "≤ 2.5"), Some(Bound::AtMost(2.5)));
        assert_eq!(bound(TOKEN_ACCURACY, ">= 62%"), Some(Bound::AtLeast(0.62)));
        assert_eq!(bound(TOP1_AGREEMENT_PERCENT, ">= 98.8 %"), Some(Bound::AtLeast(98.8)));
        assert_eq!(bound(LOSS_KEPT_PERCENT, ">= 100.5"), Some(Bound::AtLeast(100.5)));
        for increase in ["<= 2%", "<= 0.02"] {
            assert_eq!(bound(RETAINED_LOSS_INCREASE, increase), Some(Bound::AtMost(0.02)));
        }
        assert_eq!(bound(BASE_KL, "<= 0.05"), Some(Bound::AtMost(0.05)));
        assert_eq!(bound(SERVE_MS_PER_TOKEN, "<= 20"), Some(Bound::AtMost(20.0)));
        for (metric, wrong) in [
            (TOKEN_ACCURACY, ">= 62"),
            (TOP1_AGREEMENT_PERCENT, ">= 101"),
            (LOSS, "<= 2%"),
            (RETAINED_LOSS_INCREASE, "<= 2"),
            (BASE_KL, "<= 5%"),
            (BASE_KL, "<= -1"),
            (SERVE_MS_PER_TOKEN, "<= 0"),
        ] {
            assert_eq!(bound(metric, wrong), None, "{metric} {wrong}");
        }
        for wrong in ["22 GiB", "< 22 GiB", "<= 22 gallons", "== 1", "<= inf"] {
            assert_eq!(bound(PEAK_MEMORY, wrong), None, "{wrong}");
        }
    }
}
