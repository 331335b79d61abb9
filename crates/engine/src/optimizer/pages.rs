//! States that lie in the host's memory and come to the device page by page.
//!
//! While a page is updated, the next one is on its way to the device and the last one on its way home: two pages are on the
//! device at a time. The copies go through the device's second queue, one behind the other, so that a page's memory is never
//! filled before the page that lay there has been sent home.

use std::ops::Range;

use candle_core::{Device, Result, Tensor};

use peft_tune_core::plan::PAGES_AT_ONCE;
use peft_tune_kernels::gpu::{Copied, Pinned, TransferStream, empty};

/// One buffer of states at home.
#[derive(Debug)]
pub(super) struct Home {
    pub pinned: Pinned,
    /// Elements of it that belong to one unit of a page (an element, or a block of them).
    pub per_unit: usize,
}

/// Part of a group that is on the device at once.
#[derive(Debug)]
pub(super) struct Page<T> {
    /// Units of the page among the states.
    pub units: Range<usize>,
    /// Data that the page's update needs.
    pub update: T,
}

/// Cuts `units` into ranges of at most `most`.
pub(super) fn cut(units: Range<usize>, most: usize) -> impl Iterator<Item = Range<usize>> {
    let end = units.end;
    units
        .step_by(most.max(1))
        .map(move |start| start..(start + most).min(end))
}

/// Calls `update` for each page with its part of every buffer, on `device`.
pub(super) fn for_each<T>(
    homes: &[&Home],
    pages: &[Page<T>],
    device: &Device,
    mut update: impl FnMut(&T, &[Tensor]) -> Result<()>,
) -> Result<()> {
    let Some(first) = pages.first() else { return Ok(()) };
    let traffic = Traffic::new(homes, pages, device)?;
    let mut coming = traffic.fetch(first, 0)?;
    // Dropping a copy waits for it, so that all are kept until the last page is under way.
    let mut sent = Vec::with_capacity(pages.len() * homes.len());
    for (index, page) in pages.iter().enumerate() {
        let next = match pages.get(index + 1) {
            Some(next) => traffic.fetch(next, index + 1)?,
            None => Vec::new(),
        };
        let parts: Vec<Tensor> = coming.into_iter().map(Copied::wait).collect::<Result<_>>()?;
        update(&page.update, &parts)?;
        for (home, part) in homes.iter().zip(&parts) {
            sent.push(traffic.queue.send(part, &home.part(page)?)?);
        }
        coming = next;
    }
    Ok(())
}

/// Bytes of the device that [`for_each`] takes, where a unit of all buffers has so many.
pub(super) fn room_bytes<T>(pages: &[Page<T>], unit_bytes: usize) -> u64 {
    let most = pages.iter().map(|page| page.units.len()).max().unwrap_or(0);
    (PAGES_AT_ONCE * most * unit_bytes) as u64
}

impl Home {
    fn part<T>(&self, page: &Page<T>) -> Result<Tensor> {
        let start = page.units.start * self.per_unit;
        self.pinned.tensor().narrow(0, start, page.units.len() * self.per_unit)
    }
}

struct Traffic<'a> {
    homes: &'a [&'a Home],
    queue: TransferStream,
    slots: [Vec<Tensor>; PAGES_AT_ONCE],
}

impl<'a> Traffic<'a> {
    fn new<T>(homes: &'a [&'a Home], pages: &[Page<T>], device: &Device) -> Result<Self> {
        let most = pages.iter().map(|page| page.units.len()).max().unwrap_or(0);
        let room = |home: &&Home| empty(most * home.per_unit, home.pinned.tensor().dtype(), device);
        let slot = || homes.iter().map(room).collect::<Result<Vec<_>>>();
        Ok(Self {
            homes,
            queue: TransferStream::of(device)?,
            slots: [slot()?, slot()?],
        })
    }

    /// Page number `index` of all buffers.
    fn fetch<T>(&self, page: &Page<T>, index: usize) -> Result<Vec<Copied>> {
        let ends = self.homes.iter().zip(&self.slots[index % PAGES_AT_ONCE]);
        ends.map(|(home, slot)| {
            let part = home.part(page)?;
            self.queue.fetch(&part, &slot.narrow(0, 0, part.elem_count())?)
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::DType;
    use peft_tune_kernels::gpu::emulated;

    /// Adds one to each element of `units` units, in pages of `most`; returns the elements.
    fn incremented(units: usize, most: usize) -> Vec<f32> {
        let values = Tensor::arange(0f32, (2 * units) as f32, &Device::Cpu).unwrap();
        let home = Home {
            pinned: Pinned::new(values, &Device::Cpu).unwrap(),
            per_unit: 2,
        };
        let page = |units| Page { units, update: () };
        let pages: Vec<_> = cut(0..units, most).map(page).collect();
        for_each(&[&home], &pages, &Device::Cpu, |(), parts| {
            let more = (&parts[0] + 1.0)?;
            parts[0].slice_set(&more, 0, 0)
        })
        .unwrap();
        home.pinned.tensor().to_vec1().unwrap()
    }

    #[test]
    fn every_page_is_updated_once_however_late_its_copies_are_done() {
        for (units, most) in [(0, 3), (1, 3), (3, 3), (10, 3), (12, 1)] {
            let expected: Vec<f32> = (0..2 * units).map(|value| value as f32 + 1.0).collect();
            assert_eq!(incremented(units, most), expected, "{units} by {most}");
            assert_eq!(
                emulated(|| incremented(units, most)),
                expected,
                "{units} by {most}, late"
            );
        }
    }

    #[test]
    fn two_pages_are_on_the_device_at_most() {
        let home = Home {
            pinned: Pinned::new(Tensor::zeros(64, DType::F32, &Device::Cpu).unwrap(), &Device::Cpu).unwrap(),
            per_unit: 1,
        };
        let pages: Vec<_> = cut(0..64, 8).map(|units| Page { units, update: () }).collect();
        let homes = [&home];
        let traffic = Traffic::new(&homes, &pages, &Device::Cpu).unwrap();
        let room: usize = traffic.slots.iter().flatten().map(Tensor::elem_count).sum();
        assert_eq!((pages.len(), room), (8, 16));
    }
}
