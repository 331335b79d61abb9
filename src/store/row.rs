//! Numbers of Rust as SQLite holds them.

use super::StoreError;

/// A count as SQLite holds it.
///
/// # Errors
/// Above 2^63 - 1.
pub(super) fn to_i64(number: u64) -> Result<i64, StoreError> {
    i64::try_from(number).map_err(|_| StoreError::NumberTooLarge { number })
}

/// A count read back; a negative one, which we never write, is 0.
pub(super) fn to_u64(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

/// The number where it is finite: NaN and infinities never reach the database.
pub(super) fn finite(number: f64) -> Option<f64> {
    number.is_finite().then_some(number)
}

/// The number where it is finite, and 0 elsewhere: where there is no null.
pub(super) fn finite_or_0(number: f64) -> f64 {
    finite(number).unwrap_or(0.0)
}
