//! The file of a run: a log as LevelDB has it, in blocks of 32 KiB, with a head of its own.
//!
//! | bytes | meaning |
//! |---|---|
//! | 4, 2, 1 | `:W&B`, 0xbee1, version 0; once, at the file's begin |
//! | 4 | CRC-32 of the kind and the content |
//! | 2 | length of the content |
//! | 1 | kind: 1 whole, 2 first part, 3 middle, 4 last |
//!
//! All numbers are little-endian. Less than 7 bytes at a block's end are zeros.

use crc::{CRC_32_ISO_HDLC, Crc};

static CRC_32: Crc<u32> = Crc::<u32>::new(&CRC_32_ISO_HDLC);

const HEAD: [u8; 7] = [b':', b'W', b'&', b'B', 0xe1, 0xbe, 0];
const BLOCK: usize = 32 * 1024;
const FRAME: usize = 7;

const WHOLE: u8 = 1;
const FIRST: u8 = 2;
const MIDDLE: u8 = 3;
const LAST: u8 = 4;

/// A log of records.
#[derive(Clone, Debug)]
pub(super) struct RunLog {
    bytes: Vec<u8>,
}

impl RunLog {
    /// A log without records.
    pub(super) fn new() -> Self {
        Self { bytes: HEAD.to_vec() }
    }

    /// Adds a record.
    pub(super) fn add(&mut self, mut content: &[u8]) {
        let mut is_first = true;
        loop {
            let left = BLOCK - self.bytes.len() % BLOCK;
            if left < FRAME {
                self.bytes.extend(std::iter::repeat_n(0, left));
                continue;
            }
            let (part, rest) = content.split_at(content.len().min(left - FRAME));
            let kind = match (is_first, rest.is_empty()) {
                (true, true) => WHOLE,
                (true, false) => FIRST,
                (false, false) => MIDDLE,
                (false, true) => LAST,
            };
            self.frame(kind, part);
            (content, is_first) = (rest, false);
            if content.is_empty() {
                return;
            }
        }
    }

    /// The file so far.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn frame(&mut self, kind: u8, part: &[u8]) {
        let mut digest = CRC_32.digest();
        digest.update(&[kind]);
        digest.update(part);
        self.bytes.extend(digest.finalize().to_le_bytes());
        // A part is shorter than a block.
        self.bytes.extend((part.len() as u16).to_le_bytes());
        self.bytes.push(kind);
        self.bytes.extend(part);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_records_are_cut_at_blocks_and_short_ends_are_filled() {
        // Ends of the first record around that of the block.
        for length in BLOCK - 7 - 7 - 8..BLOCK {
            let mut log = RunLog::new();
            let records = [vec![1; length], vec![2; 3], vec![3; 3 * BLOCK]];
            records.iter().for_each(|record| log.add(record));
            let (mut at, mut read, mut found) = (HEAD.len(), Vec::<u8>::new(), Vec::<Vec<u8>>::new());
            while at < log.bytes.len() {
                if BLOCK - at % BLOCK < FRAME {
                    at += BLOCK - at % BLOCK;
                    continue;
                }
                let part = usize::from(u16::from_le_bytes([log.bytes[at + 4], log.bytes[at + 5]]));
                assert!(at % BLOCK + FRAME + part <= BLOCK);
                read.extend(&log.bytes[at + FRAME..at + FRAME + part]);
                if [WHOLE, LAST].contains(&log.bytes[at + 6]) {
                    found.push(std::mem::take(&mut read));
                }
                at += FRAME + part;
            }
            assert!(found == records, "{length}");
        }
    }

    #[test]
    fn a_frame_has_the_bytes_that_wandb_writes() {
        // The files record that wandb 0.31.0 wrote as the third of a run.
        let content = b"\x08\x032\x16\n\x14\n\x10requirements.txt\x18\x01";
        let mut log = RunLog::new();
        log.add(content);
        assert_eq!(log.bytes[7..14], [0x40, 0x70, 0x8b, 0x99, 0x1a, 0, 1]);
    }
}
