//! Values of frozen weights that are left out at load, one row for each rule.

use serde::Serialize;

use super::named::named;

/// Values of frozen linear weights that are left out: two of each four neighbours in a row (2:4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum WeightSparsity {
    #[default]
    None,
    Magnitude,
    Wanda,
}

/// Row of the table of rules.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct WeightSparsityRow {
    #[serde(skip)]
    pub kind: WeightSparsity,
    pub name: &'static str,
    /// Names that are read beside `name`.
    pub aliases: &'static [&'static str],
    pub about: &'static str,
    /// Whether activations on rows of the training data decide.
    pub reads_data: bool,
}

const ROWS: &[WeightSparsityRow] = &[
    WeightSparsityRow {
        kind: WeightSparsity::None,
        name: "none",
        aliases: &[],
        about: "All values stay.",
        reads_data: false,
    },
    WeightSparsityRow {
        kind: WeightSparsity::Magnitude,
        name: "magnitude_2_4",
        aliases: &[],
        about: "Of each four the two largest stay.",
        reads_data: false,
    },
    WeightSparsityRow {
        kind: WeightSparsity::Wanda,
        name: "wanda_2_4",
        aliases: &[],
        about: "Of each four the two stay that are largest times the norm of their input on rows of the training data (arXiv:2306.11695).",
        reads_data: true,
    },
];

named!(
    WeightSparsity,
    WeightSparsityRow,
    ROWS,
    "WeightSparsity",
    "Which two of each four values of a frozen linear weight's rows stay, from the load on."
);

/// Values of a group, and those of them that stay.
pub const SPARSE_GROUP: usize = 4;
pub const KEPT_OF_GROUP: usize = 2;

impl WeightSparsity {
    /// Whether all values stay.
    pub fn is_none(&self) -> bool {
        *self == Self::None
    }
}
