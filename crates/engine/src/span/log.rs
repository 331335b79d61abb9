//! Closed spans.

use super::{Range, Work};

/// A span that has been closed. Times count from the beginning of the recording.
#[derive(Clone, Debug, PartialEq)]
pub struct SpanRecord {
    pub range: Range,
    /// Index in [`SpanTree::spans`] of the span around it.
    pub parent: Option<u32>,
    /// Spans around it.
    pub depth: u16,
    pub start_ns: u64,
    pub end_ns: u64,
    /// Work of an op; nothing of other spans.
    pub work: Work,
    pub memory: SpanMemory,
}

/// The device's memory in a span of the thread that records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpanMemory {
    /// Bytes in use when it was opened and closed.
    pub start_bytes: u64,
    pub end_bytes: u64,
    /// Highest bytes in use while no span inside it was open.
    pub own_peak_bytes: u64,
    /// Bytes kept for the backward pass when it was opened and closed, and at that peak.
    pub start_kept_bytes: u64,
    pub end_kept_bytes: u64,
    pub peak_kept_bytes: u64,
}

impl SpanRecord {
    /// Seconds from its beginning to its end.
    pub fn seconds(&self) -> f64 {
        (self.end_ns - self.start_ns) as f64 / 1e9
    }
}

/// A span with all that were opened inside it, in the order of their beginnings.
#[derive(Clone, Debug, PartialEq)]
pub struct SpanTree {
    /// Number of the thread: 0 is the one that records.
    pub thread: u16,
    /// Spans of the tree; the first is around all others.
    pub spans: Vec<SpanRecord>,
}

impl SpanTree {
    /// The span around all others; a tree has one.
    pub fn root(&self) -> &SpanRecord {
        &self.spans[0]
    }

    /// The spans around `index` from the inside out, itself first.
    pub fn around(&self, index: usize) -> impl Iterator<Item = &SpanRecord> {
        std::iter::successors(self.spans.get(index), |span| {
            span.parent.map(|parent| &self.spans[parent as usize])
        })
    }

    /// Seconds of each span without those inside it.
    pub fn own_seconds(&self) -> Vec<f64> {
        let mut own: Vec<f64> = self.spans.iter().map(SpanRecord::seconds).collect();
        for span in &self.spans {
            if let Some(parent) = span.parent {
                own[parent as usize] -= span.seconds();
            }
        }
        own
    }
}
