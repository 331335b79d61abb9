//! [`SettingRow`]: one searchable setting.

use super::{Effects, FloatRange, Legal, Outcome};
use crate::recipe::{ParamValue, Recipe};

/// One setting that can be searched.
pub struct SettingRow {
    pub name: &'static str,
    /// Dotted path of the recipe field it sets.
    pub field: &'static str,
    /// One sentence for documentation and schema.
    pub about: &'static str,
    pub legal: Legal,
    /// How far a search may widen a range of it by itself: where more of it changes the loss alone, and no meaning. `None` where
    /// ranges stay as they are. One that lies outside (a `warmup` in steps) stays too.
    pub widest: Option<FloatRange>,
    /// Names that people have for it, suggested where someone writes one in a study file.
    pub elsewhere: &'static [&'static str],
    /// Unit that a number counts; `None` where it counts nothing.
    pub unit: Option<&'static str>,
    /// The setting that must be set before, for one whose field is computed from it.
    pub derived_from: Option<&'static str>,
    pub effects: Effects,
    /// The value a recipe has, or `None` where the recipe does without (no adapter, say).
    pub get: fn(&Recipe) -> Option<ParamValue>,
    /// Sets the field; the value is one that [`Legal::allows`].
    pub set: fn(&mut Recipe, &ParamValue) -> Result<(), SetError>,
}

/// Why a legal value could not be set on a recipe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SetError {
    /// The recipe has no adapter, or the value is of the wrong kind.
    Inapplicable,
    /// Gradient accumulation would not be a whole number.
    Indivisible {
        global_batch: usize,
        micro_batch: usize,
        devices: usize,
    },
}

impl SettingRow {
    /// Part of this setting that an outcome of `recipe` depends on, if anything.
    pub fn part(&self, recipe: &Recipe, outcome: Outcome) -> Option<ParamValue> {
        self.effects.on(outcome).part(self.get, recipe)
    }

    /// Whether anything of `recipe` depends on this setting: momentum says nothing to AdamW.
    pub fn is_read(&self, recipe: &Recipe) -> bool {
        Outcome::ALL.iter().any(|outcome| self.part(recipe, *outcome).is_some())
    }

    /// Whether it is a choice among what PyTorch's stack has, and nothing to the built-in engine.
    pub fn is_of_torch(&self) -> bool {
        self.field.starts_with("torch.")
    }

    /// Whether it counts tokens, rows or steps, so that a file may say `2k`.
    pub fn is_count(&self) -> bool {
        self.unit.is_some()
    }
}

impl std::fmt::Debug for SettingRow {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "SettingRow({})", self.name)
    }
}
