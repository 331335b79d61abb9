//! The parameters that may be sampled, with the conditions under which they exist.

use serde::{Deserialize, Serialize};

use super::Distribution;
use crate::study::{ParamValue, Params};

/// What may be sampled. A condition names a parameter that stands before its own, so one pass decides which are active.
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
}

/// Holds where another parameter has one of some values.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Condition {
    pub parameter: String,
    pub values: Vec<ParamValue>,
}

impl SearchSpace {
    /// Number of dimensions: active or not, each parameter is one.
    pub fn dimensions(&self) -> usize {
        self.parameters.len()
    }

    /// Whether `parameter` exists given the values of those before it.
    pub fn is_active(&self, parameter: &Parameter, params: &Params) -> bool {
        let Some(condition) = &parameter.condition else {
            return true;
        };
        params
            .get(&condition.parameter)
            .is_some_and(|value| condition.values.contains(value))
    }

    /// Maps a point of the unit cube (one coordinate a parameter, in order) to params; coordinates of inactive
    /// parameters are ignored.
    ///
    /// # Panics
    /// If `point` has fewer coordinates than the space has dimensions.
    pub fn params_at(&self, point: &[f64]) -> Params {
        let mut params = Params::new();
        for (parameter, unit) in self.parameters.iter().zip(&point[..self.dimensions()]) {
            if self.is_active(parameter, &params) {
                params.insert(parameter.name.clone(), parameter.distribution.value_at(*unit));
            }
        }
        params
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
        let matters = self.parameters.iter().any(|other| {
            other
                .condition
                .as_ref()
                .is_some_and(|condition| condition.parameter == parameter.name)
        });
        let size = parameter.distribution.cardinality()?;
        if !matters {
            return size.checked_mul(self.count(index + 1, params)?);
        }
        let mut total = 0u64;
        for value in (0..size).filter_map(|number| parameter.distribution.nth(number)) {
            params.insert(parameter.name.clone(), value);
            total = total.checked_add(self.count(index + 1, params)?)?;
        }
        params.remove(&parameter.name);
        Some(total)
    }
}
