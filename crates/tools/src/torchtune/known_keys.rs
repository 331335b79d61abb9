//! Keys of torchtune's recipes (0.1 to 0.7) that no recipe of this program has: those that its programs read, and arguments of the
//! components that its configs name.

use crate::known_keys::{KnownKeys, ToldKey, costly, learnt};

pub(super) const KNOWN: KnownKeys = KnownKeys {
    version: "0.7",
    silent: &[SILENT, SILENT_OF_OTHER_RECIPES, SILENT_OF_PARTS],
    told: &[TOLD],
};

const SILENT: &str = "
    output_dir device log_every_n_steps log_peak_memory_stats log_level metric_logger profiler profile_memory
    resume_from_checkpoint save_adapter_weights_only keep_last_n_checkpoints enable_async_checkpointing
    save_every_n_steps save_every_n_epochs run_val_every_n_steps dataset_val batch_size_val
    cudnn_deterministic_mode use_distributed_state_dict low_cpu_ram custom_sharded_layers fsdp
    fsdp_reshard_after_forward fsdp_sharding_strategy memory_efficient_fsdp_wrap enable_expandable_segments
    tensor_parallel_plan fp8_recipe_name fake_quant_after_n_steps dataloader collate_fn";

/// Keys of recipes that distil, compare answers, generate, evaluate or quantize.
const SILENT_OF_OTHER_RECIPES: &str = "
    teacher_model teacher_checkpointer kd_ratio kd_loss ref_checkpointer ref_policy_checkpointer policy_model
    reward_and_value_model value_checkpointer reward_checkpointer ppo_epochs ppo_batch_size num_steps
    forward_batch_size max_generated_tokens temperature top_k stop_token_ids min_response_length penalise_no_eos
    reward_penalty gamma lmbda whiten_rewards kl_coeff grpo_samples orchestration inference training datasets
    chat_format chat_template prompt instruct_template enable_kv_cache max_new_tokens max_seq_length tasks limit
    include_path use_flex";

/// Arguments of components that say nothing of a training.
const SILENT_OF_PARTS: &str = "
    optimizer.fused optimizer.foreach optimizer.capturable optimizer.maximize optimizer.differentiable
    optimizer.block_size optimizer.percentile_clipping optimizer.block_wise optimizer.min_8bit_size
    optimizer.is_paged optimizer.offload_gradients optimizer.minimal_size optimizer.optimizer_class
    lr_scheduler.last_epoch
    dataset.name dataset.revision dataset.data_files dataset.column dataset.column_map dataset.conversation_column
    dataset.conversation_style dataset.train_on_input dataset.source dataset.passes dataset.steps dataset.seed
    dataset.batch_size dataset.accumulation
    dataset.devices dataset.trust_remote_code dataset.streaming dataset.num_proc dataset.cache_dir dataset.token
    dataset.split_across_pack dataset.add_eos dataset.max_seq_len dataset.subset dataset.image_dir
    dataset.image_tag
    tokenizer.path tokenizer.merges_file tokenizer.vocab_path tokenizer.merges_path tokenizer.special_tokens_path
    tokenizer.special_tokens tokenizer.truncation_type tokenizer.max_num_tiles";

const TOLD: &[ToldKey] = &[
    learnt(
        "tokenizer.prompt_template",
        "texts are put around prompts and answers there",
    ),
    learnt(
        "dataset.new_system_prompt",
        "a system text is put before each row there",
    ),
    learnt(
        "dataset.use_clean",
        "another data set is read there, of rows that were cleaned",
    ),
    learnt("dataset.data_dir", "rows of one folder of the data set are read there"),
    learnt("dataset.filter_fn", "rows are left out by a function there"),
    learnt("dataset.message_transform", "rows become messages by a function there"),
    learnt("dataset.chat_format", "texts are put around turns there"),
    learnt("dataset.template", "texts are put around prompts and answers there"),
    learnt(
        "dataset.convert_to_messages",
        "rows become messages by a function there",
    ),
    learnt("early_exit_loss", "earlier layers are trained to tell tokens too there"),
    learnt("layer_dropout", "layers are left out by chance there"),
    learnt("optimizer.beta2_decay", "the optimizer forgets otherwise there"),
    learnt("optimizer.d", "updates are clipped elsewhere there"),
    learnt("optimizer.ns_steps", "updates are made orthogonal in other steps there"),
    learnt("optimizer.amsgrad", "the optimizer is AMSGrad there"),
    learnt("optimizer.dampening", "momentum is dampened there"),
    costly("ac_mode", "some layers alone are recomputed there").unless(&["full"]),
    costly("ac_option", "every so many layers are recomputed there"),
    costly("quantizer", "a later quantization is taken into account there"),
    costly("resize_token_embeddings", "the embedding gets another size there"),
    costly("tensor_parallel_dim", "devices share tensors out there").unless(&["1"]),
    costly("context_parallel_dim", "devices share sequences out there").unless(&["1"]),
    costly("data_parallel_shard_dim", "so many devices share weights out there").unless(&["1", "-1"]),
    costly(
        "data_parallel_replicate_dim",
        "so many groups of devices share the work there",
    )
    .unless(&["1"]),
    costly("enable_fp8_training", "products are in FP8 there"),
];
