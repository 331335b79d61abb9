//! The Python that trials of `backend: trl` and `unsloth` run in: which one it is, and what it has.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::printed::{last_words, output_within};
use crate::cli::CliError;
use crate::report::{bytes, duration, printable};
use crate::shell::{command_line, shell_word};
use crate::space::{Loader, Seconds};
use crate::worker::{PythonWorker, PythonWorkerError};

/// Name of a Python where no environment is active.
const PYTHON: &str = "python3";
/// Variables that name the folder of an active environment, whose interpreter is `bin/python`.
pub(in crate::cli) const ENVIRONMENTS: [&str; 2] = ["VIRTUAL_ENV", "CONDA_PREFIX"];
/// Variable that says how long a Python may take to answer.
const WITHIN_VARIABLE: &str = "PEFT_TUNE_PYTHON_WITHIN";
/// Time that it may take where nobody says: PyTorch alone can take a minute to import from a cold disk.
const WITHIN: Seconds = Seconds(180.0);
/// The processor among the names of devices.
const CPU: &str = "cpu";

/// A Python.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cli) struct Interpreter {
    path: PathBuf,
}

/// What a Python has that can train in TRL.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(in crate::cli) struct Stack {
    /// What loads the models there.
    #[serde(skip)]
    pub loader: Loader,
    pub interpreter: PathBuf,
    /// Version of Python itself.
    pub python: String,
    /// Packages with their versions.
    pub packages: Vec<Package>,
    /// Ranges of versions that trials can train with, as pip takes them.
    pub wanted: Vec<String>,
    /// GPUs that PyTorch sees; empty where it computes on the processor.
    pub devices: Vec<TorchDevice>,
}

/// A package that is installed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(in crate::cli) struct Package {
    pub name: String,
    pub version: String,
}

/// A GPU as PyTorch knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::cli) struct TorchDevice {
    pub name: String,
    pub bytes: u64,
    /// Why what other programs do with it is not told; absent where it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unwatched: Option<String>,
}

/// What a Python prints of itself.
#[derive(Debug, Deserialize)]
struct Answer {
    python: String,
    #[serde(default)]
    unsloth: Option<String>,
    torch: Option<String>,
    transformers: Option<String>,
    peft: Option<String>,
    trl: Option<String>,
    accelerate: Option<String>,
    datasets: Option<String>,
    /// Versions of installed packages that some values alone need.
    #[serde(default)]
    optional: BTreeMap<String, String>,
    devices: Vec<TorchDevice>,
    #[serde(default)]
    wanted: Vec<String>,
    /// Requirements that are not met, as pip takes them.
    missing: Vec<String>,
}

impl Interpreter {
    /// The Python that was `named`, else that of the active environment, else the first `python3` of the search path.
    ///
    /// # Errors
    /// Bad input: none was named, and there is none.
    pub(in crate::cli) fn find(named: Option<&Path>) -> Result<Self, CliError> {
        let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let active = ENVIRONMENTS.iter().filter_map(|name| variable(name));
        let mut active = active.map(|folder| Path::new(&folder).join("bin/python"));
        let found = match named {
            Some(path) => Some(resolved(path)),
            None => active.find(|path| path.is_file()).or_else(|| on_search_path(PYTHON)),
        };
        let path = found.ok_or_else(|| {
            CliError::bad(
                "there is no Python here for trials in TRL or unsloth: activate the environment that has it, or name its interpreter \
                 with `--python`",
            )
        })?;
        Ok(Self { path })
    }

    /// Asks the Python what it has of what trials on models of this loader take.
    ///
    /// # Errors
    /// Bad input: what is asked is no Python, does not answer in time, or lacks what trains, or a GPU for it; a cache that cannot be
    /// written to.
    pub(in crate::cli) fn probe(&self, loader: Loader) -> Result<Stack, CliError> {
        let worker = PythonWorker::new(&self.path, loader).map_err(CliError::bad_input)?;
        let output = self.ask(&worker)?;
        let answer = self.answer_of(&output)?;
        let stack = self.stack_of(answer, loader, &output)?;
        if stack.devices.is_empty() {
            stack.check_device(CPU)?;
        }
        Ok(stack)
    }

    /// What the Python prints.
    fn ask(&self, worker: &PythonWorker) -> Result<Output, CliError> {
        let within = within()?;
        let limit = Duration::try_from_secs_f64(within.0).map_err(CliError::bad_input)?;
        match output_within(worker.probe(), limit) {
            Ok(Some(output)) => Ok(output),
            Ok(None) => Err(CliError::bad(format!(
                "{self} did not say within {} which packages it has; try `{self} -c 'import torch, trl'`, name another Python with \
                 `--python`, or give it longer with {WITHIN_VARIABLE}",
                duration(within.0)
            ))),
            Err(source) => Err(CliError::bad_input(PythonWorkerError::Start {
                python: self.path.clone(),
                source,
            })),
        }
    }

    /// The answer among what was printed: libraries may have printed before.
    fn answer_of(&self, output: &Output) -> Result<Answer, CliError> {
        let printed = String::from_utf8_lossy(&output.stdout);
        let last = |bytes: &[u8]| last_words(bytes).unwrap_or_else(|| "nothing".to_owned());
        let line = printed.lines().rfind(|line| !line.trim().is_empty());
        let answer = line.and_then(|line| serde_json::from_str::<Answer>(line).ok());
        match answer {
            Some(answer) if output.status.success() => Ok(answer),
            _ if output.status.success() => Err(CliError::bad(format!(
                "{self} does not say which packages it has, and is no Python then; it printed: {}; name a Python that has TRL with \
                 `--python`",
                last(&output.stdout)
            ))),
            _ => Err(CliError::bad(format!(
                "{self} ended with {} before it said which packages it has; its last words: {}; name a Python that has TRL with \
                 `--python`",
                output.status,
                last(&output.stderr)
            ))),
        }
    }

    /// The stack, where all that it takes is there. `output` says why a package that is installed cannot be used.
    fn stack_of(&self, answer: Answer, loader: Loader, output: &Output) -> Result<Stack, CliError> {
        let Answer {
            python,
            unsloth,
            torch,
            transformers,
            peft,
            trl,
            accelerate,
            datasets,
            optional,
            devices,
            wanted: ranges,
            missing,
        } = answer;
        let own = (loader == Loader::Unsloth).then_some(("unsloth", unsloth));
        let packages = [
            ("torch", torch),
            ("transformers", transformers),
            ("peft", peft),
            ("trl", trl),
            ("accelerate", accelerate),
            ("datasets", datasets),
        ];
        let packages: Vec<(&str, Option<String>)> = own.into_iter().chain(packages).collect();
        let absent = packages.iter().filter(|(_, version)| version.is_none());
        // One that is not there is told once, by its range where that is known.
        let untold = absent.map(|(name, _)| (*name).to_owned()).filter(|name| {
            let is_of = |requirement: &&String| {
                let rest = requirement.strip_prefix(name.as_str());
                rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_alphanumeric() || "-_".contains(c)))
            };
            !missing.iter().any(|requirement| is_of(&requirement))
        });
        let wanted: Vec<String> = missing.iter().cloned().chain(untold).collect();
        if !wanted.is_empty() {
            let said = last_words(&output.stderr);
            return Err(CliError::bad(format!(
                "{self} (Python {}) lacks what `backend: {}` trains with, or has it in another version: {}{}; install it with \
                 `{self} -m pip install {}`, or name another Python with `--python`",
                printable(&python),
                loader.name(),
                printable(&wanted.join(", ")),
                said.map_or_else(String::new, |said| format!(" ({said})")),
                command_line(&wanted)
            )));
        }
        let packages = packages
            .into_iter()
            .filter_map(|(name, version)| Some((name.to_owned(), version?)));
        let packages = packages.chain(optional);
        Ok(Stack {
            loader,
            interpreter: self.path.clone(),
            python,
            packages: packages.map(|(name, version)| Package { name, version }).collect(),
            wanted: ranges,
            devices,
        })
    }
}

/// The interpreter as a shell takes it.
impl fmt::Display for Interpreter {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&shell_word(&self.path.to_string_lossy()))
    }
}

impl Stack {
    /// The packages with their versions: `torch 2.15.0, transformers 5.23.0, ..`.
    pub(in crate::cli) fn versions(&self) -> String {
        let all = self.packages.iter();
        let all: Vec<String> = all.map(|one| format!("{} {}", one.name, one.version)).collect();
        all.join(", ")
    }

    /// What it computes on, for people: each GPU with its memory, or the processor.
    pub(in crate::cli) fn devices_text(&self) -> String {
        let devices = self.devices.iter();
        let devices: Vec<String> = devices
            .map(|one| format!("{} ({})", one.name, bytes(one.bytes as f64)))
            .collect();
        match devices.is_empty() {
            true => "the CPU".to_owned(),
            false => devices.join(", "),
        }
    }

    /// Why measurements are not watched for what other programs do on all that it computes on; `None` where they are.
    pub(in crate::cli) fn unwatched(&self) -> Option<&str> {
        let mut of_gpus = self.devices.iter().filter_map(|gpu| gpu.unwatched.as_deref());
        let elsewhere = self.devices.is_empty() && !cfg!(target_os = "linux");
        of_gpus.next().or(elsewhere.then_some("that takes Linux"))
    }

    /// The GPU of a name such as `cuda:1`; `None` for the processor, and for a GPU that PyTorch does not see.
    pub(in crate::cli) fn gpu(&self, device: &str) -> Option<&TorchDevice> {
        let number: usize = device.strip_prefix("cuda:")?.parse().ok()?;
        self.devices.get(number)
    }

    /// Whether it computes on a device of this name: the processor, or a GPU that PyTorch sees.
    pub(in crate::cli) fn has_device(&self, device: &str) -> bool {
        device == CPU || self.gpu(device).is_some()
    }

    /// Refuses a device that trials are not to run on.
    ///
    /// # Errors
    /// Bad input: the processor, where models are loaded by what has its kernels on GPUs alone.
    pub(in crate::cli) fn check_device(&self, device: &str) -> Result<(), CliError> {
        match self.loader.needs_gpu() && device == CPU {
            false => Ok(()),
            true => Err(CliError::bad(format!(
                "trials in {} need a GPU, for it has its kernels there alone, and would train on a processor what `backend: trl` trains; \
                 PyTorch in {} computes on {}; name a GPU, or search with `--backend trl`",
                self.loader.title(),
                self.interpreter.display(),
                self.devices_text()
            ))),
        }
    }

    /// Words that make a worker train in this Python.
    pub(in crate::cli) fn worker_words(&self) -> Vec<String> {
        let python = self.interpreter.to_string_lossy().into_owned();
        ["--backend", self.loader.name(), "--python"]
            .map(str::to_owned)
            .into_iter()
            .chain([python])
            .collect()
    }
}

/// The whole path of an interpreter that a person named: one that is only a name is looked for on the search path.
pub(in crate::cli) fn resolved(path: &Path) -> PathBuf {
    let is_name = path.components().count() == 1 && !path.exists();
    let found = is_name.then(|| path.to_str().and_then(on_search_path)).flatten();
    // Links stay: one into an environment is what makes it the environment's.
    found.unwrap_or_else(|| std::path::absolute(path).unwrap_or_else(|_| path.to_owned()))
}

/// The first file of this name in a folder of the search path.
pub(in crate::cli) fn on_search_path(name: &str) -> Option<PathBuf> {
    let folders = std::env::var_os("PATH")?;
    let mut files = std::env::split_paths(&folders).map(|folder| folder.join(name));
    let found = files.find(|path| path.is_file())?;
    std::path::absolute(found).ok()
}

/// Time that a Python may take to answer.
fn within() -> Result<Seconds, CliError> {
    match std::env::var(WITHIN_VARIABLE) {
        Ok(text) if !text.is_empty() => text
            .parse::<Seconds>()
            .map_err(|error| CliError::bad(format!("{WITHIN_VARIABLE}: {error}"))),
        _ => Ok(WITHIN),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    use super::*;

    fn python() -> Interpreter {
        Interpreter {
            path: "/my env/bin/python".into(),
        }
    }

    /// What becomes of a Python that prints this, and ends with this code.
    fn found(stdout: &str, stderr: &str, code: i32) -> Result<Stack, String> {
        let output = Output {
            status: ExitStatus::from_raw(code << 8),
            stdout: stdout.as_bytes().to_vec(),
            stderr: stderr.as_bytes().to_vec(),
        };
        let answer = python().answer_of(&output);
        let stack = answer.and_then(|answer| python().stack_of(answer, Loader::Transformers, &output));
        stack.map_err(|error| error.to_string())
    }

    #[test]
    fn packages_that_some_values_need_are_among_the_versions() {
        let optional = r#""1.16.0", "optional": {"flash-attn": "2.8.3", "schedulefree": "1.4.1"}"#;
        let stack = found(&answer(optional, ""), "", 0).unwrap();
        assert!(
            stack
                .versions()
                .ends_with("datasets 5.2.0, flash-attn 2.8.3, schedulefree 1.4.1"),
            "{}",
            stack.versions()
        );
    }

    fn answer(trl: &str, missing: &str) -> String {
        format!(
            r#"{{"python": "3.12.3", "torch": "2.15.0", "transformers": "5.23.0", "peft": "0.21.2", "trl": {trl},
            "accelerate": "1.15.0", "datasets": "5.2.0", "devices": [{{"name": "NVIDIA L4", "bytes": 23622320128}}],
            "missing": [{missing}]}}"#
        )
        .replace('\n', " ")
    }

    #[test]
    fn a_python_that_has_all_says_what_it_has() {
        let stack = found(
            &format!("a library that prints\n{}\n", answer(r#""1.16.0""#, "")),
            "",
            0,
        )
        .unwrap();
        assert_eq!(
            stack.versions(),
            "torch 2.15.0, transformers 5.23.0, peft 0.21.2, trl 1.16.0, accelerate 1.15.0, datasets 5.2.0"
        );
        assert_eq!(stack.devices_text(), "NVIDIA L4 (22.00 GiB)");
        assert_eq!(stack.gpu("cuda:0").map(|gpu| gpu.name.as_str()), Some("NVIDIA L4"));
        assert!(stack.gpu("cuda:1").is_none() && stack.gpu("cpu").is_none());
        assert_eq!(
            stack.worker_words(),
            ["--backend", "trl", "--python", "/my env/bin/python"]
        );
    }

    #[test]
    fn unsloth_is_asked_for_by_its_name_and_computes_on_gpus_alone() {
        let of = |answer: String| {
            let output = Output {
                status: ExitStatus::from_raw(0),
                stdout: answer.into_bytes(),
                stderr: Vec::new(),
            };
            let stack = python()
                .answer_of(&output)
                .and_then(|answer| python().stack_of(answer, Loader::Unsloth, &output));
            stack.map_err(|error| error.to_string())
        };
        let stack = of(answer(r#""1.15.0", "unsloth": "2026.10.9""#, "")).unwrap();
        assert!(
            stack.versions().starts_with("unsloth 2026.10.9, torch 2.15.0"),
            "{}",
            stack.versions()
        );
        assert_eq!(
            stack.worker_words(),
            ["--backend", "unsloth", "--python", "/my env/bin/python"]
        );
        assert!(stack.check_device("cuda:0").is_ok());
        let told = stack.check_device(CPU).map_err(|error| error.to_string()).unwrap_err();
        assert!(
            told.contains("unsloth need a GPU") && told.contains("computes on NVIDIA L4"),
            "{told}"
        );
        let told = of(answer(r#""1.15.0""#, "")).unwrap_err();
        assert!(
            told.contains("`backend: unsloth`") && told.contains("pip install unsloth`"),
            "{told}"
        );
    }

    #[test]
    fn what_is_missing_is_told_once_with_the_command_that_installs_it() {
        let told = found(&answer("null", r#""trl>=1.16,<2", "peft>=0.21""#), "", 0).unwrap_err();
        assert!(
            told.contains("'/my env/bin/python' -m pip install 'trl>=1.16,<2' 'peft>=0.21'`"),
            "{told}"
        );
        let untold = found(&answer("null", r#""trl-extras""#), "", 0).unwrap_err();
        assert!(untold.contains("pip install trl-extras trl`"), "{untold}");
        let broken = found(
            &answer(r#""1.16.0""#, r#""torch>=2.9""#),
            "cannot use torch: no libcudart\n",
            0,
        );
        let broken = broken.unwrap_err();
        assert!(
            broken.contains("torch>=2.9 (cannot use torch: no libcudart)"),
            "{broken}"
        );
    }

    #[test]
    fn what_is_no_answer_is_named() {
        let garbage = found("hello\u{1b}[31m\n", "", 0).unwrap_err();
        assert!(
            garbage.contains("'/my env/bin/python' does not say") && garbage.contains("printed: hello\\u{1b}[31m"),
            "{garbage}"
        );
        assert!(found("", "", 0).unwrap_err().contains("printed: nothing"));
        let ended = found("", "Traceback\nImportError: libcudart.so.12\n\n", 1).unwrap_err();
        assert!(
            ended.contains("exit status: 1") && ended.contains("ImportError: libcudart"),
            "{ended}"
        );
    }

    #[test]
    fn an_interpreter_keeps_the_way_that_leads_to_it() {
        let folder = tempfile::tempdir().unwrap();
        let (base, link) = (folder.path().join("base"), folder.path().join("python"));
        std::fs::write(&base, "").unwrap();
        std::os::unix::fs::symlink(&base, &link).unwrap();
        assert_eq!(resolved(&link), link);
        let found = Interpreter::find(Some(&link)).unwrap();
        assert_eq!(found.path, link);
        assert!(resolved(Path::new("sh")).is_absolute());
    }
}
