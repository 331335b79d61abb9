//! The ops of a step, in order, and which part of the step each belongs to.

use super::op::Op;
use super::segment::Segment;

/// A part of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepPart {
    /// Work before the passes of a micro-batch: its tensors, the schedule.
    Begin,
    Segment(Segment),
    /// Copies that bring weights together which devices share out.
    Gather,
    /// Sum of the gradients of all devices.
    Sum,
    /// Wait for updates on the host, behind the passes.
    HostUpdate,
}

/// Ops of a step or of a micro-batch, as often as each runs there.
#[derive(Clone, Debug, Default)]
pub(super) struct StepOps {
    pub ops: Vec<Op>,
    parts: Vec<PartEnd>,
}

/// A part, which ends before the op `end`.
#[derive(Clone, Copy, Debug)]
struct PartEnd {
    part: StepPart,
    times: f64,
    end: usize,
}

/// Ops of a part of a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpsOfPart<'a> {
    pub part: StepPart,
    /// Times that the part runs.
    pub times: f64,
    /// Ops, each as often as it runs in all of these.
    pub ops: &'a [Op],
}

impl StepOps {
    /// Adds the ops of a part that runs so many times; `ops` are those of one time.
    pub(super) fn push(&mut self, part: StepPart, times: f64, ops: impl IntoIterator<Item = Op>) {
        self.ops.extend(ops.into_iter().map(|op| Op {
            times: times * op.times,
            ..op
        }));
        let end = self.ops.len();
        self.parts.push(PartEnd { part, times, end });
    }

    /// Runs all of it so many times as often.
    pub(super) fn repeat(&mut self, times: f64) {
        self.ops.iter_mut().for_each(|op| op.times *= times);
        self.parts.iter_mut().for_each(|part| part.times *= times);
    }

    /// The parts in their order.
    pub(super) fn parts(&self) -> impl Iterator<Item = OpsOfPart<'_>> {
        let starts = std::iter::once(0).chain(self.parts.iter().map(|part| part.end));
        let parts = self.parts.iter().zip(starts);
        parts.map(|(PartEnd { part, times, end }, start)| OpsOfPart {
            part: *part,
            times: *times,
            ops: &self.ops[start..*end],
        })
    }
}
