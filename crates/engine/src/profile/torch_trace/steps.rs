//! Steps of a trace: the profiler's own, else from one update to the next, else the whole of it.

use super::marks;
use super::recorded::{HostEvent, Recorded};

/// What tells steps apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StepSource {
    /// `profile.step()`.
    Profiler,
    /// Ends of updates.
    Updates,
    /// Nothing: all of the trace is taken as one step.
    Whole,
}

/// Steps with their beginnings and ends, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Steps {
    pub spans: Vec<(u64, u64)>,
    pub source: StepSource,
    /// Updates within them.
    pub updates: usize,
}

impl Steps {
    /// The steps of a sorted trace with at least one event of the host.
    pub(super) fn of(recorded: &Recorded) -> Self {
        let of_names = |is_wanted: fn(&str) -> bool| -> Vec<(u64, u64)> {
            let wanted: Vec<bool> = recorded.names.values().iter().map(|name| is_wanted(name)).collect();
            let events = recorded.host.iter().filter(|event| wanted[event.name as usize]);
            let mut spans: Vec<(u64, u64)> = events.map(|event| (event.start_ns, event.end_ns)).collect();
            spans.sort_unstable();
            spans
        };
        let updates = of_names(marks::is_update);
        let (spans, source) = match of_names(marks::is_step) {
            steps if !steps.is_empty() => (without_overlap(steps), StepSource::Profiler),
            _ if updates.len() >= 2 => {
                let between = updates.windows(2).map(|pair| (pair[0].1, pair[1].1));
                (between.collect(), StepSource::Updates)
            }
            _ => (vec![bounds(&recorded.host)], StepSource::Whole),
        };
        let mut steps = Self {
            spans,
            source,
            updates: 0,
        };
        steps.updates = updates.iter().filter(|(_, end)| steps.place(*end).is_some()).count();
        steps
    }

    pub(super) fn count(&self) -> u64 {
        self.spans.len() as u64
    }

    /// The step that a moment lies in; its end belongs to it.
    pub(super) fn place(&self, moment_ns: u64) -> Option<usize> {
        let place = self.spans.partition_point(|(_, end)| *end < moment_ns);
        let (start, _) = self.spans.get(place)?;
        (*start <= moment_ns).then_some(place)
    }

    /// Beginning of the first and end of the last.
    pub(super) fn bounds(&self) -> (u64, u64) {
        let first = self.spans.first().map_or(0, |(start, _)| *start);
        let last = self.spans.last().map_or(0, |(_, end)| *end);
        (first, last)
    }

    /// Seconds of each step.
    pub(super) fn seconds(&self) -> Vec<f64> {
        let spans = self.spans.iter();
        spans
            .map(|(start, end)| end.saturating_sub(*start) as f64 / 1e9)
            .collect()
    }
}

/// Ranges, each ended by the next one's beginning at the latest.
fn without_overlap(mut spans: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    spans.dedup_by_key(|(start, _)| *start);
    for place in 1..spans.len() {
        spans[place - 1].1 = spans[place - 1].1.min(spans[place].0);
    }
    spans
}

fn bounds(host: &[HostEvent]) -> (u64, u64) {
    let first = host.iter().map(|event| event.start_ns).min().unwrap_or(0);
    let last = host.iter().map(|event| event.end_ns).max().unwrap_or(0);
    (first, last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_belongs_to_the_step_around_it() {
        let steps = Steps {
            spans: without_overlap(vec![(10, 25), (20, 30), (40, 50)]),
            source: StepSource::Profiler,
            updates: 0,
        };
        assert_eq!(steps.spans, [(10, 20), (20, 30), (40, 50)]);
        let places = [9, 10, 20, 21, 35, 50, 51].map(|moment| steps.place(moment));
        assert_eq!(places, [None, Some(0), Some(0), Some(1), None, Some(2), None]);
        assert_eq!((steps.bounds(), steps.seconds()), ((10, 50), vec![1e-8; 3]));
    }
}
