//! Ops that pass over memory: what a span shows of one, and what is predicted of it.

use super::kernel::Measured;
use super::{bytes, storage};
use crate::span::{Shape, Work};
use crate::tensor::PaperTensor;
use peft_tune_core::predict::{self, Pass};

/// A pass over memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Passed {
    /// The kind that it is predicted as.
    pub pass: Pass,
    /// Elements that it passes.
    pub elements: usize,
    /// Passes of the kind that it takes as long as.
    pub times: usize,
    /// Bytes that it moves.
    pub bytes: u64,
    pub storage: &'static str,
    pub shape: Shape,
}

/// A pass over `x` that moves what one of its kind moves.
pub(super) fn over(x: &impl Measured, pass: Pass) -> Passed {
    let elements: usize = x.sizes().iter().product();
    let of_element = pass.bytes(x.element().size_in_bytes() as f64);
    Passed {
        pass,
        elements,
        times: 1,
        bytes: elements as u64 * of_element as u64,
        storage: storage(x.element()),
        shape: Shape::with_tokens(x.sizes(), 0),
    }
}

/// A pass over `x` that moves `tensors` tensors like it.
pub(super) fn moving(x: &impl Measured, pass: Pass, tensors: u64) -> Passed {
    Passed {
        bytes: tensors * bytes(x),
        ..over(x, pass)
    }
}

/// A pass over both tensors, which a span shows by the first.
pub(super) fn over_both<M: Measured>([x, y]: [&M; 2], pass: Pass) -> Passed {
    let (one, other) = (over(x, pass), over(y, pass));
    Passed {
        elements: one.elements + other.elements,
        bytes: one.bytes + other.bytes,
        ..one
    }
}

/// The work of an op that spans show; what is predicted of it its form on paper says by itself, if there is anything.
pub(super) struct Apart(pub Work);

/// Work of an op on paper that the ledger is told.
pub(super) trait RunOnPaper {
    fn run_on(self, paper: &PaperTensor);
}

impl RunOnPaper for Apart {
    fn run_on(self, _: &PaperTensor) {}
}

impl From<Apart> for Work {
    fn from(Apart(work): Apart) -> Self {
        work
    }
}

impl RunOnPaper for Passed {
    fn run_on(self, paper: &PaperTensor) {
        let Self {
            pass, elements, times, ..
        } = self;
        let elements = elements as f64;
        paper.ledger().run(predict::Work::Pass { pass, elements }, times as f64);
    }
}

impl From<Passed> for Work {
    fn from(passed: Passed) -> Self {
        let Passed {
            pass: _,
            elements: _,
            times: _,
            bytes,
            storage,
            shape,
        } = passed;
        Self {
            bytes,
            storage,
            shape,
            ..Self::default()
        }
    }
}
