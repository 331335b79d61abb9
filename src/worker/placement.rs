//! Places that workers run at: one slot each, with its device, threads and processors.

use super::DeviceAssignment;

/// The place that one worker runs at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// Number of the worker, from 0.
    pub number: usize,
    /// Device that the worker computes on; the first GPU, or the CPU, where none is named.
    pub device: Option<String>,
    /// Threads that the worker computes with; all where absent.
    pub threads: Option<usize>,
    /// Processors that the worker is pinned to; empty for none.
    pub cpus: Vec<usize>,
    /// Machine that the worker runs on, where a launcher has to be told.
    pub host: Option<String>,
    /// Hardware that the worker shares with others of the same name: measurements beside each other disturb one
    /// another.
    pub hardware: String,
}

impl Placement {
    /// One worker with the whole machine, or with so many threads of it.
    pub fn whole_machine(threads: Option<usize>) -> Self {
        Self {
            threads,
            hardware: "cpu".to_owned(),
            ..Self::default()
        }
    }

    /// `workers` side by side on processors `cpus`. Each has its share of them, or `threads` threads, and is pinned to its
    /// share where there is one for each.
    pub fn side_by_side(workers: usize, cpus: &[usize], threads: Option<usize>) -> Vec<Self> {
        if workers <= 1 {
            return vec![Self::whole_machine(threads)];
        }
        let share = cpus.len() / workers;
        let slot = |number: usize| Self {
            number,
            device: Some("cpu".to_owned()),
            threads: Some(threads.unwrap_or(share).max(1)),
            cpus: cpus.iter().copied().skip(number * share).take(share).collect(),
            hardware: "cpu".to_owned(),
            host: None,
        };
        (0..workers).map(slot).collect()
    }

    /// One worker a device; the host's processors are shared out among them, but a device is its worker's own.
    pub fn on_devices(devices: &[String], cpus: usize, threads: Option<usize>) -> Vec<Self> {
        let share = (cpus / devices.len().max(1)).max(1);
        let slot = |(number, device): (usize, &String)| Self {
            number,
            device: Some(device.clone()),
            threads: Some(threads.unwrap_or(share)),
            hardware: device.clone(),
            ..Self::default()
        };
        devices.iter().enumerate().map(slot).collect()
    }

    /// One worker on each of `hosts`, or `workers` where the launcher finds a slot for each. They share nothing.
    pub fn elsewhere(workers: usize, hosts: &[String], threads: Option<usize>) -> Vec<Self> {
        let count = if hosts.is_empty() { workers } else { hosts.len() };
        let slot = |number: usize| Self {
            number,
            threads,
            host: hosts.get(number).cloned(),
            hardware: format!("elsewhere {number}"),
            ..Self::default()
        };
        (0..count).map(slot).collect()
    }

    /// Places of the `devices` processes that share one trial, in these slots. Where there are more than slots, those
    /// of one slot share its threads.
    pub(super) fn assignments(slots: &[&Self], devices: usize) -> Vec<DeviceAssignment> {
        let in_one = devices.div_ceil(slots.len().max(1)).max(1);
        let assignments = slots.iter().cycle().take(devices);
        assignments
            .map(|slot| DeviceAssignment {
                device: slot.device.clone(),
                threads: slot.threads.map(|threads| (threads / in_one).max(1)),
                cpus: slot.cpus.clone(),
            })
            .collect()
    }

    /// The worker's arguments.
    pub(super) fn arguments(&self) -> Vec<String> {
        let threads = self
            .threads
            .map(|threads| ["--threads".to_owned(), threads.to_string()]);
        let slot = place_arguments(self.device.as_deref(), &self.cpus);
        threads.into_iter().flatten().chain(slot).collect()
    }

    /// A word of a launcher's prefix with what stands for the slot's own values.
    pub(super) fn fill_in(&self, word: &str) -> String {
        let cpus: Vec<String> = self.cpus.iter().map(usize::to_string).collect();
        word.replace("{worker}", &self.number.to_string())
            .replace("{host}", self.host.as_deref().unwrap_or(""))
            .replace("{device}", self.device.as_deref().unwrap_or(""))
            .replace(
                "{threads}",
                &self.threads.map(|threads| threads.to_string()).unwrap_or_default(),
            )
            .replace("{cpus}", &cpus.join(","))
    }
}

/// Arguments that tell a process its processors and its device, where they are given.
pub(super) fn place_arguments(device: Option<&str>, cpus: &[usize]) -> Vec<String> {
    let cpus: Vec<String> = cpus.iter().map(usize::to_string).collect();
    let values = [
        ("--cpus", (!cpus.is_empty()).then(|| cpus.join(","))),
        ("--device", device.map(str::to_owned)),
    ];
    let given = values
        .into_iter()
        .filter_map(|(name, value)| Some([name.to_owned(), value?]));
    given.flatten().collect()
}

/// Processors that this process may use.
pub fn usable_cpus() -> Vec<usize> {
    #[cfg(target_os = "linux")]
    {
        // SAFETY: a set of zeros is an empty set.
        let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        // SAFETY: the set outlives the call, and its size is told.
        let found = unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set) };
        if found == 0 {
            let most = 8 * size_of::<libc::cpu_set_t>();
            // SAFETY: every number is below the size of the set.
            return (0..most).filter(|cpu| unsafe { libc::CPU_ISSET(*cpu, &set) }).collect();
        }
    }
    (0..std::thread::available_parallelism().map_or(1, std::num::NonZero::get)).collect()
}

/// Keeps this process, and the threads that it starts from now on, on some processors. Returns whether that worked.
pub fn pin_to(cpus: &[usize]) -> bool {
    #[cfg(target_os = "linux")]
    {
        // SAFETY: a set of zeros is an empty set.
        let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        for cpu in cpus.iter().filter(|cpu| **cpu < 8 * size_of::<libc::cpu_set_t>()) {
            // SAFETY: the number is below the size of the set.
            unsafe { libc::CPU_SET(*cpu, &mut set) };
        }
        // SAFETY: the set outlives the call, and its size is told.
        unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) == 0 }
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = cpus;
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_share_the_processors_out() {
        let slots = Placement::side_by_side(3, &[0, 1, 4, 5, 6, 7, 9], None);
        let cpus: Vec<&[usize]> = slots.iter().map(|slot| slot.cpus.as_slice()).collect();
        assert_eq!(cpus, [&[0, 1], &[4, 5], &[6, 7]]);
        assert!(slots.iter().all(|slot| slot.threads == Some(2)));
    }

    #[test]
    fn a_trial_of_several_devices_has_a_seat_in_each_of_its_places() {
        let slots = Placement::side_by_side(2, &[0, 1, 2, 3], None);
        let slots: Vec<&Placement> = slots.iter().collect();
        let assignments = |devices| -> Vec<(usize, Vec<usize>)> {
            let assignments = Placement::assignments(&slots, devices).into_iter();
            assignments
                .map(|assignment| (assignment.threads.unwrap(), assignment.cpus))
                .collect()
        };
        assert_eq!(assignments(2), [(2, vec![0, 1]), (2, vec![2, 3])]);
        assert_eq!(assignments(4)[1..3], [(1, vec![2, 3]), (1, vec![0, 1])]);
    }

    #[test]
    fn more_workers_than_processors_are_not_pinned_and_have_a_thread_each() {
        for slot in Placement::side_by_side(4, &[0, 1], None) {
            assert_eq!((slot.threads, slot.cpus.len()), (Some(1), 0));
        }
    }

    #[test]
    fn every_device_is_hardware_of_its_own() {
        let devices = ["cuda:0", "cuda:1"].map(str::to_owned);
        let slots = Placement::on_devices(&devices, 8, None);
        assert_ne!(slots[0].hardware, slots[1].hardware);
        assert_eq!(slots[1].arguments(), ["--threads", "4", "--device", "cuda:1"]);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_thread_can_be_kept_on_one_processor() {
        std::thread::spawn(|| {
            let first = usable_cpus()[0];
            assert!(pin_to(&[first]));
            assert_eq!(usable_cpus(), [first]);
        })
        .join()
        .unwrap();
    }
}
