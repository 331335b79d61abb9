//! A child process that speaks JSON lines: its standard output as messages, the tail of its standard error kept.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::RawFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::EvaluatorError;

/// Bytes of standard error that are kept.
const TAIL_BYTES: usize = 4096;

/// How often a child is looked at that was asked to end.
const TICK: Duration = Duration::from_millis(10);

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
    /// How long the program may take to end once it was asked to (SIGTERM); where absent it is ended at once. A launcher has
    /// something to give back: `srun` its place on a node, `kubectl` a pod.
    pub(super) farewell: Option<Duration>,
    /// Shared memory that stays open in the child. Such a child stays in its parent's process group, with which it is ended.
    pub(super) shared: Option<RawFd>,
}

/// What children say, with the number that each was started under: one channel for all of them.
pub(super) type Lines<M> = Sender<(u64, Line<M>)>;

/// A running child. It is killed when dropped, and on Linux when the thread that started it ends.
pub(super) struct ChildProcess {
    child: Child,
    input: Option<ChildStdin>,
    /// Whether its end was waited for after its output was closed.
    waited: bool,
    farewell: Option<Duration>,
}

impl ChildProcess {
    /// Starts `program`, as a rule in a process group of its own, so that a Ctrl-C in the terminal does not reach it: the
    /// coordinator decides what that means for a trial. What it says goes to `lines` under `number`.
    pub(super) fn start<M: DeserializeOwned + Send + 'static>(
        program: &Path,
        arguments: &[String],
        surroundings: &Surroundings,
        (number, lines): (u64, Lines<M>),
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
        if surroundings.shared.is_none() {
            command.process_group(0);
        }
        bind_to_parent(&mut command, surroundings);
        let mut child = command.spawn().map_err(start_error)?;
        let input = child.stdin.take();
        let (Some(output), Some(errors)) = (child.stdout.take(), child.stderr.take()) else {
            return Err(start_error(std::io::Error::other("standard streams are missing")));
        };
        let tail = std::thread::spawn(move || tail_of(errors));
        std::thread::spawn(move || {
            read_lines(output, number, &lines);
            let _ = lines.send((number, Line::Closed(tail.join().unwrap_or_default())));
        });
        Ok(Self {
            child,
            input,
            waited: false,
            farewell: surroundings.farewell,
        })
    }

    /// Writes one object as a line.
    pub(super) fn send(&mut self, message: &impl Serialize) -> std::io::Result<()> {
        let Some(input) = &mut self.input else { return Ok(()) };
        write_line(input, message)
    }

    /// Closes the child's standard input.
    pub(super) fn close_input(&mut self) {
        self.input = None;
    }

    /// The process's id.
    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

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
        self.signal(libc::SIGTERM);
    }

    /// Ends the process, and those it started in its group, after its farewell or at once. A group may outlive the process that leads it: a
    /// shell that was asked to end leaves its program behind.
    pub(super) fn kill(&mut self) {
        if let Some(farewell) = self.farewell.filter(|_| !self.waited) {
            self.terminate();
            let asked = Instant::now();
            while asked.elapsed() < farewell && self.is_alive() {
                std::thread::sleep(TICK);
            }
        }
        self.signal(libc::SIGKILL);
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Sends a signal to the process's group, unless its end was waited for.
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

impl Drop for ChildProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Leaves shared memory open in the child, and lets the kernel end the child when the coordinator is gone, however that
/// ended: what a search left behind would compute beside the next one and disturb its measurements.
fn bind_to_parent(command: &mut Command, surroundings: &Surroundings) {
    let (shared, parent) = (surroundings.shared, std::process::id());
    let signal = match surroundings.farewell {
        Some(_) => libc::SIGTERM,
        None => libc::SIGKILL,
    };
    let prepare = move || {
        // SAFETY: plain numbers, and a call that may be made between fork and exec.
        if shared.is_some_and(|shared| unsafe { libc::fcntl(shared, libc::F_SETFD, 0) } < 0) {
            return Err(std::io::Error::last_os_error());
        }
        #[cfg(target_os = "linux")]
        {
            // SAFETY: as above.
            let (asked, now) = unsafe { (libc::prctl(libc::PR_SET_PDEATHSIG, signal), libc::getppid()) };
            // The parent may have ended before the child asked.
            if asked != 0 || u32::try_from(now) != Ok(parent) {
                return Err(std::io::ErrorKind::BrokenPipe.into());
            }
        }
        #[cfg(not(target_os = "linux"))]
        let _ = (parent, signal);
        Ok(())
    };
    // SAFETY: the closure allocates nothing and touches no lock, as is asked of what runs after a fork.
    unsafe { command.pre_exec(prepare) };
}

/// Writes one object as a line.
pub(super) fn write_line(output: &mut impl Write, message: &impl Serialize) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    output.write_all(&line)?;
    output.flush()
}

/// What a process's end looks like to a person.
pub(super) fn describe_end(status: Option<ExitStatus>, tail: &str) -> String {
    let signal = status.and_then(|status| status.signal());
    let how = match (signal, status.and_then(|status| status.code())) {
        (Some(9), _) => "the trial process was killed (signal 9): by hand, or by the kernel for lack of memory".into(),
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

fn read_lines<M: DeserializeOwned>(output: impl Read, number: u64, lines: &Lines<M>) {
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
        if lines.send((number, line)).is_err() {
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
