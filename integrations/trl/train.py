#!/usr/bin/env python3
"""One trial with TRL's SFTTrainer and PEFT, for peft-tune's command backend.

    python train.py --model DIR_OR_ID --train train.jsonl [--held-out held_out.jsonl] [--steps 20] [--evaluations 2]

The settings come as one JSON object on standard input (see ../peft_tune_callback.py) and have the names of peft-tune's own
parameters, so that one `space:` serves both trainers. Rows are `{"messages": [...]}`, `{"prompt": .., "completion": ..}`,
`{"text": ..}` or `{"input_ids": [..]}`. Several devices: start it through ../launch/launch.py.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from peft_tune_callback import Invalid, Memory, PeftTuneCallback, tuned

PRESETS = {
    "attention": ["q_proj", "k_proj", "v_proj", "o_proj"],
    "qv": ["q_proj", "v_proj"],
    "mlp": ["gate_proj", "up_proj", "down_proj"],
    "all-linear": "all-linear",
}
#: peft-tune's optimizers under the names of transformers.
OPTIMIZERS = {
    "adamw": "adamw_torch_fused",
    "adamw8bit": "adamw_bnb_8bit",
    "paged_adamw": "paged_adamw_32bit",
    "paged_adamw8bit": "paged_adamw_8bit",
    "lion": "lion_32bit",
    "adafactor": "adafactor",
    "sgd": "sgd",
}
SCHEDULES = {"linear": "linear", "cosine": "cosine", "constant": "constant_with_warmup"}
#: Parameters that this program knows.
KNOWN = {
    "rank", "alpha", "alpha_ratio", "dropout", "target_modules", "rslora", "dora", "init", "precision", "sequence_length",
    "packing", "micro_batch", "gradient_accumulation", "global_batch", "devices", "gradient_checkpointing", "optimizer",
    "learning_rate", "weight_decay", "beta1", "beta2", "epsilon", "max_grad_norm", "schedule", "warmup",
}


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


def batches(trial):
    """(micro-batch, gradient accumulation) of each process."""
    micro_batch = trial.param("micro_batch", default=4)
    accumulation = trial.param("gradient_accumulation", default=1)
    global_batch = trial.param("global_batch")
    if global_batch is not None:
        share = micro_batch * trial.processes
        if global_batch % share:
            raise Invalid(f"`global_batch` {global_batch} is not a multiple of {share}; lower `micro_batch`")
        accumulation = global_batch // share
    return micro_batch, accumulation


def load_model(arguments, trial):
    import torch
    from transformers import AutoModelForCausalLM

    precision = trial.param("precision", default="bf16")
    dtypes = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    options = {"dtype": dtypes.get(precision, torch.bfloat16)}
    if precision not in dtypes:
        from transformers import BitsAndBytesConfig

        if not torch.cuda.is_available():
            raise Invalid(f"`precision` {precision} needs a GPU with this trainer; take fp32 or bf16")
        options["quantization_config"] = BitsAndBytesConfig(
            load_in_8bit=precision == "int8", load_in_4bit=precision.startswith("nf4"), bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=precision == "nf4_double", bnb_4bit_compute_dtype=torch.bfloat16)
    model = AutoModelForCausalLM.from_pretrained(arguments.model, **options)
    model.config.use_cache = False
    return model


def adapter(trial):
    from peft import LoraConfig

    rank = trial.param("rank", default=8)
    targets = trial.param("target_modules", default="all-linear")
    alpha = trial.param("alpha", default=rank * trial.param("alpha_ratio", default=2))
    # `init` as PEFT calls it.
    init = {"kaiming": True, "gaussian": "gaussian", "pissa": "pissa"}[trial.param("init", default="kaiming")]
    return LoraConfig(
        r=rank, lora_alpha=alpha, lora_dropout=trial.param("dropout", default=0.0),
        target_modules=PRESETS.get(targets, targets) if isinstance(targets, str) else targets,
        use_rslora=trial.param("rslora", default=False), use_dora=trial.param("dora", default=False),
        init_lora_weights=init, task_type="CAUSAL_LM")


def settings(arguments, trial, steps):
    """SFTConfig of the trial. Nothing is written but reports."""
    import tempfile

    import torch
    from trl import SFTConfig

    micro_batch, accumulation = batches(trial)
    warmup = trial.param("warmup", default=0)
    checkpointing = trial.param("gradient_checkpointing", default="none")
    if checkpointing not in ("none", "full"):
        raise Invalid(f"`gradient_checkpointing` {checkpointing}: this trainer knows `none` and `full`")
    clip = trial.param("max_grad_norm", default=1.0)
    on_gpu = torch.cuda.is_available()
    return SFTConfig(
        output_dir=tempfile.mkdtemp(prefix="peft-tune-trl-"), save_strategy="no", report_to=[], disable_tqdm=True,
        logging_strategy="steps", logging_steps=1, max_steps=steps, seed=trial.seed % 2**32,
        per_device_train_batch_size=micro_batch, per_device_eval_batch_size=micro_batch,
        gradient_accumulation_steps=accumulation, max_length=trial.param("sequence_length", default=1024),
        packing=trial.param("packing", default=False), eval_packing=False,
        gradient_checkpointing=checkpointing == "full", gradient_checkpointing_kwargs={"use_reentrant": False},
        optim=OPTIMIZERS[trial.param("optimizer", default="adamw")],
        learning_rate=trial.param("learning_rate", default=2e-4),
        weight_decay=trial.param("weight_decay", default=0.0),
        adam_beta1=trial.param("beta1", default=0.9), adam_beta2=trial.param("beta2", default=0.999),
        adam_epsilon=trial.param("epsilon", default=1e-8),
        max_grad_norm=0.0 if clip in (None, "none") else clip,
        lr_scheduler_type=SCHEDULES[trial.param("schedule", default="linear")],
        warmup_steps=warmup,
        bf16=on_gpu and trial.param("precision", default="bf16") != "fp32", use_cpu=not on_gpu,
        eval_strategy="steps" if arguments.held_out else "no",
        eval_steps=max(steps // max(arguments.evaluations, 1), 1),
        include_num_input_tokens_seen="non_padding", deepspeed=arguments.deepspeed, fsdp=arguments.fsdp,
        dataloader_pin_memory=on_gpu)


def rows(paths, most):
    from datasets import load_dataset

    data = load_dataset("json", data_files=[str(Path(path).resolve()) for path in paths], split="train")
    return data.select(range(min(most, len(data)))) if most else data


def train(trial, arguments):
    import torch

    unknown = sorted(set(trial.params) - KNOWN)
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
