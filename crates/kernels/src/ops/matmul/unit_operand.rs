//! Values that the units of blocked products are made of.

use super::tile::Unit;
use crate::ops::element::Element;
use half::{bf16, f16};

/// Values that units are made of.
pub(super) trait Operand: Element {
    /// The unit that they are made into where there are instructions for it.
    const UNIT: Unit;
}

impl Operand for f32 {
    const UNIT: Unit = Unit::Single;
}

impl Operand for bf16 {
    const UNIT: Unit = Unit::Pair;
}

impl Operand for f16 {
    const UNIT: Unit = Unit::Single;
}
