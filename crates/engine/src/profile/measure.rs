//! Profiling one recipe: warm-up, then steps under recording until the median is known well enough.

use std::sync::Arc;
use std::time::Instant;

use super::aggregate::Held;
use super::data_facts::{facts_of, share_of_training};
use super::profile_error::ProfileError;
use super::profile_inputs::{ProfileInputs, ProfileSettings};
use super::sample::Sampling;
use super::session::Session;
use super::setting_facts::setting_of;
use super::trace::Trace;
use super::{DataFacts, Profile, Setting};
use crate::Trainer;
use crate::data::{BatchSource, DataError};
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
    let mut session = Session::start(inputs.base.open()?, inputs.recipe, &source, inputs.log, settings)?;
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
        trace: None,
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

fn flat_bytes(trainer: &Trainer) -> u64 {
    4 * trainer.parameters().layout.elements() as u64
}

fn source_of(inputs: &ProfileInputs<'_>) -> Result<BatchSource, DataError> {
    // A step that the end of an epoch cuts short says nothing of the others.
    Ok(BatchSource::of_recipe(inputs.data, inputs.recipe)?.of_full_steps())
}
