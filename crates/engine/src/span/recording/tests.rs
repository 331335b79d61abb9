//! Recordings of spans, and runs on paper behind them.

use std::sync::atomic::AtomicU64;

use super::*;
use crate::span::Shape;

fn without_memory() -> Probe {
    Probe {
        memory: Box::new(MemoryReading::default),
        device: None,
    }
}

#[test]
fn nothing_is_recorded_without_a_recording() {
    let span = phase(StepPhase::Forward);
    assert_eq!(span.index, NOT_RECORDED);
    assert!(handle().is_none());
}

#[test]
fn spans_nest_and_hold_those_inside_them() {
    let recording = Recording::start(without_memory());
    {
        let _step = phase(StepPhase::Step);
        let _layer = layer(3);
        for rows in [2, 4] {
            let work = || Work {
                flops: 10,
                shape: Shape::new(&[rows]),
                ..Work::default()
            };
            let _op = op("product", work);
        }
    }
    let trees = recording.take();
    assert_eq!(trees.len(), 1);
    let spans = &trees[0].spans;
    let parents: Vec<_> = spans.iter().map(|span| span.parent).collect();
    assert_eq!(parents, [None, Some(0), Some(1), Some(1)]);
    for span in &spans[1..] {
        let parent = &spans[span.parent.unwrap() as usize];
        assert!(parent.start_ns <= span.start_ns && span.start_ns <= span.end_ns);
        assert!(span.end_ns <= parent.end_ns);
    }
    assert_eq!(spans[3].work.shape.to_string(), "4");
    let total: f64 = trees[0].own_seconds().iter().sum();
    assert!((total - trees[0].root().seconds()).abs() < 1e-12);
    assert!(recording.take().is_empty());
}

#[test]
fn spans_of_a_device_nest_by_its_own_clock() {
    for waits in [false, true] {
        let recording = Recording::start(Probe {
            device: Some(Device::Cpu),
            ..without_memory()
        });
        recording.wait_in_spans(waits);
        for _ in 0..2 {
            let _step = phase(StepPhase::Step);
            drop(phase(StepPhase::Data));
            let _forward = phase(StepPhase::Forward);
            let _op = op("product", Work::default);
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        let trees = recording.take();
        assert_eq!(trees.len(), 2);
        assert!(trees[0].root().end_ns <= trees[1].root().start_ns);
        for tree in &trees {
            let [step, data, forward, op] = tree.spans.as_slice() else {
                panic!("{tree:?}")
            };
            assert!(step.start_ns <= data.start_ns && data.end_ns <= forward.start_ns);
            assert!(forward.start_ns <= op.start_ns && op.seconds() >= 2e-3);
            assert!(op.end_ns <= forward.end_ns && forward.end_ns <= step.end_ns);
        }
    }
}

#[test]
fn what_runs_in_a_pause_leaves_no_span() {
    let recording = Recording::start(without_memory());
    let pause = recording.pause();
    drop(phase(StepPhase::Forward));
    drop(pause);
    assert!(recording.take().is_empty());
    drop(phase(StepPhase::Backward));
    assert_eq!(recording.take().len(), 1);
}

#[test]
fn another_thread_takes_part_only_when_it_joins() {
    let recording = Recording::start(without_memory());
    let apart = std::thread::spawn(|| drop(phase(StepPhase::Prepare)));
    apart.join().unwrap();
    assert!(recording.take().is_empty());
    let handle = handle().unwrap();
    let taking_part = std::thread::spawn(move || {
        handle.join("prefetch");
        drop(phase(StepPhase::Prepare));
    });
    taking_part.join().unwrap();
    let trees = recording.take();
    assert_eq!((trees.len(), trees[0].thread), (1, 1));
    assert_eq!(recording.threads(), ["main", "prefetch"]);
}

#[test]
fn a_peak_belongs_to_the_innermost_span() {
    static PEAK: AtomicU64 = AtomicU64::new(0);
    let memory = || MemoryReading {
        in_use_bytes: 5,
        peak_bytes: PEAK.swap(5, Relaxed),
    };
    let recording = Recording::start(Probe {
        memory: Box::new(memory),
        device: None,
    });
    {
        let _step = phase(StepPhase::Step);
        PEAK.store(7, Relaxed);
        {
            let _forward = phase(StepPhase::Forward);
            keep(|| 3);
            PEAK.store(100, Relaxed);
        }
        release(|| 2);
        PEAK.store(9, Relaxed);
    }
    let trees = recording.take();
    let [step, forward] = trees[0].spans.as_slice() else {
        panic!("{trees:?}")
    };
    assert_eq!(forward.memory.own_peak_bytes, 100);
    assert_eq!(forward.memory.peak_kept_bytes, 3);
    assert_eq!((step.memory.own_peak_bytes, step.memory.peak_kept_bytes), (9, 1));
}

#[test]
fn a_span_left_open_by_the_end_of_a_recording_does_no_harm() {
    let recording = Recording::start(without_memory());
    let span = phase(StepPhase::Step);
    drop(recording);
    drop(span);
}
