//! A study's or a recipe's data, made ready and looked at.

pub(super) mod mixture;
pub(super) mod prepare;
