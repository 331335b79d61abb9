//! The trial process's memory between trials: base weights and tokenised data stay loaded, so that the next trial on
//! them starts at once.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use super::rank_group::RankGroup;
use super::trial::{Interruption, TrialRun, failure};
use super::{Task, TrialEvent, TrialRequest};
use crate::profile::{DeviceMemory, HostMemory};
use crate::recipe::{DataSettings, Precision, Recipe};
use crate::study::{FailReason, Metrics, Phase, TrialState};
use crate::train::data::PreparedData;
use crate::train::hub::ModelFiles;
use crate::train::parallel::{Alone, Collective};
use crate::train::{BaseModel, BaseSource, device};

/// What stays loaded between trials. One base model and one data set at a time: what a trial does not use must not
/// count in its memory.
pub(super) struct Session {
    base: Option<(BaseKey, Arc<BaseModel>)>,
    data: Option<(DataKey, Arc<PreparedData>)>,
    /// This process's place among those that share its trials.
    place: Place,
    /// The processes that run trials on several devices.
    group: Option<RankGroup>,
}

/// A device, and the others that work on the same trials.
#[derive(Clone)]
pub(super) struct Place {
    pub(super) device: String,
    pub(super) collective: Arc<dyn Collective>,
}

impl Default for Place {
    fn default() -> Self {
        Self {
            device: device::default_name().to_owned(),
            collective: Arc::new(Alone),
        }
    }
}

#[derive(Clone, PartialEq)]
struct BaseKey {
    model: String,
    precision: Precision,
}

#[derive(Clone, PartialEq)]
struct DataKey {
    model: String,
    settings: DataSettings,
    sequence_length: usize,
    seed: u64,
}

/// What a trial needs before its first step.
pub(super) struct Loaded {
    pub(super) base: BaseSource,
    /// Where the model lies.
    pub(super) folder: std::path::PathBuf,
    pub(super) data: Arc<PreparedData>,
    pub(super) memory: DeviceMemory,
    /// Bytes of the device that others than the engine held before it.
    pub(super) beside_bytes: u64,
    pub(super) seconds: f64,
}

impl Session {
    /// A session that has nothing loaded.
    pub(super) fn new(place: Place) -> Self {
        Self {
            base: None,
            data: None,
            place,
            group: None,
        }
    }

    /// Runs one trial and tells how it ended. Never panics: a panic inside is the trial's crash.
    ///
    /// # Errors
    /// The device's context is lost: only another process can use it, and the end of this one tells of the trial's.
    pub(super) fn run(
        &mut self,
        request: &TrialRequest,
        stopped: &dyn Fn() -> bool,
        emit: &mut dyn FnMut(TrialEvent),
    ) -> std::io::Result<()> {
        let number = request.number;
        let started = Instant::now();
        let mut metrics = Metrics::default();
        let mut phase = Phase::Load;
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let mut emit = |event: TrialEvent| {
                if let TrialEvent::Phase { phase: next, .. } = &event {
                    phase = *next;
                }
                emit(event);
            };
            emit(TrialEvent::Phase {
                number,
                phase: Phase::Load,
            });
            self.trial(request, stopped, &mut emit, &mut metrics)
        }));
        HostMemory::set_limit(None);
        let wall_s = started.elapsed().as_secs_f64();
        let state = match outcome {
            Ok(Ok(())) => TrialState::Complete { metrics },
            Ok(Err(Interruption::Failed(reason))) => TrialState::Failed { reason, metrics },
            Ok(Err(Interruption::DeviceLost { message })) => return Err(std::io::Error::other(message)),
            Ok(Err(Interruption::Stopped { at_step })) => TrialState::Pruned {
                at_step,
                rule: "stopped".to_owned(),
                metrics,
            },
            Err(panic) => {
                // Whatever the panic left behind is not to be trusted.
                *self = Self::new(self.place.clone());
                let reason = FailReason::Crashed {
                    phase,
                    message: panic_message(panic.as_ref()),
                };
                TrialState::Failed { reason, metrics }
            }
        };
        emit(TrialEvent::Ended { number, state, wall_s });
        Ok(())
    }

    fn trial(
        &mut self,
        request: &TrialRequest,
        stopped: &dyn Fn() -> bool,
        emit: &mut dyn FnMut(TrialEvent),
        metrics: &mut Metrics,
    ) -> Result<(), Interruption> {
        let Task::Recipe { recipe, plan } = &request.task else {
            let message = "this process trains recipes; params alone need a command backend".to_owned();
            return Err(Interruption::Failed(FailReason::Invalid { message }));
        };
        if recipe.batch.devices != self.place.collective.ranks() {
            return self.on_ranks(recipe.batch.devices, request, stopped, emit, metrics);
        }
        self.group = None;
        let loaded = self.load(recipe, request.memory_limit_bytes)?;
        TrialRun {
            request,
            recipe,
            loaded,
            stopped,
            collective: &self.place.collective,
            started: Instant::now(),
        }
        .run(plan, emit, metrics)
    }

    /// Runs the trial on as many processes as it has devices. They stay for the next trial on as many.
    fn on_ranks(
        &mut self,
        devices: usize,
        request: &TrialRequest,
        stopped: &dyn Fn() -> bool,
        emit: &mut dyn FnMut(TrialEvent),
        metrics: &mut Metrics,
    ) -> Result<(), Interruption> {
        // Their devices are to be theirs alone.
        (self.base, self.data) = (None, None);
        self.group
            .take_if(|group| group.ranks() != devices || !group.is_whole());
        let group = match self.group.take() {
            Some(group) => group,
            None => RankGroup::start(devices).map_err(invalid)?,
        };
        let (ended, group) = group.run(request, stopped, emit, metrics);
        self.group = group;
        ended
    }

    /// Loads what the recipe needs and is not loaded yet, and lets go of what it does not need.
    fn load(&mut self, recipe: &Recipe, memory_limit_bytes: Option<u64>) -> Result<Loaded, Interruption> {
        let started = Instant::now();
        let base_key = BaseKey {
            model: recipe.model.clone(),
            precision: recipe.precision,
        };
        let data_key = DataKey {
            model: recipe.model.clone(),
            settings: recipe.data.clone(),
            sequence_length: recipe.batch.sequence_length,
            seed: recipe.training.seed,
        };
        let all_train = recipe.adapter.is_none();
        self.base.take_if(|(key, _)| all_train || *key != base_key);
        self.data.take_if(|(key, _)| *key != data_key);
        let files = ModelFiles::resolve_weights(&recipe.model, &mut ()).map_err(invalid)?;
        let data = match &self.data {
            Some((_, data)) => data.clone(),
            None => {
                let data = Arc::new(prepare(recipe, &files)?);
                self.data = Some((data_key, data.clone()));
                data
            }
        };
        let device = match &self.base {
            Some((_, base)) => base.device().clone(),
            None => device::open(&self.place.device).map_err(invalid)?,
        };
        let memory = DeviceMemory::of(&device).map_err(invalid)?;
        device::forget_scratch();
        // What the process holds beside the engine is no part of the trial's memory, and neither is what libraries keep for
        // each thread: whether a thread has it already would be a matter of chance.
        crate::profile::ceilings::warm_threads().map_err(invalid)?;
        let held = self.base.as_ref().map_or(0, |(_, base)| base.bytes() as u64);
        let beside_bytes = memory.in_use_bytes().saturating_sub(held);
        memory.set_limit(memory_limit_bytes.map(|limit| limit.saturating_add(beside_bytes)));
        let base = match &self.base {
            Some((_, base)) => BaseSource::Kept(base.clone()),
            None if all_train => BaseSource::Fresh {
                folder: files.folder.clone(),
                precision: recipe.precision,
                device,
            },
            None => {
                let base = BaseModel::load(&files.folder, recipe.precision, &device)
                    .map_err(|error| failure(error, Phase::Load))?;
                let base = Arc::new(base);
                self.base = Some((base_key, base.clone()));
                BaseSource::Kept(base)
            }
        };
        Ok(Loaded {
            base,
            folder: files.folder,
            data,
            memory,
            beside_bytes,
            seconds: started.elapsed().as_secs_f64(),
        })
    }
}

fn prepare(recipe: &Recipe, files: &ModelFiles) -> Result<PreparedData, Interruption> {
    let prepared = PreparedData::of_recipe(recipe, files).map_err(invalid)?;
    for warning in prepared.warnings() {
        tracing::warn!("{warning}");
    }
    Ok(prepared)
}

/// Input that no setting can mend: the trial is invalid, with the whole chain of causes as its reason.
pub(super) fn invalid(error: impl std::error::Error) -> Interruption {
    Interruption::Failed(FailReason::Invalid {
        message: error.to_string(),
    })
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied());
    format!("the engine panicked: {}", text.unwrap_or("no message"))
}
