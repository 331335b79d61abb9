//! A limit on the memory of the whole process, set by the operating system: what the allocator's count does not see, such
//! as mapped files and foreign libraries, ends the trial's process instead of the machine's next program.
//!
//! A control group (version 2) is used where one can be made, as it counts pages that are really used and the kernel says
//! whom it ended; else `RLIMIT_AS`, which counts address space and so needs a wide margin. Neither judges a setting: that
//! is the allocator's exact count, whose limit lies below.

use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::profile::resident_bytes;

/// What a process may take beside a trial's memory under a control group: code, tokenised data, thread stacks.
const MARGIN_BYTES: u64 = 512 << 20;
/// The same under `RLIMIT_AS`, where memory counts that was only reserved: 64 MiB or more a thread.
const ADDRESS_MARGIN_BYTES: u64 = 2 << 30;

/// What limits a process's memory beside the allocator's count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MemoryLimiter {
    /// A control group of its own (`memory.max`).
    Cgroup,
    /// `RLIMIT_AS`.
    AddressSpace,
    /// Nothing.
    #[default]
    None,
}

/// The limit of this process; it is lifted again when the value is dropped.
#[derive(Debug)]
pub(super) struct MemoryLimit {
    cgroup: Option<PathBuf>,
}

impl MemoryLimit {
    /// Moves this process into a control group of its own, where that can be done.
    pub(super) fn of_this_process() -> Self {
        Self { cgroup: own_cgroup() }
    }

    /// Lets the process take `bytes` more than it has now, with a margin; `None` lifts the limit.
    pub(super) fn set(&self, bytes: Option<u64>) {
        match &self.cgroup {
            Some(folder) => {
                let now = resident_bytes().unwrap_or(0);
                let most = bytes.map(|bytes| now.saturating_add(bytes).saturating_add(MARGIN_BYTES).to_string());
                let text = most.unwrap_or_else(|| "max".to_owned());
                if let Err(error) = std::fs::write(folder.join("memory.max"), text) {
                    tracing::warn!(%error, "cannot set the limit of the control group");
                }
            }
            None => limit_address_space(bytes),
        }
    }
}

/// What `MemoryLimit` would use in this process.
pub fn memory_limiter() -> MemoryLimiter {
    match (cgroup_parent(), cfg!(target_os = "linux")) {
        (Some(_), _) => MemoryLimiter::Cgroup,
        (None, true) => MemoryLimiter::AddressSpace,
        (None, false) => MemoryLimiter::None,
    }
}

/// The name of the control group that a worker with this process id makes.
fn cgroup_name(process: u32) -> String {
    format!("peft-tune-worker-{process}")
}

/// Removes the control group of a worker that is gone, and tells whether the kernel ended it for want of memory.
pub(super) fn bury(process: u32) -> bool {
    let Some(folder) = cgroup_parent().map(|parent| parent.join(cgroup_name(process))) else {
        return false;
    };
    let killed = oom_kills_in(&std::fs::read_to_string(folder.join("memory.events")).unwrap_or_default()) > 0;
    let _ = std::fs::remove_dir(folder);
    killed
}

/// Processes that the kernel of this machine has ended for want of memory since it started; `None` where it does not tell.
pub(super) fn oom_kills() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/vmstat").ok()?;
    Some(oom_kills_in(&text))
}

fn oom_kills_in(text: &str) -> u64 {
    let mut lines = text.lines();
    let value = lines.find_map(|line| line.strip_prefix("oom_kill "));
    value.and_then(|value| value.trim().parse().ok()).unwrap_or(0)
}

/// Makes a control group and moves this process into it.
fn own_cgroup() -> Option<PathBuf> {
    let process = std::process::id();
    let folder = cgroup_parent()?.join(cgroup_name(process));
    std::fs::create_dir(&folder).ok()?;
    let moved = std::fs::write(folder.join("memory.max"), "max")
        .and_then(|()| std::fs::write(folder.join("cgroup.procs"), process.to_string()));
    if moved.is_err() {
        let _ = std::fs::remove_dir(&folder);
        return None;
    }
    Some(folder)
}

/// The control group below which this process may make one that limits memory: its own, or the one above.
fn cgroup_parent() -> Option<PathBuf> {
    let own = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = own.lines().find_map(|line| line.strip_prefix("0::/"))?;
    // A worker that has moved looks from its own group's parent, as one that has not.
    let own = Path::new("/sys/fs/cgroup").join(path);
    let levels = [Some(own.as_path()), own.parent()];
    let found = levels.into_iter().flatten().find(|level| {
        let passes_on = std::fs::read_to_string(level.join("cgroup.subtree_control"));
        passes_on.is_ok_and(|controllers| controllers.split_whitespace().any(|one| one == "memory"))
            && is_writable(level)
    });
    found.map(Path::to_owned)
}

#[cfg(unix)]
fn is_writable(folder: &Path) -> bool {
    use std::os::unix::ffi::OsStrExt;
    let Ok(path) = std::ffi::CString::new(folder.as_os_str().as_bytes()) else {
        return false;
    };
    // SAFETY: the path is a string that ends in zero and outlives the call.
    unsafe { libc::access(path.as_ptr(), libc::W_OK) == 0 }
}

#[cfg(not(unix))]
fn is_writable(_: &Path) -> bool {
    false
}

#[cfg(target_os = "linux")]
fn limit_address_space(bytes: Option<u64>) {
    let mut limit = libc::rlimit {
        rlim_cur: libc::RLIM_INFINITY,
        rlim_max: libc::RLIM_INFINITY,
    };
    // SAFETY: the value outlives the call.
    if unsafe { libc::getrlimit(libc::RLIMIT_AS, &raw mut limit) } != 0 {
        return;
    }
    let wanted = bytes.zip(address_space_bytes());
    limit.rlim_cur = match wanted {
        None => limit.rlim_max,
        Some((bytes, now)) => {
            let most = now.saturating_add(bytes).saturating_add(ADDRESS_MARGIN_BYTES);
            most.min(limit.rlim_max)
        }
    };
    // SAFETY: as above; only the soft limit changes, which may be put back.
    if unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) } != 0 {
        tracing::warn!("cannot limit the address space");
    }
}

#[cfg(not(target_os = "linux"))]
fn limit_address_space(_: Option<u64>) {}

/// Address space of this process, in bytes.
#[cfg(target_os = "linux")]
fn address_space_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmSize:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_s_count_of_killed_processes_is_read() {
        assert_eq!(oom_kills_in("low 0\nhigh 3\nmax 7\noom 2\noom_kill 2\n"), 2);
        assert_eq!(oom_kills_in("nr_free_pages 1\noom_kill 5\n"), 5);
        assert_eq!(oom_kills_in(""), 0);
    }
}
