"""Trains the first steps of an exported file with the tool that is installed beside this Python, and writes down each of them.

`peft-tune export --receipt` hands this text to the user's Python, with the path of what is asked and that of the answer, both JSON.
All that the tool does is its own: it reads its file, makes tokens and batches of its rows, and trains. What is done to it is told
with the answer: the adapter has the values that it is given before the first step, nothing is dropped at random, nothing is evaluated
or saved, and rows beyond those that the steps can need are not read. Whatever libraries print goes to standard error.
"""

import contextlib
import importlib.metadata
import importlib.util
import json
import math
import os
import pathlib
import resource
import sys
import traceback
import warnings

NO_TARGET = -100


class Done(BaseException):
    """The end of the steps that are asked for."""


class CannotAsk(Exception):
    """The tool is another than the file is for."""


class Record:
    """What is asked, and what was trained."""

    def __init__(self, asked):
        self.asked = asked
        self.steps = []
        #: What is known of the training as a whole.
        self.facts = {"parameters": None, "adapter": None, "strangers": [], "leak": None, "rows_cut": False}
        self._micro_batches, self._grad_norm, self._rate = [], None, None
        self._pad = None

    @property
    def scratch(self):
        return pathlib.Path(self.asked["scratch"])

    def begin(self, model, tokenizer=None):
        """Readies a model for its first step, and notes what it is."""
        adapter = self.asked["adapter"]
        if adapter is not None:
            self.facts["strangers"] = load(model, adapter)
        config = (getattr(model, "peft_config", None) or {}).get("default")
        if config is not None:
            self.facts["adapter"] = {
                "rank": config.r,
                "alpha": config.lora_alpha,
                "dropout": config.lora_dropout,
                "rslora": bool(getattr(config, "use_rslora", False)),
                "dora": bool(getattr(config, "use_dora", False)),
            }
        for module in model.modules():
            if type(module).__name__.endswith("Dropout"):
                module.p = 0.0
        parameters = list(model.parameters())
        self.facts["parameters"] = sum(one.numel() for one in parameters if one.requires_grad)
        self.facts["base_dtypes"] = sorted({dtype_of(one) for one in parameters if not one.requires_grad} - {""})
        self._pad = token_of(tokenizer, "pad_token_id")
        self.facts |= {"pad": self._pad, "end": token_of(tokenizer, "eos_token_id")}
        self.facts["attention"] = getattr(getattr(model, "config", None), "_attn_implementation", None)

    def saw(self, batches, trainer):
        """Hears of the micro-batches of a step."""
        self.took([documents(batch, self._pad) for batch in batches])
        if not self.steps and batches:
            self.facts["leak"] = leak(trainer, batches[0])

    def took(self, rows):
        """Hears of the rows of a step's micro-batches."""
        self._micro_batches = [{"rows": of_one, "loss": None} for of_one in rows]

    def lost(self, loss):
        """Hears of the part of the loss of the next micro-batch."""
        waiting = [one for one in self._micro_batches if one["loss"] is None]
        if waiting:
            waiting[0]["loss"] = float(loss)

    def has_norm(self, norm):
        norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        self._grad_norm = None if norm is None else float(norm)

    def has_rate(self, rate):
        self._rate = float(rate)

    def end_step(self):
        """Hears that a step is over."""
        losses = [one["loss"] for one in self._micro_batches]
        self.steps.append(
            {
                "loss": None if None in losses else sum(losses),
                "learning_rate": self._rate,
                "grad_norm": self._grad_norm,
                "micro_batches": self._micro_batches,
            }
        )
        self._micro_batches, self._grad_norm = [], None
        if len(self.steps) >= self.asked["steps"]:
            raise Done


def token_of(tokenizer, name):
    tokenizer = getattr(tokenizer, "tokenizer", tokenizer)
    found = getattr(tokenizer, name, None)
    return found if isinstance(found, int) else None


def dtype_of(parameter):
    return str(getattr(parameter, "dtype", "")).removeprefix("torch.")


def load(model, folder):
    """Gives the adapter of a model the values in a folder. Returns the names that one has and the other has not."""
    from peft import set_peft_model_state_dict
    from safetensors.torch import load_file

    loaded = set_peft_model_state_dict(model, load_file(os.path.join(folder, "adapter_model.safetensors")))
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    return sorted({*loaded.unexpected_keys, *trained.intersection(loaded.missing_keys)})


def documents(batch, pad):
    """The documents of a micro-batch, each as ids and labels: rows without padding, and packed rows taken apart."""
    mask, positions = batch.get("attention_mask"), batch.get("position_ids")
    masks = mask.tolist() if mask is not None and len(mask.shape) == 2 else None
    places = positions.tolist() if positions is not None and len(positions.shape) == 2 else None
    found = []
    for at, (ids, labels) in enumerate(zip(batch["input_ids"].tolist(), batch["labels"].tolist())):
        marks = masks[at] if masks else [1] * len(ids)
        kept = [place for place, mark in enumerate(marks) if mark != 0]
        begins = [
            number
            for number, place in enumerate(kept)
            if number == 0 or marks[place] != marks[kept[number - 1]] or (places and places[at][place] == 0)
        ]
        for begin, end in zip(begins, [*begins[1:], len(kept)]):
            part = kept[begin:end]
            document = [[ids[place] for place in part], [labels[place] for place in part]]
            # What fills up a packed row.
            if set(document[0]) != {pad} or any(label != NO_TARGET for label in document[1]):
                found.append(document)
    return found


def leak(trainer, batch):
    """The share of their size by which scores of a row's second document change where the tokens of its first one do.

    0 where attention keeps them apart, and `None` where no row holds two.
    """
    positions = batch.get("position_ids")
    if positions is None or len(positions.shape) != 2:
        return None
    begins = [place for place, position in enumerate(positions.tolist()[0]) if position == 0]
    ends = [*begins[1:], positions.shape[1]]
    long = [(begin, end) for begin, end in zip(begins, ends) if end - begin > 1]
    if len(long) < 2:
        return None
    import torch

    (first, first_end), (second, second_end) = long[:2]
    model = trainer.model
    inputs = {name: value for name, value in trainer._prepare_inputs(dict(batch)).items() if name != "labels"}
    other = inputs["input_ids"].clone()
    other[0, first:first_end] = (other[0, first:first_end] + 1) % model.config.vocab_size
    was_training = model.training
    model.eval()
    with torch.no_grad(), trainer.compute_loss_context_manager():
        before, after = (
            model(**{**inputs, "input_ids": ids}).logits[0, second:second_end].float() for ids in (inputs["input_ids"], other)
        )
    model.train(was_training)
    return float((before - after).abs().max() / before.abs().max())


def watch(record):
    """Has every training of transformers' Trainer tell of its steps."""
    import transformers

    train = transformers.Trainer.train

    class Callback(transformers.TrainerCallback):
        def __init__(self, trainer):
            self.trainer = trainer

        def on_optimizer_step(self, args, state, control, **_):
            record.has_rate(self.trainer._get_learning_rate())

        def on_step_end(self, args, state, control, **_):
            record.end_step()

    def told(trainer, name, hears):
        """Has a method of a trainer tell of what it returns."""
        method = getattr(trainer, name)

        def telling(*given, **named):
            found = method(*given, **named)
            hears(found)
            return found

        setattr(trainer, name, telling)

    def watched(self, *_, **__):
        record.begin(self.model, getattr(self, "processing_class", None) or getattr(self, "tokenizer", None))
        if record.facts["rows_cut"] and not self.args.max_steps > 0:
            # Of a part of the rows an epoch is shorter; the schedule is that of all.
            self.args.max_steps = record.asked["total_steps"]
        told(self, "get_batch_samples", lambda found: record.saw(found[0], self))
        told(self, "training_step", record.lost)
        if hasattr(self, "_get_grad_norm"):
            told(self, "_get_grad_norm", record.has_norm)
        elif hasattr(self.accelerator, "clip_grad_norm_"):
            told(self.accelerator, "clip_grad_norm_", record.has_norm)
        self.add_callback(Callback(self))
        return train(self)

    transformers.Trainer.train = watched


def read_less(record):
    """Has the `datasets` library hand out the first rows alone."""
    with contextlib.suppress(ImportError):
        import datasets

        def cut(rows):
            if isinstance(rows, dict):
                return type(rows)({name: cut(part) for name, part in rows.items()})
            if hasattr(rows, "select") and hasattr(rows, "__len__") and len(rows) > record.asked["rows"]:
                record.facts["rows_cut"] = True
                return rows.select(range(record.asked["rows"]))
            return rows

        for name in ("load_dataset", "load_from_disk"):
            if hasattr(datasets, name):
                whole = getattr(datasets, name)
                setattr(datasets, name, lambda *given, whole=whole, **named: cut(whole(*given, **named)))


def trl(record):
    try:
        from trl.scripts import sft
    except ImportError as error:
        raise CannotAsk(error) from error
    changes = {"eval_strategy": "no", "save_strategy": "no", "report_to": "none", "output_dir": str(record.scratch / "out")}
    if record.asked["device"] == "cpu":
        changes["use_cpu"] = "true"
    words = ["--config", "trl_sft.yaml"]
    for name, value in changes.items():
        words += [f"--{name}", value]
    sft.main(*sft.make_parser().parse_args_and_config(words, fail_with_unknown_args=True))


def llamafactory(record):
    import yaml

    try:
        from llamafactory.train.tuner import run_exp
    except ImportError as error:
        raise CannotAsk(error) from error
    words = yaml.safe_load(pathlib.Path("llamafactory.yaml").read_text(encoding="utf-8"))
    for name in ("eval_dataset", "val_size"):
        words.pop(name, None)
    words |= {"eval_strategy": "no", "save_strategy": "no", "report_to": "none", "output_dir": str(record.scratch / "out")}
    if record.asked["device"] == "cpu":
        words["use_cpu"] = True
    run_exp(words)


def axolotl(record):
    import yaml

    try:
        from axolotl.cli.config import load_cfg
        from axolotl.common.datasets import load_datasets
        from axolotl.train import setup_model_and_trainer
    except ImportError as error:
        raise CannotAsk(error) from error
    words = yaml.safe_load(pathlib.Path("axolotl.yaml").read_text(encoding="utf-8"))
    words.pop("test_datasets", None)
    words |= {"val_set_size": 0, "eval_strategy": "no", "output_dir": str(record.scratch / "out")}
    words["dataset_prepared_path"] = str(record.scratch / "prepared")
    if record.asked["device"] == "cpu":
        # Its kernels need a GPU, and it turns them on by itself.
        words |= {"lora_mlp_kernel": False, "lora_qkv_kernel": False, "lora_o_kernel": False}
    changed = record.scratch / "axolotl.yaml"
    changed.write_text(yaml.safe_dump(words), encoding="utf-8")
    config = load_cfg(str(changed))
    setup_model_and_trainer(config, load_datasets(cfg=config))[0].train()


def peft(record):
    """A plain loop over PEFT's model: rows, rates and AdamW are those that are asked for."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    loop = record.asked["loop"]
    is_gpu = record.asked["device"] != "cpu"
    device, dtype = ("cuda" if is_gpu else "cpu"), getattr(torch, loop["dtype"])
    config = LoraConfig.from_pretrained(".")
    base = AutoModelForCausalLM.from_pretrained(config.base_model_name_or_path, dtype=dtype).to(device)
    model = get_peft_model(base, config)
    model.train()
    record.begin(model)
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(
        weights, betas=loop["betas"], eps=loop["epsilon"], weight_decay=loop["weight_decay"], lr=loop["learning_rates"][0]
    )
    for rate, micro_batches in zip(loop["learning_rates"], loop["steps"]):
        rows = [row for micro_batch in micro_batches for row in micro_batch]
        targets = sum(label != NO_TARGET for _, labels in rows for label in labels[1:])
        record.took(micro_batches)
        for micro_batch in micro_batches:
            total = 0.0
            for ids, labels in micro_batch:
                with torch.autocast(device, dtype=dtype, enabled=dtype != torch.float32):
                    logits = model(input_ids=torch.tensor([ids], device=device)).logits[0, :-1]
                wanted = torch.tensor(labels[1:], device=device)
                loss = torch.nn.functional.cross_entropy(logits.float(), wanted, reduction="sum") / targets
                loss.backward()
                total += loss.item()
            record.lost(total)
        most = float("inf") if loop["max_grad_norm"] is None else loop["max_grad_norm"]
        record.has_norm(torch.nn.utils.clip_grad_norm_(weights, most))
        for group in optimizer.param_groups:
            group["lr"] = rate
        record.has_rate(rate)
        optimizer.step()
        optimizer.zero_grad()
        record.end_step()


TOOLS = {"peft": peft, "trl": trl, "axolotl": axolotl, "llamafactory": llamafactory}


def peak_bytes(device):
    """The most bytes that were in use: of the GPU, or of this process."""
    if device != "cpu":
        import torch

        return torch.cuda.max_memory_allocated()
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def answer(asked):
    """What the tool trains from the file."""
    tool, record = asked["tool"], Record(asked)
    if importlib.util.find_spec(tool) is None:
        return {"outcome": "missing"}
    told = {"outcome": "trained"}
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        told["version"] = importlib.metadata.version(tool)
    # Files name one another as the tool reads them where it is started, and nothing of this training is to lie beside them.
    started = record.scratch / "started"
    started.mkdir()
    for entry in pathlib.Path(asked["folder"]).iterdir():
        (started / entry.name).symlink_to(entry)
    os.chdir(started)
    try:
        read_less(record)
        if tool != "peft":
            watch(record)
        TOOLS[tool](record)
        if not record.steps:
            return told | {"outcome": "refused", "message": "it ended before the first step"}
    except Done:
        pass
    except (CannotAsk, ModuleNotFoundError) as error:
        return told | {"outcome": "unusable", "message": str(error)}
    except BaseException as error:
        traceback.print_exc()
        return told | {"outcome": "refused", "message": f"{type(error).__name__}: {error}"[:2000]}
    return told | {"steps": record.steps, "peak_bytes": peak_bytes(asked["device"]), **record.facts}


def finite(value):
    """A value for JSON, which has no word for what is no number."""
    if isinstance(value, dict):
        return {name: finite(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def main():
    # Not the folder that this was started in: a file there may have a package's name.
    sys.path[:] = [path for path in sys.path if path]
    os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "DISABLE_VERSION_CHECK": "1"}
    os.environ |= {"DO_NOT_TRACK": "1", "AXOLOTL_DO_NOT_TRACK": "1", "TOKENIZERS_PARALLELISM": "false"}
    warnings.filterwarnings("ignore")
    os.dup2(2, 1)
    asked, told = (pathlib.Path(path).resolve() for path in sys.argv[1:])
    found = answer(json.loads(asked.read_text(encoding="utf-8")))
    told.write_text(json.dumps(finite(found)), encoding="utf-8")


if __name__ == "__main__":
    main()
