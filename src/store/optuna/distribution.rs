//! Parameters as Optuna describes them: a distribution in JSON, and the value as one number.
//!
//! A category's number is its place in the list of choices. Optuna's integers and floats have bounds, and a value outside
//! them makes a whole trial unreadable, so that what the search space does not explain becomes a category.

use serde_json::{Value, json};

use peft_tune_core::space::{Distribution, Scale, SearchSpace};
use peft_tune_core::study::{ParamValue, Trial};

/// A parameter as Optuna sees it in every trial.
#[derive(Debug)]
pub(super) struct OptunaParameter {
    /// JSON of the distribution.
    pub distribution: Value,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Number,
    /// The choices, each as JSON.
    Category(Vec<Value>),
}

impl OptunaParameter {
    /// The parameter `name` of a study with these trials.
    pub(super) fn new(name: &str, space: Option<&SearchSpace>, trials: &[&Trial]) -> Self {
        let values = || trials.iter().filter_map(|trial| trial.params.get(name));
        let parameter = space.and_then(|space| space.parameters.iter().find(|parameter| parameter.name == name));
        match parameter.map(|parameter| &parameter.distribution) {
            Some(distribution) if values().all(|value| distribution.contains(value)) => Self::of(distribution),
            _ => Self::of_values(values()),
        }
    }

    /// The value as Optuna's column has it.
    pub(super) fn number(&self, value: &ParamValue) -> Option<f64> {
        match &self.kind {
            Kind::Number => value.as_f64(),
            Kind::Category(choices) => {
                let value = choice(value);
                choices
                    .iter()
                    .position(|choice| *choice == value)
                    .map(|place| place as f64)
            }
        }
    }

    fn of(distribution: &Distribution) -> Self {
        match distribution {
            Distribution::Float { low, high, scale, step } => {
                let log = *scale == Scale::Log;
                // Optuna has no steps on a logarithm.
                let step = step.filter(|_| !log);
                let attributes = json!({"low": low, "high": high, "log": log, "step": step});
                Self::number_of("FloatDistribution", &attributes)
            }
            Distribution::Int { low, high, scale, step } => {
                let log = *scale == Scale::Log;
                let attributes = json!({"low": low, "high": high, "log": log, "step": if log { 1 } else { *step }});
                Self::number_of("IntDistribution", &attributes)
            }
            Distribution::Categorical { choices } => Self::category(choices.iter().map(choice).collect()),
        }
    }

    fn of_values<'a>(values: impl Iterator<Item = &'a ParamValue>) -> Self {
        let mut choices: Vec<Value> = Vec::new();
        for value in values.map(choice) {
            if !choices.contains(&value) {
                choices.push(value);
            }
        }
        Self::category(choices)
    }

    fn number_of(name: &str, attributes: &Value) -> Self {
        Self {
            distribution: json!({"name": name, "attributes": attributes}),
            kind: Kind::Number,
        }
    }

    fn category(choices: Vec<Value>) -> Self {
        Self {
            distribution: json!({"name": "CategoricalDistribution", "attributes": {"choices": choices}}),
            kind: Kind::Category(choices),
        }
    }
}

/// A choice as Optuna takes one: no lists.
fn choice(value: &ParamValue) -> Value {
    match value {
        ParamValue::Bool(value) => json!(value),
        ParamValue::Int(value) => json!(value),
        ParamValue::Float(value) => json!(value),
        ParamValue::Text(value) => json!(value.as_str()),
        ParamValue::List(_) => json!(value.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use peft_tune_core::study::{Params, TrialNumber, TrialState};

    fn trial(value: ParamValue) -> Trial {
        Trial {
            number: TrialNumber(0),
            params: Params::from([("p".to_owned(), value)]),
            state: TrialState::Running,
        }
    }

    #[test]
    fn a_value_outside_its_distribution_makes_the_parameter_a_category() {
        let (inside, outside) = (trial(8i64.into()), trial(100i64.into()));
        let distribution = Distribution::Int {
            low: 4,
            high: 64,
            scale: Scale::Linear,
            step: 4,
        };
        let space = SearchSpace {
            parameters: vec![peft_tune_core::space::Parameter {
                name: "p".into(),
                distribution,
                condition: None,
                affects: None,
                widest: None,
            }],
        };
        let inside_only = OptunaParameter::new("p", Some(&space), &[&inside]);
        assert_eq!(inside_only.distribution["name"], "IntDistribution");
        assert_eq!(inside_only.number(&8i64.into()), Some(8.0));
        let both = OptunaParameter::new("p", Some(&space), &[&inside, &outside]);
        assert_eq!(both.distribution["attributes"]["choices"], json!([8, 100]));
        assert_eq!(both.number(&100i64.into()), Some(1.0));
    }
}
