//! What a GPU ran: one line, and the table of kernels.

use super::{MOST_OPS, percent, table, time};
use crate::report::{Align, TextTable};
use peft_tune_engine::profile::GpuTimeline;

/// How busy the GPU was in steps that nobody held up.
pub(super) fn gpu_line(gpu: &GpuTimeline) -> String {
    let moved = match gpu.transfer_overlap {
        Some(overlap) => format!(
            "{} of copies to and from the host, {} of it beside kernels",
            time(gpu.transfer_s),
            percent(overlap)
        ),
        None => "no copies to or from the host".to_owned(),
    };
    let calls = gpu.calls.map_or_else(String::new, |calls| {
        let graphs = match calls.graph_launches > 0.0 {
            true => format!(" ({:.0} of graphs)", calls.graph_launches),
            false => String::new(),
        };
        format!(
            "; {:.0} launches{graphs}, {:.0} allocations, {:.0} copies and {:.0} waits, {} of the host in the driver",
            calls.launches,
            calls.allocations,
            calls.copies,
            calls.waits,
            time(calls.seconds)
        )
    });
    format!(
        "idle {} of the step in {:.0} gaps, the longest {}; {moved}{calls}",
        percent(gpu.idle_share),
        gpu.gaps,
        time(gpu.longest_gap_s)
    )
}

/// The longest kernels; all of them where `all` is asked for.
pub(super) fn kernels(gpu: &GpuTimeline, all: bool) -> TextTable {
    use Align::{Left, Right};
    let mut table = table(&[
        ("kernel", Left),
        ("op", Left),
        ("calls", Right),
        ("time", Right),
        ("share", Right),
    ]);
    let most = if all { usize::MAX } else { MOST_OPS };
    for kernel in gpu.kernels.iter().take(most) {
        table.push([
            kernel.name.clone(),
            kernel.op.clone().unwrap_or_default(),
            format!("{:.0}", kernel.calls),
            time(kernel.seconds),
            percent(kernel.share),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use peft_tune_engine::profile::{DriverCalls, KernelTime};

    fn timeline() -> GpuTimeline {
        GpuTimeline {
            steps: 3,
            idle_share: 0.125,
            gaps: 41.0,
            longest_gap_s: 2e-3,
            transfer_s: 1e-3,
            transfer_overlap: Some(0.9),
            kernels: vec![
                KernelTime {
                    name: "attention_bf16_128".to_owned(),
                    op: Some("attention".to_owned()),
                    ops: vec![("attention".to_owned(), 1.0)],
                    calls: 32.0,
                    seconds: 0.25,
                    share: 0.5,
                };
                MOST_OPS + 1
            ],
            ..GpuTimeline::default()
        }
    }

    #[test]
    fn the_line_says_how_much_of_the_step_nothing_ran() {
        let line = gpu_line(&timeline());
        assert!(
            line.starts_with("idle 12.5% of the step in 41 gaps, the longest 2"),
            "{line}"
        );
        assert!(line.contains("90.0% of it beside kernels"), "{line}");
        let counted = GpuTimeline {
            calls: Some(DriverCalls {
                launches: 800.0,
                waits: 1.0,
                ..DriverCalls::default()
            }),
            ..timeline()
        };
        let line = gpu_line(&counted);
        assert!(
            line.contains("; 800 launches, 0 allocations, 0 copies and 1 waits"),
            "{line}"
        );
        let replayed = GpuTimeline {
            calls: Some(DriverCalls {
                launches: 12.0,
                graph_launches: 2.0,
                ..DriverCalls::default()
            }),
            ..timeline()
        };
        let line = gpu_line(&replayed);
        assert!(line.contains("; 12 launches (2 of graphs), "), "{line}");
        let without = GpuTimeline {
            transfer_overlap: None,
            ..timeline()
        };
        assert!(gpu_line(&without).ends_with("no copies to or from the host"));
    }

    #[test]
    fn kernels_stand_with_their_ops() {
        let lines = |all| {
            kernels(&timeline(), all)
                .to_text(None)
                .lines()
                .filter(|line| line.contains("attention_"))
                .count()
        };
        assert_eq!((lines(false), lines(true)), (MOST_OPS, MOST_OPS + 1));
        assert!(kernels(&timeline(), true).to_text(None).contains(" attention "));
    }
}
