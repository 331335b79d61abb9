//! Sizes that decide what an optimizer's update takes besides values, gradients and states.

/// Shorter sides up to which Muon updates all matrices by one launch on a GPU.
pub const LONGEST_SHORT_SIDE: usize = 128;

/// Elements of a matrix that Adafactor takes as one band on a GPU: matrices of adapters are smaller.
pub const BAND_ELEMENTS: usize = 1 << 22;

/// Elements of a page of one F32 state in the host's memory.
pub const PAGE_ELEMENTS: usize = 4 << 20;

/// Elements of a block of 8-bit states, which has one factor.
pub const CODED_ELEMENTS: usize = 256;

/// Blocks of a page of 8-bit states in the host's memory.
pub const PAGE_BLOCKS: usize = 1 << 15;

/// Pages that a GPU has room for: one is updated while the next comes.
pub const PAGES_AT_ONCE: usize = 2;
