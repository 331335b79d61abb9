//! Bytes of the optimizer's state, and of what its update takes.
//!
//! F32 states take 4 bytes a value. Those in 8 bits, N of an element, are for each parameter blocks of 256: 256 N codes and 4 N. Small
//! parameters and embeddings keep F32 ([`is_coded`](crate::plan::ParameterSlot::is_coded)).

use super::network::Slots;
use crate::plan::CODED_ELEMENTS;
use crate::recipe::{OptimizerKind, OptimizerSettings, States, UpdateOrder};

/// Elements of a block of 8-bit states.
const BLOCK: u64 = CODED_ELEMENTS as u64;
/// Bytes of its codes and its factor.
const BLOCK_BYTES: u64 = BLOCK + 4;

/// Bytes of the states of all `slots`.
pub(super) fn state_bytes(settings: &OptimizerSettings, slots: &[Slots]) -> u64 {
    let of_one = |slots: &Slots| -> u64 {
        let elements = slots.elements();
        match settings.kind.row().states {
            States::OfElements(states) if settings.kind.has_8bit_states() && slots.coded => {
                elements.div_ceil(BLOCK) * BLOCK_BYTES * states
            }
            States::OfElements(states) => 4 * states * elements,
            States::Velocity if settings.momentum == 0.0 => 0,
            States::Velocity => 4 * elements,
            States::Factored => 4 * (slots.rows + slots.columns.unwrap_or(0)) as u64,
            States::ByShape { matrix, .. } if slots.columns.is_some() => 4 * matrix * elements,
            States::ByShape { vector, .. } => 4 * vector * elements,
        }
    };
    let all: u64 = slots.iter().map(|slots| slots.count as u64 * of_one(slots)).sum();
    all + of_nothing(settings, slots)
}

/// Bytes of tensors that there are for no parameters: each has one value, or one block, at least.
fn of_nothing(settings: &OptimizerSettings, slots: &[Slots]) -> u64 {
    let without = |is_there: fn(&Slots) -> bool, bytes| match slots.iter().any(is_there) {
        true => 0,
        false => bytes,
    };
    match settings.kind.row().states {
        States::OfElements(states) if settings.kind.has_8bit_states() => {
            without(|slots| slots.coded, BLOCK_BYTES * states) + without(|slots| !slots.coded, 4 * states)
        }
        States::ByShape { matrix, vector } => {
            without(|slots| slots.columns.is_some(), 4 * matrix) + without(|slots| slots.columns.is_none(), 4 * vector)
        }
        States::OfElements(_) | States::Velocity | States::Factored => 0,
    }
}

/// Bytes that an update takes on the CPU and frees again.
pub(super) fn update_bytes(kind: OptimizerKind, slots: &[Slots]) -> u64 {
    match kind.row().update.order {
        UpdateOrder::Orthogonalised => largest_orthogonalisation(slots.iter()),
        UpdateOrder::AllAtOnce | UpdateOrder::OneByOne => 0,
    }
}

/// The shorter side of a matrix; 0 of a vector.
fn short_side(slots: &Slots) -> usize {
    slots.columns.map_or(0, |columns| columns.min(slots.rows))
}

/// Muon's tensor ops on the largest matrix: three like it, or it beside the Gram matrix and the two terms of the polynomial.
fn largest_orthogonalisation<'a>(slots: impl Iterator<Item = &'a Slots>) -> u64 {
    let matrix = |slots: &Slots| {
        let narrow = short_side(slots) as u64;
        let elements = slots.elements();
        slots
            .columns
            .map_or(0, |_| 4 * (3 * elements).max(elements + 3 * narrow * narrow))
    };
    slots.map(matrix).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_coded_has_states_of_8_bits() {
        let settings = |kind| OptimizerSettings {
            kind,
            ..OptimizerSettings::default()
        };
        let slots = |coded| Slots {
            rows: 100,
            columns: Some(50),
            count: 3,
            coded,
        };
        let bytes = |kind, coded| state_bytes(&settings(kind), &[slots(coded)]);
        // Blocks of 256: twenty for each. A value, or a block, is there for nothing.
        assert_eq!(bytes(OptimizerKind::AdamW8bit, true), 3 * 20 * (256 + 4) * 2 + 2 * 4);
        assert_eq!(bytes(OptimizerKind::AdamW8bit, false), 3 * 5000 * 4 * 2 + 2 * (256 + 4));
        assert_eq!(bytes(OptimizerKind::AdamW, true), 3 * 5000 * 4 * 2);
    }
}
