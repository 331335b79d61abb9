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

/// Bytes at the front that are whole records.
pub(super) fn whole_records(bytes: &[u8]) -> usize {
    let mut end = 0;
    while let Some(length) = bytes[end..].first_chunk::<8>() {
        let content = usize::try_from(u64::from_le_bytes(*length)).unwrap_or(usize::MAX);
        match end.checked_add(16).and_then(|framing| framing.checked_add(content)) {
            Some(next) if next <= bytes.len() => end = next,
            _ => break,
        }
    }
    end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_torn_record_is_none() {
        let (first, second) = (framed(b"one"), framed(b"second"));
        let both = [first.as_slice(), &second].concat();
        assert_eq!(whole_records(&both), both.len());
        for torn in first.len()..both.len() {
            assert_eq!(whole_records(&both[..torn]), first.len(), "{torn}");
        }
        assert_eq!(whole_records(&[0xff; 40]), 0);
    }
}
