//! Memory: what grows, what an evaluation takes, and what happens where there is none left.

use super::cause::Cause;
use crate::cli::watch::evidence::Evidence;
use crate::cli::watch::progress::StepSpan;
use crate::cli::watch::sample::Sample;
use crate::report::{bytes, percent};
use crate::worker::OomScope;

const MIB: u64 = 1 << 20;
/// Samples without which a course is none.
const LEAST_SAMPLES: usize = 20;
/// Growth from which memory is said to grow: bytes, and a share of what there was.
const GROWS_BYTES: f64 = 64.0 * MIB as f64;
const GROWS_SHARE: f64 = 0.05;
/// Part of the variation that a line has to explain.
const ON_A_LINE: f64 = 0.9;
/// Rises of memory above all before: each a share of what there was. As many make a course, some of them in the second half of the
/// steps, and as large a part of them comes with long steps.
const RISE_SHARE: f64 = 0.02;
const RISES: usize = 3;
const WITH_LENGTHS: f64 = 0.7;
/// Bytes in the swap, pages a second read back, and the share of the time in which they are, that slow a run down.
const SWAPPED_BYTES: u64 = 64 * MIB;
const FAULTS_PER_S: f64 = 20.0;
const SWAPS: f64 = 0.02;

/// Memory that rises with the steps, on a line.
pub(super) fn grows(evidence: &Evidence) -> Option<Cause> {
    if with_lengths(evidence).is_some() {
        return None;
    }
    let line = Line::of(&settled(evidence))?;
    let is_growth = line.growth >= GROWS_BYTES.max(GROWS_SHARE * line.first);
    if !is_growth || line.explains < ON_A_LINE {
        return None;
    }
    // What comes in one half alone is a part of the training that began then.
    let halves = line.halves.iter().all(|half| *half >= line.growth / 4.0);
    halves.then(|| {
        Cause::new(
            "memory_grows",
            format!(
                "memory rose by {} in {} samples, {} an hour, on a line that explains {} of it",
                bytes(line.growth),
                line.count,
                bytes(line.per_s * 3600.0),
                percent(line.explains)
            ),
            "look for what is kept from step to step: losses with their graphs, logged tensors, rows in lists; on a GPU also \
             evaluations whose outputs are gathered (`eval_accumulation_steps`)",
        )
    })
}

/// Memory that rises with each step that is longer than those before: the allocator keeps blocks for each length.
pub(super) fn grows_with_lengths(evidence: &Evidence) -> Option<Cause> {
    let Rises { count, with, from, to } = with_lengths(evidence)?;
    Some(Cause::new(
        "memory_grows_with_lengths",
        format!(
            "memory rose {count} times, from {} to {}, {with} times in a step longer than nearly all before it",
            bytes(from),
            bytes(to)
        ),
        "pad to few lengths (`pad_to_multiple_of`), pack rows, or set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
    ))
}

/// A peak that an evaluation makes, above that of the steps.
pub(super) fn evaluation_peak(evidence: &Evidence) -> Option<Cause> {
    let most = |is_wanted: &dyn Fn(&Sample) -> bool| {
        let wanted = evidence.samples.iter().filter(|sample| is_wanted(sample));
        wanted.map(Sample::device_bytes).max()
    };
    let steps = most(&|sample: &Sample| !evidence.is_evaluating(sample.at_s))?;
    let evaluation = most(&|sample: &Sample| evidence.is_evaluating(sample.at_s))?;
    let is_peak = evaluation as f64 > steps as f64 * (1.0 + GROWS_SHARE) && evaluation - steps > GROWS_BYTES as u64;
    is_peak.then(|| {
        Cause::new(
            "evaluation_peak",
            format!(
                "evaluations took up to {}, steps {}",
                bytes(evaluation as f64),
                bytes(steps as f64)
            ),
            "evaluate in smaller batches (`per_device_eval_batch_size`), keep only the loss (`prediction_loss_only`), or move outputs \
             to the host (`eval_accumulation_steps`)",
        )
    })
}

/// Pages of the run that go to the swap, and that it reads back.
pub(super) fn swapping(evidence: &Evidence) -> Option<Cause> {
    let first = evidence.samples.first()?.swap_bytes;
    let most = evidence.samples.iter().map(|sample| sample.swap_bytes).max()?;
    let swapped = most.saturating_sub(first);
    if swapped < SWAPPED_BYTES {
        return None;
    }
    // Seconds between two samples in which pages were read, from the swap as far as some are there.
    let read_back = evidence.samples.windows(2).filter_map(|pair| {
        let seconds = pair[1].at_s - pair[0].at_s;
        let faults = pair[1].used.major_faults.saturating_sub(pair[0].used.major_faults);
        (pair[1].swap_bytes > first && faults as f64 >= FAULTS_PER_S * seconds).then_some(seconds)
    });
    let share = read_back.sum::<f64>() / evidence.seconds.max(f64::MIN_POSITIVE);
    let cause = Cause::new(
        "swapping",
        format!(
            "{} of the run went to the swap, and pages were read back in {} of its time",
            bytes(swapped as f64),
            percent(share)
        ),
        "let the run take less memory of the host: fewer data workers, smaller caches, less that is offloaded",
    );
    // Pages that nobody asks for again slow nothing down.
    (share >= SWAPS).then(|| cause.taking(share))
}

/// A process that the kernel ended for lack of memory. Where it may be anybody's, a run that ended well is none of its.
pub(super) fn memory_limit(evidence: &Evidence) -> Option<Cause> {
    let kills = evidence.limits.oom_kills;
    let is_others = kills.scope == OomScope::Machine && evidence.ending.exit_code == Some(0);
    (kills.count > 0 && !is_others).then(|| {
        let most = evidence
            .samples
            .iter()
            .map(|sample| sample.memory_bytes)
            .max()
            .unwrap_or(0);
        let (place, of_command) = match kills.scope {
            OomScope::Group => ("in its control group", ", the command among them"),
            OomScope::Machine => ("on this machine, perhaps of others,", ", perhaps the command too"),
        };
        let is_killed = evidence.ending.signal == Some(libc::SIGKILL);
        let ended = if is_killed { of_command } else { "" };
        Cause::new(
            "memory_limit",
            format!(
                "the kernel ended {} processes {place} for lack of memory{ended}; the run had {} at its highest",
                kills.count,
                bytes(most as f64)
            ),
            "raise the limit of the control group or the container, or let the run take less memory of the host",
        )
    })
}

/// Times and memory of the device in the steps but for the first fifth, in which caches fill.
fn settled(evidence: &Evidence) -> Vec<(f64, f64)> {
    let all = evidence.step_samples();
    let from = all.len() / 5;
    all[from..]
        .iter()
        .map(|sample| (sample.at_s, sample.device_bytes() as f64))
        .collect()
}

/// Rises of memory above all before.
struct Rises {
    count: usize,
    /// Rises that came in a step longer than nearly all before it.
    with: usize,
    /// Bytes before the first one, and behind the last one.
    from: f64,
    to: f64,
}

/// Rises of memory, where most of them came in a step longer than nearly all before; `None` where they did not.
fn with_lengths(evidence: &Evidence) -> Option<Rises> {
    let samples = evidence.step_samples();
    let (first, last) = (samples.first()?, samples.last()?);
    let (from, middle_s) = (first.device_bytes() as f64, (first.at_s + last.at_s) / 2.0);
    let (mut count, mut with, mut late) = (0, 0, 0);
    // What goes down again in shorter steps has not grown when it comes back.
    let mut level = from;
    for pair in samples.windows(2) {
        let behind = pair[1].device_bytes() as f64;
        if behind < level * (1.0 + RISE_SHARE) {
            continue;
        }
        level = behind;
        count += 1;
        late += usize::from(pair[1].at_s > middle_s);
        let is_long = |step: &StepSpan| {
            if step.from_s >= pair[1].at_s || step.to_s <= pair[0].at_s {
                return false;
            }
            let earlier = evidence.steps.iter().filter(|one| one.to_s <= step.from_s);
            let (all, longer) = earlier.fold((0, 0), |(all, longer), one| {
                (all + 1, longer + usize::from(one.seconds() >= step.seconds()))
            });
            all > 2 && longer * 10 <= all
        };
        with += usize::from(evidence.steps.iter().any(is_long));
    }
    // The first of many lengths rarely holds the longest: rises that are over say nothing.
    let grows = count >= RISES && late > 0 && level - from >= GROWS_BYTES;
    (grows && with as f64 >= WITH_LENGTHS * count as f64).then_some(Rises {
        count,
        with,
        from,
        to: level,
    })
}

/// A least-squares line through memory by time.
struct Line {
    count: usize,
    /// Memory on the line at its first and at its last point: the first, and the difference.
    first: f64,
    growth: f64,
    per_s: f64,
    /// Share of the variation that it explains (R²).
    explains: f64,
    /// Growth of the mean from quarter to quarter, over each half.
    halves: [f64; 2],
}

impl Line {
    fn of(points: &[(f64, f64)]) -> Option<Self> {
        let (first, last) = (points.first()?, points.last()?);
        if points.len() < LEAST_SAMPLES || last.0 <= first.0 {
            return None;
        }
        let count = points.len() as f64;
        let (mean_x, mean_y) = points
            .iter()
            .fold((0.0, 0.0), |(x, y), point| (x + point.0 / count, y + point.1 / count));
        let (mut xx, mut xy, mut yy) = (0.0, 0.0, 0.0);
        for (x, y) in points {
            xx += (x - mean_x).powi(2);
            xy += (x - mean_x) * (y - mean_y);
            yy += (y - mean_y).powi(2);
        }
        let per_s = xy / xx;
        let quarter = points.len() / 4;
        let level = |points: &[(f64, f64)]| points.iter().map(|point| point.1).sum::<f64>() / points.len() as f64;
        let (begins, middle) = (
            level(&points[..quarter]),
            level(&points[2 * quarter - quarter / 2..2 * quarter + quarter / 2]),
        );
        let ends = level(&points[points.len() - quarter..]);
        Some(Self {
            count: points.len(),
            first: mean_y + per_s * (first.0 - mean_x),
            growth: per_s * (last.0 - first.0),
            per_s,
            explains: if yy > 0.0 { xy * xy / (xx * yy) } else { 0.0 },
            halves: [middle - begins, ends - middle],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::watch::evidence::made::{changed, clean, of};

    #[test]
    fn memory_that_rises_on_a_line_grows() {
        let leak = |sample: &mut Sample| sample.memory_bytes += (sample.at_s * 1e7) as u64;
        let found = grows(&changed(clean(60), leak)).unwrap();
        assert!(found.evidence.contains("an hour"), "{found:?}");
        // A jump, a plateau behind a rise, and noise do not.
        let jump = |sample: &mut Sample| sample.memory_bytes += u64::from(sample.at_s > 40.0) << 30;
        assert_eq!(grows(&changed(clean(60), jump)), None);
        let plateau = |sample: &mut Sample| sample.memory_bytes += (sample.at_s.min(20.0) * 1e8) as u64;
        assert_eq!(grows(&changed(clean(60), plateau)), None);
        let noise = |sample: &mut Sample| sample.memory_bytes += (sample.at_s as u64 * 7919 % 5) << 26;
        assert_eq!(grows(&changed(clean(60), noise)), None);
    }

    #[test]
    fn memory_that_rises_with_long_steps_is_no_leak() {
        let (mut now, mut memory) = (0.0, 4u64 << 30);
        let (mut samples, mut steps) = (vec![Sample::default()], Vec::new());
        samples[0].memory_bytes = memory;
        for step in 1..=40u64 {
            let is_long = step % 8 == 0;
            let seconds = if is_long { 2.0 + step as f64 / 40.0 } else { 1.0 };
            memory += if is_long { 300 << 20 } else { 0 };
            now += seconds;
            samples.push(Sample {
                at_s: now,
                memory_bytes: memory,
                ..Sample::default()
            });
            steps.push(StepSpan {
                from_s: now - seconds,
                to_s: now,
                step,
                steps: 1,
            });
        }
        let evidence = of(samples, steps);
        let found = grows_with_lengths(&evidence).unwrap();
        assert!(found.evidence.contains("rose 5 times"), "{found:?}");
        assert_eq!(grows(&evidence), None);
        // Memory that long steps take and give back has not grown.
        let comes_and_goes = changed(evidence, |sample| {
            sample.memory_bytes = 4 << 30;
            sample.memory_bytes += u64::from(sample.at_s as u64 % 10 == 9) << 29;
        });
        assert_eq!(grows_with_lengths(&comes_and_goes), None);
    }

    #[test]
    fn an_evaluation_may_make_the_peak() {
        let peak = |sample: &mut Sample| {
            sample.memory_bytes += u64::from((10.0..=12.0).contains(&sample.at_s)) << 30;
        };
        let mut evidence = changed(clean(30), peak);
        assert_eq!(evaluation_peak(&evidence), None);
        evidence.evaluations = vec![(10.0, 12.0)];
        let found = evaluation_peak(&evidence).unwrap();
        assert!(found.evidence.contains("5.00 GiB, steps 4.00 GiB"), "{found:?}");
        evidence.evaluations = vec![(20.0, 22.0)];
        assert_eq!(evaluation_peak(&evidence), None);
    }

    #[test]
    fn swap_and_the_kernels_kills_are_named() {
        let swap = |sample: &mut Sample| {
            sample.swap_bytes = (sample.at_s * 1e7) as u64;
            sample.used.major_faults = (sample.at_s * 100.0) as u64;
        };
        let found = swapping(&changed(clean(30), swap)).unwrap();
        assert!(found.share.unwrap() > 0.9, "{found:?}");
        assert_eq!(swapping(&clean(30)), None);
        let unread = |sample: &mut Sample| sample.swap_bytes = (sample.at_s * 1e7) as u64;
        assert_eq!(swapping(&changed(clean(30), unread)), None);
        let mut evidence = clean(5);
        evidence.limits.oom_kills.count = 1;
        evidence.ending.signal = Some(libc::SIGKILL);
        let found = memory_limit(&evidence).unwrap();
        assert!(found.evidence.contains("the command among them"), "{found:?}");
        evidence.limits.oom_kills.scope = OomScope::Machine;
        let found = memory_limit(&evidence).unwrap();
        assert!(found.evidence.contains("perhaps of others"), "{found:?}");
        (evidence.ending.signal, evidence.ending.exit_code) = (None, Some(0));
        assert_eq!(memory_limit(&evidence), None);
    }
}
