//! The machine: other programs on it, limits of processors, and clocks that are held down.

use super::cause::Cause;
use crate::cli::watch::evidence::{Evidence, mean};
use crate::report::percent;
use peft_tune_engine::profile::DeviceSample;
use peft_tune_engine::profile::disturbance::{Counters, DisturbanceWatch, Load, MachineCounters, lost_to_clock};
use peft_tune_engine::profile::sample::HeldBy;

/// Samples without which nothing can be said.
const LEAST_SAMPLES: usize = 10;
/// Shares of the time from which a limit, or others on a GPU, are worth naming.
const HELD_BACK: f64 = 0.05;
const NOTICED: f64 = 0.08;
/// Part of the machine's processors below which a run that keeps all of its own busy has few.
const FEW: f64 = 0.5;
const BUSY: f64 = 0.9;
/// Part of its clock at first below which a processor's has fallen.
const FALLEN: f64 = 0.85;

/// Programs beside the run that had processors or a GPU that it wanted.
pub(super) fn other_programs(evidence: &Evidence) -> Option<Cause> {
    if evidence.samples.len() < LEAST_SAMPLES {
        return None;
    }
    let advice = "run it alone, or pin both to processors or GPUs of their own";
    let gpus = own_gpus(evidence);
    let others: Vec<f64> = gpus.iter().filter_map(|gpu| gpu.other_utilisation).collect();
    let on_gpu = others.iter().sum::<f64>() / others.len().max(1) as f64;
    if on_gpu > NOTICED {
        let text = format!("other processes kept the GPU busy in {} of the time", percent(on_gpu));
        return Some(Cause::new("other_programs", text, advice).taking(on_gpu));
    }
    let cores = evidence.limits.cores.max(1);
    let usual = mean(&evidence.step_time(), |span| span.cores)?;
    let load = Load {
        // As many as the run keeps busy, which need not be all.
        threads: (usual.ceil() as usize).clamp(1, cores),
        cores,
        ranks: 1,
    };
    let mut watch = DisturbanceWatch::start(Box::new(Played::of(evidence)), load);
    evidence.samples.iter().skip(1).for_each(|_| watch.step_ended());
    let found = watch.finish();
    let taken = found.other_cores.unwrap_or(0.0);
    let is_taken = found.share() > NOTICED && taken > FEW;
    is_taken.then(|| {
        let text = format!(
            "other programs kept {taken:.1} of the {cores} processors busy that the run may use, and something waited for one in {} of \
             the time",
            percent(found.waiting_share.unwrap_or(found.lost))
        );
        Cause::new("other_programs", text, advice).taking(found.share())
    })
}

/// A control group that holds processors back, or few of the machine's that may be used.
pub(super) fn cpu_limit(evidence: &Evidence) -> Option<Cause> {
    let spans = evidence.step_time();
    if spans.len() < LEAST_SAMPLES {
        return None;
    }
    let limits = evidence.limits;
    let held_back = mean(&spans, |span| span.held_back.unwrap_or(0.0))?;
    if held_back >= HELD_BACK {
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

/// A clock that is held down.
pub(super) fn throttled(evidence: &Evidence) -> Option<Cause> {
    let gpus = own_gpus(evidence);
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
    let clocks: Vec<f64> = evidence
        .samples
        .iter()
        .filter_map(|sample| sample.machine.clock_mhz)
        .collect();
    let third = clocks.len() / 3;
    if clocks.len() < LEAST_SAMPLES || !gpus.is_empty() {
        return None;
    }
    let level = |clocks: &[f64]| clocks.iter().sum::<f64>() / clocks.len() as f64;
    let (first, last) = (level(&clocks[..third]), level(&clocks[2 * third..]));
    let spans = &evidence.spans;
    let busy = |from: usize, to: usize| mean(spans.get(from..to).unwrap_or_default(), |span| span.cores);
    let (at_first, at_last) = (busy(0, third)?, busy(2 * third, spans.len())?);
    // A clock also falls where there is less to do.
    (last < FALLEN * first && at_last > BUSY * at_first).then(|| {
        let text = format!("the processors' clock fell from {first:.0} to {last:.0} MHz under the same load");
        let advice =
            "look at the cooling and the power limit; wide vector instructions on all processors lower it, too";
        Cause::new("throttled", text, advice).taking(1.0 - last / first)
    })
}

/// Samples of the GPUs that the run is on.
fn own_gpus(evidence: &Evidence) -> Vec<DeviceSample> {
    let all = evidence.samples.iter().flat_map(|sample| &sample.gpus);
    all.filter(|gpu| gpu.resident_bytes.is_some()).copied().collect()
}

/// Counters that were read, once more.
struct Played(std::vec::IntoIter<Counters>, Counters);

impl Played {
    fn of(evidence: &Evidence) -> Self {
        let all: Vec<Counters> = evidence.samples.iter().map(|sample| sample.machine).collect();
        Self(all.into_iter(), Counters::default())
    }
}

impl MachineCounters for Played {
    fn read(&mut self) -> Counters {
        self.1 = self.0.next().unwrap_or(self.1);
        self.1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::watch::evidence::made::{changed, clean};
    use crate::cli::watch::sample::Sample;

    /// The machine's counters of a run that has `own` processors, while others have `others` and something waits in `waits` of the
    /// time.
    fn beside(own: f64, others: f64, waits: f64) -> Option<Cause> {
        let evidence = changed(clean(30), |sample| {
            sample.used.cpu_s = own * sample.at_s;
            sample.machine = Counters {
                at_s: sample.at_s,
                own_s: Some(own * sample.at_s),
                waiting_s: Some(waits * sample.at_s),
                busy_s: Some((own + others) * sample.at_s),
                ..Counters::default()
            };
        });
        other_programs(&evidence)
    }

    #[test]
    fn others_are_named_where_they_take_what_the_run_wanted() {
        let found = beside(1.2, 0.8, 0.9).unwrap();
        assert!(found.evidence.contains("0.8 of the 2 processors"), "{found:?}");
        assert_eq!(beside(2.0, 0.0, 0.02), None);
        assert_eq!(beside(1.0, 1.0, 0.0), None);
    }

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
            sample.machine.clock_mhz = Some(if sample.at_s > 15.0 { 2000.0 } else { 3000.0 });
        };
        let found = throttled(&changed(clean(30), clock)).unwrap();
        assert!(found.evidence.contains("3000 to 2000 MHz"), "{found:?}");
        let idle = |sample: &mut Sample| {
            clock(sample);
            sample.used.cpu_s = sample.used.cpu_s.min(30.0);
        };
        assert_eq!(throttled(&changed(clean(30), idle)), None);
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
