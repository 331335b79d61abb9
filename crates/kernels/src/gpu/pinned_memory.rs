//! Pinned memory of the host that is kept from one step to the next: pinning takes milliseconds.

use std::cell::RefCell;

use candle_core::{DType, Device, Result, Tensor};

use super::transfer_stream::Pinned;

/// Sizes are rounded up to it, so that steps of slightly different length share memory.
const GRAIN: usize = 1 << 20;

thread_local! {
    // Design note: kept by the thread that trains, as the scratch on the device is.
    static FREE: RefCell<Vec<Pinned>> = const { RefCell::new(Vec::new()) };
}

/// Memory of the host that somebody uses; dropping it leaves it to the next.
#[derive(Debug)]
pub struct PinnedMemory(Option<Pinned>);

impl PinnedMemory {
    /// Room of at least `bytes` bytes, pinned for `device`. What lies in them is not defined.
    pub fn of(bytes: usize, device: &Device) -> Result<Self> {
        let taken = FREE.with_borrow_mut(|free| take(free, bytes));
        let pinned = match taken {
            Some(pinned) => pinned,
            None => {
                let size = bytes.max(1).next_multiple_of(GRAIN);
                Pinned::new(Tensor::zeros(size, DType::U8, &Device::Cpu)?, device)?
            }
        };
        Ok(Self(Some(pinned)))
    }

    /// View of the first `bytes` bytes.
    ///
    /// # Errors
    /// More than there are.
    pub fn first(&self, bytes: usize) -> Result<Tensor> {
        match &self.0 {
            Some(pinned) => pinned.tensor().narrow(0, 0, bytes),
            None => candle_core::bail!("host memory that was given back"),
        }
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        FREE.with_borrow_mut(|free| free.extend(self.0.take()));
    }
}

/// The smallest that will do. Where none does, the smallest of all goes, so that their number does not grow with the sizes
/// that are asked for.
fn take(free: &mut Vec<Pinned>, bytes: usize) -> Option<Pinned> {
    let size = |pinned: &Pinned| pinned.tensor().elem_count();
    let smallest = |least: usize| {
        let fitting = free.iter().enumerate().filter(|(_, pinned)| size(pinned) >= least);
        fitting.min_by_key(|(_, pinned)| size(pinned)).map(|(index, _)| index)
    };
    if let Some(index) = smallest(bytes) {
        return Some(free.swap_remove(index));
    }
    if let Some(index) = smallest(0) {
        free.swap_remove(index);
    }
    None
}

/// Releases all unused memory.
pub(super) fn forget() {
    FREE.take();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn room(bytes: usize) -> PinnedMemory {
        PinnedMemory::of(bytes, &Device::Cpu).unwrap()
    }

    fn sizes() -> Vec<usize> {
        let mut sizes = FREE.with_borrow(|free| free.iter().map(|one| one.tensor().elem_count()).collect::<Vec<_>>());
        sizes.sort_unstable();
        sizes
    }

    #[test]
    fn memory_is_used_again_and_never_more_than_was_in_use_at_once() {
        forget();
        drop((room(10), room(2 * GRAIN)));
        assert_eq!(sizes(), [GRAIN, 2 * GRAIN]);
        let small = room(20);
        assert_eq!(sizes(), [2 * GRAIN]);
        // Too large for what is left, which goes instead of piling up.
        let large = room(3 * GRAIN);
        assert_eq!(large.first(3 * GRAIN).unwrap().elem_count(), 3 * GRAIN);
        drop((small, large));
        assert_eq!(sizes(), [GRAIN, 3 * GRAIN]);
        forget();
        assert!(sizes().is_empty());
    }
}
