//! The names of tensors in GGUF, and what their values are there.

use super::GgufError;
use peft_tune_core::architecture::{Architecture, EMBEDDING, FINAL_NORM, Family, LM_HEAD, NormPlacement};

/// Names that llama.cpp has for families, and whether it turns neighbouring dimensions of a head together: then the
/// rows of queries and keys stand in pairs.
const FAMILIES: &[(Family, &str, bool)] = &[
    (Family::Llama, "llama", true),
    (Family::Mistral, "llama", true),
    (Family::Qwen2, "qwen2", false),
    (Family::Qwen3, "qwen3", false),
    (Family::Gemma2, "gemma2", false),
    (Family::Gemma3, "gemma3", false),
    (Family::Phi3, "phi3", false),
];

/// Modules of a layer, and their names in GGUF.
const MODULES: &[(&str, &str)] = &[
    ("input_layernorm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.qkv_proj", "attn_qkv"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.gate_up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
    ("pre_feedforward_layernorm", "ffn_norm"),
    ("post_feedforward_layernorm", "post_ffw_norm"),
];

/// Names that a model's tensors have in GGUF.
#[derive(Clone, Debug)]
pub(crate) struct Layout<'a> {
    architecture: &'a Architecture,
    /// `general.architecture`.
    pub name: &'static str,
    is_paired: bool,
}

/// Difference of a tensor's values in GGUF.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum StoredForm {
    Same,
    /// Rows of so many heads, in pairs.
    Paired {
        heads: usize,
    },
    /// Values that are more by this.
    Above(f32),
}

impl<'a> Layout<'a> {
    /// # Errors
    /// A family that has no form there, or none that is known here.
    pub(crate) fn of(architecture: &'a Architecture) -> Result<Self, GgufError> {
        let known = FAMILIES.iter().find(|(family, ..)| *family == architecture.family);
        let &(_, name, is_paired) = known.ok_or(GgufError::Family {
            family: architecture.family.name(),
        })?;
        Ok(Self {
            architecture,
            name,
            is_paired,
        })
    }

    /// The name of `tensor`.
    pub(crate) fn stored_name(&self, tensor: &str) -> Option<String> {
        match tensor {
            EMBEDDING => return Some("token_embd.weight".to_owned()),
            FINAL_NORM => return Some("output_norm.weight".to_owned()),
            LM_HEAD => return Some("output.weight".to_owned()),
            _ => {}
        }
        let (layer, rest) = tensor.strip_prefix("model.layers.")?.split_once('.')?;
        let (module, ending) = rest.rsplit_once('.')?;
        let name = match (module, self.architecture.norm_placement) {
            ("post_attention_layernorm", NormPlacement::Before) => "ffn_norm",
            ("post_attention_layernorm", _) => "post_attention_norm",
            _ => MODULES.iter().find(|(known, _)| *known == module)?.1,
        };
        Some(format!("blk.{layer}.{name}.{ending}"))
    }

    /// How the values of `tensor` with this shape are stored.
    pub(crate) fn form(&self, tensor: &str, shape: &[usize]) -> StoredForm {
        let of = |module: &str| {
            tensor
                .rsplit_once('.')
                .is_some_and(|(owner, _)| owner.ends_with(module))
        };
        if self.is_paired && of("self_attn.q_proj") {
            return StoredForm::Paired {
                heads: self.architecture.heads,
            };
        }
        if self.is_paired && of("self_attn.k_proj") {
            return StoredForm::Paired {
                heads: self.architecture.kv_heads,
            };
        }
        match self.architecture.norm_offset {
            offset if offset != 0.0 && shape.len() == 1 && tensor.ends_with("norm.weight") => StoredForm::Above(offset),
            _ => StoredForm::Same,
        }
    }
}

impl StoredForm {
    /// Values as GGUF has them, from those of a checkpoint: rows of `width` elements.
    pub(crate) fn stored(self, values: Vec<f32>, width: usize) -> Vec<f32> {
        match self {
            Self::Same => values,
            Self::Above(offset) => values.into_iter().map(|value| value + offset).collect(),
            Self::Paired { heads } => moved(&values, width, heads, |pair, half, of| {
                (2 * pair + half, half * of + pair)
            }),
        }
    }

    /// The way back.
    pub(crate) fn restored(self, values: Vec<f32>, width: usize) -> Vec<f32> {
        match self {
            Self::Same => values,
            Self::Above(offset) => values.into_iter().map(|value| value - offset).collect(),
            Self::Paired { heads } => moved(&values, width, heads, |pair, half, of| {
                (half * of + pair, 2 * pair + half)
            }),
        }
    }
}

/// Rows of each head moved: `places` gives the new and the old row of a pair's half, of so many pairs.
fn moved(
    values: &[f32],
    width: usize,
    heads: usize,
    places: impl Fn(usize, usize, usize) -> (usize, usize),
) -> Vec<f32> {
    let rows = values.len() / width.max(1) / heads.max(1);
    let mut result = values.to_vec();
    for head in 0..heads {
        for (pair, half) in (0..rows / 2).flat_map(|pair| [(pair, 0), (pair, 1)]) {
            let (new, old) = places(pair, half, rows / 2);
            let (new, old) = ((head * rows + new) * width, (head * rows + old) * width);
            result[new..new + width].copy_from_slice(&values[old..old + width]);
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_the_two_halves_of_a_head_side_by_side() {
        let form = StoredForm::Paired { heads: 2 };
        let rows: Vec<f32> = (0..16).map(|value| value as f32).collect();
        let stored = form.stored(rows.clone(), 2);
        assert_eq!(stored[..8], [0.0, 1.0, 4.0, 5.0, 2.0, 3.0, 6.0, 7.0]);
        assert_eq!(form.restored(stored, 2), rows);
        // As llama.cpp does it: reshape (heads, 2, rows / heads / 2, width) and change the middle two.
        let bias = form.stored((0..8).map(|value| value as f32).collect(), 1);
        assert_eq!(bias, [0.0, 2.0, 1.0, 3.0, 4.0, 6.0, 5.0, 7.0]);
    }
}
