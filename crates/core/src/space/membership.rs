//! Whether a setting that a person wrote lies in a search space.

use super::{Distribution, SearchSpace};
use crate::study::{ParamValue, Params};

/// Why a setting is not one of the space.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SettingError {
    #[error("`{name}` is not a parameter of this study: use {known}")]
    Unknown { name: String, known: String },
    #[error("`{name}` is missing: give it {allowed}")]
    Missing { name: String, allowed: String },
    #[error("`{name}` cannot be {value}: give it {allowed}")]
    Outside {
        name: String,
        value: String,
        allowed: String,
    },
    #[error("`{name}` does not exist where `{parameter}` is not {values}: leave it out")]
    Inactive {
        name: String,
        parameter: String,
        values: String,
    },
}

impl SearchSpace {
    /// The setting as this space writes it (`8` for a float parameter becomes 8.0), or why it is not one of the space.
    ///
    /// # Errors
    /// Where a parameter is unknown, missing, outside its distribution, or given although its condition does not hold.
    pub fn setting(&self, given: &Params) -> Result<Params, SettingError> {
        let unknown = given
            .keys()
            .find(|name| self.parameters.iter().all(|one| one.name != **name));
        if let Some(name) = unknown {
            let known: Vec<&str> = self.parameters.iter().map(|one| one.name.as_str()).collect();
            return Err(SettingError::Unknown {
                name: name.clone(),
                known: known.join(", "),
            });
        }
        let mut setting = Params::new();
        for parameter in &self.parameters {
            let name = || parameter.name.clone();
            let allowed = || allowed_text(&parameter.distribution);
            match (self.is_active(parameter, &setting), given.get(&parameter.name)) {
                (false, None) => {}
                (true, None) => {
                    return Err(SettingError::Missing {
                        name: name(),
                        allowed: allowed(),
                    });
                }
                (false, Some(_)) => {
                    let condition = parameter.condition.as_ref();
                    let values = condition.map(|condition| values_text(&condition.values));
                    return Err(SettingError::Inactive {
                        name: name(),
                        parameter: condition
                            .map(|condition| condition.parameter.clone())
                            .unwrap_or_default(),
                        values: values.unwrap_or_default(),
                    });
                }
                (true, Some(value)) => {
                    let value = as_sampled(&parameter.distribution, value).ok_or_else(|| SettingError::Outside {
                        name: name(),
                        value: value.to_string(),
                        allowed: allowed(),
                    })?;
                    setting.insert(parameter.name.clone(), value);
                }
            }
        }
        Ok(setting)
    }
}

/// The value as the distribution would give it: 8.0 where it samples 8, and 8 where it samples 8.0.
pub fn as_sampled(distribution: &Distribution, value: &ParamValue) -> Option<ParamValue> {
    match distribution {
        Distribution::Categorical { choices } => choices.iter().find(|choice| choice.is_same(value)).cloned(),
        _ if !distribution.contains(value) => None,
        Distribution::Float { step: None, .. } => value.as_f64().map(ParamValue::Float),
        _ => distribution.nth(distribution.index_of(value)?),
    }
}

fn allowed_text(distribution: &Distribution) -> String {
    match distribution {
        Distribution::Float { low, high, step, .. } => {
            let (low, high) = (ParamValue::Float(*low), ParamValue::Float(*high));
            let step = step.map(|step| format!(" in steps of {step}")).unwrap_or_default();
            format!("a number from {low} to {high}{step}")
        }
        Distribution::Int { low, high, step, .. } => {
            let step = if *step == 1 {
                String::new()
            } else {
                format!(" in steps of {step}")
            };
            format!("a whole number from {low} to {high}{step}")
        }
        Distribution::Categorical { choices } => format!("one of {}", values_text(choices)),
    }
}

fn values_text(values: &[ParamValue]) -> String {
    values.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::space::{Condition, Parameter, Scale};

    fn space() -> SearchSpace {
        let parameter = |name: &str, distribution, condition| Parameter {
            name: name.to_owned(),
            distribution,
            condition,
            affects: None,
            widest: None,
        };
        let rate = Distribution::Float {
            low: 1e-4,
            high: 2.0,
            scale: Scale::Log,
            step: None,
        };
        let rank = Distribution::Categorical {
            choices: vec![4i64.into(), 8i64.into()],
        };
        let optimizer = Distribution::Categorical {
            choices: vec!["adamw".into(), "sgd".into()],
        };
        let momentum = Distribution::Float {
            low: 0.0,
            high: 1.0,
            scale: Scale::Linear,
            step: None,
        };
        let only_sgd = Condition {
            parameter: "optimizer".to_owned(),
            values: vec!["sgd".into()],
        };
        SearchSpace {
            parameters: vec![
                parameter("rate", rate, None),
                parameter("rank", rank, None),
                parameter("optimizer", optimizer, None),
                parameter("momentum", momentum, Some(only_sgd)),
            ],
        }
    }

    fn error(given: serde_json::Value) -> String {
        let given: Params = serde_json::from_value(given).unwrap();
        space().setting(&given).unwrap_err().to_string()
    }

    #[test]
    fn whole_numbers_become_what_the_space_samples() {
        let given = serde_json::json!({"rate": 1, "rank": 8.0, "optimizer": "adamw"});
        let setting = space().setting(&serde_json::from_value(given).unwrap()).unwrap();
        assert_eq!(
            (&setting["rate"], &setting["rank"]),
            (&ParamValue::Float(1.0), &ParamValue::Int(8))
        );
    }

    #[test]
    fn each_mistake_says_what_to_give() {
        use serde_json::json;
        let cases = [
            (
                json!({"rate": 5, "rank": 8, "optimizer": "adamw"}),
                "`rate` cannot be 5: give it a number from 1e-4 to 2",
            ),
            (
                json!({"rate": 1, "rank": 5, "optimizer": "adamw"}),
                "`rank` cannot be 5: give it one of 4, 8",
            ),
            (
                json!({"rate": 1, "rank": 8, "optimizer": "sgd"}),
                "`momentum` is missing: give it a number from 0 to 1",
            ),
            (
                json!({"rate": 1, "rank": 8, "optimizer": "adamw", "momentum": 0.5}),
                "`momentum` does not exist where `optimizer` is not sgd: leave it out",
            ),
            (
                json!({"x": 1}),
                "`x` is not a parameter of this study: use rate, rank, optimizer, momentum",
            ),
        ];
        for (given, expected) in cases {
            assert_eq!(error(given), expected);
        }
    }
}
