//! A process that hands on what the command prints, byte for byte, and a copy of it to whoever watches.
//!
//! Design note: a process and not a thread, so that the run keeps its output however this program ends. What its own writes block on
//! is what the command's would: the reader of the output. The copy never blocks: what does not fit is left out of it.

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use super::forwarding::FORWARDED;

/// Bytes that wait in a pipe: some seconds of a talkative command, which shall neither wait for this program nor be missed by it.
#[cfg(target_os = "linux")]
const WAITING_BYTES: libc::c_int = 1 << 20;
/// Bytes that are handed on at once.
const BLOCK: usize = 1 << 16;
/// Descriptors that the process closes, so that it holds no end of a pipe open that is not its own.
const DESCRIPTORS: RawFd = 1024;
/// Sequence that gives a terminal all of its lines back, the cursor where it is (DECSC, DECSTBM, DECRC).
pub(super) const ALL_LINES: &str = "\u{1b}7\u{1b}[r\u{1b}8";

/// Bits of the process's exit code: a part of the stream could not be written, or did not fit into the copy.
const LOST: libc::c_int = 1;
const CUT: libc::c_int = 2;

/// A process that copies one stream.
#[derive(Debug)]
pub(super) struct Relay {
    process: libc::pid_t,
    /// Descriptor of this program that the stream goes to.
    pub to: RawFd,
    /// Copy of what was handed on, until somebody takes it.
    copy: Option<File>,
    /// Exit code of the process, once it has ended.
    exit_code: Cell<Option<libc::c_int>>,
}

/// What became of a block that was to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Passed {
    All,
    /// A part of it could not be written, on a full disk for one.
    Lost,
    /// Nobody reads any more.
    Closed,
}

impl Relay {
    /// Begins to hand on what comes from `from` to the descriptor `to` of this process, to the end of the stream.
    ///
    /// # Errors
    /// The system gives no pipe or no process.
    pub(super) fn start(from: OwnedFd, to: RawFd) -> io::Result<Self> {
        let (copy, written) = pipe()?;
        let written_fd = written.as_raw_fd();
        // SAFETY: the descriptor is open, and only its flags change.
        unsafe { libc::fcntl(written_fd, libc::F_SETFL, libc::O_NONBLOCK) };
        // SAFETY: the child calls nothing that takes a lock or allocates.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => hand_on(from.as_raw_fd(), to, written_fd),
            process => Ok(Self {
                process,
                to,
                copy: Some(File::from(copy)),
                exit_code: Cell::new(None),
            }),
        }
    }

    /// Takes the copy of what is handed on; `None` from the second time on.
    pub(super) fn take_copy(&mut self) -> Option<File> {
        self.copy.take()
    }

    /// Whether the process has ended, which it does at the end of its stream.
    pub(super) fn has_ended(&self) -> bool {
        if self.exit_code.get().is_some() {
            return true;
        }
        let mut status = 0;
        // SAFETY: the status outlives the call.
        let code = match unsafe { libc::waitpid(self.process, &raw mut status, libc::WNOHANG) } {
            0 => return false,
            // How it ended is not known.
            -1 => 0,
            // One that was killed has lost what it was about to write.
            _ => ExitStatus::from_raw(status).code().unwrap_or(LOST),
        };
        self.exit_code.set(Some(code));
        true
    }

    /// Whether a part of the output could not be written, as far as the process has ended.
    pub(super) fn has_lost(&self) -> bool {
        self.exit_code.get().is_some_and(|code| code & LOST != 0)
    }

    /// Whether a part of the output is not in the copy, as far as the process has ended.
    pub(super) fn has_cut(&self) -> bool {
        self.exit_code.get().is_some_and(|code| code & CUT != 0)
    }
}

/// A pipe whose ends no started program inherits: the one to read, the one to write.
pub(super) fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let (reader, writer) = io::pipe()?;
    widen(writer.as_raw_fd());
    Ok((OwnedFd::from(reader), OwnedFd::from(writer)))
}

/// Gives a pipe more room; where the system has none it stays as it is.
#[cfg(target_os = "linux")]
fn widen(pipe: RawFd) {
    // SAFETY: the descriptor is open, and only its room changes.
    unsafe { libc::fcntl(pipe, libc::F_SETPIPE_SZ, WAITING_BYTES) };
}

#[cfg(not(target_os = "linux"))]
fn widen(_: RawFd) {}

/// Life of the process. Calls nothing that may not be called behind a fork.
fn hand_on(from: RawFd, to: RawFd, copy: RawFd) -> ! {
    // SAFETY: all that follows are system calls on numbers, and on a block of this function that outlives them.
    unsafe {
        // Signals that reach the whole group of a terminal's programs are the command's to answer.
        for signal in FORWARDED.into_iter().chain([libc::SIGPIPE]) {
            libc::signal(signal, libc::SIG_IGN);
        }
        for descriptor in 0..DESCRIPTORS {
            if ![from, to, copy].contains(&descriptor) {
                libc::close(descriptor);
            }
        }
        let mut block = [0u8; BLOCK];
        let mut code = 0;
        // Whether the copy lacks the end of what was handed on last.
        let mut is_cut = false;
        loop {
            let count = libc::read(from, block.as_mut_ptr().cast(), BLOCK);
            let Ok(count) = usize::try_from(count) else {
                match errno() {
                    libc::EINTR => continue,
                    // A terminal whose other end is closed.
                    _ => break,
                }
            };
            if count == 0 {
                break;
            }
            match write_all(to, &block[..count]) {
                Passed::All => {}
                Passed::Lost => code |= LOST,
                Passed::Closed => break,
            }
            // A line that was cut does not go on in a later one.
            if is_cut && libc::write(copy, b"\n".as_ptr().cast(), 1) != 1 {
                continue;
            }
            let written = libc::write(copy, block.as_ptr().cast(), count);
            is_cut = usize::try_from(written) != Ok(count);
            if is_cut {
                code |= CUT;
            }
        }
        if libc::isatty(to) == 1 {
            write_all(to, ALL_LINES.as_bytes());
        }
        libc::_exit(code)
    }
}

/// Writes a block. Where nobody reads any more the command learns it as it would have without this process.
///
/// # Safety
/// `to` is a number of a descriptor, open or not.
unsafe fn write_all(to: RawFd, mut block: &[u8]) -> Passed {
    while !block.is_empty() {
        // SAFETY: the block is as long as is said.
        let written = unsafe { libc::write(to, block.as_ptr().cast(), block.len()) };
        match usize::try_from(written) {
            Ok(written) => block = &block[written.min(block.len())..],
            Err(_) => match errno() {
                libc::EPIPE => return Passed::Closed,
                libc::EINTR => {}
                libc::EAGAIN => {
                    let mut waited = libc::pollfd {
                        fd: to,
                        events: libc::POLLOUT,
                        revents: 0,
                    };
                    // SAFETY: the structure outlives the call.
                    unsafe { libc::poll(&raw mut waited, 1, -1) };
                }
                _ => return Passed::Lost,
            },
        }
    }
    Passed::All
}

/// Error of the last system call.
fn errno() -> libc::c_int {
    io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// A new terminal for a command's output: its controller, and the end that programs write to.
///
/// It has the size and the settings of the terminal at `like`, but changes no byte on its way: that terminal does.
///
/// # Errors
/// The system gives no terminal.
pub(super) fn terminal_like(like: RawFd) -> io::Result<(OwnedFd, OwnedFd)> {
    let (mut controller, mut end) = (-1, -1);
    // SAFETY: plain structures, for which zeros are a value.
    let (mut size, mut settings): (libc::winsize, libc::termios) = unsafe { std::mem::zeroed() };
    // SAFETY: the structures and numbers outlive the calls.
    let opened = unsafe {
        libc::ioctl(like, libc::TIOCGWINSZ, &raw mut size);
        if libc::tcgetattr(like, &raw mut settings) != 0 {
            return Err(io::Error::last_os_error());
        }
        settings.c_oflag &= !libc::OPOST;
        let (null, settings, size) = (std::ptr::null_mut(), &raw mut settings, &raw mut size);
        libc::openpty(&raw mut controller, &raw mut end, null, settings, size)
    };
    if opened != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: both were just opened and belong to nobody else.
    unsafe {
        libc::fcntl(controller, libc::F_SETFD, libc::FD_CLOEXEC);
        libc::fcntl(end, libc::F_SETFD, libc::FD_CLOEXEC);
        Ok((OwnedFd::from_raw_fd(controller), OwnedFd::from_raw_fd(end)))
    }
}

/// Gives a terminal the size of another one; whether it had another size.
pub(super) fn follow_size(controller: RawFd, like: RawFd) -> bool {
    // SAFETY: plain structures, for which zeros are a value, and which outlive the calls.
    unsafe {
        let (mut now, mut had): (libc::winsize, libc::winsize) = std::mem::zeroed();
        let is_known = libc::ioctl(like, libc::TIOCGWINSZ, &raw mut now) == 0
            && libc::ioctl(controller, libc::TIOCGWINSZ, &raw mut had) == 0;
        let is_other = is_known && (now.ws_row, now.ws_col) != (had.ws_row, had.ws_col);
        if is_other {
            libc::ioctl(controller, libc::TIOCSWINSZ, &raw const now);
        }
        is_other
    }
}
