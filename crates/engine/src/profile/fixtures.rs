//! Spans and profiles made by hand, for the tests of this folder.

use super::{DataFacts, DataWaits, OpTime, PhaseTime, Profile, Setting, StepFacts};
use crate::span::{Range, SpanMemory, SpanRecord, SpanTree, Work};

/// A span that begins and ends at these nanoseconds.
pub fn span(range: Range, parent: Option<u32>, start_ns: u64, end_ns: u64) -> SpanRecord {
    SpanRecord {
        range,
        parent,
        depth: 0,
        start_ns,
        end_ns,
        work: Work::default(),
        memory: SpanMemory::default(),
    }
}

/// An op with (FLOPs, FLOPs of adapters).
pub fn op(name: &'static str, parent: Option<u32>, at: (u64, u64), flops: (u64, u64)) -> SpanRecord {
    SpanRecord {
        work: Work {
            flops: flops.0,
            adapter_flops: flops.1,
            bytes: 1,
            ..Work::default()
        },
        ..span(Range::Op(name), parent, at.0, at.1)
    }
}

pub fn tree(spans: Vec<SpanRecord>) -> SpanTree {
    SpanTree { thread: 0, spans }
}

/// A step of 0.1 s without anything to complain about: 4 rows of 250 tokens on 2 of 2 cores.
pub fn sound_profile() -> Profile {
    let phase = |name: &str, share: f64| PhaseTime {
        phase: name.to_owned(),
        seconds: 0.1 * share,
        interval: 0.01,
        share,
        op_seconds: 0.1 * share * 0.98,
        nested: false,
    };
    let op = |name: &str, phase: &str, share: f64, flops: f64| OpTime {
        name: name.to_owned(),
        phase: phase.to_owned(),
        shape: "Tx576x1536".to_owned(),
        storage: "bf16".to_owned(),
        calls: 30.0,
        seconds: 0.1 * share,
        share,
        flops,
        bytes: 1e7,
        roofline_share: Some(0.8),
        ..OpTime::default()
    };
    Profile {
        setting: Setting {
            model: "model".to_owned(),
            base_parameters: 100_000_000,
            trained_parameters: 1_000_000,
            device: "cpu".to_owned(),
            threads: 2,
            cores: 2,
            precision: "bf16".to_owned(),
            compute_dtype: "bf16".to_owned(),
            rank: Some(16),
            optimizer: "adamw".to_owned(),
            checkpointing: "none".to_owned(),
            micro_batch: 4,
            gradient_accumulation: 1,
            sequence_length: 256,
            log_every: 1,
            kernels: "fused".to_owned(),
            attention: None,
            longer_sums: false,
            ..Setting::default()
        },
        data: DataFacts {
            rows: 1000,
            mean_tokens_per_row: 250.0,
            mean_documents_per_row: 1.0,
            largest_micro_batch_tokens: 1024,
            target_share: 1.0,
            training_steps: 250,
            training_evaluations: 1,
            waits: Some(DataWaits {
                prefetch_depth: 2,
                preparing_s: 2e-5,
                compute_waits: 1e-5,
                data_waits: 0.999,
                thread: None,
            }),
        },
        steps: StepFacts {
            warmup_steps: 3,
            measured_steps: 20,
            tokens_per_s: 10_000.0,
            interval: 0.01,
            spread: 0.01,
            step_s: 0.1,
            tokens_per_step: 1000.0,
            settled: true,
            each: vec![(0.1, 1000); 20],
            spanned: None,
        },
        phases: vec![
            phase("data", 0.001),
            phase("host_to_device", 0.001),
            phase("forward", 0.4),
            phase("backward", 0.58),
            phase("optimizer", 0.015),
            phase("logging", 0.0005),
            phase("idle", 0.0025),
        ],
        ops: vec![
            op("matmul_nt", "forward", 0.35, 3.5e9),
            op("matmul_nn", "backward", 0.4, 4.0e9),
            op("attention", "forward", 0.05, 0.3e9),
        ],
        ..Profile::default()
    }
}
