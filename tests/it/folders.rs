//! Folders for databases; no tests of its own.

use tempfile::TempDir;

/// A folder that is removed in the end: in memory where the system has a place for that, for each commit waits for the disk, and tests
/// make thousands of them.
pub(crate) fn for_database() -> TempDir {
    let usual = || tempfile::tempdir().unwrap();
    match in_memory() {
        Some(place) => tempfile::tempdir_in(place).unwrap_or_else(|_| usual()),
        None => usual(),
    }
}

/// Folder in which Linux has files in memory, if there is room, and programs may be started there.
#[cfg(target_os = "linux")]
fn in_memory() -> Option<&'static str> {
    /// Bytes that tests side by side may write, many times over: containers have 64 MiB there.
    const ROOM: u64 = 4 << 30;
    // SAFETY: a plain structure, for which zeros are a value.
    let mut system = unsafe { std::mem::zeroed::<libc::statvfs>() };
    // SAFETY: the name ends in a zero and outlives the call, as the structure does.
    let is_known = unsafe { libc::statvfs(c"/dev/shm".as_ptr(), &raw mut system) } == 0;
    let has_room = system.f_bavail.saturating_mul(system.f_frsize) >= ROOM;
    (is_known && has_room && system.f_flag & libc::ST_NOEXEC == 0).then_some("/dev/shm")
}

#[cfg(not(target_os = "linux"))]
fn in_memory() -> Option<&'static str> {
    None
}
