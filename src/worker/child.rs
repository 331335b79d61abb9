//! A child process that speaks JSON lines: its standard output as messages, the tail of its standard error kept.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::EvaluatorError;

/// Bytes of standard error that are kept.
const TAIL_BYTES: usize = 4096;

/// What a child says.
pub(super) enum Line<M> {
    Message(M),
    /// A line that is not a message.
    Garbled(String),
    /// Standard output is closed; the tail of standard error.
    Closed(String),
}

/// Where a child runs: by default as its parent does.
#[derive(Clone, Debug, Default)]
pub(super) struct Surroundings {
    pub(super) folder: Option<PathBuf>,
    /// Set beside the inherited variables.
    pub(super) env: BTreeMap<String, String>,
}

/// A running child whose messages are of type `M`. It is killed when dropped.
pub(super) struct ChildProcess<M> {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<Line<M>>,
    /// Whether its end was waited for after its output was closed.
    waited: bool,
}

impl<M: DeserializeOwned + Send + 'static> ChildProcess<M> {
    /// Starts `program` in a process group of its own, so that a Ctrl-C in the terminal does not reach it: the
    /// coordinator decides what that means for a trial.
    pub(super) fn start(
        program: &Path,
        arguments: &[String],
        surroundings: &Surroundings,
    ) -> Result<Self, EvaluatorError> {
        let start_error = |source| EvaluatorError::Start {
            program: program.display().to_string(),
            source,
        };
        let mut command = Command::new(program);
        command
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command.envs(&surroundings.env);
        if let Some(folder) = &surroundings.folder {
            command.current_dir(folder);
        }
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child = command.spawn().map_err(start_error)?;
        let input = child.stdin.take();
        let (Some(output), Some(errors)) = (child.stdout.take(), child.stderr.take()) else {
            return Err(start_error(std::io::Error::other("standard streams are missing")));
        };
        let (sender, lines) = channel();
        let tail = std::thread::spawn(move || tail_of(errors));
        std::thread::spawn(move || {
            read_lines(output, &sender);
            let _ = sender.send(Line::Closed(tail.join().unwrap_or_default()));
        });
        Ok(Self {
            child,
            input,
            lines,
            waited: false,
        })
    }

    /// Writes one object as a line.
    pub(super) fn send(&mut self, message: &impl Serialize) -> std::io::Result<()> {
        let Some(input) = &mut self.input else { return Ok(()) };
        let mut line = serde_json::to_vec(message)?;
        line.push(b'\n');
        input.write_all(&line)?;
        input.flush()
    }

    /// Closes the child's standard input.
    pub(super) fn close_input(&mut self) {
        self.input = None;
    }

    /// The next line, or `None` when `timeout` passed without one.
    pub(super) fn next_line(&mut self, timeout: Duration) -> Option<Line<M>> {
        match self.lines.recv_timeout(timeout) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(Line::Closed(String::new())),
        }
    }
}

impl<M> ChildProcess<M> {
    /// Whether the process has not ended.
    pub(super) fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits for the end.
    pub(super) fn wait(&mut self) -> Option<ExitStatus> {
        let status = self.child.wait().ok();
        self.waited = true;
        status
    }

    /// Asks the process, and those it started in its group, to end (SIGTERM).
    pub(super) fn terminate(&mut self) {
        #[cfg(unix)]
        self.signal(libc::SIGTERM);
        #[cfg(not(unix))]
        let _ = self.child.kill();
    }

    /// Ends the process, and those it started in its group, at once. A group may outlive the process that leads it: a
    /// shell that was asked to end leaves its program behind.
    pub(super) fn kill(&mut self) {
        #[cfg(unix)]
        self.signal(libc::SIGKILL);
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Sends a signal to the process's group, unless its end was waited for.
    #[cfg(unix)]
    fn signal(&self, signal: libc::c_int) {
        if self.waited {
            return;
        }
        if let Ok(pid) = libc::pid_t::try_from(self.child.id()) {
            // SAFETY: the process leads the group that has its id, and the id is not given to another while the group has
            // members or its leader was not waited for.
            unsafe { libc::kill(-pid, signal) };
        }
    }
}

impl<M> Drop for ChildProcess<M> {
    fn drop(&mut self) {
        self.kill();
    }
}

/// What a process's end looks like to a person.
pub(super) fn describe_end(status: Option<ExitStatus>, tail: &str) -> String {
    #[cfg(unix)]
    let signal = status.and_then(|status| std::os::unix::process::ExitStatusExt::signal(&status));
    #[cfg(not(unix))]
    let signal: Option<i32> = None;
    let how = match (signal, status.and_then(|status| status.code())) {
        (Some(9), _) => "the trial process was killed (signal 9): by hand, or by the kernel for want of memory".into(),
        (Some(signal), _) => format!("the trial process was ended by signal {signal}"),
        (None, Some(code)) => format!("the trial process ended with exit code {code}"),
        (None, None) => "the trial process ended".to_owned(),
    };
    if tail.trim().is_empty() {
        how
    } else {
        format!("{how}: {}", tail.trim())
    }
}

fn read_lines<M: DeserializeOwned>(output: impl Read, sender: &Sender<Line<M>>) {
    for line in BufReader::new(output).split(b'\n') {
        let Ok(line) = line else { return };
        let text = String::from_utf8_lossy(&line);
        if text.trim().is_empty() {
            continue;
        }
        let line = match serde_json::from_str(&text) {
            Ok(message) => Line::Message(message),
            Err(_) => Line::Garbled(text.into_owned()),
        };
        if sender.send(line).is_err() {
            return;
        }
    }
}

/// Reads to the end and keeps the last [`TAIL_BYTES`].
fn tail_of(mut input: impl Read) -> String {
    let (mut tail, mut buffer) = (Vec::new(), [0u8; 1024]);
    while let Ok(count @ 1..) = input.read(&mut buffer) {
        tail.extend_from_slice(&buffer[..count]);
        let surplus = tail.len().saturating_sub(TAIL_BYTES);
        tail.drain(..surplus);
    }
    String::from_utf8_lossy(&tail).into_owned()
}
