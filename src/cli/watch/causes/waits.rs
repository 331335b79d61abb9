//! Waits within steps: what computes stands still, and something else is busy, or nothing is.

use super::cause::Cause;
use crate::cli::watch::evidence::{Evidence, mean, mean_of_known};
use crate::cli::watch::sample::Span;
use crate::report::{bytes, percent};

/// Looks without which nothing can be said.
const LEAST_LOOKS: usize = 10;
/// Share of the steps' time that is worth naming: on a GPU, whose use the driver tells in hundredths of its time, and on a
/// processor, where looks at the busiest process tell.
const NOTICED_GPU: f64 = 0.35;
const NOTICED_CPU: f64 = 0.25;
/// Part of the processors below which a run that computes on them has room left.
const ROOM: f64 = 0.6;
/// Processors that are busy with something else than the GPU.
const PREPARES: f64 = 0.8;
/// Bytes a second, and share of the time, from which a disk is busy; bytes a second from which the network is.
const DISK_BYTES_PER_S: f64 = 4e6;
const DISK_SHARE: f64 = 0.15;
const NETWORK_BYTES_PER_S: f64 = 1e6;

/// Waits for data, or for nothing that shows. Nothing is said of a run that may be on a GPU whose use is not seen.
pub(super) fn waits(evidence: &Evidence) -> Option<Cause> {
    let (spans, samples) = (evidence.step_time(), evidence.step_samples());
    if evidence.limits.gpu_unseen || spans.len() < LEAST_LOOKS || samples.len() < LEAST_LOOKS {
        return None;
    }
    let cores = mean(&spans, |span| span.cores)?;
    let on_gpu = mean_of_known(&spans, |span| span.gpu_utilisation);
    let still = match on_gpu {
        Some(utilisation) => 1.0 - utilisation,
        None => {
            let asleep = samples.iter().filter(|sample| sample.is_asleep).count() as f64 / samples.len() as f64;
            // While a thread of the run waits for a processor the others may wait for that thread.
            let queued = mean_of_known(&spans, |span| span.longest_queued).unwrap_or(0.0);
            (asleep - queued).max(0.0)
        }
    };
    let (noticed, has_room) = match on_gpu {
        Some(_) => (NOTICED_GPU, true),
        None => {
            let wanted = cores + mean_of_known(&spans, |span| span.queued).unwrap_or(0.0);
            (NOTICED_CPU, wanted < ROOM * evidence.limits.cores.max(1) as f64)
        }
    };
    if still < noticed || !has_room {
        return None;
    }
    let what = if on_gpu.is_some() {
        "the GPU stood still"
    } else {
        "the run waited"
    };
    let said = format!("{what} in {} of the time of its steps", percent(still));
    let read = mean_of_known(&spans, |span| span.read_per_s);
    let blocked = mean_of_known(&spans, blocked);
    let is_disk = read.is_some_and(|read| read >= DISK_BYTES_PER_S) || blocked.is_some_and(|share| share >= DISK_SHARE);
    let idle = match (read, blocked) {
        (None, None) => "and the network was not; the disk was not seen",
        _ => "and neither disk nor network",
    };
    let received = mean(&spans, |span| span.received_per_s)?;
    let cause = if is_disk {
        Cause::new(
            "data_wait",
            format!("{said}; meanwhile {}", disk(read, blocked)),
            "put the data on a faster disk, tokenise them beforehand, or let more processes read ahead (`dataloader_num_workers`)",
        )
    } else if received >= NETWORK_BYTES_PER_S {
        Cause::new(
            "data_wait",
            format!(
                "{said}; meanwhile the machine received {}/s by the network",
                bytes(received)
            ),
            "copy the data to this machine before the training, instead of streaming them",
        )
    } else if cores >= PREPARES {
        Cause::new(
            "data_preparation",
            format!("{said}; meanwhile {cores:.1} processors were busy, {idle}"),
            "tokenise the data beforehand, or let more processes prepare them (`dataloader_num_workers`); on a GPU also larger \
             micro-batches, which launch fewer kernels",
        )
    } else {
        Cause::new(
            "data_wait",
            format!("{said}; meanwhile {cores:.1} processors were busy, {idle}"),
            "look for what it waits for: a service, a lock, a sleep in the data's code, another rank",
        )
    };
    Some(cause.taking(still))
}

/// Processes that waited for a disk, or the share of the time in which any did, whichever is more.
fn blocked(span: &Span) -> Option<f64> {
    match (span.blocked, span.disk_pressure) {
        (Some(own), Some(any)) => Some(own.max(any)),
        (own, any) => own.or(any),
    }
}

/// What is known of a disk that is busy: bytes that were read a second, and the share of the time in which it was waited for.
fn disk(read: Option<f64>, blocked: Option<f64>) -> String {
    let read = read.map(|read| format!("{}/s were read from the disk", bytes(read)));
    let blocked = blocked.map(|share| format!("the disk was waited for in {} of it", percent(share.min(1.0))));
    let known: Vec<String> = read.into_iter().chain(blocked).collect();
    known.join(", and ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::watch::evidence::made::{changed, clean};
    use crate::cli::watch::sample::Sample;
    use crate::cli::watch::thread_turns::Queued;
    use peft_tune_engine::profile::DeviceSample;

    /// A run that waits in half of the looks.
    fn asleep(change: impl Fn(&mut Sample)) -> Option<Cause> {
        let evidence = changed(clean(30), |sample| {
            sample.is_asleep = (sample.at_s as u64).is_multiple_of(2);
            sample.used.cpu_s /= 4.0;
            change(sample);
        });
        waits(&evidence)
    }

    #[test]
    fn what_was_busy_meanwhile_tells_what_is_waited_for() {
        let sleeps = asleep(|_| {}).unwrap();
        assert!(
            sleeps.name == "data_wait" && sleeps.evidence.contains("neither"),
            "{sleeps:?}"
        );
        assert!((sleeps.share.unwrap() - 0.5).abs() < 0.05, "{sleeps:?}");
        let disk = asleep(|sample| sample.used.read_bytes = Some((sample.at_s * 5e7) as u64)).unwrap();
        assert!(disk.evidence.contains("from the disk"), "{disk:?}");
        let network = asleep(|sample| sample.pressed.received_bytes = Some((sample.at_s * 5e6) as u64)).unwrap();
        assert!(network.evidence.contains("by the network"), "{network:?}");
        let unseen = asleep(|sample| (sample.used.read_bytes, sample.used.blocked_s) = (None, None)).unwrap();
        assert!(unseen.evidence.contains("the disk was not seen"), "{unseen:?}");
        let waited = asleep(|sample| sample.used.blocked_s = Some(sample.at_s / 4.0)).unwrap();
        assert!(waited.evidence.contains("waited for in 25"), "{waited:?}");
        let prepares = asleep(|sample| sample.used.cpu_s *= 2.0).unwrap();
        assert_eq!(prepares.name, "data_preparation");
    }

    #[test]
    fn a_run_that_waits_for_processors_waits_for_no_data() {
        let queued = |all_s: f64, longest_s: f64| {
            asleep(move |sample| {
                sample.queued = Some(Queued {
                    all_s: all_s * sample.at_s,
                    longest_s: longest_s * sample.at_s,
                });
            })
        };
        assert!((queued(0.1, 0.1).unwrap().share.unwrap() - 0.4).abs() < 0.05);
        // It wants as many processors as there are, or waits for a thread that waits for one.
        assert_eq!(queued(0.9, 0.1), None);
        assert_eq!(queued(0.4, 0.4), None);
    }

    #[test]
    fn a_run_that_keeps_its_processors_or_its_gpu_busy_does_not_wait() {
        assert_eq!(waits(&changed(clean(30), |sample| sample.is_asleep = true)), None);
        let on_gpu = |utilisation: f64| {
            let evidence = changed(clean(30), |sample| {
                sample.is_asleep = true;
                sample.used.cpu_s /= 10.0;
                sample.gpus = vec![DeviceSample {
                    utilisation: Some(utilisation),
                    resident_bytes: Some(1 << 30),
                    ..DeviceSample::default()
                }];
            });
            waits(&evidence)
        };
        assert_eq!(on_gpu(0.95), None);
        assert!(on_gpu(0.4).unwrap().evidence.contains("the GPU stood still in 60"));
        assert_eq!(waits(&clean(3)), None);
        let mut unseen = changed(clean(30), |sample| {
            sample.is_asleep = true;
            sample.used.cpu_s /= 10.0;
        });
        assert!(waits(&unseen).is_some());
        unseen.limits.gpu_unseen = true;
        assert_eq!(waits(&unseen), None);
    }
}
