"""unsloth in the place of transformers and PEFT: it loads the model that TRL's trainer gets, and puts the adapter on.

A trial gives its functions the arguments of the script that `export --format unsloth` writes, read from the script's
syntax tree. unsloth changes PyTorch, transformers and TRL for the whole process, by the model that it loads too: it is
imported before them, and the tuner ends a process with its trial.
"""

import ast
import os
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

from . import kinds, settings
from .trial_files import Invalid

#: Calls of the script whose arguments a trial takes.
LOAD, ADAPT, CONFIG = "FastLanguageModel.from_pretrained", "FastLanguageModel.get_peft_model", "SFTConfig"
#: Attribute by which rows say to which length they were cut. unsloth leaves padding out of such rows alone, as it does of those
#: that it cuts itself.
CUT_TO = "_unsloth_truncated_to"


class Loader(NamedTuple):
    """Arguments of unsloth's functions, as a script has them."""

    of_model: dict
    of_adapter: dict

    def load(self):
        """A model without an adapter, and its tokenizer."""
        from unsloth import FastLanguageModel

        return FastLanguageModel.from_pretrained(**self.of_model)

    def with_adapter(self, model):
        """A model with the adapter."""
        from unsloth import FastLanguageModel

        return FastLanguageModel.get_peft_model(model=model, **self.of_adapter)

    def say_cut(self, rows, length):
        """Says of rows that they have so many tokens at the most, which the program has cut them to."""
        setattr(rows, CUT_TO, length)


def prepare():
    """Imports unsloth, before what it changes. The sources that it writes lie beside this package, and not where a search runs."""
    os.environ.setdefault("UNSLOTH_COMPILE_LOCATION", os.fspath(Path(__file__).parents[2] / "unsloth_compiled_cache"))
    import unsloth  # noqa: F401


def parsed(script, is_gpu, trainer="sft", changes=None):
    """The settings of a script, with other values in some fields of the training. Raises `Invalid` for what cannot be trained."""
    if trainer != "sft":
        raise Invalid(f"trials in unsloth have no trainer `{trainer}`: it is another version of the program than the tuner's")
    calls, kind = calls_of(script), kinds.KINDS[trainer]
    of_model, of_adapter, said = (calls[name] for name in (LOAD, ADAPT, CONFIG))
    try:
        training = kind.config_class()(**{**said, **settings.overridden(is_gpu), **(changes or {})})
    except (ValueError, TypeError) as error:
        raise Invalid(f"unsloth refuses its script: {error}") from error
    training.dataset_kwargs = {**(training.dataset_kwargs or {}), settings.AS_THEY_ARE: True}
    model = SimpleNamespace(use_peft=True, use_dora=of_adapter.get("use_dora", False))
    return settings.Settings(kind, training, model, of_model, Loader(of_model, of_adapter))


def calls_of(script):
    """The arguments of the calls that a trial takes, by their functions. Raises `Invalid` where the script lacks one."""
    found = {}
    try:
        for node in ast.walk(ast.parse(script)):
            if isinstance(node, ast.Call) and (name := ast.unparse(node.func)) in (LOAD, ADAPT, CONFIG):
                found[name] = {word.arg: value_of(word.value) for word in node.keywords if word.arg != "model"}
    except (SyntaxError, ValueError, AttributeError) as error:
        raise Invalid(f"the script for unsloth cannot be read: {error}") from error
    if missing := [name for name in (LOAD, ADAPT, CONFIG) if name not in found]:
        raise Invalid(f"the script for unsloth does not call {', '.join(missing)}")
    return found


def value_of(node):
    """A literal, or a name of PyTorch's such as `torch.bfloat16`."""
    if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "torch":
        import torch

        return getattr(torch, node.attr)
    return ast.literal_eval(node)
