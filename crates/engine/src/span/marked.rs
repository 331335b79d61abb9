//! Times of spans by marks in a device's queue: the device works on as it does where nobody records.
//!
//! A span begins when the device comes to its first mark and ends when it comes to its last one. So the spans of a step divide
//! the device's own time, and what the host does meanwhile is in none of them. A phase of the host alone (waiting for data,
//! logging) finds a device that has nothing to do: it comes to the marks as they are set.

use candle_core::{Device, Result};

use super::mark::Mark;
use super::{Range, SpanRecord, StepPhase};

/// End of a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Edge {
    Start,
    End,
}

/// The marks of a tree of spans that is under way.
#[derive(Debug)]
pub(super) struct MarkedSpans {
    device: Device,
    /// Marks by their order in the queue: the span's index, and which end of it.
    set: Vec<(u32, Edge, Mark)>,
    /// Marks of earlier trees.
    spare: Vec<Mark>,
}

impl MarkedSpans {
    pub(super) fn new(device: Device) -> Self {
        Self {
            device,
            set: Vec::new(),
            spare: Vec::new(),
        }
    }

    /// Sets the mark of one end of the span `index`.
    pub(super) fn set(&mut self, index: u32, range: Range, edge: Edge) -> Result<()> {
        let mark = match self.spare.pop() {
            Some(mark) => mark.again(&self.device)?,
            None => Mark::new(&self.device)?,
        };
        self.set.push((index, edge, mark));
        if is_of_the_host(range) {
            self.device.synchronize()?;
        }
        Ok(())
    }

    /// Waits for the device and gives the spans of a tree the times of its marks. The first of them began at `start_ns`, when
    /// the device had nothing to do.
    pub(super) fn resolve(&mut self, spans: &mut [SpanRecord], start_ns: u64) -> Result<()> {
        let waited = self.device.synchronize();
        let set = std::mem::take(&mut self.set);
        let times = waited.and_then(|()| times(&set, start_ns));
        if let Ok(times) = &times {
            for ((index, edge, _), at_ns) in set.iter().zip(times) {
                let Some(span) = spans.get_mut(*index as usize) else {
                    continue;
                };
                match edge {
                    Edge::Start => span.start_ns = *at_ns,
                    Edge::End => span.end_ns = *at_ns,
                }
            }
        }
        self.spare.extend(set.into_iter().map(|(.., mark)| mark));
        times.map(drop)
    }
}

/// Nanoseconds of each mark. A device's clock has steps of half a microsecond, and its readings are rounded: none goes back.
fn times(set: &[(u32, Edge, Mark)], start_ns: u64) -> Result<Vec<u64>> {
    let Some((.., first)) = set.first() else {
        return Ok(Vec::new());
    };
    let mut latest = start_ns;
    let time = |(.., mark): &(u32, Edge, Mark)| {
        latest = latest.max(start_ns + (first.seconds_to(mark)?.max(0.0) * 1e9) as u64);
        Ok(latest)
    };
    set.iter().map(time).collect()
}

/// Whether the device has nothing to do at both ends of a span, in steps that nobody records as well: a step ends when it is
/// done.
fn is_of_the_host(range: Range) -> bool {
    matches!(
        range,
        Range::Phase(StepPhase::Step | StepPhase::Data | StepPhase::Logging | StepPhase::Evaluation)
    )
}
