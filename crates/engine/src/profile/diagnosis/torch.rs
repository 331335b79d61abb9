//! Rules on PyTorch's steps: attention that keeps its scores, updates one by one.

use super::evidence::percent;
use super::products::LEAST_SHARE;
use super::{Change, Evidence, Finding, Gain, Rule};
use crate::span::StepPhase;
use peft_tune_core::recipe::AttentionImplementation;

/// Beginnings of the names of ops that eager attention has for its scores, and no other attention.
const OF_SCORES: [&str; 2] = ["aten::_softmax", "aten::masked_fill"];

/// Finds attention that PyTorch could compute without keeping its scores.
pub(super) fn eager_attention(evidence: &Evidence<'_>) -> Option<Finding> {
    let profile = evidence.profile;
    profile.setting.stack.as_ref()?;
    if profile.setting.attention.as_deref() != Some(AttentionImplementation::Eager.name()) {
        return None;
    }
    let is_of_scores = |name: &str| OF_SCORES.iter().any(|part| name.starts_with(part));
    let of_scores = profile.ops.iter().filter(|op| is_of_scores(&op.name));
    let share: f64 = of_scores.map(|op| op.share).sum();
    Some(Finding {
        rule: Rule::EagerAttention,
        evidence: format!(
            "attention is computed op by op, and keeps the scores of every layer: the passes over these alone take {} of the step",
            percent(share)
        ),
        change: Change::Attention(AttentionImplementation::Sdpa),
        gain: Some(Gain::without(share)),
        verified: None,
    })
}

/// Finds updates that take much of a step although an adapter has few parameters.
pub(super) fn slow_updates(evidence: &Evidence<'_>) -> Option<Finding> {
    let profile = evidence.profile;
    profile.setting.stack.as_ref()?;
    let updating = profile.phase_share(StepPhase::Optimizer);
    if updating < LEAST_SHARE || profile.setting.rank.is_none() {
        return None;
    }
    Some(Finding {
        rule: Rule::SlowUpdates,
        evidence: format!(
            "clipping and updates take {} of the step, for {:.1} M parameters",
            percent(updating),
            profile.setting.trained_parameters as f64 / 1e6
        ),
        change: Change::Advice(
            "spend updates on more tokens: a larger global batch; or take an optimizer with one kernel for all (`adamw`)".to_owned(),
        ),
        gain: Some(Gain::without(updating / 2.0)),
        verified: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::fixtures::sound_profile;
    use crate::profile::{OpTime, Profile};
    use peft_tune_core::recipe::{DataSettings, Recipe};

    fn profile() -> Profile {
        let mut profile = sound_profile();
        profile.setting.stack = Some("torch 2.15.0".to_owned());
        profile.setting.attention = Some("sdpa".to_owned());
        profile
    }

    /// Finding of a rule in a profile.
    fn found(rule: fn(&Evidence<'_>) -> Option<Finding>, profile: &Profile) -> Option<Finding> {
        rule(&Evidence {
            profile,
            recipe: &Recipe::new("model", DataSettings::default()),
            oracle: &(),
            faster_type: None,
            losses_by_rank: &[],
        })
    }

    #[test]
    fn eager_attention_is_found_by_its_name_and_weighed_by_its_scores() {
        let mut eager = profile();
        assert_eq!(found(eager_attention, &eager), None);
        eager.setting.attention = Some("eager".to_owned());
        eager.ops.push(OpTime {
            name: "aten::_softmax".to_owned(),
            share: 0.2,
            ..OpTime::default()
        });
        let finding = found(eager_attention, &eager).unwrap();
        assert_eq!(finding.change.to_string(), "attn_implementation: sdpa");
        assert!(finding.evidence.contains("20% of the step"), "{}", finding.evidence);
        eager.setting.stack = None;
        assert_eq!(found(eager_attention, &eager), None);
    }

    #[test]
    fn updates_of_an_adapter_are_to_be_short() {
        let mut slow = profile();
        assert_eq!(found(slow_updates, &slow), None);
        let optimizer = slow.phases.iter_mut().find(|phase| phase.phase == "optimizer").unwrap();
        optimizer.share = 0.3;
        assert!(found(slow_updates, &slow).is_some());
        slow.setting.rank = None;
        assert_eq!(found(slow_updates, &slow), None);
    }
}
