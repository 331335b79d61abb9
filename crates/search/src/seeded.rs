//! Random numbers and untried settings, as functions of seed and history.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use rand::RngExt;
use rand_pcg::Pcg64;

use super::Settings;
use peft_tune_core::space::SearchSpace;
use peft_tune_core::study::{ParamValue, Params, Trial};

/// Proposals drawn before a discrete space is searched for what is left.
const DRAWS: usize = 200;
/// Largest discrete space that is searched for what is left, in settings.
const SEARCHED: u64 = 1_000_000;

/// Name of one seeded stream; different uses of one seed must not share their numbers.
#[derive(Clone, Copy, Debug)]
pub(super) enum Stream {
    Random = 1,
    Nsga2,
    Tpe,
    Bayes,
    Length,
}

/// The generator for proposal number `asked` of a sampler.
pub(super) fn generator(seed: u64, stream: Stream, asked: usize) -> Pcg64 {
    // SplitMix64's finaliser: neighbouring seeds and numbers give unrelated states.
    let mix = |value: u64| {
        let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ (value >> 31)
    };
    let low = mix(seed.wrapping_add(0x9e37_79b9_7f4a_7c15));
    let high = mix(low ^ (asked as u64).wrapping_mul(0xd134_2543_de82_ef95));
    Pcg64::new((u128::from(high) << 64) | u128::from(low), stream as u128)
}

/// A uniform point of the unit cube.
pub(super) fn uniform_point(dimensions: usize, random: &mut Pcg64) -> Vec<f64> {
    (0..dimensions).map(|_| random.random::<f64>()).collect()
}

/// Params in a form that can be compared and kept by the thousand: one setting, one key, whatever type its numbers were
/// read back as. Of ten thousand settings two have the same digest with a probability of 3e-12.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct SettingKey(u64);

impl SettingKey {
    pub(super) fn new(params: &Params) -> Self {
        let mut digest = DefaultHasher::new();
        for (name, value) in params {
            name.hash(&mut digest);
            match value {
                // 8 and 8.0 are one setting.
                ParamValue::Int(value) => (0u8, (*value as f64).to_bits()).hash(&mut digest),
                ParamValue::Float(value) => (0u8, value.to_bits()).hash(&mut digest),
                ParamValue::Bool(value) => (1u8, value).hash(&mut digest),
                ParamValue::Text(value) => (2u8, value).hash(&mut digest),
                ParamValue::List(values) => (3u8, values).hash(&mut digest),
            }
        }
        Self(digest.finish())
    }
}

/// The settings that a history has tried, is trying, or has refused.
#[derive(Clone, Debug)]
pub(super) struct Tried(HashSet<SettingKey>);

impl Tried {
    pub(super) fn new(history: &[Trial]) -> Self {
        Self(history.iter().map(|trial| SettingKey::new(&trial.params)).collect())
    }

    pub(super) fn contains(&self, params: &Params) -> bool {
        self.0.contains(&SettingKey::new(params))
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

/// The first untried setting that `draw` gives, or, where a discrete space is nearly used up, one of those left, chosen
/// at random. `None` when nothing is left.
pub(super) fn first_untried(
    space: &SearchSpace,
    tried: &Tried,
    random: &mut Pcg64,
    mut draw: impl FnMut(&mut Pcg64) -> Params,
) -> Option<Params> {
    let total = space.cardinality();
    for _ in 0..DRAWS {
        let params = draw(random);
        if !tried.contains(&params) {
            return Some(params);
        }
        if total.is_some_and(|total| tried.len() as u64 >= total) {
            break;
        }
    }
    if total.is_none_or(|total| total > SEARCHED) {
        return None;
    }
    let left: Vec<Params> = Settings::new(space)?
        .iter()
        .filter(|params| !tried.contains(params))
        .collect();
    if left.is_empty() {
        return None;
    }
    let chosen = random.random_range(0..left.len());
    left.into_iter().nth(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_the_same_setting_in_either_type() {
        let int = Params::from([("rank".to_owned(), ParamValue::Int(8))]);
        let float = Params::from([("rank".to_owned(), ParamValue::Float(8.0))]);
        let text = Params::from([("rank".to_owned(), ParamValue::from("8"))]);
        assert_eq!(SettingKey::new(&int), SettingKey::new(&float));
        assert_ne!(SettingKey::new(&int), SettingKey::new(&text));
    }

    #[test]
    fn streams_and_proposals_have_their_own_numbers() {
        let first = |seed, stream, asked| generator(seed, stream, asked).random::<u64>();
        assert_eq!(first(1, Stream::Tpe, 3), first(1, Stream::Tpe, 3));
        assert_ne!(first(1, Stream::Tpe, 3), first(1, Stream::Random, 3));
        assert_ne!(first(1, Stream::Tpe, 3), first(1, Stream::Tpe, 4));
        assert_ne!(first(1, Stream::Tpe, 3), first(2, Stream::Tpe, 3));
    }
}
