//! Bytes of the optimizer's state.
//!
//! | optimizer | bytes, E trained elements in all |
//! |---|---|
//! | adamw, paged_adamw | 8 E |
//! | lion, sgd with momentum | 4 E |
//! | sgd | 0 |
//! | 8-bit forms, N states | for each parameter of 4096 elements or more, blocks of 256: 256 N codes and 4 N; 4 N an element below |
//! | adafactor | 4 (rows + columns) of each matrix, 4 n of each vector |
//! | muon | 4 an element of matrices, 8 of vectors |

use super::network::Slots;
use crate::recipe::{OptimizerKind, OptimizerSettings};

/// Elements of a block of 8-bit states.
const BLOCK: u64 = 256;
/// Parameters below this keep F32 states.
pub(super) const SMALLEST_CODED: u64 = 4096;

/// Shorter sides up to which Muon updates all matrices by one launch on a GPU.
const LONGEST_SHORT_SIDE: usize = 128;
/// Elements of a matrix that Adafactor takes as one band on a GPU.
const BAND_ELEMENTS: usize = 1 << 22;

/// Bytes of the states of all `slots`.
pub(super) fn state_bytes(settings: &OptimizerSettings, slots: &[Slots]) -> u64 {
    let of_one = |slots: &Slots| -> u64 {
        let elements = slots.elements();
        match settings.kind {
            OptimizerKind::AdamW | OptimizerKind::PagedAdamW => 8 * elements,
            OptimizerKind::AdamW8bit | OptimizerKind::PagedAdamW8bit => coded_bytes(elements, 2),
            OptimizerKind::Lion => 4 * elements,
            OptimizerKind::Lion8bit => coded_bytes(elements, 1),
            OptimizerKind::Sgd if settings.momentum == 0.0 => 0,
            OptimizerKind::Sgd => 4 * elements,
            OptimizerKind::Adafactor => 4 * (slots.rows + slots.columns.unwrap_or(0)) as u64,
            OptimizerKind::Muon if slots.columns.is_some() => 4 * elements,
            OptimizerKind::Muon => 8 * elements,
        }
    };
    slots.iter().map(|slots| slots.count as u64 * of_one(slots)).sum()
}

fn coded_bytes(elements: u64, states: u64) -> u64 {
    if elements < SMALLEST_CODED {
        return 4 * states * elements;
    }
    elements.div_ceil(BLOCK) * (BLOCK + 4) * states
}

/// Whether the state lies in host memory whatever the device.
pub(super) fn is_paged(kind: OptimizerKind) -> bool {
    matches!(kind, OptimizerKind::PagedAdamW | OptimizerKind::PagedAdamW8bit)
}

/// Bytes that an update takes on the CPU and frees again.
pub(super) fn update_bytes(kind: OptimizerKind, slots: &[Slots]) -> u64 {
    match kind {
        OptimizerKind::Muon => largest_orthogonalisation(slots.iter()),
        _ => 0,
    }
}

/// Bytes that an update takes on an NVIDIA GPU and frees again.
pub(super) fn gpu_update_bytes(kind: OptimizerKind, slots: &[Slots]) -> u64 {
    match kind {
        OptimizerKind::Muon => {
            let (short, long): (Vec<&Slots>, Vec<&Slots>) =
                slots.iter().partition(|slots| short_side(slots) <= LONGEST_SHORT_SIDE);
            muon_room(&short).max(largest_orthogonalisation(long.into_iter()))
        }
        OptimizerKind::Adafactor => slots.iter().map(adafactor_room).sum(),
        _ => 0,
    }
}

/// The shorter side of a matrix; 0 of a vector.
fn short_side(slots: &Slots) -> usize {
    slots.columns.map_or(0, |columns| columns.min(slots.rows))
}

/// Muon's tensor ops on the largest matrix: it in two roundings, a product, the Gram matrix and its polynomial.
fn largest_orthogonalisation<'a>(slots: impl Iterator<Item = &'a Slots>) -> u64 {
    let matrix = |slots: &Slots| {
        let narrow = short_side(slots) as u64;
        slots
            .columns
            .map_or(0, |_| 4 * (7 * slots.elements() + 4 * narrow * narrow))
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
        let slots = |rows, columns, count| Slots { rows, columns, count };
        let bytes = |kind, slots: &[Slots]| gpu_update_bytes(kind, slots);
        let adapter = [slots(16, Some(896), 2), slots(4864, Some(16), 1), slots(896, None, 1)];
        // Sixteen rows, 896 columns as two strips of 512, 4864 as ten.
        let room = 2 * 16 * (2 * 1024 + 5120);
        assert_eq!(bytes(OptimizerKind::Muon, &adapter), room);
        let full = [slots(200, Some(300), 3), slots(16, Some(896), 1)];
        assert_eq!(bytes(OptimizerKind::Muon, &full), 4 * (7 * 200 * 300 + 4 * 200 * 200));
        assert_eq!(bytes(OptimizerKind::Adafactor, &adapter), 0);
        // Rows of 8192 elements in bands of 512, of which 1300 rows make three.
        assert_eq!(
            bytes(OptimizerKind::Adafactor, &[slots(1300, Some(8192), 2)]),
            8 * 2 * 3 * 8193
        );
        assert_eq!(bytes(OptimizerKind::AdamW, &full), 0);
    }
}
