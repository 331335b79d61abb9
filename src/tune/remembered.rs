//! Answers that are worked out once and then looked up, from any thread.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::RwLock;

/// Answers by what they were asked for. Two threads that ask for one at the same time may both work it out, and get the
/// same.
#[derive(Debug)]
pub(super) struct Remembered<K, V>(RwLock<HashMap<K, V>>);

impl<K, V> Default for Remembered<K, V> {
    fn default() -> Self {
        Self(RwLock::default())
    }
}

impl<K: Eq + Hash, V: Clone> Remembered<K, V> {
    /// The answer for a key, worked out where it is asked for the first time.
    pub(super) fn get_or(&self, key: K, work_out: impl FnOnce() -> V) -> V {
        if let Ok(known) = self.0.read()
            && let Some(answer) = known.get(&key)
        {
            return answer.clone();
        }
        let answer = work_out();
        if let Ok(mut known) = self.0.write() {
            known.insert(key, answer.clone());
        }
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_worked_out_once() {
        let answers = Remembered::default();
        assert_eq!(answers.get_or("rank", || 8), 8);
        assert_eq!(answers.get_or("rank", || 16), 8);
        assert_eq!(answers.get_or("alpha", || 32), 32);
    }
}
