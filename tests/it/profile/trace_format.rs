//! The rules of the Trace Event Format that Perfetto's importer goes by.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// Fails unless `trace` keeps the rules: known phases with their fields, times that are numbers and not negative, spans
/// that nest within their thread, counters whose series are numbers, threads that are named.
pub fn assert_sound(trace: &Value) {
    let events = trace["traceEvents"].as_array().unwrap();
    assert!(!events.is_empty());
    let mut spans: BTreeMap<(u64, u64), Vec<(f64, f64, &str)>> = BTreeMap::new();
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
                let (start, length) = (event["ts"].as_f64().unwrap(), event["dur"].as_f64().unwrap());
                assert!(start >= 0.0 && length >= 0.0 && event["cat"].is_string(), "{event}");
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

/// Fails where a span begins inside another and ends outside it. Times are in microseconds, so that less than a nanosecond
/// is no overlap.
fn assert_nested(spans: &mut [(f64, f64, &str)]) {
    const LESS_THAN_A_NANOSECOND: f64 = 5e-4;
    spans.sort_by(|a, b| a.0.total_cmp(&b.0).then(b.1.total_cmp(&a.1)));
    let mut open: Vec<(f64, f64, &str)> = Vec::new();
    for span in spans.iter() {
        while open.last().is_some_and(|around| around.1 <= span.0 + LESS_THAN_A_NANOSECOND) {
            open.pop();
        }
        if let Some(around) = open.last() {
            assert!(span.1 <= around.1 + LESS_THAN_A_NANOSECOND, "{span:?} ends outside {around:?}");
        }
        open.push(*span);
    }
}

#[test]
#[should_panic(expected = "ends outside")]
fn overlapping_spans_are_noticed() {
    assert_nested(&mut [(0.0, 10.0, "around"), (5.0, 11.0, "inside")]);
}
