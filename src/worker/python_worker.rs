//! The worker that trains in PyTorch: Python files that this program carries, and the process that runs them.
//!
//! A worker of `backend: trl` or `unsloth` starts as any other, and then becomes the user's Python: the process keeps its id, its
//! streams, its group and its processors, so that nobody above sees a difference. The files lie in the cache, in a folder under their
//! hash, as the package `peft_tune.backends`.

use std::ffi::OsStr;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use sha2::{Digest, Sha256};

use crate::space::Loader;
use peft_tune_core::hexadecimal;
use peft_tune_core::whole_file::write_whole;
use peft_tune_engine::data::cache_folder;

/// Files of the package, each with its text.
macro_rules! carried {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../../python/peft_tune/backends/", $name)))),*]
    };
}

/// Files of `peft_tune.backends`.
const FILES: &[(&str, &str)] = carried![
    "__init__.py",
    "__main__.py",
    "base_model.py",
    "control.py",
    "device.py",
    "disturbance.py",
    "evaluation.py",
    "faults.py",
    "first_adapter.py",
    "gpu_load.py",
    "host_load.py",
    "kinds.py",
    "launched.py",
    "losses.py",
    "preference.py",
    "probe.py",
    "process_state.py",
    "profile.py",
    "profile_events.py",
    "protocol.py",
    "rank_group.py",
    "ranks.py",
    "rewards.py",
    "rival.py",
    "serve.py",
    "settings.py",
    "steady.py",
    "tools.py",
    "trainer.py",
    "trial.py",
    "trial_evaluations.py",
    "trial_files.py",
    "unsloth.py",
];

/// Statements that run the package from the folder that the first argument names. The current folder is no place of packages: a file
/// there may have the name of one. Python has an option for that since 3.11 only.
const RUN: &str = "import sys; sys.path[:] = [sys.argv.pop(1), *filter(None, sys.path)]; import runpy; \
                   runpy.run_module('peft_tune.backends', run_name='__main__')";

/// Variables by which launchers tell a trainer of the processes that it is one of, and the beginning of those by which that of
/// accelerate sets a precision or a device for it: a trial is one process, and its own file says the rest.
const OF_LAUNCHERS: [&str; 6] = [
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "RANK",
    "WORLD_SIZE",
];
const OF_ACCELERATE: &str = "ACCELERATE_";

/// Variable in which a worker that sees its own GPU alone has those that this process sees: a trial may take several.
const VISIBLE: &str = "PEFT_TUNE_VISIBLE_DEVICES";

/// Digits of the hash that a folder is named by.
const DIGITS: usize = 16;

/// A Python, and the folder with the package that it runs.
#[derive(Clone, Debug)]
pub struct PythonWorker {
    python: PathBuf,
    folder: PathBuf,
    loader: Loader,
}

/// Why the worker in Python cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum PythonWorkerError {
    #[error("there is no cache to keep the files in that Python runs; name a folder in PEFT_TUNE_CACHE")]
    NoCache,
    #[error(
        "cannot write the files that Python runs to {folder}: {source}; make room there, or name another folder in PEFT_TUNE_CACHE"
    )]
    Unpack { folder: PathBuf, source: io::Error },
    #[error(
        "PyTorch cannot see the device {device}; name `cpu`, or a GPU such as `cuda:0` that CUDA_VISIBLE_DEVICES does not hide"
    )]
    NoDevice { device: String },
    #[error("cannot start {python}: {source}; name a Python that has TRL with `--python`")]
    Start { python: PathBuf, source: io::Error },
}

impl PythonWorker {
    /// Lays the package down in the cache for `python`, unless it lies there.
    ///
    /// # Errors
    /// No cache, or one that cannot be written to.
    pub fn new(python: &Path, loader: Loader) -> Result<Self, PythonWorkerError> {
        let cache = cache_folder().ok_or(PythonWorkerError::NoCache)?;
        let folder = unpack(&cache).map_err(|source| PythonWorkerError::Unpack { folder: cache, source })?;
        Ok(Self {
            python: python.to_owned(),
            folder,
            loader,
        })
    }

    /// A command that prints what the Python has, as one object of JSON.
    pub fn probe(&self) -> Command {
        self.command(["--probe"])
    }

    /// Becomes the worker on `device` with `threads` threads. Returns only where that fails.
    pub fn replace_process(&self, device: &str, threads: usize) -> PythonWorkerError {
        match self.on_device(device, threads, &[]) {
            Ok(mut command) => self.failed(command.exec()),
            Err(error) => error,
        }
    }

    /// A command that reads what is to be profiled from standard input, one line of JSON, and prints the profile as another.
    ///
    /// # Errors
    /// A device that is none, or hidden; this program's own path.
    pub fn profile(&self, device: &str, threads: usize) -> Result<Command, PythonWorkerError> {
        self.on_device(device, threads, &["--profile"])
    }

    /// Error of a start.
    pub fn failed(&self, source: io::Error) -> PythonWorkerError {
        let python = self.python.clone();
        PythonWorkerError::Start { python, source }
    }

    /// The package on a device, with so many threads and further arguments.
    fn on_device(&self, device: &str, threads: usize, more: &[&str]) -> Result<Command, PythonWorkerError> {
        let all = std::env::var("CUDA_VISIBLE_DEVICES").ok();
        let seen = visible_for(device, all.as_deref()).ok_or_else(|| {
            let device = device.to_owned();
            PythonWorkerError::NoDevice { device }
        })?;
        let program = std::env::current_exe().map_err(|error| self.failed(error))?;
        let threads = threads.to_string();
        let own = ["--device", device, "--threads", &threads];
        let mut command = self.command(own.iter().chain(more));
        command
            .env("PEFT_TUNE_PROGRAM", program)
            .env("PEFT_TUNE_VERSION", env!("CARGO_PKG_VERSION"))
            .env("CUDA_VISIBLE_DEVICES", seen)
            .env("OMP_NUM_THREADS", &threads)
            .env("MKL_NUM_THREADS", &threads)
            // Sums in the same order each time, where a GPU has a choice.
            .env("CUBLAS_WORKSPACE_CONFIG", ":4096:8");
        match all {
            Some(all) => command.env(VISIBLE, all),
            None => command.env_remove(VISIBLE),
        };
        Ok(command)
    }

    /// The package with these arguments.
    fn command<Word: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = Word>) -> Command {
        let mut command = Command::new(&self.python);
        for (name, _) in std::env::vars_os().filter(|(name, _)| is_of_launcher(name)) {
            command.env_remove(name);
        }
        command
            // Writes nothing beside the files: what is compiled of them for one version is none of the next one's.
            .args(["-B", "-c", RUN])
            .arg(&self.folder)
            // unsloth has to come before what it changes.
            .args(["--backend", self.loader.name()])
            .args(arguments)
            .env("TOKENIZERS_PARALLELISM", "false")
            // Whatever had to be downloaded was, before the first trial.
            .env("HF_HUB_OFFLINE", "1")
            .env("TRANSFORMERS_VERBOSITY", "error");
        command
    }
}

/// Whether a variable speaks for the launcher of a training.
fn is_of_launcher(name: &OsStr) -> bool {
    let name = name.to_str().unwrap_or_default();
    OF_LAUNCHERS.contains(&name) || name.starts_with(OF_ACCELERATE)
}

/// Lays the package down below `cache` and returns the folder that Python finds it in.
///
/// # Errors
/// What the file system says.
fn unpack(cache: &Path) -> io::Result<PathBuf> {
    let folder = std::path::absolute(cache.join("python").join(hash()))?;
    let package = folder.join("peft_tune");
    let backends = package.join("backends");
    std::fs::create_dir_all(&backends)?;
    // Without a file of this name the folder would be a part of a namespace, and the package of a wheel of another version in
    // site-packages would win.
    lay_down(&package.join("__init__.py"), "")?;
    for (name, text) in FILES {
        lay_down(&backends.join(name), text)?;
    }
    Ok(folder)
}

fn lay_down(path: &Path, text: &str) -> io::Result<()> {
    match std::fs::read(path) {
        Ok(there) if there == text.as_bytes() => Ok(()),
        _ => write_whole(path, text.as_bytes(), true),
    }
}

/// The beginning of the hash of all files.
fn hash() -> String {
    let mut hash = Sha256::new();
    for (name, text) in FILES {
        hash.update(name);
        hash.update((text.len() as u64).to_le_bytes());
        hash.update(text);
    }
    let mut digits = hexadecimal(&hash.finalize());
    digits.truncate(DIGITS);
    digits
}

/// The value of `CUDA_VISIBLE_DEVICES` with which a process sees this device alone, where this process sees those that are `visible`:
/// all where that is absent. `None` for what is no device, and for one that is hidden.
fn visible_for(device: &str, visible: Option<&str>) -> Option<String> {
    if device == "cpu" {
        return Some(String::new());
    }
    let number: usize = device.strip_prefix("cuda:")?.parse().ok()?;
    let Some(visible) = visible else {
        return Some(number.to_string());
    };
    let seen = visible.split(',').map(str::trim).nth(number)?;
    (!seen.is_empty()).then(|| seen.to_owned())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::worker::PROTOCOL_VERSION;
    use peft_tune_engine::profile::OUT_OF_MEMORY_EXIT;

    #[test]
    fn every_file_of_the_package_is_carried() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("python/peft_tune/backends");
        let entries = std::fs::read_dir(folder).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        // Python that ran here left its own.
        let there: BTreeSet<String> = names.filter(|name| name != "__pycache__").collect();
        let carried: BTreeSet<String> = FILES.iter().map(|(name, _)| (*name).to_owned()).collect();
        assert_eq!(carried, there);
        assert_eq!(carried.len(), FILES.len());
    }

    #[test]
    fn both_sides_have_the_same_numbers() {
        let (_, protocol) = FILES.iter().find(|(name, _)| *name == "protocol.py").unwrap();
        for line in [
            format!("PROTOCOL = {PROTOCOL_VERSION}"),
            format!("OUT_OF_MEMORY_EXIT = {OUT_OF_MEMORY_EXIT}"),
        ] {
            assert!(protocol.lines().any(|one| one == line), "{line}");
        }
        let (_, group) = FILES.iter().find(|(name, _)| *name == "rank_group.py").unwrap();
        assert!(group.contains(&format!("VISIBLE_VARIABLE = \"{VISIBLE}\"")));
    }

    #[test]
    fn the_wheels_extra_installs_what_the_package_asks_for() {
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("pyproject.toml");
        let manifest = std::fs::read_to_string(manifest).unwrap();
        let (_, probe) = FILES.iter().find(|(name, _)| *name == "probe.py").unwrap();
        let lines_of = |text: &str, begin: &str, end: &str| -> BTreeSet<String> {
            let inside = text.lines().skip_while(|line| *line != begin).skip(1);
            let inside = inside.take_while(|line| *line != end);
            inside
                .map(|line| line.trim().trim_end_matches(',').to_owned())
                .collect()
        };
        // `"trl>=1.16,<2"` as the other file has it.
        let as_there = |requirement: String| {
            let requirement = requirement.trim_matches('"');
            let (name, range) = requirement.split_once(">=").unwrap();
            let (least, too_new) = match range.split_once(",<") {
                Some((least, too_new)) => (least, format!("\"{too_new}\"")),
                None => (range, "None".to_owned()),
            };
            format!("\"{name}\": (\"{least}\", {too_new})")
        };
        let extra = lines_of(&manifest, "trl = [", "]").into_iter().map(as_there);
        assert_eq!(extra.collect::<BTreeSet<_>>(), lines_of(probe, "VERSIONS = {", "}"));
    }

    #[test]
    fn the_package_is_whole_after_someone_changed_it() {
        let cache = tempfile::tempdir().unwrap();
        let folder = unpack(cache.path()).unwrap();
        let (marker, protocol) = (
            folder.join("peft_tune/__init__.py"),
            folder.join("peft_tune/backends/protocol.py"),
        );
        assert_eq!(std::fs::read_to_string(&marker).unwrap(), "");
        let whole = std::fs::read_to_string(&protocol).unwrap();
        std::fs::write(&protocol, &whole[..whole.len() / 2]).unwrap();
        assert_eq!(unpack(cache.path()).unwrap(), folder);
        assert_eq!(std::fs::read_to_string(&protocol).unwrap(), whole);
        std::fs::write(cache.path().join("file"), "").unwrap();
        assert!(unpack(&cache.path().join("file")).is_err());
    }

    #[test]
    fn a_worker_sees_its_own_device_alone() {
        for (device, visible, seen) in [
            ("cpu", None, Some("")),
            ("cuda:1", None, Some("1")),
            ("cuda:1", Some("4, 7"), Some("7")),
            ("cuda:0", Some("GPU-1a"), Some("GPU-1a")),
            ("cuda:2", Some("4,7"), None),
            ("cuda:0", Some(""), None),
            ("mps", None, None),
        ] {
            assert_eq!(visible_for(device, visible).as_deref(), seen, "{device} of {visible:?}");
        }
    }

    #[test]
    fn a_trial_does_not_hear_the_launcher_of_a_training() {
        for (name, is_heard) in [
            ("ACCELERATE_MIXED_PRECISION", false),
            ("WORLD_SIZE", false),
            ("WORLD", true),
            ("HF_HOME", true),
        ] {
            assert_eq!(is_of_launcher(OsStr::new(name)), !is_heard, "{name}");
        }
    }

    #[test]
    fn python_is_told_the_folder_and_the_arguments() {
        let worker = PythonWorker {
            python: "/opt/python".into(),
            folder: "/cache of mine".into(),
            loader: Loader::Unsloth,
        };
        let command = worker.probe();
        assert_eq!(command.get_program(), "/opt/python");
        let arguments: Vec<&OsStr> = command.get_args().collect();
        let words = ["-B", "-c", RUN, "/cache of mine", "--backend", "unsloth", "--probe"];
        assert_eq!(arguments, words);
    }
}
