//! Steps that are longer than others, and what stands between them.

use super::cause::Cause;
use crate::cli::watch::evidence::{Evidence, mean, mean_of_known};
use crate::cli::watch::progress::StepSpan;
use crate::cli::watch::sample::Span;
use crate::report::{bytes, duration, percent};
use peft_tune_engine::profile::median;

/// Steps without which nothing can be said of one of them, and of their course.
const LEAST_STEPS: usize = 8;
const LEAST_COURSE: usize = 24;
/// Times the median from which a step is long.
const LONG: f64 = 3.0;
/// Part of the usual use of processors from which a step computes, and how many times as long as a step the looks at it may be.
const COMPUTES: f64 = 0.5;
const RESOLVES: f64 = 2.0;
/// Share of the run from which evaluations, or files that are written, are worth naming.
const NOTICED: f64 = 0.2;
const NOTICED_SAVING: f64 = 0.05;
/// Share of the run that single long steps take before they are worth naming: every system has short pauses.
const NOTICED_STEPS: f64 = 0.02;
/// Share by which the last third of the steps is slower.
const SLOWER: f64 = 0.2;
/// Bytes a second from which a run writes a checkpoint.
const SAVES_BYTES_PER_S: f64 = 1e7;

/// A step that is long since it computes more than others.
pub(super) fn one_long_row(evidence: &Evidence) -> Option<Cause> {
    let (slow, usual) = computing(evidence)?;
    let most = longest(&slow).filter(|_| period(&slow).is_none())?;
    let cause = Cause::new(
        "one_long_row",
        format!(
            "{} of {} steps took {LONG} times the median of {} or more, up to {} in step {}, and computed all the while",
            slow.len(),
            evidence.steps.len(),
            duration(usual),
            duration(most.seconds()),
            most.step
        ),
        "cut rows to a length that nearly all have (`max_length`), group rows by length, or pack them",
    );
    Some(cause.taking(lost(&slow, usual) / evidence.seconds))
}

/// Steps that are long one time in so many.
pub(super) fn periodic_work(evidence: &Evidence) -> Option<Cause> {
    let (slow, usual) = computing(evidence)?;
    let (most, period) = (longest(&slow)?, period(&slow)?);
    let cause = Cause::new(
        "periodic_work",
        format!(
            "every {period} steps one took {LONG} times the median of {} or more, up to {} in step {}, and computed all the while",
            duration(usual),
            duration(most.seconds()),
            most.step
        ),
        "look at what runs then and is not logged as an evaluation, samples that are generated for one; where rows are not shuffled a \
         long one comes once an epoch",
    );
    Some(cause.taking(lost(&slow, usual) / evidence.seconds))
}

/// A step that is long although nothing computes in it.
pub(super) fn stall(evidence: &Evidence) -> Option<Cause> {
    let (long, usual) = long_steps(evidence)?;
    let level = busy(&evidence.step_time())?;
    let waits =
        |step: &StepSpan| computes(evidence, step, level) == Some(false) && saved(evidence, step) < SAVES_BYTES_PER_S;
    let still: Vec<StepSpan> = long.into_iter().filter(waits).collect();
    let most = longest(&still)?;
    let share = lost(&still, usual) / evidence.seconds;
    let spans = evidence.within(most.from_s, most.to_s);
    let read = mean_of_known(&spans, |span| span.read_per_s);
    let cause = Cause::new(
        "stall",
        format!(
            "{} of {} steps took {LONG} times the median of {} or more, up to {} in step {}, with {:.1} processors busy{}",
            still.len(),
            evidence.steps.len(),
            duration(usual),
            duration(most.seconds()),
            most.step,
            mean(&spans, |span| span.cores)?,
            read.map(|read| format!(" and {}/s read", bytes(read)))
                .unwrap_or_default()
        ),
        "look for what it waits for then: a shard of the data, a checkpoint, a service that is logged to, another rank",
    );
    (share >= NOTICED_STEPS).then(|| cause.taking(share))
}

/// Steps that take longer and longer.
pub(super) fn slows_down(evidence: &Evidence) -> Option<Cause> {
    let third = evidence.steps.len() / 3;
    if evidence.steps.len() < LEAST_COURSE {
        return None;
    }
    let middle = |steps: &[StepSpan]| median(steps.iter().map(StepSpan::seconds));
    let first = middle(&evidence.steps[..third])?;
    let between = middle(&evidence.steps[third..2 * third])?;
    let last = middle(&evidence.steps[2 * third..])?;
    // Both thirds, so that a disturbance at the end alone is none.
    let rises = last > (1.0 + SLOWER) * first && between > (1.0 + SLOWER / 4.0) * first && last > between;
    rises.then(|| {
        Cause::new(
            "slows_down",
            format!(
                "steps took {} at first, {} then and {} at the end",
                duration(first),
                duration(between),
                duration(last)
            ),
            "look at memory that grows, at clocks that fall, and at lists that are kept from step to step",
        )
        .taking(1.0 - first / last)
    })
}

/// Evaluations that take much of the run.
pub(super) fn evaluation_time(evidence: &Evidence) -> Option<Cause> {
    let seconds: f64 = evidence.evaluations.iter().map(|(from, to)| to - from).sum();
    let share = seconds / evidence.seconds;
    (evidence.seconds > 0.0 && share > NOTICED).then(|| {
        Cause::new(
            "evaluation_time",
            format!(
                "{} evaluations took {}, {} of the run",
                evidence.evaluations.len(),
                duration(seconds),
                percent(share)
            ),
            "evaluate less often (`eval_steps`), on fewer rows, or in larger batches (`per_device_eval_batch_size`)",
        )
        .taking(share)
    })
}

/// Checkpoints that the steps wait for.
pub(super) fn saving(evidence: &Evidence) -> Option<Cause> {
    let usual = evidence.step_s()?;
    let saves = |step: &&StepSpan| step.seconds() > 1.5 * usual && saved(evidence, step) >= SAVES_BYTES_PER_S;
    let slow: Vec<StepSpan> = evidence.steps.iter().filter(saves).copied().collect();
    let share = lost(&slow, usual) / evidence.seconds;
    (evidence.seconds > 0.0 && share > NOTICED_SAVING).then(|| {
        Cause::new(
            "saving",
            format!(
                "{} of {} steps waited while files were written, {} of the run in all",
                slow.len(),
                evidence.steps.len(),
                percent(share)
            ),
            "save less often (`save_steps`), only the adapter, or on a faster disk",
        )
        .taking(share)
    })
}

/// Steps of several times the median, and the median.
fn long_steps(evidence: &Evidence) -> Option<(Vec<StepSpan>, f64)> {
    if evidence.steps.len() < LEAST_STEPS {
        return None;
    }
    let usual = evidence.step_s()?;
    let long: Vec<StepSpan> = evidence
        .steps
        .iter()
        .filter(|step| step.seconds() >= LONG * usual)
        .copied()
        .collect();
    (!long.is_empty()).then_some((long, usual))
}

/// Long steps that compute, where they take enough of the run together, and the median.
fn computing(evidence: &Evidence) -> Option<(Vec<StepSpan>, f64)> {
    let (long, usual) = long_steps(evidence)?;
    let level = busy(&evidence.step_time())?;
    let computed = |step: &StepSpan| computes(evidence, step, level) == Some(true);
    let slow: Vec<StepSpan> = long.into_iter().filter(computed).collect();
    (!slow.is_empty() && lost(&slow, usual) >= NOTICED_STEPS * evidence.seconds).then_some((slow, usual))
}

/// Steps from one to the next, where they are as many each time; `None` of fewer than three.
fn period(steps: &[StepSpan]) -> Option<u64> {
    let apart = |pair: &[StepSpan]| pair[1].step - pair[0].step;
    let first = apart(steps.get(..2)?);
    let is_regular = steps.len() > 2 && steps.windows(2).all(|pair| apart(pair) == first);
    (is_regular && first > 1).then_some(first)
}

fn longest(steps: &[StepSpan]) -> Option<&StepSpan> {
    steps.iter().max_by(|a, b| a.seconds().total_cmp(&b.seconds()))
}

/// Seconds beyond the median.
fn lost(steps: &[StepSpan], usual: f64) -> f64 {
    steps
        .iter()
        .map(|step| step.to_s - step.from_s - usual * step.steps as f64)
        .sum()
}

/// Part of a GPU, or else processors, that were busy; `None` without a look.
fn busy(spans: &[Span]) -> Option<f64> {
    mean(spans, |span| span.gpu_utilisation.unwrap_or(span.cores))
}

/// Whether a step keeps as much busy as is usual; `None` where it was not looked at, or by looks that are of other steps as well.
fn computes(evidence: &Evidence, step: &StepSpan, usual: f64) -> Option<bool> {
    let spans = evidence.within(step.from_s, step.to_s);
    let looked_s: f64 = spans.iter().map(|span| span.seconds).sum();
    if looked_s > RESOLVES * (step.to_s - step.from_s) {
        return None;
    }
    Some(busy(&spans)? >= COMPUTES * usual)
}

/// Bytes a second that were written during a step.
fn saved(evidence: &Evidence, step: &StepSpan) -> f64 {
    mean(&evidence.within(step.from_s, step.to_s), |span| span.written_per_s).unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::watch::evidence::made::{clean, of};
    use crate::cli::watch::process_stat::Used;
    use crate::cli::watch::sample::Sample;

    /// A run whose steps take these seconds, with so many processors busy in each and bytes written in a second.
    fn run(steps: &[(f64, f64, f64)]) -> Evidence {
        let (mut now, mut used, mut written) = (0.0, 0.0, 0.0);
        let (mut samples, mut spans) = (vec![Sample::default()], Vec::new());
        for (number, (seconds, cores, bytes)) in steps.iter().enumerate() {
            for _ in 0..4 {
                now += seconds / 4.0;
                used += cores * seconds / 4.0;
                written += bytes * seconds / 4.0;
                samples.push(Sample {
                    at_s: now,
                    used: Used {
                        cpu_s: used,
                        written_bytes: Some(written as u64),
                        ..Used::default()
                    },
                    ..Sample::default()
                });
            }
            spans.push(StepSpan {
                from_s: now - seconds,
                to_s: now,
                step: number as u64 + 1,
                steps: 1,
            });
        }
        of(samples, spans)
    }

    #[test]
    fn a_long_step_is_a_row_where_it_computes_and_a_stall_where_it_does_not() {
        let mut steps = vec![(1.0, 2.0, 0.0); 20];
        steps[11] = (6.0, 2.0, 0.0);
        let row = one_long_row(&run(&steps)).unwrap();
        assert!(
            row.evidence.contains("1 of 20") && row.evidence.contains("step 12"),
            "{row:?}"
        );
        assert!((row.share.unwrap() - 0.2).abs() < 1e-9, "{row:?}");
        assert_eq!(stall(&run(&steps)), None);
        steps[11] = (6.0, 0.1, 0.0);
        let still = stall(&run(&steps)).unwrap();
        assert!(
            still.evidence.contains("step 12") && still.evidence.contains("0.1 processors"),
            "{still:?}"
        );
        assert_eq!(one_long_row(&run(&steps)), None);
        // Looks that are further apart than the step is long do not tell the two apart.
        let mut unresolved = run(&steps);
        unresolved.spans = Span::all(&[unresolved.samples[0].clone(), unresolved.samples[79].clone()]);
        assert_eq!((one_long_row(&unresolved), stall(&unresolved)), (None, None));
        steps[11] = (2.0, 2.0, 0.0);
        assert_eq!((one_long_row(&run(&steps)), stall(&run(&steps))), (None, None));
    }

    #[test]
    fn steps_that_are_long_at_regular_times_are_no_long_rows() {
        let mut steps = vec![(1.0, 2.0, 0.0); 40];
        for at in [9, 19, 29] {
            steps[at] = (5.0, 2.0, 0.0);
        }
        let found = periodic_work(&run(&steps)).unwrap();
        assert!(found.evidence.starts_with("every 10 steps one took"), "{found:?}");
        assert_eq!(one_long_row(&run(&steps)), None);
        steps[36] = (5.0, 2.0, 0.0);
        assert_eq!(periodic_work(&run(&steps)), None);
        assert!(one_long_row(&run(&steps)).is_some());
    }

    #[test]
    fn steps_that_wait_for_a_checkpoint_are_told_apart_from_a_stall() {
        let mut steps = vec![(1.0, 2.0, 0.0); 20];
        steps[9] = (5.0, 0.2, 2e8);
        let evidence = run(&steps);
        assert!(
            saving(&evidence).unwrap().evidence.contains("1 of 20 steps"),
            "{:?}",
            saving(&evidence)
        );
        assert_eq!(stall(&evidence), None);
    }

    #[test]
    fn a_run_slows_down_where_each_third_is_slower() {
        let steps: Vec<_> = (0..30).map(|step| (1.0 + step as f64 / 30.0, 2.0, 0.0)).collect();
        let found = slows_down(&run(&steps)).unwrap();
        assert!(found.share.unwrap() > 0.3, "{found:?}");
        let mut late = vec![(1.0, 2.0, 0.0); 30];
        late[21..].fill((2.0, 2.0, 0.0));
        assert_eq!(slows_down(&run(&late)), None);
    }

    #[test]
    fn evaluations_are_named_where_they_take_long() {
        let mut evidence = clean(20);
        evidence.evaluations = vec![(4.0, 8.0), (14.0, 16.0)];
        let found = evaluation_time(&evidence).unwrap();
        assert!(found.evidence.starts_with("2 evaluations took 6.0 s, 30"), "{found:?}");
        evidence.evaluations.truncate(1);
        assert_eq!(evaluation_time(&evidence), None);
    }
}
