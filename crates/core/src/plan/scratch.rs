//! Scratch that the CPU's threads keep from one op to the next.
//!
//! Each buffer grows to what is asked of it and no more, so that in the end it is as large as the largest op needs.

/// A buffer of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Buffer {
    NrPanels,
    MrPanels,
    Sums,
    /// Dequantized codes, in F32 or as pairs.
    QuantizedSingle,
    QuantizedPair,
    /// Panels of attention's own products.
    SmallNrPanels,
    SmallMrPanels,
    /// Keys and values.
    ForwardKeys,
    ForwardBlocks,
    BackwardKeys,
    BackwardBlocks,
    /// NR micro-panels of a task of AMX.
    AmxRight,
    /// NR micro-panels of a task of bytes.
    ByteNrPanels,
    /// Left operands in bytes of a group's rows, which one thread multiplies.
    GroupByteCodes,
    /// Left operand and sums of AMX, which the calling thread keeps for all.
    AmxLeft,
    AmxSums,
    /// Left operands in bytes, which the calling thread keeps for all.
    ByteCodes,
    /// Sums of the tasks of an adapter's gradient.
    ThinSums,
    /// A quantized weight, dequantized as a whole to 16 bits or to F32: on a GPU.
    Dequantized,
    /// Quantized weight, dequantized to F32, or the scales of products of bytes.
    DequantizedF32,
    /// Codes of both operands of a product of bytes, and its sums: on a GPU.
    DeviceCodes,
    DeviceSums,
}

const BUFFERS: usize = Buffer::DeviceSums as usize + 1;
/// Buffers from here on are there once and not for each thread.
const FIRST_SHARED: usize = Buffer::AmxLeft as usize;

/// Bytes that each buffer of a thread has grown to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadScratch([u64; BUFFERS]);

impl ThreadScratch {
    /// Makes room for so many bytes.
    pub fn ask(&mut self, buffer: Buffer, bytes: usize) {
        let buffer = &mut self.0[buffer as usize];
        *buffer = (*buffer).max(bytes as u64);
    }

    /// Asks for room for a whole dequantized weight, in elements of `width` bytes.
    pub fn dequantize(&mut self, elements: usize, width: u64) {
        let buffer = if width == 4 {
            Buffer::DequantizedF32
        } else {
            Buffer::Dequantized
        };
        self.ask(buffer, elements * width as usize);
    }

    /// Asks for what another piece of the step asks for.
    pub fn take(&mut self, other: &Self) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine = (*mine).max(theirs);
        }
    }

    /// Bytes of `threads` threads.
    pub fn bytes(&self, threads: u64) -> u64 {
        let (each, shared) = self.0.split_at(FIRST_SHARED);
        threads * each.iter().sum::<u64>() + shared.iter().sum::<u64>()
    }
}
