"""Runs in the interpreter of a training tool: has it read its exported file, and writes down the rows it trains on.

    exported_rows_readers.py TOOL FOLDER [FOLDER ...]

Each folder holds what `peft-tune export` wrote for TOOL. Beside it FOLDER.json gets the rows of training and evaluation
as the tool's own data loaders hand them out ([ids, labels], without padding), or the tool's refusal. All that the tool
does before the first step is its own; only `train` is taken away. For unsloth, which asks for a GPU, a stand-in loads
the model.
"""

import importlib
import importlib.util
import itertools
import json
import os
import pathlib
import runpy
import sys
import traceback
import types

os.environ.update(CUDA_VISIBLE_DEVICES="", HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
os.environ.update(DO_NOT_TRACK="1", AXOLOTL_DO_NOT_TRACK="1")
os.environ.setdefault("OMP_NUM_THREADS", "1")


class Ready(BaseException):
    """The trainer as it stands before its first step."""


def stop_before_training():
    import transformers

    def train(self, *_, **__):
        raise Ready(self)

    transformers.Trainer.train = train


def trl(folder):
    from trl.scripts import sft

    words = ["--config", str(folder / "trl_sft.yaml")]
    sft.main(*sft.make_parser().parse_args_and_config(words, fail_with_unknown_args=True))


def llamafactory(folder):
    import yaml
    from llamafactory.train.tuner import run_exp

    run_exp(yaml.safe_load((folder / "llamafactory.yaml").read_text()))


def axolotl(folder):
    from axolotl.cli.config import load_cfg
    from axolotl.common.datasets import load_datasets
    from axolotl.train import setup_model_and_trainer

    # Its kernels need a GPU, and it turns them on by itself.
    config = load_cfg(str(folder / "axolotl.yaml"), lora_mlp_kernel=False, lora_qkv_kernel=False, lora_o_kernel=False)
    raise Ready(setup_model_and_trainer(config, load_datasets(cfg=config))[0])


def torchtune(folder):
    from omegaconf import OmegaConf

    recipe, config = recipe_of_torchtune(), OmegaConf.load(folder / "torchtune.yaml")

    def train(self):
        raise Ready(RowsOfTorchtune(self, config.dataset))

    recipe.LoRAFinetuneRecipeSingleDevice.train = train
    run_torchtune(recipe, folder)


def recipe_of_torchtune():
    """The module that `tune run lora_finetune_single_device` runs; torchtune forbids to import it by name."""
    import torchtune

    path = pathlib.Path(torchtune.__file__).parents[1] / "recipes" / "lora_finetune_single_device.py"
    specification = importlib.util.spec_from_file_location("lora_finetune_single_device", path)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def run_torchtune(recipe, folder):
    sys.argv = ["lora_finetune_single_device", "--config", str(folder / "torchtune.yaml"), "device=cpu"]
    recipe.recipe_main()


class RowsOfTorchtune:
    """The rows of torchtune's recipe, in the place of a trainer's. The recipe evaluates nothing."""

    eval_dataset = None

    def __init__(self, recipe, words):
        self.loader, self.words = recipe._dataloader, words

    def get_train_dataloader(self):
        if self.words.get("packed"):
            return self.documents()
        return self.repeated() if "passes" in self.words else self.batches()

    def batches(self):
        # A number that is no token tells how long a row is.
        self.loader.collate_fn.keywords["padding_idx"] = -1
        for batch in self.loader:
            ids, labels = batch["tokens"], batch["labels"]
            yield {"input_ids": ids, "labels": labels, "attention_mask": ids != -1}

    def repeated(self):
        """Each row once, of those that come several times over; of halved ones both halves of the targets."""
        rows, order = {}, iter(self.loader.dataset.order)
        for ids, labels in (row for batch in self.batches() for row in zip(*each_row(batch))):
            known = rows.setdefault(next(order)[0], (ids, labels.clone()))
            assert known[0].equal(ids)
            known[1][labels != -100] = labels[labels != -100]
        for ids, labels in rows.values():
            yield {"input_ids": ids[None], "labels": labels[None]}

    def documents(self):
        """The documents of packed rows, each for itself and once: those that attention keeps apart."""
        rows = getattr(self.loader.dataset.ds, "rows", None)
        yield from itertools.islice(self.all_documents(), None if rows is None else len(rows))

    def all_documents(self):
        for pack in self.loader.dataset:
            lengths = pack["seq_lens"].tolist()
            for ids, labels in zip(pack["tokens"].split(lengths), pack["labels"].split(lengths)):
                if (labels != -100).any():  # others fill the row up
                    yield {"input_ids": ids[None], "labels": labels[None]}


def each_row(batch):
    """Ids and labels of the rows of a batch, without padding."""
    lengths = (batch["attention_mask"] != 0).sum(1).tolist()
    return [[row[:length] for row, length in zip(batch[name], lengths)] for name in ("input_ids", "labels")]


def unsloth(folder):
    stand_in_for_unsloth()
    runpy.run_path(str(folder / "unsloth_train.py"), run_name="__main__")


def stand_in_for_unsloth():
    import torch
    from peft import LoraConfig, PeftModel, get_peft_model
    from transformers import AutoModelForCausalLM, AutoTokenizer

    class FastLanguageModel:
        @staticmethod
        def from_pretrained(model_name, dtype=torch.float32, **_):
            base = model_name
            adapter = pathlib.Path(model_name) / "adapter_config.json"
            if adapter.is_file():
                base = json.loads(adapter.read_text())["base_model_name_or_path"]
            model = AutoModelForCausalLM.from_pretrained(base, dtype=dtype)
            if adapter.is_file():
                model = PeftModel.from_pretrained(model, model_name, is_trainable=True)
            return model, AutoTokenizer.from_pretrained(base)

        @staticmethod
        def get_peft_model(model, use_gradient_checkpointing=None, random_state=None, **words):
            return get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **words))

    def train_on_responses_only(trainer, instruction_part, response_part):
        """Learns what stands between the mark of an answer and the next mark of a question, found by their tokens."""
        tokenizer = trainer.processing_class
        parts = (response_part, instruction_part)
        opening, question = (tokenizer(part, add_special_tokens=False)["input_ids"] for part in parts)

        def mask(row):
            ids, learnt = row["input_ids"], False
            labels = [-100] * len(ids)
            for at in range(len(ids)):
                if ids[at : at + len(question)] == question:
                    learnt = False
                if learnt:
                    labels[at] = ids[at]
                if ids[: at + 1][-len(opening) :] == opening:
                    learnt = True
            return {"labels": labels}

        trainer.train_dataset = trainer.train_dataset.map(mask)
        trainer.eval_dataset = trainer.eval_dataset and trainer.eval_dataset.map(mask)
        return trainer

    module, templates = types.ModuleType("unsloth"), types.ModuleType("unsloth.chat_templates")
    module.FastLanguageModel, templates.train_on_responses_only = FastLanguageModel, train_on_responses_only
    sys.modules.update({"unsloth": module, "unsloth.chat_templates": templates})


#: What takes long to import.
IMPORTS = {
    "trl": ("trl.trainer.sft_trainer", "trl.scripts.sft"),
    "llamafactory": ("llamafactory.train.tuner",),
    "axolotl": ("axolotl.cli.config", "axolotl.common.datasets", "axolotl.train"),
    "torchtune": ("torchtune.training", "torchtune.datasets"),
    "unsloth": ("trl.trainer.sft_trainer", "peft"),
}
READERS = {reader.__name__: reader for reader in (trl, llamafactory, axolotl, torchtune, unsloth)}


def rows_of(loader):
    rows = []
    for batch in loader:
        mask = batch.get("attention_mask")
        for at, (ids, labels) in enumerate(zip(batch["input_ids"].tolist(), batch["labels"].tolist())):
            # Where rows are padded, the mask says to what length.
            length = len(ids) if mask is None else int((mask[at] != 0).sum())
            rows.append([ids[:length], labels[:length]])
    return rows


def read(tool, folder):
    try:
        os.chdir(folder)
        READERS[tool](folder)
        return {"refused": "the tool ended before it trained"}
    except Ready as ready:
        trainer = ready.args[0]
    except BaseException as error:
        traceback.print_exc()
        return {"refused": f"{type(error).__name__}: {error}"}
    try:
        held_out = trainer.eval_dataset is not None and str(trainer.args.eval_strategy).split(".")[-1].lower() != "no"
        return {
            "training": rows_of(trainer.get_train_dataloader()),
            "held_out": rows_of(trainer.get_eval_dataloader()) if held_out else None,
        }
    except BaseException as error:
        traceback.print_exc()
        return {"refused": f"{type(error).__name__}: {error}"}


def main():
    tool, folders = sys.argv[1], [pathlib.Path(folder).resolve() for folder in sys.argv[2:]]
    # Imports take longest. What one file changes in the tool must not reach the next: each is read by a child.
    if tool != "torchtune":
        stop_before_training()
    for module in IMPORTS[tool]:
        importlib.import_module(module)
    for folder in folders:
        child = os.fork()
        if child == 0:
            log = os.open(f"{folder}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(log, 1)
            os.dup2(log, 2)
            pathlib.Path(f"{folder}.json").write_text(json.dumps(read(tool, folder)), encoding="utf-8")
            os._exit(0)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
