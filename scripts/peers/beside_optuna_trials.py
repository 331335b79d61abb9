"""Runs in an interpreter with optuna, torch, transformers, peft and trl: a study of Optuna whose trials are trainings of TRL.

    beside_optuna_trials.py REQUEST.json [SETTING.json]

REQUEST.json is written by beside_optuna.py. Each trial takes the setting that the sampler asks for, trains it by SFTTrainer with
a LoraConfig for so many tokens, and tells the study its held-out loss. With `processes: each` this file is started again for each
trial, with its SETTING.json, and loads the libraries, the model and the rows anew; with `one` they are loaded once for all trials.
After each trial a line goes to the file of proposals: the seconds since the run began, the setting that was tried, its loss, and
the best setting so far, which is what Optuna proposes by then.

The loss is the mean over all target tokens, as the engine has it. Trainer's own `eval_loss` weighs each batch by its rows instead,
and SFTTrainer makes logits for it that nobody looks at, in a second pass. Neither is done here: both would be to Optuna's
disadvantage.
"""

import json
import math
import pathlib
import subprocess
import sys
import time

sys.dont_write_bytecode = True  # not beside the sources
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "measure"))
import real_table  # noqa: E402

TARGETS = {"attention": ["q_proj", "k_proj", "v_proj", "o_proj"], "all-linear": "all-linear"}
DTYPES = {"bf16": "bfloat16", "fp32": "float32"}
OPTIMIZERS = {"adamw": "adamw_torch_fused"}


def recipe_of(request, setting):
    """The recipe of a training, as the table has it."""
    values = [setting[name] for name in real_table.SETTING]
    return real_table.recipe(request["model"], pathlib.Path(request["data"]), *values, request["seed"], request["tokens"])


class Trainings:
    """The model and the rows, and what trains on them."""

    def __init__(self, request):
        from datasets import load_dataset
        from transformers import AutoTokenizer

        self.request = request
        self.tokenizer = AutoTokenizer.from_pretrained(request["model"])
        cache = str(pathlib.Path(request["folder"]) / "cache")
        folder = pathlib.Path(request["data"])
        read = lambda name, split: load_dataset("json", data_files=str(folder / name), split=split, cache_dir=cache)
        self.train = read("trl_train.jsonl", "train")
        self.held_out = read("trl_held_out.jsonl", f"train[:{request['evaluation_rows']}]")
        self.base = None

    def model(self, precision):
        from transformers import AutoModelForCausalLM

        if self.base is None:
            self.base = AutoModelForCausalLM.from_pretrained(self.request["model"], dtype=DTYPES[precision])
        return self.base

    def loss(self, setting):
        """Trains a setting; its held-out loss, and the target tokens behind it."""
        recipe = recipe_of(self.request, setting)
        trainer = trainer_of(self, recipe)
        # Their tokens are kept for the next trials.
        self.train, self.held_out = trainer.train_dataset, trainer.eval_dataset
        trainer.args.max_steps = steps_of(self.train, recipe)
        trainer.train()
        trainer.evaluate()
        self.base = trainer.model.unload()
        return trainer.loss_sum / trainer.target_tokens, trainer.target_tokens


def steps_of(rows, recipe):
    """Steps that have so many tokens, by the rows' mean length."""
    length = recipe["batch"]["sequence_length"]
    mean = sum(min(len(ids), length) for ids in rows["input_ids"]) / len(rows)
    global_batch = recipe["batch"]["micro_batch"] * recipe["batch"]["gradient_accumulation"]
    return math.ceil(recipe["training"]["length"]["tokens"] / (mean * global_batch))


def trainer_of(trainings, recipe):
    import torch
    from peft import LoraConfig
    from transformers import set_seed
    from trl import SFTConfig, SFTTrainer

    class PerToken(SFTTrainer):
        """Sums up the held-out loss over target tokens."""

        loss_sum, target_tokens = 0.0, 0

        def prediction_step(self, model, inputs, *_, **__):
            inputs = self._prepare_inputs(inputs)
            count = int((inputs["labels"][:, 1:] != -100).sum())
            with torch.no_grad(), self.compute_loss_context_manager():
                loss = self.compute_loss(model, inputs).detach()
            self.loss_sum += loss.item() * count
            self.target_tokens += count
            return loss, None, None

    adapter, batch, optimizer, schedule = (recipe[part] for part in ("adapter", "batch", "optimizer", "schedule"))
    arguments = SFTConfig(
        output_dir=str(pathlib.Path(trainings.request["folder"]) / "trl"),
        use_cpu=True,
        bf16=recipe["precision"] == "bf16",
        completion_only_loss=True,
        max_length=batch["sequence_length"],
        packing=batch["packing"],
        per_device_train_batch_size=batch["micro_batch"],
        gradient_accumulation_steps=batch["gradient_accumulation"],
        # TRL's own default is True: less memory, and a third more time.
        gradient_checkpointing=False,
        optim=OPTIMIZERS[optimizer["kind"]],
        learning_rate=optimizer["learning_rate"],
        lr_scheduler_type=schedule["kind"],
        # Below 1 it is a share of the steps.
        warmup_steps=schedule["warmup"],
        # Replaced once the rows' lengths are known.
        max_steps=1,
        seed=recipe["training"]["seed"],
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    lora = LoraConfig(
        r=adapter["rank"],
        lora_alpha=adapter["alpha"],
        target_modules=TARGETS[adapter["target_modules"]],
        task_type="CAUSAL_LM",
    )
    # The adapter's first values are drawn before the trainer sets its seed.
    set_seed(arguments.seed)
    return PerToken(
        model=trainings.model(recipe["precision"]),
        args=arguments,
        train_dataset=trainings.train,
        eval_dataset=trainings.held_out,
        processing_class=trainings.tokenizer,
        peft_config=lora,
    )


def trained_apart(request_file, setting):
    """Trains a setting in a process of its own."""
    folder = pathlib.Path(json.loads(request_file.read_text())["folder"])
    (folder / "setting.json").write_text(json.dumps(setting))
    command = [sys.executable, __file__, str(request_file), str(folder / "setting.json")]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"the trial of {setting} ended with {done.returncode}; its messages stand above")
    return json.loads(done.stdout.splitlines()[-1])


def sampler_of(request):
    import optuna

    return {"tpe": optuna.samplers.TPESampler, "gp": optuna.samplers.GPSampler}[request["sampler"]](seed=request["seed"])


def asked(trial, request):
    """The setting that a trial asks for. In order, values of a number are steps of a whole number."""
    setting = {}
    for name, values in request["space"].items():
        if request["values"] == "ordered" and all(isinstance(value, (int, float)) for value in values):
            setting[name] = values[trial.suggest_int(name, 0, len(values) - 1)]
        else:
            setting[name] = trial.suggest_categorical(name, values)
    trial.set_user_attr("setting", setting)
    return setting


def study(request_file):
    request = json.loads(request_file.read_text())
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    kept = Trainings(request) if request["processes"] == "one" else None
    found = optuna.create_study(direction="minimize", sampler=sampler_of(request))
    while time.time() < request["ends"]:
        trial = found.ask()
        setting = asked(trial, request)
        loss, target_tokens = kept.loss(setting) if kept else trained_apart(request_file, setting)
        # A loss that is no number fails the trial.
        found.tell(trial, loss)
        best = [one for one in found.trials if one.state.name == "COMPLETE"]
        line = {
            "seconds": time.time() - request["began"],
            "tried": setting,
            "loss": loss if math.isfinite(loss) else None,
            "target_tokens": target_tokens,
            "proposed": found.best_trial.user_attrs["setting"] if best else None,
        }
        with open(request["proposals"], "a") as out:
            out.write(json.dumps(line) + "\n")


def main():
    request_file, *setting_file = map(pathlib.Path, sys.argv[1:])
    if not setting_file:
        return study(request_file)
    trainings = Trainings(json.loads(request_file.read_text()))
    print(json.dumps(trainings.loss(json.loads(setting_file[0].read_text()))))


if __name__ == "__main__":
    main()
