"""Runs in the interpreter of a training tool: trains as its exported file says, and writes down each step.

    ten_steps_readers.py TOOL FOLDER ADAPTER

FOLDER holds what `peft-tune export` wrote; TOOL is one of exported_rows_readers.py, or `loop` for a plain loop over
PEFT's model. Only two things are done to a tool: the weights of ADAPTER go into its model before the first step, since
a study names no adapter to start from, and axolotl, whose exported file has no key for the order of rows, is told
`curriculum_sampling`. torchtune's file says `device: cuda`, which is overridden. FOLDER.json gets the loss of each step in full precision, and its learning rate.
"""

import json
import os
import pathlib
import sys
import traceback

import exported_rows_readers as readers


class Trained(BaseException):
    """The steps of a training, which ends here."""


def record_training(adapter):
    import transformers
    from peft import set_peft_model_state_dict
    from safetensors.torch import load_file

    train, training_step = transformers.Trainer.train, transformers.Trainer.training_step
    losses, steps = [], []

    class Recorder(transformers.TrainerCallback):
        def on_pre_optimizer_step(self, *_, optimizer=None, **__):
            # A micro-batch gives its share of the step's mean.
            steps.append({"loss": sum(losses), "learning_rate": optimizer.param_groups[0]["lr"]})
            losses.clear()

    def recorded_step(self, *words, **named):
        loss = training_step(self, *words, **named)
        losses.append(loss.item())
        return loss

    def from_adapter(self, *words, **named):
        missed = set_peft_model_state_dict(self.model, load_file(adapter / "adapter_model.safetensors"))
        assert not missed.unexpected_keys, missed.unexpected_keys
        # A tool that loads other weights than its file says is seen by them in FOLDER.log.
        print(
            "weights:",
            sorted({f"{weight.dtype}, trained: {weight.requires_grad}" for weight in self.model.parameters()}),
        )
        self.add_callback(Recorder())
        train(self, *words, **named)
        raise Trained(steps)

    transformers.Trainer.train, transformers.Trainer.training_step = from_adapter, recorded_step


def loop(folder, adapter):
    """The settings of TRL's file, the rows of the engine, and nothing between them and PyTorch."""
    import torch
    import yaml
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, get_scheduler

    words = yaml.safe_load((folder / "trl_sft.yaml").read_text())
    rows = json.loads((folder / "rows.json").read_text())
    model = AutoModelForCausalLM.from_pretrained(words["model_name_or_path"], dtype=torch.float32)
    model = PeftModel.from_pretrained(model, str(adapter), is_trainable=True)
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(
        weights,
        lr=words["learning_rate"],
        betas=(words["adam_beta1"], words["adam_beta2"]),
        eps=float(words["adam_epsilon"]),
        weight_decay=words["weight_decay"],
    )
    schedule = get_scheduler(words["lr_scheduler_type"], optimizer, int(words["warmup_steps"]), words["max_steps"])
    batch = words["per_device_train_batch_size"] * words["gradient_accumulation_steps"]
    epoch = [rows[at : at + batch] for at in range(0, len(rows), batch)]
    steps = []
    for step in range(words["max_steps"]):
        documents = epoch[step % len(epoch)]
        targets = sum(label != -100 for _, labels in documents for label in labels[1:])
        total = 0.0
        for ids, labels in documents:
            logits = model(input_ids=torch.tensor([ids])).logits[0, :-1]
            loss = torch.nn.functional.cross_entropy(logits, torch.tensor(labels[1:]), reduction="sum") / targets
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(weights, words["max_grad_norm"])
        steps.append({"loss": total, "learning_rate": optimizer.param_groups[0]["lr"]})
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    raise Trained(steps)


def axolotl(folder):
    from axolotl.cli.config import load_cfg
    from axolotl.common.datasets import load_datasets
    from axolotl.train import setup_model_and_trainer

    off = {"lora_mlp_kernel": False, "lora_qkv_kernel": False, "lora_o_kernel": False}
    config = load_cfg(str(folder / "axolotl.yaml"), curriculum_sampling=True, **off)
    setup_model_and_trainer(config, load_datasets(cfg=config))[0].train()


def torchtune(folder, adapter):
    recipe, steps = readers.recipe_of_torchtune(), []
    train = recipe.LoRAFinetuneRecipeSingleDevice.train

    def from_adapter(self):
        self._model.load_state_dict(weights_for_torchtune(self, adapter), strict=False)
        # Its logger is told the rate of the step that comes next.
        self._optimizer.register_step_pre_hook(
            lambda optimizer, *_: steps.append({"learning_rate": optimizer.param_groups[0]["lr"]})
        )
        self._metric_logger.log_dict = lambda told, step: steps[step - 1].update(loss=float(told["loss"]))
        train(self)
        raise Trained(steps)

    recipe.LoRAFinetuneRecipeSingleDevice.train = from_adapter
    readers.run_torchtune(recipe, folder)


def weights_for_torchtune(recipe, adapter):
    """Weights of PEFT's file under the names and in the order of torchtune: what its own conversion to PEFT does, undone."""
    import torch
    from safetensors.torch import load_file
    from torchtune.models.convert_weights import tune_to_peft_adapter_weights
    from torchtune.modules.peft import get_adapter_state_dict

    model = json.loads((pathlib.Path(recipe._checkpointer._checkpoint_dir) / "config.json").read_text())
    heads, kv_heads, size = (model[name] for name in ("num_attention_heads", "num_key_value_heads", "hidden_size"))
    of_file, weights = load_file(adapter / "adapter_model.safetensors"), {}
    for name, weight in get_adapter_state_dict(recipe._model.state_dict()).items():
        numbered = {name: torch.arange(weight.numel()).reshape(weight.shape)}
        [(name_of_file, places)] = tune_to_peft_adapter_weights(numbered, heads, kv_heads, size).items()
        flat = torch.empty(weight.numel())
        flat[places.flatten()] = of_file.pop(name_of_file).flatten()
        weights[name] = flat.reshape(weight.shape)
    assert not of_file, sorted(of_file)
    return weights


#: What trains without transformers' trainer.
ALONE = {"loop": loop, "torchtune": torchtune}


def main():
    tool, folder, adapter = sys.argv[1], *(pathlib.Path(path).resolve() for path in sys.argv[2:])
    os.chdir(folder)
    try:
        if tool in ALONE:
            ALONE[tool](folder, adapter)
        record_training(adapter)
        (axolotl if tool == "axolotl" else readers.READERS[tool])(folder)
    except Trained as trained:
        pathlib.Path(f"{folder}.json").write_text(json.dumps(trained.args[0]), encoding="utf-8")
    except BaseException:
        traceback.print_exc()
        sys.exit(1)


if __name__ == "__main__":
    main()
