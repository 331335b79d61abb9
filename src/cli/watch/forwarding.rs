//! Signals of this program that go on to the command.
//!
//! A terminal sends its signals to all programs of its group, to the command too; what another process sends reaches this program
//! alone, and is handed on. What is ignored when this program starts stays ignored in both, but for the ends of children.
//!
//! Design note: a signal that another process sends to the whole group (`kill -- -GROUP`, `timeout`) reaches the command directly and
//! through this program, since nothing in it tells it from one that was sent to this program alone. At most one of each kind goes on
//! in a second, so that several senders do not add up.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicI64, Ordering::SeqCst};
use std::time::Instant;

use crate::cli::terminal::signals::is_ignored;

/// Signals that are handed on.
pub(super) const FORWARDED: [libc::c_int; 6] = [
    libc::SIGINT,
    libc::SIGTERM,
    libc::SIGHUP,
    libc::SIGQUIT,
    libc::SIGUSR1,
    libc::SIGUSR2,
];

/// Cause of a signal by the kernel, on Linux.
#[cfg(target_os = "linux")]
const SI_KERNEL: libc::c_int = 0x80;

/// Least time between two signals of one kind that are handed on.
const APART_MS: i64 = 1000;
/// Time of a signal that was never handed on.
const NEVER: i64 = i64::MIN;

/// Time from which the others count.
static BEGAN: OnceLock<Instant> = OnceLock::new();
/// Times at which each of the signals was handed on last, in milliseconds.
static LAST: [AtomicI64; FORWARDED.len()] = [const { AtomicI64::new(NEVER) }; FORWARDED.len()];
/// The command's process; 0 where none runs.
static COMMAND: AtomicI32 = AtomicI32::new(0);
/// A signal that came before the command was there.
static EARLY: AtomicI32 = AtomicI32::new(0);

/// Begins to hand signals on, to a command that is about to start.
pub(super) fn begin() {
    BEGAN.get_or_init(Instant::now);
    for signal in FORWARDED.into_iter().filter(|signal| !is_ignored(*signal)) {
        let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = forward;
        // SAFETY: a zeroed action is a valid one; the handler makes only calls that a handler may make.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler as libc::sighandler_t;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
            libc::sigaction(signal, &raw const action, std::ptr::null_mut());
        }
    }
    // Where ends of children are ignored, which is inherited, nobody learns an exit code.
    // SAFETY: setting a default action has no precondition.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
}

/// Hands on to this process from now on, also what came before it was there.
pub(super) fn started(process: libc::pid_t) {
    COMMAND.store(process, SeqCst);
    let signal = EARLY.swap(0, SeqCst);
    if signal != 0 && is_apart(signal) {
        // SAFETY: sending a signal has no precondition.
        unsafe { libc::kill(process, signal) };
    }
}

/// Ends it, since the command has ended: signals have their usual effect again.
pub(super) fn end() {
    COMMAND.store(0, SeqCst);
    for signal in FORWARDED.into_iter().filter(|signal| !is_ignored(*signal)) {
        // SAFETY: setting a default action has no precondition.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}

/// Tells the command that its terminal has another size.
pub(super) fn resized() {
    let process = COMMAND.load(SeqCst);
    if process > 0 {
        // SAFETY: sending a signal has no precondition.
        unsafe { libc::kill(process, libc::SIGWINCH) };
    }
}

extern "C" fn forward(signal: libc::c_int, cause: *mut libc::siginfo_t, _: *mut libc::c_void) {
    let process = COMMAND.load(SeqCst);
    // SAFETY: the kernel hands a cause that lives as long as the handler runs.
    if unsafe { cause.as_ref() }.is_some_and(|cause| is_of_terminal(signal, cause)) && process > 0 {
        return;
    }
    match process {
        0 => EARLY.store(signal, SeqCst),
        _ if !is_apart(signal) => {}
        // SAFETY: sending a signal has no precondition, and is allowed in a handler.
        process => unsafe {
            libc::kill(process, signal);
        },
    }
}

/// Whether the last signal of this kind was handed on long enough ago; if so, this one is the last from now on.
fn is_apart(signal: libc::c_int) -> bool {
    // A handler may ask for the time; nothing here takes a lock or allocates.
    let now_ms = BEGAN.get().map_or(0, |began| began.elapsed().as_millis());
    let now_ms = i64::try_from(now_ms).unwrap_or(i64::MAX);
    let mut kinds = FORWARDED.iter().zip(&LAST);
    let Some((_, last)) = kinds.find(|(kind, _)| **kind == signal) else {
        return true;
    };
    let before = last.load(SeqCst);
    let is_apart = before == NEVER || now_ms - before >= APART_MS;
    if is_apart {
        last.store(now_ms, SeqCst);
    }
    is_apart
}

/// Whether the terminal sent a signal, to the command as well.
fn is_of_terminal(signal: libc::c_int, cause: &libc::siginfo_t) -> bool {
    let can = [libc::SIGINT, libc::SIGQUIT, libc::SIGHUP].contains(&signal);
    #[cfg(target_os = "linux")]
    let is_kernels = cause.si_code == SI_KERNEL;
    // SAFETY: a signal that no process sent has the number 0 there.
    #[cfg(not(target_os = "linux"))]
    let is_kernels = unsafe { cause.si_pid() } == 0;
    // A terminal that closes tells the leader of its session alone.
    // SAFETY: questions without arguments that could be wrong, which a handler may ask.
    let leads = unsafe { libc::getsid(0) == libc::getpid() };
    can && is_kernels && !(signal == libc::SIGHUP && leads)
}
