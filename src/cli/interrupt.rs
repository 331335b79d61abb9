//! Ctrl-C (SIGINT), and SIGTERM from a scheduler: the first one asks, the second one ends.

use std::io;

use crate::tune::Interrupt;

/// Listens from now on. The first signal prints `message` and requests the interrupt; from then on the signals have their
/// usual effect again, so that a second one ends the process at once.
pub fn listen(message: &'static str) -> io::Result<Interrupt> {
    let interrupt = Interrupt::default();
    let requested = interrupt.clone();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let wait = move || {
        if runtime.block_on(first_signal()).is_ok() {
            eprintln!("{message}");
            requested.request();
            restore_default();
        }
    };
    std::thread::Builder::new().name("signals".to_owned()).spawn(wait)?;
    Ok(interrupt)
}

#[cfg(unix)]
async fn first_signal() -> io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        interrupt = tokio::signal::ctrl_c() => interrupt,
        _ = terminate.recv() => Ok(()),
    }
}

#[cfg(unix)]
fn restore_default() {
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY: setting a signal's default action has no precondition; the handler that it replaces is not used again.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}

#[cfg(not(unix))]
async fn first_signal() -> io::Result<()> {
    tokio::signal::ctrl_c().await
}

#[cfg(not(unix))]
fn restore_default() {}
