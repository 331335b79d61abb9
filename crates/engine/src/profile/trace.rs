//! Traces in the Trace Event Format, which Perfetto (ui.perfetto.dev) and chrome://tracing open.
//!
//! | `ph` | event | fields beside `pid`, `tid`, `name` |
//! |---|---|---|
//! | `M` | names of the process and its threads | `args.name` |
//! | `X` | a span, or what a GPU ran | `ts`, `dur` in microseconds; `cat`; `args` with FLOPs, bytes and rates of an op |
//! | `C` | counters: memory in its parts, and the device's samples | `ts`, `args` with one number a series |
//!
//! Spans of a thread nest: one that begins inside another ends inside it, to the nanosecond, or Perfetto drops one.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::Path;

use serde_json::{Map, Value, json};

use super::DeviceSample;
use super::aggregate::{Held, course};
use super::kernels::{Activity, ActivityKind};
use super::write_error::WriteError;
use crate::span::{Range, SpanRecord, SpanTree};
use peft_tune_core::whole_file::WholeFile;

/// Number of the process in a trace: there is one.
const PROCESS: u32 = 1;

/// The spans of some steps with what was seen meanwhile.
#[derive(Debug, Default)]
pub struct Trace {
    pub(super) trees: Vec<SpanTree>,
    /// Names of the threads by number.
    pub(super) threads: Vec<String>,
    pub(super) held: Held,
    pub(super) samples: Vec<DeviceSample>,
    /// Activities of a GPU meanwhile.
    pub(super) activities: Vec<Activity>,
}

impl Trace {
    /// Writes the trace to `path`; it appears there when it is whole.
    ///
    /// # Errors
    /// Those of the file system, with the path; nothing is left of the file then.
    pub fn write(&self, path: &Path) -> Result<(), WriteError> {
        let written = WholeFile::create(path, true).and_then(|mut file| {
            self.write_to(&mut file)?;
            file.finish()
        });
        written.map_err(|cause| WriteError {
            path: path.to_owned(),
            cause,
        })
    }

    /// Writes the trace as JSON.
    ///
    /// # Errors
    /// Those of `output`.
    pub fn write_to(&self, output: &mut dyn Write) -> io::Result<()> {
        output.write_all(b"{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n")?;
        let mut separator = "";
        self.each_event(&mut |event| {
            write!(output, "{separator}{event}")?;
            separator = ",\n";
            Ok(())
        })?;
        output.write_all(b"\n]}\n")
    }

    fn each_event(&self, write: &mut dyn FnMut(Value) -> io::Result<()>) -> io::Result<()> {
        write(metadata("process_name", 0, "peft-tune"))?;
        for (number, name) in self.threads.iter().enumerate() {
            write(metadata("thread_name", number, name))?;
        }
        for tree in &self.trees {
            for span in &tree.spans {
                write(complete(span, tree.thread))?;
            }
            if tree.thread == 0 {
                self.memory_events(tree, write)?;
            }
        }
        self.activity_events(write)?;
        self.sample_events(write)
    }

    /// Writes the GPU's activities, each of its queues as a thread behind the host's.
    fn activity_events(&self, write: &mut dyn FnMut(Value) -> io::Result<()>) -> io::Result<()> {
        let streams: BTreeSet<u32> = self.activities.iter().map(|activity| activity.stream).collect();
        let track = |stream: u32| self.threads.len() + streams.range(..stream).count();
        for stream in &streams {
            write(metadata("thread_name", track(*stream), &format!("GPU queue {stream}")))?;
        }
        for activity in &self.activities {
            write(of_gpu(activity, track(activity.stream)))?;
        }
        Ok(())
    }

    /// The memory's parts at each moment of a step, drawn upon each other.
    fn memory_events(&self, tree: &SpanTree, write: &mut dyn FnMut(Value) -> io::Result<()>) -> io::Result<()> {
        let held = &self.held;
        let fixed = held.base + held.adapters + held.gradients + held.optimizer;
        for point in course(tree) {
            let at = tree.root().start_ns + (point.at_s * 1e9).round() as u64;
            let engine = point.in_use_bytes.saturating_sub(held.program);
            let scratch = engine.saturating_sub(fixed + point.kept_bytes);
            let parts = json!({
                "base": held.base,
                "adapters": held.adapters,
                "gradients": held.gradients,
                "optimizer": held.optimizer,
                "activations": point.kept_bytes,
                "scratch": scratch,
            });
            write(counter("memory (bytes)", at, parts))?;
        }
        Ok(())
    }

    fn sample_events(&self, write: &mut dyn FnMut(Value) -> io::Result<()>) -> io::Result<()> {
        let spans = || self.trees.iter().map(SpanTree::root);
        let (Some(first), Some(last)) = (
            spans().map(|span| span.start_ns).min(),
            spans().map(|span| span.end_ns).max(),
        ) else {
            return Ok(());
        };
        for sample in &self.samples {
            let at = (sample.at_s * 1e9).round() as u64;
            if !(first..=last).contains(&at) {
                continue;
            }
            let series = [
                ("cores busy: this process", sample.process_cores),
                ("cores busy: others", sample.other_cores),
                ("power (W)", sample.power_w),
                ("temperature (C)", sample.temperature_c),
                ("clock (MHz)", sample.clock_mhz),
            ];
            for (name, value) in series {
                if let Some(value) = value.filter(|value| value.is_finite()) {
                    write(counter(name, at, json!({ "value": value })))?;
                }
            }
        }
        Ok(())
    }
}

fn metadata(kind: &str, thread: usize, name: &str) -> Value {
    json!({"ph": "M", "name": kind, "pid": PROCESS, "tid": thread, "args": {"name": name}})
}

fn counter(name: &str, at_ns: u64, values: Value) -> Value {
    json!({"ph": "C", "name": name, "pid": PROCESS, "tid": 0, "ts": microseconds(at_ns), "args": values})
}

fn complete(span: &SpanRecord, thread: u16) -> Value {
    let category = match span.range {
        Range::Phase(_) => "phase",
        Range::Layer(_) | Range::Module(_) => "module",
        Range::Op(_) => "op",
    };
    json!({
        "ph": "X",
        "name": span.range.to_string(),
        "cat": category,
        "pid": PROCESS,
        "tid": thread,
        "ts": microseconds(span.start_ns),
        "dur": microseconds(span.end_ns - span.start_ns),
        "args": arguments(span),
    })
}

fn of_gpu(activity: &Activity, track: usize) -> Value {
    let category = match activity.kind {
        ActivityKind::Kernel => "kernel",
        ActivityKind::Transfer => "transfer",
        ActivityKind::Move => "move",
    };
    json!({
        "ph": "X",
        "name": activity.name,
        "cat": category,
        "pid": PROCESS,
        "tid": track,
        "ts": microseconds(activity.start_ns),
        "dur": microseconds(activity.end_ns - activity.start_ns),
        "args": {"bytes": activity.bytes},
    })
}

fn arguments(span: &SpanRecord) -> Value {
    let mut arguments = Map::new();
    if let Range::Layer(index) = span.range {
        arguments.insert("index".to_owned(), index.into());
    }
    if matches!(span.range, Range::Op(_)) {
        let (work, seconds) = (&span.work, span.seconds());
        arguments.insert("shape".to_owned(), work.shape.to_string().into());
        arguments.insert("storage".to_owned(), work.storage.into());
        arguments.insert("bytes".to_owned(), work.bytes.into());
        if work.flops > 0 {
            arguments.insert("flops".to_owned(), work.flops.into());
        }
        if seconds > 0.0 {
            arguments.insert("GB/s".to_owned(), (work.bytes as f64 / seconds / 1e9).into());
            arguments.insert("GFLOP/s".to_owned(), (work.flops as f64 / seconds / 1e9).into());
        }
    }
    if span.memory.own_peak_bytes > 0 {
        arguments.insert("peak bytes".to_owned(), span.memory.own_peak_bytes.into());
    }
    Value::Object(arguments)
}

/// Microseconds, exact to the nanosecond. Perfetto multiplies by 1000 and cuts off what is behind the point; without the
/// quarter, 1.001 would become 1000 ns, and a span might end after the one that holds it.
fn microseconds(nanoseconds: u64) -> f64 {
    (nanoseconds as f64 + 0.25) / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::fixtures::{op, span, tree};
    use crate::span::StepPhase;

    pub(crate) fn sample_trace() -> Trace {
        let mut spans = vec![
            span(Range::Phase(StepPhase::Step), None, 1_000, 101_003),
            span(Range::Phase(StepPhase::Forward), Some(0), 1_500, 60_000),
            op("matmul_nt", Some(1), (2_000, 40_001), (100, 25)),
        ];
        spans[2].memory.own_peak_bytes = 5_000;
        Trace {
            trees: vec![tree(spans)],
            threads: vec!["main".to_owned()],
            held: Held {
                base: 1_000,
                ..Held::default()
            },
            samples: vec![DeviceSample {
                at_s: 50e-6,
                process_cores: Some(1.5),
                ..DeviceSample::default()
            }],
            activities: [(7, 3_000), (13, 4_000)]
                .map(|(stream, start_ns)| Activity {
                    kind: ActivityKind::Kernel,
                    name: "rope_bf16_8".to_owned(),
                    start_ns,
                    end_ns: start_ns + 500,
                    bytes: 0,
                    stream,
                })
                .to_vec(),
        }
    }

    #[test]
    fn events_have_the_fields_of_the_format() {
        let mut text = Vec::new();
        sample_trace().write_to(&mut text).unwrap();
        let trace: Value = serde_json::from_slice(&text).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        let of = |ph: &str| events.iter().filter(|event| event["ph"] == ph).collect::<Vec<_>>();
        assert_eq!((of("M").len(), of("X").len()), (4, 5));
        // Each queue of the GPU is a track of its own.
        assert_eq!((&of("X")[3]["tid"], &of("X")[4]["tid"]), (&json!(1), &json!(2)));
        assert_eq!(of("X")[4]["cat"], "kernel");
        let nanoseconds = |value: &Value| (value.as_f64().unwrap() * 1e3) as u64;
        assert_eq!(nanoseconds(&of("X")[2]["ts"]), 2_000);
        assert_eq!(nanoseconds(&of("X")[2]["dur"]), 38_001);
        assert_eq!(of("X")[2]["cat"], "op");
        let memory = of("C").into_iter().find(|event| event["name"] == "memory (bytes)");
        assert_eq!(memory.unwrap()["args"]["base"], 1_000);
        assert!(of("C").iter().any(|event| event["args"]["value"] == 1.5));
    }

    #[test]
    fn no_nanosecond_is_lost_where_a_reader_cuts_off() {
        for nanoseconds in (0..100_000).chain([1_001, 999_999_999_999, 123_456_789_012_345]) {
            assert_eq!((microseconds(nanoseconds) * 1e3) as u64, nanoseconds);
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_device_is_an_error() {
        let mut full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let error = sample_trace().write_to(&mut full).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    }
}
