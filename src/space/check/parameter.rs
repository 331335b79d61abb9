//! The `space` section: which values are fixed, which are sampled, and how.

use super::Context;
use super::condition::Draft;
use crate::space::binding::{Binding, Legal, affected_metrics, binding, binding_called_elsewhere, bindings};
use crate::space::file::{DetailedParameter, Entries, FileValue, Number, ParameterEntry};
use crate::space::yaml::Place;
use crate::space::{Distribution, Parameter, Scale, SearchSpace, SpaceError};
use crate::study::{ParamValue, Params};

/// Largest magnitude of a whole number: doubles hold every one below it.
const LARGEST_INT: i64 = 1 << 53;
/// Micro-batches of a range are checked one by one up to this many.
const CHECKED_VALUES: u64 = 4096;

/// What the `space` section says.
pub(super) struct Parameters {
    pub fixed: Params,
    pub space: SearchSpace,
}

/// A parameter's values before its condition is looked at.
#[derive(Clone, Debug)]
pub(super) enum Values {
    Fixed(ParamValue),
    Sampled(Distribution),
}

impl Context<'_> {
    pub(super) fn parameters(&self, entries: &Entries<ParameterEntry>, native: bool) -> Result<Parameters, SpaceError> {
        let drafts = entries
            .0
            .iter()
            .map(|(name, entry)| self.draft(name, entry, native))
            .collect::<Result<Vec<_>, _>>()?;
        if native {
            self.check_exclusive("alpha", "alpha_ratio", "both set alpha")?;
            self.check_exclusive(
                "gradient_accumulation",
                "global_batch",
                "each follows from the other and the micro-batch",
            )?;
            self.check_divisible(&drafts)?;
        }
        let holds_global_batch = entries.find("global_batch").is_some();
        let mut parameters = Parameters {
            fixed: Params::new(),
            space: SearchSpace::default(),
        };
        for draft in &drafts {
            let condition = self.condition(draft, &drafts)?;
            let distribution = match (&draft.values, &condition) {
                (Values::Fixed(value), None) => {
                    parameters.fixed.insert(draft.name.clone(), value.clone());
                    continue;
                }
                (Values::Fixed(value), Some(_)) => Distribution::Categorical {
                    choices: vec![value.clone()],
                },
                (Values::Sampled(distribution), _) => distribution.clone(),
            };
            parameters.space.parameters.push(Parameter {
                name: draft.name.clone(),
                distribution,
                condition,
                affects: match draft.binding {
                    Some(binding) => affected_metrics(binding, holds_global_batch),
                    None => draft.affects.clone(),
                },
            });
        }
        if parameters.space.parameters.is_empty() {
            return Err(SpaceError::NothingToSearch {
                at: self.document.key(&["space"]),
            });
        }
        Ok(parameters)
    }

    fn draft(&self, name: &str, entry: &ParameterEntry, native: bool) -> Result<Draft, SpaceError> {
        let binding = if native { Some(self.known(name)?) } else { None };
        let keys = ["space", name];
        let reader = ValueReader {
            context: *self,
            name,
            legal: binding.map(|binding| &binding.legal),
        };
        let draft = |values| Draft {
            name: name.to_owned(),
            binding,
            values,
            when: None,
            affects: None,
        };
        match entry {
            ParameterEntry::Fixed(value) => Ok(draft(Values::Fixed(reader.value(&keys, value)?))),
            ParameterEntry::Choices(choices) => Ok(draft(reader.choices(&keys, choices)?)),
            ParameterEntry::Detailed(details) => {
                let mut draft = draft(reader.detailed(details)?);
                draft.when = self.when(name, details)?;
                draft.affects = self.affects(name, details, native)?;
                Ok(draft)
            }
        }
    }

    fn known(&self, name: &str) -> Result<&'static Binding, SpaceError> {
        binding(name).ok_or_else(|| {
            let at = self.document.key(&["space", name]);
            let known: Vec<String> = bindings().map(|binding| binding.name.to_owned()).collect();
            match binding_called_elsewhere(name) {
                Some(binding) => SpaceError::UnknownKey {
                    at,
                    nearest: Some(binding.name.to_owned()),
                    known,
                },
                None => SpaceError::unknown_key(at, name, known),
            }
        })
    }

    fn affects(
        &self,
        name: &str,
        details: &DetailedParameter,
        native: bool,
    ) -> Result<Option<Vec<String>>, SpaceError> {
        match &details.affects {
            Some(_) if native => Err(SpaceError::Rejected {
                at: self.document.key(&["space", name, "affects"]),
                message: "the native backend knows what each parameter affects; remove it".into(),
            }),
            affects => Ok(affects.clone()),
        }
    }

    fn check_exclusive(&self, one: &str, other: &str, reason: &'static str) -> Result<(), SpaceError> {
        if self.document.has(&["space", one]) && self.document.has(&["space", other]) {
            return Err(SpaceError::Conflict {
                at: self.document.key(&["space", other]),
                other: format!("space.{one}"),
                reason,
            });
        }
        Ok(())
    }

    /// Refuses global batches that no micro-batch divides, and micro-batches that divide no global batch. What is
    /// left of the combinations may still not divide: those trials are invalid, and recorded without being run.
    fn check_divisible(&self, drafts: &[Draft]) -> Result<(), SpaceError> {
        let values_of = |name: &str| {
            drafts
                .iter()
                .find(|draft| draft.name == name)
                .map(|draft| draft.whole_numbers())
        };
        let Some(Some(global_batches)) = values_of("global_batch") else {
            return Ok(());
        };
        let default = crate::recipe::BatchSettings::default().micro_batch as i64;
        let micro_batches = match values_of("micro_batch") {
            Some(Some(values)) => values,
            Some(None) => return Ok(()),
            None => vec![default],
        };
        let place = |name: &str, values: &[i64], index: usize| -> Box<Place> {
            let index = index.to_string();
            match values.len() {
                1 => self.document.value(&["space", name]),
                _ => self.document.value(&["space", name, &index]),
            }
        };
        for (index, global_batch) in global_batches.iter().enumerate() {
            if micro_batches.iter().all(|micro_batch| global_batch % micro_batch != 0) {
                return Err(SpaceError::Indivisible {
                    at: place("global_batch", &global_batches, index),
                    global_batch: *global_batch,
                    micro_batches,
                });
            }
        }
        for (index, micro_batch) in micro_batches.iter().enumerate() {
            if global_batches
                .iter()
                .all(|global_batch| global_batch % micro_batch != 0)
            {
                return Err(SpaceError::Rejected {
                    at: place("micro_batch", &micro_batches, index),
                    message: format!("a micro-batch of {micro_batch} divides no global batch of this file; remove it"),
                });
            }
        }
        Ok(())
    }
}

impl Draft {
    /// All values of a whole-number parameter, where they can be listed.
    fn whole_numbers(&self) -> Option<Vec<i64>> {
        let whole = |value: &ParamValue| match value {
            ParamValue::Int(value) => Some(*value),
            _ => None,
        };
        match &self.values {
            Values::Fixed(value) => Some(vec![whole(value)?]),
            Values::Sampled(distribution) => {
                let size = distribution.cardinality().filter(|size| *size <= CHECKED_VALUES)?;
                (0..size).map(|index| whole(&distribution.nth(index)?)).collect()
            }
        }
    }
}

/// Reads the values of one parameter. `legal` is absent for the parameters of a command, which may be anything.
struct ValueReader<'a> {
    context: Context<'a>,
    name: &'a str,
    legal: Option<&'static Legal>,
}

impl ValueReader<'_> {
    fn at(&self, keys: &[&str]) -> Box<Place> {
        self.context.document.value(keys)
    }

    fn value(&self, keys: &[&str], value: &FileValue) -> Result<ParamValue, SpaceError> {
        let read = match self.legal {
            Some(legal) => legal.read(value),
            None => value.to_param(),
        };
        read.ok_or_else(|| SpaceError::IllegalValue {
            at: self.at(keys),
            parameter: self.name.to_owned(),
            value: value.to_string(),
            legal: self
                .legal
                .map_or_else(|| "one value, or a list of names".to_owned(), Legal::to_string),
        })
    }

    fn choices(&self, keys: &[&str], choices: &[FileValue]) -> Result<Values, SpaceError> {
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
    fn detailed(&self, details: &DetailedParameter) -> Result<Values, SpaceError> {
        let key = |last| ["space", self.name, last];
        let range = ["low", "high", "step", "scale"]
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
        if let Some(legal) = self.legal.filter(|legal| !legal.is_numeric()) {
            return Err(SpaceError::WrongValue {
                at: self.context.document.key(&["space", self.name]),
                found: "a range".into(),
                expected: format!("a list of choices, each {legal}"),
            });
        }
        let low = details.low.ok_or_else(|| missing("low"))?;
        let high = details.high.ok_or_else(|| missing("high"))?;
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

    fn distribution(
        &self,
        details: &DetailedParameter,
        low: Number,
        high: Number,
        scale: Scale,
    ) -> Result<Distribution, SpaceError> {
        let whole = match self.legal {
            Some(legal) => matches!(legal, Legal::Int { .. }),
            // A command's parameter is whole where everything about it is written as whole.
            None => [Some(low), Some(high), details.step]
                .into_iter()
                .flatten()
                .all(|number| matches!(number, Number::Int(_))),
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
        let Some(legal) = self.legal else { return Ok(()) };
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
