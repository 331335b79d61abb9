#!/usr/bin/env python3
"""One trial with TRL's SFTTrainer and PEFT on several devices, for peft-tune's command backend. One device: `backend: trl`.

    python train.py --model DIR_OR_ID --train train.jsonl [--held-out held_out.jsonl] [--steps 20] [--evaluations 2]

The settings come as one JSON object on standard input (see ../peft_tune_callback.py) and have the names of peft-tune's own
parameters, so that one `space:` serves both trainers. Rows are `{"messages": [...]}`, `{"prompt": .., "completion": ..}`,
`{"text": ..}` or `{"input_ids": [..]}`. ../launch/launch.py starts it on as many processes as a trial has devices.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import peft_tune_names as names
from peft_tune_callback import Invalid, Memory, PeftTuneCallback, tuned

TOOL = "trl"
#: Settings that are keys of SFTConfig with the same value there.
PLAIN = ("learning_rate", "weight_decay", "beta1", "beta2", "epsilon", "max_grad_norm", "sequence_length", "packing")
#: Settings of the adapter that are arguments of LoraConfig.
OF_ADAPTER = ("rank", "alpha", "dropout", "rslora", "dora", "bias", "lora_bias")
#: What else this program knows.
OTHERS = ("alpha_ratio", "target_modules", "init", "precision", "micro_batch", "gradient_accumulation", "global_batch",
          "devices", "gradient_checkpointing", "optimizer", "momentum", "nesterov", "schedule", "warmup",
          "lr_decay", "lr_decay_type", "min_lr_rate")


def arguments():
    parser = argparse.ArgumentParser(description="one trial with TRL")
    parser.add_argument("--model", required=True, help="model directory or hub id")
    parser.add_argument("--train", required=True, nargs="+", help="training rows, JSON lines")
    parser.add_argument("--held-out", nargs="*", default=[], help="held-out rows, JSON lines")
    parser.add_argument("--steps", type=int, default=20, help="optimizer steps of a trial, unless the study says")
    parser.add_argument("--evaluations", type=int, default=1, help="evaluations during a trial, the last at its end")
    parser.add_argument("--rows", type=int, help="takes at most so many training rows")
    parser.add_argument("--evaluation-rows", type=int, help="evaluates on at most so many rows")
    parser.add_argument("--threads", type=int, help="threads to compute with on a CPU")
    parser.add_argument("--deepspeed", help="DeepSpeed configuration, for sharded settings")
    parser.add_argument("--fsdp", help="FSDP mode, such as `full_shard auto_wrap`")
    return parser.parse_args()


def load_model(arguments, trial):
    import torch
    from transformers import AutoModelForCausalLM

    precision = trial.param("precision", default="bf16")
    said = names.keys("precision", precision, TOOL)
    options = {"dtype": getattr(torch, said["dtype"])}
    if said.get("load_in_8bit") or said.get("load_in_4bit"):
        from transformers import BitsAndBytesConfig

        needs_gpu("precision", precision)
        options["quantization_config"] = BitsAndBytesConfig(
            load_in_8bit=said.get("load_in_8bit", False), load_in_4bit=said.get("load_in_4bit", False),
            bnb_4bit_quant_type=said.get("bnb_4bit_quant_type", "nf4"),
            bnb_4bit_use_double_quant=said.get("use_bnb_nested_quant", False), bnb_4bit_compute_dtype=options["dtype"])
    model = AutoModelForCausalLM.from_pretrained(arguments.model, **options)
    model.config.use_cache = False
    return model


def needs_gpu(setting, value):
    """Refuses what runs on GPUs only where there is none."""
    import torch

    if not torch.cuda.is_available():
        raise Invalid(f"`{setting}` {value} needs a GPU with this trainer; take another one")


def adapter(trial):
    from peft import LoraConfig

    rank = trial.param("rank", default=8)
    said = {"rank": rank, "alpha": rank * trial.param("alpha_ratio", default=2), "dropout": 0.0}
    said.update({name: trial.params[name] for name in OF_ADAPTER if name in trial.params})
    targets = trial.param("target_modules", default="all-linear")
    # PEFT has the same word for all of them.
    said["target_modules"] = targets if targets == "all-linear" else names.modules(targets)
    return LoraConfig(
        task_type="CAUSAL_LM", **names.keys("init", trial.param("init", default="kaiming"), "peft"),
        **{names.key_of(name, "peft"): value for name, value in said.items()})


def trainer_keys(trial, processes, on_gpu):
    """Arguments of SFTConfig that the trial decides."""
    params = {"sequence_length": 1024, "learning_rate": 2e-4, **trial.params}
    kind, micro_batch = params.get("optimizer", "adamw"), params.get("micro_batch", 4)
    said = names.keys("optimizer", kind, TOOL)
    said.update(names.beta2_keys(kind, TOOL), **names.momentum_keys(params, kind, TOOL))
    said[names.key_of("micro_batch", TOOL)] = micro_batch
    for name in PLAIN:
        if name in params:
            names.put_plain(said, name, params[name], TOOL)
    said[names.key_of("gradient_accumulation", TOOL)] = names.accumulation(params, processes, micro_batch) or 1
    precision = names.keys("precision", params.get("precision", "bf16"), TOOL)
    # Without a GPU, weights are in the precision and nothing is scaled.
    said.update({name: on_gpu and precision[name] for name in ("bf16", "fp16")})
    warmup = params.get("warmup", 0)
    # A share of the steps is one here too.
    said[names.key_of("warmup", TOOL)] = warmup
    schedule = params.get("schedule", "linear")
    if names.is_schedule_free(kind):
        said[names.key_of("warmup", TOOL)] = names.warmup_steps(warmup, trial.steps)
        if said[names.key_of("warmup", TOOL)] is None:
            raise Invalid(names.STEPS_OF_WARMUP)
        schedule, warmup = "constant", 0
    said.update(names.schedule_keys(schedule, warmup, TOOL))
    said.update(names.schedule_arguments(schedule, params, trial.steps))
    said.update(names.keys("gradient_checkpointing", params.get("gradient_checkpointing", "none"), TOOL))
    return said


def settings(arguments, trial, steps):
    """SFTConfig of the trial. Nothing is written but reports."""
    import tempfile

    import torch
    from trl import SFTConfig

    on_gpu = torch.cuda.is_available()
    said = trainer_keys(trial, trial.processes, on_gpu)
    kind = names.row("optimizer", trial.param("optimizer", default="adamw"))
    if kind["paged"] or kind["bits"] == 8:
        needs_gpu("optimizer", trial.param("optimizer"))
    if said.get("activation_offloading"):
        needs_gpu("gradient_checkpointing", trial.param("gradient_checkpointing"))
    return SFTConfig(
        output_dir=tempfile.mkdtemp(prefix="peft-tune-trl-"), save_strategy="no", report_to=[], disable_tqdm=True,
        logging_strategy="steps", logging_steps=1, max_steps=steps, seed=trial.seed % 2**32,
        per_device_eval_batch_size=said["per_device_train_batch_size"], eval_packing=False,
        gradient_checkpointing_kwargs={"use_reentrant": False}, use_cpu=not on_gpu,
        eval_strategy="steps" if arguments.held_out else "no",
        eval_steps=max(steps // max(arguments.evaluations, 1), 1),
        include_num_input_tokens_seen="non_padding", deepspeed=arguments.deepspeed, fsdp=arguments.fsdp,
        dataloader_pin_memory=on_gpu, **said)


def rows(paths, most):
    from datasets import load_dataset

    data = load_dataset("json", data_files=[str(Path(path).resolve()) for path in paths], split="train")
    return data.select(range(min(most, len(data)))) if most else data


def train(trial, arguments):
    import torch

    unknown = sorted(set(trial.params).difference(PLAIN, OF_ADAPTER, OTHERS))
    if unknown:
        raise Invalid(f"this trainer does not know {', '.join(unknown)}; remove them from `space`")
    trial.check_processes()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    from transformers import AutoTokenizer
    from trl import SFTTrainer

    memory = Memory()
    steps = trial.steps or arguments.steps
    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    callback = PeftTuneCallback(trial, memory)
    trainer = SFTTrainer(
        model=load_model(arguments, trial), args=settings(arguments, trial, steps), peft_config=adapter(trial),
        processing_class=tokenizer, train_dataset=rows(arguments.train, arguments.rows),
        eval_dataset=rows(arguments.held_out, arguments.evaluation_rows) if arguments.held_out else None,
        callbacks=[callback])
    trainer.train()
    if arguments.held_out and not trial.should_stop and "loss" not in callback.metrics:
        trainer.evaluate()
    return callback.result()


def main():
    given = arguments()
    with tuned() as trial:
        trial.finish(train(trial, given))


if __name__ == "__main__":
    main()
