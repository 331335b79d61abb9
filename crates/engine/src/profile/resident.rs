//! Resident memory as the system counts it, shown beside the exact count.

/// Resident set size of this process in bytes, or `None` where the system does not say.
pub fn resident_bytes() -> Option<u64> {
    own_status_bytes("VmRSS:")
}

/// Highest resident set size since the process began, or since [`reset_peak_resident`], in bytes.
pub fn peak_resident_bytes() -> Option<u64> {
    own_status_bytes("VmHWM:")
}

/// Starts a new peak from what is resident now; silently does nothing where the system cannot.
pub fn reset_peak_resident() {
    // proc(5): writing 5 to clear_refs resets the peak resident set size.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

/// Bytes that a field such as `VmRSS:` of this process's status says.
pub fn own_status_bytes(field: &str) -> Option<u64> {
    field_bytes(&std::fs::read_to_string("/proc/self/status").ok()?, field)
}

/// Bytes that a field such as `VmRSS:` says in the text of a file of `/proc` that counts in kilobytes.
pub fn field_bytes(text: &str, field: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(field))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib * 1024)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn the_peak_is_at_least_what_is_resident() {
        assert!(resident_bytes().unwrap() > 0);
        assert!(peak_resident_bytes().unwrap() >= resident_bytes().unwrap() / 2);
    }
}
