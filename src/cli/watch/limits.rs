//! Limits that the command runs under: its control group's, and the processors that it may use.

use std::path::{Path, PathBuf};

use peft_tune_engine::profile::disturbance::pressure_s;

/// Counters of a control group, and of the pressure on the machine, all since some moment in the past.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Pressed {
    /// Time in which the group was kept from its processors.
    pub held_back_s: Option<f64>,
    /// Time in which something waited for a disk, on the whole machine.
    pub disk_s: Option<f64>,
    /// Bytes that this machine received by the network.
    pub received_bytes: Option<u64>,
}

/// Reads them.
#[derive(Debug)]
pub(super) struct LimitReader {
    root: PathBuf,
    /// Folder of the control group that counts processor time.
    group: Option<PathBuf>,
}

impl LimitReader {
    /// The readers of this process's group, which is the command's.
    pub(super) fn new() -> Self {
        Self::at(Path::new("/"))
    }

    fn at(root: &Path) -> Self {
        let own = std::fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
        let mut folders = group_folders(&own).into_iter().map(|folder| root.join(folder));
        Self {
            group: folders.find(|folder| folder.join("cpu.stat").is_file()),
            root: root.to_owned(),
        }
    }

    pub(super) fn read(&self) -> Pressed {
        Pressed {
            held_back_s: self.held_back_s(),
            disk_s: pressure_s(&self.root, "io"),
            received_bytes: self.received_bytes(),
        }
    }

    /// Processors that the group may use at once, where it is limited.
    pub(super) fn processors(&self) -> Option<f64> {
        let group = self.group.as_deref()?;
        let text = std::fs::read_to_string(group.join("cpu.max"));
        if let Ok(text) = text {
            let (quota, period) = text.trim().split_once(' ')?;
            return Some(quota.parse::<f64>().ok()? / period.parse::<f64>().ok()?);
        }
        let number = |file: &str| -> Option<f64> {
            let text = std::fs::read_to_string(group.join(file)).ok()?;
            text.trim().parse().ok()
        };
        let quota = number("cpu.cfs_quota_us").filter(|quota| *quota > 0.0)?;
        Some(quota / number("cpu.cfs_period_us")?)
    }

    fn held_back_s(&self) -> Option<f64> {
        let text = std::fs::read_to_string(self.group.as_deref()?.join("cpu.stat")).ok()?;
        let of = |key: &str, per_s: f64| {
            let value = text
                .lines()
                .find_map(|line| line.strip_prefix(key)?.trim().parse::<f64>().ok());
            value.map(|value| value / per_s)
        };
        // Microseconds in the second version of control groups, nanoseconds in the first.
        of("throttled_usec ", 1e6).or_else(|| of("throttled_time ", 1e9))
    }

    fn received_bytes(&self) -> Option<u64> {
        let text = std::fs::read_to_string(self.root.join("proc/net/dev")).ok()?;
        let interfaces = text.lines().filter_map(|line| {
            let (name, counters) = line.split_once(':')?;
            let bytes: u64 = counters.split_whitespace().next()?.parse().ok()?;
            (name.trim() != "lo").then_some((name.trim(), bytes))
        });
        let folder = self.root.join("sys/class/net");
        let (devices, others): (Vec<_>, Vec<_>) =
            interfaces.partition(|(name, _)| folder.join(name).join("device").exists());
        // Bridges and tunnels hand on what came by a device. In a container there is none.
        let counted = if devices.is_empty() { others } else { devices };
        Some(counted.iter().map(|(_, bytes)| *bytes).sum())
    }
}

/// Folders that a process's control group may have its processor time in, from `/proc/self/cgroup`.
fn group_folders(text: &str) -> Vec<PathBuf> {
    let mut folders = Vec::new();
    for line in text.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        let path = path.trim_start_matches('/');
        let base = Path::new("sys/fs/cgroup");
        if controllers.is_empty() {
            folders.push(base.join(path));
            // In a container the group's own folder is the root of the tree.
            folders.push(base.to_owned());
        } else if controllers.split(',').any(|one| one == "cpu") {
            for mount in [controllers, "cpu"] {
                folders.push(base.join(mount).join(path));
                folders.push(base.join(mount));
            }
        }
    }
    folders
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (file, text) in files {
            let path = folder.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        folder
    }

    #[test]
    fn both_versions_of_control_groups_are_read() {
        let second = written(&[
            ("proc/self/cgroup", "0::/user/a\n"),
            (
                "sys/fs/cgroup/user/a/cpu.stat",
                "usage_usec 9\nthrottled_usec 2500000\n",
            ),
            ("sys/fs/cgroup/user/a/cpu.max", "150000 100000\n"),
        ]);
        let reader = LimitReader::at(second.path());
        assert_eq!((reader.read().held_back_s, reader.processors()), (Some(2.5), Some(1.5)));
        let first = written(&[
            ("proc/self/cgroup", "4:cpu,cpuacct:/jobs/7\n1:name=systemd:/x\n0::/\n"),
            (
                "sys/fs/cgroup/cpu,cpuacct/jobs/7/cpu.stat",
                "nr_throttled 1\nthrottled_time 1000000000\n",
            ),
            ("sys/fs/cgroup/cpu,cpuacct/jobs/7/cpu.cfs_quota_us", "200000\n"),
            ("sys/fs/cgroup/cpu,cpuacct/jobs/7/cpu.cfs_period_us", "100000\n"),
        ]);
        let reader = LimitReader::at(first.path());
        assert_eq!((reader.read().held_back_s, reader.processors()), (Some(1.0), Some(2.0)));
        let unlimited = written(&[
            ("proc/self/cgroup", "0::/\n"),
            ("sys/fs/cgroup/cpu.stat", "throttled_usec 0\n"),
            ("sys/fs/cgroup/cpu.max", "max 100000\n"),
        ]);
        let reader = LimitReader::at(unlimited.path());
        assert_eq!((reader.read().held_back_s, reader.processors()), (Some(0.0), None));
    }

    #[test]
    fn pressure_and_the_network_are_read_where_they_are() {
        let folder = written(&[
            (
                "proc/pressure/io",
                "some avg10=0.00 avg60=0.00 avg300=0.00 total=500000\nfull total=1\n",
            ),
            (
                "proc/net/dev",
                "Inter-| Receive\n face |bytes packets\n    lo: 900 1 0\n  eth0: 100 2 0\n  eth1:50 2 0\n",
            ),
        ]);
        let read = LimitReader::at(folder.path()).read();
        assert_eq!(
            read,
            Pressed {
                disk_s: Some(0.5),
                received_bytes: Some(150),
                ..Pressed::default()
            }
        );
        std::fs::create_dir_all(folder.path().join("sys/class/net/eth0/device")).unwrap();
        let read = LimitReader::at(folder.path()).read();
        assert_eq!(read.received_bytes, Some(100));
        let nothing = tempfile::tempdir().unwrap();
        assert_eq!(LimitReader::at(nothing.path()).read(), Pressed::default());
    }
}
