//! Keys of each tool's file that say what the tool does by it, one row each. A file that has none of them trains on answers as they stand.
//!
//! Sources: axolotl 0.19 (`utils/schemas`, `integrations`), LLaMA-Factory 0.9.5 (`hparams`, `examples`), torchtune 0.6 (`recipes`), TRL
//! 1.16 (`trainer`, `experimental`, `scripts`), PEFT 0.21 (`TaskType`), transformers 5 (`examples/pytorch`).

use super::task_row::{Beside, Says, Task, TaskRow};
use crate::Tool;
use peft_tune_core::recipe::TrainerKind;

use Says::{Anything, Except, Lacks, Part, Word};
use Task::{Like, Other, Trains};

const OTHER_LOSS: Task = Other("compares answers by a loss that no trainer here has");
const MORE_LOSS: Task = Other("adds a loss to that of the comparison, which no trainer here does");
const OTHER_WAY: Task = Other("trains in a way that is not known here");
const IMAGES: Task = Other("trains on images, sound or video, and here it is text alone");
const ROUNDED: Task =
    Other("rounds the weights while it trains them (QAT), of which nothing is predicted in other tools");
const DISTILS: Task = Other("learns what another model says of each token (distillation)");
const SORTS: Task = Other("trains a model that sorts texts, and none that writes them");
const EMBEDS: Task = Other("trains a model of embeddings, and none that writes texts");
const FILLS: Task = Other("trains a model that fills gaps, and none that writes texts");
const MARKS: Task = Other("trains a model that marks answers in texts, and none that writes them");
const REORDERS: Task = Other("moves the middle of each text behind its end");
const CUTS_BLOCKS: Task =
    Other("cuts running text into blocks and has defaults of its own, by options that are not read here");
const TRANSLATES: Task = Other("trains a model with an encoder, and here it is decoders alone");
const PARTLY: Task = Other("trains some of the weights as they are, and leaves the others out");
const ORTHOGONAL: Task = Other("trains orthogonal adapters (OFT), which no recipe has");
const RESTARTS: Task = Other("merges its adapters and starts them again on the way (ReLoRA)");
const DIFFUSES: Task = Other("trains a model that writes by diffusion");
const SPARSE: Task = Other("trains weights of which many stay 0");
const EXITS: Task = Other("trains layers to answer early");
const DEPTHS: Task = Other("trains a model whose layers pass tokens over (mixture of depths)");
const WEIGHS: Task = Other("weighs the loss of each token by its probability, and here all weigh the same");
const MERGES: Task = Other("writes a merged or quantized model, and trains nothing");
const QUANTIZES: Task = Other("quantizes a model, and trains nothing");
const WRITES: Task = Other("writes answers, and trains nothing");
const EVALUATES: Task = Other("evaluates a model, and trains nothing");
const PREPARES: Task = Other("prepares rows, and trains nothing");
const OTHER_ADAPTERS: Task = Other("trains adapters that are no LoRA");
const UNNAMED_TRAINER: Task = Other("learns preferences, by one of several trainers that have this key");

const DPO: Task = Trains(TrainerKind::Dpo);
const KTO: Task = Trains(TrainerKind::Kto);
const ORPO: Task = Trains(TrainerKind::Orpo);

/// Rows by tool. Of those that hold, one that is not read goes before all that are, and then the first counts.
pub(super) const TASKS: &[(Tool, &[TaskRow])] = &[
    (Tool::Axolotl, AXOLOTL),
    (Tool::LlamaFactory, LLAMA_FACTORY),
    (Tool::Torchtune, TORCHTUNE),
    (Tool::Trl, TRL),
    (Tool::Peft, PEFT),
];

const AXOLOTL: &[TaskRow] = &[
    row("rl", Word(&["grpo", "gdpo", "ebft"]), Like("grpo")),
    row("rl", Word(&["ipo", "simpo"]), OTHER_LOSS),
    row("rl", Except(&["dpo", "kto", "orpo"]), OTHER_WAY),
    row("rl", Word(&["dpo"]), DPO),
    row("rl", Word(&["kto"]), KTO),
    row("rl", Word(&["orpo"]), ORPO),
    row("trl.reward_funcs", Anything, Like("grpo")),
    row("dpo_loss_type", Except(&["sigmoid"]), OTHER_LOSS),
    row("dpo_label_smoothing", Anything, OTHER_LOSS),
    row("dpo_use_weighting", Anything, OTHER_LOSS),
    row("dpo_norm_loss", Anything, OTHER_LOSS),
    row("rpo_alpha", Anything, MORE_LOSS),
    row("reward_model", Anything, Like("reward")),
    row("process_reward_model", Anything, Like("prm")),
    row(
        "model_type",
        Part(&["ForSequenceClassification", "ForTokenClassification"]),
        SORTS,
    ),
    row(
        "type_of_model",
        Part(&["ForSequenceClassification", "ForTokenClassification"]),
        SORTS,
    ),
    row("processor_type", Anything, IMAGES),
    row("qat", Anything, ROUNDED),
    row("quantization", Anything, QUANTIZES).beside(Beside::Nothing("datasets")),
    row("kd_trainer", Anything, DISTILS),
    row("plugins", Part(&["KDPlugin"]), DISTILS),
    row("plugins", Part(&["DiffusionPlugin"]), DIFFUSES),
    row("plugins", Part(&["SpectrumPlugin"]), PARTLY),
    row("plugins", Part(&["LLMCompressorPlugin"]), SPARSE),
    row("plugins", Part(&["nemo_gym", "hatchery"]), Like("grpo")),
    // It freezes those of adapters, too.
    row("unfrozen_parameters", Anything, PARTLY).beside(Beside::Something("adapter")),
    row("unfrozen_parameters", Lacks(LANGUAGE_MODEL), PARTLY),
    row("lisa_n_layers", Anything, PARTLY),
    row("use_eaft", Anything, WEIGHS),
    row("relora", Anything, RESTARTS),
    row("relora_steps", Anything, RESTARTS),
    row("inference", Anything, WRITES),
    row("merge_lora", Anything, MERGES),
    row("is_preprocess", Anything, PREPARES),
];

/// Names of which one of each group is enough to train a language model as a whole, that of a model of images too.
const LANGUAGE_MODEL: &[&[&str]] = &[
    &[
        "model",
        "model.language_model",
        "language_model",
        "language_model.model",
    ],
    &["lm_head", "language_model", "language_model.lm_head"],
];

const LLAMA_FACTORY: &[TaskRow] = &[
    row("stage", Word(&["rm"]), Like("reward")),
    row("stage", Word(&["ppo"]), Like("ppo")),
    row("stage", Except(&["pt", "sft", "dpo", "kto", "orpo"]), OTHER_WAY),
    row("pref_loss", Except(&["sigmoid", "orpo"]), OTHER_LOSS).beside(Beside::Word("stage", "dpo")),
    // Its versions before 0.8 have these names.
    row("dpo_loss", Except(&["sigmoid"]), OTHER_LOSS).beside(Beside::Word("stage", "dpo")),
    row("dpo_ftx", Anything, MORE_LOSS).beside(Beside::Word("stage", "dpo")),
    row("stage", Word(&["orpo"]), ORPO),
    row("pref_ftx", Anything, MORE_LOSS).beside(Beside::Word("stage", "dpo")),
    row("pref_bco_weight", Anything, MORE_LOSS).beside(Beside::Word("stage", "dpo")),
    row("dpo_label_smoothing", Anything, OTHER_LOSS).beside(Beside::Word("stage", "dpo")),
    row("ld_alpha", Anything, OTHER_LOSS).beside(Beside::Word("stage", "dpo")),
    row("pref_loss", Word(&["orpo"]), ORPO).beside(Beside::Word("stage", "dpo")),
    row("stage", Word(&["dpo"]), DPO),
    row("stage", Word(&["kto"]), KTO),
    row("export_dir", Anything, MERGES),
    row("infer_backend", Anything, WRITES).beside(Beside::Nothing("do_train")),
    row("do_predict", Anything, WRITES).beside(Beside::Nothing("do_train")),
    row("do_eval", Anything, EVALUATES).beside(Beside::Nothing("do_train")),
    row("n_shot", Anything, EVALUATES),
    row("image_max_pixels", Anything, IMAGES),
    row("video_max_pixels", Anything, IMAGES),
    row("audio_sampling_rate", Anything, IMAGES),
    row("train_mm_proj_only", Anything, IMAGES),
    row("mixture_of_depths", Anything, DEPTHS),
    row("use_dft_loss", Anything, WEIGHS),
    row("use_asft_loss", Anything, WEIGHS),
    row("use_eaft_loss", Anything, WEIGHS),
    row("use_llama_pro", Anything, PARTLY),
    row("finetuning_type", Word(&["freeze"]), PARTLY),
    row("finetuning_type", Word(&["oft"]), ORTHOGONAL),
];

const TORCHTUNE: &[TaskRow] = &[
    row(
        "loss._component_",
        Part(&["RSOLoss", "SimPOLoss", "IPOLoss"]),
        OTHER_LOSS,
    ),
    row("loss._component_", Part(&["PPOLoss", "GRPO"]), Like("grpo")),
    row("loss._component_", Part(&["DPOLoss"]), DPO),
    row("loss.label_smoothing", Anything, OTHER_LOSS)
        .beside(Beside::Word("loss._component_", "torchtune.rlhf.loss.DPOLoss")),
    row("policy_model", Anything, Like("ppo")),
    row("grpo_samples", Anything, Like("grpo")),
    row("orchestration", Anything, Like("grpo")),
    row("reward_functions", Anything, Like("grpo")),
    row("reward_checkpointer", Anything, Like("ppo")),
    row("kd_loss", Anything, DISTILS),
    row("teacher_model", Anything, DISTILS),
    row("quantizer._component_", Part(&["QAT"]), ROUNDED),
    row("fake_quant_after_n_steps", Anything, ROUNDED),
    row("quantizer", Anything, QUANTIZES),
    row("tasks", Anything, EVALUATES),
    row("max_new_tokens", Anything, WRITES),
    row("early_exit_loss", Anything, EXITS),
    row("model._component_", Part(&["vision", ".clip."]), IMAGES),
    row("model._component_", Part(&["classifier"]), SORTS),
    row("dataset._component_", Part(&["multimodal"]), IMAGES),
];

const TRL: &[TaskRow] = &[
    row("reward_funcs", Anything, Like("grpo")),
    row("num_generations", Anything, Like("grpo")),
    row("generation_batch_size", Anything, Like("grpo")),
    row("steps_per_generation", Anything, Like("grpo")),
    row("use_vllm", Anything, Like("grpo")),
    row("reward_model_name_or_path", Anything, Like("online_dpo")),
    row("reward_model_path", Anything, Like("ppo")),
    row("sft_model_path", Anything, Like("ppo")),
    row("num_ppo_epochs", Anything, Like("ppo")),
    row("mixture_coef", Anything, Like("nash_md")),
    row("center_rewards_coefficient", Anything, Like("reward")),
    row("step_separator", Anything, Like("prm")),
    row("train_on_last_step_only", Anything, Like("prm")),
    row("teacher_model_name_or_path", Anything, DISTILS),
    row("teacher_model_init_kwargs", Anything, DISTILS),
    row("seq_kd", Anything, DISTILS),
    row("cpo_alpha", Anything, OTHER_LOSS),
    row("simpo_gamma", Anything, OTHER_LOSS),
    row("prompt_sample_size", Anything, OTHER_LOSS),
    // An argument of unsloth's functions.
    row("qat_scheme", Anything, ROUNDED),
    row(
        "use_adalora",
        Anything,
        Other("trains adapters whose ranks change (AdaLoRA), which no recipe has"),
    ),
    row("lora_task_type", Word(&["SEQ_CLS", "TOKEN_CLS"]), SORTS),
    row("rpo_alpha", Anything, MORE_LOSS),
    row("ld_alpha", Anything, OTHER_LOSS),
    row("use_weighting", Anything, OTHER_LOSS),
    row("label_smoothing", Anything, OTHER_LOSS),
    row(
        "reference_free",
        Anything,
        Other("compares answers without a reference"),
    ),
    row(
        "f_divergence_type",
        Except(&["reverse_kl", "FDivergenceType.REVERSE_KL"]),
        OTHER_LOSS,
    ),
    row("sync_ref_model", Anything, Other("moves the reference while it trains")),
    row("loss_type", Word(OF_GRPO), Like("grpo")),
    row("loss_type", Word(&["dft"]), WEIGHS),
    row("loss_type", Except(OF_READ), OTHER_LOSS),
    row("loss_type", Word(&["sigmoid"]), DPO),
    row("loss_type", Word(&["kto"]), KTO),
    row("f_divergence_type", Anything, DPO),
    row("desirable_weight", Anything, KTO),
    row("undesirable_weight", Anything, KTO),
];

/// Losses of TRL's trainers that write answers while they train.
const OF_GRPO: &[&str] = &["grpo", "dapo", "bnpo", "dr_grpo", "cispo", "sapo", "luspo", "vespo"];
/// Losses of trainings that are read: those of `trl sft`, and the usual ones of `trl dpo` and `trl kto`.
const OF_READ: &[&str] = &["nll", "chunked_nll", "sigmoid", "kto"];

const PEFT: &[TaskRow] = &[
    row("task_type", Word(&["SEQ_CLS", "TOKEN_CLS", "QUESTION_ANS"]), SORTS),
    row("task_type", Word(&["FEATURE_EXTRACTION"]), EMBEDS),
    row("task_type", Word(&["SEQ_2_SEQ_LM"]), TRANSLATES),
];

/// Keys of several of TRL's trainers of preferences, by which none of them can be told.
pub(super) const UNNAMED: &[TaskRow] = &[
    row("beta", Anything, UNNAMED_TRAINER),
    row("precompute_ref_log_probs", Anything, UNNAMED_TRAINER),
    row("max_prompt_length", Anything, UNNAMED_TRAINER),
    row("max_completion_length", Anything, UNNAMED_TRAINER),
];

/// What a command of TRL does that no trainer has the name of.
pub(super) const NO_COMMAND: Task = Other("has no training of that name");

/// Words in the names of scripts that train something else.
pub(super) const SCRIPTS: &[(&[&str], Task)] = &[
    (
        &[
            "vlm",
            "vl",
            "vision",
            "multimodal",
            "video",
            "audio",
            "llava",
            "whisper",
            "speech",
            "dreambooth",
            "controlnet",
        ],
        IMAGES,
    ),
    (&["rm", "rewards"], Like("reward")),
    (&["online"], Like("online_dpo")),
    (&["nash"], Like("nash_md")),
    (&["gspo"], Like("grpo")),
    (&["distill", "distillation", "gold", "minillm", "sdft", "sdpo"], DISTILS),
    (&["simpo", "ipo", "cpo", "bco", "rso", "tpo", "mpo"], OTHER_LOSS),
    (&["embedding", "embeddings", "retrieval", "reranker"], EMBEDS),
    (&["classification", "classifier"], SORTS),
    (&["diffusion"], DIFFUSES),
];

/// Scripts among the examples of transformers and PEFT that train something else, or by other options, by their whole names without
/// `_no_trainer`. Their words alone say nothing: a model that writes texts learns to sum up and to answer, too.
pub(super) const EXAMPLES: &[(&[&str], Task)] = &[
    (
        &[
            "run_glue",
            "run_xnli",
            "run_ner",
            "run_swag",
            "run_classification",
            "run_image_classification",
            "run_audio_classification",
        ],
        SORTS,
    ),
    (&["run_qa", "run_qa_beam_search"], MARKS),
    (&["run_mlm", "run_mlm_wwm", "run_plm"], FILLS),
    (&["run_fim"], REORDERS),
    (&["run_clm"], CUTS_BLOCKS),
    (&["run_summarization", "run_translation", "run_seq2seq_qa"], TRANSLATES),
    (
        &[
            "run_mim",
            "run_mae",
            "run_clip",
            "run_semantic_segmentation",
            "run_instance_segmentation",
            "run_object_detection",
            "run_speech_recognition_ctc",
            "run_speech_recognition_ctc_adapter",
            "run_speech_recognition_seq2seq",
            "run_wav2vec2_pretraining",
        ],
        IMAGES,
    ),
    (&["run_generation"], WRITES),
    (
        &[
            "adamss_finetuning",
            "beft_finetuning",
            "bone_finetuning",
            "deft_finetuning",
            "delora_finetuning",
            "glora_finetuning",
            "gralora_finetuning",
            "hira_finetuning",
            "lily_finetuning",
            "miss_finetuning",
            "peanut_finetuning",
            "psoft_finetuning",
            "randlora_finetuning",
            "road_finetuning",
            "shira_finetuning",
            "supertuning_finetuning",
            "unilora_finetuning",
            "waveft_finetuning",
        ],
        OTHER_ADAPTERS,
    ),
];

/// Words in the names of scripts that train nothing, where none says that they train.
pub(super) const NO_TRAINING: &[(&[&str], Task)] = &[
    (&["eval", "evaluate", "evaluation", "benchmark"], EVALUATES),
    (&["infer", "inference", "generate", "predict", "serve"], WRITES),
    (&["merge", "export"], MERGES),
    (&["quantize", "quantization"], QUANTIZES),
    (&["preprocess", "tokenize"], PREPARES),
];

/// Words in the names of scripts that train.
pub(super) const TRAIN: &[&str] = &["train", "finetune", "sft"];

/// Option of the trainer among PEFT's examples, whose defaults are known.
pub(super) const OF_PEFT_EXAMPLE: &str = "use_peft_lora";

/// Options by which a script of any name trains.
pub(super) const OF_TRAININGS: &[&str] = &[
    "do_train",
    "use_peft",
    "use_peft_lora",
    "learning_rate",
    "lr_scheduler_type",
    "optim",
    "num_train_epochs",
    "max_steps",
    "per_device_train_batch_size",
    "per_gpu_train_batch_size",
    "gradient_accumulation_steps",
    "gradient_checkpointing",
    "dataset_name",
    "max_length",
    "max_seq_length",
];

const fn row(key: &'static str, says: Says, task: Task) -> TaskRow {
    TaskRow {
        key,
        says,
        beside: Beside::Whatever,
        task,
    }
}

impl TaskRow {
    /// The row where another key is such.
    const fn beside(self, beside: Beside) -> Self {
        Self { beside, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_trainer_that_a_row_is_like_has_a_reason() {
        let rows = TASKS.iter().flat_map(|(_, rows)| rows.iter()).chain(UNNAMED);
        let of_scripts = SCRIPTS.iter().chain(EXAMPLES).chain(NO_TRAINING).map(|(_, task)| *task);
        for task in rows.map(|row| row.task).chain(of_scripts) {
            if let Like(name) = task {
                assert!(TrainerKind::why_not(name).is_some(), "{name}");
            }
        }
    }
}
