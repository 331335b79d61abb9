//! Seconds of ops on a machine: by its measured ceilings, or by a roofline over its data sheet.

use super::measured_times::MeasuredTimes;
use super::op::Op;
use super::prediction::Machine;
use super::roofline::Roofline;
use super::seconds::Seconds;
use super::stream::StreamShape;
use crate::recipe::Precision;

/// Facts that an op's time depends on besides the op.
#[derive(Clone, Copy, Debug)]
pub(super) struct Context<'a> {
    pub precision: Precision,
    /// Whether two of each four values of base weights are left out.
    pub is_sparse: bool,
    /// The storage of the codes that are multiplied in place of base weights, where a training makes some.
    pub aware: Option<Precision>,
    /// Width of most heads.
    pub head_width: usize,
    pub stream: &'a StreamShape,
}

/// Share of attention's rate at which a delta rule runs, token by token.
pub(super) const DELTA_RULE_SHARE: f64 = 0.3;

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
