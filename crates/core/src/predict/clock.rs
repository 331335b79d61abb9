//! Seconds of ops on a machine: by its measured ceilings, or by a roofline over its data sheet.

use super::machine::Machine;
use super::measured_times::MeasuredTimes;
use super::op::Op;
use super::op_context::Context;
use super::roofline::Roofline;
use super::seconds::Seconds;

/// The clock of one machine, for the ops of one step.
pub(super) enum Clock<'a> {
    Measured(MeasuredTimes<'a>),
    Sheet(Roofline<'a>),
}

impl<'a> Clock<'a> {
    /// The clock of `machine`; `None` where its speed is not known, or not in the step's precision.
    pub(super) fn of(machine: &'a Machine, context: Context<'a>) -> Option<Self> {
        match machine {
            Machine::Measured(ceilings) => MeasuredTimes::new(ceilings, context).map(Self::Measured),
            Machine::DataSheet(sheet) => Some(Self::Sheet(Roofline::new(sheet, context))),
            Machine::Unmeasured(_) => None,
        }
    }

    /// Seconds of an op, as often as it runs; `None` where it was not measured.
    pub(super) fn of_op(&self, op: &Op) -> Option<f64> {
        match self {
            Self::Measured(times) => Some(times.whole_step * op.times * times.of(&op.work)?),
            Self::Sheet(roofline) => Some(op.times * roofline.of(&op.work)),
        }
    }

    /// Seconds of `ops`; `None` where one of them was not measured.
    pub(super) fn of_all(&self, ops: &[Op]) -> Option<Seconds> {
        let mut seconds = Seconds::default();
        for op in ops {
            seconds.add(op.work.kind(), self.of_op(op)?);
        }
        Some(seconds)
    }
}
