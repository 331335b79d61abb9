//! Keys of `trl sft` (TRL 0.7 to 1.16) that no recipe has: those of `SFTConfig`, `ModelConfig`, the script and its launchers,
//! of PEFT's `LoraConfig` in a script, and of the two public collections of recipes for its trainer, alignment-handbook and open-r1.

use crate::known_keys::{KnownKeys, ToldKey, costly, learnt};
use crate::{peft, training_arguments};

pub(super) const KNOWN: KnownKeys = KnownKeys {
    version: "1.16",
    silent: &[
        SILENT,
        SILENT_OF_COLLECTIONS,
        SILENT_OF_PREFERENCES,
        SILENT_OF_LOADING,
        training_arguments::SILENT,
        training_arguments::SILENT_OF_FSDP,
        peft::known_keys::SILENT,
    ],
    told: &[TOLD, training_arguments::TOLD, peft::known_keys::TOLD],
};

const SILENT: &str = "
    config command dataset_config dataset_train_split dataset_test_split dataset_streaming streaming
    dataset_batch_size num_of_sequences chars_per_token eval_packing ignore_bias_buffers sanity_check
    use_bnb_nested_quant bnb_4bit_use_double_quant bnb_4bit_compute_dtype load_in_8bit
    gradient_checkpointing_use_reentrant lora_task_type bnb_4bit_quant_storage pad_token pad_to_multiple_of
    shuffle_dataset datasets.columns dataset_mixture.seed dataset_mixture.datasets.columns
    dataset_mixture.streaming response_template instruction_template
    num_machines machine_rank main_process_ip main_process_port nnodes node_rank master_addr master_port rdzv_backend
    rdzv_endpoint standalone env";

/// Keys of collections of recipes that say nothing of a training.
const SILENT_OF_COLLECTIONS: &str = "
    benchmarks callbacks overwrite_hub_revision push_to_hub_revision hub_model_revision wandb_entity wandb_project
    wandb_run_group wandb_log_unique_prompts model_code_revision tokenizer_name_or_path dataset_configs
    preprocessing_num_workers auto_insert_empty_system_msg text_column use_flash_attention_2 num_proc";

/// Keys of trainers that compare answers, which say nothing in supervised fine-tuning.
const SILENT_OF_PREFERENCES: &str = "
    beta precompute_ref_log_probs desirable_weight undesirable_weight loss_weights label_smoothing max_prompt_length
    max_completion_length reference_free ref_model_init_kwargs disable_dropout generate_during_eval
    precompute_ref_batch_size f_alpha_divergence_coef discopop_tau ref_model_mixup_alpha ref_model_sync_steps
    padding_value is_encoder_decoder";

/// Keys of bitsandbytes' settings and of PEFT's example of a training.
const SILENT_OF_LOADING: &str = "
    llm_int8_threshold llm_int8_enable_fp32_cpu_offload llm_int8_has_fp16_weight splits";

const TOLD: &[ToldKey] = &[
    learnt(
        "model_revision",
        "another revision of the model is trained there; write `model: ID@REVISION`",
    )
    .unless(&["main"]),
    learnt("datasets.data_dir", "rows of one folder of the data set are read there"),
    learnt("dataset_kwargs", "rows are prepared in another way there"),
    learnt("eos_token", "another token ends answers there"),
    learnt("truncation_mode", "long rows lose their beginning there").unless(&["keep_start"]),
    learnt("router_aux_loss_coef", "experts are balanced by another weight there").unless(&["0.001", "0", "0.0"]),
    learnt("packing_strategy", "rows are packed in another way there").unless(&["bfd", "ffd"]),
    learnt(
        "chat_template",
        "another chat template is written there; name its file in `data.chat_template`",
    ),
    learnt(
        "chat_template_format",
        "chats are written by a template of that name there, with tokens of its own",
    )
    .unless(&["none"]),
    costly("use_unsloth", "unsloth's kernels train there"),
    costly(
        "llm_int8_skip_modules",
        "modules of these names are not quantized there",
    ),
    learnt("system_prompt", "a system text is put before each row there"),
    costly(
        "accelerate_config",
        "devices share work or weights there as that file says (`--sharing` of `plan --check`)",
    )
    .unless(&["single_gpu"]),
    costly(
        "config_file",
        "devices share work or weights there as that file says (`--sharing` of `plan --check`)",
    )
    .unless(&["single_gpu"]),
    costly("max_memory", "what exceeds these sizes is placed elsewhere there"),
    costly("num_processes", "so many devices share the work there (`devices`)").unless(&["1"]),
    costly("nproc_per_node", "so many devices share the work there (`devices`)").unless(&["1"]),
    costly(
        "model_init_kwargs",
        "the model is loaded by arguments that are not read here",
    ),
    costly(
        "padding_free",
        "rows of a micro-batch are laid end to end there, without padding",
    ),
];
