//! Conditions: under which value of which other parameter a parameter exists.

use super::Context;
use super::values::Values;
use crate::space::SpaceError;
use crate::space::error::nearest;
use crate::space::file::{DetailedParameter, FileValue};
use peft_tune_core::recipe::settings::SettingRow;
use peft_tune_core::space::{Bounds, Condition, Distribution};
use peft_tune_core::study::ParamValue;

/// Choices beyond this many are not all listed in a message.
const LISTED_CHOICES: usize = 12;

/// A parameter whose values are read and whose condition is not yet understood.
pub(super) struct Draft {
    pub name: String,
    pub row: Option<&'static SettingRow>,
    pub values: Values,
    /// The parameter it depends on, and the values asked for with whether they stood in a list.
    pub when: Option<When>,
    pub affects: Option<Vec<String>>,
    /// The bounds that a search may widen its range to by itself.
    pub widest: Option<Bounds>,
}

/// A condition as written.
#[derive(Clone, Debug)]
pub(super) struct When {
    parameter: String,
    values: Vec<FileValue>,
    in_list: bool,
}

impl Context<'_> {
    /// The condition of a parameter as written: one other parameter with one or several values.
    pub(super) fn when(&self, name: &str, details: &DetailedParameter) -> Result<Option<When>, SpaceError> {
        let Some(when) = &details.when else { return Ok(None) };
        let [(parameter, values)] = &when.0[..] else {
            return Err(SpaceError::WrongValue {
                at: self.document.key(&["space", name, "when"]),
                found: format!("{} conditions", when.0.len()),
                expected: "one, such as {optimizer: sgd}".into(),
            });
        };
        let (values, in_list) = match values {
            FileValue::List(values) => (values.clone(), true),
            value => (vec![value.clone()], false),
        };
        if values.is_empty() {
            return Err(SpaceError::NoChoices {
                at: self.document.value(&["space", name, "when", parameter]),
            });
        }
        Ok(Some(When {
            parameter: parameter.clone(),
            values,
            in_list,
        }))
    }

    /// The condition of `draft` among all parameters; `None` where it always holds.
    pub(super) fn condition(&self, draft: &Draft, drafts: &[Draft]) -> Result<Option<Condition>, SpaceError> {
        let Some(when) = &draft.when else { return Ok(None) };
        let parent = self.parent(draft, when, drafts)?;
        let mut values = Vec::new();
        for (index, value) in when.values.iter().enumerate() {
            let index = index.to_string();
            let mut keys = vec!["space", &draft.name, "when", &when.parameter];
            if when.in_list {
                keys.push(&index);
            }
            let found = parent.member(value).ok_or_else(|| SpaceError::ImpossibleCondition {
                at: self.document.value(&keys),
                parameter: when.parameter.clone(),
                value: value.to_string(),
                legal: parent.takes(),
            })?;
            if values.contains(&found) {
                return Err(SpaceError::DuplicateChoice {
                    at: self.document.value(&keys),
                    value: value.to_string(),
                });
            }
            values.push(found);
        }
        let always = matches!(parent.values, Values::Fixed(_)) && parent.when.is_none();
        Ok((!always).then(|| Condition {
            parameter: when.parameter.clone(),
            values,
        }))
    }

    /// The parameter that a condition names: it must be another one, and stand above.
    fn parent<'d>(&self, draft: &Draft, when: &When, drafts: &'d [Draft]) -> Result<&'d Draft, SpaceError> {
        let at = || self.document.key(&["space", &draft.name, "when", &when.parameter]);
        let parameter = when.parameter.clone();
        if parameter == draft.name {
            return Err(SpaceError::ConditionOnItself { at: at(), parameter });
        }
        let position = |name: &str| drafts.iter().position(|other| other.name == name);
        let Some(parent) = position(&parameter) else {
            let known: Vec<String> = drafts
                .iter()
                .map(|other| other.name.clone())
                .filter(|name| *name != draft.name)
                .collect();
            return Err(SpaceError::UnknownConditionParameter {
                at: at(),
                nearest: nearest(&parameter, &known),
                known,
                parameter,
            });
        };
        if let Some(cycle) = circle(draft, drafts) {
            return Err(SpaceError::CircularConditions { at: at(), cycle });
        }
        if position(&draft.name) < Some(parent) {
            return Err(SpaceError::ConditionOnLater { at: at(), parameter });
        }
        Ok(&drafts[parent])
    }
}

/// The names on the way from a parameter back to itself, where its conditions run in a circle.
fn circle(start: &Draft, drafts: &[Draft]) -> Option<Vec<String>> {
    let mut names = vec![start.name.clone()];
    let mut current = start;
    loop {
        let next = &current.when.as_ref()?.parameter;
        current = drafts.iter().find(|draft| draft.name == *next)?;
        let seen = names.contains(&current.name);
        names.push(current.name.clone());
        if current.name == start.name {
            return Some(names);
        }
        if seen {
            // A circle further up, which is reported at its own parameters.
            return None;
        }
    }
}

impl Draft {
    /// The value of this parameter that a condition asks for, as trials will hold it.
    fn member(&self, value: &FileValue) -> Option<ParamValue> {
        let value = match self.row {
            Some(row) => value.to_legal(row)?,
            None => value.to_param()?,
        };
        let same = |other: &&ParamValue| match (other.as_f64(), value.as_f64()) {
            (Some(one), Some(other)) => one == other,
            _ => **other == value,
        };
        match &self.values {
            Values::Fixed(fixed) => Some(fixed).filter(same).cloned(),
            Values::Sampled(Distribution::Categorical { choices }) => choices.iter().find(same).cloned(),
            Values::Sampled(distribution) => distribution.nth(distribution.index_of(&value)?),
        }
    }

    /// What this parameter can be, in words that end in what to do.
    fn takes(&self) -> String {
        match &self.values {
            Values::Fixed(value) => format!("it is fixed to {value}; write that, or remove this parameter"),
            Values::Sampled(Distribution::Categorical { choices }) => {
                let mut names: Vec<_> = choices.iter().take(LISTED_CHOICES).map(ParamValue::to_string).collect();
                if choices.len() > LISTED_CHOICES {
                    names.push("..".into());
                }
                format!("write one of {}", names.join(", "))
            }
            Values::Sampled(Distribution::Int { low, high, step, .. }) => {
                format!("write a value of its range, {low} to {high} by {step}")
            }
            Values::Sampled(Distribution::Float {
                low,
                high,
                step: Some(step),
                ..
            }) => format!("write a value of its range, {low} to {high} by {step}"),
            Values::Sampled(Distribution::Float { .. }) => {
                "it takes any value of its range, so it never has exactly this one; give it a list of choices".into()
            }
        }
    }
}
