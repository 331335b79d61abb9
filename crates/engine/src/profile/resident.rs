//! Resident memory as the system counts it, shown beside the exact count.

/// Resident set size of this process in bytes, or `None` where the system does not say.
pub fn resident_bytes() -> Option<u64> {
    status_kib("VmRSS:").map(|kib| kib * 1024)
}

/// Highest resident set size since the process began, or since [`reset_peak_resident`], in bytes.
pub fn peak_resident_bytes() -> Option<u64> {
    status_kib("VmHWM:").map(|kib| kib * 1024)
}

/// Starts a new peak from what is resident now; silently does nothing where the system cannot.
pub fn reset_peak_resident() {
    // proc(5): writing 5 to clear_refs resets the peak resident set size.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

fn status_kib(key: &str) -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with(key))?;
    line.split_whitespace().nth(1)?.parse().ok()
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
