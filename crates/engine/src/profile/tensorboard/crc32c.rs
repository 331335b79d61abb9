//! The checksum of event files: CRC-32C (Castagnoli; RFC 3720, B.4).

use crc::{CRC_32_ISCSI, Crc};

static CRC_32C: Crc<u32> = Crc::<u32>::new(&CRC_32_ISCSI);

/// The checksum as event files store it, so that a checksum of data that holds checksums does not degenerate.
pub(super) fn masked(bytes: &[u8]) -> u32 {
    CRC_32C.checksum(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_examples_of_rfc_3720_match() {
        assert_eq!(CRC_32C.checksum(&[0; 32]), 0x8a91_36aa);
        let rising: Vec<u8> = (0..32).collect();
        assert_eq!(CRC_32C.checksum(&rising), 0x46dd_794e);
    }
}
