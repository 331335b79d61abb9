//! The rows of the table of families: a family that is a combination of known switches is a row.

use super::family::{
    Bias, ChatMarks, DEFAULT_WINDOW, Factor, Family, FamilyRow, MlpWidth, QueryScale, RopeLayers, SlidingRope, SoftCap,
    Switches, Windows,
};
use super::{
    Activation, ExpertNames, ExpertSwitches, FINAL_NORM, Grouping, LayerNames, Mixers, NormPlacement, QueryKeyNorm,
    RopeOrder, Scores, SharedSwitch, SparseLayers,
};

/// Full attention, no biases, a norm before attention and MLP.
const PLAIN: Switches = Switches {
    qkv_bias: Bias::Never,
    output_bias: Bias::Never,
    mlp_bias: Bias::Never,
    query_key_norm: QueryKeyNorm::None,
    query_key_norm_key: None,
    fused_qkv: false,
    fused_gate_up: false,
    names: NAMES,
    mlp_width: MlpWidth::Key("intermediate_size"),
    norm_placement: NormPlacement::Before,
    norm_epsilon: "rms_norm_eps",
    default_epsilon: 1e-6,
    centred_norms: false,
    norm_offset: 0.0,
    activation: ("hidden_act", Activation::Silu),
    tied_embeddings: false,
    tied_key: None,
    embedding_scale: Factor::None,
    residual_scale: Factor::None,
    logit_scale: Factor::None,
    query_scale: QueryScale::HeadDim,
    attention_soft_cap: SoftCap::Never,
    logit_soft_cap: SoftCap::Never,
    windows: Windows::Never,
    window: DEFAULT_WINDOW,
    full_heads: false,
    shared_keys: false,
    layer_inputs: None,
    value_norm: false,
    layer_scalar: false,
    sliding_rope: SlidingRope::Shared,
    rope_layers: RopeLayers::All,
    rope_order: RopeOrder::Halves,
    rope_order_key: None,
    rope_base: 10_000.0,
    rotary_share: 1.0,
    query_growth: false,
    refused: &[],
    sinks: false,
    experts: None,
    latent: false,
    mixers: Mixers::Attention,
    head_gates: false,
    head_dim: None,
    kv_heads: None,
    chunks: false,
    dropout: &[("attention_dropout", 0.0)],
};

/// Names that most families have for their modules.
const NAMES: LayerNames = LayerNames {
    attention_norms: ["input_layernorm", "post_attention_layernorm"],
    mlp_norms: ["post_attention_layernorm", "post_feedforward_layernorm"],
    head_norms: ["q_norm", "k_norm"],
    mlp: ["mlp.gate_up_proj", "mlp.down_proj"],
    gate_and_up: ["mlp.gate_proj", "mlp.up_proj"],
    attention_output: "self_attn.o_proj",
    last_norm: FINAL_NORM,
};

/// Names of the experts in most families.
const EXPERT_NAMES: ExpertNames = ExpertNames {
    router: "mlp.gate",
    experts: "mlp.experts",
    gate_up: "mlp.experts.gate_up_proj",
    down: "mlp.experts.down_proj",
    shared: [
        "mlp.shared_expert.gate_proj",
        "mlp.shared_expert.up_proj",
        "mlp.shared_expert.down_proj",
    ],
    shared_gate: "mlp.shared_expert_gate",
    modules_are_experts: true,
    stacked: false,
    swapped: false,
    upright: false,
    router_is_layer: false,
};

/// A softmax over all experts, whose weights need not add up to 1.
const PLAIN_EXPERTS: ExpertSwitches = ExpertSwitches {
    enabled: None,
    count: &["num_experts", "num_local_experts"],
    chosen: "num_experts_per_tok",
    intermediate_size: "moe_intermediate_size",
    scores: Scores::Softmax,
    normalised: false,
    normalised_key: Some("norm_topk_prob"),
    grouping: Grouping::Never,
    settled: &[],
    correction: false,
    shared: SharedSwitch::Never,
    biases: false,
    limit: None,
    weighs_input: false,
    sparse: SparseLayers::EveryStep,
    names: EXPERT_NAMES,
};

/// Sigmoids with a correction, a shared expert, and layers with an MLP at the start.
const GLM_EXPERTS: ExpertSwitches = ExpertSwitches {
    count: &["n_routed_experts", "num_local_experts"],
    scores: Scores::Sigmoid,
    normalised: true,
    grouping: Grouping::Always,
    settled: &[("scoring_func", "sigmoid"), ("topk_method", "noaux_tc")],
    correction: true,
    shared: SharedSwitch::Times("n_shared_experts"),
    sparse: SparseLayers::BehindDense,
    names: ExpertNames {
        shared: [
            "mlp.shared_experts.gate_proj",
            "mlp.shared_experts.up_proj",
            "mlp.shared_experts.down_proj",
        ],
        ..EXPERT_NAMES
    },
    ..PLAIN_EXPERTS
};

/// Experts beside the MLP, where the file says so.
const GEMMA4_EXPERTS: ExpertSwitches = ExpertSwitches {
    enabled: Some("enable_moe_block"),
    count: &["num_experts"],
    chosen: "top_k_experts",
    normalised: true,
    normalised_key: None,
    shared: SharedSwitch::Branch("intermediate_size"),
    sparse: SparseLayers::All,
    names: ExpertNames {
        router: "router.proj",
        experts: "experts",
        gate_up: "experts.gate_up_proj",
        down: "experts.down_proj",
        shared: ["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"],
        modules_are_experts: false,
        stacked: true,
        upright: true,
        router_is_layer: true,
        ..EXPERT_NAMES
    },
    ..PLAIN_EXPERTS
};

/// Latent attention, whose neighbours turn together.
const DEEPSEEK: Switches = Switches {
    qkv_bias: Bias::Key("attention_bias"),
    output_bias: Bias::Key("attention_bias"),
    query_scale: QueryScale::Yarn,
    rope_order: RopeOrder::Neighbours,
    experts: Some(GLM_EXPERTS),
    latent: true,
    ..PLAIN
};

/// The marks of DeepSeek.
const DEEPSEEK_CHAT: ChatMarks = ChatMarks {
    user: "<｜User｜>",
    assistant: "<｜Assistant｜>",
};

/// Biases where the file says so, in the words of most.
const WITH_BIASES: Switches = Switches {
    qkv_bias: Bias::Key("attention_bias"),
    output_bias: Bias::Key("attention_bias"),
    mlp_bias: Bias::Key("mlp_bias"),
    ..PLAIN
};

/// The factors of Granite.
const GRANITE: Switches = Switches {
    embedding_scale: Factor::Key("embedding_multiplier", 1.0),
    residual_scale: Factor::Key("residual_multiplier", 1.0),
    logit_scale: Factor::Inverse("logits_scaling"),
    query_scale: QueryScale::Key("attention_multiplier"),
    ..WITH_BIASES
};

/// Switches that Gemma 2 and 3 share.
const GEMMA: Switches = Switches {
    qkv_bias: Bias::Key("attention_bias"),
    output_bias: Bias::Key("attention_bias"),
    norm_placement: NormPlacement::BeforeAndBehind,
    norm_offset: 1.0,
    // Gemma's first files say `hidden_act: gelu` and mean the tanh form, which `hidden_activation` corrects.
    activation: ("hidden_activation", Activation::GeluTanh),
    names: LayerNames {
        mlp_norms: ["pre_feedforward_layernorm", "post_feedforward_layernorm"],
        ..NAMES
    },
    tied_embeddings: true,
    embedding_scale: Factor::RootHidden,
    query_scale: QueryScale::Scalar(256.0),
    ..PLAIN
};

/// The marks of ChatML.
const CHATML: ChatMarks = ChatMarks {
    user: "<|im_start|>user\n",
    assistant: "<|im_start|>assistant\n",
};
const GEMMA_CHAT: ChatMarks = ChatMarks {
    user: "<start_of_turn>user\n",
    assistant: "<start_of_turn>model\n",
};

/// Marks of Gemma 4, which has other ones than the Gemmas before it.
const GEMMA4_CHAT: ChatMarks = ChatMarks {
    user: "<|turn>user\n",
    assistant: "<|turn>model\n",
};

const GRANITE_CHAT: ChatMarks = ChatMarks {
    user: "<|start_of_role|>user<|end_of_role|>",
    assistant: "<|start_of_role|>assistant<|end_of_role|>",
};

pub(super) const ROWS: &[FamilyRow] = &[
    FamilyRow {
        family: Family::Llama,
        name: "llama",
        text_names: &[],
        switches: WITH_BIASES,
        chat: ChatMarks {
            user: "<|start_header_id|>user<|end_header_id|>\n\n",
            assistant: "<|start_header_id|>assistant<|end_header_id|>\n\n",
        },
    },
    FamilyRow {
        family: Family::Mistral,
        name: "mistral",
        text_names: &[],
        switches: Switches {
            windows: Windows::All {
                default: Some(DEFAULT_WINDOW),
            },
            kv_heads: Some(8),
            ..PLAIN
        },
        chat: ChatMarks {
            user: "[INST]",
            assistant: "[/INST]",
        },
    },
    FamilyRow {
        family: Family::Qwen2,
        name: "qwen2",
        text_names: &["qwen2_vl_text", "qwen2_5_vl_text"],
        switches: Switches {
            qkv_bias: Bias::Always,
            windows: Windows::FromLayer,
            ..PLAIN
        },
        chat: CHATML,
    },
    FamilyRow {
        family: Family::Qwen3,
        name: "qwen3",
        text_names: &["qwen3_vl_text"],
        switches: Switches {
            qkv_bias: Bias::Key("attention_bias"),
            output_bias: Bias::Key("attention_bias"),
            query_key_norm: QueryKeyNorm::Heads,
            windows: Windows::FromLayer,
            ..PLAIN
        },
        chat: CHATML,
    },
    FamilyRow {
        family: Family::Gemma2,
        name: "gemma2",
        text_names: &[],
        switches: Switches {
            attention_soft_cap: SoftCap::Default(50.0),
            logit_soft_cap: SoftCap::Default(30.0),
            windows: Windows::ExceptEvery { nth: 2, key: None },
            ..GEMMA
        },
        chat: GEMMA_CHAT,
    },
    FamilyRow {
        family: Family::Gemma3,
        name: "gemma3_text",
        text_names: &[],
        switches: Switches {
            query_key_norm: QueryKeyNorm::Heads,
            attention_soft_cap: SoftCap::WhereSet,
            logit_soft_cap: SoftCap::WhereSet,
            windows: Windows::ExceptEvery {
                nth: 6,
                key: Some("sliding_window_pattern"),
            },
            sliding_rope: SlidingRope::OwnBase,
            rope_base: 1_000_000.0,
            refused: &["use_bidirectional_attention"],
            ..GEMMA
        },
        chat: GEMMA_CHAT,
    },
    FamilyRow {
        family: Family::Phi3,
        name: "phi3",
        text_names: &[],
        switches: Switches {
            fused_qkv: true,
            fused_gate_up: true,
            windows: Windows::All { default: None },
            dropout: &[("attention_dropout", 0.0), ("resid_pdrop", 0.0)],
            ..PLAIN
        },
        chat: ChatMarks {
            user: "<|user|>\n",
            assistant: "<|assistant|>\n",
        },
    },
    FamilyRow {
        family: Family::SmolLm3,
        name: "smollm3",
        text_names: &[],
        switches: Switches {
            tied_embeddings: true,
            rope_base: 2_000_000.0,
            rope_layers: RopeLayers::Listed,
            refused: &["use_sliding_window"],
            ..WITH_BIASES
        },
        chat: CHATML,
    },
    FamilyRow {
        family: Family::Granite,
        name: "granite",
        text_names: &[],
        switches: GRANITE,
        chat: GRANITE_CHAT,
    },
    FamilyRow {
        family: Family::Ernie45,
        name: "ernie4_5",
        text_names: &[],
        switches: Switches {
            qkv_bias: Bias::Key("use_bias"),
            output_bias: Bias::Key("use_bias"),
            mlp_bias: Bias::Key("use_bias"),
            tied_embeddings: true,
            rope_base: 500_000.0,
            rope_order: RopeOrder::Neighbours,
            ..PLAIN
        },
        chat: ChatMarks {
            user: "User: ",
            assistant: "Assistant: ",
        },
    },
    FamilyRow {
        family: Family::HunYuanDense,
        name: "hunyuan_v1_dense",
        text_names: &[],
        switches: Switches {
            qkv_bias: Bias::Key("attention_bias"),
            output_bias: Bias::Key("attention_bias"),
            query_key_norm: QueryKeyNorm::RotatedHeads,
            names: LayerNames {
                head_norms: ["query_layernorm", "key_layernorm"],
                ..NAMES
            },
            ..PLAIN
        },
        chat: ChatMarks {
            user: "<｜hy_User｜>",
            assistant: "<｜hy_Assistant｜>",
        },
    },
    FamilyRow {
        family: Family::Ministral3,
        name: "ministral3",
        text_names: &[],
        switches: Switches {
            windows: Windows::All { default: None },
            rope_base: 1_000_000.0,
            query_growth: true,
            ..PLAIN
        },
        chat: ChatMarks {
            user: "[INST]",
            assistant: "[/INST]",
        },
    },
    FamilyRow {
        family: Family::Exaone4,
        name: "exaone4",
        text_names: &[],
        switches: Switches {
            norm_placement: NormPlacement::Behind,
            query_key_norm: QueryKeyNorm::Heads,
            windows: Windows::Pattern,
            rope_layers: RopeLayers::SlidingIfAny,
            ..PLAIN
        },
        chat: ChatMarks {
            user: "[|user|]\n",
            assistant: "[|assistant|]\n",
        },
    },
    FamilyRow {
        family: Family::Olmo3,
        name: "olmo3",
        text_names: &[],
        switches: Switches {
            qkv_bias: Bias::Key("attention_bias"),
            output_bias: Bias::Key("attention_bias"),
            norm_placement: NormPlacement::Behind,
            query_key_norm: QueryKeyNorm::AllHeads,
            windows: Windows::ExceptEvery { nth: 4, key: None },
            sliding_rope: SlidingRope::Unscaled,
            ..PLAIN
        },
        chat: CHATML,
    },
    FamilyRow {
        family: Family::Glm4,
        name: "glm4",
        text_names: &[],
        switches: Switches {
            qkv_bias: Bias::Key("attention_bias"),
            fused_gate_up: true,
            norm_placement: NormPlacement::BeforeAndBehind,
            names: LayerNames {
                attention_norms: ["input_layernorm", "post_self_attn_layernorm"],
                mlp_norms: ["post_attention_layernorm", "post_mlp_layernorm"],
                ..NAMES
            },
            rope_order: RopeOrder::Neighbours,
            rotary_share: 0.5,
            ..PLAIN
        },
        chat: ChatMarks {
            user: "<|user|>\n",
            assistant: "<|assistant|>\n",
        },
    },
    FamilyRow {
        family: Family::Cohere2,
        name: "cohere2",
        text_names: &[],
        switches: Switches {
            qkv_bias: Bias::Key("attention_bias"),
            output_bias: Bias::Key("attention_bias"),
            norm_placement: NormPlacement::Shared,
            norm_epsilon: "layer_norm_eps",
            centred_norms: true,
            tied_embeddings: true,
            logit_scale: Factor::Key("logit_scale", 0.0625),
            windows: Windows::ExceptEvery {
                nth: 4,
                key: Some("sliding_window_pattern"),
            },
            rope_layers: RopeLayers::Sliding,
            rope_order: RopeOrder::Neighbours,
            ..PLAIN
        },
        chat: ChatMarks {
            user: "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>",
            assistant: "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
        },
    },
    FamilyRow {
        family: Family::Apertus,
        name: "apertus",
        text_names: &[],
        switches: Switches {
            activation: ("hidden_act", Activation::Xielu),
            query_key_norm: QueryKeyNorm::Heads,
            names: LayerNames {
                attention_norms: ["attention_layernorm", "post_attention_layernorm"],
                mlp_norms: ["feedforward_layernorm", "post_feedforward_layernorm"],
                ..NAMES
            },
            rope_base: 12_000_000.0,
            refused: &["post_norm"],
            ..WITH_BIASES
        },
        chat: ChatMarks {
            user: "<|user_start|>",
            assistant: "<|assistant_start|>",
        },
    },
    FamilyRow {
        family: Family::Granite4,
        name: "granitemoehybrid",
        text_names: &[],
        switches: Switches {
            mlp_bias: Bias::Never,
            fused_gate_up: true,
            names: LayerNames {
                mlp: ["shared_mlp.input_linear", "shared_mlp.output_linear"],
                ..NAMES
            },
            mlp_width: MlpWidth::Key("shared_intermediate_size"),
            rope_layers: RopeLayers::Named,
            refused: &["num_local_experts"],
            ..GRANITE
        },
        chat: GRANITE_CHAT,
    },
    FamilyRow {
        family: Family::Qwen3Moe,
        name: "qwen3_moe",
        text_names: &[],
        switches: Switches {
            qkv_bias: Bias::Key("attention_bias"),
            output_bias: Bias::Key("attention_bias"),
            query_key_norm: QueryKeyNorm::Heads,
            refused: &["use_sliding_window"],
            experts: Some(PLAIN_EXPERTS),
            ..PLAIN
        },
        chat: CHATML,
    },
    FamilyRow {
        family: Family::Qwen2Moe,
        name: "qwen2_moe",
        text_names: &[],
        switches: Switches {
            qkv_bias: Bias::Unless("qkv_bias"),
            refused: &["use_sliding_window"],
            experts: Some(ExpertSwitches {
                shared: SharedSwitch::Gated("shared_expert_intermediate_size"),
                names: ExpertNames {
                    modules_are_experts: false,
                    ..EXPERT_NAMES
                },
                ..PLAIN_EXPERTS
            }),
            ..PLAIN
        },
        chat: CHATML,
    },
    FamilyRow {
        family: Family::Glm4Moe,
        name: "glm4_moe",
        text_names: &[],
        switches: Switches {
            qkv_bias: Bias::Key("attention_bias"),
            query_key_norm: QueryKeyNorm::Heads,
            query_key_norm_key: Some(("use_qk_norm", false)),
            rotary_share: 0.5,
            experts: Some(GLM_EXPERTS),
            ..PLAIN
        },
        chat: ChatMarks {
            user: "<|user|>\n",
            assistant: "<|assistant|>\n",
        },
    },
    FamilyRow {
        family: Family::GptOss,
        name: "gpt_oss",
        switches: Switches {
            qkv_bias: Bias::Unless("attention_bias"),
            output_bias: Bias::Unless("attention_bias"),
            windows: Windows::ExceptEvery { nth: 2, key: None },
            sinks: true,
            experts: Some(ExpertSwitches {
                count: &["num_local_experts", "num_experts"],
                intermediate_size: "intermediate_size",
                // A softmax over the chosen logits is one over all, divided by the chosen ones' sum.
                normalised: true,
                normalised_key: None,
                biases: true,
                limit: Some(("swiglu_limit", 7.0)),
                sparse: SparseLayers::All,
                names: ExpertNames {
                    router: "mlp.router",
                    modules_are_experts: false,
                    stacked: true,
                    ..EXPERT_NAMES
                },
                ..PLAIN_EXPERTS
            }),
            ..PLAIN
        },
        text_names: &[],
        chat: ChatMarks {
            user: "<|start|>user<|message|>",
            assistant: "<|start|>assistant",
        },
    },
    FamilyRow {
        family: Family::Olmoe,
        name: "olmoe",
        text_names: &[],
        switches: Switches {
            default_epsilon: 1e-5,
            qkv_bias: Bias::Key("attention_bias"),
            output_bias: Bias::Key("attention_bias"),
            query_key_norm: QueryKeyNorm::AllHeads,
            refused: &["clip_qkv"],
            experts: Some(ExpertSwitches {
                intermediate_size: "intermediate_size",
                sparse: SparseLayers::All,
                ..PLAIN_EXPERTS
            }),
            ..PLAIN
        },
        chat: ChatMarks {
            user: "<|user|>\n",
            assistant: "<|assistant|>\n",
        },
    },
    FamilyRow {
        family: Family::DeepseekV3,
        name: "deepseek_v3",
        text_names: &[],
        switches: Switches {
            rope_order_key: Some("rope_interleave"),
            ..DEEPSEEK
        },
        chat: DEEPSEEK_CHAT,
    },
    FamilyRow {
        family: Family::DeepseekV2,
        name: "deepseek_v2",
        text_names: &[],
        switches: Switches {
            refused: &["mlp_bias", "norm_topk_prob"],
            experts: Some(ExpertSwitches {
                scores: Scores::Softmax,
                normalised: false,
                grouping: Grouping::ByMethod,
                settled: &[("scoring_func", "softmax")],
                correction: false,
                ..GLM_EXPERTS
            }),
            ..DEEPSEEK
        },
        chat: ChatMarks {
            user: "User: ",
            assistant: "Assistant:",
        },
    },
    FamilyRow {
        family: Family::Glm4MoeLite,
        name: "glm4_moe_lite",
        text_names: &[],
        switches: Switches {
            default_epsilon: 1e-5,
            rope_order_key: Some("rope_interleave"),
            experts: Some(ExpertSwitches {
                sparse: SparseLayers::Typed,
                ..GLM_EXPERTS
            }),
            ..DEEPSEEK
        },
        chat: ChatMarks {
            user: "<|user|>\n",
            assistant: "<|assistant|>\n",
        },
    },
    FamilyRow {
        family: Family::Lfm2,
        name: "lfm2",
        text_names: &[],
        switches: Switches {
            query_key_norm: QueryKeyNorm::Heads,
            names: LayerNames {
                attention_norms: ["operator_norm", "post_attention_layernorm"],
                mlp_norms: ["ffn_norm", "post_feedforward_layernorm"],
                head_norms: ["q_layernorm", "k_layernorm"],
                mlp: ["mlp.gate_up_proj", "feed_forward.w2"],
                gate_and_up: ["feed_forward.w1", "feed_forward.w3"],
                attention_output: "self_attn.out_proj",
                last_norm: "model.embedding_norm.weight",
            },
            mlp_width: MlpWidth::Blocks,
            norm_epsilon: "norm_eps",
            default_epsilon: 1e-5,
            tied_embeddings: true,
            tied_key: Some("tie_embedding"),
            rope_base: 1_000_000.0,
            refused: &["conv_bias"],
            mixers: Mixers::Convolutions,
            ..PLAIN
        },
        chat: CHATML,
    },
    FamilyRow {
        family: Family::Qwen35,
        name: "qwen3_5_text",
        text_names: &[],
        switches: Switches {
            qkv_bias: Bias::Key("attention_bias"),
            output_bias: Bias::Key("attention_bias"),
            query_key_norm: QueryKeyNorm::Heads,
            norm_offset: 1.0,
            rotary_share: 0.25,
            mixers: Mixers::DeltaRules,
            head_gates: true,
            head_dim: Some(256),
            ..PLAIN
        },
        chat: CHATML,
    },
    FamilyRow {
        family: Family::Gemma,
        name: "gemma",
        text_names: &[],
        switches: Switches {
            norm_placement: NormPlacement::Before,
            names: NAMES,
            query_scale: QueryScale::HeadDim,
            refused: &["use_bidirectional_attention"],
            ..GEMMA
        },
        chat: GEMMA_CHAT,
    },
    FamilyRow {
        family: Family::Olmo2,
        name: "olmo2",
        text_names: &[],
        switches: Switches {
            qkv_bias: Bias::Key("attention_bias"),
            output_bias: Bias::Key("attention_bias"),
            norm_placement: NormPlacement::Behind,
            query_key_norm: QueryKeyNorm::AllHeads,
            ..PLAIN
        },
        chat: ChatMarks {
            user: "<|user|>\n",
            assistant: "<|assistant|>\n",
        },
    },
    FamilyRow {
        family: Family::Glm,
        name: "glm",
        text_names: &[],
        switches: Switches {
            qkv_bias: Bias::Unless("attention_bias"),
            fused_gate_up: true,
            rope_order: RopeOrder::Neighbours,
            rotary_share: 0.5,
            ..PLAIN
        },
        chat: ChatMarks {
            user: "<|user|>\n",
            assistant: "<|assistant|>\n",
        },
    },
    FamilyRow {
        family: Family::Helium,
        name: "helium",
        text_names: &[],
        switches: Switches {
            qkv_bias: Bias::Key("attention_bias"),
            mlp_bias: Bias::Key("mlp_bias"),
            rope_order: RopeOrder::Neighbours,
            rope_base: 100_000.0,
            ..PLAIN
        },
        chat: CHATML,
    },
    FamilyRow {
        family: Family::Cohere,
        name: "cohere",
        text_names: &[],
        switches: Switches {
            qkv_bias: Bias::Key("attention_bias"),
            output_bias: Bias::Key("attention_bias"),
            norm_placement: NormPlacement::Shared,
            norm_epsilon: "layer_norm_eps",
            centred_norms: true,
            tied_embeddings: true,
            logit_scale: Factor::Key("logit_scale", 0.0625),
            rope_order: RopeOrder::Neighbours,
            rope_base: 500_000.0,
            refused: &["use_qk_norm"],
            ..PLAIN
        },
        chat: ChatMarks {
            user: "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>",
            assistant: "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
        },
    },
    FamilyRow {
        family: Family::Gemma4,
        name: "gemma4_text",
        text_names: &["gemma4_unified_text"],
        switches: Switches {
            norm_offset: 0.0,
            query_key_norm: QueryKeyNorm::Heads,
            query_scale: QueryScale::One,
            logit_soft_cap: SoftCap::WhereSet,
            windows: Windows::ExceptEvery { nth: 6, key: None },
            window: 512,
            full_heads: true,
            shared_keys: true,
            layer_inputs: Some(256),
            value_norm: true,
            layer_scalar: true,
            sliding_rope: SlidingRope::Both,
            rope_base: 1_000_000.0,
            experts: Some(GEMMA4_EXPERTS),
            ..GEMMA
        },
        chat: GEMMA4_CHAT,
    },
    FamilyRow {
        family: Family::Llama4,
        name: "llama4_text",
        text_names: &[],
        switches: Switches {
            default_epsilon: 1e-5,
            qkv_bias: Bias::Key("attention_bias"),
            output_bias: Bias::Key("attention_bias"),
            query_key_norm: QueryKeyNorm::RotatedUnweighted,
            query_key_norm_key: Some(("use_qk_norm", true)),
            names: LayerNames {
                mlp: ["feed_forward.gate_up_proj", "feed_forward.down_proj"],
                gate_and_up: ["feed_forward.gate_proj", "feed_forward.up_proj"],
                ..NAMES
            },
            mlp_width: MlpWidth::Key("intermediate_size_mlp"),
            rope_base: 500_000.0,
            rope_order: RopeOrder::Neighbours,
            rope_layers: RopeLayers::Listed,
            sliding_rope: SlidingRope::Growth,
            chunks: true,
            experts: Some(ExpertSwitches {
                count: &["num_local_experts"],
                intermediate_size: "intermediate_size",
                scores: Scores::SigmoidOfChosen,
                weighs_input: true,
                shared: SharedSwitch::Same,
                sparse: SparseLayers::Listed,
                names: ExpertNames {
                    router: "feed_forward.router",
                    experts: "feed_forward.experts",
                    gate_up: "feed_forward.experts.gate_up_proj",
                    down: "feed_forward.experts.down_proj",
                    shared: [
                        "feed_forward.shared_expert.gate_proj",
                        "feed_forward.shared_expert.up_proj",
                        "feed_forward.shared_expert.down_proj",
                    ],
                    modules_are_experts: false,
                    stacked: true,
                    swapped: true,
                    router_is_layer: true,
                    ..EXPERT_NAMES
                },
                ..PLAIN_EXPERTS
            }),
            ..PLAIN
        },
        chat: ChatMarks {
            user: "<|header_start|>user<|header_end|>\n\n",
            assistant: "<|header_start|>assistant<|header_end|>\n\n",
        },
    },
    FamilyRow {
        family: Family::SeedOss,
        name: "seed_oss",
        text_names: &[],
        switches: Switches {
            qkv_bias: Bias::Unless("attention_bias"),
            output_bias: Bias::Key("attention_out_bias"),
            mlp_bias: Bias::Key("mlp_bias"),
            head_dim: Some(128),
            kv_heads: Some(8),
            dropout: &[("attention_dropout", 0.1), ("residual_dropout", 0.1)],
            ..PLAIN
        },
        chat: ChatMarks {
            user: "<seed:bos>user\n",
            assistant: "<seed:bos>assistant\n",
        },
    },
    FamilyRow {
        family: Family::Mixtral,
        name: "mixtral",
        text_names: &[],
        switches: Switches {
            default_epsilon: 1e-5,
            windows: Windows::All { default: None },
            rope_base: 1_000_000.0,
            kv_heads: Some(8),
            refused: &["router_jitter_noise"],
            names: LayerNames {
                mlp: ["mlp.gate_up_proj", "mlp.w2"],
                gate_and_up: ["mlp.w1", "mlp.w3"],
                ..NAMES
            },
            experts: Some(ExpertSwitches {
                count: &["num_local_experts", "num_experts"],
                intermediate_size: "intermediate_size",
                normalised: true,
                normalised_key: None,
                sparse: SparseLayers::All,
                ..PLAIN_EXPERTS
            }),
            ..PLAIN
        },
        chat: ChatMarks {
            user: "[INST]",
            assistant: "[/INST]",
        },
    },
];
