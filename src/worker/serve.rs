//! The worker's side of the protocol: reads requests, runs trials one after another, writes events.

use std::io::{BufRead, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};

use super::protocol::{ControlMessage, Message, PROTOCOL_VERSION, Request};
use super::session::{Place, Session};
use super::{TrialEvent, TrialRequest};
use crate::study::TrialNumber;

/// Number that no trial has.
const NO_TRIAL: u64 = u64::MAX;

/// Which trial is to stop, told by the thread that reads requests to the one that runs them.
#[derive(Clone)]
pub(super) struct StopSignal {
    cancelled: Arc<AtomicU64>,
    coordinator_gone: Arc<AtomicBool>,
}

impl StopSignal {
    pub(super) fn new() -> Self {
        Self {
            cancelled: Arc::new(AtomicU64::new(NO_TRIAL)),
            coordinator_gone: Arc::new(AtomicBool::new(false)),
        }
    }

    /// Whether trial `number` should end after the step it is in.
    pub(super) fn is_set(&self, number: TrialNumber) -> bool {
        self.coordinator_gone.load(Relaxed) || self.cancelled.load(Relaxed) == number.0
    }
}

/// Serves requests until `input` ends. Returns an error when `output` cannot be written, which means that nobody
/// listens any more, and when the GPU's context is lost, which only the end of the process mends.
pub fn serve(input: impl BufRead + Send + 'static, output: impl Write + Send) -> std::io::Result<()> {
    let output = Mutex::new(output);
    let hello = ControlMessage::Hello {
        protocol: PROTOCOL_VERSION,
        version: env!("CARGO_PKG_VERSION").to_owned(),
    };
    write_line(&output, &Message::Control(hello))?;
    let stop = StopSignal::new();
    let requests = read_requests(input, stop.clone());
    let mut session = Session::new(Place::default());
    for request in requests {
        let number = request.number;
        let mut failed_write = None;
        let mut emit = |event: TrialEvent| {
            if let Err(error) = write_line(&output, &Message::Trial(event)) {
                failed_write.get_or_insert(error);
                stop.coordinator_gone.store(true, Relaxed);
            }
        };
        session.run(&request, &|| stop.is_set(number), &mut emit)?;
        if let Some(error) = failed_write {
            return Err(error);
        }
    }
    Ok(())
}

/// Reads requests in a thread of its own, so that a cancellation arrives while a trial runs.
fn read_requests(input: impl BufRead + Send + 'static, stop: StopSignal) -> Receiver<TrialRequest> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for line in input.lines() {
            let Ok(line) = line else { break };
            match serde_json::from_str(&line) {
                Ok(Request::Trial(request)) => {
                    // A trial that was cancelled before may be run again under its number.
                    let number = request.number.0;
                    let _ = stop.cancelled.compare_exchange(number, NO_TRIAL, Relaxed, Relaxed);
                    if sender.send(*request).is_err() {
                        break;
                    }
                }
                Ok(Request::Cancel { number }) => stop.cancelled.store(number.0, Relaxed),
                Err(error) => tracing::error!(%error, line, "not a request"),
            }
        }
        stop.coordinator_gone.store(true, Relaxed);
    });
    receiver
}

fn write_line(output: &Mutex<impl Write>, message: &Message) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    // A poisoned lock only means that another thread panicked between two whole lines.
    let mut output = output.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    output.write_all(&line)?;
    output.flush()
}
