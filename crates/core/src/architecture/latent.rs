//! Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434): keys and values, and in larger models queries too, are projected
//! twice, first to few dimensions.
//!
//! | letter | field |
//! |---|---|
//! | Rq, Rkv | `query_rank`, `key_value_rank` |
//! | n, r | `plain_dims`, `rotary_dims` |
//! | dv | `value_dim` |
//!
//! q = q_b(norm(q_a(x))), or q_proj(x), with Hq heads of n + r dimensions, the last r of which turn. [c, p] = kv_a(x), of Rkv + r
//! dimensions, and kv_b(norm(c)) has for each head n dimensions of a key and dv of a value. The key of a head is its n dimensions
//! and p, turned, which all heads share.

use super::config::Config;
use super::{ArchitectureError, LinearModule, LinearRole};

/// The dimensions of latent attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latent {
    /// Rank of the queries' first projection; absent where queries are projected once.
    pub query_rank: Option<usize>,
    pub key_value_rank: usize,
    /// Dimensions of a head's query and key that do not turn.
    pub plain_dims: usize,
    /// Dimensions of a head's query and key that turn, behind those that do not; even.
    pub rotary_dims: usize,
    pub value_dim: usize,
}

/// Epsilon of the norms between the two projections, whatever that of the others.
pub const LATENT_NORM_EPSILON: f64 = 1e-6;

/// Key of Rq.
const QUERY_RANK: &str = "q_lora_rank";
const QUERY_NORM: &str = "self_attn.q_a_layernorm";
const KEY_VALUE_NORM: &str = "self_attn.kv_a_layernorm";

impl Latent {
    /// Reads the dimensions.
    ///
    /// # Errors
    /// A missing key; `q_lora_rank` may be null and not absent, since the family's default is a number.
    pub(super) fn read(config: &Config) -> Result<Self, ArchitectureError> {
        if !config.mentions(QUERY_RANK) {
            return Err(config.missing(QUERY_RANK));
        }
        let rotary_dims = config.dimension("qk_rope_head_dim")?;
        if !rotary_dims.is_multiple_of(2) {
            return Err(config.impossible("qk_rope_head_dim", rotary_dims, "even".to_owned()));
        }
        Ok(Self {
            query_rank: config.optional_dimension(QUERY_RANK)?,
            key_value_rank: config.dimension("kv_lora_rank")?,
            plain_dims: config.dimension("qk_nope_head_dim")?,
            rotary_dims,
            value_dim: config.dimension("v_head_dim")?,
        })
    }

    /// d, width of a head's query and key.
    pub fn head_dim(&self) -> usize {
        self.plain_dims + self.rotary_dims
    }

    /// The linear layers before attention, neighbours those that read the same; a bias is of the first projections only.
    pub(super) fn modules(&self, hidden: usize, heads: usize, bias: bool) -> Vec<LinearModule> {
        use LinearRole::{KeyValueExpansion, KeyValueLatent, Query, QueryExpansion, QueryLatent};
        let module = |role, name, in_features, out_features| LinearModule {
            role,
            name,
            in_features,
            out_features,
            bias: bias && in_features == hidden && role != Query,
        };
        let queries = heads * self.head_dim();
        let (first, second) = match self.query_rank {
            Some(rank) => (
                module(QueryLatent, "self_attn.q_a_proj", hidden, rank),
                Some(module(QueryExpansion, "self_attn.q_b_proj", rank, queries)),
            ),
            None => (module(Query, "self_attn.q_proj", hidden, queries), None),
        };
        let compressed = self.key_value_rank + self.rotary_dims;
        let mut modules = vec![
            first,
            module(KeyValueLatent, "self_attn.kv_a_proj_with_mqa", hidden, compressed),
        ];
        modules.extend(second);
        let expanded = heads * (self.plain_dims + self.value_dim);
        modules.push(module(
            KeyValueExpansion,
            "self_attn.kv_b_proj",
            self.key_value_rank,
            expanded,
        ));
        modules
    }

    /// The norm of compressed queries and its width, where there is one.
    pub fn query_norm(&self) -> Option<(&'static str, usize)> {
        self.query_rank.map(|rank| (QUERY_NORM, rank))
    }

    /// The norm of compressed keys and values, and its width.
    pub fn key_value_norm(&self) -> (&'static str, usize) {
        (KEY_VALUE_NORM, self.key_value_rank)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::architecture::{Architecture, ArchitectureError, RopeOrder};

    const SIZES: &str = r#""vocab_size": 512, "hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 256, "moe_intermediate_size": 24,
        "n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2, "first_k_dense_replace": 1,
        "kv_lora_rank": 16, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 10"#;

    fn parse(model_type: &str, more: &str) -> Result<Architecture, ArchitectureError> {
        let text = format!(r#"{{"model_type": "{model_type}", {SIZES}{more}}}"#);
        Architecture::from_json(Path::new("config.json"), &text)
    }

    fn names(architecture: &Architecture) -> Vec<(&'static str, [usize; 2])> {
        let modules = architecture.linear_modules().into_iter();
        modules
            .filter(|module| module.role.attends())
            .map(|module| (module.name, [module.out_features, module.in_features]))
            .collect()
    }

    #[test]
    fn queries_are_projected_twice_where_they_have_a_rank() {
        let latent = parse("deepseek_v3", r#", "q_lora_rank": 24"#).unwrap();
        let expected = [
            ("self_attn.q_a_proj", [24, 64]),
            ("self_attn.kv_a_proj_with_mqa", [24, 64]),
            ("self_attn.q_b_proj", [80, 24]),
            ("self_attn.kv_b_proj", [88, 16]),
            ("self_attn.o_proj", [64, 40]),
        ];
        assert_eq!(names(&latent), expected);
        let plain = parse("deepseek_v2", r#", "q_lora_rank": null"#).unwrap();
        assert_eq!(names(&plain)[0], ("self_attn.q_proj", [80, 64]));
        assert_eq!(names(&plain).len(), 4);
        for architecture in [latent, plain] {
            let tensors = architecture.tensors();
            let elements: usize = tensors.iter().map(|tensor| tensor.elements()).sum();
            assert_eq!(architecture.parameter_count().total(), elements as u64);
        }
    }

    #[test]
    fn the_rope_is_that_of_the_rotated_part() {
        let rope = |more: &str| parse("deepseek_v3", more).unwrap().ropes[0].clone();
        let of_pairs = rope(r#", "q_lora_rank": 24, "head_dim": 8"#);
        assert_eq!((of_pairs.plain_dims, of_pairs.rotary_dims), (12, 8));
        assert_eq!(of_pairs.order, RopeOrder::Neighbours);
        let of_halves = rope(r#", "q_lora_rank": 24, "rope_interleave": false"#);
        assert_eq!(of_halves.order, RopeOrder::Halves);
    }

    #[test]
    fn scores_are_scaled_for_long_contexts() {
        let scale = |more: &str| parse("deepseek_v3", more).unwrap().attention_scale;
        let plain = scale(r#", "q_lora_rank": 24"#);
        assert_eq!(plain, 20f64.powf(-0.5));
        let yarn = scale(
            r#", "q_lora_rank": 24, "rope_scaling": {"type": "yarn", "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0,
                "original_max_position_embeddings": 16}"#,
        );
        let magnitude = 0.1 * 40f64.ln() + 1.0;
        assert!((yarn / (plain * magnitude * magnitude) - 1.0).abs() < 1e-12);
    }

    #[test]
    fn groups_of_experts_are_asked_for_by_their_method() {
        let router = |more: &str| {
            let more = format!(r#", "q_lora_rank": null, "n_group": 4, "topk_group": 2{more}"#);
            parse("deepseek_v2", &more).map(|model| model.experts.unwrap().router)
        };
        assert_eq!(router(r#", "topk_method": "greedy""#).unwrap().groups, None);
        let limited = router(r#", "topk_method": "group_limited_greedy", "routed_scaling_factor": 16.0"#).unwrap();
        assert_eq!((limited.groups.unwrap().count, limited.scale), (4, 16.0));
        let other = router(r#", "topk_method": "noaux_tc""#).unwrap_err().to_string();
        assert!(other.contains("`topk_method`") && other.contains("noaux_tc"), "{other}");
    }

    #[test]
    fn impossible_files_are_explained() {
        let message = |more: &str| parse("deepseek_v3", more).unwrap_err().to_string();
        assert!(message("").contains("`q_lora_rank` is missing"));
        let scores = message(r#", "q_lora_rank": 24, "scoring_func": "softmax""#);
        assert!(
            scores.contains("`scoring_func`") && scores.contains("sigmoid"),
            "{scores}"
        );
        let text =
            format!(r#"{{"model_type": "glm4_moe_lite", {SIZES}, "q_lora_rank": 24, "mlp_layer_types": ["dense"]}}"#);
        let kinds = Architecture::from_json(Path::new("config.json"), &text)
            .unwrap_err()
            .to_string();
        assert!(kinds.contains("1 entries") && kinds.contains("2 entries"), "{kinds}");
    }
}
