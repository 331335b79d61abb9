//! Rules on PyTorch's kernels: attention that keeps its scores, products beside the tensor cores, updates one by one.

use super::evidence::percent;
use super::products::LEAST_SHARE;
use super::{Change, Evidence, Finding, Gain, Rule};
use crate::span::StepPhase;
use peft_tune_core::recipe::{AttentionImplementation, Precision};

/// Beginnings of the names of ops that eager attention has for its scores, and no other attention.
const OF_SCORES: [&str; 2] = ["aten::_softmax", "aten::masked_fill"];
/// Parts of the names of products' kernels that libraries have.
const PRODUCTS: [&str; 4] = ["gemm", "cutlass", "cublas", "nvjet"];
/// Parts of the names of kernels that compute on tensor cores: their instructions, and the number types that these take.
const ON_TENSOR_CORES: [&str; 10] = [
    "tensorop", "hmma", "imma", "s16816", "s1688", "gmma", "wgmma", "bf16", "tf32", "nvjet",
];

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

/// Finds products on a GPU whose kernels are none of the tensor cores', by their names.
pub(super) fn no_tensor_cores(evidence: &Evidence<'_>) -> Option<Finding> {
    let profile = evidence.profile;
    profile.setting.stack.as_ref()?;
    let gpu = profile.gpu.as_ref().filter(|gpu| gpu.step_s() > 0.0)?;
    let has = |name: &str, parts: &[&str]| {
        let name = name.to_lowercase();
        parts.iter().any(|part| name.contains(part))
    };
    let mut others: Vec<_> = gpu
        .kernels
        .iter()
        .filter(|kernel| has(&kernel.name, &PRODUCTS) && !has(&kernel.name, &ON_TENSOR_CORES))
        .collect();
    others.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    let share = others.iter().map(|kernel| kernel.seconds).sum::<f64>() / gpu.step_s();
    let longest = others.first()?;
    if share < LEAST_SHARE {
        return None;
    }
    let change = match evidence.recipe.precision {
        Precision::Fp32 => Change::Precision(Precision::Bf16),
        _ => Change::Advice("look in the trace (`--trace`) which products are not of 16 bits".to_owned()),
    };
    let name: String = longest.name.chars().take(60).collect();
    Some(Finding {
        rule: Rule::NoTensorCores,
        evidence: format!(
            "{} of the step are products in kernels whose names are of no tensor core's; the longest is `{name}`",
            percent(share)
        ),
        change,
        // How much faster they would be is the GPU's to say.
        gain: None,
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
    use crate::profile::{GpuTimeline, KernelTime, OpTime, Profile};
    use peft_tune_core::recipe::{DataSettings, Recipe};

    fn profile() -> Profile {
        let mut profile = sound_profile();
        profile.setting.stack = Some("torch 2.15.0".to_owned());
        profile.setting.attention = Some("sdpa".to_owned());
        profile
    }

    /// What a rule finds in a profile of a recipe in this precision.
    fn found(rule: fn(&Evidence<'_>) -> Option<Finding>, profile: &Profile, precision: Precision) -> Option<Finding> {
        let mut recipe = Recipe::new("model", DataSettings::default());
        recipe.precision = precision;
        rule(&Evidence {
            profile,
            recipe: &recipe,
            oracle: &(),
            faster_type: None,
            losses_by_rank: &[],
        })
    }

    #[test]
    fn eager_attention_is_found_by_its_name_and_weighed_by_its_scores() {
        let mut eager = profile();
        assert_eq!(found(eager_attention, &eager, Precision::Bf16), None);
        eager.setting.attention = Some("eager".to_owned());
        eager.ops.push(OpTime {
            name: "aten::_softmax".to_owned(),
            share: 0.2,
            ..OpTime::default()
        });
        let finding = found(eager_attention, &eager, Precision::Bf16).unwrap();
        assert_eq!(finding.change.to_string(), "attn_implementation: sdpa");
        assert!(finding.evidence.contains("20% of the step"), "{}", finding.evidence);
        eager.setting.stack = None;
        assert_eq!(found(eager_attention, &eager, Precision::Bf16), None);
    }

    #[test]
    fn kernels_of_the_tensor_cores_are_known_by_their_names() {
        let with = |name: &str| {
            let mut profile = profile();
            let kernel = KernelTime {
                name: name.to_owned(),
                seconds: 0.05,
                ..KernelTime::default()
            };
            profile.gpu = Some(GpuTimeline {
                steps: 1,
                seconds: 0.1,
                kernels: vec![kernel],
                ..GpuTimeline::default()
            });
            profile
        };
        for name in [
            "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x3_tn",
            "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x256>",
            "void at::native::vectorized_elementwise_kernel<4>",
        ] {
            assert_eq!(found(no_tensor_cores, &with(name), Precision::Bf16), None, "{name}");
        }
        let finding = found(no_tensor_cores, &with("ampere_sgemm_128x64_tn"), Precision::Fp32).unwrap();
        assert_eq!(finding.change, Change::Precision(Precision::Bf16));
        assert!(
            finding.evidence.contains("`ampere_sgemm_128x64_tn`"),
            "{}",
            finding.evidence
        );
    }

    #[test]
    fn updates_of_an_adapter_are_to_be_short() {
        let mut slow = profile();
        assert_eq!(found(slow_updates, &slow, Precision::Bf16), None);
        let optimizer = slow.phases.iter_mut().find(|phase| phase.phase == "optimizer").unwrap();
        optimizer.share = 0.3;
        assert!(found(slow_updates, &slow, Precision::Bf16).is_some());
        slow.setting.rank = None;
        assert_eq!(found(slow_updates, &slow, Precision::Bf16), None);
    }
}
