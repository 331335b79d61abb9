//! The `space` section: which values are fixed, which are sampled, and how.

use super::Context;
use super::condition::Draft;
use super::values::{ValueReader, Values};
use crate::space::SpaceError;
use crate::space::file::{DetailedParameter, Entries, FileValue, ParameterEntry};
use crate::space::yaml::Span;
use crate::tools::setting_called;
use peft_tune_core::recipe::settings::{SettingRow, setting, settings};
use peft_tune_core::space::{Distribution, Parameter, SearchSpace};
use peft_tune_core::study::{ParamValue, Params};

/// Micro-batches of a range are checked one by one up to this many.
const CHECKED_VALUES: u64 = 4096;

/// What the `space` section says.
pub(super) struct Parameters {
    pub fixed: Params,
    pub space: SearchSpace,
}

impl Context<'_> {
    pub(super) fn parameters(
        &self,
        entries: &Entries<ParameterEntry>,
        trains_recipes: bool,
    ) -> Result<Parameters, SpaceError> {
        let drafts = entries
            .0
            .iter()
            .map(|(name, entry)| self.draft(name, entry, trains_recipes))
            .collect::<Result<Vec<_>, _>>()?;
        if trains_recipes {
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
                affects: match draft.row {
                    Some(row) => row.effects.affected_metrics(holds_global_batch),
                    None => draft.affects.clone(),
                },
                widest: draft.widest,
            });
        }
        if parameters.space.parameters.is_empty() {
            return Err(SpaceError::NothingToSearch {
                at: self.document.key(&["space"]),
            });
        }
        Ok(parameters)
    }

    /// The values of `baseline:`, each one that its parameter may have; of a command those of the space alone.
    pub(super) fn baseline(
        &self,
        entries: &Entries<FileValue>,
        parameters: &Parameters,
        trains_recipes: bool,
    ) -> Result<Params, SpaceError> {
        let mut baseline = Params::new();
        for (name, value) in &entries.0 {
            let keys = ["baseline", name.as_str()];
            let row = setting(name).filter(|_| trains_recipes);
            let searched = parameters
                .space
                .parameters
                .iter()
                .any(|parameter| parameter.name == *name);
            if row.is_none() && !searched {
                return Err(SpaceError::Rejected {
                    at: self.document.key(&keys),
                    message: format!("`{name}` is no parameter; write one of those below `space`"),
                });
            }
            let reader = ValueReader {
                context: *self,
                name,
                row,
            };
            baseline.insert(name.clone(), reader.value(&keys, value)?);
        }
        Ok(baseline)
    }

    fn draft(&self, name: &str, entry: &ParameterEntry, trains_recipes: bool) -> Result<Draft, SpaceError> {
        let row = if trains_recipes { Some(self.known(name)?) } else { None };
        let keys = ["space", name];
        let reader = ValueReader {
            context: *self,
            name,
            row,
        };
        let draft = |values| Draft {
            name: name.to_owned(),
            row,
            values,
            when: None,
            affects: None,
            widest: None,
        };
        match entry {
            ParameterEntry::Fixed(value) => Ok(draft(Values::Fixed(reader.value(&keys, value)?))),
            ParameterEntry::Choices(choices) => Ok(draft(reader.choices(&keys, choices)?)),
            ParameterEntry::Detailed(details) => {
                let mut draft = draft(reader.detailed(details)?);
                draft.widest = reader.widest(details, &draft.values)?;
                draft.when = self.when(name, details)?;
                draft.affects = self.affects(name, details, trains_recipes)?;
                Ok(draft)
            }
        }
    }

    fn known(&self, name: &str) -> Result<&'static SettingRow, SpaceError> {
        setting(name).ok_or_else(|| {
            let at = self.document.key(&["space", name]);
            let known: Vec<String> = settings().map(|row| row.name.to_owned()).collect();
            match setting_called(name) {
                Some(row) => SpaceError::UnknownKey {
                    at,
                    nearest: Some(row.name.to_owned()),
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
        trains_recipes: bool,
    ) -> Result<Option<Vec<String>>, SpaceError> {
        match &details.affects {
            Some(_) if trains_recipes => Err(SpaceError::Rejected {
                at: self.document.key(&["space", name, "affects"]),
                message: "only a command's parameters say what they affect; remove it".into(),
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
        let default = peft_tune_core::recipe::BatchSettings::default().micro_batch as i64;
        let micro_batches = match values_of("micro_batch") {
            Some(Some(values)) => values,
            Some(None) => return Ok(()),
            None => vec![default],
        };
        let place = |name: &str, values: &[i64], index: usize| -> Box<Span> {
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
