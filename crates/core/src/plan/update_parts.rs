//! The parts in which updates on the host follow a backward pass (`optimizer_offload: host`).

use std::ops::Range;

use super::parameters::{ParameterLayout, ParameterSlot};
use crate::architecture::{FINAL_NORM, LM_HEAD};

/// Moment at which the gradients of some parameters are whole, in the order of a backward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GradientsReady {
    /// Moment behind the head and the last norm.
    Head,
    /// Moment behind this decoder layer.
    Layer(usize),
    /// End of the pass.
    End,
}

/// Parameters whose gradients become whole at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpdatePart {
    pub ready: GradientsReady,
    /// Elements of these parameters in the flat buffers, in order: each range begins and ends at the bounds of
    /// parameters.
    pub ranges: Vec<Range<usize>>,
}

impl UpdatePart {
    pub fn elements(&self) -> usize {
        self.ranges.iter().map(Range::len).sum()
    }
}

/// All parameters of `layout`, part by part in the order in which a backward pass through `layers` layers ends them. What belongs to no
/// layer and is not read by the head alone (embeddings, which a head may share) comes last.
pub fn update_parts(layout: &ParameterLayout, layers: usize) -> Vec<UpdatePart> {
    let part = |ready| UpdatePart {
        ready,
        ranges: Vec::new(),
    };
    let mut parts = vec![part(GradientsReady::Head)];
    parts.extend((0..layers).rev().map(|layer| part(GradientsReady::Layer(layer))));
    parts.push(part(GradientsReady::End));
    for slot in layout.slots().iter().filter(|slot| slot.elements() > 0) {
        let index = match ready_of(slot, layers) {
            GradientsReady::Head => 0,
            GradientsReady::Layer(layer) => layers - layer,
            GradientsReady::End => layers + 1,
        };
        let (ranges, end) = (&mut parts[index].ranges, slot.offset + slot.elements());
        match ranges.last_mut() {
            Some(last) if last.end == slot.offset => last.end = end,
            _ => ranges.push(slot.offset..end),
        }
    }
    parts.retain(|part| !part.ranges.is_empty());
    parts
}

fn ready_of(slot: &ParameterSlot, layers: usize) -> GradientsReady {
    if [LM_HEAD, FINAL_NORM].contains(&slot.name.as_str()) {
        return GradientsReady::Head;
    }
    let number = slot
        .name
        .split_once("layers.")
        .and_then(|(_, rest)| rest.split('.').next());
    match number.and_then(|number| number.parse().ok()) {
        Some(layer) if layer < layers => GradientsReady::Layer(layer),
        _ => GradientsReady::End,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::architecture::Architecture;
    use crate::plan::ModelPlan;
    use crate::recipe::{AdapterSettings, DataSettings, Recipe};

    fn plan(tied: bool, adapter: Option<AdapterSettings>) -> ModelPlan {
        let text = format!(
            r#"{{"model_type": "llama", "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2,
            "num_key_value_heads": 1, "intermediate_size": 24, "vocab_size": 23, "rms_norm_eps": 1e-5, "head_dim": 8,
            "max_position_embeddings": 64, "rope_theta": 10000.0, "tie_word_embeddings": {tied}}}"#
        );
        let architecture = Architecture::from_json(Path::new("test"), &text).unwrap();
        let mut recipe = Recipe::new("model", DataSettings::default());
        recipe.adapter = adapter;
        ModelPlan::of_recipe(&architecture, &recipe).unwrap()
    }

    #[test]
    fn every_element_is_in_one_part_and_layers_end_from_the_last_to_the_first() {
        use GradientsReady::{End, Head, Layer};

        let adapter = AdapterSettings {
            rank: 2,
            dora: true,
            modules_to_save: vec!["embed_tokens".into()],
            ..AdapterSettings::default()
        };
        for (plan, expected) in [
            (plan(false, None), vec![Head, Layer(2), Layer(1), Layer(0), End]),
            (plan(true, None), vec![Head, Layer(2), Layer(1), Layer(0), End]),
            (plan(true, Some(adapter)), vec![Layer(2), Layer(1), Layer(0), End]),
        ] {
            let parts = update_parts(&plan.layout, plan.layers.len());
            assert_eq!(parts.iter().map(|part| part.ready).collect::<Vec<_>>(), expected);
            let mut ranges: Vec<_> = parts.iter().flat_map(|part| part.ranges.clone()).collect();
            ranges.sort_by_key(|range| range.start);
            let mut next = 0;
            for range in ranges {
                assert_eq!(range.start, next);
                next = range.end;
            }
            assert_eq!(next, plan.layout.elements());
        }
    }

    #[test]
    fn a_tied_head_is_whole_behind_the_embedding_and_an_adapter_has_few_ranges() {
        let elements = |plan: &ModelPlan, ready| {
            let parts = update_parts(&plan.layout, plan.layers.len());
            parts
                .iter()
                .find(|part| part.ready == ready)
                .map_or(0, UpdatePart::elements)
        };
        let (tied, apart) = (plan(true, None), plan(false, None));
        assert_eq!(
            [
                elements(&tied, GradientsReady::Head),
                elements(&tied, GradientsReady::End)
            ],
            [16, 23 * 16]
        );
        assert_eq!(elements(&apart, GradientsReady::Head), 16 + 23 * 16);
        // All A lie before all B.
        let adapter = AdapterSettings {
            rank: 2,
            ..AdapterSettings::default()
        };
        let adapted = plan(true, Some(adapter));
        let parts = update_parts(&adapted.layout, 3);
        assert!(parts.iter().all(|part| part.ranges.len() == 2), "{parts:?}");
    }
}
