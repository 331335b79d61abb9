//! Launchers of worker processes: on this machine, or through any program that runs another one.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use super::placement::Placement;

/// Time that a launcher may take to give back what it took.
const FAREWELL: Duration = Duration::from_secs(10);

/// A launcher of worker processes: a prefix of words before the program, such as `srun --gres=gpu:1` or `ssh host`.
///
/// In the prefix `{worker}`, `{host}`, `{device}`, `{threads}` and `{cpus}` stand for what the worker's slot has. The rest of the
/// conversation is on the standard streams of what is started, so the prefix must pass them through.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Launcher {
    /// Words before the program; none to start it directly.
    pub prefix: Vec<String>,
    /// The program as the machine that runs it knows it.
    pub program: PathBuf,
    /// Arguments that every worker gets beside those of its slot.
    pub arguments: Vec<String>,
    /// Variables set beside the inherited ones, for the first process that is started.
    pub env: BTreeMap<String, String>,
}

impl Launcher {
    /// Starts `program` on this machine.
    pub fn local(program: PathBuf) -> Self {
        Self {
            program,
            ..Self::default()
        }
    }

    /// Starts `program` through a command.
    pub fn with_prefix(prefix: Vec<String>, program: PathBuf) -> Self {
        Self {
            prefix,
            program,
            ..Self::default()
        }
    }

    /// Gives arguments to every worker.
    pub fn with_arguments(mut self, arguments: Vec<String>) -> Self {
        self.arguments = arguments;
        self
    }

    /// Whether workers run on this machine, as far as is known.
    pub fn is_local(&self) -> bool {
        self.prefix.is_empty()
    }

    /// Time that a worker may take to end: a launcher gives back what it took for it.
    pub(super) fn farewell(&self) -> Option<Duration> {
        (!self.is_local()).then_some(FAREWELL)
    }

    /// The program to start for a slot, and its arguments.
    pub(super) fn command_line(&self, slot: &Placement) -> (PathBuf, Vec<String>) {
        let mut words: Vec<String> = self.prefix.iter().map(|word| slot.fill_in(word)).collect();
        let worker = [self.program.to_string_lossy().into_owned(), "worker".to_owned()];
        words.extend(worker);
        words.extend(slot.arguments());
        words.extend(self.arguments.iter().cloned());
        let program = words.remove(0);
        (program.into(), words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_stands_before_the_program_with_its_places_filled_in() {
        let slot = Placement {
            number: 2,
            device: Some("cuda:1".to_owned()),
            threads: Some(4),
            ..Placement::default()
        };
        let prefix = ["srun", "--gpus=1", "-c{threads}", "--job-name=worker-{worker}"].map(str::to_owned);
        let kernels = ["--kernels", "reference"].map(str::to_owned).to_vec();
        let launcher = Launcher::with_prefix(prefix.to_vec(), "/opt/peft-tune".into()).with_arguments(kernels);
        let (program, arguments) = launcher.command_line(&slot);
        assert_eq!(program, PathBuf::from("srun"));
        assert_eq!(
            arguments.join(" "),
            "--gpus=1 -c4 --job-name=worker-2 /opt/peft-tune worker --threads 4 --device cuda:1 --kernels reference"
        );
        assert!(Launcher::local("a".into()).is_local() && !launcher.is_local());
    }
}
