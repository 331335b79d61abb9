//! Bytes of the optimizer's state, and of what its update takes.
//!
//! F32 states take 4 bytes a value. Those in 8 bits, N of an element, are for each parameter blocks of 256: 256 N codes and 4 N. Small
//! parameters and embeddings keep F32 ([`is_coded`](crate::plan::ParameterSlot::is_coded)).

use super::network::Slots;
use crate::plan::{BAND_ELEMENTS, CODED_ELEMENTS, LONGEST_SHORT_SIDE, PAGE_BLOCKS, PAGE_ELEMENTS, PAGES_AT_ONCE};
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

/// Bytes that an update takes on an NVIDIA GPU and frees again.
pub(super) fn gpu_update_bytes(kind: OptimizerKind, slots: &[Slots]) -> u64 {
    match (kind.row().update.order, kind.row().states) {
        (UpdateOrder::Orthogonalised, _) => {
            let (short, long): (Vec<&Slots>, Vec<&Slots>) =
                slots.iter().partition(|slots| short_side(slots) <= LONGEST_SHORT_SIDE);
            muon_room(&short).max(largest_orthogonalisation(long.into_iter()))
        }
        (_, States::Factored) => slots.iter().map(adafactor_room).sum(),
        (_, States::OfElements(states)) if kind.is_paged() => paged_room(kind, slots, states),
        _ => 0,
    }
}

/// Pages that are on a GPU at once, where neighbours that are updated alike fill them: of F32 states, or of codes.
fn paged_room(kind: OptimizerKind, slots: &[Slots], states: u64) -> u64 {
    let is_coded = |slots: &&Slots| kind.has_8bit_states() && slots.coded;
    let blocks = slots
        .iter()
        .filter(is_coded)
        .map(|slots| slots.elements().div_ceil(BLOCK))
        .max();
    let plain = slots.iter().filter(|slots| !is_coded(slots));
    let elements: u64 = plain.map(|slots| slots.elements() * slots.count as u64).sum();
    let of_codes = blocks.unwrap_or(0).min(PAGE_BLOCKS as u64) * BLOCK_BYTES;
    let of_values = 4 * elements.min(PAGE_ELEMENTS as u64);
    PAGES_AT_ONCE as u64 * states * of_codes.max(of_values)
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

/// All matrices of Muon's kernel in BF16: the short side filled up to tiles of 16, as many for all, the long one to strips.
fn muon_room(slots: &[&Slots]) -> u64 {
    let longest = slots.iter().map(|slots| short_side(slots)).max().unwrap_or(0);
    let tiles = longest.div_ceil(16).next_power_of_two();
    let of_one = |slots: &&Slots| {
        let long = slots.columns.map_or(0, |columns| columns.max(slots.rows));
        (2 * slots.count * 16 * tiles * long.next_multiple_of(512 / tiles)) as u64
    };
    slots.iter().map(of_one).sum()
}

/// Sums in F64 of a matrix that Adafactor's kernels take in bands: for each band, of each column and of all.
fn adafactor_room(slots: &Slots) -> u64 {
    let columns = slots.columns.unwrap_or(0);
    let bands = slots.rows.div_ceil((BAND_ELEMENTS / columns.max(1)).max(1));
    if columns == 0 || bands < 2 {
        return 0;
    }
    (8 * slots.count * bands * (columns + 1)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_update_takes_on_a_gpu_follows_the_shapes() {
        let slots = |rows, columns, count| Slots {
            rows,
            columns,
            count,
            coded: false,
        };
        let bytes = |kind, slots: &[Slots]| gpu_update_bytes(kind, slots);
        let adapter = [slots(16, Some(896), 2), slots(4864, Some(16), 1), slots(896, None, 1)];
        // Sixteen rows, 896 columns as two strips of 512, 4864 as ten.
        let room = 2 * 16 * (2 * 1024 + 5120);
        assert_eq!(bytes(OptimizerKind::Muon, &adapter), room);
        let full = [slots(200, Some(300), 3), slots(16, Some(896), 1)];
        assert_eq!(bytes(OptimizerKind::Muon, &full), 4 * 3 * 200 * 300);
        let square = [slots(200, Some(210), 1)];
        assert_eq!(bytes(OptimizerKind::Muon, &square), 4 * (200 * 210 + 3 * 200 * 200));
        // Pages of 16 MiB, or less where there is less; of two states each.
        assert_eq!(
            bytes(OptimizerKind::PagedAdamW, &full),
            2 * 2 * 4 * (3 * 200 * 300 + 16 * 896)
        );
        let large = [slots(8192, Some(8192), 2)];
        assert_eq!(bytes(OptimizerKind::PagedAdamW, &large), 2 * 2 * (16 << 20));
        assert_eq!(bytes(OptimizerKind::Adafactor, &adapter), 0);
        // Rows of 8192 elements in bands of 512, of which 1300 rows make three.
        assert_eq!(
            bytes(OptimizerKind::Adafactor, &[slots(1300, Some(8192), 2)]),
            8 * 2 * 3 * 8193
        );
        assert_eq!(bytes(OptimizerKind::AdamW, &full), 0);
    }

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
