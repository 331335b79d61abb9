//! The values of one parameter: one, a list of choices, or a range.

use super::Context;
use crate::space::SpaceError;
use crate::space::file::{DetailedParameter, FileValue, Number};
use crate::space::yaml::Span;
use peft_tune_core::recipe::TrainerKind;
use peft_tune_core::recipe::settings::{FloatRange, Legal, SettingRow};
use peft_tune_core::space::{Bounds, Distribution, Scale};
use peft_tune_core::study::ParamValue;

/// Largest magnitude of a whole number: doubles hold every one below it.
const LARGEST_INT: i64 = 1 << 53;

/// A parameter's values before its condition is looked at.
#[derive(Clone, Debug)]
pub(super) enum Values {
    Fixed(ParamValue),
    Sampled(Distribution),
}

/// Reads the values of one parameter. `row` is absent for the parameters of a command, which may be anything.
pub(super) struct ValueReader<'a> {
    pub context: Context<'a>,
    pub name: &'a str,
    pub row: Option<&'static SettingRow>,
}

impl ValueReader<'_> {
    fn legal(&self) -> Option<&'static Legal> {
        self.row.map(|row| &row.legal)
    }

    fn at(&self, keys: &[&str]) -> Box<Span> {
        self.context.document.value(keys)
    }

    pub(super) fn value(&self, keys: &[&str], value: &FileValue) -> Result<ParamValue, SpaceError> {
        let read = match self.row {
            Some(row) => value.to_legal(row),
            None => value.to_param(),
        };
        read.ok_or_else(|| SpaceError::IllegalValue {
            at: self.at(keys),
            parameter: self.name.to_owned(),
            value: value.to_string(),
            legal: self.legal_words(value),
        })
    }

    /// The legal values in words; of a trainer that is none of them the reason, too.
    fn legal_words(&self, value: &FileValue) -> String {
        let Some(row) = self.row else {
            return "one value, or a list of names".to_owned();
        };
        let why_not = match value.to_param() {
            Some(ParamValue::Text(name)) if row.name == "trainer" => TrainerKind::why_not(&name),
            _ => None,
        };
        match why_not {
            Some(reason) => format!("{} ({value} {reason})", row.legal),
            None => row.legal.to_string(),
        }
    }

    pub(super) fn choices(&self, keys: &[&str], choices: &[FileValue]) -> Result<Values, SpaceError> {
        let mut values: Vec<ParamValue> = Vec::new();
        for (index, choice) in choices.iter().enumerate() {
            let index = index.to_string();
            let keys = [keys, &[&index]].concat();
            let value = self.value(&keys, choice)?;
            let same = |other: &ParamValue| match (other.as_f64(), value.as_f64()) {
                (Some(one), Some(other)) => one == other,
                _ => *other == value,
            };
            if values.iter().any(same) {
                return Err(SpaceError::DuplicateChoice {
                    at: self.at(&keys),
                    value: choice.to_string(),
                });
            }
            values.push(value);
        }
        // Numbers have an order of their own, which the samplers use.
        if values.iter().all(|value| value.as_f64().is_some()) {
            let number = |value: &ParamValue| value.as_f64().unwrap_or(f64::NAN);
            values.sort_by(|one, other| number(one).total_cmp(&number(other)));
        }
        match values.len() {
            0 => Err(SpaceError::NoChoices { at: self.at(keys) }),
            1 => Ok(Values::Fixed(values.swap_remove(0))),
            _ => Ok(Values::Sampled(Distribution::Categorical { choices: values })),
        }
    }

    /// A range, choices or a value: exactly one of them.
    pub(super) fn detailed(&self, details: &DetailedParameter) -> Result<Values, SpaceError> {
        let key = |last| ["space", self.name, last];
        let range = ["low", "high", "step", "scale", "fixed"]
            .into_iter()
            .find(|last| self.context.document.has(&key(last)));
        let forms = [
            range,
            details.choices.as_ref().map(|_| "choices"),
            details.value.as_ref().map(|_| "value"),
        ];
        let given: Vec<&str> = forms.into_iter().flatten().collect();
        if let [first, second, ..] = given[..] {
            return Err(SpaceError::Conflict {
                at: self.context.document.key(&key(second)),
                other: first.to_owned(),
                reason: "a parameter is a range, a list of choices or one value",
            });
        }
        match (&details.choices, &details.value) {
            (Some(choices), _) => self.choices(&key("choices"), choices),
            (_, Some(value)) => Ok(Values::Fixed(self.value(&key("value"), value)?)),
            _ => Ok(Values::Sampled(self.range(details)?)),
        }
    }

    fn range(&self, details: &DetailedParameter) -> Result<Distribution, SpaceError> {
        let key = |last| ["space", self.name, last];
        let missing = |bound: &str| SpaceError::MissingKey {
            at: self.context.document.key(&["space", self.name]),
            key: bound.to_owned(),
        };
        if let Some(legal) = self.legal().filter(|legal| !legal.is_numeric()) {
            return Err(SpaceError::WrongValue {
                at: self.context.document.key(&["space", self.name]),
                found: "a range".into(),
                expected: format!("a list of choices, each {legal}"),
            });
        }
        let low = details.low.ok_or_else(|| missing("low"))?;
        let high = details.high.ok_or_else(|| missing("high"))?;
        self.check_units(details)?;
        for (last, bound) in [("low", low), ("high", high)] {
            self.check_bound(&key(last), bound)?;
        }
        if low.as_f64() >= high.as_f64() {
            return Err(SpaceError::EmptyRange {
                at: self.at(&key("high")),
                low: low.as_f64(),
                high: high.as_f64(),
            });
        }
        let scale = details.scale.unwrap_or_default();
        if scale == Scale::Log && low.as_f64() <= 0.0 {
            return Err(SpaceError::LogOfNonPositive {
                at: self.at(&key("low")),
                low: low.as_f64(),
            });
        }
        if let Some(step) = details.step.map(Number::as_f64)
            && !(step > 0.0 && step <= high.as_f64() - low.as_f64())
        {
            return Err(SpaceError::BadStep {
                at: self.at(&key("step")),
                step,
                low: low.as_f64(),
                high: high.as_f64(),
            });
        }
        self.distribution(details, low, high, scale)
    }

    /// How far a search may widen a parameter by itself: a range that is not `fixed`, of a setting that widens. Of a command nobody
    /// knows what its parameter may be, so it says so itself.
    ///
    /// # Errors
    /// `fixed: false` of what cannot be widened.
    pub(super) fn widest(&self, details: &DetailedParameter, values: &Values) -> Result<Option<Bounds>, SpaceError> {
        let may_widen = match self.row {
            Some(row) => details.fixed != Some(true) && row.widest.is_some(),
            None => details.fixed == Some(false),
        };
        let range = match values {
            Values::Sampled(distribution) => distribution.bounds().filter(|_| may_widen),
            Values::Fixed(_) => None,
        };
        let allowed = self.row.and_then(|row| row.widest);
        let widest = range.and_then(|(bounds, scale)| bounds.widest(scale, allowed));
        if widest.is_none() && details.fixed == Some(false) {
            return Err(SpaceError::Rejected {
                at: self.at(&["space", self.name, "fixed"]),
                message: match allowed {
                    Some(FloatRange { low, high, .. }) => format!(
                        "`{}` widens as a range without `step` that lies in {}, and no other; remove `fixed`",
                        self.name,
                        Bounds { low, high }
                    ),
                    None if self.row.is_some() => format!("a range of `{}` never widens; remove `fixed`", self.name),
                    None => {
                        "only a range of numbers that are not whole, without `step`, widens; remove `fixed`".to_owned()
                    }
                },
            });
        }
        Ok(widest)
    }

    /// Refuses `2k` where a setting counts no tokens, rows or steps.
    fn check_units(&self, details: &DetailedParameter) -> Result<(), SpaceError> {
        if self.row.is_none_or(SettingRow::is_count) {
            return Ok(());
        }
        for (last, number) in [("low", details.low), ("high", details.high), ("step", details.step)] {
            if let Some(Number::Count(count)) = number {
                return Err(SpaceError::WrongValue {
                    at: self.at(&["space", self.name, last]),
                    found: "a number with a unit".into(),
                    expected: format!("a plain number, such as {count}"),
                });
            }
        }
        Ok(())
    }

    fn distribution(
        &self,
        details: &DetailedParameter,
        low: Number,
        high: Number,
        scale: Scale,
    ) -> Result<Distribution, SpaceError> {
        let whole = match self.legal() {
            Some(legal) => matches!(legal, Legal::Int { .. }),
            // A command's parameter is whole where everything about it is written as whole.
            None => [Some(low), Some(high), details.step]
                .into_iter()
                .flatten()
                .all(|number| !matches!(number, Number::Float(_))),
        };
        let step = match details.step {
            Some(step) if whole => Some(self.whole(&["space", self.name, "step"], step)? as f64),
            step => step.map(Number::as_f64),
        };
        if whole {
            return Ok(Distribution::Int {
                low: self.whole(&["space", self.name, "low"], low)?,
                high: self.whole(&["space", self.name, "high"], high)?,
                scale,
                step: step.map_or(1, |step| step as i64),
            });
        }
        Ok(Distribution::Float {
            low: low.as_f64(),
            high: high.as_f64(),
            scale,
            step,
        })
    }

    fn whole(&self, keys: &[&str], number: Number) -> Result<i64, SpaceError> {
        number
            .as_i64()
            .filter(|value| value.abs() <= LARGEST_INT)
            .ok_or_else(|| SpaceError::WrongValue {
                at: self.at(keys),
                found: format!("the number {}", number.as_f64()),
                expected: "a whole number".into(),
            })
    }

    fn check_bound(&self, keys: &[&str], bound: Number) -> Result<(), SpaceError> {
        let Some(legal) = self.legal() else { return Ok(()) };
        let value = match (legal, bound.as_i64()) {
            (Legal::Int { .. }, Some(whole)) => ParamValue::Int(whole),
            _ => ParamValue::Float(bound.as_f64()),
        };
        if legal.allows(&value) {
            return Ok(());
        }
        Err(SpaceError::IllegalValue {
            at: self.at(keys),
            parameter: self.name.to_owned(),
            value: format!("`{value}`"),
            legal: legal.to_string(),
        })
    }
}
