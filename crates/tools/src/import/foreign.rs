//! Settings files of programs that are not read, told by their keys, and what to do with each.

use std::path::Path;

use serde_json::{Map, Value};

use super::StackFileError;

/// A program whose settings files are not read.
struct Foreign {
    /// Name in messages.
    title: &'static str,
    /// Key that its files have, and others of which they have one.
    keys: [&'static [&'static str]; 2],
    /// Beginnings of what its commands start.
    commands: &'static [&'static str],
    instead: &'static str,
}

const ALL: [Foreign; 7] = [
    Foreign {
        title: "LLaMA-Factory's newer form (v1)",
        keys: [
            &["model"],
            &[
                "model_class",
                "peft_config",
                "dist_config",
                "kernel_config",
                "sample_backend",
            ],
        ],
        commands: &[],
        instead: "write it in LLaMA-Factory's usual form, with `model_name_or_path`, `stage: sft`, `finetuning_type: lora` and \
                  `lora_rank`",
    },
    Foreign {
        title: "litgpt",
        keys: [
            &["checkpoint_dir", "initial_checkpoint_dir"],
            &["quantize", "lora_query", "train", "data", "out_dir", "logger_name"],
        ],
        commands: &["litgpt finetune", "litgpt pretrain"],
        instead: "write a config of TRL, axolotl, LLaMA-Factory or torchtune with its values, or a study by `peft-tune init`",
    },
    Foreign {
        title: "unsloth-cli",
        keys: [&[], &[]],
        commands: &["unsloth-cli"],
        instead: "write a script that calls unsloth's functions with its values, or a study by `peft-tune init`",
    },
    Foreign {
        title: "unsloth's studio",
        keys: [&["training"], &["lora"]],
        commands: &[],
        instead: "write a script that calls unsloth's functions with its values, or a study by `peft-tune init`",
    },
    Foreign {
        title: "ms-swift",
        keys: [
            &["train_type", "tuner_type", "sft_type", "rlhf_type", "sampler_engine"],
            &["model", "dataset", "model_type", "model_id_or_path"],
        ],
        commands: &[
            "swift sft",
            "swift pt",
            "swift rlhf",
            "swift infer",
            "swift deploy",
            "swift rollout",
            "swift export",
            "swift eval",
            "swift app",
            "swift sample",
            "swift merge-lora",
            "swift merge_lora",
            "swift web-ui",
            "swift web_ui",
            "megatron sft",
            "megatron pt",
            "megatron rlhf",
            "megatron export",
        ],
        instead: "write a config of TRL or LLaMA-Factory with its values, which have most of its keys, or a study by `peft-tune init`",
    },
    Foreign {
        title: "accelerate",
        keys: [
            &["compute_environment", "distributed_type"],
            &["num_processes", "num_machines", "mixed_precision"],
        ],
        commands: &[],
        instead: "give the file of the training that it launches, and what devices share by `--devices` and `--sharing` of \
                  `plan --check`",
    },
    Foreign {
        title: "DeepSpeed",
        keys: [
            &["zero_optimization"],
            &[
                "train_batch_size",
                "train_micro_batch_size_per_gpu",
                "gradient_clipping",
                "bf16",
                "fp16",
                "optimizer",
                "zero_allow_untested_optimizer",
            ],
        ],
        commands: &[],
        instead: "give the file of the training that names it, and what devices share by `--devices` and `--sharing` of \
                  `plan --check`",
    },
];

/// Refuses a file of one of these programs by name; `started` is what a command starts, and nothing in other files.
///
/// # Errors
/// [`StackFileError::Foreign`], with what to do.
pub(super) fn refuse(path: &Path, started: &[String], values: &Map<String, Value>) -> Result<(), StackFileError> {
    let command = started.join(" ");
    match ALL.iter().find(|one| one.has(values) || one.begins(&command)) {
        None => Ok(()),
        Some(found) => Err(StackFileError::Foreign {
            path: path.to_owned(),
            title: found.title,
            instead: found.instead,
        }),
    }
}

impl Foreign {
    fn has(&self, values: &Map<String, Value>) -> bool {
        let has = |keys: &[&str]| keys.iter().any(|key| values.contains_key(*key));
        self.keys.iter().all(|keys| has(keys))
    }

    /// Whether a command starts the program, whatever stands before it.
    fn begins(&self, command: &str) -> bool {
        let ends = |c: Option<char>| c.is_none_or(|c| !c.is_alphanumeric() && c != '-');
        self.commands.iter().any(|words| {
            command
                .split_once(*words)
                .is_some_and(|(before, behind)| ends(before.chars().next_back()) && ends(behind.chars().next()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::parse_recipe;
    use super::*;

    fn of(name: &str, text: &str) -> Result<(), String> {
        let read = parse_recipe(Path::new(name), text, None);
        read.map(drop).map_err(|error| error.to_string())
    }

    #[test]
    fn files_of_other_programs_are_refused_by_name_with_what_to_do() {
        for (text, title, instead) in [
            (
                "model: m\npeft_config:\n  name: lora\n  r: 16\nmicro_batch_size: 1\ncutoff_len: 1024\n",
                "v1",
                "finetuning_type",
            ),
            (
                "checkpoint_dir: m\nquantize: bnb.nf4\nlora_r: 16\ntrain:\n  micro_batch_size: 1\n",
                "litgpt",
                "peft-tune init",
            ),
            (
                "model: m\ntrain_type: lora\nlora_rank: 8\nper_device_train_batch_size: 1\ndataset: d\n",
                "ms-swift",
                "LLaMA-Factory",
            ),
            (
                "# one GPU\nCUDA_VISIBLE_DEVICES=0 \\\nswift sft \\\n    --model m \\\n    --lora_rank 8 --max_length 2048\n",
                "ms-swift",
                "TRL",
            ),
            (
                "python unsloth/unsloth-cli.py --model_name m --r 64 --load_in_4bit --max_seq_length 512\n",
                "unsloth-cli",
                "a script",
            ),
            (
                "model_name: m\ninitial_checkpoint_dir: c\ntrain:\n  micro_batch_size: 1\n",
                "litgpt",
                "TRL",
            ),
            ("rlhf_type: grpo\nmodel: m\nlearning_rate: 1e-6\n", "ms-swift", "TRL"),
            (
                "NPROC_PER_NODE=2 megatron sft --model m --lora_rank 8 --micro_batch_size 1\n",
                "ms-swift",
                "TRL",
            ),
            (
                "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nmixed_precision: bf16\nnum_processes: 8\n",
                "accelerate",
                "--sharing",
            ),
            (
                r#"{"train_batch_size": "auto", "zero_optimization": {"stage": 3}}"#,
                "DeepSpeed",
                "--sharing",
            ),
            (
                r#"{"zero_optimization": {"stage": 2}, "bf16": {"enabled": true}}"#,
                "DeepSpeed",
                "--sharing",
            ),
            (
                r#"{"zero_allow_untested_optimizer": true, "zero_optimization": {"stage": 1}}"#,
                "DeepSpeed",
                "--sharing",
            ),
            ("python -m swift.cli.sft --model m --lora_rank 8\n", "ms-swift", "TRL"),
            (
                "torchrun swift/cli/rlhf.py --model m --lora_rank 8\n",
                "ms-swift",
                "TRL",
            ),
            ("swift merge-lora --adapters out --merge_lora true\n", "ms-swift", "TRL"),
            ("swift web-ui --lang en\n", "ms-swift", "TRL"),
            (
                "training:\n  learning_rate: 1e-4\nlora:\n  lora_r: 8\n",
                "unsloth's studio",
                "a script",
            ),
            (
                "litgpt finetune_lora m --lora_r 8 --quantize bnb.nf4\n",
                "litgpt",
                "TRL",
            ),
        ] {
            let error = of("config.yaml", text).unwrap_err();
            assert!(error.contains(title) && error.contains(instead), "{text}: {error}");
            assert!(error.starts_with("config.yaml is a config of"), "{error}");
        }
    }

    #[test]
    fn files_that_are_read_are_none_of_them() {
        for text in [
            "model_name_or_path: m\nlora_r: 8\n",
            "base_model: m\nadapter: lora\nmodel_type: LlamaForCausalLM\n",
            "base_model: m\nadapter: lora\nwandb_name: swift sft baseline\n",
            "model_name_or_path: m\nstage: sft\nlora_rank: 8\n",
            "model:\n  _component_: torchtune.models.llama3_1.lora_llama3_1_8b\ncheckpointer:\n  checkpoint_dir: m\n",
            "trl sft --model_name_or_path swift-sft --use_peft --lora_r 4",
            "trl sft --model_name_or_path m --use_peft --run_name 'swift sft baseline'",
        ] {
            assert_eq!(of("config.yaml", text), Ok(()), "{text}");
        }
    }
}
