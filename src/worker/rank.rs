//! One device of a trial that runs on several: a process that computes its share, and meets the others in shared memory.
//!
//! It gets [`Order`]s on its standard input, a JSON object a line, and prints a trial's events as a worker does. All ranks
//! get the same trials and go through them in step; which events are passed on, and what the end of a rank means for
//! the others, is up to the process that started them.

use std::io::{BufRead, Write};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::child::write_line;
use super::control::{Control, Outbox};
use super::fault::Fault;
use super::protocol::Message;
use super::serve::Runner;
use super::session::{RankDevice, Session};
use super::{TrialEvent, TrialRequest};
use peft_tune_core::study::TrialNumber;
use peft_tune_engine::parallel::{Collective, CollectiveError, Segment, SharedMemory};
use peft_tune_kernels::device;
use peft_tune_kernels::device::DeviceError;

/// Which rank a process is.
#[derive(Clone, Debug)]
pub struct RankSettings {
    /// From 0.
    pub rank: usize,
    pub ranks: usize,
    /// Descriptor of the memory that the ranks share.
    pub segment: RawFd,
    /// How long the others may take to arrive at a meeting.
    pub patience: Duration,
    /// What it computes on; where it is not told, the GPU of its number, if there are any.
    pub device: Option<String>,
}

/// What a rank is told.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Order {
    Trial(Box<TrialRequest>),
    /// Stop this trial after the step it is in.
    Stop(TrialNumber),
}

/// Why a process cannot be a rank.
#[derive(Debug, thiserror::Error)]
pub enum RankError {
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error("cannot write to the process that started this rank: {0}")]
    Write(#[from] std::io::Error),
}

/// Runs this rank's share of trials until `input` ends.
///
/// # Errors
/// Memory that is none of a training's, a device that does not answer, an output that nobody reads.
pub fn serve_rank(
    settings: &RankSettings,
    input: impl BufRead + Send + 'static,
    mut output: impl Write,
) -> Result<(), RankError> {
    let mut session = Session::new(device_of(settings)?, Fault::default());
    // Nobody holds a rank or tells it when to measure: that is settled with the process that started it.
    let control = Control::new(Outbox::new(std::io::sink()));
    for request in read_orders(input, control.clone()) {
        let mut written = Ok(());
        let mut emit = |event: TrialEvent| {
            if written.is_ok() {
                written = write_line(&mut output, &Message::Trial(event));
            }
        };
        session.run(&request, &control, &mut emit)?;
        written?;
    }
    Ok(())
}

/// The device of this rank, linked with those of the others.
fn device_of(settings: &RankSettings) -> Result<RankDevice, RankError> {
    let segment = Arc::new(Segment::inherited(settings.segment, settings.ranks)?);
    let shared = SharedMemory::new(segment, settings.rank, settings.patience)?;
    let device = match (&settings.device, device::default_name()) {
        (Some(named), _) => named.clone(),
        (None, "cuda") => format!("cuda:{}", settings.rank),
        (None, host) => host.to_owned(),
    };
    let collective = linked(shared, &device)?;
    Ok(RankDevice { device, collective })
}

#[cfg(not(feature = "nccl"))]
fn linked(shared: SharedMemory, _device: &str) -> Result<Arc<dyn Collective>, RankError> {
    Ok(Arc::new(shared))
}

#[cfg(feature = "nccl")]
fn linked(shared: SharedMemory, device: &str) -> Result<Arc<dyn Collective>, RankError> {
    let device = device::open(device)?;
    Ok(match device.is_cpu() {
        true => Arc::new(shared),
        false => Arc::new(peft_tune_engine::parallel::Nccl::new(shared, &device)?),
    })
}

/// Reads orders in a thread of its own, so that a stop arrives while a trial runs.
fn read_orders(input: impl BufRead + Send + 'static, control: Control) -> Receiver<TrialRequest> {
    let (sender, receiver) = channel();
    let read = move || {
        for line in input.lines() {
            let Ok(line) = line else { break };
            match serde_json::from_str(&line) {
                Ok(Order::Trial(request)) => {
                    control.begin(request.number);
                    if sender.send(*request).is_err() {
                        return;
                    }
                }
                Ok(Order::Stop(number)) => control.cancel(number),
                Err(error) => tracing::error!(%error, line, "not a request"),
            }
        }
    };
    if let Err(error) = std::thread::Builder::new().name("orders".to_owned()).spawn(read) {
        tracing::error!(%error, "no thread to read orders with");
    }
    receiver
}
