//! The peak with its parts, and the course of one step.

use crate::profile::{MemoryFacts, MemoryPart, MemoryPoint};
use crate::span::{Range, SpanTree};

/// Points of a timeline: enough to draw, few enough to store.
const MOST_POINTS: usize = 400;

/// Bytes that are held during every step.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Held {
    /// Bytes of the process, beside the engine.
    pub program: u64,
    pub base: u64,
    pub adapters: u64,
    pub gradients: u64,
    pub optimizer: u64,
}

/// Watches steps for the highest peak.
#[derive(Debug, Default)]
pub(crate) struct MemoryWatch {
    peak_bytes: u64,
    /// Mean of the step with the peak.
    mean_bytes: Option<u64>,
    kept_bytes: u64,
    at: Vec<String>,
    timeline: Vec<MemoryPoint>,
}

impl MemoryWatch {
    /// Looks at one step; keeps its course where it goes higher than those before. `recorded` says how many bytes the
    /// records themselves took when a span of this number was opened: they are no part of what is profiled.
    pub(crate) fn push(&mut self, tree: &SpanTree, recorded: impl Fn(usize) -> u64) {
        let peaks = tree.spans.iter().enumerate();
        let Some((index, highest)) = peaks.max_by_key(|(_, span)| span.memory.own_peak_bytes) else {
            return;
        };
        let recorded = recorded(index);
        let peak = highest.memory.own_peak_bytes.saturating_sub(recorded);
        if peak <= self.peak_bytes {
            return;
        }
        self.peak_bytes = peak;
        self.kept_bytes = highest.memory.peak_kept_bytes;
        self.at = around(tree, index);
        let course = course(tree);
        self.mean_bytes = mean_in_use(&course).map(|mean| mean.saturating_sub(recorded));
        self.timeline = thinned(course);
        for point in &mut self.timeline {
            point.in_use_bytes = point.in_use_bytes.saturating_sub(recorded);
        }
    }

    /// The highest peak in its parts.
    pub(crate) fn facts(&self, held: Held) -> MemoryFacts {
        let peak = self.peak_bytes.saturating_sub(held.program);
        let known = [
            ("base", held.base),
            ("adapters", held.adapters),
            ("gradients", held.gradients),
            ("optimizer", held.optimizer),
            ("activations", self.kept_bytes),
        ];
        let sum: u64 = known.iter().map(|(_, bytes)| bytes).sum();
        let rest = ("scratch", peak.saturating_sub(sum));
        let part = |(part, bytes): (&str, u64)| MemoryPart {
            part: part.to_owned(),
            bytes,
        };
        let point = |point: &MemoryPoint| MemoryPoint {
            in_use_bytes: point.in_use_bytes.saturating_sub(held.program),
            ..*point
        };
        MemoryFacts {
            peak_bytes: peak,
            mean_bytes: self.mean_bytes.map(|mean| mean.saturating_sub(held.program)),
            peak_at: self.at.clone(),
            parts: known.into_iter().chain([rest]).map(part).collect(),
            program_bytes: held.program,
            timeline: self.timeline.iter().map(point).collect(),
        }
    }
}

/// Names of the spans around one, from the outside in.
fn around(tree: &SpanTree, index: usize) -> Vec<String> {
    let mut names: Vec<String> = tree.around(index).map(|span| span.range.to_string()).collect();
    names.reverse();
    names
}

/// The memory at each beginning and end of a span, and at each op's own peak, in order of time.
pub(crate) fn course(tree: &SpanTree) -> Vec<MemoryPoint> {
    let start = tree.root().start_ns;
    let mut points: Vec<(u64, u64, u64)> = Vec::with_capacity(3 * tree.spans.len());
    for span in &tree.spans {
        let memory = &span.memory;
        points.push((span.start_ns, memory.start_bytes, memory.start_kept_bytes));
        if matches!(span.range, Range::Op(_)) && memory.own_peak_bytes > 0 {
            // When within the op it was cannot be told; its middle is as good as any moment.
            let middle = span.start_ns.midpoint(span.end_ns);
            points.push((middle, memory.own_peak_bytes, memory.peak_kept_bytes));
        }
        points.push((span.end_ns, memory.end_bytes, memory.end_kept_bytes));
    }
    points.sort_by_key(|(at, ..)| *at);
    let point = |(at, in_use_bytes, kept_bytes): (u64, u64, u64)| MemoryPoint {
        at_s: at.saturating_sub(start) as f64 / 1e9,
        in_use_bytes,
        kept_bytes,
    };
    points.into_iter().map(point).collect()
}

/// Mean bytes in use over a course: each stretch counts by its length, with the mean of its ends.
fn mean_in_use(course: &[MemoryPoint]) -> Option<u64> {
    let whole_s = course.last()?.at_s - course.first()?.at_s;
    let stretches = course.windows(2).map(|ends| {
        let bytes = ends[0].in_use_bytes.midpoint(ends[1].in_use_bytes);
        bytes as f64 * (ends[1].at_s - ends[0].at_s)
    });
    let sum: f64 = stretches.sum();
    (whole_s > 0.0).then(|| (sum / whole_s) as u64)
}

/// Thins to at most [`MOST_POINTS`] points: of each stretch the highest stays, so that no peak is lost.
fn thinned(points: Vec<MemoryPoint>) -> Vec<MemoryPoint> {
    let stretch = points.len().div_ceil(MOST_POINTS).max(1);
    let highest = |points: &[MemoryPoint]| points.iter().copied().max_by_key(|point| point.in_use_bytes);
    points.chunks(stretch).filter_map(highest).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::fixtures::{span, tree};
    use crate::span::StepPhase;

    fn step(peak: u64) -> SpanTree {
        let mut spans = vec![
            span(Range::Phase(StepPhase::Step), None, 0, 100),
            span(Range::Phase(StepPhase::Forward), Some(0), 0, 50),
            span(Range::Op("loss_head"), Some(1), 10, 40),
        ];
        spans[2].memory.own_peak_bytes = peak;
        spans[2].memory.peak_kept_bytes = 30;
        tree(spans)
    }

    #[test]
    fn the_parts_sum_up_to_the_peak() {
        let mut watch = MemoryWatch::default();
        for peak in [500, 1000, 700] {
            watch.push(&step(peak), |_| 0);
        }
        let held = Held {
            program: 100,
            base: 400,
            adapters: 20,
            gradients: 20,
            optimizer: 40,
        };
        let facts = watch.facts(held);
        assert_eq!(facts.peak_bytes, 900);
        assert_eq!(facts.peak_at, ["step", "forward", "loss_head"]);
        assert_eq!(facts.parts.iter().map(|part| part.bytes).sum::<u64>(), 900);
        assert_eq!(facts.parts.last().unwrap().bytes, 900 - 480 - 30);
    }

    #[test]
    fn the_mean_counts_each_moment_by_how_long_it_lasts() {
        let point = |at_s: f64, in_use_bytes: u64| MemoryPoint {
            at_s,
            in_use_bytes,
            kept_bytes: 0,
        };
        let course = [point(0.0, 100), point(8.0, 100), point(9.0, 500), point(10.0, 100)];
        assert_eq!(mean_in_use(&course), Some(140));
        assert_eq!(mean_in_use(&course[..1]), None);
        let mut watch = MemoryWatch::default();
        watch.push(&step(500), |_| 0);
        let facts = watch.facts(Held::default());
        assert!(facts.mean_bytes.unwrap() < facts.peak_bytes, "{facts:?}");
    }

    #[test]
    fn a_thinned_course_keeps_its_highest_point() {
        let point = |at: usize| MemoryPoint {
            at_s: at as f64,
            in_use_bytes: if at == 1234 { 99 } else { 1 },
            kept_bytes: 0,
        };
        let thin = thinned((0..5000).map(point).collect());
        assert!(thin.len() <= MOST_POINTS && thin.iter().any(|point| point.in_use_bytes == 99));
    }
}
