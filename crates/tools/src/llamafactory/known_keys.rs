//! Keys of LLaMA-Factory (0.5 to 0.9.5) that no recipe has: those of its own arguments, and of transformers' `Seq2SeqTrainingArguments`.

use crate::known_keys::{KnownKeys, ToldKey, costly, learnt};
use crate::training_arguments;

pub(super) const KNOWN: KnownKeys = KnownKeys {
    version: "0.9.5",
    silent: &[
        SILENT,
        SILENT_OF_OTHER_STAGES,
        SILENT_OF_OTHER_METHODS,
        SILENT_BESIDE_LANGUAGE,
        SILENT_OF_INFERENCE,
        SILENT_OF_MEGATRON,
        training_arguments::SILENT,
        training_arguments::SILENT_OF_FSDP,
    ],
    told: &[TOLD, training_arguments::TOLD],
};

const SILENT: &str = "
    streaming buffer_size overwrite_cache preprocessing_batch_size ignore_pad_token_for_loss eval_on_each_dataset
    eval_num_beams data_shared_file_system media_dir cache_dir use_fast_tokenizer adapter_folder low_cpu_mem_usage
    offload_folder print_param_status hf_hub_token ms_hub_token om_hub_token quantization_device_map device_map
    model_max_length block_diag_attn compute_dtype use_reentrant_gc init_special_tokens pissa_convert
    create_new_adapter pissa_iter double_quantization adapter_name_or_path loraplus_lr_embedding compute_accuracy
    plot_loss include_effective_tokens_per_second
    use_swanlab swanlab_project swanlab_workspace swanlab_run_name swanlab_mode swanlab_api_key swanlab_logdir
    swanlab_lark_webhook_url swanlab_lark_secret ray_run_name ray_storage_path ray_storage_filesystem
    ray_num_workers ray_init_kwargs resources_per_worker placement_strategy master_addr master_port
    enable_torch_profiler profiler_output_dir profiler_wait_steps profiler_warmup_steps profiler_active_steps
    profiler_repeat profiler_record_shapes profiler_profile_memory profiler_with_stack profile_modules
    task task_dir lang n_shot save_dir download_mode hyper_parallel_args reserved_label_len split
    visual_inputs cache_path batch_size image_dir";

/// Keys of stages that compare answers or reward them.
const SILENT_OF_OTHER_STAGES: &str = "
    pref_beta pref_ftx pref_bco_weight pref_loss dpo_beta dpo_loss dpo_ftx dpo_label_smoothing
    kto_chosen_weight kto_rejected_weight orpo_beta simpo_gamma ppo_buffer_size ppo_epochs ppo_score_norm ppo_target
    ppo_whiten_rewards ref_model ref_model_adapters ref_model_quantization_bit reward_model reward_model_adapters
    reward_model_quantization_bit reward_model_type ld_alpha ppo_logger";

/// Keys that say something of methods, optimizers and losses which other keys turn on.
const SILENT_OF_OTHER_METHODS: &str = "
    freeze_trainable_layers freeze_trainable_modules freeze_extra_modules name_module_trainable num_layer_trainable
    module_dropout oft_rank oft_block_size oft_target
    galore_target galore_rank galore_update_interval galore_scale galore_proj_type galore_layerwise
    apollo_target apollo_rank apollo_update_interval apollo_scale apollo_proj apollo_proj_type apollo_scale_type
    apollo_layerwise apollo_scale_front
    badam_mode badam_start_block badam_switch_mode badam_switch_interval badam_update_ratio badam_mask_mode
    badam_switch_block_every badam_verbose asft_alpha eaft_alpha fp8_backend fp8_enable_fsdp_float8_all_gather
    kt_config kt_cpu_activation kt_non_expert_weight_path kt_weight_path kt_expert_checkpoint_path kt_use_lora_experts kt_lora_expert_num
    kt_lora_expert_intermediate_size";

/// Keys of images, videos and sounds.
const SILENT_BESIDE_LANGUAGE: &str = "
    image_max_pixels image_min_pixels image_resolution image_do_pan_and_scan crop_to_patches video_max_pixels
    video_min_pixels video_resolution video_fps video_maxlen use_audio_in_video audio_sampling_rate";

/// Keys of Megatron's own kernels, communication and files.
const SILENT_OF_MEGATRON: &str = "
    sequence_parallel virtual_pipeline_model_parallel_size bias_activation_fusion apply_rope_fusion
    masked_softmax_fusion cross_entropy_loss_fusion use_distributed_optimizer overlap_param_gather overlap_grad_reduce
    moe_grouped_gemm moe_token_dispatcher_type recompute_method recompute_num_layers mixed_precision
    use_packed_sequences export_hf_on_finish megatron_pretrained_checkpoint extra_config";

/// Keys of generation, export and inference.
const SILENT_OF_INFERENCE: &str = "
    do_sample temperature top_p top_k num_beams max_length max_new_tokens repetition_penalty length_penalty
    skip_special_tokens infer_backend infer_dtype use_kv_cache export_dir export_size export_device
    export_quantization_bit export_quantization_dataset export_quantization_nsamples export_quantization_maxlen
    export_legacy_format export_hub_model_id vllm_maxlen vllm_gpu_util vllm_enforce_eager vllm_max_lora_rank
    vllm_config sglang_maxlen sglang_mem_fraction sglang_tp_size sglang_config sglang_lora_backend";

const TOLD: &[ToldKey] = &[
    learnt(
        "model_revision",
        "another revision of the model is trained there; write `model: ID@REVISION`",
    )
    .unless(&["main"]),
    learnt("tokenized_path", "rows that were tokenised before are read there"),
    learnt("mask_history", "the last answer of a chat alone is learnt there"),
    learnt("tool_format", "calls of tools are written in a form of their own there"),
    learnt("default_system", "a system text is put before chats without one there"),
    learnt("enable_thinking", "the template has no room for thoughts there").unless(&["true"]),
    learnt("preserve_thinking", "thoughts of earlier turns are kept there"),
    learnt("early_stopping_steps", "the training may end early there"),
    learnt("split_special_tokens", "special tokens in texts are split there"),
    learnt("rope_scaling", "positions are scaled there"),
    learnt("moe_aux_loss_coef", "experts are balanced by a loss there"),
    learnt("train_from_scratch", "the model starts from random weights there"),
    learnt("use_dft_loss", "the loss is weighted (DFT) there"),
    learnt("use_asft_loss", "the loss is weighted (ASFT) there"),
    learnt("use_eaft_loss", "the loss is weighted (EAFT) there"),
    learnt("freeze_vision_tower", "the vision tower is trained too there").unless(&["true"]),
    learnt(
        "freeze_multi_modal_projector",
        "the projector of images is trained too there",
    )
    .unless(&["true"]),
    costly("train_mm_proj_only", "the projector of images alone is trained there"),
    learnt("freeze_language_model", "the language model is not trained there"),
    costly("resize_vocab", "the embedding gets another size there"),
    costly("add_tokens", "tokens are added to the vocabulary there"),
    costly("add_special_tokens", "tokens are added to the vocabulary there"),
    costly("new_special_tokens", "tokens are added to the vocabulary there"),
    costly("new_special_tokens_config", "tokens are added to the vocabulary there"),
    costly(
        "use_llama_pro",
        "the layers that were added to the model alone are trained there",
    ),
    costly("use_galore", "the optimizer is GaLore there"),
    costly("use_apollo", "the optimizer is APOLLO there"),
    costly("use_badam", "the optimizer is BAdam there"),
    costly("use_adam_mini", "the optimizer is Adam-mini there"),
    costly("shift_attn", "attention is shifted (S2) there"),
    costly("mixture_of_depths", "tokens skip layers there"),
    costly("use_unsloth", "unsloth's kernels train there"),
    costly("use_v1_kernels", "kernels of its second version train there"),
    costly("upcast_layernorm", "norms are in F32 there"),
    costly("upcast_lmhead_output", "logits are raised to F32 there"),
    costly("fp8", "products are in FP8 there"),
    costly("use_kt", "experts are computed on the host there"),
    costly("use_mca", "Megatron trains there"),
    costly("tensor_model_parallel_size", "Megatron shares tensors out there").unless(&["1"]),
    costly("pipeline_model_parallel_size", "Megatron shares layers out there").unless(&["1"]),
    costly("expert_model_parallel_size", "Megatron shares experts out there").unless(&["1"]),
    costly("context_parallel_size", "Megatron shares sequences out there").unless(&["1"]),
    costly(
        "recompute_granularity",
        "Megatron recomputes layers in its own way there",
    ),
    costly("use_hyper_parallel", "HyperParallel shares weights out there"),
];
