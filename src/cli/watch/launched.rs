//! The command as it runs: its process, its streams, and its end.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::forwarding;
use super::relay::{Relay, follow_size, pipe, terminal_like};
use crate::cli::CliError;
use crate::cli::exit_codes::{CANNOT_RUN, NOT_FOUND};

const OUT: RawFd = libc::STDOUT_FILENO;
const ERR: RawFd = libc::STDERR_FILENO;
/// Time that output may take to pass through once the command has ended; what others hold open goes on passing.
const FAREWELL: Duration = Duration::from_secs(2);
/// Time from one look at the relays to the next.
const TICK: Duration = Duration::from_millis(10);

/// A command that runs.
pub(super) struct Launched {
    /// Process of the command.
    pub process: u32,
    relays: Vec<Relay>,
    /// Controller of the terminal that its output goes through, and the terminal that this shows on.
    terminals: Vec<(File, RawFd)>,
    ended: Receiver<io::Result<ExitStatus>>,
}

/// End of a command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Ending {
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    /// Whether processes that it started go on, or hold its output.
    pub leaves_others: bool,
}

impl Ending {
    /// The exit code as a shell has it.
    pub(super) fn code(self) -> u8 {
        let code = match (self.exit_code, self.signal) {
            (Some(code), _) => code,
            (None, Some(signal)) => 128 + signal,
            (None, None) => 1,
        };
        u8::try_from(code & 0xff).unwrap_or(1)
    }
}

impl Launched {
    /// Starts the command; with `untouched` on this program's own streams.
    ///
    /// # Errors
    /// A command that is not there or cannot be run; a system that gives no pipe or no process.
    pub(super) fn start(words: &[OsString], untouched: bool) -> Result<Self, CliError> {
        let [program, arguments @ ..] = words else {
            return Err(CliError::bad("give the command behind `--`"));
        };
        let mut command = Command::new(program);
        command.args(arguments);
        let mut streams = Streams::default();
        if !untouched {
            streams.connect(&mut command).map_err(CliError::failed)?;
        }
        let (hand_over, handed) = channel::<Child>();
        let (tell, ended) = channel();
        let wait = move || {
            // Nothing comes where the command did not start.
            let Ok(mut child) = handed.recv() else { return };
            // Its number stays its own until no signal goes there any more.
            wait_without_reaping(child.id());
            forwarding::end();
            let _ = tell.send(child.wait());
        };
        // Before the command, which shall not run on where this fails.
        let waiting = std::thread::Builder::new().name("command".to_owned()).spawn(wait);
        waiting.map_err(CliError::failed)?;
        forwarding::begin();
        let spawned = command.spawn();
        // Its own copies of the ends would keep the streams open.
        drop(command);
        let child = spawned.map_err(|error| {
            forwarding::end();
            not_started(program, &error)
        })?;
        let process = child.id();
        forwarding::started(libc::pid_t::try_from(process).unwrap_or(0));
        // The thread waits for it.
        let _ = hand_over.send(child);
        Ok(Self {
            process,
            relays: streams.relays,
            terminals: streams.terminals,
            ended,
        })
    }

    /// Takes the copies of what the command prints: empty from the second time on.
    pub(super) fn take_copies(&mut self) -> Vec<File> {
        self.relays.iter_mut().filter_map(Relay::take_copy).collect()
    }

    /// Waits for the end, at most so long; `None` where the command goes on.
    pub(super) fn wait(&self, most: Duration) -> Option<Ending> {
        let status = match self.ended.recv_timeout(most) {
            Ok(Ok(status)) => status,
            Err(RecvTimeoutError::Timeout) => return None,
            Ok(Err(_)) | Err(RecvTimeoutError::Disconnected) => return Some(Ending::default()),
        };
        Some(Ending {
            exit_code: status.code(),
            signal: status.signal(),
            leaves_others: !self.output_ends(),
        })
    }

    /// Whether all that was printed has passed within the farewell.
    fn output_ends(&self) -> bool {
        let began = Instant::now();
        let mut left: Vec<&Relay> = self.relays.iter().collect();
        loop {
            left.retain(|relay| !relay.has_ended());
            if left.is_empty() {
                return true;
            }
            if began.elapsed() >= FAREWELL {
                return false;
            }
            std::thread::sleep(TICK);
        }
    }

    /// Faults of the copies so far: output that was lost, or that is not in them.
    pub(super) fn losses(&self) -> Vec<&'static str> {
        let lost = self.relays.iter().any(Relay::has_lost);
        let cut = self.relays.iter().any(Relay::has_cut);
        let lost = lost.then_some("a part of the output could not be written: it is lost");
        let cut = cut.then_some("output came faster than it could be read: steps may be missing");
        lost.into_iter().chain(cut).collect()
    }

    /// Asks for the relays that have ended, which are zombies until then.
    pub(super) fn reap(&self) {
        for relay in &self.relays {
            relay.has_ended();
        }
    }

    /// Gives the command's terminals the size of those that they show on.
    pub(super) fn follow_sizes(&mut self) {
        let relays = &self.relays;
        let is_shown = |shown: RawFd| relays.iter().any(|relay| relay.to == shown && !relay.has_ended());
        // Where nothing hands the output on any more the command shall not wait for a reader: the terminal closes.
        self.terminals.retain(|(_, shown)| is_shown(*shown));
        let mut terminals = self.terminals.iter();
        if terminals.any(|(controller, shown)| follow_size(controller.as_raw_fd(), *shown)) {
            forwarding::resized();
        }
    }
}

/// Streams of a command, with what hands them on.
#[derive(Default)]
struct Streams {
    relays: Vec<Relay>,
    terminals: Vec<(File, RawFd)>,
}

impl Streams {
    /// Gives the command streams of its own: terminals where this program's are terminals, else pipes.
    fn connect(&mut self, command: &mut Command) -> io::Result<()> {
        let (out, err) = (io::stdout().is_terminal(), io::stderr().is_terminal());
        if (out && err) || is_same(OUT, ERR) {
            // One terminal, file or pipe, so that the order of both stays.
            let end = if out { self.terminal(OUT)? } else { self.piped(OUT)? };
            command.stdout(Stdio::from(end.try_clone()?)).stderr(Stdio::from(end));
            return Ok(());
        }
        let end = if out { self.terminal(OUT)? } else { self.piped(OUT)? };
        command.stdout(Stdio::from(end));
        let end = if err { self.terminal(ERR)? } else { self.piped(ERR)? };
        command.stderr(Stdio::from(end));
        Ok(())
    }

    fn terminal(&mut self, shown: RawFd) -> io::Result<OwnedFd> {
        let (controller, end) = terminal_like(shown)?;
        self.terminals.push((File::from(controller.try_clone()?), shown));
        self.relays.push(Relay::start(controller, shown)?);
        Ok(end)
    }

    fn piped(&mut self, shown: RawFd) -> io::Result<OwnedFd> {
        let (reader, writer) = pipe()?;
        self.relays.push(Relay::start(reader, shown)?);
        Ok(writer)
    }
}

/// Whether two descriptors are of one file, pipe or terminal.
fn is_same(one: RawFd, other: RawFd) -> bool {
    let file = |descriptor: RawFd| {
        // SAFETY: a plain structure, for which zeros are a value, and which outlives the call.
        unsafe {
            let mut found: libc::stat = std::mem::zeroed();
            (libc::fstat(descriptor, &raw mut found) == 0).then_some((found.st_dev, found.st_ino))
        }
    };
    file(one).is_some_and(|one| file(other) == Some(one))
}

fn not_started(program: &OsStr, error: &io::Error) -> CliError {
    let code = match error.kind() {
        io::ErrorKind::NotFound => NOT_FOUND,
        _ => CANNOT_RUN,
    };
    CliError::NotStarted {
        program: program.to_string_lossy().into_owned(),
        reason: error.to_string(),
        code,
    }
}

/// Waits until a process has ended, and leaves its number to it.
fn wait_without_reaping(process: u32) {
    loop {
        // SAFETY: a plain structure, for which zeros are a value, and which outlives the call.
        let waited = unsafe {
            let mut found: libc::siginfo_t = std::mem::zeroed();
            libc::waitid(libc::P_PID, process, &raw mut found, libc::WEXITED | libc::WNOWAIT)
        };
        if waited == 0 || io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ending_has_the_code_of_a_shell() {
        let of = |exit_code, signal| Ending {
            exit_code,
            signal,
            leaves_others: false,
        };
        assert_eq!(of(Some(3), None).code(), 3);
        assert_eq!(of(None, Some(9)).code(), 137);
        assert_eq!(of(None, Some(15)).code(), 143);
        assert_eq!(of(None, None).code(), 1);
    }
}
