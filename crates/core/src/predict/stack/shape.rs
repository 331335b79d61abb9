//! Dimensions of a model that some stack trains: those of `config.json`, for any decoder, known here or not.

use std::path::Path;

use serde_json::Value;

use super::StackError;
use super::role::Role;
use super::stored_weights::StoredWeights;
use crate::architecture::{Architecture, Bias, Family, NormPlacement, QueryKeyNorm, SoftCap, Switches};

/// Dimensions of a decoder-only model.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelShape {
    pub model_type: String,
    pub hidden: u64,
    pub layers: u64,
    pub heads: u64,
    pub kv_heads: u64,
    pub head_dim: u64,
    pub intermediate: u64,
    pub vocabulary: u64,
    pub tied_embeddings: bool,
    /// The MLP has a gate beside up.
    pub is_gated: bool,
    pub qkv_bias: bool,
    /// Norms of a layer over the residual stream.
    pub norms: u64,
    /// Norms of queries and keys.
    pub head_norms: bool,
    /// Scores of attention go through a tanh.
    pub caps_scores: bool,
    /// Logits go through a tanh.
    pub caps_logits: bool,
    pub experts: Option<ExpertShape>,
    pub max_positions: Option<u64>,
    /// The layout is one that was checked, or all layers are alike in one of the engine's families; sizes of others are those of a plain
    /// decoder.
    pub is_known: bool,
    /// Parameters as the engine counts them, of a family of its own whose layers are not all alike.
    pub counted: Option<u64>,
    /// Elements of tables that have a row for each token beside the embedding.
    pub tables: u64,
    /// Codes that the checkpoint has its weights in.
    pub stored: Option<StoredWeights>,
}

/// Experts that layers of a mixture have in place of one MLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertShape {
    pub count: u64,
    pub active: u64,
    /// Width of one expert.
    pub width: u64,
    /// Width of what every token goes through beside them.
    pub shared: u64,
}

/// Families whose layers were compared with what is counted of them here.
const CHECKED: [Family; 14] = [
    Family::Llama,
    Family::Mistral,
    Family::Mixtral,
    Family::Phi3,
    Family::Gemma,
    Family::Gemma2,
    Family::Gemma3,
    Family::Granite,
    Family::Olmo2,
    Family::Olmo3,
    Family::Qwen2,
    Family::Qwen2Moe,
    Family::Qwen3,
    Family::Qwen3Moe,
];

/// Types that were compared too and are no family of [`Family`].
const CHECKED_BESIDE: [(&str, Layout); 4] = [
    ("power", Layout::PLAIN),
    (
        "qwen",
        Layout {
            qkv_bias: Bias::Always,
            ..Layout::PLAIN
        },
    ),
    (
        "gpt_bigcode",
        Layout {
            tied_embeddings: true,
            ..Layout::UNGATED
        },
    ),
    ("starcoder2", Layout::UNGATED),
];

/// How the layers of a type differ from those of the plain decoder.
#[derive(Clone, Copy, Debug)]
struct Layout {
    is_gated: bool,
    qkv_bias: Bias,
    /// Norms of a layer over the residual stream.
    norms: u64,
    head_norms: bool,
    /// Caps of attention's scores and of logits.
    caps: [SoftCap; 2],
    /// Whether embedding and LM head are tied where the file does not say.
    tied_embeddings: bool,
}

impl Layout {
    const PLAIN: Self = Self {
        is_gated: true,
        qkv_bias: Bias::Key("attention_bias"),
        norms: 2,
        head_norms: false,
        caps: [SoftCap::WhereSet; 2],
        tied_embeddings: false,
    };
    const UNGATED: Self = Self {
        is_gated: false,
        ..Self::PLAIN
    };

    /// The layout of a type that was checked.
    fn checked(model_type: &str) -> Option<Self> {
        let of_family = CHECKED.iter().find(|family| family.is_called(model_type));
        let beside = CHECKED_BESIDE.iter().find(|(name, _)| *name == model_type);
        let of_family = of_family.map(|family| Self::of(&family.row().switches));
        of_family.or(beside.map(|(_, layout)| *layout))
    }

    fn of(switches: &Switches) -> Self {
        Self {
            is_gated: true,
            qkv_bias: switches.qkv_bias,
            norms: match switches.norm_placement {
                NormPlacement::BeforeAndBehind => 4,
                NormPlacement::Before | NormPlacement::Behind => 2,
                NormPlacement::Shared => 1,
            },
            head_norms: switches.query_key_norm != QueryKeyNorm::None,
            caps: [switches.attention_soft_cap, switches.logit_soft_cap],
            tied_embeddings: switches.tied_embeddings,
        }
    }

    /// Layout of a type that was not checked, by its name and its activation.
    fn assumed(model_type: &str, activation: Option<&str>) -> Self {
        let is_gpt = model_type.starts_with("gpt");
        let is_plain = matches!(activation, Some("gelu" | "gelu_new" | "relu" | "gelu_pytorch_tanh"));
        Self {
            is_gated: !(is_gpt && is_plain),
            tied_embeddings: is_gpt || model_type.starts_with("gemma"),
            ..Self::PLAIN
        }
    }
}

impl ModelShape {
    /// Reads the object of a `config.json`, called `file` in errors. Of a multimodal model it is the language model's.
    ///
    /// # Errors
    /// A dimension that is missing, no whole number or out of range.
    pub fn from_json(file: &str, config: &Value) -> Result<Self, StackError> {
        let outer = config
            .as_object()
            .ok_or_else(|| StackError::NotAnObject { file: file.into() })?;
        let text = outer
            .get("text_config")
            .filter(|text| text.is_object())
            .unwrap_or(config);
        let stored = StoredWeights::of(config).or_else(|| StoredWeights::of(text));
        let model_type = text.get("model_type").or_else(|| outer.get("model_type"));
        let model_type = model_type.and_then(Value::as_str).unwrap_or_default().to_owned();
        let checked = Layout::checked(&model_type);
        // What the engine reads has the defaults of the family's configuration class, and each layer as it is.
        if let Ok(architecture) = Architecture::from_object(Path::new(file), outer) {
            let shape = Self::of_architecture(&architecture);
            let shape = Self {
                is_known: shape.is_known || Layout::checked(&shape.model_type).is_some(),
                stored,
                ..shape
            };
            return shape.in_range(file);
        }
        let reader = Reader { file, config: text };
        let activation = text.get("hidden_act").and_then(Value::as_str);
        let layout = checked.unwrap_or_else(|| Layout::assumed(&model_type, activation));
        let hidden = reader.required(&["hidden_size", "n_embd", "d_model"], 1 << 20)?;
        let heads = reader.required(&["num_attention_heads", "n_head"], 1 << 14)?;
        let kv_heads = reader.kv_heads(heads)?;
        let head_dim = match reader.optional(&["head_dim"], 1 << 14)? {
            Some(head_dim) => head_dim,
            None => (hidden / heads).max(1),
        };
        let intermediate = match reader.optional(&["intermediate_size", "n_inner", "ffn_dim"], 1 << 22)? {
            Some(width) => width,
            None => 4 * hidden,
        };
        let tied = text
            .get("tie_word_embeddings")
            .or_else(|| outer.get("tie_word_embeddings"));
        let shape = Self {
            hidden,
            layers: reader.required(&["num_hidden_layers", "n_layer"], 1 << 12)?,
            heads,
            kv_heads,
            head_dim,
            intermediate,
            vocabulary: reader.required(&["vocab_size"], 1 << 24)?,
            tied_embeddings: tied.and_then(Value::as_bool).unwrap_or(layout.tied_embeddings),
            is_gated: layout.is_gated,
            qkv_bias: reader.has_bias(layout.qkv_bias),
            norms: layout.norms,
            head_norms: layout.head_norms,
            caps_scores: reader.has_cap("attn_logit_softcapping", layout.caps[0]),
            caps_logits: reader.has_cap("final_logit_softcapping", layout.caps[1]),
            experts: reader.experts()?,
            max_positions: reader.optional(&["max_position_embeddings", "n_positions"], 1 << 40)?,
            is_known: checked.is_some(),
            counted: None,
            tables: 0,
            stored,
            model_type,
        };
        shape.in_range(file)
    }

    /// The linear layers of one decoder layer, experts apart.
    pub(super) fn linears(&self) -> Vec<LinearShape> {
        let query = self.heads * self.head_dim;
        let kv = self.kv_heads * self.head_dim;
        let mut all = vec![
            LinearShape::new(Role::Query, self.hidden, query),
            LinearShape::new(Role::Key, self.hidden, kv),
            LinearShape::new(Role::Value, self.hidden, kv),
            LinearShape::new(Role::Output, query, self.hidden),
        ];
        if self.dense_width() > 0 {
            if self.is_gated {
                all.push(LinearShape::new(Role::Gate, self.hidden, self.dense_width()));
            }
            all.push(LinearShape::new(Role::Up, self.hidden, self.dense_width()));
            all.push(LinearShape::new(Role::Down, self.dense_width(), self.hidden));
        }
        all
    }

    /// Width of the MLP that every token goes through; 0 where experts are all there is.
    pub(super) fn dense_width(&self) -> u64 {
        self.experts.map_or(self.intermediate, |experts| experts.shared)
    }

    /// Elements of the experts of one layer, the router included.
    pub(super) fn expert_elements(&self) -> u64 {
        self.experts.map_or(0, |experts| {
            let parts = if self.is_gated { 3 } else { 2 };
            experts.count * (experts.width * self.hidden * parts + self.hidden)
        })
    }

    /// Elements of the norms and biases of one layer.
    pub(super) fn small_elements(&self) -> u64 {
        let bias = (self.heads + 2 * self.kv_heads) * self.head_dim;
        let heads = if self.head_norms { 2 * self.head_dim } else { 0 };
        self.norms * self.hidden + heads + if self.qkv_bias { bias } else { 0 }
    }

    /// Elements of one decoder layer.
    pub(super) fn layer_elements(&self) -> u64 {
        let linear: u64 = self.linears().iter().map(LinearShape::elements).sum();
        linear + self.expert_elements() + self.small_elements()
    }

    /// Elements of the embedding, and of the head where it has its own.
    pub(super) fn embedding_elements(&self) -> u64 {
        self.vocabulary * self.hidden * if self.tied_embeddings { 1 } else { 2 }
    }

    /// All elements.
    pub fn parameters(&self) -> u64 {
        let plain = self.layers * self.layer_elements() + self.embedding_elements() + self.tables + self.hidden;
        self.counted.unwrap_or(plain)
    }

    /// Elements of the mean layer for so many of a plain one, where layers are not all alike.
    pub(super) fn held(&self, elements: u64) -> u64 {
        let Some(counted) = self.counted else { return elements };
        let of_layers = counted.saturating_sub(self.embedding_elements() + self.tables + self.hidden);
        let plain = (self.layers * self.layer_elements()).max(1);
        (elements as f64 * of_layers as f64 / plain as f64) as u64
    }
}

/// A linear layer with the widths of what goes in and of what comes out.
#[derive(Clone, Copy, Debug)]
pub(super) struct LinearShape {
    pub role: Role,
    pub inner: u64,
    pub outer: u64,
}

impl LinearShape {
    pub(super) fn new(role: Role, inner: u64, outer: u64) -> Self {
        Self { role, inner, outer }
    }

    /// Elements of its weight.
    pub(super) fn elements(&self) -> u64 {
        self.inner * self.outer
    }
}

struct Reader<'a> {
    file: &'a str,
    config: &'a Value,
}

impl Reader<'_> {
    fn required(&self, keys: &[&str], most: u64) -> Result<u64, StackError> {
        self.optional(keys, most)?.ok_or_else(|| StackError::Missing {
            file: self.file.into(),
            key: keys.first().copied().unwrap_or_default().into(),
        })
    }

    fn optional(&self, keys: &[&str], most: u64) -> Result<Option<u64>, StackError> {
        let found = keys.iter().find_map(|key| Some((key, self.config.get(key)?)));
        let Some((key, value)) = found.filter(|(_, value)| !value.is_null()) else {
            return Ok(None);
        };
        match value.as_u64() {
            Some(number) if (1..=most).contains(&number) => Ok(Some(number)),
            _ => Err(StackError::OutOfRange {
                file: self.file.into(),
                key: (*key).into(),
                value: value.to_string(),
                most,
            }),
        }
    }

    fn has_bias(&self, bias: Bias) -> bool {
        let flag = |key: &str| self.config.get(key).and_then(Value::as_bool);
        match bias {
            Bias::Never => false,
            Bias::Always => true,
            Bias::Key(key) => flag(key).unwrap_or(false),
            Bias::Unless(key) => flag(key).unwrap_or(true),
        }
    }

    fn has_cap(&self, key: &str, cap: SoftCap) -> bool {
        match (cap, self.config.get(key)) {
            (SoftCap::Never, _) | (SoftCap::WhereSet, None) => false,
            (SoftCap::Default(_), None) => true,
            (SoftCap::WhereSet | SoftCap::Default(_), Some(value)) => value.as_f64().is_some_and(|cap| cap > 0.0),
        }
    }

    fn kv_heads(&self, heads: u64) -> Result<u64, StackError> {
        if let Some(kv_heads) = self.optional(&["num_key_value_heads", "num_kv_heads"], 1 << 14)? {
            return Ok(kv_heads);
        }
        let is_one = self.config.get("multi_query").and_then(Value::as_bool).unwrap_or(false);
        Ok(if is_one { 1 } else { heads })
    }

    fn experts(&self) -> Result<Option<ExpertShape>, StackError> {
        let counts = [
            "num_local_experts",
            "num_experts",
            "n_routed_experts",
            "moe_num_experts",
        ];
        let Some(count) = self.optional(&counts, 1 << 14)? else {
            return Ok(None);
        };
        let active = self.required(&["num_experts_per_tok", "moe_topk", "moe_k"], 1 << 14)?;
        let width = self.required(&["moe_intermediate_size", "intermediate_size"], 1 << 22)?;
        let shared = self.optional(&["shared_expert_intermediate_size"], 1 << 22)?;
        let shared_count = self.optional(&["n_shared_experts"], 1 << 10)?.unwrap_or(0);
        Ok(Some(ExpertShape {
            count,
            active: active.min(count),
            width,
            shared: shared.unwrap_or(shared_count * width),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_counted_as_the_models_own_files_count_them() {
        let config: Value = serde_json::from_str(
            r#"{"model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 32,
                "num_key_value_heads": 32, "intermediate_size": 8192, "vocab_size": 49152, "tie_word_embeddings": true}"#,
        )
        .unwrap();
        let shape = ModelShape::from_json("config.json", &config).unwrap();
        // SmolLM2-1.7B, as `num_parameters` says.
        assert_eq!(shape.parameters(), 1_711_376_384);
    }

    #[test]
    fn families_of_the_engine_are_known_and_counted_as_it_counts_them() {
        let of = |model_type: &str, layers: usize| {
            let text = format!(
                r#"{{"model_type": "{model_type}", "vocab_size": 512, "hidden_size": 4096, "intermediate_size": 12288,
                    "num_hidden_layers": {layers}, "num_attention_heads": 16, "num_key_value_heads": 4,
                    "max_position_embeddings": 256}}"#
            );
            let config: Value = serde_json::from_str(&text).unwrap();
            let architecture = Architecture::from_json(Path::new("config.json"), &text).unwrap();
            let shape = ModelShape::from_json("config.json", &config).unwrap();
            assert_eq!(shape.parameters(), architecture.parameter_count().total());
            assert_eq!(shape.max_positions, Some(256));
            shape
        };
        for model_type in ["llama", "qwen3", "smollm3", "cohere2"] {
            let shape = of(model_type, 3);
            assert!(shape.is_known && shape.counted.is_none(), "{shape:?}");
        }
        // Three of four layers have gated delta rules in the place of attention.
        let mixed = of("qwen3_5_text", 4);
        assert!(!mixed.is_known && mixed.held(1000) != 1000, "{mixed:?}");
    }

    #[test]
    fn a_multimodal_file_has_the_defaults_of_its_language_model() {
        let config = serde_json::json!({"model_type": "gemma3", "text_config": {"hidden_size": 2560, "num_hidden_layers": 34,
            "intermediate_size": 10240}, "quantization_config": {"load_in_4bit": true}});
        let shape = ModelShape::from_json("config.json", &config).unwrap();
        assert_eq!((shape.heads, shape.vocabulary, shape.is_known), (8, 262_208, true));
        assert_eq!(shape.stored.unwrap().method, "bitsandbytes");
    }

    #[test]
    fn caps_are_those_of_the_file_or_of_the_family() {
        let caps = |kind: &str, more: &str| {
            let text = format!(
                r#"{{"model_type": "{kind}", "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
                    "intermediate_size": 64, "vocab_size": 512{more}}}"#
            );
            let config = serde_json::from_str(&text).unwrap();
            let shape = ModelShape::from_json("config.json", &config).unwrap();
            (shape.caps_scores, shape.caps_logits)
        };
        assert_eq!(caps("gemma2", ""), (true, true));
        assert_eq!(caps("gemma2", r#", "attn_logit_softcapping": null"#), (false, true));
        assert_eq!(caps("llama", r#", "final_logit_softcapping": 30.0"#), (false, false));
        assert_eq!(caps("new", r#", "final_logit_softcapping": 30.0"#), (false, true));
    }

    #[test]
    fn what_is_missing_or_absurd_is_named_with_its_file_and_key() {
        let error = |text: &str| {
            let config: Value = serde_json::from_str(text).unwrap();
            ModelShape::from_json("m/config.json", &config).unwrap_err().to_string()
        };
        assert!(error("[]").contains("m/config.json"));
        assert!(error("{}").contains("`hidden_size`"));
        assert!(error(r#"{"hidden_size": -1}"#).contains("-1"));
        assert!(error(r#"{"hidden_size": 64, "num_attention_heads": 1e99}"#).contains("num_attention_heads"));
    }
}
