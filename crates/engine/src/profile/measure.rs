//! Profiling one recipe: warm-up, then steps under recording until the median is known well enough.

use std::sync::Arc;
use std::time::Instant;

use super::aggregate::{Held, MemoryWatch, StepTotals};
use super::data_facts::{facts_of, share_of_training};
use super::profile_error::ProfileError;
use super::profile_inputs::{ProfileInputs, ProfileSettings};
use super::sample::Sampling;
use super::session::Session;
use super::setting_facts::setting_of;
use super::trace::Trace;
use super::{DataFacts, DeviceMemory, HostMemory, Profile, Setting};
use crate::Trainer;
use crate::data::{BatchSource, DataError, Prefetch};
use crate::span::{MemoryReading, Probe, Recording};
use peft_tune_core::recipe::{PrecisionSchedule, Recipe};
use peft_tune_kernels::forget_launched;

/// A profile with the spans of its last steps.
#[derive(Debug)]
pub struct Measured {
    pub profile: Profile,
    pub trace: Trace,
}

/// Profiles `inputs`.
///
/// # Errors
/// Settings that do not fit the model, data that cannot be batched, memory.
pub fn profile(inputs: ProfileInputs<'_>, settings: &ProfileSettings) -> Result<Measured, ProfileError> {
    forget_launched();
    let source = Arc::new(source_of(&inputs)?);
    let base = inputs.base.open()?;
    let device = base.device().clone();
    let apart = settings.spans_apart.unwrap_or(!device.is_cpu());
    let memory = DeviceMemory::of(&device)?;
    let recording = Recording::start(Probe {
        memory: Box::new(move || read(&memory)),
        device: (!device.is_cpu()).then_some(device),
    });
    // A schedule of the precision would be at its beginning all the time: most steps compute in the recipe's own.
    let recipe = Recipe {
        precision_schedule: PrecisionSchedule::None,
        ..inputs.recipe.clone()
    };
    let trainer = Trainer::new(base, &recipe, u64::MAX)?;
    let mut session = Session {
        batches: Prefetch::start(Arc::clone(&source), 0..u64::MAX)?,
        recording,
        trainer,
        totals: StepTotals::default(),
        watch: MemoryWatch::default(),
        each: Vec::new(),
        spanned: apart.then(Vec::new),
        log: inputs.log,
        kept: Vec::new(),
        kept_steps: settings.trace_steps,
        warmup_steps: 0,
        waits: None,
    };
    let started = Instant::now();
    session.warm_up(&source, settings)?;
    let sampling = inputs
        .sampler
        .map(|sampler| Sampling::start(sampler, session.recording.started(), settings.sample_every));
    let sampling = sampling.transpose().map_err(ProfileError::Thread)?;
    let energy = session.measure(&source, started, settings)?;
    let samples = sampling.map(Sampling::finish).unwrap_or_default();
    let gpu = session.watch_gpu()?;
    let evaluation = session.evaluate(inputs.recipe, inputs.data, &source)?;

    let steps = session.facts(settings);
    let held = Held {
        program: inputs.program_bytes,
        base: inputs.base.frozen_bytes() as u64,
        adapters: flat_bytes(&session.trainer),
        gradients: flat_bytes(&session.trainer),
        optimizer: session
            .trainer
            .optimizer()
            .state_bytes_on(session.trainer.base().device()),
    };
    let totals = &session.totals;
    let profile = Profile {
        setting: Setting {
            log_every: session.log.as_ref().map_or(0, |log| log.every),
            ..setting_of(inputs.recipe, &session.trainer, inputs.memory_limit_bytes)
        },
        data: DataFacts {
            waits: session.waits,
            ..facts_of(inputs.recipe, &source)
        },
        phases: totals.phases(),
        modules: totals.modules(),
        ops: totals.ops(inputs.ceiling.as_ref()),
        memory: session.watch.facts(held),
        adapter: Some(totals.adapter()),
        arithmetic: totals.arithmetic(inputs.ceiling.as_ref(), session.free_steps()),
        evaluation: evaluation.map(|evaluation| share_of_training(evaluation, &steps, inputs.recipe, &source)),
        steps,
        samples,
        energy,
        gpu: gpu.as_ref().map(|watched| watched.timeline.clone()),
    };
    let trace = Trace {
        trees: session.kept,
        threads: session.recording.threads(),
        held,
        samples: profile.samples.clone(),
        activities: gpu.map(|watched| watched.spanned).unwrap_or_default(),
    };
    Ok(Measured { profile, trace })
}

/// Reads the memory's counters and starts a new peak.
fn read(memory: &DeviceMemory) -> MemoryReading {
    if matches!(memory, DeviceMemory::Host) {
        // The face's own reset also starts a new resident peak, which takes a system call.
        return MemoryReading {
            in_use_bytes: HostMemory::in_use_bytes(),
            peak_bytes: HostMemory::take_peak(),
        };
    }
    let reading = MemoryReading {
        in_use_bytes: memory.in_use_bytes(),
        peak_bytes: memory.peak_bytes(),
    };
    memory.reset_peak();
    reading
}

fn flat_bytes(trainer: &Trainer) -> u64 {
    4 * trainer.parameters().layout.elements() as u64
}

fn source_of(inputs: &ProfileInputs<'_>) -> Result<BatchSource, DataError> {
    // A step that the end of an epoch cuts short says nothing of the others.
    Ok(BatchSource::of_recipe(inputs.data, inputs.recipe)?.of_full_steps())
}
