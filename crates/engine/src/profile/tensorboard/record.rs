//! The framing of event files: each record stands between its length and its checksum.
//!
//! | bytes | meaning |
//! |---|---|
//! | 8 | length n, little-endian |
//! | 4 | masked CRC-32C of the length |
//! | n | content |
//! | 4 | masked CRC-32C of the content |

use super::crc32c::masked;

/// `content` as a record.
pub(super) fn framed(content: &[u8]) -> Vec<u8> {
    let length = (content.len() as u64).to_le_bytes();
    let mut record = Vec::with_capacity(content.len() + 16);
    record.extend(length);
    record.extend(masked(&length).to_le_bytes());
    record.extend(content);
    record.extend(masked(content).to_le_bytes());
    record
}
