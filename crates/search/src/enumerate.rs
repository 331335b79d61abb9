//! The settings of a discrete search space, numbered: the last parameter varies fastest, inactive ones are left out.

use peft_tune_core::space::SearchSpace;
use peft_tune_core::study::Params;

/// Every setting of a discrete space, by number.
#[derive(Clone, Debug)]
pub struct Settings<'a> {
    space: &'a SearchSpace,
    len: u64,
}

impl<'a> Settings<'a> {
    /// The settings of `space`, or `None` where a parameter is continuous (or there are more than `u64` counts).
    pub fn new(space: &'a SearchSpace) -> Option<Self> {
        let len = space.cardinality()?;
        Some(Self { space, len })
    }

    /// Number of settings.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the space has no setting.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Setting number `index`, or `None` past the last.
    pub fn nth(&self, index: u64) -> Option<Params> {
        if index >= self.len {
            return None;
        }
        let mut params = Params::new();
        let mut rest = index;
        for level in 0..self.space.parameters.len() {
            let parameter = &self.space.parameters[level];
            if !self.space.is_active(parameter, &params) {
                continue;
            }
            let size = parameter.distribution.cardinality()?;
            if !is_asked_about(self.space, &parameter.name) {
                let below = self.count_below(level + 1, &mut params)?;
                params.insert(parameter.name.clone(), parameter.distribution.nth(rest / below)?);
                rest %= below;
                continue;
            }
            for value in (0..size).filter_map(|number| parameter.distribution.nth(number)) {
                params.insert(parameter.name.clone(), value);
                let below = self.count_below(level + 1, &mut params)?;
                if rest < below {
                    break;
                }
                rest -= below;
            }
        }
        Some(params)
    }

    /// Settings of the space in the order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = Params> + use<'a> {
        let space = self.space;
        let mut levels = (self.len > 0).then(|| first_levels(space, Vec::new()));
        std::iter::from_fn(move || {
            let current = levels.take()?;
            let params = params_of(space, &current);
            levels = next_levels(space, current);
            Some(params)
        })
    }

    /// Number of settings that continue from `params`, which fixes the parameters before `level`.
    fn count_below(&self, level: usize, params: &mut Params) -> Option<u64> {
        let Some(parameter) = self.space.parameters.get(level) else {
            return Some(1);
        };
        if !self.space.is_active(parameter, params) {
            return self.count_below(level + 1, params);
        }
        let size = parameter.distribution.cardinality()?;
        if !is_asked_about(self.space, &parameter.name) {
            return size.checked_mul(self.count_below(level + 1, params)?);
        }
        let mut total = 0u64;
        for value in (0..size).filter_map(|number| parameter.distribution.nth(number)) {
            params.insert(parameter.name.clone(), value);
            total = total.checked_add(self.count_below(level + 1, params)?)?;
        }
        params.remove(&parameter.name);
        Some(total)
    }
}

fn is_asked_about(space: &SearchSpace, name: &str) -> bool {
    space
        .parameters
        .iter()
        .filter_map(|parameter| parameter.condition.as_ref())
        .any(|condition| condition.parameter == name)
}

/// Completes the value numbers of the leading parameters with first values; `None` marks an inactive parameter.
fn first_levels(space: &SearchSpace, mut levels: Vec<Option<u64>>) -> Vec<Option<u64>> {
    let mut params = params_of(space, &levels);
    for parameter in &space.parameters[levels.len()..] {
        let active = space.is_active(parameter, &params);
        if let Some(value) = parameter.distribution.nth(0).filter(|_| active) {
            params.insert(parameter.name.clone(), value);
        }
        levels.push(active.then_some(0));
    }
    levels
}

/// Counts the last active parameter that has a further value up by one.
fn next_levels(space: &SearchSpace, mut levels: Vec<Option<u64>>) -> Option<Vec<Option<u64>>> {
    while let Some(level) = levels.pop() {
        let parameter = &space.parameters[levels.len()];
        let size = parameter.distribution.cardinality().unwrap_or(1);
        if let Some(next) = level.map(|level| level + 1).filter(|next| *next < size) {
            levels.push(Some(next));
            return Some(first_levels(space, levels));
        }
    }
    None
}

fn params_of(space: &SearchSpace, levels: &[Option<u64>]) -> Params {
    space
        .parameters
        .iter()
        .zip(levels)
        .filter_map(|(parameter, level)| Some((parameter.name.clone(), parameter.distribution.nth((*level)?)?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{conditional_space, continuous_space};

    #[test]
    fn numbering_and_iteration_agree_and_count_conditions() {
        let space = conditional_space();
        let settings = Settings::new(&space).unwrap();
        // 3 ranks x (adamw + sgd x 2 momenta).
        assert_eq!(settings.len(), 9);
        let all: Vec<Params> = settings.iter().collect();
        assert_eq!(all.len(), 9);
        for (index, params) in all.iter().enumerate() {
            assert_eq!(settings.nth(index as u64).as_ref(), Some(params));
            assert_eq!(
                params.contains_key("momentum"),
                params["optimizer"].to_string() == "sgd",
                "{params:?}"
            );
            assert!(!all[..index].contains(params), "{params:?} comes twice");
        }
        assert_eq!(settings.nth(9), None);
    }

    #[test]
    fn a_continuous_space_is_not_enumerated() {
        assert!(Settings::new(&continuous_space(2)).is_none());
    }
}
