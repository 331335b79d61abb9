//! `profile --read` on traces in the form in which PyTorch's profiler writes them (2.15), whose numbers are known by hand.

use std::path::Path;

use serde_json::{Value, json};

use super::command::{refused, shown};

/// Something that the host did, from `at` microseconds on.
fn on_host(kind: &str, name: &str, at: f64, length: f64, args: Value) -> Value {
    json!({"ph": "X", "cat": kind, "name": name, "pid": 41, "tid": 41, "ts": at, "dur": length, "args": args})
}

fn op(name: &str, at: f64, length: f64, sizes: Value, types: Value) -> Value {
    on_host(
        "cpu_op",
        name,
        at,
        length,
        json!({"Input Dims": sizes, "Input type": types, "Ev Idx": 3}),
    )
}

fn mark(name: &str, at: f64, length: f64) -> Value {
    on_host(
        "user_annotation",
        name,
        at,
        length,
        json!({"External id": 1, "Record function id": 0}),
    )
}

fn memory(at: f64, bytes: u64) -> Value {
    json!({"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 41, "tid": 41, "ts": at,
           "args": {"Total Reserved": 0, "Total Allocated": bytes, "Bytes": 8, "Device Id": -1, "Device Type": 0}})
}

fn trace_of(events: Vec<Value>) -> Value {
    let heads = [
        json!({"ph": "M", "name": "process_name", "ts": 1.5, "pid": 41, "tid": 0, "args": {"name": "python"}}),
        json!({"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "pid": "Spans", "tid": "PyTorch Profiler",
               "ts": 0.5, "dur": 9e4, "args": {"Op count": 0}}),
    ];
    let events: Vec<Value> = heads.into_iter().chain(events).collect();
    json!({"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA H200"}], "with_flops": 1,
           "baseTimeNanoseconds": 1_790_857_026_000_000_000u64, "traceEvents": events, "traceName": "trace.json"})
}

/// Two steps of ten milliseconds on a processor.
fn steps_on_a_processor() -> Vec<Value> {
    let step = |step: u64| {
        let base = 5_188_640_863_520.0 + 10_000.0 * step as f64;
        let at = move |offset: f64| base + offset;
        let node = "autograd::engine::evaluate_function: AddmmBackward0";
        vec![
            mark(&format!("ProfilerStep#{step}"), at(0.0), 10_000.0),
            mark(
                "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
                at(0.0),
                1_000.0,
            ),
            op(
                "aten::embedding",
                at(1_500.0),
                500.0,
                json!([[512, 64], [2, 16], []]),
                json!(["float", "long int", "Scalar"]),
            ),
            // The inner op stands first: events are in no order.
            op(
                "aten::addmm",
                at(2_500.0),
                1_000.0,
                json!([[128], [32, 64], [64, 128]]),
                json!(["float", "float", "float"]),
            ),
            op(
                "aten::linear",
                at(2_000.0),
                2_000.0,
                json!([[2, 16, 64], [128, 64], [128]]),
                json!(["float", "float", "float"]),
            ),
            on_host("cpu_op", node, at(4_500.0), 2_500.0, json!({"Fwd thread id": 1})),
            on_host(
                "cpu_op",
                "AddmmBackward0",
                at(4_500.0),
                2_400.0,
                json!({"Sequence number": 29}),
            ),
            op(
                "aten::mm",
                at(5_000.0),
                1_500.0,
                json!([[32, 128], [128, 64]]),
                json!(["float", "float"]),
            ),
            op(
                "aten::_foreach_norm",
                at(7_200.0),
                300.0,
                json!([[[64], [64]], []]),
                json!(["TensorList", "Scalar"]),
            ),
            mark("Optimizer.step#AdamW.step", at(8_000.0), 1_000.0),
            op("aten::_fused_adamw_", at(8_100.0), 800.0, json!([]), json!([])),
            json!({"ph": "s", "id": 13, "pid": 41, "tid": 41, "ts": at(2_500.0), "cat": "fwdbwd", "name": "fwdbwd"}),
            memory(at(2_600.0), 1_000),
            memory(at(5_100.0), 5_000 + 1_000 * step),
            memory(at(7_000.0), 500),
        ]
    };
    (0..2).flat_map(step).collect()
}

/// Two steps of ten milliseconds on a GPU, with what launched its kernels.
fn steps_on_a_gpu() -> Vec<Value> {
    let step = |step: u64| {
        let at = move |offset: f64| 1_000.0 + 10_000.0 * step as f64 + offset;
        let launched = move |name: &str, from: f64, number: u64| {
            on_host(
                "cpu_op",
                name,
                at(from),
                50.0,
                json!({"External id": 10 * step + number}),
            )
        };
        let ran = move |kind: &str, name: &str, from: f64, length: f64, number: u64| {
            json!({"ph": "X", "cat": kind, "name": name, "pid": 0, "tid": 7, "ts": at(from), "dur": length,
                   "args": {"External id": 10 * step + number, "device": 0, "stream": 7, "correlation": 90 + number}})
        };
        vec![
            mark(&format!("ProfilerStep#{step}"), at(0.0), 10_000.0),
            launched("aten::copy_", 100.0, 4),
            launched("aten::mm", 1_000.0, 5),
            mark("autograd::engine::evaluate_function: MmBackward0", at(1_500.0), 200.0),
            launched("aten::mm", 1_550.0, 6),
            mark("Optimizer.step#AdamW.step", at(1_800.0), 150.0),
            launched("aten::add_", 1_850.0, 7),
            ran("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", 500.0, 1_000.0, 4),
            ran("kernel", "gemm", 2_000.0, 3_000.0, 5),
            ran("kernel", "gemm", 5_500.0, 2_500.0, 6),
            ran("kernel", "add", 8_200.0, 300.0, 7),
            json!({"ph": "X", "cat": "gpu_user_annotation", "name": "ProfilerStep#0", "pid": 0, "tid": 7, "ts": at(500.0),
                   "dur": 8_000.0, "args": {}}),
        ]
    };
    (0..2).flat_map(step).collect()
}

fn profile_of(events: Vec<Value>, folder: &Path) -> Value {
    std::fs::write(folder.join("trace.json"), trace_of(events).to_string()).unwrap();
    read(folder, "trace.json")
}

fn read(folder: &Path, file: &str) -> Value {
    serde_json::from_str(&shown(&["profile", "--read", file, "--json"], folder)).unwrap()
}

/// Milliseconds of a phase or an op in a step.
fn milliseconds(rows: &Value, is_wanted: impl Fn(&Value) -> bool) -> f64 {
    let rows = rows.as_array().unwrap();
    let seconds = rows
        .iter()
        .filter(|row| is_wanted(row))
        .map(|row| row["seconds"].as_f64().unwrap());
    (1e6 * seconds.sum::<f64>()).round() / 1e3
}

fn findings(result: &Value) -> Vec<&str> {
    let findings = result["diagnosis"].as_array().unwrap();
    findings
        .iter()
        .map(|finding| finding["rule"].as_str().unwrap())
        .collect()
}

#[test]
fn steps_of_a_processor_fill_the_tables() {
    let folder = tempfile::tempdir().unwrap();
    let result = profile_of(steps_on_a_processor(), folder.path());
    let profile = &result["profile"];
    for (phase, expected) in [
        ("data", 1.0),
        ("forward", 3.5),
        ("backward", 2.5),
        ("optimizer", 2.0),
        ("idle", 1.0),
    ] {
        let found = milliseconds(&profile["phases"], |row| row["phase"] == phase);
        assert_eq!(found, expected, "{phase}: {profile}");
    }
    for (name, phase, shape, expected) in [
        ("aten::embedding", "forward", "512x64 2xL", 0.5),
        ("aten::linear", "forward", "2xLx64 128x64 128", 1.0),
        ("aten::addmm", "forward", "128 Tx64 64x128", 1.0),
        ("aten::mm", "backward", "Tx128 128x64", 1.5),
        ("aten::_foreach_norm", "optimizer", "", 0.3),
        ("aten::_fused_adamw_", "optimizer", "", 0.8),
    ] {
        let is_it = |row: &Value| row["name"] == name && row["phase"] == phase && row["shape"] == shape;
        assert_eq!(
            milliseconds(&profile["ops"], is_it),
            expected,
            "{name}: {}",
            profile["ops"]
        );
    }
    assert_eq!(profile["ops"].as_array().unwrap().len(), 6);
    // Two products of 32 rows, 64 and 128 columns.
    assert_eq!(profile["arithmetic"]["hardware_flops"], 2.0 * 2.0 * 32.0 * 64.0 * 128.0);
    assert_eq!(
        (
            &profile["steps"]["measured_steps"],
            &profile["steps"]["tokens_per_step"]
        ),
        (&json!(2), &json!(32.0))
    );
    assert!((profile["steps"]["tokens_per_s"].as_f64().unwrap() - 3_200.0).abs() < 1e-6);
    assert_eq!(
        (&profile["setting"]["micro_batch"], &profile["setting"]["device"]),
        (&json!(2), &json!("cpu"))
    );
    let memory = &profile["memory"];
    assert_eq!(
        (&memory["peak_bytes"], &memory["mean_bytes"]),
        (&json!(6_000), &json!(1_670))
    );
    assert_eq!(memory["peak_at"].as_array().unwrap().last().unwrap(), "aten::mm");
    assert_eq!(findings(&result), ["data_bound"]);
}

#[test]
fn a_trace_is_compared_with_a_number_and_with_no_published_rate() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    profile_of(steps_on_a_processor(), folder);
    let read = [
        "profile",
        "--read",
        "trace.json",
        "--no-store",
        "--reference-throughput",
    ];
    // 3200 tokens/s, by the steps above.
    let text = shown(&[&read[..], &["6400"]].concat(), folder);
    assert!(text.contains("6,400 tokens/s; this is 50.0% of it"), "{text}");
    let result: Value = serde_json::from_str(&shown(&[&read[..], &["6400", "--json"]].concat(), folder)).unwrap();
    assert!(
        (result["reference"]["reached"].as_f64().unwrap() - 0.5).abs() < 1e-9,
        "{result}"
    );
    for more in [&["auto"][..], &["auto", "--json"]] {
        let error = refused(&[&read[..], more].concat(), folder);
        assert!(error.contains("give --reference-throughput a number"), "{error}");
    }
}

#[test]
fn steps_of_a_gpu_are_timed_by_its_kernels() {
    let folder = tempfile::tempdir().unwrap();
    let result = profile_of(steps_on_a_gpu(), folder.path());
    let profile = &result["profile"];
    assert_eq!(profile["setting"]["device"], "NVIDIA H200");
    let gpu = &profile["gpu"];
    let number = |name: &str| (1e6 * gpu[name].as_f64().unwrap()).round() / 1e6;
    assert_eq!((number("idle_share"), number("gaps")), (0.32, 3.5));
    assert_eq!((number("longest_gap_s"), number("host_gap_s")), (0.002, 0.0022));
    assert_eq!((number("transfer_s"), number("transfer_overlap")), (0.001, 0.0));
    assert_eq!(gpu["kernels"][0]["name"], "gemm");
    assert_eq!(
        (&gpu["kernels"][0]["op"], &gpu["kernels"][0]["calls"]),
        (&json!("aten::mm"), &json!(2.0))
    );
    for (phase, expected) in [("forward", 5.5), ("backward", 3.0), ("optimizer", 0.5)] {
        assert_eq!(
            milliseconds(&profile["phases"], |row| row["phase"] == phase),
            expected,
            "{phase}"
        );
    }
    for (name, phase, expected) in [
        ("aten::copy_", "forward", 1.0),
        ("aten::mm", "forward", 3.0),
        ("aten::mm", "backward", 2.5),
        ("aten::add_", "optimizer", 0.3),
    ] {
        let is_it = |row: &Value| row["name"] == name && row["phase"] == phase;
        assert_eq!(
            milliseconds(&profile["ops"], is_it),
            expected,
            "{name}, {phase}: {}",
            profile["ops"]
        );
    }
    let mut found = findings(&result);
    found.sort_unstable();
    assert_eq!(found, ["copies_not_overlapped", "host_bound"]);
}

#[test]
fn steps_without_marks_go_from_update_to_update() {
    let folder = tempfile::tempdir().unwrap();
    let mut events = steps_on_a_processor();
    events.retain(|event| !event["name"].as_str().unwrap().starts_with("ProfilerStep"));
    let result = profile_of(events.clone(), folder.path());
    let notes = result["profile"]["trace"]["notes"].to_string();
    assert!(notes.contains("from one update to the next"), "{notes}");
    assert_eq!(result["profile"]["steps"]["measured_steps"], 1);
    assert!((result["profile"]["steps"]["step_s"].as_f64().unwrap() - 0.01).abs() < 1e-9);
    events.retain(|event| !event["name"].as_str().unwrap().starts_with("Optimizer"));
    let text = {
        std::fs::write(folder.path().join("whole.json"), trace_of(events).to_string()).unwrap();
        shown(&["profile", "--read", "whole.json", "--no-store"], folder.path())
    };
    assert!(text.contains("taken as one step"), "{text}");
    assert!(
        text.contains("aten::addmm") && text.contains("memory at the peak"),
        "{text}"
    );
}

#[test]
fn a_trace_is_stored_and_compared_as_what_was_measured() {
    let folder = tempfile::tempdir().unwrap();
    profile_of(steps_on_a_processor(), folder.path());
    let text = shown(&["profile", "--read", "trace.json", "--against", "1"], folder.path());
    assert!(text.contains("profile 1 (trace.json) against this profile"), "{text}");
    assert!(
        text.contains("note        tokens are those that the model looks up"),
        "{text}"
    );
    let sql = "select count(*) from op_profile where name = 'aten::mm' and phase = 'backward'";
    assert!(shown(&["query", sql, "--format", "csv"], folder.path()).ends_with("\n2\n"));
}

#[test]
fn a_packed_trace_is_read_and_a_torn_one_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let plain = profile_of(steps_on_a_processor(), folder.path());
    let text = trace_of(steps_on_a_processor()).to_string();
    let packed = gzip(text.as_bytes());
    std::fs::write(folder.path().join("trace.json.gz"), &packed).unwrap();
    let unpacked = read(folder.path(), "trace.json.gz");
    assert_eq!(unpacked["profile"]["ops"], plain["profile"]["ops"]);
    for (file, bytes) in [
        ("torn.json", text.as_bytes()[..text.len() / 2].to_vec()),
        ("torn.json.gz", packed[..packed.len() / 2].to_vec()),
        ("empty.json", Vec::new()),
    ] {
        std::fs::write(folder.path().join(file), bytes).unwrap();
        let told = refused(&["profile", "--read", file], folder.path());
        assert!(told.contains(file) && told.contains("cut off behind"), "{told}");
    }
}

#[test]
fn what_is_no_trace_is_refused_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let only_gpu: Vec<Value> = steps_on_a_gpu()
        .into_iter()
        .filter(|event| event["cat"] == "kernel")
        .collect();
    let cases = [
        ("words.json", "hello".to_owned(), "is no trace of PyTorch's profiler"),
        ("number.json", "7".to_owned(), "export_chrome_trace"),
        (
            "other.json",
            "{\"a\": [1]}".to_owned(),
            "has no ops of PyTorch among its 0 events (kinds: none)",
        ),
        (
            "kernels.json",
            trace_of(only_gpu).to_string(),
            "(kinds: kernel 6, Trace 1)",
        ),
    ];
    for (file, text, message) in cases {
        std::fs::write(folder.path().join(file), text).unwrap();
        let told = refused(&["profile", "--read", file], folder.path());
        assert!(told.contains(file) && told.contains(message), "{told}");
    }
    let told = refused(&["profile", "--read", "missing.json"], folder.path());
    assert!(told.contains("cannot read missing.json"), "{told}");
    let told = refused(&["profile", "recipe.yaml", "--read", "number.json"], folder.path());
    assert!(told.contains("cannot be used with"), "{told}");
    let told = refused(&["profile"], folder.path());
    assert!(told.contains("name a recipe file"), "{told}");
}

/// A file of gzip (RFC 1952) that holds `bytes` as they are.
fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut file = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255];
    let blocks: Vec<&[u8]> = bytes.chunks(60_000).collect();
    for (place, block) in blocks.iter().enumerate() {
        let length = block.len() as u16;
        file.push(u8::from(place + 1 == blocks.len()));
        file.extend(length.to_le_bytes());
        file.extend((!length).to_le_bytes());
        file.extend(*block);
    }
    let remainder = bytes.iter().fold(u32::MAX, |sum, byte| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| {
            if sum & 1 == 1 { sum >> 1 ^ 0xedb8_8320 } else { sum >> 1 }
        })
    });
    file.extend((!remainder).to_le_bytes());
    file.extend((bytes.len() as u32).to_le_bytes());
    file
}
