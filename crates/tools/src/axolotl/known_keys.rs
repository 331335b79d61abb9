//! Keys of axolotl's schema (0.4 to 0.19) that no recipe has, with those of its plugins.

use crate::known_keys::{KnownKeys, ToldKey, costly, learnt};
use crate::training_arguments;

pub(super) const KNOWN: KnownKeys = KnownKeys {
    version: "0.19",
    silent: &[
        SILENT,
        SILENT_OF_LOGS,
        SILENT_OF_OTHER_TRAINERS,
        SILENT_OF_DATA,
        training_arguments::SILENT,
        training_arguments::SILENT_OF_FSDP,
    ],
    told: &[TOLD, TOLD_OF_DATA, training_arguments::TOLD],
};

const SILENT: &str = "
    strict base_model_ignore_patterns model_type type_of_model tokenizer_type tokenizer_use_fast tokenizer_legacy
    tokenizer_use_mistral_common tokenizer_save_jinja_files processor_type processor_kwargs cls_model_config
    is_falcon_derived_model is_llama_derived_model is_mistral_derived_model is_qwen_derived_model
    experimental_skip_move_to_device low_cpu_mem_usage device device_map world_size ddp gptq gptq_groupsize
    gptq_model_v1 gptq_disable_exllama lora_fan_in_fan_out lora_on_cpu lora_out_dir qlora_sharded_model_loading peft_layers_pattern
    loraplus_lr_embedding merge_lora merge_method lora_embedding_kernel embeddings_skip_upcast
    mean_resizing_embeddings shrink_embeddings fix_untrained_tokens auto_resume_from_checkpoints saves_per_epoch
    save_first_step dynamic_checkpoint loss_watchdog_threshold loss_watchdog_patience gc_steps gc_collect_steps
    torchdistx_path fsdp_version fsdp_final_state_dict_type fp8_enable_fsdp_float8_all_gather
    flex_attn_compile_kwargs flash_optimum heads_k_stride ring_attn_func torch_compile_options
    eval_batch_size eval_sequence_len eval_sample_packing eval_table_size eval_max_new_tokens
    eval_causal_lm_metrics do_causal_lm_eval do_bench_eval bench_dataset bench_split
    model_quantization_config_kwargs capabilities env_capabilities axolotl_config_path total_num_tokens
    total_supervised_tokens is_preprocess image_size image_resize_algorithm role_boundaries
    hf_use_auth_token quantization eot_tokens bnb_config_kwargs bnb_4bit_use_double_quant load_in_8bit lora_model_dir
    adam_beta3 adam_epsilon2 dion_lr dion_momentum dion_rank_fraction dion_rank_multiple_of qgalore_rank
    qgalore_update_proj_gap qgalore_scale qgalore_proj_type qgalore_proj_quant qgalore_proj_bits
    qgalore_proj_group_size qgalore_cos_threshold qgalore_gamma_proj qgalore_queue_size lr_div_factor
    torch_compile_backend torch_compile_mode
    liger_rms_norm_gated liger_layer_norm liger_use_token_scaling liger_kernel_impl";

/// Keys of trackers, servers and samples.
const SILENT_OF_LOGS: &str = "
    use_wandb wandb_name wandb_run_id wandb_mode wandb_project wandb_entity wandb_watch wandb_log_model
    use_mlflow mlflow_tracking_uri mlflow_experiment_name mlflow_run_name hf_mlflow_log_artifacts
    use_comet comet_api_key comet_workspace comet_project_name comet_experiment_key comet_mode comet_online
    comet_experiment_config use_trackio trackio_project_name trackio_run_name
    use_swanlab swanlab_project swanlab_experiment_name swanlab_description swanlab_mode swanlab_workspace
    swanlab_api_key swanlab_log_model swanlab_web_host swanlab_api_host swanlab_lark_webhook_url swanlab_lark_secret
    swanlab_log_completions swanlab_completion_log_interval swanlab_completion_max_buffer
    use_otel_metrics otel_metrics_host otel_metrics_port use_tensorboard profiler_steps profiler_steps_start
    include_tkps gradio_title gradio_share gradio_server_name gradio_server_port gradio_max_new_tokens
    gradio_temperature use_ray ray_run_name ray_num_workers resources_per_worker
    generate_samples num_generation_samples generation_max_new_tokens generation_temperature generation_top_p
    generation_top_k generation_prompt_ratio generation_do_sample lm_eval_tasks lm_eval_batch_size
    lm_eval_post_train lm_eval_model llmcompressor";

/// Keys of trainers that `rl` or a plugin asks for.
const SILENT_OF_OTHER_TRAINERS: &str = "
    rl_beta dpo_beta dpo_use_weighting dpo_label_smoothing dpo_use_liger_kernel dpo_padding_free dpo_loss_type
    dpo_loss_weights dpo_use_logits_to_keep dpo_generate_during_eval dpo_norm_loss rpo_alpha
    precompute_ref_log_probs orpo_alpha simpo_gamma cpo_alpha kto_desirable_weight kto_undesirable_weight trl vllm
    ebft center_rewards_coefficient num_labels max_prompt_len
    kd_ce_alpha kd_alpha kd_temperature kd_temperature_min kd_beta kd_normalize_topk kd_online_server_base_url
    kd_online_topk kd_online_server kd_online_timeout kd_zscore_base_temp kd_top_k_before_softmax
    nemo_gym_enabled nemo_gym_dir nemo_gym_auto_clone nemo_gym_config_paths nemo_gym_head_port
    nemo_gym_server_timeout nemo_gym_verify_timeout nemo_gym_run_timeout nemo_gym_datasets nemo_gym_auto_start
    nemo_gym_model_name nemo_gym_multi_turn nemo_gym_max_turns hatchery grokfast_alpha grokfast_lamb
    spectrum_top_fraction spectrum_model_name diffusion mora eaft_alpha eaft_k scaling_softmax_factor
    scaling_softmax_bias tiled_mlp_num_shards tiled_mlp_use_original_mlp relora_prune_ratio relora_prune_method
    relora_cpu_offload relora_warmup_steps relora_anneal_steps jagged_restart_warmup_steps
    jagged_restart_anneal_steps lisa_step_interval lisa_layers_attribute pose_split_on_token_ids
    pose_max_context_len pose_num_chunks expert_parallel_backend expert_parallel_num_nvl_bytes
    expert_parallel_num_rdma_bytes expert_parallel_token_capacity expert_parallel_fallback_on_unsupported
    dsv4_fp4_grouped_mode dsv4_fp8_lora_kernel dsv4_fp8_nonexpert_mode dsv4_shared_mlp_lora_kernel
    nvfp4_merge_aware_start_step nonexpert_quantization moe_grouped_backend moe_dequant_chunk_size moe_bnb_fast";

/// Keys of how rows are read, kept and packed.
const SILENT_OF_DATA: &str = "
    dataset_prepared_path dataset_keep_in_memory skip_prepare_dataset num_dataset_shards_to_save
    push_dataset_to_hub preprocess_iterable streaming streaming_multipack_buffer_size
    shuffle_before_merging_datasets sample_packing_group_size sample_packing_bin_size sample_packing_sequentially
    sample_packing_mp_start_method sample_packing_eff_est max_packed_sequence_len multipack_real_batches
    pretrain_multipack_buffer_size pretrain_multipack_attn pretraining_sample_concatenation pad_to_sequence_len
    pad_to_multiple_of sdpa_varlen
    datasets.revision datasets.field datasets.field_messages datasets.message_property_mappings
    datasets.roles_to_train datasets.ds_type datasets.train_on_eos datasets.train_on_eot datasets.name datasets.roles
    datasets.preprocess_shards datasets.trust_remote_code datasets.conversation datasets.field_tools
    datasets.field_human datasets.field_model datasets.input_format datasets.train_on_split
    datasets.logprobs_field datasets.temperature";

const TOLD: &[ToldKey] = &[
    learnt(
        "model_revision",
        "another revision of the model is trained there; write `model: ID@REVISION`",
    )
    .unless(&["main"]),
    learnt(
        "revision_of_model",
        "another revision of the model is trained there; write `model: ID@REVISION`",
    )
    .unless(&["main"]),
    learnt("tokenizer_config", "the tokenizer of another model is taken there"),
    learnt("noisy_embedding_alpha", "noise is added to embeddings there"),
    learnt("embedding_lr", "embeddings have a learning rate of their own there"),
    learnt(
        "embedding_lr_scale",
        "embeddings have a learning rate of their own there",
    ),
    learnt("lr_groups", "modules have learning rates of their own there"),
    learnt("lr_quadratic_warmup", "the warm-up is quadratic there"),
    learnt(
        "cosine_constant_lr_ratio",
        "the learning rate stays at its lowest from this share of the steps on there",
    ),
    learnt("early_stopping_patience", "the training may end early there"),
    learnt("relora", "adapters are merged and start anew there (ReLoRA)"),
    learnt("relora_steps", "adapters are merged and start anew there (ReLoRA)"),
    learnt(
        "jagged_restart_steps",
        "the learning rate starts anew every so many steps there",
    ),
    learnt("peft", "adapters start from what quantization loses there (LoftQ)"),
    learnt("peft_ensure_weight_tying", "adapters of tied weights are tied there"),
    learnt("use_eaft", "the loss is weighted (EAFT) there"),
    learnt("scaling_softmax", "attention is scaled by the length there"),
    learnt("use_pose", "positions are skipped there (PoSE)"),
    learnt("reinit_weights", "the model starts from random weights there"),
    learnt("qat", "a later quantization is taken into account there"),
    learnt("rope_scaling", "positions are scaled there"),
    learnt("rl", "another trainer compares answers there"),
    learnt("kd_trainer", "another model's answers are learnt there"),
    learnt("reward_model", "a model of rewards is trained there"),
    learnt("process_reward_model", "a model of rewards is trained there"),
    costly(
        "base_model_config",
        "the model's dimensions are those of another file there",
    ),
    costly("model_config", "keys of the model's config.json are changed there"),
    costly(
        "overrides_of_model_config",
        "keys of the model's config.json are changed there",
    ),
    costly(
        "model_kwargs",
        "the model is loaded by arguments that are not read here",
    ),
    costly(
        "overrides_of_model_kwargs",
        "the model is loaded by arguments that are not read here",
    ),
    costly("model_quantization_config", "weights are loaded in another form there"),
    costly("use_onebitllms", "weights of BitNet are trained there"),
    costly("trainer_cls", "a trainer of its own trains there"),
    costly(
        "resize_token_embeddings_to_32x",
        "the embedding gets another size there",
    ),
    costly("tokens", "tokens are added to the vocabulary there"),
    costly("added_tokens_overrides", "tokens of the vocabulary are replaced there"),
    costly(
        "unfrozen_parameters",
        "parameters of other names stay as they are there",
    ),
    costly(
        "lisa_n_layers",
        "so many layers alone are trained at a time there (LISA)",
    ),
    costly(
        "freeze_mm_modules",
        "what stands beside the language model is trained too there",
    )
    .unless(&["true"]),
    costly("peft_layer_replication", "layers are repeated there"),
    costly(
        "peft_trainable_token_indices",
        "rows of the embedding are trained too there",
    ),
    costly(
        "peft_autocast_adapter_dtype",
        "adapters have the dtype of the weights there",
    )
    .unless(&["true"]),
    costly(
        "selective_checkpointing",
        "some ops of a layer are kept and not recomputed there",
    ),
    costly("layer_offloading", "weights of layers lie in the host's memory there"),
    costly("fp8_config", "products are in FP8 there, by settings of their own"),
    costly(
        "ple_cpu_offload",
        "tables of embeddings that layers read lie in the host's memory there",
    ),
    costly("tiled_mlp", "MLPs are computed in tiles there"),
    costly("s2_attention", "attention is shifted (S2) there"),
    costly("gemma4_hybrid_attn_impl", "attention is computed in two ways there"),
    costly(
        "large_head_attention",
        "attention of wide heads is computed in its own way there",
    ),
    costly(
        "flash_attn_d512",
        "attention of wide heads is computed in its own way there",
    ),
    costly(
        "fused_attn_kernel",
        "norms and rotation of queries and keys are one kernel there",
    ),
    costly("flash_attn_fuse_mlp", "the MLP is one kernel there"),
    costly("flash_attn_fuse_qkv", "queries, keys and values are one product there"),
    costly("flash_attn_rms_norm", "norms are one kernel there"),
    costly("unsloth_lora_mlp", "LoRA's products are written by hand there"),
    costly("unsloth_lora_qkv", "LoRA's products are written by hand there"),
    costly("unsloth_lora_o", "LoRA's products are written by hand there"),
    costly("unsloth_rms_norm", "norms are one kernel there"),
    costly("unsloth_rope", "rotation is one kernel there"),
    costly("lora_o_kernel", "LoRA's output products are written by hand there"),
    costly("use_kernels", "kernels of the hub are taken there"),
    costly("experts_implementation", "experts are computed in another way there"),
    costly("expert_backend", "experts are computed in another way there"),
    costly("quantize_moe_experts", "experts are quantized too there"),
    costly("use_dsv4_kernels", "kernels of one family train there"),
    costly("use_glm_dsa_kernels", "kernels of one family train there"),
    costly("dsv4_bf16_all", "weights are loaded in another form there"),
    costly("gemma4_fp8_nonexpert", "weights beside the experts are in FP8 there"),
    costly("gemma4_nf4_nonexpert", "weights beside the experts are in NF4 there"),
    costly("nvfp4_merge_aware", "a later quantization is taken into account there"),
    costly("use_scattermoe", "experts are computed in another way there"),
    costly("use_sonicmoe", "experts are computed in another way there"),
    costly("llama4_linearized_experts", "experts are linear layers there"),
    costly("dense_mixer", "tokens go through all experts there"),
    costly(
        "batch_flattening",
        "rows of a micro-batch are laid end to end there, without padding",
    )
    .unless(&["false"]),
    costly("fp8", "products are in FP8 there"),
    costly("fp32_norms", "norms are in F32 there"),
    costly("fp32_norm_classes", "norms are in F32 there"),
    costly("deepcompile", "DeepSpeed compiles the step there"),
    costly(
        "dp_shard_size",
        "so many devices share weights out there; say so with --devices",
    )
    .unless(&["1"]),
    costly("dp_replicate_size", "so many groups of devices share the work there").unless(&["1"]),
    costly("sequence_parallel_degree", "devices share sequences out there").unless(&["1"]),
    costly("context_parallel_size", "devices share sequences out there").unless(&["1"]),
    costly("tensor_parallel_size", "devices share tensors out there").unless(&["1"]),
    costly("expert_parallel_size", "devices share experts out there").unless(&["1"]),
    costly("max_memory", "what exceeds these sizes is placed elsewhere there"),
    costly("gpu_memory_limit", "what exceeds this size is placed elsewhere there"),
];

const TOLD_OF_DATA: &[ToldKey] = &[
    learnt("dataset_exact_deduplication", "rows that are alike count once there"),
    learnt("min_sample_len", "shorter rows are left out there"),
    learnt("dataset_shard_num", "one part of the rows alone is read there"),
    learnt("dataset_shard_idx", "one part of the rows alone is read there"),
    learnt("default_system_message", "a system text is put before each row there"),
    learnt("chat_template_kwargs", "the chat template gets arguments there"),
    learnt("datasets.shards", "one part of the rows alone is read there"),
    learnt("datasets.shards_idx", "one part of the rows alone is read there"),
    learnt("datasets.input_transform", "rows are changed by a function there"),
    learnt("datasets.chat_template", "a chat template of its own is written there"),
    learnt(
        "datasets.chat_template_jinja",
        "a chat template of its own is written there",
    ),
    learnt("datasets.field_thinking", "thoughts are a column of their own there"),
    learnt(
        "datasets.template_thinking_key",
        "thoughts are a column of their own there",
    ),
    learnt("datasets.split_thinking", "thoughts are taken out of answers there"),
    learnt(
        "datasets.message_field_role",
        "the role of a message has another name there",
    )
    .unless(&["role", "from"]),
    learnt(
        "datasets.message_field_content",
        "the text of a message has another name there",
    )
    .unless(&["content", "value"]),
    learnt(
        "datasets.message_field_training",
        "turns say themselves whether they are learnt there",
    ),
    learnt(
        "datasets.message_field_training_detail",
        "turns say themselves what of them is learnt there",
    ),
    learnt("datasets.drop_system_message", "system texts are left out there"),
    learnt("datasets.skip", "the first rows are left out there"),
    learnt("datasets.type.format", "texts are put around prompts there").unless(&["{instruction}"]),
    learnt("datasets.type.no_input_format", "texts are put around prompts there").unless(&["{instruction}"]),
    learnt("datasets.type.field_input", "a second column is put into prompts there"),
    learnt(
        "datasets.type.field_system",
        "a column of system texts is put before prompts there",
    ),
    learnt("datasets.type.prompt_format", "texts are put around prompts there").unless(&["{prompt}"]),
    learnt("datasets.type.chosen_format", "texts are put around answers there").unless(&["{chosen}"]),
    learnt("datasets.type.rejected_format", "texts are put around answers there").unless(&["{rejected}"]),
    learnt("datasets.type.completion_format", "texts are put around answers there").unless(&["{completion}"]),
    learnt(
        "datasets.type.system_prompt",
        "a system text is put before each row there",
    ),
    learnt(
        "datasets.type.system_format",
        "texts are put around the system text there",
    ),
];
