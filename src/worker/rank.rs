//! One device of a trial or a training that runs on several: a process that computes its share, and meets the others in shared memory.
//!
//! It gets [`Order`]s on its standard input, a JSON object a line, and prints a trial's events as a worker does. All ranks
//! get the same trials and go through them in step; which events are passed on, and what the end of a rank means for
//! the others, is up to the process that started them. A training is one order, of which rank 0 tells the rest through the
//! memory that all share.

use std::io::{BufRead, Write};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use super::child::write_line;
use super::control::{Control, Outbox};
use super::fault::Fault;
use super::orders::{Order, TrainingOrder};
use super::protocol::Message;
use super::runner::Runner;
use super::session::{RankDevice, Session};
use super::{TrialEvent, TrialRequest};
use peft_tune_engine::data::PreparedData;
use peft_tune_engine::hub::{HubError, ModelFiles};
use peft_tune_engine::parallel::{Collective, CollectiveError, Segment, SharedMemory};
use peft_tune_engine::run::{FollowingRun, RunError, RunInputs};
use peft_tune_engine::{RankShare, load_base};
use peft_tune_kernels::device;
use peft_tune_kernels::device::DeviceError;

/// Identity and device of a rank's process.
#[derive(Clone, Debug)]
pub struct RankSettings {
    /// Number of the rank, from 0.
    pub rank: usize,
    pub ranks: usize,
    /// Descriptor of the memory that the ranks share.
    pub segment: RawFd,
    /// Time that the other ranks may take to arrive at a meeting.
    pub patience: Duration,
    /// Device to compute on; where it is not told, the GPU of the rank's number, if there are any.
    pub device: Option<String>,
}

/// Work that a rank computes next.
enum Task {
    Trial(Box<TrialRequest>),
    Training(Box<TrainingOrder>),
}

/// Reason why a process cannot be a rank.
#[derive(Debug, thiserror::Error)]
pub enum RankError {
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error("cannot write to the process that started this rank: {0}")]
    Write(#[from] std::io::Error),
    #[error(transparent)]
    Files(Box<HubError>),
    #[error(transparent)]
    Training(Box<RunError>),
}

// Design note: the large errors are boxed, so that a `Result` that is nearly always `Ok` stays small.
impl From<HubError> for RankError {
    fn from(error: HubError) -> Self {
        Self::Files(Box::new(error))
    }
}

impl From<RunError> for RankError {
    fn from(error: RunError) -> Self {
        Self::Training(Box::new(error))
    }
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
    let rank = device_of(settings)?;
    let mut session = Session::new(rank.clone(), Fault::default());
    // Nobody holds a rank or tells it when to measure: that is settled with the process that started it.
    let control = Control::new(Outbox::new(std::io::sink()));
    for task in read_orders(input, control.clone()) {
        let request = match task {
            Task::Trial(request) => request,
            Task::Training(order) => return follow(*order, rank),
        };
        let mut written = Ok(());
        let mut emit = |event: TrialEvent| {
            if written.is_ok() {
                written = write_line(&mut output, &Message::Trial(event));
            }
        };
        session.run(*request, &mut || None, &control, &mut emit)?;
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

/// Takes part in a training until that ends.
fn follow(order: TrainingOrder, rank: RankDevice) -> Result<(), RankError> {
    let TrainingOrder { recipe, output } = order;
    let files = ModelFiles::resolve_weights(&recipe.model, &mut ())?;
    let data = PreparedData::of_training(&recipe, &files).map_err(RunError::from)?;
    let (share, device) = (
        RankShare::of(&recipe, rank.collective.as_ref()),
        device::open(&rank.device)?,
    );
    let base = load_base(&files.folder, &recipe, &data, share, &device).map_err(RunError::from)?;
    let inputs = RunInputs {
        base: Arc::new(base),
        model_folder: files.folder,
        recipe,
        data,
    };
    let run = FollowingRun::open(&inputs, &output, rank.collective)?;
    // Where all parameters train, they have been copied.
    drop(inputs);
    Ok(run.run()?)
}

#[cfg(not(feature = "nccl"))]
pub(super) fn linked(shared: SharedMemory, _device: &str) -> Result<Arc<dyn Collective>, RankError> {
    Ok(Arc::new(shared))
}

#[cfg(feature = "nccl")]
pub(super) fn linked(shared: SharedMemory, device: &str) -> Result<Arc<dyn Collective>, RankError> {
    let device = device::open(device)?;
    Ok(match device.is_cpu() {
        true => Arc::new(shared),
        false => Arc::new(peft_tune_engine::parallel::Nccl::new(shared, &device)?),
    })
}

/// Reads orders in a thread of its own, so that a stop arrives while a trial runs.
fn read_orders(input: impl BufRead + Send + 'static, control: Control) -> Receiver<Task> {
    let (sender, receiver) = channel();
    let read = move || {
        for line in input.lines() {
            let Ok(line) = line else { break };
            match serde_json::from_str(&line) {
                Ok(Order::Trial(request)) => {
                    control.begin(request.number);
                    if sender.send(Task::Trial(request)).is_err() {
                        return;
                    }
                }
                Ok(Order::Train(order)) => {
                    if sender.send(Task::Training(order)).is_err() {
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
