//! The machine: limits of processors, and clocks that are held down.

use super::cause::Cause;
use crate::cli::watch::evidence::{Evidence, mean};
use crate::cli::watch::sample::Span;
use crate::report::percent;
use peft_tune_engine::profile::disturbance::lost_to_clock;
use peft_tune_engine::profile::sample::HeldBy;

/// Samples without which nothing can be said.
const LEAST_SAMPLES: usize = 10;
/// Shares of the time from which a limit, and a clock, are worth naming.
const HELD_BACK: f64 = 0.05;
const NOTICED: f64 = 0.08;
/// Part of the machine's processors below which a run that keeps all of its own busy has few.
const FEW: f64 = 0.5;
const BUSY: f64 = 0.9;
/// Part of its clock at first below which a processor's has fallen, and parts of the load then that are the same load.
const FALLEN: f64 = 0.85;
const SAME_LOAD: std::ops::RangeInclusive<f64> = 0.9..=1.1;

/// A control group that holds processors back, or few of the machine's that may be used.
pub(super) fn cpu_limit(evidence: &Evidence) -> Option<Cause> {
    let spans = evidence.step_time();
    if spans.len() < LEAST_SAMPLES {
        return None;
    }
    let limits = evidence.limits;
    if let Some(held_back) = held_back(&spans) {
        let of = limits
            .processors
            .map(|count| format!(" {count:.1}"))
            .unwrap_or_default();
        let text = format!(
            "the control group's limit of{of} processors held the run back in {} of the time",
            percent(held_back)
        );
        let advice = "raise the limit (`--cpus` of a container, the requests of a pod), or compute with as many threads as it allows";
        return Some(Cause::new("cpu_limit", text, advice).taking(held_back));
    }
    let used = mean(&spans, |span| span.cores)?;
    let on_gpu = spans.iter().any(|span| span.gpu_utilisation.is_some());
    let has_few = (limits.cores as f64) < FEW * limits.machine_cores as f64;
    (has_few && !on_gpu && !limits.gpu_unseen && used > BUSY * limits.cores as f64).then(|| {
        let text = format!(
            "the run may use {} of the machine's {} processors, and kept {used:.1} busy",
            limits.cores, limits.machine_cores
        );
        Cause::new(
            "cpu_limit",
            text,
            "give it more processors (`taskset`, `--cpus-per-task`)",
        )
    })
}

/// Share of the time in which the control group was kept from its processors, where it is worth naming.
pub(super) fn held_back(spans: &[Span]) -> Option<f64> {
    mean(spans, |span| span.held_back.unwrap_or(0.0)).filter(|share| *share >= HELD_BACK)
}

/// A clock that is held down.
pub(super) fn throttled(evidence: &Evidence) -> Option<Cause> {
    let gpus = evidence.own_gpus();
    let slower = lost_to_clock(&gpus);
    if slower > NOTICED {
        let by = match gpus.iter().find_map(|gpu| gpu.held_by) {
            Some(HeldBy::Heat) => "heat",
            Some(HeldBy::Power) => "its power limit",
            Some(HeldBy::Hardware) | None => "the hardware",
        };
        let text = format!("{by} held the GPU's clock {} below its best", percent(slower));
        return Some(Cause::new("throttled", text, "look at the cooling and the power limit").taking(slower));
    }
    let samples = evidence.step_samples();
    let clocks = samples
        .iter()
        .filter_map(|sample| Some((sample.at_s, sample.clock_mhz?)));
    let clocks: Vec<(f64, f64)> = clocks.collect();
    if clocks.len() < LEAST_SAMPLES || !gpus.is_empty() {
        return None;
    }
    let third = clocks.len() / 3;
    let (first, last) = (&clocks[..third], &clocks[clocks.len() - third..]);
    let level = |clocks: &[(f64, f64)]| clocks.iter().map(|(_, clock)| clock).sum::<f64>() / clocks.len() as f64;
    let (at_first, at_last) = (load(evidence, first)?, load(evidence, last)?);
    // The clock is that of all processors: where most of them idle it says nothing of the run.
    let is_loaded = at_first > FEW * evidence.limits.cores as f64;
    let (first, last) = (level(first), level(last));
    // It falls where there is less to do, and where more processors have something to do.
    (last < FALLEN * first && is_loaded && SAME_LOAD.contains(&(at_last / at_first))).then(|| {
        let text = format!("the processors' clock fell from {first:.0} to {last:.0} MHz under the same load");
        let advice =
            "look at the cooling and the power limit; wide vector instructions on all processors lower it, too";
        Cause::new("throttled", text, advice).taking(1.0 - last / first)
    })
}

/// Processors that were busy while clocks were read, whoever kept them so.
fn load(evidence: &Evidence, clocks: &[(f64, f64)]) -> Option<f64> {
    let spans = evidence.within(clocks.first()?.0, clocks.last()?.0);
    mean(&spans, |span| span.cores + span.others.unwrap_or(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::watch::evidence::made::{changed, clean};
    use crate::cli::watch::sample::Sample;
    use peft_tune_engine::profile::DeviceSample;

    #[test]
    fn a_limit_of_processors_is_named() {
        let evidence = changed(clean(30), |sample| {
            sample.pressed.held_back_s = Some(0.4 * sample.at_s);
        });
        let found = cpu_limit(&evidence).unwrap();
        assert!(found.evidence.contains("40% of the time"), "{found:?}");
        let mut few = clean(30);
        assert_eq!(cpu_limit(&few), None);
        few.limits.machine_cores = 32;
        assert!(cpu_limit(&few).unwrap().evidence.contains("2 of the machine's 32"));
    }

    #[test]
    fn clocks_that_fall_under_load_are_named() {
        let clock = |sample: &mut Sample| {
            sample.clock_mhz = Some(if sample.at_s > 15.0 { 2000.0 } else { 3000.0 });
        };
        let found = throttled(&changed(clean(30), clock)).unwrap();
        assert!(found.evidence.contains("3000 to 2000 MHz"), "{found:?}");
        let idle = |sample: &mut Sample| {
            clock(sample);
            sample.used.cpu_s = sample.used.cpu_s.min(30.0);
        };
        assert_eq!(throttled(&changed(clean(30), idle)), None);
        // Processors run faster while fewer compute, and where most idle their mean clock says nothing.
        let begins = |sample: &mut Sample| {
            clock(sample);
            sample.used.cpu_s = 1.5 * sample.at_s.min(15.0) + 2.0 * (sample.at_s - 15.0).max(0.0);
        };
        assert_eq!(throttled(&changed(clean(30), begins)), None);
        let mut of_many = changed(clean(30), clock);
        of_many.limits.cores = 64;
        assert_eq!(throttled(&of_many), None);
        let gpu = |held_by| {
            move |sample: &mut Sample| {
                let clock = if sample.at_s > 15.0 { 1000.0 } else { 2000.0 };
                sample.gpus = vec![DeviceSample {
                    resident_bytes: Some(1),
                    clock_mhz: Some(clock),
                    held_by,
                    ..DeviceSample::default()
                }];
            }
        };
        let hot = throttled(&changed(clean(30), gpu(Some(HeldBy::Heat)))).unwrap();
        assert!(hot.evidence.starts_with("heat held"), "{hot:?}");
        assert_eq!(throttled(&changed(clean(30), gpu(None))), None);
    }
}
