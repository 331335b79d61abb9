//! Ctrl-C (SIGINT), SIGTERM from a scheduler, SIGHUP from a terminal that closes: the first one asks, the second one ends.

use super::output::{take_bar_away, tell};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::time::Duration;

use crate::tune::Interrupt;

/// What was signalled.
#[derive(Clone, Debug, Default)]
pub(in crate::cli) struct Signals {
    /// The request that the signals make.
    pub interrupt: Interrupt,
    first: Arc<AtomicU8>,
}

impl Signals {
    /// The exit code that says which signal came first, as a shell reports it; that of Ctrl-C where none came and a
    /// person asked another way.
    pub(in crate::cli) fn exit_code(&self) -> u8 {
        match self.first.load(Relaxed) {
            0 => 130,
            signal => 128 + signal,
        }
    }

    /// Listens from now on. The first signal prints what `reaction` says and requests the interrupt; the second one requests it at once,
    /// and ends the process itself where that takes longer than `in_order`; a third has its usual effect. A signal that the process was
    /// started to ignore (`nohup`) stays ignored.
    ///
    /// # Errors
    /// The system gives no thread or no signals.
    pub(in crate::cli) fn listen(&self, reaction: impl Reaction, in_order: Duration) -> io::Result<()> {
        let heard = self.clone();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (ready, listening) = std::sync::mpsc::channel();
        let wait = move || {
            let all = runtime.block_on(async { stream::Stream::new() });
            let mut all = match all {
                Ok(all) => {
                    let _ = ready.send(Ok(()));
                    all
                }
                Err(error) => {
                    let _ = ready.send(Err(error));
                    return;
                }
            };
            let first = runtime.block_on(all.next());
            heard.first.store(first, Relaxed);
            let first = reaction.first();
            heard.interrupt.request();
            match first {
                First::GoesOn(message) => tell(message),
                First::Ends(message) => {
                    // It shows what is no longer done.
                    take_bar_away();
                    tell(message);
                    std::process::exit(i32::from(heard.exit_code()));
                }
            }
            runtime.block_on(all.next());
            let message = reaction.second();
            heard.interrupt.request_now();
            take_bar_away();
            tell(message);
            stream::restore_default();
            std::thread::sleep(in_order);
            std::process::exit(i32::from(heard.exit_code()));
        };
        std::thread::Builder::new().name("signals".to_owned()).spawn(wait)?;
        // From here on no signal ends the process unheard.
        listening.recv().unwrap_or(Ok(()))?;
        Ok(())
    }
}

/// What the first signal comes to.
pub(in crate::cli) enum First {
    /// What is under way is finished; this is said of it.
    GoesOn(String),
    /// Nothing is under way that would be worth a wait: the process ends behind this.
    Ends(String),
}

/// What a program says of signals, at the moment they come.
pub(in crate::cli) trait Reaction: Send + 'static {
    fn first(&self) -> First;

    /// Message of the second signal, which says what it ends.
    fn second(&self) -> String {
        "stopping now".to_owned()
    }
}

/// One answer, whatever is under way: these words are said and the work goes on.
impl Reaction for &'static str {
    fn first(&self) -> First {
        First::GoesOn((*self).to_owned())
    }
}

/// Listens from now on, as [`Signals::listen`] says.
pub(in crate::cli) fn listen(reaction: impl Reaction, in_order: Duration) -> io::Result<Signals> {
    let signals = Signals::default();
    signals.listen(reaction, in_order)?;
    Ok(signals)
}

/// Whether this process ignores a signal.
pub(in crate::cli) fn is_ignored(signal: libc::c_int) -> bool {
    // SAFETY: a zeroed action is a valid one to be written over, and it outlives the call.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &raw mut action) == 0 && action.sa_sigaction == libc::SIG_IGN
    }
}

mod stream {
    use std::io;

    use tokio::signal::unix::{Signal, SignalKind, signal};

    use super::is_ignored;

    const HEARD: [libc::c_int; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

    /// The signals that are listened to, with their numbers.
    pub(super) struct Stream(Vec<(u8, Signal)>);

    impl Stream {
        pub(super) fn new() -> io::Result<Self> {
            let heard = HEARD.into_iter().filter(|number| !is_ignored(*number));
            let listened = heard.map(|number| {
                let small = u8::try_from(number).unwrap_or_default();
                Ok((small, signal(SignalKind::from_raw(number))?))
            });
            Ok(Self(listened.collect::<io::Result<_>>()?))
        }

        /// The number of the next signal.
        pub(super) async fn next(&mut self) -> u8 {
            std::future::poll_fn(|context| {
                for (number, signal) in &mut self.0 {
                    if signal.poll_recv(context).is_ready() {
                        return std::task::Poll::Ready(*number);
                    }
                }
                std::task::Poll::Pending
            })
            .await
        }
    }

    pub(super) fn restore_default() {
        for signal in HEARD {
            // SAFETY: setting a signal's default action has no precondition; the handler that it replaces is not used
            // again.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
    }
}
