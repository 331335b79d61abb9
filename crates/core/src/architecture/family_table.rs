//! The table of families: a row for each, found by its variant or by a `model_type`.

use super::family::{Family, FamilyRow};
use super::family_rows::ROWS;

impl Family {
    /// All families, in the order of the table.
    pub fn all() -> impl Iterator<Item = Self> + Clone {
        ROWS.iter().map(|row| row.family)
    }

    /// Row of the family in the table.
    pub fn row(self) -> &'static FamilyRow {
        const { assert_order() }
        &ROWS[self as usize]
    }

    /// Name of the family: its `model_type`.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// Whether that is its `model_type`, or that of a multimodal model around it, which leaves `_text` out.
    pub fn is_called(self, model_type: &str) -> bool {
        let name = self.name();
        name == model_type || name.strip_suffix("_text") == Some(model_type)
    }

    /// The family of a `model_type`.
    pub fn from_model_type(model_type: &str) -> Option<Self> {
        Self::all().find(|family| {
            let row = family.row();
            row.name == model_type || row.text_names.contains(&model_type)
        })
    }
}

/// The rows stand in the order of the enum.
const fn assert_order() {
    let mut index = 0;
    while index < ROWS.len() {
        assert!(ROWS[index].family as usize == index);
        index += 1;
    }
}
