"""A trainer of one's own, tuned through integrations/peft_tune_callback.py: TRL on the quickstart's model, on a processor.

    launch_trainer.py THREADS [DEEPSPEED]     # the trial comes as launch.py hands it on; DEEPSPEED is a file of its settings
"""

import pathlib
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
ASSETS = ROOT / "search_spaces" / "quickstart"
sys.path.insert(0, str(ROOT / "integrations"))

from peft_tune_callback import Memory, PeftTuneCallback, tuned  # noqa: E402


def arguments(trial, deepspeed):
    """SFTConfig of a trial."""
    from trl import SFTConfig

    micro_batch = trial.param("micro_batch")
    return SFTConfig(
        output_dir=tempfile.mkdtemp(prefix="launch-trainer-"),
        max_steps=trial.steps,
        per_device_train_batch_size=micro_batch,
        per_device_eval_batch_size=micro_batch,
        gradient_accumulation_steps=trial.param("global_batch") // (micro_batch * trial.processes),
        learning_rate=trial.param("learning_rate"),
        max_length=64,
        seed=trial.seed % 2**32,
        use_cpu=True,
        bf16=False,
        dataloader_pin_memory=False,
        gradient_checkpointing=False,
        include_num_input_tokens_seen="non_padding",
        save_strategy="no",
        report_to=[],
        deepspeed=deepspeed,
    )


def main():
    threads, *deepspeed = sys.argv[1:]
    with tuned() as trial:
        import torch
        from datasets import load_dataset
        from peft import LoraConfig
        from transformers import AutoModelForCausalLM
        from trl import SFTTrainer

        trial.check_processes()
        torch.set_num_threads(int(threads))
        memory = Memory()
        rows = load_dataset("json", data_files={name: str(ASSETS / f"{name}.jsonl") for name in ("train", "held_out")})
        callback = PeftTuneCallback(trial, memory)
        trainer = SFTTrainer(
            model=AutoModelForCausalLM.from_pretrained(ASSETS / "base", dtype=torch.float32),
            args=arguments(trial, next(iter(deepspeed), None)),
            peft_config=LoraConfig(r=trial.param("rank"), target_modules="all-linear", task_type="CAUSAL_LM"),
            train_dataset=rows["train"].select(range(64)),
            eval_dataset=rows["held_out"].select(range(8)),
            callbacks=[callback],
        )
        trainer.train()
        trainer.evaluate()
        trial.finish(callback.result())


if __name__ == "__main__":
    main()
