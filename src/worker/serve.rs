//! The worker's side of the protocol: reads requests, runs trials one after another, writes events.

use std::io::BufRead;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use super::control::{Control, Outbox};
use super::fault::Fault;
use super::mock_session::MockSession;
use super::protocol::{About, ControlMessage, Message, PROTOCOL_VERSION, Request};
use super::runner::Runner;
use super::session::{RankDevice, Session};
use super::{TrialEvent, TrialRequest};
use peft_tune_engine::profile::resident_bytes;

/// Settings that a worker was started with.
#[derive(Debug, Default)]
pub struct ServeSettings {
    /// Facts that the worker tells of itself.
    pub about: About,
    /// The device to compute on; the first GPU, or the CPU, where none is named.
    pub device: Option<String>,
    /// Seconds that a made-up trial takes; trials are real where it is absent. For tests of what is around them.
    pub mock_s: Option<f64>,
    /// Faults to cause, as `Fault` reads them. For tests.
    pub fault: Option<String>,
}

/// Serves requests until `input` ends or the coordinator asks to stop. `on_alone` is called, on another thread, when
/// `input` has ended: the trial under way is then asked to stop, which takes until the end of its step.
///
/// # Errors
/// `output` cannot be written, which means that nobody listens any more; the coordinator speaks another version; or the
/// GPU's context is lost, which only the end of the process mends.
pub fn serve(
    settings: ServeSettings,
    input: impl BufRead + Send + 'static,
    output: impl std::io::Write + Send + 'static,
    on_alone: impl FnOnce() + Send + 'static,
) -> std::io::Result<()> {
    let fault = Fault::read(settings.fault.as_deref()).map_err(std::io::Error::other)?;
    let outbox = Outbox::new(output);
    let control = Control::new(outbox.clone());
    outbox.say(&Message::Control(ControlMessage::Hello {
        protocol: PROTOCOL_VERSION,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        about: Box::new(settings.about),
    }))?;
    let mut runner: Box<dyn Runner> = match settings.mock_s {
        Some(seconds) => Box::new(MockSession::new(seconds, fault)),
        None => Box::new(Session::new(RankDevice::on(settings.device), fault)),
    };
    let trials = read_requests(input, control.clone(), outbox.clone(), on_alone);
    while let Ok(trial) = trials.recv() {
        let mut failed = None;
        let mut more = || match trials.try_recv().ok()? {
            Ok(request) => Some(request),
            Err(error) => {
                failed.get_or_insert(error);
                None
            }
        };
        run_one(runner.as_mut(), trial?, &mut more, &control, &outbox)?;
        failed.map_or(Ok(()), Err)?;
    }
    if !control.is_alone() {
        outbox.say(&Message::Control(ControlMessage::Bye))?;
    }
    Ok(())
}

fn run_one(
    runner: &mut dyn Runner,
    request: TrialRequest,
    more: &mut dyn FnMut() -> Option<TrialRequest>,
    control: &Control,
    outbox: &Outbox,
) -> std::io::Result<()> {
    let mut failed_write = None;
    let mut emit = |event: TrialEvent| {
        if let Err(error) = outbox.say(&Message::Trial(event)) {
            failed_write.get_or_insert(error);
            control.coordinator_gone();
        }
    };
    control.under_way(Some(request.number));
    let ran = runner.run(request, more, control, &mut emit);
    control.under_way(None);
    ran?;
    failed_write.map_or(Ok(()), Err)
}

/// Reads requests in a thread of its own, so that a cancellation arrives while a trial runs. The trials come in order; an
/// error among them is the last.
fn read_requests(
    input: impl BufRead + Send + 'static,
    control: Control,
    outbox: Outbox,
    on_alone: impl FnOnce() + Send + 'static,
) -> Receiver<std::io::Result<TrialRequest>> {
    let (sender, receiver) = channel();
    let failed = sender.clone();
    let read = move || {
        let mut trials = Some(sender);
        for line in input.lines() {
            let Ok(line) = line else { break };
            match serde_json::from_str::<Request>(&line) {
                Ok(request) => take(request, &mut trials, &control, &outbox),
                Err(error) => tracing::error!(%error, line, "not a request"),
            }
        }
        control.coordinator_gone();
        drop(trials);
        on_alone();
    };
    if let Err(error) = std::thread::Builder::new().name("requests".to_owned()).spawn(read) {
        let _ = failed.send(Err(error));
    }
    receiver
}

fn take(
    request: Request,
    trials: &mut Option<Sender<std::io::Result<TrialRequest>>>,
    control: &Control,
    outbox: &Outbox,
) {
    match request {
        Request::Hello {
            protocol: PROTOCOL_VERSION,
            heartbeat_s,
            take_turns,
            together,
            ..
        } => {
            control.take_turns(take_turns);
            control.train_together(together);
            start_heartbeat(heartbeat_s, control.clone(), outbox.clone());
        }
        Request::Hello { protocol, version, .. } => {
            let message = format!(
                "the coordinator speaks protocol {protocol} (peft-tune {version}), this worker speaks \
                 {PROTOCOL_VERSION}: use the same peft-tune on both sides"
            );
            if let Some(trials) = trials.take() {
                let _ = trials.send(Err(std::io::Error::other(message)));
            }
        }
        Request::Trial(request) => {
            control.begin(request.number);
            if let Some(trials) = trials {
                // The other end is gone only where the process is about to end.
                let _ = trials.send(Ok(*request));
            }
        }
        Request::Cancel { number } => control.cancel(number),
        Request::Hold { turn } => control.hold(turn),
        Request::Resume => control.resume(),
        Request::Measure { number } => control.grant(number),
        Request::Stop => *trials = None,
    }
}

/// Tells every few seconds that this process lives, whatever its computing thread does.
fn start_heartbeat(every_s: f64, control: Control, outbox: Outbox) {
    let Some(every) = Duration::try_from_secs_f64(every_s)
        .ok()
        .filter(|every| !every.is_zero())
    else {
        return;
    };
    let beat = move || {
        loop {
            std::thread::sleep(every);
            let beat = ControlMessage::Heartbeat {
                number: control.trial(),
                resident_bytes: resident_bytes(),
            };
            if outbox.say(&Message::Control(beat)).is_err() {
                return control.coordinator_gone();
            }
        }
    };
    if let Err(error) = std::thread::Builder::new().name("heartbeat".to_owned()).spawn(beat) {
        tracing::error!(%error, "no thread for heartbeats: the coordinator will take this worker for dead");
    }
}
