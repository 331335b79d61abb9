//! Events of a trace as they are kept: times, and numbers for what many of them share.
//!
//! A trace has some hundred bytes for an event, and this a sixth of that at most. Names and shapes are kept once; calls of
//! Python and arrows between events are counted and passed over.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use super::event::{DeviceRow, Event, RankRow};
use super::interned::Interned;
use super::value::Value;
use crate::profile::ActivityKind;

/// Most kinds of events that are counted by name.
const MOST_KINDS: usize = 32;

/// Something that the host did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HostEvent {
    pub start_ns: u64,
    pub end_ns: u64,
    pub thread: u32,
    /// Numbers among [`Recorded::names`] and [`Recorded::inputs`].
    pub name: u32,
    pub inputs: u32,
    /// Number that its kernels share; 0 where it has none.
    pub external: u64,
}

/// A kernel, copy or fill of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GpuEvent {
    pub start_ns: u64,
    pub end_ns: u64,
    pub name: u32,
    pub kind: ActivityKind,
    pub external: u64,
    pub correlation: u64,
}

/// Bytes in use behind an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MemoryEvent {
    pub at_ns: u64,
    pub thread: u32,
    pub bytes: u64,
    pub device: MemoryDevice,
}

/// Kind and number of a device, as PyTorch counts them: the processor is kind 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct MemoryDevice {
    pub kind: u64,
    pub index: u64,
}

/// An input of an op: its sizes, none of what is no tensor, and the name of its number type.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Input {
    pub sizes: Vec<u64>,
    pub number_type: String,
}

/// A trace.
#[derive(Debug, Default)]
pub(super) struct Recorded {
    pub names: Interned<String>,
    pub inputs: Interned<Vec<Input>>,
    threads: Interned<String>,
    pub host: Vec<HostEvent>,
    pub gpu: Vec<GpuEvent>,
    pub memory: Vec<MemoryEvent>,
    /// Numbers of ops by those of the calls of the driver in them.
    pub op_of_call: HashMap<u64, u64>,
    pub devices: Vec<DeviceRow>,
    pub rank: RankRow,
    /// The GPU that the first kernel ran on.
    pub gpu_index: Option<u64>,
    pub events: u64,
    kinds: BTreeMap<String, u64>,
}

impl Recorded {
    /// Takes an event of the file.
    pub(super) fn add(&mut self, event: &Event) {
        self.events += 1;
        let kind = event.cat.text().unwrap_or_default();
        self.count(kind);
        match kind.to_ascii_lowercase().as_str() {
            "cpu_op" | "operator" | "user_annotation" => self.add_host(event),
            "kernel" => self.add_gpu(event, ActivityKind::Kernel),
            "gpu_memcpy" | "memcpy" => {
                let name = event.name.text().unwrap_or_default();
                let is_transfer = name.contains("HtoD") || name.contains("DtoH");
                let kind = if is_transfer {
                    ActivityKind::Transfer
                } else {
                    ActivityKind::Move
                };
                self.add_gpu(event, kind);
            }
            "gpu_memset" | "memset" => self.add_gpu(event, ActivityKind::Move),
            "cuda_runtime" | "cuda_driver" | "runtime" => {
                let numbers = event.args.correlation.count().zip(event.args.external.count());
                self.op_of_call.extend(numbers);
            }
            "cpu_instant_event" => self.add_memory(event),
            _ => {}
        }
    }

    fn count(&mut self, kind: &str) {
        if let Some(count) = self.kinds.get_mut(kind) {
            *count += 1;
        } else if self.kinds.len() < MOST_KINDS {
            self.kinds.insert(kind.to_owned(), 1);
        }
    }

    fn add_host(&mut self, event: &Event) {
        let Some((start_ns, end_ns)) = span_of(event) else {
            return;
        };
        let host = HostEvent {
            start_ns,
            end_ns,
            thread: self.thread(event),
            name: self.names.number(event.name.text().unwrap_or_default()),
            inputs: self.inputs.number(inputs_of(event).as_slice()),
            external: event.args.external.count().unwrap_or(0),
        };
        self.host.push(host);
    }

    fn add_gpu(&mut self, event: &Event, kind: ActivityKind) {
        let Some((start_ns, end_ns)) = span_of(event) else {
            return;
        };
        self.gpu_index = self.gpu_index.or(event.args.device.count());
        self.gpu.push(GpuEvent {
            start_ns,
            end_ns,
            name: self.names.number(event.name.text().unwrap_or_default()),
            kind,
            external: event.args.external.count().unwrap_or(0),
            correlation: event.args.correlation.count().unwrap_or(0),
        });
    }

    fn add_memory(&mut self, event: &Event) {
        let details = &event.args;
        let number = event.ts.number().zip(details.allocated.number());
        if let Some((at, bytes)) = number.filter(|_| event.name.text() == Some("[memory]")) {
            let device = MemoryDevice {
                kind: details.device_type.count().unwrap_or(0),
                index: details.device_id.count().unwrap_or(0),
            };
            let thread = self.thread(event);
            self.memory.push(MemoryEvent {
                at_ns: nanoseconds(at),
                thread,
                bytes: bytes.max(0.0) as u64,
                device,
            });
        }
    }

    fn thread(&mut self, event: &Event) -> u32 {
        let part = |value: &Value| match value {
            Value::Number(number) => number.to_string(),
            other => other.text().unwrap_or_default().to_owned(),
        };
        let name = format!("{} {}", part(&event.pid), part(&event.tid));
        self.threads.number(name.as_str())
    }

    /// Puts events in the order in which those of a thread nest, and those of the GPU and of the memory in that of time.
    pub(super) fn sort(&mut self) {
        self.host
            .sort_unstable_by_key(|event| (event.thread, event.start_ns, Reverse(event.end_ns)));
        self.gpu.sort_unstable_by_key(|event| (event.start_ns, event.end_ns));
        // Stable: the last of several at one moment counts.
        self.memory.sort_by_key(|event| event.at_ns);
    }

    pub(super) fn name(&self, number: u32) -> &str {
        self.names.value(number)
    }

    /// Kinds of the events with how many there are, the most frequent first.
    pub(super) fn kinds(&self) -> String {
        let mut kinds: Vec<_> = self.kinds.iter().filter(|(kind, _)| !kind.is_empty()).collect();
        kinds.sort_by_key(|(_, count)| Reverse(**count));
        let named = kinds.into_iter().take(6).map(|(kind, count)| format!("{kind} {count}"));
        let named: Vec<String> = named.collect();
        match named.is_empty() {
            true => "none".to_owned(),
            false => named.join(", "),
        }
    }
}

/// Beginning and end of an event that lasts.
fn span_of(event: &Event) -> Option<(u64, u64)> {
    if event.ph.text() != Some("X") {
        return None;
    }
    let (start, length) = (event.ts.number()?, event.dur.number()?);
    (start >= 0.0 && length >= 0.0).then(|| (nanoseconds(start), nanoseconds(start + length)))
}

/// Nanoseconds of microseconds; more than 146 years are none that a trace has, and are cut so that sums stay numbers.
fn nanoseconds(microseconds: f64) -> u64 {
    ((microseconds * 1e3).round() as u64).min(1 << 62)
}

fn inputs_of(event: &Event) -> Vec<Input> {
    let types = event.args.types.list();
    let sizes = |dims: &Value| -> Vec<u64> {
        // A list of tensors has a list of sizes for each; it is no tensor.
        let sizes: Option<Vec<u64>> = dims.list().iter().map(Value::count).collect();
        sizes.unwrap_or_default()
    };
    let input = |(place, dims): (usize, &Value)| Input {
        sizes: sizes(dims),
        number_type: types.get(place).and_then(Value::text).unwrap_or_default().to_owned(),
    };
    event.args.dims.list().iter().enumerate().map(input).collect()
}
