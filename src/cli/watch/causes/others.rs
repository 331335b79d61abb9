//! Others on the machine: programs that had processors or a GPU that the run wanted, and other machines on the same hardware.
//!
//! | symbol | meaning |
//! |---|---|
//! | c | processors that the run may use |
//! | u | of these, those that the run kept busy |
//! | o | those that other programs kept busy |
//! | q | threads of the run that were ready and waited for a processor |
//! | l | share of the time in which the thread that waited longest of those that computed did so |
//!
//! Other programs had t = min(q, o, c - u) processors that the run wanted: no more than its threads waited for, than others had, and
//! than it did not have itself. A run with more threads than processors waits for itself (u = c), and one that has processors left is
//! not disturbed by neighbours (q = 0). It lost t / (u + t) of its processor time. Where threads wait for each other at each loop's
//! end it lost as much as the one that waited longest, l t / q, of which others are the cause: one processor of many that is taken
//! holds all up. The larger of both counts.

use super::cause::Cause;
use super::machine::held_back;
use crate::cli::watch::evidence::{Evidence, mean, mean_of_known};
use crate::cli::watch::sample::Span;
use crate::report::percent;

/// Looks without which nothing can be said.
const LEAST_LOOKS: usize = 10;
/// Share of the time from which others are worth naming.
const NOTICED: f64 = 0.08;
/// Processors of which others must have had more: every system does some work beside.
const LEAST_TAKEN: f64 = 0.1;

/// Others that had processors or a GPU that the run wanted.
pub(super) fn other_programs(evidence: &Evidence) -> Option<Cause> {
    if evidence.samples.len() < LEAST_LOOKS {
        return None;
    }
    let spans = evidence.step_time();
    // Of a run that may be on a GPU whose use is not seen, processors say little.
    let host = Some(&spans).filter(|spans| spans.len() >= LEAST_LOOKS && !evidence.limits.gpu_unseen);
    on_gpu(evidence)
        .or_else(|| on_processors(host?, evidence.limits.cores))
        .or_else(|| on_hardware(host?, evidence.limits.cores))
}

/// Other programs on the GPU.
fn on_gpu(evidence: &Evidence) -> Option<Cause> {
    let gpus = evidence.own_gpus();
    let others: Vec<f64> = gpus.iter().filter_map(|gpu| gpu.other_utilisation).collect();
    let share = others.iter().sum::<f64>() / others.len().max(1) as f64;
    (share > NOTICED).then(|| {
        let text = format!("other processes kept the GPU busy in {} of the time", percent(share));
        Cause::new("other_programs", text, "run it alone, or give both GPUs of their own").taking(share)
    })
}

/// Other programs on the run's processors.
fn on_processors(spans: &[Span], cores: usize) -> Option<Cause> {
    // What a limit holds back waits as well.
    if held_back(spans).is_some() {
        return None;
    }
    let used = mean(spans, |span| span.cores)?;
    let queued = mean_of_known(spans, |span| span.queued)?;
    let longest = mean_of_known(spans, |span| span.longest_queued)?;
    let others = mean_of_known(spans, |span| span.others)?;
    let taken = queued.min(others).min(cores as f64 - used);
    if taken <= LEAST_TAKEN {
        return None;
    }
    let of_all = taken / (used + taken);
    let share = of_all.max(longest.min(1.0) * taken / queued).min(stood_still(spans));
    (share > NOTICED).then(|| {
        let text = format!(
            "other programs kept {others:.1} of the {cores} processors busy that the run may use, while {queued:.1} threads of it were \
             ready and waited for one, the one that waited longest in {} of the time",
            percent(longest.min(1.0))
        );
        Cause::new("other_programs", text, "run it alone, or pin both to processors of their own").taking(share)
    })
}

/// Other machines that the hypervisor gave processors to.
fn on_hardware(spans: &[Span], cores: usize) -> Option<Cause> {
    let used = mean(spans, |span| span.cores)?;
    let stolen = mean_of_known(spans, |span| span.stolen)?;
    let others = mean_of_known(spans, |span| span.others)?.max(0.0);
    // Whoever wanted to run lost it.
    let taken = stolen * used / (used + others).max(f64::MIN_POSITIVE);
    let share = (taken / (used + taken)).min(stood_still(spans));
    (taken > LEAST_TAKEN && share > NOTICED).then(|| {
        let text =
            format!("the hypervisor gave {stolen:.1} of the {cores} processors that the run may use to other machines");
        let advice = "take a machine whose processors are not shared, or whose credits are not used up";
        Cause::new("other_programs", text, advice).taking(share)
    })
}

/// Share of the time in which the GPU stood still, which is all that processors can cost a run on one; 1 where it is on none.
fn stood_still(spans: &[Span]) -> f64 {
    mean_of_known(spans, |span| span.gpu_utilisation).map_or(1.0, |utilisation| 1.0 - utilisation)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::watch::evidence::made::{changed, clean};
    use crate::cli::watch::processor_use::AllUse;
    use crate::cli::watch::sample::Sample;
    use crate::cli::watch::thread_turns::Queued;
    use peft_tune_engine::profile::DeviceSample;

    /// What happens in each second of a run: the symbols above, and processors that the hypervisor takes.
    #[derive(Clone, Copy, Default)]
    struct Second {
        cores: usize,
        used: f64,
        others: f64,
        queued: f64,
        longest: f64,
        stolen: f64,
    }

    fn evidence(second: Second, change: impl Fn(&mut Sample)) -> Evidence {
        let mut evidence = changed(clean(30), |sample| {
            let at_s = sample.at_s;
            sample.used.cpu_s = second.used * at_s;
            sample.queued = Some(Queued {
                all_s: second.queued * at_s,
                longest_s: second.longest * at_s,
            });
            sample.all_use = Some(AllUse {
                busy_s: (second.used + second.others) * at_s,
                stolen_s: second.stolen * at_s,
            });
            change(sample);
        });
        evidence.limits.cores = second.cores;
        evidence
    }

    fn found(second: Second) -> Option<Cause> {
        other_programs(&evidence(second, |_| {}))
    }

    const HALF: Second = Second {
        cores: 2,
        used: 1.2,
        others: 0.8,
        queued: 0.8,
        longest: 0.5,
        stolen: 0.0,
    };

    #[test]
    fn others_are_named_where_they_take_what_the_run_wanted() {
        let named = found(HALF).unwrap();
        assert!(
            named.evidence.contains("0.8 of the 2 processors") && named.evidence.contains("in 50% of the time"),
            "{named:?}"
        );
        assert!((named.share.unwrap() - 0.5).abs() < 1e-9, "{named:?}");
        // Threads that do not wait for each other lose what others had, of all that they wanted.
        let apart = found(Second { longest: 0.1, ..HALF }).unwrap();
        assert!((apart.share.unwrap() - 0.4).abs() < 1e-9, "{apart:?}");
        // Where the kernel does not count waits nothing is known.
        let blind = evidence(HALF, |sample| sample.queued = None);
        assert_eq!(other_programs(&blind), None);
    }

    #[test]
    fn a_run_with_fewer_threads_than_processors_has_neighbours_that_take_nothing() {
        let beside = Second {
            cores: 2,
            used: 1.0,
            others: 1.0,
            queued: 0.02,
            longest: 0.02,
            stolen: 0.0,
        };
        assert_eq!(found(beside), None);
        // A server: many others elsewhere, and waits as short as every system has.
        let server = Second {
            cores: 64,
            used: 4.0,
            others: 40.0,
            queued: 0.12,
            longest: 0.04,
            stolen: 0.0,
        };
        assert_eq!(found(server), None);
    }

    #[test]
    fn one_processor_of_many_that_is_taken_holds_all_threads_up() {
        let one = Second {
            cores: 64,
            used: 63.5,
            others: 0.5,
            queued: 0.5,
            longest: 0.5,
            stolen: 0.0,
        };
        let named = found(one).unwrap();
        assert!((named.share.unwrap() - 0.5).abs() < 1e-9, "{named:?}");
    }

    #[test]
    fn threads_that_wait_for_each_other_s_processors_are_not_disturbed() {
        let crowded = Second {
            cores: 2,
            used: 1.97,
            others: 0.03,
            queued: 4.0,
            longest: 0.8,
            stolen: 0.0,
        };
        assert_eq!(found(crowded), None);
        let held_back = evidence(HALF, |sample| sample.pressed.held_back_s = Some(0.3 * sample.at_s));
        assert_eq!(other_programs(&held_back), None);
    }

    #[test]
    fn a_gpu_that_is_busy_all_the_while_loses_nothing_by_processors() {
        let on = |utilisation: f64| {
            evidence(HALF, move |sample| {
                sample.gpus = vec![DeviceSample {
                    utilisation: Some(utilisation),
                    resident_bytes: Some(1 << 30),
                    ..DeviceSample::default()
                }];
            })
        };
        assert_eq!(other_programs(&on(0.97)), None);
        assert!((other_programs(&on(0.8)).unwrap().share.unwrap() - 0.2).abs() < 1e-9);
        let mut unseen = evidence(HALF, |_| {});
        unseen.limits.gpu_unseen = true;
        assert_eq!(other_programs(&unseen), None);
    }

    #[test]
    fn what_the_hypervisor_takes_is_named() {
        let stolen = Second {
            cores: 2,
            used: 1.5,
            stolen: 0.5,
            ..Second::default()
        };
        let named = found(stolen).unwrap();
        assert!(named.evidence.contains("gave 0.5 of the 2 processors"), "{named:?}");
        assert!((named.share.unwrap() - 0.25).abs() < 1e-9, "{named:?}");
        assert_eq!(found(Second { stolen: 0.05, ..stolen }), None);
    }
}
