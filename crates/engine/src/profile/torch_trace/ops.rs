//! Ops of a trace, as a profile has them: by name, phase, sizes of the inputs and number type.
//!
//! An op's time is its own: on a processor without that of what runs inside it, on a GPU that of the kernels that it launched
//! itself. FLOPs are those that PyTorch's profiler counts, of products, additions and multiplications.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::marks;
use super::phases::Phases;
use super::recorded::{HostEvent, Input, Recorded};
use super::steps::Steps;
use crate::profile::OpTime;

/// Name for kernels that were launched with no op around them, by Triton for one.
const OF_NO_OP: &str = "(no op)";
/// Phase of what lies between the marks of phases.
const OF_NO_PHASE: &str = "other";
/// Number types by their names in traces, with those of profiles and the bytes of a number.
const NUMBERS: [(&str, &str, u64); 11] = [
    ("float", "f32", 4),
    ("double", "f64", 8),
    ("c10::BFloat16", "bf16", 2),
    ("c10::Half", "f16", 2),
    ("long int", "i64", 8),
    ("long", "i64", 8),
    ("long long", "i64", 8),
    ("int", "i32", 4),
    ("unsigned char", "u8", 1),
    ("signed char", "i8", 1),
    ("bool", "bool", 1),
];

/// Tokens of a micro-batch above which sizes are none of a batch.
const MOST_TOKENS: u64 = 1 << 32;
/// Number that stands for no name, and for no inputs.
const NONE: u32 = u32::MAX;

/// Time of one op with inputs of its own.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    calls: u64,
    ns: u64,
}

/// Kernel, copy or fill with the op that launched it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Launch {
    /// Place of the op among the host's events; `None` where no op launched it.
    pub op: Option<usize>,
    pub start_ns: u64,
    pub ns: u64,
}

/// Ops of the steps, the longest first: means of a step. `launches` has what the GPU ran; empty on a processor.
pub(super) fn ops_of(
    recorded: &Recorded,
    steps: &Steps,
    phases: &Phases,
    launches: &[Launch],
    batches: &Batches,
) -> Vec<OpTime> {
    let mut sums: BTreeMap<(u32, &str, u32), Sum> = BTreeMap::new();
    let phase_of = |moment| phases.at(moment).map_or(OF_NO_PHASE, crate::span::StepPhase::name);
    let mut add = |key: (u32, &'static str, u32), ns: u64| {
        let sum = sums.entry(key).or_default();
        *sum = Sum {
            calls: sum.calls + 1,
            ns: sum.ns.saturating_add(ns),
        };
    };
    if launches.is_empty() {
        let is_op: Vec<bool> = recorded.names.values().iter().map(|name| marks::is_op(name)).collect();
        let own = own_times(&recorded.host);
        let ops = recorded.host.iter().zip(own);
        for (event, ns) in ops.filter(|(event, ns)| *ns > 0 && is_op[event.name as usize]) {
            if steps.place(event.start_ns).is_some() {
                add((event.name, phase_of(event.start_ns), event.inputs), ns);
            }
        }
    } else {
        // An op with several kernels is one call.
        let mut by_op: BTreeMap<Option<usize>, (u64, u64)> = BTreeMap::new();
        for launch in launches {
            let (at_ns, ns) = by_op.entry(launch.op).or_insert((launch.start_ns, 0));
            *at_ns = (*at_ns).min(launch.start_ns);
            *ns = ns.saturating_add(launch.ns);
        }
        for (op, (at_ns, ns)) in by_op {
            let event = op.map(|place| recorded.host[place]);
            let event = event.filter(|event| marks::phase_of(recorded.name(event.name)).is_none());
            let at_ns = op.map_or(at_ns, |place| recorded.host[place].start_ns);
            let key = event.map_or((NONE, phase_of(at_ns), NONE), |event| {
                (event.name, phase_of(at_ns), event.inputs)
            });
            add(key, ns);
        }
    }
    table(recorded, sums, steps, batches)
}

/// The rows: sums whose inputs read alike are one.
fn table(recorded: &Recorded, sums: BTreeMap<(u32, &str, u32), Sum>, steps: &Steps, batches: &Batches) -> Vec<OpTime> {
    let count = steps.count().max(1) as f64;
    let step_s = steps.seconds().iter().sum::<f64>() / count;
    let mut rows: HashMap<(String, &str, String, &'static str), OpTime> = HashMap::new();
    let nothing = Vec::new();
    for ((name, phase, inputs), sum) in sums {
        let inputs = if inputs == NONE {
            &nothing
        } else {
            recorded.inputs.value(inputs)
        };
        let name = if name == NONE { OF_NO_OP } else { recorded.name(name) };
        let (storage, read_bytes) = storage_of(inputs);
        let key = (name.to_owned(), phase, batches.shape(inputs), storage);
        let row = rows.entry(key).or_default();
        let calls = sum.calls as f64;
        row.calls += calls / count;
        row.seconds += sum.ns as f64 / 1e9 / count;
        row.flops += calls * flops_of(name, inputs) / count;
        row.bytes += calls * read_bytes / count;
    }
    let named = rows.into_iter().map(|((name, phase, shape, storage), row)| OpTime {
        share: row.seconds / step_s.max(f64::MIN_POSITIVE),
        name,
        phase: phase.to_owned(),
        shape,
        storage: storage.to_owned(),
        ..row
    });
    let mut ops: Vec<OpTime> = named.collect();
    ops.sort_by(|a, b| {
        let names = |op: &OpTime| (op.name.clone(), op.phase.clone(), op.shape.clone());
        b.seconds.total_cmp(&a.seconds).then_with(|| names(a).cmp(&names(b)))
    });
    ops
}

/// Time of each event without that of the events inside it on its thread. `host` is sorted.
fn own_times(host: &[HostEvent]) -> Vec<u64> {
    let length = |event: &HostEvent| event.end_ns.saturating_sub(event.start_ns);
    let mut own: Vec<u64> = host.iter().map(length).collect();
    let mut open: Vec<usize> = Vec::new();
    for (place, event) in host.iter().enumerate() {
        while let Some(around) = open.last().map(|outer| &host[*outer]) {
            if around.thread == event.thread && event.start_ns < around.end_ns {
                break;
            }
            open.pop();
        }
        if let Some(outer) = open.last() {
            own[*outer] = own[*outer].saturating_sub(length(event));
        }
        open.push(place);
    }
    own
}

/// The number type of the largest input, and the bytes of all of them; none where no types were recorded.
fn storage_of(inputs: &[Input]) -> (&'static str, f64) {
    let (mut largest, mut all) = (("", 0.0), 0.0);
    for input in inputs.iter().filter(|input| !input.sizes.is_empty()) {
        let known = NUMBERS.iter().find(|(name, ..)| *name == input.number_type);
        if let Some((_, number, size)) = known {
            let bytes = elements(input) * *size as f64;
            all += bytes;
            if bytes > largest.1 {
                largest = (*number, bytes);
            }
        }
    }
    (largest.0, all)
}

fn elements(input: &Input) -> f64 {
    input.sizes.iter().map(|size| *size as f64).product()
}

/// FLOPs of a call by the sizes of its inputs; 0 for what the profiler counts nothing of.
fn flops_of(name: &str, inputs: &[Input]) -> f64 {
    let sizes = |place: usize| inputs.get(place).map_or(&[][..], |input| input.sizes.as_slice());
    let product = |left: &[u64], right: &[u64]| match (left, right) {
        ([rows, inner], [_, columns]) => 2.0 * *rows as f64 * *inner as f64 * *columns as f64,
        ([batch, rows, inner], [_, _, columns]) => 2.0 * *batch as f64 * *rows as f64 * *inner as f64 * *columns as f64,
        _ => 0.0,
    };
    match name {
        "aten::mm" | "aten::bmm" => product(sizes(0), sizes(1)),
        "aten::addmm" | "aten::baddbmm" => product(sizes(1), sizes(2)),
        "aten::mul" | "aten::add" => inputs
            .first()
            .filter(|input| !input.sizes.is_empty())
            .map_or(0.0, elements),
        _ => 0.0,
    }
}

/// A micro-batch, padding counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MicroBatch {
    /// Place of its step.
    pub step: usize,
    pub rows: u64,
    pub length: u64,
}

/// Micro-batches, as the look-ups of their tokens show them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Batches {
    pub each: Vec<MicroBatch>,
    /// Sizes that weights have.
    of_weights: HashSet<u64>,
}

impl Batches {
    /// Micro-batches of a trace; none where no shapes were recorded. The largest table is that of the tokens.
    pub(super) fn of(recorded: &Recorded, steps: &Steps) -> Self {
        let named = |wanted: &str| recorded.names.values().iter().position(|name| name == wanted);
        let sizes = |event: &HostEvent, place: usize| {
            let input = recorded.inputs.value(event.inputs).get(place);
            input.map(|input| input.sizes.clone()).filter(|sizes| !sizes.is_empty())
        };
        let (embedding, linear) = (named("aten::embedding"), named("aten::linear"));
        let is = |event: &&HostEvent, name: Option<usize>| name == Some(event.name as usize);
        let mut of_weights = HashSet::new();
        for event in recorded.host.iter().filter(|event| is(event, linear)) {
            of_weights.extend(sizes(event, 1).unwrap_or_default());
        }
        let look_ups: Vec<(usize, Vec<u64>, Vec<u64>)> = recorded
            .host
            .iter()
            .filter(|event| is(event, embedding))
            .filter_map(|event| Some((steps.place(event.start_ns)?, sizes(event, 0)?, sizes(event, 1)?)))
            .collect();
        let largest = look_ups.iter().map(|(_, table, _)| table.clone()).max();
        let of_tokens = look_ups.iter().filter(|(_, table, _)| Some(table) == largest.as_ref());
        let each = of_tokens.filter_map(|(step, _, sizes)| {
            let (length, rows) = sizes.split_last()?;
            let rows = rows.iter().try_fold(1u64, |rows, size| rows.checked_mul(*size))?;
            let tokens = rows.checked_mul(*length)?;
            (tokens <= MOST_TOKENS).then_some(MicroBatch {
                step: *step,
                rows,
                length: *length,
            })
        });
        let each: Vec<MicroBatch> = each.collect();
        of_weights.extend(largest.unwrap_or_default());
        Self { each, of_weights }
    }

    /// Tokens of each step, padding counted.
    pub(super) fn tokens(&self, steps: usize) -> Vec<u64> {
        let mut tokens = vec![0; steps];
        for batch in &self.each {
            tokens[batch.step] += batch.rows * batch.length;
        }
        tokens
    }

    /// Sizes of the inputs, such as `Tx576 576x1536`: `T` the tokens of a micro-batch, `L` the length of its rows.
    fn shape(&self, inputs: &[Input]) -> String {
        let tensors = inputs.iter().filter(|input| !input.sizes.is_empty());
        let shapes = tensors.map(|input| {
            let sizes: Vec<String> = input.sizes.iter().map(|size| self.named(*size)).collect();
            sizes.join("x")
        });
        shapes.collect::<Vec<String>>().join(" ")
    }

    fn named(&self, size: u64) -> String {
        let is_of_batches = |of: fn(&MicroBatch) -> u64| self.each.iter().any(|batch| of(batch) == size);
        if size <= 1 || self.of_weights.contains(&size) {
            size.to_string()
        } else if is_of_batches(|batch| batch.rows * batch.length) {
            "T".to_owned()
        } else if is_of_batches(|batch| batch.length) {
            "L".to_owned()
        } else {
            size.to_string()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input(sizes: &[u64], number_type: &str) -> Input {
        Input {
            sizes: sizes.to_vec(),
            number_type: number_type.to_owned(),
        }
    }

    #[test]
    fn flops_are_those_of_the_sizes() {
        let (a, b) = (input(&[4, 8], "float"), input(&[8, 16], "float"));
        assert_eq!(flops_of("aten::mm", &[a.clone(), b.clone()]), 1024.0);
        assert_eq!(flops_of("aten::addmm", &[input(&[16], "float"), a.clone(), b]), 1024.0);
        assert_eq!(flops_of("aten::add", &[a]), 32.0);
        let (a, b) = (input(&[3, 4, 8], "float"), input(&[3, 8, 16], "float"));
        assert_eq!(flops_of("aten::bmm", &[a, b]), 3072.0);
        assert_eq!((flops_of("aten::mm", &[]), flops_of("aten::relu", &[])), (0.0, 0.0));
    }

    #[test]
    fn bytes_are_those_of_all_inputs_and_the_type_that_of_the_largest() {
        let inputs = [
            input(&[4], "float"),
            input(&[100], "c10::BFloat16"),
            input(&[], "Scalar"),
        ];
        assert_eq!(storage_of(&inputs), ("bf16", 216.0));
        assert_eq!(storage_of(&[]), ("", 0.0));
    }

    #[test]
    fn an_ops_time_is_without_that_of_the_ops_inside_it() {
        let event = |thread, start_ns, end_ns| HostEvent {
            start_ns,
            end_ns,
            thread,
            name: 0,
            inputs: 0,
            external: 0,
        };
        let host = [
            event(0, 0, 100),
            event(0, 10, 40),
            event(0, 20, 30),
            event(0, 60, 70),
            event(1, 65, 90),
        ];
        assert_eq!(own_times(&host), [60, 20, 10, 10, 25]);
    }

    #[test]
    fn sizes_of_batches_have_names_unless_weights_have_them_too() {
        let batches = Batches {
            each: [64, 32]
                .map(|length| MicroBatch {
                    step: 0,
                    rows: 4,
                    length,
                })
                .to_vec(),
            of_weights: HashSet::from([256]),
        };
        let inputs = [input(&[4, 64, 8], "float"), input(&[128, 256], "float"), input(&[], "")];
        assert_eq!(batches.shape(&inputs), "4xLx8 Tx256");
        assert_eq!(batches.tokens(2), [384, 0]);
    }
}
