//! The caching allocator of PyTorch, as far as bytes go: what a step's tensors take of it, and what it takes of the device.
//!
//! Sizes are rounded to 512 bytes. Blocks of up to 1 MiB lie in segments of 2 MiB; larger ones in segments of 20 MiB, or of
//! their own size in steps of 2 MiB from 10 MiB on. The smallest free block that is large enough is taken and split where
//! enough is left; neighbours are joined when they are freed. Where the device is full, free segments are given back.
//!
//! Source: `c10/cuda/CUDACachingAllocator.cpp`, without options in `PYTORCH_CUDA_ALLOC_CONF`.

use std::collections::BTreeSet;

use serde::Serialize;

const MIB: u64 = 1 << 20;
const SMALL: u64 = MIB;
const SMALL_SEGMENT: u64 = 2 * MIB;
const LARGE_SEGMENT: u64 = 20 * MIB;
const OWN_SEGMENT: u64 = 10 * MIB;
/// Bytes beyond what any device has: sizes stop here, so that sums of them stay in range.
const MOST: u64 = 1 << 44;

/// Use of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    Weights,
    QuantisationConstants,
    Adapters,
    Gradients,
    OptimizerState,
    SavedActivations,
    Logits,
    Working,
}

/// All kinds, in the order of tables.
pub const KINDS: [Kind; 8] = [
    Kind::Weights,
    Kind::QuantisationConstants,
    Kind::Adapters,
    Kind::Gradients,
    Kind::OptimizerState,
    Kind::SavedActivations,
    Kind::Logits,
    Kind::Working,
];

impl Kind {
    /// Name of the kind in tables and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Weights => "weights",
            Self::QuantisationConstants => "quantisation_constants",
            Self::Adapters => "adapters",
            Self::Gradients => "gradients",
            Self::OptimizerState => "optimizer_state",
            Self::SavedActivations => "saved_activations",
            Self::Logits => "logits",
            Self::Working => "working",
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Block {
    address: u64,
    bytes: u64,
    /// Neighbours of the block in the segment.
    before: Option<usize>,
    after: Option<usize>,
    is_free: bool,
    is_small: bool,
    kind: Kind,
}

/// Peaks since the last [`Heap::restart_peaks`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Peaks {
    pub(super) tensors: u64,
    pub(super) reserved: u64,
    /// Bytes of each kind when `tensors` was reached, in the order of [`KINDS`].
    pub(super) kinds: [u64; KINDS.len()],
}

/// A live block, as [`Heap::take`] names it.
pub(super) type BlockId = usize;

/// The allocator.
#[derive(Debug, Default)]
pub(super) struct Heap {
    /// Blocks and, among them, places of blocks that are no more. A plan makes some hundred thousand: a map by address took
    /// half of its time.
    blocks: Vec<Block>,
    unused: Vec<BlockId>,
    /// Free blocks of small and of large segments, by size and address.
    free: [BTreeSet<(u64, u64, BlockId)>; 2],
    next: u64,
    capacity: Option<u64>,
    is_host: bool,
    tensors: u64,
    reserved: u64,
    kinds: [u64; KINDS.len()],
    peaks: Peaks,
    overflowed: bool,
}

impl Heap {
    /// An empty heap that has `capacity` bytes of the device, or no limit.
    pub(super) fn new(capacity: Option<u64>) -> Self {
        Self {
            capacity,
            ..Self::default()
        }
    }

    /// An empty heap of the host, where tensors take what they have and the allocator keeps nothing: only tensors count.
    pub(super) fn of_host(capacity: Option<u64>) -> Self {
        Self {
            is_host: true,
            ..Self::new(capacity)
        }
    }

    /// Takes a block of at least `bytes`.
    pub(super) fn take(&mut self, bytes: u64, kind: Kind) -> BlockId {
        let grain = if self.is_host { 16 } else { 512 };
        let bytes = bytes.clamp(1, MOST).next_multiple_of(grain);
        let is_small = bytes <= SMALL;
        let pool = usize::from(!is_small);
        let found = self.free[pool].range((bytes, 0, 0)..).next().copied();
        let id = match found {
            Some(entry) => {
                self.free[pool].remove(&entry);
                entry.2
            }
            None => self.segment(bytes, is_small),
        };
        self.split(id, bytes);
        let block = &mut self.blocks[id];
        block.is_free = false;
        block.kind = kind;
        let taken = block.bytes;
        self.tensors += taken;
        self.kinds[kind as usize] += taken;
        if self.tensors > self.peaks.tensors {
            self.peaks.tensors = self.tensors;
            self.peaks.kinds = self.kinds;
        }
        id
    }

    /// Gives a live block back to the cache.
    pub(super) fn give(&mut self, id: BlockId) {
        let block = self.blocks[id];
        self.tensors -= block.bytes;
        self.kinds[block.kind as usize] -= block.bytes;
        self.blocks[id].is_free = true;
        if let Some(after) = block.after.filter(|after| self.blocks[*after].is_free) {
            self.unlist(after);
            self.join(id, after);
        }
        let mut whole = id;
        if let Some(before) = block.before.filter(|before| self.blocks[*before].is_free) {
            self.unlist(before);
            self.join(before, id);
            whole = before;
        }
        self.list(whole);
    }

    /// Calls a live block something else, such as a gradient that was an activation.
    pub(super) fn rename(&mut self, id: BlockId, kind: Kind) {
        let block = &mut self.blocks[id];
        self.kinds[block.kind as usize] -= block.bytes;
        self.kinds[kind as usize] += block.bytes;
        block.kind = kind;
    }

    /// Peaks count from what is in use now.
    pub(super) fn restart_peaks(&mut self) {
        self.peaks = Peaks {
            tensors: self.tensors,
            reserved: self.reserved,
            kinds: self.kinds,
        };
    }

    /// Gives free segments back to the device, as `torch.cuda.empty_cache` does.
    pub(super) fn empty_cache(&mut self) {
        for pool in &mut self.free {
            let is_whole = |id: BlockId| self.blocks[id].before.is_none() && self.blocks[id].after.is_none();
            let whole: Vec<(u64, u64, BlockId)> = pool.iter().copied().filter(|entry| is_whole(entry.2)).collect();
            for entry in whole {
                pool.remove(&entry);
                self.unused.push(entry.2);
                self.reserved -= entry.0;
            }
        }
    }

    pub(super) fn peaks(&self) -> Peaks {
        self.peaks
    }

    /// Bytes of the device that the allocator has not taken; more than any device has where there is no limit.
    pub(super) fn free_bytes(&self) -> u64 {
        let left = self.capacity.map(|capacity| capacity.saturating_sub(self.reserved));
        left.unwrap_or(MOST)
    }

    /// Whether more was asked for than the device has.
    pub(super) fn overflowed(&self) -> bool {
        self.overflowed
    }

    fn segment(&mut self, bytes: u64, is_small: bool) -> BlockId {
        let size = match is_small {
            true => SMALL_SEGMENT,
            false if bytes < OWN_SEGMENT => LARGE_SEGMENT,
            false => bytes.next_multiple_of(2 * MIB),
        };
        if let Some(capacity) = self.capacity
            && self.reserved + size > capacity
        {
            self.empty_cache();
            self.overflowed |= self.reserved + size > capacity;
        }
        let address = self.next;
        self.next += size;
        self.reserved += size;
        self.peaks.reserved = self.peaks.reserved.max(self.reserved);
        self.place(Block {
            address,
            bytes: size,
            before: None,
            after: None,
            is_free: true,
            is_small,
            kind: Kind::Working,
        })
    }

    /// Leaves what a block has too much to a free one behind it, where that is worth it.
    fn split(&mut self, id: BlockId, bytes: u64) {
        let block = self.blocks[id];
        let left = block.bytes - bytes;
        let is_split = match block.is_small {
            true => left >= 512 || self.is_host && left > 0,
            false => left > SMALL || self.is_host && left > 0,
        };
        if !is_split {
            return;
        }
        let rest = self.place(Block {
            address: block.address + bytes,
            bytes: left,
            before: Some(id),
            is_free: true,
            ..block
        });
        if let Some(after) = block.after {
            self.blocks[after].before = Some(rest);
        }
        self.blocks[id].bytes = bytes;
        self.blocks[id].after = Some(rest);
        self.list(rest);
    }

    /// Adds a block to the one before it.
    fn join(&mut self, before: BlockId, id: BlockId) {
        let Block { bytes, after, .. } = self.blocks[id];
        self.blocks[before].bytes += bytes;
        self.blocks[before].after = after;
        if let Some(after) = after {
            self.blocks[after].before = Some(before);
        }
        self.unused.push(id);
    }

    fn place(&mut self, block: Block) -> BlockId {
        match self.unused.pop() {
            Some(id) => {
                self.blocks[id] = block;
                id
            }
            None => {
                self.blocks.push(block);
                self.blocks.len() - 1
            }
        }
    }

    fn list(&mut self, id: BlockId) {
        let block = self.blocks[id];
        self.free[usize::from(!block.is_small)].insert((block.bytes, block.address, id));
    }

    fn unlist(&mut self, id: BlockId) {
        let block = self.blocks[id];
        self.free[usize::from(!block.is_small)].remove(&(block.bytes, block.address, id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_rounded_and_segments_are_as_large_as_pytorchs() {
        let mut heap = Heap::new(None);
        heap.take(1, Kind::Working);
        assert_eq!((heap.tensors, heap.reserved), (512, 2 * MIB));
        heap.take(3 * MIB, Kind::Working);
        assert_eq!(heap.reserved, 22 * MIB);
        heap.take(11 * MIB + 1, Kind::Working);
        assert_eq!(heap.reserved, 22 * MIB, "what is left of 20 MiB serves");
        heap.take(11 * MIB + 1, Kind::Working);
        assert_eq!(heap.reserved, 34 * MIB);
    }

    #[test]
    fn freed_neighbours_are_joined_and_a_full_device_gets_free_segments_back() {
        let mut heap = Heap::new(Some(64 * MIB));
        let first = heap.take(20 * MIB, Kind::Working);
        let second = heap.take(20 * MIB, Kind::Logits);
        heap.give(first);
        heap.give(second);
        heap.take(60 * MIB, Kind::Working);
        assert_eq!(heap.reserved, 60 * MIB);
        assert!(!heap.overflowed());
        assert_eq!(heap.peaks().tensors, 60 * MIB);
        heap.take(10 * MIB, Kind::Working);
        assert!(heap.overflowed());
    }

    #[test]
    fn on_the_host_tensors_take_what_they_have() {
        let mut heap = Heap::of_host(None);
        heap.take(16, Kind::Working);
        heap.take(3 * MIB + 1, Kind::Working);
        assert_eq!(heap.tensors, 16 + 3 * MIB + 16);
    }

    #[test]
    fn kinds_at_the_peak_add_up_to_it() {
        let mut heap = Heap::new(None);
        let a = heap.take(5 * MIB, Kind::Weights);
        let b = heap.take(7 * MIB, Kind::Logits);
        heap.give(b);
        heap.take(MIB, Kind::Gradients);
        let peaks = heap.peaks();
        assert_eq!(peaks.kinds.iter().sum::<u64>(), peaks.tensors);
        heap.rename(a, Kind::Adapters);
        heap.give(a);
        assert_eq!(heap.kinds[Kind::Adapters as usize], 0);
        assert_eq!(heap.tensors, MIB);
    }
}
