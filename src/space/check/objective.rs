//! Objectives and constraints.

use super::Context;
use crate::space::SpaceError;
use crate::space::error::nearest;
use crate::space::file::{Bytes, Count, Entries, FileValue, ObjectiveEntry};
use crate::space::yaml::Span;
use peft_tune_core::objective::{Bound, Constraint, Direction, LOSS, Objective, PEAK_MEMORY, THROUGHPUT};
use peft_tune_core::study::ParamValue;

/// The metrics that the native backend measures.
const NATIVE_METRICS: [&str; 3] = [THROUGHPUT, PEAK_MEMORY, LOSS];
/// Hypervolumes are computed for up to four objectives.
const MOST_OBJECTIVES: usize = 4;

impl Context<'_> {
    pub(super) fn objectives(&self, entries: &[ObjectiveEntry], native: bool) -> Result<Vec<Objective>, SpaceError> {
        if entries.is_empty() || entries.len() > MOST_OBJECTIVES {
            return Err(SpaceError::ObjectiveCount {
                at: self.document.key(&["objectives"]),
                count: entries.len(),
            });
        }
        let mut objectives: Vec<Objective> = Vec::new();
        for (index, entry) in entries.iter().enumerate() {
            let index = index.to_string();
            let place = |last: &str| {
                let keys = ["objectives", &index, last];
                self.document
                    .value(if self.document.has(&keys) { &keys } else { &keys[..2] })
            };
            let objective = self.objective(entry, native, &place)?;
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

    fn objective(
        &self,
        entry: &ObjectiveEntry,
        native: bool,
        place: &dyn Fn(&str) -> Box<Span>,
    ) -> Result<Objective, SpaceError> {
        let details = &entry.0;
        check_metric(&details.metric, native, || place("metric"))?;
        let natural = Objective::new(&details.metric);
        if native
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

    pub(super) fn constraints(&self, entries: &Entries<String>, native: bool) -> Result<Vec<Constraint>, SpaceError> {
        let mut constraints = Vec::new();
        for (metric, text) in &entries.0 {
            let keys = ["constraints", metric];
            check_metric(metric, native, || self.document.key(&keys))?;
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
}

fn check_metric(metric: &str, native: bool, at: impl Fn() -> Box<Span>) -> Result<(), SpaceError> {
    if native && !NATIVE_METRICS.contains(&metric) {
        let known: Vec<String> = NATIVE_METRICS.map(String::from).into();
        return Err(SpaceError::UnknownMetric {
            at: at(),
            metric: metric.to_owned(),
            nearest: nearest(metric, &known),
            known,
        });
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
    if metric == PEAK_MEMORY {
        "a size such as 22 GiB"
    } else {
        "a number such as 2.5 or 60k"
    }
}

fn reference(metric: &str, value: &FileValue) -> Option<f64> {
    match value {
        FileValue::One(ParamValue::Text(text)) => metric_value(metric, text),
        FileValue::One(value) => value.as_f64(),
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
    let number = text.parse::<f64>().ok().filter(|value| value.is_finite());
    number.or_else(|| text.parse::<Count>().ok().map(|count| count.0 as f64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_read_in_the_metric_s_unit() {
        assert_eq!(
            bound(PEAK_MEMORY, "<= 22 GiB"),
            Some(Bound::AtMost((22u64 << 30) as f64))
        );
        assert_eq!(bound(THROUGHPUT, ">=1.5k"), Some(Bound::AtLeast(1500.0)));
        assert_eq!(bound(LOSS, "≤ 2.5"), Some(Bound::AtMost(2.5)));
        for wrong in ["22 GiB", "< 22 GiB", "<= 22 gallons", "== 1", "<= inf"] {
            assert_eq!(bound(PEAK_MEMORY, wrong), None, "{wrong}");
        }
    }
}
