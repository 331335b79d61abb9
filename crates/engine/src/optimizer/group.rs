//! Ranges of the flat buffers that share a learning rate and a weight decay.

use std::ops::Range;

use crate::{ParameterKind, ParameterLayout, ParameterSlot};
use peft_tune_core::recipe::OptimizerSettings;

/// Neighbouring parameters that are updated alike.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Group {
    /// Elements of the flat buffers.
    pub range: Range<usize>,
    /// Factor on the step's learning rate.
    pub rate_ratio: f64,
    /// Weight decay, after the rule on which parameters decay.
    pub weight_decay: f64,
}

/// One group for each slot, in the order of the slots.
pub(super) fn of_slots(layout: &ParameterLayout, settings: &OptimizerSettings) -> Vec<Group> {
    let group = |slot: &ParameterSlot| Group {
        range: slot.offset..slot.offset + slot.elements(),
        rate_ratio: rate_ratio(slot, settings),
        weight_decay: if decays(slot) { settings.weight_decay } else { 0.0 },
    };
    layout.slots().iter().map(group).collect()
}

/// Groups of one slot each in an optimizer of 8 bits.
#[derive(Default)]
pub(super) struct SlotGroups {
    /// Groups whose states are codes.
    pub coded: Vec<Group>,
    /// Groups whose states stay in F32.
    pub plain: Vec<Group>,
}

impl SlotGroups {
    pub(super) fn new(layout: &ParameterLayout, settings: &OptimizerSettings) -> Self {
        let mut all = Self::default();
        for (slot, group) in layout.slots().iter().zip(of_slots(layout, settings)) {
            let groups = if slot.is_coded() {
                &mut all.coded
            } else {
                &mut all.plain
            };
            groups.push(group);
        }
        all
    }
}

/// The fewest groups that cover the layout: neighbours that are alike are one.
pub(super) fn merged(layout: &ParameterLayout, settings: &OptimizerSettings) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for group in of_slots(layout, settings) {
        match groups.last_mut() {
            Some(last) if last.rate_ratio == group.rate_ratio && last.weight_decay == group.weight_decay => {
                last.range.end = group.range.end;
            }
            _ => groups.push(group),
        }
    }
    groups
}

/// Range that two ranges have in common.
pub(super) fn common(one: &Range<usize>, other: &Range<usize>) -> Range<usize> {
    let (start, end) = (one.start.max(other.start), one.end.min(other.end));
    start..end.max(start)
}

/// Whether all of `range` lies in `elements`.
pub(super) fn is_in(range: &Range<usize>, elements: &Range<usize>) -> bool {
    elements.start <= range.start && range.end <= elements.end
}

/// LoRA+ (arXiv:2402.12354) as in PEFT's `create_loraplus_optimizer`: lora_b and all vectors learn faster.
fn rate_ratio(slot: &ParameterSlot, settings: &OptimizerSettings) -> f64 {
    let is_fast = slot.kind == ParameterKind::LoraB || slot.shape.len() == 1;
    match settings.loraplus_ratio {
        Some(ratio) if is_fast => ratio,
        _ => 1.0,
    }
}

/// Whether a parameter decays: biases and the weights of norms do not, as in transformers' Trainer.
fn decays(slot: &ParameterSlot) -> bool {
    match slot.kind {
        ParameterKind::LoraA | ParameterKind::LoraB | ParameterKind::Magnitude => true,
        ParameterKind::Bias => false,
        ParameterKind::Base => slot.shape.len() > 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loraplus_makes_two_groups_of_an_adapter() {
        let mut layout = ParameterLayout::default();
        layout.push("q.a", &[2, 4], ParameterKind::LoraA);
        layout.push("k.a", &[2, 4], ParameterKind::LoraA);
        layout.push("q.b", &[4, 2], ParameterKind::LoraB);
        layout.push("q.bias", &[4], ParameterKind::Bias);
        let settings = OptimizerSettings {
            loraplus_ratio: Some(16.0),
            weight_decay: 0.1,
            ..Default::default()
        };
        let group = |range, rate_ratio, weight_decay| Group {
            range,
            rate_ratio,
            weight_decay,
        };
        let expected = [
            group(0..16, 1.0, 0.1),
            group(16..24, 16.0, 0.1),
            group(24..28, 16.0, 0.0),
        ];
        assert_eq!(merged(&layout, &settings), expected);
    }
}
