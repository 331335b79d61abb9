//! Values that many events share, kept once.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;

/// Values by the number that stands for each; numbers count from 0 in the order in which the values came.
#[derive(Debug)]
pub(super) struct Interned<T> {
    numbers: HashMap<T, u32>,
    values: Vec<T>,
}

impl<T> Default for Interned<T> {
    fn default() -> Self {
        Self {
            numbers: HashMap::new(),
            values: Vec::new(),
        }
    }
}

impl<T: Clone + Eq + Hash> Interned<T> {
    /// The number of a value.
    pub(super) fn number<Q>(&mut self, value: &Q) -> u32
    where
        T: Borrow<Q>,
        Q: Eq + Hash + ToOwned<Owned = T> + ?Sized,
    {
        if let Some(number) = self.numbers.get(value) {
            return *number;
        }
        let number = self.values.len() as u32;
        self.numbers.insert(value.to_owned(), number);
        self.values.push(value.to_owned());
        number
    }

    pub(super) fn values(&self) -> &[T] {
        &self.values
    }

    /// The value of a number that [`Interned::number`] gave.
    pub(super) fn value(&self, number: u32) -> &T {
        &self.values[number as usize]
    }
}
