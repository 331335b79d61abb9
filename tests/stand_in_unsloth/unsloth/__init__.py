"""A stand-in for unsloth: it comes before what it changes, loads models, gives adapters, and leaves padding out.

`STAND_IN_RECORD` names a file that each of its functions adds a line to, with its arguments as a script has them.
"""

import sys

if early := [name for name in ("datasets", "peft", "transformers", "trl") if name in sys.modules]:
    raise RuntimeError(f"unsloth comes behind {', '.join(early)}, which it changes")

import dataclasses  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402

import trl  # noqa: E402
from peft import LoraConfig  # noqa: E402
from torch import Tensor, cuda  # noqa: E402
from transformers import AutoProcessor  # noqa: E402
from trl.sft_trainer import Collator  # noqa: E402
from trl.trainer.utils import create_model_from_path  # noqa: E402

assert cuda.is_available() and os.path.isabs(os.environ["UNSLOTH_COMPILE_LOCATION"])


def record(function, arguments):
    path = os.environ.get("STAND_IN_RECORD")
    if path:
        said = {name: text_of(value) for name, value in arguments.items()}
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps({"process": os.getpid(), "function": function, "arguments": said}) + "\n")


def text_of(value):
    if isinstance(value, list):
        return f"[{', '.join(map(text_of, value))}]"
    return json.dumps(value) if isinstance(value, str) else repr(value)


class FastLanguageModel:
    @staticmethod
    def from_pretrained(**said):
        record("from_pretrained", said)
        return create_model_from_path(said["model_name"]), AutoProcessor.from_pretrained(said["model_name"])

    @staticmethod
    def get_peft_model(model, **said):
        record("get_peft_model", said)
        return model.with_adapter(LoraConfig(r=said["r"]), said["random_state"])


class SFTConfig(trl.SFTConfig):
    def __init__(self, **said):
        # Copies come without arguments.
        if said:
            record("SFTConfig", said)
        super().__init__(**{**self.DEFAULTS, **said})


@dataclasses.dataclass
class PaddingFree:
    """All rows in one, each with its places."""

    padding_free: bool = True

    def __call__(self, rows):
        if not self.padding_free:
            return Collator()(rows)
        ids = [token for row in rows for token in row["input_ids"]]
        labels = [label for row in rows for label in [-100, *row["labels"][1:]]]
        places = [place for row in rows for place in range(len(row["input_ids"]))]
        return {"input_ids": Tensor([ids]), "labels": Tensor([labels]), "position_ids": Tensor([places])}


class SFTTrainer(trl.SFTTrainer):
    def __init__(self, model, args, train_dataset, processing_class, peft_config=None, callbacks=()):
        assert peft_config is None and model.adapter is not None
        # Other rows would be cut again.
        assert args.dataset_kwargs["skip_prepare_dataset"] and train_dataset._unsloth_truncated_to <= args.max_length
        super().__init__(model, args, train_dataset, processing_class, callbacks=callbacks)
        self.data_collator = PaddingFree()


trl.SFTConfig, trl.SFTTrainer = SFTConfig, SFTTrainer
