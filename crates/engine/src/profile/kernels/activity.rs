//! Activities of a GPU.

use crate::span::{Range, SpanTree};

/// A kernel or a copy under way on a GPU. Times count from the beginning of the recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Activity {
    pub kind: ActivityKind,
    /// The kernel's symbol, or what was copied from where.
    pub name: String,
    pub start_ns: u64,
    pub end_ns: u64,
    /// Bytes that were copied or filled; 0 of a kernel.
    pub bytes: u64,
    /// The queue that it ran in.
    pub stream: u32,
}

/// Kind of work that a GPU can be at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ActivityKind {
    Kernel,
    /// Copy between the host's memory and the GPU's.
    Transfer,
    /// Moves within the GPU's memory: copies and fills.
    Move,
}

impl Activity {
    /// Seconds from its beginning to its end.
    pub fn seconds(&self) -> f64 {
        (self.end_ns - self.start_ns) as f64 / 1e9
    }

    /// Name of the op that was open when it began, if any: where spans wait for the device, the op that launched it.
    pub(super) fn op_in(&self, trees: &[SpanTree]) -> Option<&'static str> {
        let holds = |start_ns: u64, end_ns: u64| (start_ns..=end_ns).contains(&self.start_ns);
        let mut main = trees.iter().filter(|tree| tree.thread == 0);
        let tree = main.find(|tree| holds(tree.root().start_ns, tree.root().end_ns))?;
        // Spans are in the order of their beginnings: the last that holds it is the innermost.
        let innermost = tree.spans.iter().rfind(|span| holds(span.start_ns, span.end_ns))?;
        match innermost.range {
            Range::Op(name) => Some(name),
            _ => None,
        }
    }
}

/// Calls of one function of the driver.
#[derive(Clone, Debug, PartialEq)]
pub struct FunctionCalls {
    pub name: String,
    pub count: u64,
    /// Seconds in all of them.
    pub seconds: f64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::fixtures::{op, span, tree};
    use crate::span::StepPhase;

    #[test]
    fn a_kernel_belongs_to_the_op_that_was_open() {
        let step = tree(vec![
            span(Range::Phase(StepPhase::Step), None, 1_000, 9_000),
            op("matmul_nt", Some(0), (2_000, 4_000), (1, 1)),
            op("rms_norm", Some(0), (5_000, 6_000), (0, 1)),
        ]);
        let at = |start_ns| Activity {
            kind: ActivityKind::Kernel,
            name: "k".to_owned(),
            start_ns,
            end_ns: start_ns + 10,
            bytes: 0,
            stream: 7,
        };
        let trees = [step];
        assert_eq!(at(2_500).op_in(&trees), Some("matmul_nt"));
        assert_eq!(at(5_500).op_in(&trees), Some("rms_norm"));
        assert_eq!((at(4_500).op_in(&trees), at(500).op_in(&trees)), (None, None));
    }
}
