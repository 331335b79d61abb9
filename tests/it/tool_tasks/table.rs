//! Small files of other tools, with what `init --from` and `plan --check` make of each.

use Ends::{Refused, Says};

/// Parts of what is told, or of the study that is written.
type Parts = &'static [&'static str];

/// How a command ends.
pub(super) enum Ends {
    Says(Parts),
    /// Bad input, with parts of the message.
    Refused(Parts),
}

/// A file, and what becomes of it.
pub(super) struct ToolFile {
    pub name: &'static str,
    /// Lines that files of its tool have in common.
    pub base: &'static str,
    pub more: &'static str,
    /// Rows that are given beside it.
    pub rows: &'static str,
    pub init: Ends,
    pub check: Ends,
}

pub(super) const ANSWERS: &str = "answers.jsonl";
pub(super) const PAIRS: &str = "pairs.jsonl";
pub(super) const LABELS: &str = "labels.jsonl";

const AXOLOTL: &str = "base_model: ./model\nadapter: lora\nlora_r: 8\nlora_target_linear: true\nmicro_batch_size: 2\n\
                       gradient_accumulation_steps: 2\nsequence_len: 512\nbf16: true\n";
const FACTORY: &str = "model_name_or_path: ./model\nfinetuning_type: lora\nlora_target: all\ncutoff_len: 512\n\
                       per_device_train_batch_size: 2\nbf16: true\n";
const TUNE: &str = "model:\n  _component_: torchtune.models.llama3_2.lora_llama3_2_1b\n  lora_rank: 8\n  lora_attn_modules: [q_proj]\n\
                    checkpointer: {checkpoint_dir: ./model}\ntokenizer: {max_seq_len: 512}\nbatch_size: 2\ndtype: bf16\n";
const TRL: &str = "model_name_or_path: ./model\nuse_peft: true\nlora_r: 8\nmax_length: 512\nper_device_train_batch_size: 2\n\
                   dtype: bfloat16\n";
const ADAPTER: &str = "base_model_name_or_path: ./model\ntarget_modules: [q_proj]\n";
const COMMAND: &str = "--model_name_or_path ./model --use_peft --lora_r 8 --max_length 512 --per_device_train_batch_size 2 --dtype bfloat16 ";

const AXOLOTL_FILE: &str = "axolotl.yaml";
const FACTORY_FILE: &str = "llamafactory.yaml";
const TUNE_FILE: &str = "torchtune.yaml";
const TRL_FILE: &str = "config.yaml";
const ADAPTER_FILE: &str = "adapter_config.yaml";
const SHELL_FILE: &str = "train.sh";

pub(super) const FILES: &[ToolFile] = &[
    // What trains something else, or nothing.
    refused(
        AXOLOTL_FILE,
        AXOLOTL,
        "rl: grpo\n",
        &["by `rl: grpo` axolotl writes answers while it trains"],
    ),
    refused(AXOLOTL_FILE, AXOLOTL, "rl: gdpo\n", &["`rl: gdpo`", "writes answers"]),
    refused(
        AXOLOTL_FILE,
        AXOLOTL,
        "rl: ipo\n",
        &["`rl: ipo`", "a loss that no trainer here has"],
    ),
    refused(
        AXOLOTL_FILE,
        AXOLOTL,
        "rl: simpo\n",
        &["`rl: simpo`", "a loss that no trainer here has"],
    ),
    refused(
        AXOLOTL_FILE,
        AXOLOTL,
        "rl: mystery\n",
        &["`rl: mystery`", "not known here"],
    ),
    refused(
        AXOLOTL_FILE,
        AXOLOTL,
        "rl: dpo\ndpo_loss_type: [ipo]\n",
        &["`dpo_loss_type: [\"ipo\"]`", "a loss"],
    ),
    refused(
        AXOLOTL_FILE,
        AXOLOTL,
        "rl: dpo\nrpo_alpha: 0.5\n",
        &["`rpo_alpha: 0.5`", "adds a loss"],
    ),
    refused(
        AXOLOTL_FILE,
        AXOLOTL,
        "reward_model: true\n",
        &["`reward_model: true`", "scores answers"],
    ),
    refused(
        AXOLOTL_FILE,
        AXOLOTL,
        "process_reward_model: true\n",
        &["`process_reward_model: true`", "scores answers"],
    ),
    refused(
        AXOLOTL_FILE,
        AXOLOTL,
        "model_type: AutoModelForSequenceClassification\n",
        &["`model_type: AutoModelForSequenceClassification`", "sorts texts"],
    ),
    refused(
        AXOLOTL_FILE,
        AXOLOTL,
        "processor_type: AutoProcessor\n",
        &["`processor_type: AutoProcessor`", "images"],
    ),
    refused(
        AXOLOTL_FILE,
        AXOLOTL,
        "qat:\n  weight_dtype: int4\n",
        &["`qat: ", "QAT"],
    ),
    refused(
        AXOLOTL_FILE,
        AXOLOTL,
        "quantization:\n  weight_dtype: int4\n",
        &["`quantization: ", "trains nothing"],
    ),
    refused(
        AXOLOTL_FILE,
        AXOLOTL,
        "plugins: [axolotl.integrations.kd.KDPlugin]\n",
        &["`plugins: ", "distillation"],
    ),
    refused(
        AXOLOTL_FILE,
        AXOLOTL,
        "plugins: [axolotl.integrations.spectrum.SpectrumPlugin]\n",
        &["`plugins: ", "some of the weights"],
    ),
    refused(
        AXOLOTL_FILE,
        AXOLOTL,
        "unfrozen_parameters: [lm_head.weight]\n",
        &["`unfrozen_parameters: ", "some of the weights"],
    ),
    refused(AXOLOTL_FILE, AXOLOTL, "relora: true\n", &["`relora: true`", "ReLoRA"]),
    refused(
        AXOLOTL_FILE,
        "base_model: ./model\nmicro_batch_size: 1\n",
        "adapter: llama-adapter\n",
        &["`adapter`", "lora or qlora"],
    ),
    refused(
        FACTORY_FILE,
        FACTORY,
        "stage: rm\n",
        &["by `stage: rm` LLaMA-Factory", "scores answers"],
    ),
    refused(
        FACTORY_FILE,
        FACTORY,
        "stage: ppo\n",
        &["`stage: ppo`", "writes answers"],
    ),
    refused(
        FACTORY_FILE,
        FACTORY,
        "stage: dpo\npref_loss: simpo\n",
        &["`pref_loss: simpo`", "a loss"],
    ),
    refused(
        FACTORY_FILE,
        FACTORY,
        "stage: dpo\npref_ftx: 1.0\n",
        &["`pref_ftx: 1.0`", "adds a loss"],
    ),
    refused(
        FACTORY_FILE,
        FACTORY,
        "stage: sft\nimage_max_pixels: 262144\n",
        &["`image_max_pixels: 262144`", "images"],
    ),
    refused(
        FACTORY_FILE,
        FACTORY,
        "stage: sft\ndo_predict: true\n",
        &["`do_predict: true`", "trains nothing"],
    ),
    refused(
        FACTORY_FILE,
        FACTORY,
        "task: mmlu_test\nn_shot: 5\n",
        &["`n_shot: 5`", "evaluates"],
    ),
    refused(
        FACTORY_FILE,
        FACTORY,
        "mixture_of_depths: convert\n",
        &["`mixture_of_depths: convert`", "pass tokens over"],
    ),
    refused(
        FACTORY_FILE,
        "model_name_or_path: ./model\nadapter_name_or_path: saves/one\n",
        "export_dir: saves/merged\n",
        &["`export_dir: saves/merged`", "merged"],
    ),
    refused(
        FACTORY_FILE,
        "model_name_or_path: ./model\n",
        "infer_backend: huggingface\n",
        &[
            "`infer_backend: huggingface`",
            "LLaMA-Factory writes answers, and trains nothing",
        ],
    ),
    refused(
        FACTORY_FILE,
        "model_name_or_path: ./model\n",
        "finetuning_type: freeze\n",
        &["`finetuning_type`", "lora or full"],
    ),
    refused(
        TUNE_FILE,
        "policy_model: {_component_: torchtune.models.mistral.mistral_7b}\n",
        "loss: {_component_: torchtune.rlhf.loss.PPOLoss}\n",
        &["by `loss._component_: torchtune.rlhf.loss.PPOLoss` torchtune writes answers"],
    ),
    refused(
        TUNE_FILE,
        TUNE,
        "grpo_samples: 8\n",
        &["`grpo_samples: 8`", "writes answers"],
    ),
    refused(
        TUNE_FILE,
        TUNE,
        "teacher_model: {_component_: torchtune.models.llama3_1.llama3_1_8b}\n",
        &["`teacher_model: ", "distillation"],
    ),
    refused(
        TUNE_FILE,
        TUNE,
        "quantizer: {_component_: torchtune.training.quantization.Int8DynActInt4WeightQATQuantizer}\n",
        &["`quantizer._component_: torchtune.training.quantization.", "QAT"],
    ),
    refused(
        TUNE_FILE,
        TUNE,
        "quantizer: {_component_: torchtune.training.quantization.Int8DynActInt4WeightQuantizer}\n",
        &["`quantizer: ", "trains nothing"],
    ),
    refused(TUNE_FILE, TUNE, "tasks: [truthfulqa_mc2]\n", &["`tasks: ", "evaluates"]),
    refused(
        TUNE_FILE,
        TUNE,
        "max_new_tokens: 100\n",
        &["`max_new_tokens: 100`", "trains nothing"],
    ),
    refused(
        TUNE_FILE,
        "checkpointer: {checkpoint_dir: ./model}\n",
        "model: {_component_: torchtune.models.llama3_2_vision.lora_llama3_2_vision_11b, lora_rank: 8}\n",
        &["`model._component_: ", "images"],
    ),
    refused(
        SHELL_FILE,
        "trl grpo ",
        COMMAND,
        &["by `trl grpo` TRL writes answers while it trains"],
    ),
    refused(
        SHELL_FILE,
        "trl reward ",
        COMMAND,
        &["by `trl reward`", "scores answers"],
    ),
    refused(
        SHELL_FILE,
        "trl chat ",
        COMMAND,
        &["by `trl chat`", "has no training of that name"],
    ),
    refused(SHELL_FILE, "python sft_vlm.py ", COMMAND, &["by `sft_vlm`", "images"]),
    refused(
        SHELL_FILE,
        "accelerate launch --num_processes 2 examples/gkd.py ",
        COMMAND,
        &["by `gkd`", "writes answers"],
    ),
    refused(
        SHELL_FILE,
        "python evaluate.py ",
        COMMAND,
        &["by `evaluate`", "trains nothing"],
    ),
    refused(
        SHELL_FILE,
        "python train.py --beta 0.1 ",
        COMMAND,
        &["`beta: 0.1`", "several trainers", "trl dpo --config"],
    ),
    refused(
        TRL_FILE,
        TRL,
        "loss_type: dft\n",
        &["`loss_type: dft`", "weighs the loss"],
    ),
    refused(
        TRL_FILE,
        TRL,
        "reward_funcs: [accuracy]\n",
        &["`reward_funcs: ", "writes answers"],
    ),
    refused(
        TRL_FILE,
        TRL,
        "teacher_model_name_or_path: org/large\n",
        &["`teacher_model_name_or_path: org/large`", "distillation"],
    ),
    refused(
        TRL_FILE,
        TRL,
        "beta: 0.1\n",
        &["by `beta: 0.1` TRL", "several trainers"],
    ),
    refused(
        TRL_FILE,
        "# trl dpo --config config.yaml\n",
        "model_name_or_path: ./model\nlora_r: 8\nloss_type: [sigmoid, bco_pair]\n",
        &["`loss_type: ", "a loss"],
    ),
    refused(
        ADAPTER_FILE,
        ADAPTER,
        "peft_type: IA3\n",
        &["`peft_type`", "IA3", "LORA"],
    ),
    refused(
        ADAPTER_FILE,
        ADAPTER,
        "peft_type: ADALORA\n",
        &["`peft_type`", "ADALORA", "LORA"],
    ),
    refused(
        ADAPTER_FILE,
        ADAPTER,
        "peft_type: PREFIX_TUNING\n",
        &["`peft_type`", "LORA"],
    ),
    refused(
        ADAPTER_FILE,
        ADAPTER,
        "peft_type: PROMPT_TUNING\n",
        &["`peft_type`", "LORA"],
    ),
    refused(
        ADAPTER_FILE,
        ADAPTER,
        "peft_type: LORA\ntask_type: SEQ_CLS\n",
        &["`task_type: SEQ_CLS`", "sorts texts"],
    ),
    refused(
        ADAPTER_FILE,
        ADAPTER,
        "peft_type: LORA\ntask_type: FEATURE_EXTRACTION\n",
        &["`task_type: FEATURE_EXTRACTION`", "embeddings"],
    ),
    // Preferences.
    elsewhere(
        AXOLOTL_FILE,
        AXOLOTL,
        "rl: dpo\nrl_beta: 0.2\n",
        PAIRS,
        &["backend: trl ", "trainer: \"dpo\"", "beta: 0.2"],
    ),
    elsewhere(
        AXOLOTL_FILE,
        AXOLOTL,
        "rl: kto\nkto_desirable_weight: 0.5\n",
        LABELS,
        &[
            "backend: trl ",
            "trainer: \"kto\"",
            "beta: 0.1",
            "micro_batch: [2, 4]",
            "`kto_desirable_weight: 0.5` is left out",
        ],
    ),
    elsewhere(
        AXOLOTL_FILE,
        AXOLOTL,
        "rl: orpo\norpo_alpha: 0.3\n",
        PAIRS,
        &["trainer: \"orpo\"", "beta: 0.3"],
    ),
    elsewhere(
        FACTORY_FILE,
        FACTORY,
        "stage: dpo\npref_beta: 0.4\n",
        PAIRS,
        &["trainer: \"dpo\"", "beta: 0.4"],
    ),
    elsewhere(
        FACTORY_FILE,
        FACTORY,
        "stage: dpo\npref_loss: orpo\n",
        PAIRS,
        &["trainer: \"orpo\""],
    ),
    elsewhere(FACTORY_FILE, FACTORY, "stage: kto\n", LABELS, &["trainer: \"kto\""]),
    elsewhere(
        TUNE_FILE,
        TUNE,
        "loss: {_component_: torchtune.rlhf.loss.DPOLoss, beta: 0.05}\n",
        PAIRS,
        &["trainer: \"dpo\"", "beta: 0.05"],
    ),
    ToolFile {
        init: Refused(&["answers.jsonl", "chosen"]),
        ..elsewhere(AXOLOTL_FILE, AXOLOTL, "rl: dpo\n", ANSWERS, &[])
    },
    ToolFile {
        rows: PAIRS,
        ..read(
            SHELL_FILE,
            "trl dpo --beta 0.3 ",
            COMMAND,
            &["trainer: \"dpo\"", "beta: 0.3", "dropout: 0"],
            &["two sequences a row, a reference in each step"],
        )
    },
    ToolFile {
        rows: PAIRS,
        ..read(
            SHELL_FILE,
            "trl dpo --precompute_ref_log_probs true ",
            COMMAND,
            &["reference: \"precomputed\""],
            &["two sequences a row, checkpointing"],
        )
    },
    ToolFile {
        rows: LABELS,
        ..read(
            SHELL_FILE,
            "trl kto ",
            COMMAND,
            &["trainer: \"kto\""],
            &["answers that are compared, a reference in each step"],
        )
    },
    ToolFile {
        rows: PAIRS,
        ..read(
            TRL_FILE,
            "# python trl_orpo.py --config config.yaml\n",
            "model_name_or_path: ./model\nlora_r: 8\nmax_length: 512\ndtype: bfloat16\nbeta: 0.2\n",
            &["trainer: \"orpo\"", "beta: 0.2"],
            &["two sequences a row, checkpointing"],
        )
    },
    ToolFile {
        rows: PAIRS,
        ..read(
            "trl_dpo.yaml",
            TRL,
            "beta: 0.1\n",
            &["trainer: \"dpo\"", "by the name of the file"],
            &["two sequences a row", "by the name of the file"],
        )
    },
    // Optimizers.
    read(
        AXOLOTL_FILE,
        AXOLOTL,
        "optimizer: adamw_bnb_8bit\n",
        &["optimizer: \"adamw_8bit\""],
        &["micro-batch 2 x"],
    ),
    read(
        AXOLOTL_FILE,
        AXOLOTL,
        "optimizer: adamw_torch_8bit\n",
        &["optimizer: \"adamw_8bit\""],
        &["micro-batch 2 x"],
    ),
    read(
        AXOLOTL_FILE,
        AXOLOTL,
        "optimizer: adamw_torch_4bit\n",
        &[
            "optimizer: \"adamw_8bit\"",
            "`optimizer: adamw_torch_4bit` keeps its states in 4 bits: adamw_8bit is taken",
        ],
        &["`optimizer: adamw_torch_4bit`", "its states are counted as 1 byte"],
    ),
    read(
        TRL_FILE,
        TRL,
        "optim: rmsprop\n",
        &["`optim: rmsprop` has no mean of gradients (RMSprop): adamw is taken"],
        &["its states are counted as 1 number for each trained value"],
    ),
    read(
        FACTORY_FILE,
        FACTORY,
        "use_galore: true\n",
        &["`use_galore: true` projects gradients to a lower rank (GaLore)"],
        &["`use_galore: true`", "counted as 2 numbers"],
    ),
    read(
        TUNE_FILE,
        TUNE,
        "optimizer: {_component_: torchao.optim.AdamW8bit, lr: 3e-4}\n",
        &["optimizer: \"adamw_8bit\"", "learning_rate: 0.0003"],
        &["micro-batch 2 x"],
    ),
    read(
        TUNE_FILE,
        TUNE,
        "optimizer: {_component_: torch.optim.Adam, lr: 3e-4}\n",
        &["`optimizer._component_: torch.optim.Adam` adds weight decay to the gradient (Adam): adamw is taken"],
        &["its states are counted as 2 numbers"],
    ),
    read(
        TRL_FILE,
        TRL,
        "optim: warp_drive\n",
        &["`optim: warp_drive` is no optimizer that is known here: adamw is taken"],
        &["`optim: warp_drive` is no optimizer that is known here: the states of adamw are counted"],
    ),
    // Starts of adapters.
    read(
        FACTORY_FILE,
        FACTORY,
        "pissa_init: true\npissa_iter: 16\n",
        &["init: \"pissa\"", "`pissa_iter: 16` approximates the decomposition"],
        &["`pissa_iter: 16`"],
    ),
    read(
        ADAPTER_FILE,
        ADAPTER,
        "peft_type: LORA\ninit_lora_weights: olora\n",
        &["`init_lora_weights: olora` starts adapters in a way that no recipe has: kaiming is taken"],
        &["`init_lora_weights: olora`"],
    ),
    read(
        AXOLOTL_FILE,
        AXOLOTL,
        "peft:\n  loftq_config: {loftq_bits: 4}\n",
        &["`peft.loftq_config`", "LoftQ"],
        &["`peft.loftq_config`", "LoftQ"],
    ),
    // Commands.
    read(
        SHELL_FILE,
        "trl sft --lr_scheduler_type cosine_with_min_lr --lr_scheduler_kwargs '{\"min_lr_rate\": 0.2}' ",
        COMMAND,
        &["schedule: \"cosine_with_min_lr\"", "min_lr_rate: 0.2"],
        &["micro-batch 2 x"],
    ),
    read(
        SHELL_FILE,
        "#!/bin/bash\n# all of it\ntrl sft ",
        "--model_name_or_path ./model --use_peft --lora_r 8 --dtype bfloat16 --per_device_train_batch_size 3   # three rows\n",
        &["micro_batch: 3"],
        &["micro-batch 3 x"],
    ),
    read(
        SHELL_FILE,
        "trl sft --model_name_or_path ./model --use_peft --lora_r 8 \\\n  --dtype bfloat16 \\\n  --max_length 256\n",
        "some-tool upload --repo org/one\n",
        &["sequence_length: 256", "`some-tool upload`"],
        &["rows of 256 tokens", "`some-tool upload`"],
    ),
    read(
        SHELL_FILE,
        "accelerate launch --mixed_precision bf16 train.py --model_name_or_path ./model --use_peft_lora True --lora_r 8 ",
        "--use_4bit_quantization True --use_nested_quant True --bf16 True --per_device_train_batch_size 1 --max_length 512\n",
        &["precision: \"nf4_double\"", "rank: 8"],
        &["adapters of rank 8", "weights nf4, double"],
    ),
];

/// A file that neither command reads.
const fn refused(name: &'static str, base: &'static str, more: &'static str, parts: Parts) -> ToolFile {
    ToolFile {
        name,
        base,
        more,
        rows: ANSWERS,
        init: Refused(parts),
        check: Refused(parts),
    }
}

/// A file that both commands read.
const fn read(name: &'static str, base: &'static str, more: &'static str, study: Parts, plan: Parts) -> ToolFile {
    ToolFile {
        name,
        base,
        more,
        rows: ANSWERS,
        init: Says(study),
        check: Says(plan),
    }
}

/// A file of preferences of another tool than TRL, which makes a study, and of which nothing is predicted in that tool.
const fn elsewhere(
    name: &'static str,
    base: &'static str,
    more: &'static str,
    rows: &'static str,
    study: Parts,
) -> ToolFile {
    ToolFile {
        name,
        base,
        more,
        rows,
        init: Says(study),
        check: Refused(&["is predicted as TRL trains it, and not in", "--stack trl"]),
    }
}
