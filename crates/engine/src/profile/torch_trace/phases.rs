//! Phases of the steps: by marks among the events, and by what lies between two marks.
//!
//! | between | lies |
//! |---|---|
//! | two parts of the backward pass | the forward pass of the next micro-batch, where ops run there |
//! | backward and optimizer | clipping: the optimizer |
//! | anything and backward | forward |
//! | two reads of data | forward (an evaluation), where ops run there |
//! | backward and the end, in a trace without updates | the optimizer |
//! | else | nothing that has a name |

use std::cmp::Reverse;

use super::marks;
use super::recorded::Recorded;
use super::steps::Steps;
use crate::profile::{Median, PhaseTime};
use crate::span::StepPhase;

/// Ops between two marks from which on a pass of the model lies there.
const OPS_OF_A_PASS: usize = 8;
/// Phases in the order of the table.
const ORDER: [StepPhase; 4] = [
    StepPhase::Data,
    StepPhase::Forward,
    StepPhase::Backward,
    StepPhase::Optimizer,
];

/// Time that belongs to a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PhaseSpan {
    pub start_ns: u64,
    pub end_ns: u64,
    pub phase: StepPhase,
}

/// Phases of a trace, as ranges that do not overlap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Phases {
    spans: Vec<PhaseSpan>,
}

impl Phases {
    /// Phases of the host, within the steps of a sorted trace.
    pub(super) fn of(recorded: &Recorded, steps: &Steps) -> Self {
        let of_names: Vec<Option<StepPhase>> = recorded
            .names
            .values()
            .iter()
            .map(|name| marks::phase_of(name))
            .collect();
        let is_op: Vec<bool> = recorded.names.values().iter().map(|name| marks::is_op(name)).collect();
        let marks = recorded.host.iter().filter_map(|event| {
            let phase = of_names[event.name as usize]?;
            Some(PhaseSpan {
                start_ns: event.start_ns,
                end_ns: event.end_ns,
                phase,
            })
        });
        let marked = innermost(marks.collect());
        let ops = recorded.host.iter().filter(|event| is_op[event.name as usize]);
        let mut starts: Vec<u64> = ops.map(|event| event.start_ns).collect();
        starts.sort_unstable();
        Self {
            spans: filled(marked, steps.bounds(), &starts),
        }
    }

    /// Phases by what a GPU is at: what runs has the phase of its launch, and what lies before it too, but for waits for data.
    pub(super) fn on_gpu(&self, launches: impl Iterator<Item = PhaseSpan>) -> Self {
        let waits: Vec<&PhaseSpan> = self.spans.iter().filter(|span| span.phase == StepPhase::Data).collect();
        let (mut spans, mut at, mut first) = (Vec::new(), None, 0);
        for launch in launches {
            let mut from = at.unwrap_or(launch.start_ns).min(launch.end_ns);
            while waits.get(first).is_some_and(|wait| wait.end_ns <= from) {
                first += 1;
            }
            for wait in waits[first..].iter().take_while(|wait| wait.start_ns < launch.start_ns) {
                let (start_ns, end_ns) = (wait.start_ns.max(from), wait.end_ns.min(launch.start_ns));
                push(&mut spans, from, start_ns, launch.phase);
                push(&mut spans, start_ns, end_ns, StepPhase::Data);
                from = from.max(end_ns);
            }
            push(&mut spans, from, launch.end_ns, launch.phase);
            at = Some(launch.end_ns.max(at.unwrap_or(0)));
        }
        Self { spans }
    }

    /// The phase of a moment.
    pub(super) fn at(&self, moment_ns: u64) -> Option<StepPhase> {
        let place = self.spans.partition_point(|span| span.end_ns <= moment_ns);
        let span = self.spans.get(place)?;
        (span.start_ns <= moment_ns).then_some(span.phase)
    }

    /// The table: medians over the steps, idle time last. `op_seconds` gives the mean seconds in ops of a phase.
    pub(super) fn table(&self, steps: &Steps, op_seconds: impl Fn(&str) -> f64) -> Vec<PhaseTime> {
        let seconds = steps.seconds();
        let mut sums = vec![[0.0; ORDER.len()]; seconds.len()];
        for span in &self.spans {
            let Some(column) = ORDER.iter().position(|phase| *phase == span.phase) else {
                continue;
            };
            // Ends are compared: a span may go over several steps.
            let first = steps.spans.partition_point(|(_, end)| *end <= span.start_ns);
            let within = steps.spans[first..]
                .iter()
                .take_while(|(start, _)| *start < span.end_ns);
            for (place, (start, end)) in within.enumerate() {
                let shared = span.end_ns.min(*end).saturating_sub(span.start_ns.max(*start));
                sums[first + place][column] += shared as f64 / 1e9;
            }
        }
        let step_s = crate::profile::median(seconds.iter().copied()).unwrap_or(0.0);
        let (mut table, mut left) = (Vec::new(), 1.0);
        for (column, phase) in ORDER.into_iter().enumerate() {
            let times: Vec<f64> = sums.iter().map(|row| row[column]).collect();
            let shares = times.iter().zip(&seconds).map(|(time, step)| time / step.max(1e-9));
            let share = crate::profile::median(shares).unwrap_or(0.0);
            let center = Median::of(&times).unwrap_or_default();
            left -= share;
            table.push(PhaseTime {
                phase: phase.name().to_owned(),
                seconds: center.value,
                interval: center.interval,
                share,
                op_seconds: op_seconds(phase.name()).min(center.value),
                nested: false,
            });
        }
        let idle = f64::max(left, 0.0);
        table.push(PhaseTime {
            phase: "idle".to_owned(),
            seconds: idle * step_s,
            interval: 0.0,
            share: idle,
            op_seconds: 0.0,
            nested: false,
        });
        table
    }
}

/// Adds a range, and makes one of it and the last where they touch and have one phase.
fn push(spans: &mut Vec<PhaseSpan>, start_ns: u64, end_ns: u64, phase: StepPhase) {
    if start_ns >= end_ns {
        return;
    }
    match spans.last_mut() {
        Some(last) if last.phase == phase && last.end_ns == start_ns => last.end_ns = end_ns,
        _ => spans.push(PhaseSpan {
            start_ns,
            end_ns,
            phase,
        }),
    }
}

/// Marks as ranges that do not overlap: at each moment the one that began last.
fn innermost(mut marks: Vec<PhaseSpan>) -> Vec<PhaseSpan> {
    marks.sort_unstable_by_key(|mark| (mark.start_ns, Reverse(mark.end_ns)));
    let (mut spans, mut open, mut at) = (Vec::new(), Vec::<PhaseSpan>::new(), 0);
    let mut close = |open: &mut Vec<PhaseSpan>, at: &mut u64, until: u64| {
        while let Some(mark) = open.last().copied() {
            let end = mark.end_ns.min(until);
            push(&mut spans, *at, end, mark.phase);
            *at = (*at).max(end);
            if mark.end_ns > until {
                break;
            }
            open.pop();
        }
    };
    for mark in marks {
        close(&mut open, &mut at, mark.start_ns);
        at = mark.start_ns;
        open.push(mark);
    }
    close(&mut open, &mut at, u64::MAX);
    spans
}

/// The ranges with those between them that have a phase. `op_starts` are sorted beginnings of ops.
fn filled(marked: Vec<PhaseSpan>, (first_ns, last_ns): (u64, u64), op_starts: &[u64]) -> Vec<PhaseSpan> {
    let updates = marked.iter().any(|span| span.phase == StepPhase::Optimizer);
    let has_pass = |from: u64, to: u64| {
        let before = |moment: u64| op_starts.partition_point(|start| *start < moment);
        before(to).saturating_sub(before(from)) >= OPS_OF_A_PASS
    };
    let (mut spans, mut before, mut at) = (Vec::new(), None, first_ns);
    for span in marked {
        if let Some(phase) = between(before, Some(span.phase), updates, || has_pass(at, span.start_ns)) {
            push(&mut spans, at, span.start_ns, phase);
        }
        push(&mut spans, span.start_ns, span.end_ns, span.phase);
        (before, at) = (Some(span.phase), at.max(span.end_ns));
    }
    if let Some(phase) = between(before, None, updates, || has_pass(at, last_ns)) {
        push(&mut spans, at, last_ns, phase);
    }
    spans
}

/// The phase between two marks.
fn between(
    before: Option<StepPhase>,
    after: Option<StepPhase>,
    has_updates: bool,
    has_pass: impl FnOnce() -> bool,
) -> Option<StepPhase> {
    use StepPhase::{Backward, Data, Forward, Optimizer};
    match (before, after) {
        (Some(Backward), Some(Backward)) => Some(if has_pass() { Forward } else { Backward }),
        (Some(Backward | Optimizer), Some(Optimizer)) => Some(Optimizer),
        (Some(Backward), Some(Data) | None) => (!has_updates).then_some(Optimizer),
        (_, Some(Backward)) | (Some(Forward), Some(Forward)) => Some(Forward),
        (Some(Data), Some(Data)) => Some(if has_pass() { Forward } else { Data }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use StepPhase::{Backward, Data, Forward, Optimizer};

    fn span(start_ns: u64, end_ns: u64, phase: StepPhase) -> PhaseSpan {
        PhaseSpan {
            start_ns,
            end_ns,
            phase,
        }
    }

    #[test]
    fn the_innermost_mark_counts() {
        let marks = vec![span(0, 100, Backward), span(10, 40, Forward), span(120, 130, Data)];
        let expected = [
            span(0, 10, Backward),
            span(10, 40, Forward),
            span(40, 100, Backward),
            span(120, 130, Data),
        ];
        assert_eq!(innermost(marks), expected);
    }

    #[test]
    fn what_lies_between_marks_has_the_phase_that_follows_from_them() {
        let marked = vec![
            span(0, 10, Data),
            span(40, 50, Backward),
            span(52, 60, Backward),
            span(90, 100, Backward),
            span(110, 120, Optimizer),
        ];
        // A pass between the second and the third part of the backward pass, and a hook between the first two.
        let ops: Vec<u64> = [51].into_iter().chain(61..80).collect();
        let expected = [
            span(0, 10, Data),
            span(10, 40, Forward),
            span(40, 60, Backward),
            span(60, 90, Forward),
            span(90, 100, Backward),
            span(100, 120, Optimizer),
        ];
        assert_eq!(filled(marked, (0, 130), &ops), expected);
        let without_updates = vec![span(40, 50, Backward)];
        let expected = [span(0, 40, Forward), span(40, 50, Backward), span(50, 60, Optimizer)];
        assert_eq!(filled(without_updates, (0, 60), &[]), expected);
    }

    #[test]
    fn a_gpu_waits_for_what_it_runs_next_or_for_data() {
        let host = Phases {
            spans: vec![span(0, 30, Data)],
        };
        let launches = [span(10, 12, Optimizer), span(50, 60, Forward), span(55, 70, Backward)];
        let expected = [
            span(10, 12, Optimizer),
            span(12, 30, Data),
            span(30, 60, Forward),
            span(60, 70, Backward),
        ];
        assert_eq!(host.on_gpu(launches.into_iter()).spans, expected);
    }
}
