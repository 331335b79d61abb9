//! Keys of unsloth's `from_pretrained` and `get_peft_model` (2024 to October 2026), and of TRL's `SFTConfig`, that no recipe has.

use crate::known_keys::{KnownKeys, ToldKey, costly, learnt};
use crate::training_arguments;

pub(super) const KNOWN: KnownKeys = KnownKeys {
    version: "2026.10",
    silent: &[
        SILENT,
        SILENT_OF_TRL,
        training_arguments::SILENT,
        training_arguments::SILENT_OF_FSDP,
    ],
    told: &[TOLD, training_arguments::TOLD],
};

const SILENT: &str = "
    token device_map fix_tokenizer use_exact_model_name random_state disable_log_stats max_lora_rank
    gpu_memory_utilization float8_kv_cache unsloth_vllm_standby model_patcher tokenizer tokenizer_name
    tokenizer_revision return_logits auto_model auto_config model_types supports_sdpa whisper_language whisper_task
    text_only load_in_16bit temporary_location task_type unsloth_force_compile fullgraph layers_pattern
    return_dict load_in_8bit bnb_4bit_use_double_quant device_map_planner_kwargs on_model_resolved user_config
    llm_int8_threshold llm_int8_enable_fp32_cpu_offload llm_int8_has_fp16_weight";

/// Keys of TRL's `SFTConfig`, and of its trainers of preferences, that say nothing of a training. Losses that change it are refused.
const SILENT_OF_TRL: &str = "
    eval_packing dataset_batch_size num_of_sequences chars_per_token pad_token pad_to_multiple_of shuffle_dataset
    dataset_text_field max_prompt_length max_completion_length generate_during_eval ref_model_init_kwargs loss_type";

const TOLD: &[ToldKey] = &[
    learnt(
        "revision",
        "another revision of the model is trained there; write `model: ID@REVISION`",
    )
    .unless(&["main"]),
    learnt("rope_scaling", "positions are scaled there"),
    learnt("resize_model_vocab", "the embedding gets another size there"),
    learnt(
        "embedding_learning_rate",
        "embeddings have a learning rate of their own there",
    ),
    learnt("loftq_config", "adapters start from what quantization loses there"),
    learnt("qat_scheme", "a later quantization is taken into account there"),
    learnt("ensure_weight_tying", "adapters of tied weights are tied there"),
    learnt("dataset_kwargs", "rows are prepared in another way there"),
    learnt(
        "chat_template_path",
        "chats are written by the template of that file or model there; name a file in `data.chat_template`",
    ),
    learnt("eos_token", "another token ends answers there"),
    learnt("packing_strategy", "rows are packed in another way there").unless(&["bfd", "ffd"]),
    costly(
        "finetune_vision_layers",
        "layers of the vision tower are trained too there",
    ),
    costly("finetune_audio_layers", "layers for audio are trained too there"),
    costly("finetune_language_layers", "the language model is not trained there").unless(&["true"]),
    costly("finetune_attention_modules", "attention gets no adapters there").unless(&["true"]),
    costly("finetune_mlp_modules", "MLPs get no adapters there").unless(&["true"]),
    costly("finetune_last_n_layers", "the last layers alone get adapters there"),
    costly("fast_inference", "vLLM lies beside the model there"),
    costly("max_memory", "what exceeds these sizes is placed elsewhere there"),
    costly("offload_embedding", "the embedding lies in the host's memory there"),
    costly("float32_mixed_precision", "weights are in F32 there"),
    costly("load_in_fp8", "weights are in FP8 there"),
    costly(
        "llm_int8_skip_modules",
        "modules of these names are not quantized there",
    ),
    costly("float8_training", "products are in FP8 there"),
    costly("offload_layers", "weights of layers lie in the host's memory there"),
    costly("checkpoint_skip_layers", "some layers are not recomputed there").unless(&["0"]),
    costly("unsloth_tiled_mlp", "MLPs are computed in tiles there"),
    costly(
        "model_init_kwargs",
        "the model is loaded by arguments that are not read here",
    ),
    costly(
        "padding_free",
        "rows of a micro-batch are laid end to end there, without padding",
    ),
];
