//! The parameters that may be sampled, with the conditions under which they exist.

use serde::{Deserialize, Serialize};

use super::{Bounds, Distribution};
use crate::study::{ParamValue, Params};

/// Parameters that may be sampled. A condition names a parameter that stands before its own, so one pass decides which
/// are active.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SearchSpace {
    pub parameters: Vec<Parameter>,
}

/// One parameter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Parameter {
    pub name: String,
    pub distribution: Distribution,
    /// The parameter exists only where this holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub condition: Option<Condition>,
    /// Metrics that the parameter can change; every metric where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affects: Option<Vec<String>>,
    /// The bounds that a search may widen the range to by itself; none where it stays as it is. It says nothing of what a trial
    /// means: two spaces that differ in it alone are one study's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub widest: Option<Bounds>,
}

/// Holds where another parameter has one of some values.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Condition {
    pub parameter: String,
    pub values: Vec<ParamValue>,
}

impl Parameter {
    /// Whether the parameter can change a metric.
    pub fn can_change(&self, metric: &str) -> bool {
        let affects = self.affects.as_ref();
        affects.is_none_or(|affects| affects.iter().any(|affected| affected == metric))
    }

    /// Whether the parameter exists beside these values of others.
    fn is_active<'a>(&self, value_of: impl FnOnce(&str) -> Option<&'a ParamValue>) -> bool {
        self.condition.as_ref().is_none_or(|condition| {
            value_of(&condition.parameter).is_some_and(|value| condition.values.contains(value))
        })
    }
}

impl SearchSpace {
    /// Number of dimensions: active or not, each parameter is one.
    pub fn dimensions(&self) -> usize {
        self.parameters.len()
    }

    /// Whether `parameter` exists given the values of those before it.
    pub fn is_active(&self, parameter: &Parameter, params: &Params) -> bool {
        parameter.is_active(|name| params.get(name))
    }

    /// Maps a point of the unit cube (one coordinate a parameter, in order) to params; coordinates of inactive
    /// parameters are ignored.
    ///
    /// # Panics
    /// If `point` has fewer coordinates than the space has dimensions.
    pub fn params_at(&self, point: &[f64]) -> Params {
        let mut values: Vec<(String, ParamValue)> = Vec::with_capacity(self.dimensions());
        for (parameter, unit) in self.parameters.iter().zip(&point[..self.dimensions()]) {
            let value_of = |name: &str| values.iter().find(|(known, _)| known == name).map(|(_, value)| value);
            if parameter.is_active(value_of) {
                values.push((parameter.name.clone(), parameter.distribution.value_at(*unit)));
            }
        }
        values.into_iter().collect()
    }

    /// Maps params to the unit cube; an inactive parameter sits at 0.5. `None` where a value is not in the space.
    pub fn point_of(&self, params: &Params) -> Option<Vec<f64>> {
        self.parameters
            .iter()
            .map(|parameter| match params.get(&parameter.name) {
                Some(value) => parameter.distribution.unit_of(value),
                None => (!self.is_active(parameter, params)).then_some(0.5),
            })
            .collect()
    }

    /// Number of different params, conditions counted, or `None` where a parameter is continuous (or there are more
    /// than `u64` holds).
    pub fn cardinality(&self) -> Option<u64> {
        self.count(0, &mut Params::new())
    }

    fn count(&self, index: usize, params: &mut Params) -> Option<u64> {
        let Some(parameter) = self.parameters.get(index) else {
            return Some(1);
        };
        if !self.is_active(parameter, params) {
            return self.count(index + 1, params);
        }
        let size = parameter.distribution.cardinality()?;
        let asked = self.values_asked_for(&parameter.name);
        // Only the values that some condition asks for are told apart; one other value stands for all the rest.
        let mut total = 0u64;
        let mut others = size;
        for value in asked.iter().filter(|value| parameter.distribution.contains(value)) {
            params.insert(parameter.name.clone(), (*value).clone());
            total = total.checked_add(self.count(index + 1, params)?)?;
            others -= 1;
        }
        params.remove(&parameter.name);
        if others > 0 {
            total = total.checked_add(others.checked_mul(self.count(index + 1, params)?)?)?;
        }
        Some(total)
    }

    /// The different values of `name` that conditions ask for.
    fn values_asked_for(&self, name: &str) -> Vec<&ParamValue> {
        let mut values: Vec<&ParamValue> = Vec::new();
        for condition in self
            .parameters
            .iter()
            .filter_map(|parameter| parameter.condition.as_ref())
            .filter(|condition| condition.parameter == name)
        {
            for value in &condition.values {
                if !values.contains(&value) {
                    values.push(value);
                }
            }
        }
        values
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::space::Scale;

    fn choices(names: &[&str]) -> Distribution {
        Distribution::Categorical {
            choices: names.iter().map(|name| ParamValue::from(*name)).collect(),
        }
    }

    fn parameter(name: &str, distribution: Distribution) -> Parameter {
        Parameter {
            name: name.into(),
            distribution,
            condition: None,
            affects: None,
            widest: None,
        }
    }

    /// optimizer in {adamw, sgd}; nesterov in {yes, no} for sgd; rank 4..=8 by 2; momentum in 3 steps for sgd.
    fn space() -> SearchSpace {
        let sgd = || {
            Some(Condition {
                parameter: "optimizer".into(),
                values: vec!["sgd".into()],
            })
        };
        SearchSpace {
            parameters: vec![
                parameter("optimizer", choices(&["adamw", "sgd"])),
                parameter(
                    "rank",
                    Distribution::Int {
                        low: 4,
                        high: 8,
                        scale: Scale::Linear,
                        step: 2,
                    },
                ),
                Parameter {
                    condition: sgd(),
                    ..parameter("nesterov", choices(&["yes", "no"]))
                },
                Parameter {
                    condition: sgd(),
                    ..parameter(
                        "momentum",
                        Distribution::Float {
                            low: 0.8,
                            high: 0.9,
                            scale: Scale::Linear,
                            step: Some(0.05),
                        },
                    )
                },
            ],
        }
    }

    #[test]
    fn a_parameter_of_which_nothing_is_said_can_change_every_metric() {
        let mut rank = parameter("rank", choices(&["a", "b"]));
        assert!(rank.can_change("loss"));
        rank.affects = Some(vec!["throughput".to_owned()]);
        assert!(rank.can_change("throughput") && !rank.can_change("loss"));
    }

    #[test]
    fn cardinality_counts_conditional_parameters_only_where_they_exist() {
        assert_eq!(space().cardinality(), Some(3 + 3 * 2 * 3));
    }

    #[test]
    fn cardinality_of_a_wide_parent_is_counted_without_walking_it() {
        let mut space = space();
        space.parameters[0].distribution = Distribution::Int {
            low: 0,
            high: 1_000_000_000_000,
            scale: Scale::Linear,
            step: 1,
        };
        for parameter in &mut space.parameters[2..] {
            parameter.condition.as_mut().unwrap().values = vec![ParamValue::Int(7), ParamValue::Int(9)];
        }
        assert_eq!(space.cardinality(), Some(3 * 1_000_000_000_001 - 2 * 3 + 2 * 3 * 6));
    }

    #[test]
    fn cardinality_is_the_number_of_params_a_fine_net_of_points_reaches() {
        let space = space();
        let mut seen = BTreeSet::new();
        let ticks = [0.05, 0.2, 0.35, 0.5, 0.65, 0.8, 0.95];
        for index in 0..ticks.len().pow(4) {
            let point: Vec<f64> = (0..4)
                .map(|axis| ticks[index / ticks.len().pow(axis) % ticks.len()])
                .collect();
            seen.insert(serde_json::to_string(&space.params_at(&point)).unwrap());
        }
        assert_eq!(seen.len() as u64, space.cardinality().unwrap());
    }

    proptest! {
        #[test]
        fn params_come_back_from_their_point(point in prop::collection::vec(0.0..=1.0f64, 4)) {
            let space = space();
            let params = space.params_at(&point);
            let again = space.point_of(&params).unwrap();
            prop_assert_eq!(space.params_at(&again), params);
        }
    }

    #[test]
    fn params_that_lack_an_active_parameter_have_no_point() {
        let mut params = space().params_at(&[0.9, 0.5, 0.5, 0.5]);
        assert!(params.contains_key("momentum"));
        params.remove("momentum");
        assert_eq!(space().point_of(&params), None);
    }
}
