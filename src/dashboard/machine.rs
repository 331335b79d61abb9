//! How busy the machine and the search are.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use sysinfo::{Pid, Process, ProcessRefreshKind, ProcessesToUpdate, System};

use crate::store::Runner;

/// Pages that ask within this time get the same sample: shares of the processor need some time between two looks.
const KEEP: Duration = Duration::from_millis(900);

/// The machine at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct Sample {
    /// Seconds since 1970.
    pub at: f64,
    /// Share of all cores in use, in percent.
    pub machine_cpu: f64,
    pub machine_bytes: u64,
    /// Cores in use by the search and its trial processes; null where none runs.
    pub process_cpu: Option<f64>,
    /// Resident bytes of the search and its trial processes.
    pub process_bytes: Option<u64>,
}

/// Looks at the machine.
#[derive(Debug, Default)]
pub(super) struct Machine(Mutex<Looks>);

#[derive(Debug, Default)]
struct Looks {
    system: Option<System>,
    last: Option<(Instant, Option<Runner>, Sample)>,
}

impl Machine {
    /// A sample of the machine and of the process that runs the study with everything that it started.
    pub(super) fn sample(&self, runner: Option<Runner>) -> Sample {
        let mut looks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, of, sample)) = looks.last
            && at.elapsed() < KEEP
            && of == runner
        {
            return sample;
        }
        if looks.system.is_none() {
            looks.system = System::new().ok();
        }
        // A system that cannot be looked at has an empty sample.
        let sample = looks
            .system
            .as_mut()
            .map(|system| look(system, runner))
            .unwrap_or_default();
        looks.last = Some((Instant::now(), runner, sample));
        sample
    }
}

fn look(system: &mut System, runner: Option<Runner>) -> Sample {
    let wanted = ProcessRefreshKind::nothing().with_cpu().with_memory().without_tasks();
    system.refresh_cpu_usage();
    system.refresh_memory();
    system.refresh_processes_specifics(ProcessesToUpdate::All, true, wanted);
    let family = runner.map(|runner| family(system, runner)).unwrap_or_default();
    let sum = |part: &dyn Fn(&Process) -> f64| family.iter().map(|process| part(process)).sum::<f64>();
    let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Sample {
        at: at.as_secs_f64(),
        machine_cpu: f64::from(system.global_cpu_usage()),
        machine_bytes: system.used_memory(),
        process_cpu: (!family.is_empty()).then(|| sum(&|process| f64::from(process.cpu_usage()) / 100.0)),
        process_bytes: (!family.is_empty()).then(|| sum(&|process| process.memory() as f64) as u64),
    }
}

/// The process that holds the lock and its descendants. A process that was started after the lock was taken only has the
/// same number.
fn family(system: &System, runner: Runner) -> Vec<&Process> {
    let Some(first) = system.process(Pid::from_u32(runner.process)) else {
        return Vec::new();
    };
    let locked_at = runner.since.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    if first.start_time() > locked_at + 1 {
        return Vec::new();
    }
    let mut children: HashMap<Pid, Vec<&Process>> = HashMap::new();
    for process in system
        .processes()
        .values()
        .filter(|process| process.thread_kind().is_none())
    {
        if let Some(parent) = process.parent() {
            children.entry(parent).or_default().push(process);
        }
    }
    let (mut family, mut next) = (Vec::new(), vec![first]);
    while let Some(process) = next.pop() {
        next.extend(children.remove(&process.pid()).unwrap_or_default());
        family.push(process);
    }
    family
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_lives_and_one_that_started_later_is_another() {
        let machine = Machine::default();
        let process = std::process::id();
        let now = SystemTime::now();
        assert!(machine.sample(Some(Runner { process, since: now })).process_bytes > Some(0));
        let long_ago = UNIX_EPOCH + Duration::from_secs(1);
        assert_eq!(
            machine
                .sample(Some(Runner {
                    process,
                    since: long_ago
                }))
                .process_bytes,
            None
        );
    }
}
