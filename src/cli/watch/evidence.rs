//! Measurements of a run, as the rules of its causes read them.

use std::collections::BTreeMap;

use super::launched::Ending;
use super::printed::{PrintedSetting, Told};
use super::progress::{Phase, StepSpan};
use super::sample::{Sample, Span};
use crate::worker::OomKills;
use peft_tune_engine::profile::{DeviceSample, median};

/// Processors and memory that a run may use.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct RunLimits {
    /// Processors that it may run on, and that the machine has.
    pub cores: usize,
    pub machine_cores: usize,
    /// Processors that its control group lets it have at once, where that is limited.
    pub processors: Option<f64>,
    /// Processes that the kernel ended meanwhile for lack of memory.
    pub oom_kills: OomKills,
    /// Whether the run may have been on a GPU whose use and memory were not seen.
    pub gpu_unseen: bool,
}

/// Numbers of a step as the tool's file says them; what it leaves to the tool, or says in code that is not read, is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct AskedStep {
    pub micro_batch: Option<u64>,
    pub accumulation: Option<u64>,
    pub devices: Option<u64>,
}

impl AskedStep {
    /// Rows of a step on one device.
    pub(super) fn rows(&self) -> Option<u64> {
        Some(self.micro_batch?.saturating_mul(self.accumulation?))
    }
}

/// Measurements of a run that has ended, or that is under way.
#[derive(Clone, Debug, Default)]
pub(super) struct Evidence {
    pub samples: Vec<Sample>,
    pub spans: Vec<Span>,
    pub steps: Vec<StepSpan>,
    pub evaluations: Vec<(f64, f64)>,
    pub seconds: f64,
    pub limits: RunLimits,
    pub settings: BTreeMap<PrintedSetting, u64>,
    pub told: Vec<(f64, Phase, Told)>,
    pub asked: Option<AskedStep>,
    pub ending: Ending,
    /// Parts of the output that were lost or not read, and why.
    pub unseen: Vec<String>,
}

impl Evidence {
    /// Median time of a step; `None` without steps.
    pub(super) fn step_s(&self) -> Option<f64> {
        median(self.steps.iter().map(StepSpan::seconds))
    }

    /// Time of the first step that counts, and of the last one.
    fn stepping(&self) -> Option<(f64, f64)> {
        Some((self.steps.first()?.from_s, self.steps.last()?.to_s))
    }

    /// Whether a moment lies in an evaluation.
    pub(super) fn is_evaluating(&self, at_s: f64) -> bool {
        self.evaluations.iter().any(|(from, to)| (*from..=*to).contains(&at_s))
    }

    fn is_stepping(&self, from_s: f64, to_s: f64) -> bool {
        let is_within = self
            .stepping()
            .is_some_and(|(first, last)| first <= from_s && to_s <= last);
        is_within && !self.is_evaluating(from_s) && !self.is_evaluating(to_s)
    }

    /// What happened within the steps that count, evaluations left out. Of a run whose steps are not seen, all of it.
    pub(super) fn step_time(&self) -> Vec<Span> {
        let is_seen = self.stepping().is_some();
        let all = self.spans.iter().copied();
        all.filter(|span| !is_seen || self.is_stepping(span.from_s, span.from_s + span.seconds))
            .collect()
    }

    /// Samples within the same time.
    pub(super) fn step_samples(&self) -> Vec<&Sample> {
        let is_seen = self.stepping().is_some();
        let all = self.samples.iter();
        all.filter(|sample| !is_seen || self.is_stepping(sample.at_s, sample.at_s))
            .collect()
    }

    /// Samples of the GPUs that the run is on.
    pub(super) fn own_gpus(&self) -> Vec<DeviceSample> {
        let all = self.samples.iter().flat_map(|sample| &sample.gpus);
        all.filter(|gpu| gpu.resident_bytes.is_some()).copied().collect()
    }

    /// What happened within a time.
    pub(super) fn within(&self, from_s: f64, to_s: f64) -> Vec<Span> {
        let all = self.spans.iter().copied();
        all.filter(|span| span.from_s + span.seconds > from_s && span.from_s < to_s)
            .collect()
    }
}

/// Mean of what a span says, by its seconds; `None` without a span.
pub(super) fn mean(spans: &[Span], of: impl Fn(&Span) -> f64) -> Option<f64> {
    let seconds: f64 = spans.iter().map(|span| span.seconds).sum();
    (seconds > 0.0).then(|| spans.iter().map(|span| of(span) * span.seconds).sum::<f64>() / seconds)
}

/// Mean of what some of the spans say; `None` where none does.
pub(super) fn mean_of_known(spans: &[Span], of: impl Fn(&Span) -> Option<f64>) -> Option<f64> {
    let known: Vec<Span> = spans.iter().copied().filter(|span| of(span).is_some()).collect();
    mean(&known, |span| of(span).unwrap_or(0.0))
}

/// Evidence that tests make up.
#[cfg(test)]
pub(super) mod made {
    use super::*;
    use crate::cli::watch::process_stat::Used;

    /// A run of so many steps of a second each, seen twice in each, on two processors that it keeps busy.
    pub(in crate::cli::watch) fn clean(steps: u64) -> Evidence {
        let samples = (0..=2 * steps).map(|half| Sample {
            at_s: half as f64 / 2.0,
            processes: 1,
            memory_bytes: 4 << 30,
            used: Used {
                cpu_s: half as f64,
                blocked_s: Some(0.0),
                read_bytes: Some(0),
                written_bytes: Some(0),
                ..Used::default()
            },
            ..Sample::default()
        });
        let spans = (1..steps).map(|step| StepSpan {
            from_s: step as f64,
            to_s: (step + 1) as f64,
            step: step + 1,
            steps: 1,
        });
        of(samples.collect(), spans.collect())
    }

    /// Evidence of samples and steps alone.
    pub(in crate::cli::watch) fn of(samples: Vec<Sample>, steps: Vec<StepSpan>) -> Evidence {
        Evidence {
            spans: Span::all(&samples),
            seconds: samples.last().map_or(0.0, |sample| sample.at_s),
            samples,
            steps,
            limits: RunLimits {
                cores: 2,
                machine_cores: 2,
                ..RunLimits::default()
            },
            ..Evidence::default()
        }
    }

    /// Evidence with its samples changed.
    pub(in crate::cli::watch) fn changed(evidence: Evidence, change: impl FnMut(&mut Sample)) -> Evidence {
        let Evidence { mut samples, steps, .. } = evidence;
        samples.iter_mut().for_each(change);
        of(samples, steps)
    }
}
