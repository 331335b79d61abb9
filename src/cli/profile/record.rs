//! A profile as the database keeps it.

use super::source::ProfileSource;
use crate::cli::CliError;
use crate::store::{DiagnosisRecord, MachineRecord, OpRecord, PhaseRecord, ProfileRecord, SampleRecord};
use peft_tune_engine::profile::diagnosis::{Finding, Metric, Verified};
use peft_tune_engine::profile::{DeviceSample, OpTime, PhaseTime, Profile};

/// The record of a profile with its findings.
pub(super) fn record_of(
    source: &ProfileSource,
    profile: &Profile,
    findings: &[Finding],
    machine: MachineRecord,
) -> Result<ProfileRecord, CliError> {
    Ok(ProfileRecord {
        trial: source.trial,
        machine: Some(machine),
        recipe: serde_json::to_value(&source.recipe).map_err(CliError::failed)?,
        ..record_of_trace(source.name.clone(), profile, findings)
    })
}

/// The record of a profile that was read from a trace: neither its recipe nor its machine is known.
pub(super) fn record_of_trace(name: String, profile: &Profile, findings: &[Finding]) -> ProfileRecord {
    let device = &profile.setting.device;
    ProfileRecord {
        trial: None,
        name,
        machine: None,
        recipe: serde_json::Value::Null,
        tokens_per_s: profile.steps.tokens_per_s,
        interval: profile.steps.interval,
        measured_steps: profile.steps.measured_steps,
        peak_memory_bytes: profile.memory.peak_bytes,
        mfu: profile.arithmetic.mfu,
        hfu: profile.arithmetic.hfu,
        joules_per_token: profile.joules_per_token(),
        document: serde_json::json!({"profile": profile, "diagnosis": findings}),
        phases: profile.phases.iter().map(phase).chain(evaluation(profile)).collect(),
        ops: profile.ops.iter().map(op).collect(),
        samples: profile.samples.iter().map(|seen| sample(seen, device)).collect(),
        diagnoses: findings.iter().map(diagnosis).collect(),
    }
}

fn phase(phase: &PhaseTime) -> PhaseRecord {
    PhaseRecord {
        phase: phase.phase.clone(),
        seconds: phase.seconds,
        interval: phase.interval,
        share: phase.share,
        op_seconds: phase.op_seconds,
    }
}

/// Evaluating, which is no part of a step.
fn evaluation(profile: &Profile) -> Option<PhaseRecord> {
    profile.evaluation.map(|evaluation| PhaseRecord {
        phase: "evaluation".to_owned(),
        seconds: evaluation.seconds,
        interval: f64::NAN,
        share: evaluation.share,
        op_seconds: 0.0,
    })
}

fn op(op: &OpTime) -> OpRecord {
    OpRecord {
        name: op.name.clone(),
        phase: op.phase.clone(),
        shape: op.shape.clone(),
        storage: op.storage.clone(),
        calls: op.calls,
        seconds: op.seconds,
        share: op.share,
        flops: op.flops,
        bytes: op.bytes,
        gflop_per_s: op.gflop_per_s(),
        gb_per_s: op.gb_per_s(),
        roofline_share: op.roofline_share,
    }
}

fn sample(sample: &DeviceSample, device: &str) -> SampleRecord {
    SampleRecord {
        at_s: sample.at_s,
        device: device.to_owned(),
        utilisation: sample.utilisation,
        process_cores: sample.process_cores,
        other_cores: sample.other_cores,
        resident_bytes: sample.resident_bytes,
        memory_bytes: sample.memory_bytes,
        power_w: sample.power_w,
        temperature_c: sample.temperature_c,
        clock_mhz: sample.clock_mhz,
        throttled: sample.throttled,
    }
}

fn diagnosis(finding: &Finding) -> DiagnosisRecord {
    let (measured_gain, outcome) = match &finding.verified {
        Some(Verified::Gain { value, .. }) => (Some(*value), None),
        Some(Verified::NotRun { reason }) => (None, Some(reason.clone())),
        None => (None, None),
    };
    DiagnosisRecord {
        rule: finding.rule.name().to_owned(),
        evidence: finding.evidence.clone(),
        change: finding.change.to_string(),
        metric: finding
            .gain
            .map_or(Metric::Throughput, |gain| gain.metric)
            .name()
            .to_owned(),
        predicted_gain: finding.gain.map(|gain| gain.value),
        predicted_by: finding.gain.map(|gain| gain.by.name().to_owned()),
        measured_gain,
        outcome,
    }
}
