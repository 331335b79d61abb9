//! Layers whose heads are not those of the model: the full layers of Gemma 4, wider and fewer than its sliding ones.
//!
//! `global_head_dim` and `num_global_key_value_heads` say it of all full layers; `per_layer_config`, in files of
//! transformers 5, of each by its number. With `attention_k_eq_v` full layers have one projection for keys and values.

use super::config::Config;
use super::family::Switches;
use super::{Architecture, ArchitectureError, KeyValueSource, LayerHeads, rope_config};

const BY_LAYER: &str = "per_layer_config";

/// Width of a full layer's heads where the file says nothing.
const FULL_HEAD_DIM: usize = 512;

/// Reads heads, sources of keys and values, and ropes of the full layers into `architecture`, whose windows are known.
pub(super) fn read(
    config: &Config,
    switches: &Switches,
    architecture: &mut Architecture,
) -> Result<(), ArchitectureError> {
    check_direction(config)?;
    if let Some(last) = architecture.layers.last_mut() {
        // As in transformers, whatever `layer_types` says of it.
        (last.window, last.rope) = (None, Some(0));
    }
    let one_projection = config.flag("attention_k_eq_v", false)?;
    let full = match config.object(BY_LAYER)? {
        Some(by_layer) => of_each(&by_layer, architecture)?,
        None => of_all(config, architecture, one_projection)?,
    };
    if !architecture.heads.is_multiple_of(full.kv_heads) {
        let rule = format!("a divisor of num_attention_heads {}", architecture.heads);
        return Err(config.impossible("num_global_key_value_heads", full.kv_heads, rule));
    }
    let model = LayerHeads {
        kv_heads: architecture.kv_heads,
        head_dim: architecture.head_dim,
    };
    for layer in architecture.layers.iter_mut().filter(|layer| layer.window.is_none()) {
        layer.heads = Some(full).filter(|full| *full != model);
        if one_projection {
            layer.keys = KeyValueSource::OneProjection;
        }
    }
    let head_dims = [full.head_dim, architecture.head_dim];
    architecture.ropes = rope_config::of_both(config, switches, head_dims, architecture.max_positions)?;
    Ok(())
}

/// Images may see what follows them, text may not.
fn check_direction(config: &Config) -> Result<(), ArchitectureError> {
    const KEY: &str = "use_bidirectional_attention";
    match config.value(KEY).and_then(|value| value.as_bool()) {
        Some(false) => Ok(()),
        Some(true) => Err(config.unsupported(KEY, "true", "vision, or null")),
        None => match config.optional_text(KEY)? {
            None | Some("vision") => Ok(()),
            Some(other) => Err(config.unsupported(KEY, other, "vision, or null")),
        },
    }
}

/// Heads that the file names for all full layers.
fn of_all(config: &Config, model: &Architecture, one_projection: bool) -> Result<LayerHeads, ArchitectureError> {
    let head_dim = config.optional_dimension("global_head_dim")?;
    let kv_heads = match one_projection {
        true => config.optional_dimension("num_global_key_value_heads")?,
        false => None,
    };
    Ok(LayerHeads {
        kv_heads: kv_heads.unwrap_or(model.kv_heads),
        head_dim: head_dim.unwrap_or(FULL_HEAD_DIM),
    })
}

/// Heads that the file names for layers by their number: the same for all full ones, and nothing else for the others.
fn of_each(by_layer: &Config, model: &Architecture) -> Result<LayerHeads, ArchitectureError> {
    let plain = LayerHeads {
        kv_heads: model.kv_heads,
        head_dim: model.head_dim,
    };
    if let Some(key) = by_layer
        .keys()
        .find(|key| key.parse().ok().is_none_or(|index: usize| index >= model.layers.len()))
    {
        let rule = format!("the number of one of {} layers, from 0", model.layers.len());
        return Err(by_layer.impossible(key, key, rule));
    }
    let mut full = None;
    for (index, layer) in model.layers.iter().enumerate() {
        let number = index.to_string();
        let heads = match by_layer.object(&number)? {
            Some(settings) => of_layer(&settings, plain)?,
            None => plain,
        };
        let expected = match layer.window {
            Some(_) => plain,
            None => *full.get_or_insert(heads),
        };
        if heads != expected {
            let LayerHeads { kv_heads, head_dim } = expected;
            let rule = format!("{kv_heads} key and value heads of {head_dim}, as in the layers of its kind");
            let got = format!("{} of {}", heads.kv_heads, heads.head_dim);
            return Err(by_layer.impossible(&number, got, rule));
        }
    }
    Ok(full.unwrap_or(plain))
}

fn of_layer(settings: &Config, plain: LayerHeads) -> Result<LayerHeads, ArchitectureError> {
    const KNOWN: [&str; 2] = ["head_dim", "num_key_value_heads"];
    if let Some(other) = settings.keys().find(|key| !KNOWN.contains(key)) {
        let value = settings.value(other).map(ToString::to_string).unwrap_or_default();
        return Err(settings.unsupported(other, &value, "head_dim, num_key_value_heads"));
    }
    let [head_dim, kv_heads] = KNOWN.map(|key| settings.optional_dimension(key));
    Ok(LayerHeads {
        kv_heads: kv_heads?.unwrap_or(plain.kv_heads),
        head_dim: head_dim?.unwrap_or(plain.head_dim),
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::architecture::RopeScaling;

    fn parse(more: &str) -> Result<Architecture, ArchitectureError> {
        let text = format!(
            r#"{{"model_type": "gemma4_text", "vocab_size": 512, "hidden_size": 64, "intermediate_size": 96,
                "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
                "max_position_embeddings": 256, "hidden_size_per_layer_input": 0,
                "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]{more}}}"#
        );
        Architecture::from_json(Path::new("config.json"), &text)
    }

    fn heads(more: &str) -> Vec<(usize, usize)> {
        let model = parse(more).unwrap();
        let heads = (0..4).map(|index| model.heads_of(index));
        heads.map(|heads| (heads.kv_heads, heads.head_dim)).collect()
    }

    #[test]
    fn full_layers_have_heads_of_their_own() {
        let both = [(2, 16), (1, 32), (2, 16), (1, 32)];
        let keys = r#", "attention_k_eq_v": true, "global_head_dim": 32, "num_global_key_value_heads": 1"#;
        assert_eq!(heads(keys), both);
        let each = r#", "attention_k_eq_v": true, "per_layer_config":
            {"1": {"head_dim": 32, "num_key_value_heads": 1}, "3": {"head_dim": 32, "num_key_value_heads": 1}}"#;
        assert_eq!(parse(each).unwrap(), parse(keys).unwrap());
        // The number of key heads counts with one projection only.
        let two = r#", "global_head_dim": 32, "num_global_key_value_heads": 1"#;
        assert_eq!(heads(two), [(2, 16), (2, 32), (2, 16), (2, 32)]);
        assert_eq!(heads("")[1], (2, FULL_HEAD_DIM));
    }

    #[test]
    fn full_layers_turn_the_first_pairs_of_their_wider_heads() {
        let model = parse(r#", "global_head_dim": 32"#).unwrap();
        let [full, sliding] = [1, 0].map(|layer| &model.ropes[model.layers[layer as usize].rope.unwrap()]);
        let scaling = RopeScaling::Proportional {
            turning: 4,
            factor: 1.0,
        };
        assert_eq!(
            (full.base, full.rotary_dims, &full.scaling),
            (1_000_000.0, 32, &scaling)
        );
        assert_eq!((sliding.base, sliding.rotary_dims), (10_000.0, 16));
        let frequencies = full.frequencies(8);
        assert!(frequencies[3] > 0.0 && frequencies[4..].iter().all(|f| *f == 0.0));
        assert!((f64::from(frequencies[1]) / 1e6f64.powf(-2.0 / 32.0) - 1.0).abs() < 1e-6);
    }

    #[test]
    fn counts_agree_with_the_tensors() {
        let model = parse(r#", "global_head_dim": 32, "attention_k_eq_v": true"#).unwrap();
        let tensors = model.tensors();
        let elements: usize = tensors.iter().map(|tensor| tensor.elements()).sum();
        assert_eq!(model.parameter_count().total(), elements as u64);
        let has = |name: &str| {
            tensors
                .iter()
                .any(|tensor| tensor.name == format!("model.layers.{name}"))
        };
        assert!(has("0.self_attn.v_proj.weight") && !has("1.self_attn.v_proj.weight") && has("1.layer_scalar"));
    }

    #[test]
    fn the_last_layer_is_full() {
        let model = parse(r#", "num_hidden_layers": 3, "layer_types": null"#).unwrap();
        let windows: Vec<_> = model.layers.iter().map(|layer| layer.window).collect();
        assert_eq!(windows, [Some(512), Some(512), None]);
    }

    #[test]
    fn what_does_not_go_together_is_named() {
        let message = |more: &str| parse(more).unwrap_err().to_string();
        let other = message(r#", "per_layer_config": {"1": {"intermediate_size": 8}}"#);
        assert!(other.contains("`per_layer_config.1.intermediate_size`"), "{other}");
        let unlike = message(r#", "per_layer_config": {"1": {"head_dim": 32}}"#);
        assert!(
            unlike.contains("`per_layer_config.3`") && unlike.contains("heads of 32"),
            "{unlike}"
        );
        let far = message(r#", "per_layer_config": {"9": {"head_dim": 32}}"#);
        assert!(far.contains("`per_layer_config.9`"), "{far}");
        let heads = message(r#", "attention_k_eq_v": true, "num_global_key_value_heads": 3"#);
        assert!(heads.contains("num_global_key_value_heads"), "{heads}");
        let all = message(r#", "use_bidirectional_attention": "all""#);
        assert!(all.contains("`use_bidirectional_attention`"), "{all}");
        assert!(parse(r#", "use_bidirectional_attention": "vision""#).is_ok());
        let part = message(r#", "rope_parameters": {"full_attention": {"rope_type": "proportional"}}"#);
        assert!(part.contains("rope_parameters.sliding_attention"), "{part}");
    }
}
