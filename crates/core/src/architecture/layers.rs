//! Mixers of the tokens of decoder layers, which layers have a window, and which rotate queries and keys.

use serde_json::Value;

use super::config::Config;
use super::family::{RopeLayers, SlidingRope, Switches, Windows};
use super::{ArchitectureError, KeyValueSource, LayerAttention, Mixer, Mixers, mixer, rope_config};

/// Chunk of a layer where the file names none.
const DEFAULT_CHUNK: usize = 8192;

/// Mixers, windows and ropes of `count` layers.
pub(super) fn read(
    config: &Config,
    switches: &Switches,
    count: usize,
) -> Result<Vec<LayerAttention>, ArchitectureError> {
    let window = config.optional_dimension("sliding_window");
    let mixers = mixer::read(config, switches.mixers, count)?;
    let windows = match switches.windows {
        // `layer_types` has been read.
        Windows::Never if switches.mixers != Mixers::Attention => vec![None; count],
        Windows::Never if switches.chunks => vec![None; count],
        Windows::Never => {
            let windows = windows_of(config, switches.window, count, |_| false)?;
            if windows.iter().any(Option::is_some) {
                return Err(config.unsupported("layer_types", "sliding_attention", "full_attention"));
            }
            windows
        }
        Windows::All { default } if !config.mentions("sliding_window") => vec![default; count],
        // `null` says that there is none.
        Windows::All { .. } => vec![window?; count],
        Windows::FromLayer if !config.flag("use_sliding_window", false)? => vec![None; count],
        Windows::FromLayer => {
            let first = config.optional_count("max_window_layers")?.unwrap_or(28);
            windows_of(config, window?.unwrap_or(switches.window), count, |index| {
                index >= first
            })?
        }
        Windows::ExceptEvery { nth, key } => {
            let set = key.map(|key| config.optional_dimension(key)).transpose()?.flatten();
            let nth = set.unwrap_or(nth);
            windows_of(config, window?.unwrap_or(switches.window), count, |index| {
                (index + 1) % nth != 0
            })?
        }
        Windows::Pattern => match window? {
            None => vec![None; count],
            Some(window) => {
                let slides = pattern(config, count)?;
                windows_of(config, window, count, |index| slides[index])?
            }
        },
    };
    let turns = turning(config, switches.rope_layers, &windows)?;
    if switches.chunks {
        return chunked(config, &turns);
    }
    let layer = |((window, turns), mixer): ((Option<usize>, bool), Mixer)| LayerAttention {
        mixer,
        window,
        chunk: None,
        normed: true,
        rope: (turns && mixer == Mixer::Attention).then_some(match switches.sliding_rope {
            SlidingRope::Shared | SlidingRope::Growth => 0,
            SlidingRope::OwnBase | SlidingRope::Unscaled | SlidingRope::Both => usize::from(window.is_some()),
        }),
        heads: None,
        keys: KeyValueSource::default(),
    };
    Ok(windows.into_iter().zip(turns).zip(mixers).map(layer).collect())
}

/// Layers of Llama 4: those that rotate see chunks and have norms of queries and keys; in the others queries grow with their
/// position, which is the second rope, unless `attn_temperature_tuning` is off.
fn chunked(config: &Config, turns: &[bool]) -> Result<Vec<LayerAttention>, ArchitectureError> {
    let size = match config.mentions("attention_chunk_size") {
        true => config.optional_dimension("attention_chunk_size")?,
        false => Some(DEFAULT_CHUNK),
    };
    let grows = rope_config::grows(config)?;
    let kinds = config.optional_texts("layer_types")?;
    if let Some(kinds) = kinds.as_ref().filter(|kinds| kinds.len() != turns.len()) {
        let rule = format!("{} entries, one for each of num_hidden_layers", turns.len());
        return Err(config.impossible("layer_types", format!("{} entries", kinds.len()), rule));
    }
    let layer = |(index, turns): (usize, &bool)| {
        let is_cut = match kinds.as_ref().map(|kinds| kinds[index]) {
            None => *turns,
            Some("chunked_attention") => true,
            Some("full_attention") => false,
            Some(other) => {
                return Err(config.unsupported("layer_types", other, "full_attention, chunked_attention"));
            }
        };
        Ok(LayerAttention {
            mixer: Mixer::Attention,
            window: None,
            chunk: size.filter(|_| is_cut),
            rope: match (turns, grows) {
                (true, _) => Some(0),
                (false, true) => Some(1),
                (false, false) => None,
            },
            normed: *turns,
            heads: None,
            keys: KeyValueSource::default(),
        })
    };
    turns.iter().enumerate().map(layer).collect()
}

/// Layers that rotate queries and keys.
fn turning(config: &Config, layers: RopeLayers, windows: &[Option<usize>]) -> Result<Vec<bool>, ArchitectureError> {
    let any = windows.iter().any(Option::is_some);
    Ok(match layers {
        RopeLayers::All => vec![true; windows.len()],
        RopeLayers::SlidingIfAny if !any => vec![true; windows.len()],
        RopeLayers::Sliding | RopeLayers::SlidingIfAny => windows.iter().map(Option::is_some).collect(),
        RopeLayers::Named => {
            let kind = config.optional_text("position_embedding_type")?.unwrap_or("nope");
            if !["rope", "nope"].contains(&kind) {
                return Err(config.unsupported("position_embedding_type", kind, "rope, nope"));
            }
            vec![kind == "rope"; windows.len()]
        }
        RopeLayers::Listed => {
            let nth = config.optional_dimension("no_rope_layer_interval")?.unwrap_or(4);
            let every_but = |nth| (0..windows.len()).map(|index| (index + 1) % nth != 0).collect();
            match config.optional_flags("no_rope_layers")? {
                // An empty list is none.
                Some(listed) if listed.is_empty() => every_but(nth),
                Some(listed) if listed.len() != windows.len() => {
                    let rule = format!("{} entries, one for each of num_hidden_layers", windows.len());
                    return Err(config.impossible("no_rope_layers", format!("{} entries", listed.len()), rule));
                }
                Some(listed) => listed,
                None => every_but(nth),
            }
        }
    })
}

/// Whether each of `count` layers slides by `sliding_window_pattern`: a number, or letters L and G.
fn pattern(config: &Config, count: usize) -> Result<Vec<bool>, ArchitectureError> {
    const KEY: &str = "sliding_window_pattern";
    let Some(Value::String(letters)) = config.value(KEY) else {
        let nth = config.optional_dimension(KEY)?.unwrap_or(4);
        return Ok((0..count).map(|index| (index + 1) % nth != 0).collect());
    };
    if letters.is_empty() || letters.chars().any(|letter| !"LG".contains(letter)) {
        return Err(config.impossible(KEY, letters, "a number, or letters L and G".to_owned()));
    }
    let again = letters.chars().cycle();
    Ok(again.map(|letter| letter == 'L').take(count).collect())
}

/// `window` for the layers that `layer_types` names as sliding or, where it is absent, that `slides` names.
fn windows_of(
    config: &Config,
    window: usize,
    count: usize,
    slides: impl Fn(usize) -> bool,
) -> Result<Vec<Option<usize>>, ArchitectureError> {
    let Some(kinds) = config.optional_texts("layer_types")? else {
        return Ok((0..count).map(|index| slides(index).then_some(window)).collect());
    };
    if kinds.len() != count {
        let rule = format!("{count} entries, one for each of num_hidden_layers");
        return Err(config.impossible("layer_types", format!("{} entries", kinds.len()), rule));
    }
    let of_kind = |kind: &str| match kind {
        "sliding_attention" => Ok(Some(window)),
        // `attention` in the first files of Granite 4.
        "full_attention" | "attention" => Ok(None),
        other => Err(config.unsupported("layer_types", other, "full_attention, sliding_attention")),
    };
    kinds.into_iter().map(of_kind).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::architecture::{Architecture, ArchitectureError};

    fn parse(model_type: &str, more: &str) -> Result<Architecture, ArchitectureError> {
        let text = format!(
            r#"{{"model_type": "{model_type}", "vocab_size": 512, "hidden_size": 64, "intermediate_size": 176,
                "num_hidden_layers": 4, "num_attention_heads": 4, "max_position_embeddings": 256{more}}}"#
        );
        Architecture::from_json(Path::new("config.json"), &text)
    }

    /// Windows and whether queries and keys turn, of each layer.
    fn layers(model_type: &str, more: &str) -> Vec<(Option<usize>, bool)> {
        let architecture = parse(model_type, more).unwrap();
        let layers = architecture.layers.iter();
        layers.map(|layer| (layer.window, layer.rope.is_some())).collect()
    }

    const SLIDING: (Option<usize>, bool) = (Some(8), true);

    #[test]
    fn exaone_turns_sliding_layers_only_unless_none_slides() {
        let expected = [SLIDING, SLIDING, SLIDING, (None, false)];
        let window = r#", "sliding_window": 8"#;
        assert_eq!(layers("exaone4", window), expected);
        let letters = r#", "sliding_window": 8, "sliding_window_pattern": "LLLG""#;
        assert_eq!(layers("exaone4", letters), expected);
        assert_eq!(layers("exaone4", r#", "sliding_window": null"#), [(None, true); 4]);
        let other = parse("exaone4", r#", "sliding_window": 8, "sliding_window_pattern": "LX""#);
        assert!(other.unwrap_err().to_string().contains("letters L and G"));
    }

    #[test]
    fn cohere_does_not_turn_full_layers() {
        let expected = [SLIDING, (None, false), SLIDING, (None, false)];
        let every_second = r#", "sliding_window": 8, "sliding_window_pattern": 2"#;
        assert_eq!(layers("cohere2", every_second), expected);
    }

    #[test]
    fn smollm_turns_the_listed_layers() {
        let turns = |more| -> Vec<bool> { layers("smollm3", more).into_iter().map(|(_, turns)| turns).collect() };
        assert_eq!(turns(""), [true, true, true, false]);
        assert_eq!(turns(r#", "no_rope_layer_interval": 2"#), [true, false, true, false]);
        assert_eq!(turns(r#", "no_rope_layers": [0, 1, 1, 1]"#), [false, true, true, true]);
        let message = |more| parse("smollm3", more).unwrap_err().to_string();
        let short = message(r#", "no_rope_layers": [0, 1]"#);
        assert!(short.contains("2 entries") && short.contains("4 entries"), "{short}");
        let windows = message(r#", "use_sliding_window": true"#);
        assert!(windows.contains("`use_sliding_window`"), "{windows}");
    }

    #[test]
    fn the_scaling_of_olmo_is_of_full_layers() {
        let scaled =
            r#", "sliding_window": 8, "rope_theta": 500000.0, "rope_scaling": {"rope_type": "yarn", "factor": 8.0}"#;
        let olmo = parse("olmo3", scaled).unwrap();
        let of_layer = |index: usize| &olmo.ropes[olmo.layers[index].rope.unwrap()];
        assert_eq!(of_layer(0).amplitude(), 1.0);
        assert!(of_layer(3).amplitude() > 1.0 && of_layer(0).base == of_layer(3).base);
    }

    #[test]
    fn granite_4_is_dense_and_attends_in_every_layer() {
        let dense = |more: &str| {
            let more = format!(r#", "shared_intermediate_size": 96{more}"#);
            parse("granitemoehybrid", &more)
        };
        let kinds = |kind: &str| format!(r#", "layer_types": ["{kind}", "attention", "attention", "attention"]"#);
        assert_eq!(dense(&kinds("attention")).unwrap().intermediate_size, 96);
        assert!(dense("").unwrap().layers.iter().all(|layer| layer.rope.is_none()));
        let named = dense(r#", "position_embedding_type": "rope""#).unwrap();
        assert!(named.layers.iter().all(|layer| layer.rope.is_some()));
        let experts = dense(r#", "num_local_experts": 32"#).unwrap_err().to_string();
        assert!(experts.contains("`num_local_experts`"), "{experts}");
        let mamba = dense(&kinds("mamba")).unwrap_err().to_string();
        assert!(mamba.contains("`mamba`"), "{mamba}");
    }

    #[test]
    fn llama_4_sees_chunks_where_it_turns_and_grows_where_it_does_not() {
        let experts = r#", "num_local_experts": 4, "num_experts_per_tok": 1, "intermediate_size_mlp": 96"#;
        let llama = |more: &str| parse("llama4_text", &format!("{experts}{more}"));
        let of = |more: &str| -> Vec<(Option<usize>, Option<usize>, bool)> {
            let layers = llama(more).unwrap().layers.into_iter();
            layers.map(|layer| (layer.chunk, layer.rope, layer.normed)).collect()
        };
        let turning = (Some(8192), Some(0), true);
        assert_eq!(of(""), [turning, turning, turning, (None, Some(1), false)]);
        assert_eq!(of(r#", "no_rope_layers": []"#), of(""));
        let given = r#", "no_rope_layers": [1, 0, 1, 0], "attention_chunk_size": 16, "attn_temperature_tuning": 0"#;
        let (cut, still) = ((Some(16), Some(0), true), (None, None, false));
        assert_eq!(of(given), [cut, still, cut, still]);
        let growth = llama(r#", "floor_scale": 8, "attn_scale": 0.5"#).unwrap().ropes[1]
            .query_growth
            .unwrap();
        assert_eq!((growth.factor(6), growth.factor(7)), (1.0, 1.0 + 0.5 * 2f64.ln()));
        let wrong = llama(r#", "layer_types": ["chunked_attention"]"#)
            .unwrap_err()
            .to_string();
        assert!(wrong.contains("1 entries") && wrong.contains("4 entries"), "{wrong}");
        let sparse = |more: &str| llama(more).unwrap().experts.unwrap().is_sparse;
        assert_eq!(
            sparse(r#", "interleave_moe_layer_step": 2"#),
            [false, true, false, true]
        );
        assert_eq!(sparse(r#", "moe_layers": [0]"#), [true, false, false, false]);
    }

    #[test]
    fn factors_that_are_one_are_left_out() {
        let granite = parse("granite", r#", "residual_multiplier": 0.25, "logits_scaling": 8"#).unwrap();
        assert_eq!((granite.residual_scale, granite.logit_scale), (Some(0.25), Some(0.125)));
        assert_eq!((granite.embedding_scale, granite.attention_scale), (None, 1.0));
        let cohere = parse("cohere2", "").unwrap();
        assert_eq!((cohere.logit_scale, cohere.centred_norms), (Some(0.0625), true));
    }

    #[test]
    fn counts_agree_with_the_tensors_of_every_layout() {
        for (model_type, more) in [
            ("glm4", ""),
            ("cohere2", ""),
            ("apertus", ""),
            ("olmo3", r#", "num_key_value_heads": 2"#),
            ("granitemoehybrid", r#", "shared_intermediate_size": 96"#),
            ("hunyuan_v1_dense", ""),
            (
                "llama4_text",
                r#", "num_local_experts": 4, "num_experts_per_tok": 1, "intermediate_size_mlp": 96, "moe_layers": [1, 3]"#,
            ),
        ] {
            let architecture = parse(model_type, more).unwrap();
            let tensors = architecture.tensors();
            let elements: usize = tensors.iter().map(|tensor| tensor.elements()).sum();
            assert_eq!(architecture.parameter_count().total(), elements as u64, "{model_type}");
        }
    }
}
