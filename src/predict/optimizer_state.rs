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

/// Bytes that an update takes and frees again.
pub(super) fn update_bytes(kind: OptimizerKind, slots: &[Slots]) -> u64 {
    if kind != OptimizerKind::Muon {
        return 0;
    }
    // Of the orthogonalisation: the matrix in two roundings, a product, the Gram matrix and its polynomial.
    let matrix = |slots: &Slots| {
        slots.columns.map_or(0, |columns| {
            let narrow = (slots.rows.min(columns) * slots.rows.min(columns)) as u64;
            4 * (7 * slots.elements() + 4 * narrow)
        })
    };
    slots.iter().map(matrix).max().unwrap_or(0)
}
