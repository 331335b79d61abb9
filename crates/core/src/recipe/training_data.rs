//! [`TrainingData`]: the files to train on, or sets of files that are mixed by weights.

use std::borrow::Cow;
use std::fmt;
use std::path::{Path, PathBuf};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Data that is trained on.
#[derive(Clone, Debug, PartialEq)]
pub enum TrainingData {
    /// Files that are read one after another: every row once an epoch.
    Files(Vec<PathBuf>),
    /// Sets that are mixed: each has a share of the rows.
    Mixture(Vec<TrainingSet>),
}

/// One set of a mixture.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TrainingSet {
    /// File, or several that are read one after another.
    #[serde(rename = "file", with = "one_or_many")]
    #[schemars(with = "OneOrMany")]
    pub files: Vec<PathBuf>,
    /// Share of the rows that a training takes, beside the other weights: their sum need not be 1.
    pub weight: f64,
}

/// Why sets cannot be mixed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum WeightFault {
    #[error("a mixture needs two sets or more, and this one has {sets}; write the file alone, or add a set")]
    TooFewSets { sets: usize },
    #[error("set {number} of the mixture names no file; name one or more under `file`")]
    NoFile {
        /// Number of the set, from 1.
        number: usize,
    },
    #[error("the weight of {file} is {weight}; write a number above 0, or leave the set out")]
    NotPositive { file: PathBuf, weight: f64 },
    #[error("{file} stands in the mixture twice; name it once, with the sum of both weights")]
    Twice { file: PathBuf },
}

/// How far the weights' sum may be from 1 where they are taken for shares as they stand.
const SUM_IS_ONE: f64 = 1e-9;

impl TrainingData {
    /// All files, in order.
    pub fn files(&self) -> impl Iterator<Item = &PathBuf> {
        let (files, sets) = match self {
            Self::Files(files) => (&files[..], &[][..]),
            Self::Mixture(sets) => (&[][..], &sets[..]),
        };
        files.iter().chain(sets.iter().flat_map(|set| &set.files))
    }

    /// Whether no file is named.
    pub fn is_empty(&self) -> bool {
        self.files().next().is_none()
    }

    /// The sets that are mixed; none where files are read one after another.
    pub fn sets(&self) -> &[TrainingSet] {
        match self {
            Self::Files(_) => &[],
            Self::Mixture(sets) => sets,
        }
    }

    /// Puts other files in place of each.
    ///
    /// # Errors
    /// The first of `others`, which gets the number of the entry and that of the file in it, from 0.
    pub fn replaced<E>(
        &self,
        mut others: impl FnMut((usize, usize), &Path) -> Result<Vec<PathBuf>, E>,
    ) -> Result<Self, E> {
        match self {
            Self::Files(files) => {
                let mut found = Vec::new();
                for (number, file) in files.iter().enumerate() {
                    found.extend(others((number, 0), file)?);
                }
                Ok(Self::Files(found))
            }
            Self::Mixture(sets) => {
                let mut found = Vec::new();
                for (number, set) in sets.iter().enumerate() {
                    let mut files = Vec::new();
                    for (index, file) in set.files.iter().enumerate() {
                        files.extend(others((number, index), file)?);
                    }
                    let weight = set.weight;
                    found.push(TrainingSet { files, weight });
                }
                Ok(Self::Mixture(found))
            }
        }
    }

    /// Scales the weights to a sum of 1: equal mixtures are then written equally. Weights that are shares already stay
    /// as they are.
    ///
    /// # Errors
    /// Sets that cannot be mixed, with the number of the entry at fault, from 0, where it is one.
    pub fn normalized(&self) -> Result<Self, (Option<usize>, WeightFault)> {
        let Self::Mixture(sets) = self else {
            return Ok(self.clone());
        };
        check(sets)?;
        let sum: f64 = sets.iter().map(|set| set.weight).sum();
        let of = |set: &TrainingSet| TrainingSet {
            files: set.files.clone(),
            weight: match (sum - 1.0).abs() < SUM_IS_ONE {
                true => set.weight,
                false => set.weight / sum,
            },
        };
        Ok(Self::Mixture(sets.iter().map(of).collect()))
    }
}

fn check(sets: &[TrainingSet]) -> Result<(), (Option<usize>, WeightFault)> {
    if sets.len() < 2 {
        return Err((None, WeightFault::TooFewSets { sets: sets.len() }));
    }
    let mut seen: Vec<&PathBuf> = Vec::new();
    for (number, set) in sets.iter().enumerate() {
        let at_fault = |fault| (Some(number), fault);
        let Some(first) = set.files.first() else {
            return Err(at_fault(WeightFault::NoFile { number: number + 1 }));
        };
        if !(set.weight.is_finite() && set.weight > 0.0) {
            let (file, weight) = (first.clone(), set.weight);
            return Err(at_fault(WeightFault::NotPositive { file, weight }));
        }
        for file in &set.files {
            if seen.contains(&file) {
                return Err(at_fault(WeightFault::Twice { file: file.clone() }));
            }
            seen.push(file);
        }
    }
    Ok(())
}

impl TrainingSet {
    /// Name of the set's file, or that of the first and how many more there are.
    pub fn name(&self) -> String {
        match &self.files[..] {
            [] => String::new(),
            [one] => one.display().to_string(),
            [first, others @ ..] => format!("{} and {} more", first.display(), others.len()),
        }
    }
}

impl Default for TrainingData {
    fn default() -> Self {
        Self::Files(Vec::new())
    }
}

impl From<Vec<PathBuf>> for TrainingData {
    fn from(files: Vec<PathBuf>) -> Self {
        Self::Files(files)
    }
}

impl<T: AsRef<Path> + ?Sized> From<&T> for TrainingData {
    fn from(file: &T) -> Self {
        Self::Files(vec![file.as_ref().to_owned()])
    }
}

impl Serialize for TrainingData {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Files(files) => one_or_many::serialize(files, serializer),
            Self::Mixture(sets) => sets.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for TrainingData {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TrainingDataVisitor)
    }
}

const EXPECTED: &str = "a file, a list of files, or a list of sets such as `{file: a.jsonl, weight: 0.7}`";

struct TrainingDataVisitor;

impl<'de> Visitor<'de> for TrainingDataVisitor {
    type Value = TrainingData;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(EXPECTED)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<TrainingData, E> {
        Ok(TrainingData::from(text))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<TrainingData, A::Error> {
        let set = TrainingSet::deserialize(MapAccessDeserializer::new(map))?;
        Ok(TrainingData::Mixture(vec![set]))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<TrainingData, A::Error> {
        let (mut files, mut sets) = (Vec::new(), Vec::new());
        while let Some(entry) = entries.next_element()? {
            match entry {
                Entry::File(file) => files.push(file),
                Entry::Set(set) => sets.push(set),
            }
        }
        match (files.first(), sets.is_empty()) {
            (_, true) => Ok(TrainingData::Files(files)),
            (None, false) => Ok(TrainingData::Mixture(sets)),
            (Some(file), false) => Err(A::Error::custom(format!(
                "{} has no weight beside sets that have one; write `{{file: {0}, weight: ...}}`, or no weights at all",
                file.display()
            ))),
        }
    }
}

/// One entry of a list.
enum Entry {
    File(PathBuf),
    Set(TrainingSet),
}

impl<'de> Deserialize<'de> for Entry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct EntryVisitor;

        impl<'de> Visitor<'de> for EntryVisitor {
            type Value = Entry;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a file, or a set such as `{file: a.jsonl, weight: 0.7}`")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Entry, E> {
                Ok(Entry::File(text.into()))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Entry, A::Error> {
                TrainingSet::deserialize(MapAccessDeserializer::new(map)).map(Entry::Set)
            }
        }

        deserializer.deserialize_any(EntryVisitor)
    }
}

/// Schema of the key.
impl JsonSchema for TrainingData {
    fn schema_name() -> Cow<'static, str> {
        "TrainingData".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let set = generator.subschema_for::<TrainingSet>();
        json_schema!({
            "anyOf": [
                {"type": "string"},
                {"type": "array", "items": {"type": "string"}},
                {"type": "array", "items": set, "minItems": 2},
            ]
        })
    }
}

/// One value or a list of them in the file; always a list here.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "write a file or a list of files")]
pub(super) enum OneOrMany {
    One(PathBuf),
    Many(Vec<PathBuf>),
}

pub(super) mod one_or_many {
    use super::{OneOrMany, PathBuf};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(in crate::recipe) fn serialize<S: Serializer>(paths: &[PathBuf], serializer: S) -> Result<S::Ok, S::Error> {
        match paths {
            [one] => one.serialize(serializer),
            many => many.serialize(serializer),
        }
    }

    pub(in crate::recipe) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<PathBuf>, D::Error> {
        Ok(match OneOrMany::deserialize(deserializer)? {
            OneOrMany::One(path) => vec![path],
            OneOrMany::Many(paths) => paths,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(value: serde_json::Value) -> Result<TrainingData, String> {
        serde_json::from_value(value).map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_written_is_read_back_in_the_same_words() {
        for value in [
            json!("a.jsonl"),
            json!(["a.jsonl", "b.jsonl"]),
            json!([{"file": "a.jsonl", "weight": 0.7}, {"file": ["b.jsonl", "c.csv"], "weight": 0.3}]),
        ] {
            let read = read(value.clone()).unwrap();
            assert_eq!(serde_json::to_value(&read).unwrap(), value);
        }
        // One file in a list is that file.
        assert_eq!(
            serde_json::to_value(read(json!(["a.jsonl"])).unwrap()).unwrap(),
            json!("a.jsonl")
        );
    }

    #[test]
    fn weights_become_shares_and_shares_stay() {
        let of = |a: f64, b: f64| {
            let sets = json!([{"file": "a", "weight": a}, {"file": "b", "weight": b}]);
            let sets = read(sets).unwrap().normalized().unwrap();
            sets.sets().iter().map(|set| set.weight).collect::<Vec<_>>()
        };
        assert_eq!(of(7.0, 3.0), [0.7, 0.3]);
        assert_eq!(of(0.7, 0.3), [0.7, 0.3]);
        assert_eq!(of(1.0, 1.0), [0.5, 0.5]);
    }

    #[test]
    fn what_cannot_be_mixed_is_told() {
        let fault = |value| read(value).unwrap().normalized().unwrap_err();
        let (at, why) = fault(json!([{"file": "a", "weight": 1}, {"file": "b", "weight": -0.5}]));
        assert_eq!(
            (at, why.to_string().as_str()),
            (
                Some(1),
                "the weight of b is -0.5; write a number above 0, or leave the set out"
            )
        );
        let nan = TrainingSet {
            files: vec!["a".into()],
            weight: f64::NAN,
        };
        let (at, _) = TrainingData::Mixture(vec![nan.clone(), nan]).normalized().unwrap_err();
        assert_eq!(at, Some(0));
        let (at, why) = fault(json!([{"file": "a", "weight": 1}, {"file": ["b", "a"], "weight": 1}]));
        assert_eq!((at, why), (Some(1), WeightFault::Twice { file: "a".into() }));
        assert_eq!(
            fault(json!([{"file": "a", "weight": 1}])).1,
            WeightFault::TooFewSets { sets: 1 }
        );
        let (at, why) = fault(json!([{"file": [], "weight": 1}, {"file": "b", "weight": 1}]));
        assert_eq!((at, why), (Some(0), WeightFault::NoFile { number: 1 }));
        let mixed = read(json!(["a", {"file": "b", "weight": 1}])).unwrap_err();
        assert!(
            mixed.starts_with("a has no weight beside sets that have one"),
            "{mixed}"
        );
        let typo = read(json!([{"file": "a", "wieght": 1}])).unwrap_err();
        assert!(typo.contains("wieght") && typo.contains("weight"), "{typo}");
        let none = read(json!([{"file": "a"}])).unwrap_err();
        assert!(none.contains("missing field `weight`"), "{none}");
    }
}
