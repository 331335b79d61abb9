//! A limit on the memory of the whole process, set by the operating system: what the allocator's count does not see, such
//! as mapped files and foreign libraries, ends the trial's process instead of the machine's next program.
//!
//! A control group is used where one can be made, as it counts pages that are really used and the kernel says whom it ended;
//! else `RLIMIT_AS`, which counts address space and so needs a wide margin. Neither judges a setting: that is the
//! allocator's exact count, whose limit lies below.

use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use peft_tune_engine::profile::resident_bytes;

/// Bytes that a process may take beside a trial's memory under a control group: code, tokenised data, thread stacks.
const MARGIN_BYTES: u64 = 512 << 20;
/// Bytes that a process may take beside a trial's memory under `RLIMIT_AS`, where memory counts that was only reserved:
/// 64 MiB or more a thread.
const ADDRESS_MARGIN_BYTES: u64 = 2 << 30;

/// Limiter of a process's memory beside the allocator's count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MemoryLimiter {
    /// A control group of its own.
    Cgroup,
    /// `RLIMIT_AS`.
    AddressSpace,
    /// No limiter.
    #[default]
    None,
}

/// The limit of this process.
#[derive(Debug)]
pub(super) struct MemoryLimit {
    cgroup: Option<Cgroup>,
}

/// A control group: its folder, and the files of the version that the machine has.
#[derive(Clone, Debug)]
struct Cgroup {
    folder: PathBuf,
    version: &'static Version,
}

/// Names that a version of control groups has for what is needed here.
#[derive(Debug)]
struct Version {
    /// Folder at which the tree with the memory controller is mounted.
    root: &'static str,
    limit: &'static str,
    no_limit: &'static str,
    /// File with a line `oom_kill N`.
    events: &'static str,
    /// Whether a group can limit memory only where the one above passes the controller on, which one with processes of its own
    /// cannot.
    passed_on: bool,
}

const VERSION_1: Version = Version {
    root: "/sys/fs/cgroup/memory",
    limit: "memory.limit_in_bytes",
    no_limit: "-1",
    events: "memory.oom_control",
    passed_on: false,
};

const VERSION_2: Version = Version {
    root: "/sys/fs/cgroup",
    limit: "memory.max",
    no_limit: "max",
    events: "memory.events",
    passed_on: true,
};

impl MemoryLimit {
    /// Moves this process into a control group of its own, where that can be done.
    pub(super) fn of_this_process() -> Self {
        Self { cgroup: own_cgroup() }
    }

    /// Lets the process take `bytes` more than it has now, with a margin; `None` lifts the limit.
    pub(super) fn set(&self, bytes: Option<u64>) {
        match &self.cgroup {
            Some(Cgroup { folder, version }) => {
                let now = resident_bytes().unwrap_or(0);
                let most = bytes.map(|bytes| now.saturating_add(bytes).saturating_add(MARGIN_BYTES).to_string());
                let text = most.unwrap_or_else(|| version.no_limit.to_owned());
                if let Err(error) = std::fs::write(folder.join(version.limit), text) {
                    tracing::warn!(%error, "cannot set the limit of the control group");
                }
            }
            None => limit_address_space(bytes),
        }
    }
}

/// The limiter that `MemoryLimit` would use in this process.
pub fn memory_limiter() -> MemoryLimiter {
    match (cgroup_parent(), cfg!(target_os = "linux")) {
        (Some(_), _) => MemoryLimiter::Cgroup,
        (None, true) => MemoryLimiter::AddressSpace,
        (None, false) => MemoryLimiter::None,
    }
}

/// Beginning of the names of workers' control groups; their process id follows.
const PREFIX: &str = "peft-tune-worker-";

impl Cgroup {
    /// The group of a worker with this process id, below this one.
    fn of_worker(&self, process: u32) -> Self {
        Self {
            folder: self.folder.join(format!("{PREFIX}{process}")),
            version: self.version,
        }
    }

    /// Processes of the group that the kernel has ended for lack of memory; `None` where it does not say.
    fn oom_kills(&self) -> Option<u64> {
        oom_kills_in(&std::fs::read_to_string(self.folder.join(self.version.events)).ok()?)
    }

    /// Removes groups of workers that are gone, whose search was killed with them.
    fn sweep(&self) {
        let entries = std::fs::read_dir(&self.folder).into_iter().flatten().flatten();
        for entry in entries {
            let name = entry.file_name();
            let process = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
            if process.is_some_and(|process| !Path::new("/proc").join(process).exists()) {
                let _ = std::fs::remove_dir(entry.path());
            }
        }
    }
}

/// Removes the control group of a worker that is gone, and tells whether the kernel ended it for lack of memory; `None`
/// where it had no group of its own.
pub(super) fn remove_group_of(process: u32) -> Option<bool> {
    let group = cgroup_parent()?.of_worker(process);
    let killed = group.oom_kills().map(|kills| kills > 0);
    let _ = std::fs::remove_dir(group.folder);
    killed
}

/// Processes that the kernel has ended for lack of memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OomKills {
    pub count: u64,
    pub scope: OomScope,
}

/// Processes among which the kernel's kills are counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum OomScope {
    /// Processes of this process's control group.
    #[default]
    Group,
    /// All of the machine, also those of others.
    Machine,
}

/// Processes that the kernel has ended for lack of memory: in this process's control group, else on the whole machine.
/// `None` where neither is told.
pub(crate) fn oom_kills() -> Option<OomKills> {
    let in_group = || {
        let own = std::fs::read_to_string("/proc/self/cgroup").ok()?;
        let (version, path) = memory_group(&own)?;
        let folder = Path::new(version.root).join(path.trim_start_matches('/'));
        Cgroup { folder, version }.oom_kills()
    };
    let on_machine = || oom_kills_in(&std::fs::read_to_string("/proc/vmstat").ok()?);
    let of = |scope: OomScope| move |count: u64| OomKills { count, scope };
    let in_group = in_group().map(of(OomScope::Group));
    in_group.or_else(|| on_machine().map(of(OomScope::Machine)))
}

fn oom_kills_in(text: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix("oom_kill "))?;
    value.trim().parse().ok()
}

/// Makes a control group and moves this process into it.
fn own_cgroup() -> Option<Cgroup> {
    let process = std::process::id();
    let parent = cgroup_parent()?;
    parent.sweep();
    let group = parent.of_worker(process);
    std::fs::create_dir(&group.folder).ok()?;
    let moved = std::fs::write(group.folder.join(group.version.limit), group.version.no_limit)
        .and_then(|()| std::fs::write(group.folder.join("cgroup.procs"), process.to_string()));
    if moved.is_err() {
        let _ = std::fs::remove_dir(&group.folder);
        return None;
    }
    Some(group)
}

/// The control group below which this process may make one that limits memory.
fn cgroup_parent() -> Option<Cgroup> {
    let own = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let (version, path) = memory_group(&own)?;
    let own = Path::new(version.root).join(path.trim_start_matches('/'));
    // A worker that has moved looks from its own group's parent, as one that has not.
    let moved = own
        .file_name()
        .and_then(|name| name.to_str())
        .is_some_and(|name| name.starts_with(PREFIX));
    let level = if moved { own.parent()? } else { own.as_path() };
    let levels = [Some(level), level.parent().filter(|_| version.passed_on)];
    let found = levels
        .into_iter()
        .flatten()
        .find(|level| passes_memory_on(level, version) && is_writable(level));
    found.map(|folder| Cgroup {
        folder: folder.to_owned(),
        version,
    })
}

/// The version that has the memory controller, and this process's group in it, from `/proc/self/cgroup`. On a machine with both
/// versions the first one has it.
fn memory_group(text: &str) -> Option<(&'static Version, &str)> {
    let first = text.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':');
        let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        controllers
            .split(',')
            .any(|one| one == "memory")
            .then_some((&VERSION_1, path))
    });
    let second = || {
        text.lines()
            .find_map(|line| Some((&VERSION_2, line.strip_prefix("0::")?)))
    };
    first.or_else(second)
}

/// Whether groups below this one can limit memory.
fn passes_memory_on(level: &Path, version: &'static Version) -> bool {
    if !version.passed_on {
        return level.join(version.limit).exists();
    }
    let passed_on = std::fs::read_to_string(level.join("cgroup.subtree_control"));
    passed_on.is_ok_and(|controllers| controllers.split_whitespace().any(|one| one == "memory"))
}

fn is_writable(folder: &Path) -> bool {
    use std::os::unix::ffi::OsStrExt;
    let Ok(path) = std::ffi::CString::new(folder.as_os_str().as_bytes()) else {
        return false;
    };
    // SAFETY: the path is a string that ends in zero and outlives the call.
    unsafe { libc::access(path.as_ptr(), libc::W_OK) == 0 }
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
    let wanted = bytes.zip(peft_tune_engine::profile::own_status_bytes("VmSize:"));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_s_count_of_killed_processes_is_read() {
        assert_eq!(oom_kills_in("low 0\nhigh 3\nmax 7\noom 2\noom_kill 2\n"), Some(2));
        assert_eq!(oom_kills_in("nr_free_pages 1\noom_kill 5\n"), Some(5));
        assert_eq!(oom_kills_in("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"), Some(3));
        assert_eq!(oom_kills_in(""), None);
    }

    #[test]
    fn the_group_that_counts_memory_is_found_in_either_version() {
        let group = |text| memory_group(text).map(|(version, path)| (version.limit, path));
        assert_eq!(group("0::/user.slice/a\n"), Some(("memory.max", "/user.slice/a")));
        let both = "5:devices:/\n4:cpu,memory:/jobs/7\n0::/\n";
        assert_eq!(group(both), Some(("memory.limit_in_bytes", "/jobs/7")));
        assert_eq!(group("3:cpuset:/\n"), None);
    }
}
