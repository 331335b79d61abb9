//! A bar with a name, and marks of the steps that it showed.

use super::tqdm_bar::TqdmBar;

/// Most marks of a bar that does not count the training's steps.
const MOST_BESIDE: usize = 1024;
/// Most epochs of a training: a bar of more is one of steps, whatever its name.
const MOST_EPOCHS: u64 = 100;

/// End of a step, as it was seen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Mark {
    pub at_s: f64,
    pub step: u64,
}

/// A bar with a name. One may be inside another: steps in a bar of epochs.
#[derive(Clone, Debug, Default)]
pub(super) struct NamedBar {
    /// Count of the bar, and steps of bars of its kind before it.
    done: u64,
    before: u64,
    pub updates: u64,
    /// Whether it seems to count epochs.
    pub is_outer: bool,
    /// Steps of the bar as long as another one counts.
    pub marks: Vec<Mark>,
}

impl NamedBar {
    /// Takes what it shows, and tells its step.
    pub(super) fn take(&mut self, bar: &TqdmBar, kind: &str) -> u64 {
        if bar.done < self.done {
            // The bar of a next epoch counts from 0.
            self.before = self.before.saturating_add(self.done);
        }
        self.updates += u64::from(self.updates == 0 || bar.done != self.done);
        self.done = bar.done;
        self.is_outer = kind.to_lowercase().starts_with("epoch") && bar.total <= MOST_EPOCHS;
        self.before.saturating_add(self.done)
    }
}

/// Adds a mark of a step behind the last one, as far as there is room.
pub(super) fn keep(marks: &mut Vec<Mark>, step: u64, at_s: f64) {
    let is_next = marks.last().is_none_or(|last| step > last.step);
    if is_next && marks.len() < MOST_BESIDE {
        marks.push(Mark { at_s, step });
    }
}
