//! What the rules on products have in common.

use super::Change;
use crate::profile::Profile;

/// Part of the step from which ops count.
pub(super) const LEAST_SHARE: f64 = 0.1;
/// Part of the roofline below which an op is slow, and what it might reach.
pub(super) const SLOW: f64 = 0.4;
pub(super) const REACHABLE: f64 = 0.7;
/// Change that gives each product more tokens.
pub(super) fn more_tokens(profile: &Profile) -> Change {
    let accumulation = profile.setting.gradient_accumulation;
    match accumulation {
        accumulation if accumulation > 1 && accumulation.is_multiple_of(2) => Change::Batch {
            micro_batch: 2 * profile.setting.micro_batch,
            gradient_accumulation: accumulation / 2,
        },
        _ if !profile.setting.packing && profile.data.mean_documents_per_row <= 1.0 => Change::Packing,
        _ => Change::Advice("give each product more tokens: a larger micro_batch or sequence_length".to_owned()),
    }
}

/// Whether a storage is codes that are widened before they are multiplied.
pub(super) fn is_coded(storage: &str) -> bool {
    matches!(storage, "nf4" | "int8")
}
