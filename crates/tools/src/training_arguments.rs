//! Keys of transformers' `TrainingArguments` (4 and 5) that no recipe has. TRL, axolotl, LLaMA-Factory and unsloth have them too.

use super::known_keys::{ToldKey, costly, learnt};

/// Keys that change neither a setting nor the memory and speed of a step: logs, files, evaluation, processes, the loader.
pub(crate) const SILENT: &str = "
    output_dir overwrite_output_dir do_train do_eval do_predict prediction_loss_only
    per_device_eval_batch_size per_gpu_eval_batch_size eval_accumulation_steps eval_delay eval_on_start
    eval_do_concat_batches eval_use_gather_object batch_eval_metrics include_for_metrics
    include_inputs_for_metrics include_num_input_tokens_seen include_tokens_per_second bf16_full_eval
    fp16_full_eval jit_mode_eval metric_for_best_model greater_is_better
    log_level log_level_replica log_on_each_node logging_dir logging_strategy logging_first_step logging_steps
    logging_nan_inf_filter disable_tqdm report_to run_name project trackio_space_id trackio_bucket_id
    trackio_static_space_id
    save_strategy save_steps save_total_limit save_safetensors save_on_each_node save_only_model
    enable_jit_checkpoint resume_from_checkpoint ignore_data_skip restore_callback_states_from_checkpoint
    push_to_hub hub_model_id hub_strategy hub_token hub_private_repo hub_always_push hub_revision
    push_to_hub_model_id push_to_hub_organization push_to_hub_token
    no_cuda use_cpu use_mps_device use_ipex xpu_backend tpu_num_cores tpu_metrics_debug debug local_rank
    ddp_backend ddp_timeout ddp_find_unused_parameters ddp_bucket_cap_mb ddp_broadcast_buffers ddp_static_graph
    skip_memory_metrics past_index label_names length_column_name remove_unused_columns data_seed
    dataloader_pin_memory dataloader_persistent_workers dispatch_batches accelerator_config
    use_legacy_prediction_loop fp16_opt_level fp16_backend half_precision_backend mp_parameters ray_scope
    torchdynamo use_cache average_tokens_across_devices gradient_checkpointing_kwargs trust_remote_code
    fsdp_min_num_params fsdp_transformer_layer_cls_to_wrap
    predict_with_generate generation_config generation_max_length generation_num_beams sortish_sampler";

/// Keys of FSDP's settings that say how layers are wrapped, loaded and saved, with and without their prefix.
pub(crate) const SILENT_OF_FSDP: &str = "
    fsdp_config.fsdp_version fsdp_config.version fsdp_config.auto_wrap_policy fsdp_config.fsdp_auto_wrap_policy
    fsdp_config.transformer_layer_cls_to_wrap fsdp_config.fsdp_transformer_layer_cls_to_wrap
    fsdp_config.min_num_params fsdp_config.fsdp_min_num_params fsdp_config.state_dict_type
    fsdp_config.fsdp_state_dict_type fsdp_config.final_state_dict_type fsdp_config.fsdp_final_state_dict_type
    fsdp_config.use_orig_params fsdp_config.fsdp_use_orig_params fsdp_config.sync_module_states
    fsdp_config.fsdp_sync_module_states fsdp_config.cpu_ram_efficient_loading
    fsdp_config.fsdp_cpu_ram_efficient_loading fsdp_config.cpu_offload_pin_memory
    fsdp_config.fsdp_cpu_offload_pin_memory fsdp_config.backward_prefetch fsdp_config.fsdp_backward_prefetch
    fsdp_config.fsdp_backward_prefetch_policy fsdp_config.forward_prefetch fsdp_config.fsdp_forward_prefetch
    fsdp_config.limit_all_gathers fsdp_config.fsdp_limit_all_gathers fsdp_config.mixed_precision_policy
    fsdp_config.fsdp_mixed_precision_policy fsdp_config.xla fsdp_config.xla_fsdp_settings
    fsdp_config.xla_fsdp_grad_ckpt fsdp_config.xla_fsdp_v2";

/// Keys that change what is learnt, or the memory and speed of a step.
pub(crate) const TOLD: &[ToldKey] = &[
    learnt("neftune_noise_alpha", "noise is added to embeddings there"),
    learnt("label_smoothing_factor", "targets are smoothed there"),
    learnt(
        "load_best_model_at_end",
        "the weights of the best evaluation are kept there, and here those of the last step",
    ),
    learnt(
        "dataloader_drop_last",
        "the last rows of an epoch are left out there where they fill no micro-batch",
    ),
    learnt("split_batches", "the micro-batch is that of all devices together there"),
    costly(
        "auto_find_batch_size",
        "a micro-batch that does not fit is made smaller there until it does",
    ),
    costly(
        "torch_empty_cache_steps",
        "cached memory is given back every so many steps there",
    ),
    costly(
        "full_determinism",
        "kernels are the deterministic ones there, which take longer",
    ),
    costly("liger_kernel_config", "liger's kernels are chosen one by one there"),
    costly(
        "optim_target_modules",
        "the optimizer works on projections of some modules there",
    ),
    costly("parallelism_config", "devices share sequences or tensors out there"),
    learnt(
        "lr_scheduler_kwargs.num_cycles",
        "the learning rate has other cycles there",
    )
    .unless(&["0.5"]),
    learnt(
        "lr_scheduler_kwargs.power",
        "the learning rate falls by another power there",
    )
    .unless(&["1"]),
    learnt("lr_scheduler_kwargs.lr_end", "the learning rate ends elsewhere there").unless(&["1e-7"]),
    learnt(
        "lr_scheduler_kwargs.num_stable_steps",
        "the learning rate stays for as many steps there",
    ),
    learnt("lr_scheduler_kwargs.warmup_type", "the warm-up has another form there").unless(&["linear"]),
    learnt(
        "lr_scheduler_kwargs.timescale",
        "the learning rate falls on another scale there",
    ),
];
