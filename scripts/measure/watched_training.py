"""A small training in TRL for `watch`, with a fault injected or none. `watch_faults.py` and `watch_overhead.py` run it.

    python watched_training.py --model DIR --out DIR [--fault NAME] [--steps N] [--seed N] [--threads N] [--evaluates]

Rows are random tokens. The seconds of the steps, the first three left out, go to DIR/steps.json. Nothing is asked of the network.
"""

import argparse
import json
import os
import random
import time
from pathlib import Path

#: Rows of a micro-batch, micro-batches of a step, and the longest row.
ROWS, ACCUMULATION, LENGTH = 8, 2, 192
#: Step at which faults that happen once happen.
AT = 14


def rows_of(count, seed, fault):
    """Rows of tokens, some shorter than others."""
    draw = random.Random(seed)
    lengths = [draw.randint(LENGTH // 2, LENGTH) for _ in range(count)]
    if fault == "grows_with_lengths":
        lengths = [16 + (480 - 16) * place // count for place in range(count)]
    if fault == "one_long_row":
        # One step of rows four times as long as most, each of which costs more than four times as much.
        for place in range(ROWS * ACCUMULATION * AT, ROWS * ACCUMULATION * (AT + 1)):
            lengths[place] = 4 * LENGTH
    return [{"input_ids": [draw.randint(3, 1000) for _ in range(length)]} for length in lengths]


def computes(seconds):
    """Keeps one processor busy."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def writes(path, seconds):
    """Writes to a disk for so long, over and over into the same file."""
    block, end = os.urandom(16 << 20), time.perf_counter() + seconds
    with open(path, "wb") as file:
        while time.perf_counter() < end:
            file.seek(0)
            file.write(block)
            file.flush()
            os.fsync(file.fileno())


class Faults:
    """What goes wrong, by hooks of the trainer."""

    def __init__(self, fault, out):
        self.fault, self.out, self.kept = fault, Path(out), []

    def data(self):
        """Called for each micro-batch that is put together."""
        if self.fault == "data_wait":
            time.sleep(0.4)

    def step(self, step):
        """Called at the end of each step."""
        import torch

        if self.fault == "memory_grows":
            self.kept.append(torch.ones(8 << 20))
        elif self.fault == "stall" and step == AT:
            time.sleep(6.0)
        elif self.fault == "slows_down":
            computes(0.03 * step)
        elif self.fault == "saving" and step % 3 == 0:
            writes(self.out / "state.bin", 1.5)
        elif self.fault == "out_of_memory" and step == AT:
            torch.empty(1 << 46)
        elif self.fault == "fallback" and step == 1:
            # As transformers 5 says it; on a processor there is no flash attention to fall back from.
            print("This model is compatible with the following flash attention implementations: `['flash_attention_2']`. "
                  "Automatically falling back to `flash_attention_2` instead of `flash_attention_3`.", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--fault", default="none")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, help="threads that compute; without it as many as PyTorch takes")
    parser.add_argument("--evaluates", action="store_true")
    args = parser.parse_args()
    # Before the libraries, which read it when they are imported. TRL would tell its makers of each training.
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import SFTConfig, SFTTrainer

    if args.threads:
        torch.set_num_threads(args.threads)
    faults, began = Faults(args.fault, args.out), []

    class Watch(TrainerCallback):
        def on_step_end(self, arguments, state, control, **_):
            began.append(time.perf_counter())
            faults.step(state.global_step)

    evaluates = args.evaluates or args.fault in ("evaluation_peak", "evaluation_time")
    every = 2 if args.fault == "evaluation_time" else args.steps // 2
    config = SFTConfig(
        output_dir=args.out, max_steps=args.steps, per_device_train_batch_size=ROWS, gradient_accumulation_steps=ACCUMULATION,
        max_length=None, logging_steps=1, save_strategy="no", report_to=[], seed=args.seed, bf16=False, use_cpu=True,
        gradient_checkpointing=False, eval_strategy="steps" if evaluates else "no", eval_steps=every,
        per_device_eval_batch_size=256 if args.fault == "evaluation_peak" else ROWS, log_level="info",
        train_sampling_strategy="sequential", learning_rate=1e-4,
    )
    count = args.steps * ROWS * ACCUMULATION
    # Their batches are not as many as the steps: by that a bar is told from the training's.
    held_out = {"evaluation_peak": 512, "evaluation_time": 160}.get(args.fault, 16)
    trainer = SFTTrainer(
        model=AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32),
        args=config,
        processing_class=AutoTokenizer.from_pretrained(args.model),
        train_dataset=Dataset.from_list(rows_of(count, args.seed, args.fault)),
        eval_dataset=Dataset.from_list(rows_of(held_out, args.seed + 1, None)) if evaluates else None,
        peft_config=LoraConfig(r=8, target_modules="all-linear"),
        callbacks=[Watch()],
    )
    collate = trainer.data_collator

    def collated(rows):
        faults.data()
        return collate(rows)

    trainer.data_collator = collated
    trainer.train()
    steps = [after - before for before, after in zip(began[3:], began[4:])]
    Path(args.out, "steps.json").write_text(json.dumps(steps))


if __name__ == "__main__":
    main()
