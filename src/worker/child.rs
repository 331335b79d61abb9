//! A child process that speaks JSON lines: its standard output as messages, the tail of its standard error kept.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::RawFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::EvaluatorError;
use super::not_a_number::quoted_no_numbers;

/// Bytes of standard error that are kept.
const TAIL_BYTES: usize = 4096;

/// Longest line that is read, in bytes. Messages have a few hundred.
const LINE_BYTES: u64 = 16 << 20;

/// Bytes of a line that is no message that are kept, to be shown.
const SHOWN_BYTES: usize = 2000;

/// Time from one look at a child that was asked to end to the next.
const TICK: Duration = Duration::from_millis(10);

/// A line that a child prints, or the end of its output.
pub(super) enum Line<M> {
    Message(M),
    /// Line that is not a message; its beginning.
    Garbled(String),
    /// Line that is longer than any message.
    TooLong,
    /// End of standard output; the tail of standard error.
    Closed(String),
}

/// Surroundings of a child: by default those of its parent.
#[derive(Clone, Debug, Default)]
pub(super) struct Surroundings {
    pub(super) folder: Option<PathBuf>,
    /// Variables that are set beside the inherited ones.
    pub(super) env: BTreeMap<String, String>,
    /// Time that the program may take to end once it was asked to (SIGTERM); where absent it is ended at once. A
    /// launcher has something to give back: `srun` its place on a node, `kubectl` a pod.
    pub(super) farewell: Option<Duration>,
    /// Shared memory that stays open in the child. Such a child stays in its parent's process group, with which it is ended.
    pub(super) shared: Option<RawFd>,
    /// Whether Ctrl-C, SIGTERM and a closed terminal are its parent's alone to answer: whoever sends them to the group, or to all
    /// processes of a job, wants the parent to end in order.
    pub(super) ignores_signals: bool,
}

/// Lines that children print, with the number that each was started under: one channel for all of them.
pub(super) type Lines<M> = Sender<(u64, Line<M>)>;

/// A running child. It is killed when dropped, and on Linux when the thread that started it ends.
pub(super) struct ChildProcess {
    child: Child,
    input: Option<ChildStdin>,
    /// Whether the child's end was waited for after its output was closed.
    waited: bool,
    farewell: Option<Duration>,
    tail: Tail,
}

/// The last [`TAIL_BYTES`] of standard error so far.
type Tail = Arc<Mutex<Vec<u8>>>;

impl ChildProcess {
    /// Starts `program`, as a rule in a process group of its own, so that a Ctrl-C in the terminal does not reach it:
    /// the coordinator decides what that means for a trial. The lines that it prints go to `lines` under `number`.
    pub(super) fn start<M: DeserializeOwned + Send + 'static>(
        program: &Path,
        arguments: &[String],
        surroundings: &Surroundings,
        number: u64,
        lines: Lines<M>,
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
        let tail = Tail::default();
        let (kept, all) = (Arc::clone(&tail), Arc::clone(&tail));
        let reader = std::thread::Builder::new().spawn(move || keep_tail(errors, &kept));
        let reader = reader.map_err(start_error)?;
        let read = move || {
            read_lines(output, number, &lines);
            let _ = reader.join();
            let _ = lines.send((number, Line::Closed(text_of(&all))));
        };
        std::thread::Builder::new().spawn(read).map_err(start_error)?;
        Ok(Self {
            child,
            input,
            waited: false,
            farewell: surroundings.farewell,
            tail,
        })
    }

    /// The end of what the child wrote to standard error so far.
    pub(super) fn tail(&self) -> String {
        text_of(&self.tail)
    }

    /// Writes one object as a line.
    pub(super) fn send(&mut self, message: &impl Serialize) -> std::io::Result<()> {
        let Some(input) = &mut self.input else { return Ok(()) };
        write_line(input, message)
    }

    /// Hands the child all of its input, in a thread of its own as fast as it reads, and closes it. A child that does not read is
    /// not wrong.
    pub(super) fn feed(&mut self, text: Vec<u8>) {
        let Some(mut input) = self.input.take() else { return };
        let write = move || input.write_all(&text);
        if let Err(error) = std::thread::Builder::new().spawn(write) {
            tracing::warn!(%error, "no thread that hands a program its input");
        }
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

    /// Whether the process has ended; its id stays its own, so that its group can still be signalled.
    pub(super) fn has_ended(&self) -> bool {
        if self.waited {
            return true;
        }
        // SAFETY: a plain structure, for which zeros are a value.
        let mut found: libc::siginfo_t = unsafe { std::mem::zeroed() };
        let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
        // SAFETY: the structure outlives the call.
        let asked = unsafe { libc::waitid(libc::P_PID, self.child.id(), &raw mut found, options) };
        // SAFETY: the call filled the structure, or left its zeros where the child has not ended.
        asked == 0 && unsafe { found.si_pid() } != 0
    }

    /// Ends what the process started in its group, once it has ended itself.
    pub(super) fn end_group(&self) {
        self.signal(libc::SIGKILL);
    }

    /// Waits for the child's end.
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
    let ignored: &[libc::c_int] = match surroundings.ignores_signals {
        true => &[libc::SIGINT, libc::SIGTERM, libc::SIGHUP],
        false => &[],
    };
    let signal = match surroundings.farewell {
        Some(_) => libc::SIGTERM,
        None => libc::SIGKILL,
    };
    let prepare = move || {
        // SAFETY: plain numbers, and a call that may be made between fork and exec.
        if shared.is_some_and(|shared| unsafe { libc::fcntl(shared, libc::F_SETFD, 0) } < 0) {
            return Err(std::io::Error::last_os_error());
        }
        for number in ignored {
            // SAFETY: as above; what is ignored stays so in the program that comes.
            unsafe { libc::signal(*number, libc::SIG_IGN) };
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

/// The end of a trial process in words for people.
pub(super) fn describe_end(status: Option<ExitStatus>, tail: &str) -> String {
    describe_end_of("the trial process", status, tail)
}

/// The end of a process in words for people.
pub(super) fn describe_end_of(process: &str, status: Option<ExitStatus>, tail: &str) -> String {
    let signal = status.and_then(|status| status.signal());
    let how = match (signal, status.and_then(|status| status.code())) {
        (Some(9), _) => format!("{process} was killed (signal 9): by hand, or by the kernel for lack of memory"),
        (Some(signal), _) => format!("{process} was ended by signal {signal}"),
        (None, Some(code)) => format!("{process} ended with exit code {code}"),
        (None, None) => format!("{process} ended"),
    };
    if tail.trim().is_empty() {
        how
    } else {
        format!("{how}: {}", tail.trim())
    }
}

fn read_lines<M: DeserializeOwned>(output: impl Read, number: u64, lines: &Lines<M>) {
    let mut output = BufReader::new(output);
    let mut line = Vec::new();
    loop {
        line.clear();
        match output.by_ref().take(LINE_BYTES).read_until(b'\n', &mut line) {
            Ok(1..) => {}
            Ok(0) | Err(_) => return,
        }
        let message = match line.len() as u64 == LINE_BYTES && !line.ends_with(b"\n") {
            true => {
                line = Vec::new();
                match output.skip_until(b'\n') {
                    Ok(_) => Line::TooLong,
                    Err(_) => return,
                }
            }
            false if line.trim_ascii().is_empty() => continue,
            false => read_line(&line),
        };
        if lines.send((number, message)).is_err() {
            return;
        }
    }
}

/// Reads one line, numbers that are none as texts.
fn read_line<M: DeserializeOwned>(line: &[u8]) -> Line<M> {
    if let Ok(message) = serde_json::from_slice(line) {
        return Line::Message(message);
    }
    let text = std::str::from_utf8(line).map(quoted_no_numbers).unwrap_or_default();
    match serde_json::from_str(&text) {
        Ok(message) => Line::Message(message),
        Err(_) => Line::Garbled(String::from_utf8_lossy(&line[..line.len().min(SHOWN_BYTES)]).into_owned()),
    }
}

/// Reads to the end and keeps the last [`TAIL_BYTES`].
fn keep_tail(mut input: impl Read, kept: &Mutex<Vec<u8>>) {
    let mut buffer = [0u8; 1024];
    while let Ok(count @ 1..) = input.read(&mut buffer) {
        let mut tail = kept.lock().unwrap_or_else(PoisonError::into_inner);
        tail.extend_from_slice(&buffer[..count]);
        let surplus = tail.len().saturating_sub(TAIL_BYTES);
        tail.drain(..surplus);
    }
}

fn text_of(tail: &Mutex<Vec<u8>>) -> String {
    String::from_utf8_lossy(&tail.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_without_end_is_told_and_the_next_is_read() {
        let long = std::io::repeat(b'x').take(3 * LINE_BYTES);
        let output = b"1\n".chain(long).chain(&b"\n2\nno number\n"[..]);
        let (sender, lines) = std::sync::mpsc::channel();
        read_lines::<u64>(output, 0, &sender);
        drop(sender);
        let lines: Vec<Line<u64>> = lines.iter().map(|(_, line)| line).collect();
        assert!(
            matches!(&lines[..], [Line::Message(1), Line::TooLong, Line::Message(2), Line::Garbled(text)] if text == "no number\n")
        );
    }
}
