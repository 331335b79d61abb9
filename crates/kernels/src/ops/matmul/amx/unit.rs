//! Whether the processor has the unit and the system lets this process use it, and its configuration on a thread.

use std::arch::asm;
use std::arch::x86_64::__cpuid_count;
use std::marker::PhantomData;
use std::sync::OnceLock;

/// Tile registers.
const TILES: usize = 8;
/// Rows of a tile.
pub(crate) const TILE_ROWS: usize = 16;
/// Bytes of a row of a tile: 16 results, 16 pairs of BF16, or 16 fours of bytes.
pub(crate) const ROW_BYTES: usize = 64;

/// Whether products run on AMX here: asked once, on Linux, where a process must ask for the registers.
pub(crate) fn is_available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| {
        is_x86_feature_detected!("avx512bf16")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vbmi")
            && has_unit()
            && is_permitted()
    })
}

/// Bits 22 (AMX-BF16), 24 (AMX-TILE) and 25 (AMX-INT8) of CPUID's leaf 7.
fn has_unit() -> bool {
    const BITS: u32 = 1 << 22 | 1 << 24 | 1 << 25;
    __cpuid_count(0, 0).eax >= 7 && __cpuid_count(7, 0).edx & BITS == BITS
}

/// Asks the system for the tile registers, which are 8 KiB more for it to save.
#[cfg(target_os = "linux")]
fn is_permitted() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_long = 18;
    // SAFETY: the call takes two numbers and changes nothing but the permission.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
}

#[cfg(not(target_os = "linux"))]
fn is_permitted() -> bool {
    false
}

/// Configuration that `ldtilecfg` reads.
#[repr(C, align(64))]
struct Configuration {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// Use of the eight tiles of this thread, which have 16 rows of 64 bytes as long as it lives.
#[derive(Debug)]
pub(crate) struct Tiles {
    /// The registers are the thread's.
    here: PhantomData<*const ()>,
}

impl Tiles {
    /// Configures the tiles of this thread.
    ///
    /// # Safety
    /// [`is_available`], and no other `Tiles` lives on this thread.
    pub(crate) unsafe fn configure() -> Self {
        let mut configuration = Configuration {
            palette: 1,
            start_row: 0,
            reserved: [0; 14],
            row_bytes: [0; 16],
            rows: [0; 16],
        };
        configuration.row_bytes[..TILES].fill(ROW_BYTES as u16);
        configuration.rows[..TILES].fill(TILE_ROWS as u8);
        // SAFETY: the caller's promise; the configuration is valid for palette 1.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const configuration, options(nostack, readonly)) };
        Self { here: PhantomData }
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        // SAFETY: whoever configured the tiles has them.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}
