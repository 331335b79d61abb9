//! Values by name, of which thousands of sets are kept: sets with the same names hold these once between them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::{fmt, slice, vec};

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::recipe::ParamValue;

/// Values by name, in name order; written as an object.
///
/// A tree with names of its own takes ten times the memory of its values. Here a set is one allocation, beside names
/// that it shares with its clones and, after [`ByName::share`], with all that have the same.
#[derive(Clone, PartialEq)]
pub struct ByName<V> {
    names: Arc<Vec<String>>,
    values: Box<[V]>,
}

/// Values by parameter name, in name order; a parameter whose condition does not hold is absent.
pub type Params = ByName<ParamValue>;

/// Texts that many trials have, each held once.
#[derive(Clone, Debug, Default)]
pub struct SharedText {
    texts: BTreeSet<Arc<String>>,
    lists: BTreeSet<Arc<Vec<String>>>,
}

impl SharedText {
    /// Puts the text that is held already in the place of an equal one.
    pub fn share_text(&mut self, text: &mut Arc<String>) {
        share(&mut self.texts, text);
    }

    /// Puts texts that are held already in the place of equal ones in a value.
    pub fn share_value(&mut self, value: &mut ParamValue) {
        match value {
            ParamValue::Text(text) => self.share_text(text),
            ParamValue::List(list) => self.share_list(list),
            ParamValue::Bool(_) | ParamValue::Int(_) | ParamValue::Float(_) => {}
        }
    }

    /// Puts a list of texts that is held already in the place of an equal one.
    pub fn share_list(&mut self, list: &mut Arc<Vec<String>>) {
        share(&mut self.lists, list);
    }
}

fn share<T: Ord>(held: &mut BTreeSet<Arc<T>>, one: &mut Arc<T>) {
    match held.get(one) {
        Some(known) => *one = Arc::clone(known),
        None => {
            held.insert(Arc::clone(one));
        }
    }
}

impl<V> ByName<V> {
    /// No values.
    pub fn new() -> Self {
        Self::default()
    }

    /// The value of a name.
    pub fn get(&self, name: &str) -> Option<&V> {
        self.position(name).ok().map(|at| &self.values[at])
    }

    /// Whether there is a value of this name.
    pub fn contains_key(&self, name: &str) -> bool {
        self.position(name).is_ok()
    }

    /// Puts a value in; returns the one that it replaces.
    pub fn insert(&mut self, name: impl AsRef<str> + Into<String>, value: V) -> Option<V> {
        match self.position(name.as_ref()) {
            Ok(at) => Some(std::mem::replace(&mut self.values[at], value)),
            Err(at) => {
                Arc::make_mut(&mut self.names).insert(at, name.into());
                self.change(|values| values.insert(at, value));
                None
            }
        }
    }

    /// A copy with another value of a name, or with one value more.
    #[must_use]
    pub fn with(&self, name: &str, value: V) -> Self
    where
        V: Clone,
    {
        let mut copy = self.clone();
        copy.insert(name, value);
        copy
    }

    /// Takes a value out.
    pub fn remove(&mut self, name: &str) -> Option<V> {
        let at = self.position(name).ok()?;
        Arc::make_mut(&mut self.names).remove(at);
        Some(self.change(|values| values.remove(at)))
    }

    /// Keeps the values of which `keep` says so.
    pub fn retain(&mut self, mut keep: impl FnMut(&str, &V) -> bool) {
        let kept: Vec<bool> = self.iter().map(|(name, value)| keep(name, value)).collect();
        if kept.iter().all(|kept| *kept) {
            return;
        }
        let mut flags = kept.iter();
        Arc::make_mut(&mut self.names).retain(|_| flags.next() == Some(&true));
        let mut flags = kept.iter();
        self.change(|values| values.retain(|_| flags.next() == Some(&true)));
    }

    /// Takes the names from `held`, which learns them where they are new.
    pub fn share(&mut self, held: &mut SharedText) {
        held.share_list(&mut self.names);
    }

    /// Names and values in name order.
    pub fn iter(&self) -> Iter<'_, V> {
        self.names.iter().zip(self.values.iter())
    }

    /// The names, ascending.
    pub fn keys(&self) -> slice::Iter<'_, String> {
        self.names.iter()
    }

    /// The values in name order.
    pub fn values(&self) -> slice::Iter<'_, V> {
        self.values.iter()
    }

    /// Values in the order of their names, to change them.
    pub fn values_mut(&mut self) -> slice::IterMut<'_, V> {
        self.values.iter_mut()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    fn position(&self, name: &str) -> Result<usize, usize> {
        self.names.binary_search_by(|known| known.as_str().cmp(name))
    }

    fn change<R>(&mut self, change: impl FnOnce(&mut Vec<V>) -> R) -> R {
        let mut values = std::mem::take(&mut self.values).into_vec();
        let result = change(&mut values);
        self.values = values.into_boxed_slice();
        result
    }
}

impl<V> std::ops::Index<&str> for ByName<V> {
    type Output = V;

    fn index(&self, name: &str) -> &V {
        self.get(name).expect("there is a value of this name")
    }
}

/// Names and values in name order.
pub(super) type Iter<'a, V> = std::iter::Zip<slice::Iter<'a, String>, slice::Iter<'a, V>>;

impl<V> Default for ByName<V> {
    fn default() -> Self {
        Self {
            names: Arc::default(),
            values: Box::default(),
        }
    }
}

impl<V: fmt::Debug> fmt::Debug for ByName<V> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_map().entries(self).finish()
    }
}

impl<V> From<BTreeMap<String, V>> for ByName<V> {
    fn from(values: BTreeMap<String, V>) -> Self {
        let (names, values): (Vec<String>, Vec<V>) = values.into_iter().unzip();
        Self {
            names: Arc::new(names),
            values: values.into(),
        }
    }
}

/// The last value of a name counts.
impl<V> FromIterator<(String, V)> for ByName<V> {
    fn from_iter<I: IntoIterator<Item = (String, V)>>(values: I) -> Self {
        let mut values: Vec<(String, V)> = values.into_iter().collect();
        values.sort_by(|(a, _), (b, _)| a.cmp(b));
        // Of several values of one name the last one counts.
        values.dedup_by(|later, kept| {
            later.0 == kept.0 && {
                std::mem::swap(later, kept);
                true
            }
        });
        let (names, values): (Vec<String>, Vec<V>) = values.into_iter().unzip();
        Self {
            names: Arc::new(names),
            values: values.into_boxed_slice(),
        }
    }
}

impl<V, const N: usize> From<[(String, V); N]> for ByName<V> {
    fn from(values: [(String, V); N]) -> Self {
        values.into_iter().collect()
    }
}

impl<V> Extend<(String, V)> for ByName<V> {
    fn extend<I: IntoIterator<Item = (String, V)>>(&mut self, values: I) {
        for (name, value) in values {
            self.insert(name, value);
        }
    }
}

impl<'a, V> IntoIterator for &'a ByName<V> {
    type Item = (&'a String, &'a V);
    type IntoIter = Iter<'a, V>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<V> IntoIterator for ByName<V> {
    type Item = (String, V);
    type IntoIter = std::iter::Zip<vec::IntoIter<String>, vec::IntoIter<V>>;

    fn into_iter(self) -> Self::IntoIter {
        Arc::unwrap_or_clone(self.names).into_iter().zip(self.values.into_vec())
    }
}

impl<V: Serialize> Serialize for ByName<V> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self)
    }
}

impl<'de, V: Deserialize<'de>> Deserialize<'de> for ByName<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        BTreeMap::<String, V>::deserialize(deserializer).map(Self::from)
    }
}

impl<V: JsonSchema> JsonSchema for ByName<V> {
    fn inline_schema() -> bool {
        BTreeMap::<String, V>::inline_schema()
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        BTreeMap::<String, V>::schema_name()
    }

    fn schema_id() -> std::borrow::Cow<'static, str> {
        BTreeMap::<String, V>::schema_id()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        BTreeMap::<String, V>::json_schema(generator)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn equal_names_are_held_once_and_a_change_leaves_the_others_alone() {
        let mut held = SharedText::default();
        let mut sets: Vec<ByName<i64>> = (0..3)
            .map(|at| [("b".to_owned(), at), ("a".to_owned(), 7)].into())
            .collect();
        sets.iter_mut().for_each(|one| one.share(&mut held));
        assert!(Arc::ptr_eq(&sets[0].names, &sets[2].names));
        sets[0].insert("c", 1);
        sets[1].remove("a");
        assert_eq!(
            serde_json::to_string(&sets).unwrap(),
            r#"[{"a":7,"b":0,"c":1},{"b":1},{"a":7,"b":2}]"#
        );
        let changed: ByName<i64> = [("b".to_owned(), 5), ("c".to_owned(), 1)].into();
        assert_eq!(sets[1].with("b", 5).with("c", 1), changed);
        assert_eq!(sets[1].get("b"), Some(&1));
    }

    #[test]
    fn a_set_takes_one_allocation_of_its_values_size() {
        assert_eq!(size_of::<ByName<f64>>(), 24);
        assert_eq!(size_of::<crate::study::ParamValue>(), 16);
    }

    proptest! {
        /// Checks that it is what the standard library's tree is, whatever is done to it.
        #[test]
        fn it_behaves_as_a_tree(changes in prop::collection::vec(("[a-d]", prop::option::of(0..9i64)), 0..20)) {
            let (mut ours, mut tree) = (ByName::new(), BTreeMap::new());
            for (name, value) in changes {
                match value {
                    Some(value) => prop_assert_eq!(ours.insert(name.as_str(), value), tree.insert(name, value)),
                    None => prop_assert_eq!(ours.remove(&name), tree.remove(&name)),
                }
            }
            prop_assert_eq!(serde_json::to_string(&ours).unwrap(), serde_json::to_string(&tree).unwrap());
            prop_assert_eq!(&serde_json::from_str::<ByName<i64>>(&serde_json::to_string(&tree).unwrap()).unwrap(), &ours);
            ours.retain(|_, value| value % 2 == 0);
            tree.retain(|_, value| *value % 2 == 0);
            prop_assert!(ours.iter().eq(tree.iter()) && ours.keys().eq(tree.keys()) && ours.len() == tree.len());
            prop_assert_eq!(ByName::from(tree), ours);
        }
    }
}
