//! The rules of the Trace Event Format that Perfetto's importer goes by.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// Beginning, end and name.
type Span<'a> = (u64, u64, &'a str);

/// Fails unless `trace` keeps the rules: known phases with their fields, times that are numbers and not negative, spans
/// that nest within their thread, counters whose series are numbers, threads that are named.
pub(super) fn assert_sound(trace: &Value) {
    let events = trace["traceEvents"].as_array().unwrap();
    assert!(!events.is_empty());
    let mut spans: BTreeMap<(u64, u64), Vec<Span<'_>>> = BTreeMap::new();
    let mut named = BTreeSet::new();
    for event in events {
        let name = event["name"].as_str().unwrap();
        let thread = (event["pid"].as_u64().unwrap(), event["tid"].as_u64().unwrap());
        match event["ph"].as_str().unwrap() {
            "M" => {
                assert!(event["args"]["name"].is_string(), "{event}");
                if name == "thread_name" {
                    named.insert(thread);
                }
            }
            "X" => {
                let (start, length) = (nanoseconds(&event["ts"]), nanoseconds(&event["dur"]));
                assert!(event["cat"].is_string(), "{event}");
                spans.entry(thread).or_default().push((start, start + length, name));
            }
            "C" => {
                assert!(event["ts"].as_f64().unwrap() >= 0.0);
                let series = event["args"].as_object().unwrap();
                assert!(!series.is_empty() && series.values().all(Value::is_number), "{event}");
            }
            other => panic!("an event of unknown kind {other}"),
        }
    }
    for (thread, mut spans) in spans {
        assert!(named.contains(&thread), "thread {thread:?} has no name");
        assert_nested(&mut spans);
    }
}

/// Microseconds as Perfetto reads them: multiplied, and cut off.
fn nanoseconds(microseconds: &Value) -> u64 {
    let microseconds = microseconds.as_f64().unwrap();
    assert!(microseconds >= 0.0);
    (microseconds * 1e3) as u64
}

/// Fails where a span begins inside another and ends outside it.
fn assert_nested(spans: &mut [Span<'_>]) {
    spans.sort_by(|a, b| a.0.cmp(&b.0).then(b.1.cmp(&a.1)));
    let mut open: Vec<Span<'_>> = Vec::new();
    for span in spans.iter() {
        while open.last().is_some_and(|around| around.1 <= span.0) {
            open.pop();
        }
        if let Some(around) = open.last() {
            assert!(span.1 <= around.1, "{span:?} ends outside {around:?}");
        }
        open.push(*span);
    }
}

#[test]
#[should_panic(expected = "ends outside")]
fn overlapping_spans_are_noticed() {
    assert_nested(&mut [(0, 10, "around"), (5, 11, "inside")]);
}
