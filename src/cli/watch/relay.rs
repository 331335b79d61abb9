//! A process that hands on what the command prints, byte for byte, and a copy of it to whoever watches.
//!
//! Design note: a process and not a thread, so that the run keeps its output however this program ends. What its own writes block on
//! is what the command's would: the reader of the output. The copy never blocks: what does not fit is left out of it.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// Bytes that wait for the watcher: some seconds of a talkative command.
#[cfg(target_os = "linux")]
const COPY_BYTES: libc::c_int = 1 << 20;
/// Bytes that are handed on at once.
const BLOCK: usize = 1 << 16;
/// Descriptors that the process closes, so that it holds no end of a pipe open that is not its own.
const DESCRIPTORS: RawFd = 1024;
/// Sequence that gives a terminal all of its lines back, the cursor where it is (DECSC, DECSTBM, DECRC).
pub(super) const ALL_LINES: &str = "\u{1b}7\u{1b}[r\u{1b}8";

/// Signals that reach the whole group of a terminal's programs, and are the command's to answer.
const UNHEARD: [libc::c_int; 5] = [libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGHUP, libc::SIGPIPE];

/// A process that copies one stream.
#[derive(Debug)]
pub(super) struct Relay {
    process: libc::pid_t,
    /// Copy of what was handed on.
    pub copy: File,
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
        unsafe {
            libc::fcntl(written_fd, libc::F_SETFL, libc::O_NONBLOCK);
            #[cfg(target_os = "linux")]
            libc::fcntl(written_fd, libc::F_SETPIPE_SZ, COPY_BYTES);
        }
        // SAFETY: the child calls nothing that takes a lock or allocates.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => hand_on(from.as_raw_fd(), to, written_fd),
            process => Ok(Self {
                process,
                copy: File::from(copy),
            }),
        }
    }

    /// Whether the process has ended, which it does at the end of its stream.
    pub(super) fn has_ended(&self) -> bool {
        let mut status = 0;
        // SAFETY: the status outlives the call; a process that was waited for already is an error.
        unsafe { libc::waitpid(self.process, &raw mut status, libc::WNOHANG) != 0 }
    }
}

/// A pipe whose ends no started program inherits: the one to read, the one to write.
pub(super) fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let (reader, writer) = io::pipe()?;
    Ok((OwnedFd::from(reader), OwnedFd::from(writer)))
}

/// Life of the process. Calls nothing that may not be called behind a fork.
fn hand_on(from: RawFd, to: RawFd, copy: RawFd) -> ! {
    // SAFETY: all that follows are system calls on numbers, and on a block of this function that outlives them.
    unsafe {
        for signal in UNHEARD {
            libc::signal(signal, libc::SIG_IGN);
        }
        for descriptor in 0..DESCRIPTORS {
            if ![from, to, copy].contains(&descriptor) {
                libc::close(descriptor);
            }
        }
        let mut block = [0u8; BLOCK];
        loop {
            let count = libc::read(from, block.as_mut_ptr().cast(), BLOCK);
            let Ok(count) = usize::try_from(count) else {
                match errno() {
                    libc::EINTR => continue,
                    // A terminal whose other end is closed.
                    _ => break,
                }
            };
            if count == 0 || !write_all(to, &block[..count]) {
                break;
            }
            libc::write(copy, block.as_ptr().cast(), count);
        }
        if libc::isatty(to) == 1 {
            write_all(to, ALL_LINES.as_bytes());
        }
        libc::_exit(0)
    }
}

/// Writes a block; false where nobody reads any more, which the command then learns as it would have without this process. What
/// cannot be written otherwise is lost.
///
/// # Safety
/// `to` is a number of a descriptor, open or not.
unsafe fn write_all(to: RawFd, mut block: &[u8]) -> bool {
    while !block.is_empty() {
        // SAFETY: the block is as long as is said.
        let written = unsafe { libc::write(to, block.as_ptr().cast(), block.len()) };
        match usize::try_from(written) {
            Ok(written) => block = &block[written.min(block.len())..],
            Err(_) => match errno() {
                libc::EPIPE => return false,
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
                _ => return true,
            },
        }
    }
    true
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
