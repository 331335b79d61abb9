//! The trial process's memory between trials: base weights and tokenised data stay loaded, so that the next trial on
//! them starts at once.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::control::Control;
use super::fault::Fault;
use super::interruption::{Interruption, failure, invalid, state_of};
use super::limits::MemoryLimit;
use super::rank_group::RankGroup;
use super::runner::Runner;
use super::trial::{Training, TrialRun, kernels_of};
use super::trial_group::{BrokenStep, Joined, Member, TrialGroup, WorkerContext, may_share, parts, with_faults};
use super::trial_inputs::{BaseKey, DataKey, InputKeys, KeptInputs, TrialInputs};
use super::trial_memory::TrialMemory;
use super::{TrialEvent, TrialRequest};
use peft_tune_core::panic::panic_message;
use peft_tune_core::recipe::Recipe;
use peft_tune_core::study::{FailReason, Metrics, Phase, with_causes};
use peft_tune_engine::data::PreparedData;
use peft_tune_engine::hub::ModelFiles;
use peft_tune_engine::parallel::{Alone, Collective};
use peft_tune_engine::profile::{DeviceMemory, HostMemory};
use peft_tune_engine::{BaseModel, BaseSource, Together, load_base};
use peft_tune_kernels::device::Device;
use peft_tune_kernels::{device, forget_launched, set_kernels};

/// Base model and data that stay loaded between trials, one of each at a time: what a trial does not use must not count
/// in its memory.
pub(super) struct Session {
    kept: KeptInputs,
    /// Device of this process, linked with the others that share its trials.
    rank: RankDevice,
    /// The processes that run trials on several devices.
    group: Option<RankGroup>,
    fault: Fault,
    limit: MemoryLimit,
}

/// A device, and the others that work on the same trials.
#[derive(Clone)]
pub(super) struct RankDevice {
    pub(super) device: String,
    pub(super) collective: Arc<dyn Collective>,
}

impl RankDevice {
    /// A device on its own; the first GPU, or the CPU, where none is named.
    pub(super) fn on(device: Option<String>) -> Self {
        Self {
            device: device.unwrap_or_else(|| device::default_name().to_owned()),
            collective: Arc::new(Alone),
        }
    }
}

/// A trial that begins.
struct BegunTrial<'a> {
    request: &'a TrialRequest,
    started: Instant,
    /// Time that others had.
    waited: &'a Cell<Duration>,
}

impl Session {
    /// A session that has nothing loaded.
    pub(super) fn new(rank: RankDevice, fault: Fault) -> Self {
        Self {
            kept: KeptInputs::default(),
            rank,
            group: None,
            fault,
            limit: MemoryLimit::of_this_process(),
        }
    }
}

impl Runner for Session {
    /// Runs a trial, and those that train beside it, and tells how each ended. Never panics: a panic inside is the
    /// trial's crash.
    ///
    /// # Errors
    /// The device's context is lost: only another process can use it, and the end of this one tells of the trial's.
    fn run(
        &mut self,
        request: TrialRequest,
        more: &mut dyn FnMut() -> Option<TrialRequest>,
        control: &Control,
        emit: &mut dyn FnMut(TrialEvent),
    ) -> std::io::Result<()> {
        let mut group = TrialGroup::default();
        let mut next = Some(request);
        loop {
            if let Some(request) = next.take() {
                let began = Instant::now();
                let member = self.begin(request, &group, control, emit)?;
                group.wait(began.elapsed());
                member.into_iter().for_each(|member| group.join(member));
            } else if !group.is_empty() {
                self.step_group(&mut group, control, emit)?;
            } else {
                break;
            }
            // Without a group the next one comes as this one did.
            if !group.is_empty() {
                next = more();
            }
        }
        HostMemory::set_limit(None);
        Ok(())
    }
}

impl Session {
    /// Runs one trial but for a training that joins the group's.
    fn begin(
        &mut self,
        request: TrialRequest,
        group: &TrialGroup,
        control: &Control,
        emit: &mut dyn FnMut(TrialEvent),
    ) -> std::io::Result<Option<Member>> {
        let number = request.number;
        let started = Instant::now();
        let mut metrics = Metrics::default();
        let mut phase = Phase::Load;
        let waited = Cell::new(Duration::ZERO);
        let fault = self.fault.clone();
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let mut told = with_faults(&request, &fault, emit);
            let mut emit = |event: TrialEvent| {
                if let TrialEvent::Phase { phase: next, .. } = &event {
                    phase = *next;
                }
                told(event);
            };
            emit(TrialEvent::Phase {
                number,
                phase: Phase::Load,
            });
            let trial = BegunTrial {
                request: &request,
                started,
                waited: &waited,
            };
            self.trial(&trial, group, control, &mut emit, &mut metrics)
        }));
        HostMemory::set_limit(None);
        self.limit.set(None);
        let outcome = match outcome {
            Ok(Ok(Some((loaded, training)))) => {
                let joined = Joined {
                    request,
                    loaded,
                    started,
                    waited,
                };
                return Ok(Some(Member::new(joined, training, metrics)));
            }
            Ok(Ok(None)) => Ok(()),
            Ok(Err(Interruption::DeviceLost { message, .. })) => return Err(std::io::Error::other(message)),
            Ok(Err(interruption)) => Err(interruption),
            Err(panic) => {
                // Whatever the panic left behind is not to be trusted.
                (self.kept, self.group) = (KeptInputs::default(), None);
                Err(Interruption::Failed(panicked(panic.as_ref(), phase)))
            }
        };
        let wall_s = started.elapsed().saturating_sub(waited.get()).as_secs_f64();
        let state = state_of(outcome, metrics);
        emit(TrialEvent::Ended { number, state, wall_s });
        Ok(None)
    }

    /// One step of trainings that go through the base together.
    fn step_group(
        &mut self,
        group: &mut TrialGroup,
        control: &Control,
        emit: &mut dyn FnMut(TrialEvent),
    ) -> std::io::Result<()> {
        group.set_limit();
        let fp32_accuracies = RefCell::default();
        let around = WorkerContext {
            control,
            collective: &self.rank.collective,
            fault: &self.fault,
            fp32_accuracies: &fp32_accuracies,
        };
        let stepped = catch_unwind(AssertUnwindSafe(|| group.step(&around, emit)));
        match stepped {
            Ok(Ok(())) => {}
            Ok(Err(BrokenStep::DeviceLost { message, is_kernels })) => {
                let fault = is_kernels.then(|| message.clone());
                group
                    .numbers()
                    .for_each(|number| emit(kernels_of(number, fault.clone())));
                return Err(std::io::Error::other(message));
            }
            Ok(Err(BrokenStep::All(reason))) => group.give_back(&reason, emit),
            Err(panic) => {
                (self.kept, self.group) = (KeptInputs::default(), None);
                group.give_back(&panicked(panic.as_ref(), Phase::Train), emit);
            }
        }
        Ok(())
    }

    /// Runs a trial; returns its inputs and its training where that joins the group's.
    fn trial(
        &mut self,
        trial: &BegunTrial<'_>,
        group: &TrialGroup,
        control: &Control,
        emit: &mut dyn FnMut(TrialEvent),
        metrics: &mut Metrics,
    ) -> Result<Option<(TrialInputs, Training)>, Interruption> {
        let BegunTrial {
            request,
            started,
            waited,
        } = *trial;
        if let Some(kernels) = request.kernels {
            set_kernels(kernels);
        }
        let Some((recipe, plan)) = parts(request) else {
            let message = "this process trains recipes; params alone need a command backend".to_owned();
            return Err(Interruption::Failed(FailReason::Invalid { message }));
        };
        if recipe.batch.devices != self.rank.collective.ranks() {
            if plan.measure.is_some() {
                waited.set(waited.get() + control.wait_for_turn(request.number));
            }
            let stopped = || control.is_stopped(request.number);
            let ended = self.on_ranks(recipe.batch.devices, request, &stopped, emit, metrics);
            return ended.map(|()| None);
        }
        self.group = None;
        forget_launched();
        let evaluation_rows = plan.train.as_ref().and_then(|train| train.evaluation_rows);
        let fp32_accuracies = RefCell::new(std::mem::take(&mut self.kept.fp32_accuracies));
        let loaded = self.load(recipe, evaluation_rows, request.memory_limit_bytes);
        let ended = loaded.and_then(|loaded| {
            let run = TrialRun {
                request,
                recipe,
                loaded: &loaded,
                fp32_accuracies: &fp32_accuracies,
                control,
                waited,
                collective: &self.rank.collective,
                fault: &self.fault,
                started,
                joins: control.trains_together() && joins(request, &loaded) && group.takes(recipe),
            };
            let training = run.run(plan, emit, metrics)?;
            Ok(training.map(|training| (loaded, training)))
        });
        self.kept.fp32_accuracies = fp32_accuracies.into_inner();
        if !matches!(ended, Ok(Some(_))) {
            emit(kernels_of(request.number, fault_of(&ended)));
        }
        ended
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
        self.kept = KeptInputs::default();
        self.group.take_if(|group| {
            group.ranks() != devices || group.assignments() != request.assignments || !group.is_whole()
        });
        let group = match self.group.take() {
            Some(group) => group,
            None => RankGroup::start(devices, &request.assignments).map_err(invalid)?,
        };
        let (ended, group) = group.run(request, stopped, emit, metrics);
        self.group = group;
        ended
    }

    /// Loads what the recipe needs and is not loaded yet, and releases what it does not need.
    fn load(
        &mut self,
        recipe: &Recipe,
        evaluation_rows: Option<usize>,
        memory_limit_bytes: Option<u64>,
    ) -> Result<TrialInputs, Interruption> {
        let started = Instant::now();
        let keys = InputKeys::of(recipe, self.rank.collective.as_ref());
        let [untrained, untrained_dense] = self.kept.untrained(&keys, recipe, evaluation_rows);
        let all_train = recipe.adapter.is_none();
        self.kept.base.take_if(|(key, _)| all_train || *key != keys.base);
        self.kept.data.take_if(|(key, _)| *key != keys.data);
        let files = ModelFiles::resolve_weights(&recipe.model, &mut ()).map_err(invalid)?;
        let data = self.data(keys.data, recipe, &files)?;
        let device = self.device()?;
        let memory = self.limit_memory(&device, &files.folder, memory_limit_bytes)?;
        let base = match &self.kept.base {
            Some((_, base)) => BaseSource::Kept(base.clone()),
            None if all_train => BaseSource::Fresh {
                folder: files.folder.clone(),
                precision: recipe.precision,
                device,
            },
            None => {
                let base = load_base(&files.folder, recipe, &data, keys.base.share, &device);
                let base = base.map_err(|error| failure(error, Phase::Load))?;
                self.keep_base(keys.base, Arc::new(base), &memory)
            }
        };
        Ok(TrialInputs {
            base,
            folder: files.folder,
            data,
            untrained,
            untrained_dense,
            served: Arc::clone(&self.kept.served),
            memory,
            seconds: started.elapsed().as_secs_f64(),
        })
    }

    /// The data of a recipe, prepared where they are not kept.
    fn data(&mut self, key: DataKey, recipe: &Recipe, files: &ModelFiles) -> Result<Arc<PreparedData>, Interruption> {
        if let Some((_, data)) = &self.kept.data {
            return Ok(data.clone());
        }
        let data = Arc::new(prepare(recipe, files)?);
        self.kept.data = Some((key, data.clone()));
        Ok(data)
    }

    /// The device of the base model that is kept, or the process's own, opened.
    fn device(&self) -> Result<Device, Interruption> {
        if let Some((_, base)) = &self.kept.base {
            return Ok(base.device().clone());
        }
        device::open(&self.rank.device).map_err(|error| Interruption::DeviceLost {
            message: with_causes(&error),
            is_kernels: false,
        })
    }

    /// Makes the device ready, and limits what the trial may take of it; `folder` has the model's weights.
    fn limit_memory(
        &self,
        device: &Device,
        folder: &Path,
        limit_bytes: Option<u64>,
    ) -> Result<TrialMemory, Interruption> {
        let memory = DeviceMemory::of(device).map_err(invalid)?;
        // What libraries keep for each thread is no part of a trial's memory either: whether a thread has it already would be a
        // matter of chance.
        peft_tune_engine::profile::ceilings::warm_threads().map_err(invalid)?;
        device::prepare(device).map_err(|error| failure(error.into(), Phase::Load))?;
        let beside_bytes = self.bytes_beside(&memory);
        let memory = TrialMemory::new(memory, beside_bytes);
        memory.set_limit(limit_bytes);
        if device.is_cpu() {
            // Weights are mapped while they are read, beside what the trial may take.
            let mapped = weight_bytes(folder);
            self.limit.set(limit_bytes.map(|limit| limit.saturating_add(mapped)));
        }
        Ok(memory)
    }

    /// Bytes that the process holds beside the engine, which are no part of a trial's memory.
    fn bytes_beside(&self, memory: &DeviceMemory) -> u64 {
        // Behind the warming op: what that left in the engine's own buffers would be missing in the trial's count.
        device::forget_scratch();
        let base = self.kept.base.as_ref();
        let held = base.map_or(0, |(_, base)| base.bytes() as u64 + self.kept.base_rounding);
        memory.in_use_bytes().saturating_sub(held)
    }

    /// Keeps a base model that was just loaded and has all of the trial's memory so far.
    fn keep_base(&mut self, key: BaseKey, base: Arc<BaseModel>, memory: &TrialMemory) -> BaseSource {
        self.kept.base_rounding = match base.device().is_cpu() {
            true => 0,
            false => memory.in_use_bytes().saturating_sub(base.bytes() as u64),
        };
        self.kept.base = Some((key, base.clone()));
        BaseSource::Kept(base)
    }
}

/// Whether a trial's training may be one of several over its base.
fn joins(request: &TrialRequest, loaded: &TrialInputs) -> bool {
    let base = match &loaded.base {
        BaseSource::Kept(base) => base,
        BaseSource::Fresh { .. } => return false,
    };
    may_share(request) && Together::check_base(base).is_ok()
}

/// The kernel's error that ended a trial.
fn fault_of<T>(ended: &Result<T, Interruption>) -> Option<String> {
    match ended {
        Err(Interruption::DeviceLost {
            message,
            is_kernels: true,
        }) => Some(message.clone()),
        _ => None,
    }
}

fn panicked(panic: &(dyn std::any::Any + Send), phase: Phase) -> FailReason {
    let message = panic_message(panic).unwrap_or("no message");
    FailReason::Crashed {
        phase,
        message: format!("the engine panicked: {message}"),
    }
}

fn prepare(recipe: &Recipe, files: &ModelFiles) -> Result<PreparedData, Interruption> {
    let prepared = PreparedData::of_recipe(recipe, files).map_err(invalid)?;
    for warning in prepared.warnings() {
        tracing::warn!("{warning}");
    }
    Ok(prepared)
}

/// Bytes of the weight files in a model's folder.
fn weight_bytes(folder: &Path) -> u64 {
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let weights = files.filter(|file| {
        file.path()
            .extension()
            .is_some_and(|extension| extension == "safetensors")
    });
    weights.filter_map(|file| Some(file.metadata().ok()?.len())).sum()
}
