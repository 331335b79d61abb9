//! Beginnings of the rows of each group: those of the experts of a mixture.
//!
//! The CPU's forms read them from the host's memory, a GPU's from the device's. What made them puts them where it ran; the other side gets
//! a copy when it is first asked for one. A training of adapters on a GPU never asks: nothing waits for the device there.

use std::sync::OnceLock;

use candle_core::{Device, Result, Tensor};
use peft_tune_core::plan::products::GROUP_ROWS;

/// (G + 1,): the first row of each group, and behind the last one the number of rows.
#[derive(Clone, Debug)]
pub struct Offsets {
    groups: usize,
    rows: usize,
    on_host: OnceLock<Vec<usize>>,
    on_device: OnceLock<OnDevice>,
}

/// Tables that kernels read.
#[derive(Clone, Debug)]
pub(super) struct OnDevice {
    /// (G + 1,) U32
    pub offsets: Tensor,
    /// (tiles, 2) U32: group and first row of each tile of rows, and no group where there are fewer.
    pub map: Tensor,
}

impl Offsets {
    /// Offsets that the host has.
    pub fn new(offsets: Vec<usize>) -> Self {
        Self {
            groups: offsets.len().saturating_sub(1),
            rows: offsets.last().copied().unwrap_or(0),
            on_host: OnceLock::from(offsets),
            on_device: OnceLock::new(),
        }
    }

    /// Offsets of `rows` rows that a kernel has made.
    pub(super) fn of_device(groups: usize, rows: usize, on_device: OnDevice) -> Self {
        Self {
            groups,
            rows,
            on_host: OnceLock::new(),
            on_device: OnceLock::from(on_device),
        }
    }

    /// G
    pub fn groups(&self) -> usize {
        self.groups
    }

    /// Rows of all groups.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The offsets in the host's memory, if they are there.
    pub fn on_host(&self) -> Option<&[usize]> {
        self.on_host.get().map(Vec::as_slice)
    }

    /// The offsets in the host's memory. The first call for offsets that a GPU made waits for it.
    ///
    /// # Errors
    /// A device that has failed.
    pub fn host(&self) -> Result<&[usize]> {
        if let Some(offsets) = self.on_host.get() {
            return Ok(offsets);
        }
        let Some(on_device) = self.on_device.get() else {
            candle_core::bail!("offsets that are nowhere");
        };
        let offsets: Vec<u32> = on_device.offsets.to_vec1()?;
        Ok(self
            .on_host
            .get_or_init(|| offsets.into_iter().map(|row| row as usize).collect()))
    }

    /// The offsets in the memory of `device`.
    ///
    /// # Errors
    /// Offsets that do not rise, a device that has failed.
    pub(super) fn on_device(&self, device: &Device) -> Result<&OnDevice> {
        if let Some(on_device) = self.on_device.get() {
            return Ok(on_device);
        }
        let offsets = self.host()?;
        check(offsets, self.rows)?;
        let mut map = Vec::new();
        for (group, part) in offsets.windows(2).enumerate() {
            for row in (part[0]..part[1]).step_by(GROUP_ROWS) {
                map.extend([group as u32, row as u32]);
            }
        }
        let tiles = map.len() / 2;
        let on_device = OnDevice {
            offsets: Tensor::from_iter(offsets.iter().map(|row| *row as u32), device)?,
            map: Tensor::from_vec(map, (tiles, 2), device)?,
        };
        Ok(self.on_device.get_or_init(|| on_device))
    }
}

impl From<Vec<usize>> for Offsets {
    fn from(offsets: Vec<usize>) -> Self {
        Self::new(offsets)
    }
}

/// Fails unless the offsets divide `total` rows.
pub(super) fn check(offsets: &[usize], total: usize) -> Result<()> {
    if offsets.first() != Some(&0) || offsets.last() != Some(&total) || !offsets.is_sorted() {
        candle_core::bail!("the offsets {offsets:?} do not divide {total} rows");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use peft_tune_core::plan::products::most_tiles;

    #[test]
    fn tiles_cover_the_rows_of_each_group() {
        let offsets = Offsets::new(vec![0, 3, 3, 3 + 2 * GROUP_ROWS + 1]);
        let on_device = offsets.on_device(&Device::Cpu).unwrap();
        let map: Vec<Vec<u32>> = on_device.map.to_vec2().unwrap();
        let rows = |tile: usize| (3 + tile * GROUP_ROWS) as u32;
        assert_eq!(map, [[0, 0], [2, rows(0)], [2, rows(1)], [2, rows(2)]]);
        assert!(map.len() <= most_tiles(3, offsets.rows()));
        let back = Offsets::of_device(3, offsets.rows(), on_device.clone());
        assert_eq!(back.host().unwrap(), offsets.host().unwrap());
        assert!(Offsets::new(vec![0, 2, 1]).on_device(&Device::Cpu).is_err());
    }
}
