"""Settings of a trial, read by TRL's own parser from the file that an export writes."""

import contextlib
import copy
import io
import json
import os
import tempfile
from typing import Any, NamedTuple

from . import kinds
from .trial_files import Invalid

#: Fields of the training arguments that a trial sets otherwise than its export. Nothing is written or reported, rows are
#: tokens with labels already, or become so in this process, and the base model is loaded before.
OVERRIDES = (
    "output_dir",
    "save_strategy",
    "eval_strategy",
    # What transformers makes of `eval_strategy`.
    "do_eval",
    "report_to",
    "logging_strategy",
    "logging_steps",
    "disable_tqdm",
    "use_cpu",
    "dataloader_pin_memory",
    "dataset_kwargs",
    "dataset_num_proc",
    "assistant_only_loss",
    "chat_template_path",
    "model_init_kwargs",
)
#: Key of `dataset_kwargs` with which TRL takes rows as they are.
AS_THEY_ARE = "skip_prepare_dataset"


class Settings(NamedTuple):
    """Settings as TRL's parser gives them, and what the model is loaded with beside them."""

    #: TRL's trainer.
    kind: Any
    training: Any
    model: Any
    #: Arguments for loading the model, from the file.
    model_init: dict
    #: Loads the model and puts the adapter on, where that is not TRL's to do.
    loader: Any = None

    @property
    def packs(self):
        """Whether TRL packs rows."""
        return getattr(self.training, "packing", False)

    @property
    def asks_before(self):
        """Whether the reference is asked before the training, for all rows."""
        return getattr(self.training, "precompute_ref_log_probs", False)

    @property
    def has_copy(self):
        """Whether a copy of the model is asked in each step: the reference of one that trains whole."""
        asks_in_steps = getattr(self.training, "precompute_ref_log_probs", None) is False
        return asks_in_steps and not self.model.use_peft

    @property
    def is_sharded(self):
        """Whether FSDP shares the weights out among the ranks."""
        return bool(self.training.fsdp)

    @property
    def is_moved_by_engine(self):
        """Whether FSDP or DeepSpeed brings the model to the device, and changes its tensors for that."""
        return self.is_sharded or bool(self.training.deepspeed)

    @property
    def keeps_base(self):
        """Whether a training leaves the tensors of its base model as they were, for the next one."""
        return self.model.use_peft and not self.is_moved_by_engine and self.loader is None

    def adapter(self):
        """A new LoraConfig; `None` for full fine-tuning, and where the model has its adapter already."""
        if self.loader is not None:
            return None
        from trl import get_peft_config

        return get_peft_config(self.model)

    def training_with(self, **changes):
        """The training arguments for one trainer, which may change them, with other values in some fields."""
        training = copy.copy(self.training)
        for name, value in vars(training).items():
            if isinstance(value, dict):
                setattr(training, name, copy.deepcopy(value))
        for name, value in changes.items():
            setattr(training, name, value)
        return training


def parsed(config, is_gpu, trainer="sft", changes=None):
    """The settings of a file's text for a trainer, with other values in some fields. Raises `Invalid` where TRL refuses it."""
    from trl import DatasetMixtureConfig, ModelConfig, ScriptArguments, TrlParser

    if trainer not in kinds.KINDS:
        raise Invalid(f"this worker has no trainer `{trainer}`: it is another version of the program than the tuner's")
    kind = kinds.KINDS[trainer]
    # A parser keeps the values of the last file as its defaults.
    parser = TrlParser((ScriptArguments, kind.config_class(), ModelConfig, DatasetMixtureConfig))
    said = io.StringIO()
    try:
        with tempfile.TemporaryDirectory(prefix="peft-tune-trl-") as folder, contextlib.redirect_stderr(said):
            path = os.path.join(folder, kind.file)
            with open(path, "w", encoding="utf-8") as file:
                file.write(config)
            found = parser.parse_args_and_config(
                ["--config", path, *words(is_gpu, changes or {})], fail_with_unknown_args=True
            )
    except SystemExit as error:  # parsers of arguments print what is wrong, and exit
        lines = said.getvalue().strip().splitlines() or ["no reason"]
        raise Invalid(f"TRL refuses its file: {lines[-1]}") from error
    except (ValueError, TypeError) as error:
        raise Invalid(f"TRL refuses its file: {error}") from error
    _, training, model, *_ = found
    if not is_gpu and (training.fsdp or training.deepspeed):
        # On a processor the libraries would pass over both, and train something else.
        raise Invalid("FSDP and DeepSpeed need a GPU here: write `sharding: none` and `optimizer_offload: none`")
    model_init, training.model_init_kwargs = dict(training.model_init_kwargs or {}), None
    if kind.compares:
        # Copies of this process would have its threads' locks.
        training.dataset_num_proc = None
        return Settings(kind, training, model, model_init)
    training.assistant_only_loss, training.chat_template_path = False, None
    kwargs = dict(training.dataset_kwargs or {})
    if not training.packing:
        # Rows are cut and labelled; to map and filter them would write a cache for each trial.
        kwargs[AS_THEY_ARE] = True
    training.dataset_kwargs = kwargs or None
    return Settings(kind, training, model, model_init)


def words(is_gpu, changes):
    """The command line of what `OVERRIDES` names, as far as the parser has to know it, and of other changes."""
    said = {name: str(value).lower() if isinstance(value, bool) else value for name, value in overridden(is_gpu).items()}
    said |= {name: str(value) for name, value in changes.items()}
    return [word for name, value in said.items() for word in (f"--{name}", value)]


def overridden(is_gpu):
    """Values of what `OVERRIDES` names, as far as the training arguments are made with them."""
    said = {
        # It is there, and nothing is written to it.
        "output_dir": tempfile.gettempdir(),
        "save_strategy": "no",
        "eval_strategy": "no",
        "report_to": "none",
        "logging_strategy": "no",
        "disable_tqdm": True,
    }
    return said if is_gpu else {**said, "use_cpu": True, "dataloader_pin_memory": False}


def key_of(settings, model_folder):
    """What decides how a base model is loaded."""
    names = (
        "model_revision dtype attn_implementation load_in_8bit load_in_4bit bnb_4bit_quant_type use_bnb_nested_quant "
        "bnb_4bit_quant_storage"
    )
    values = [getattr(settings.model, name, None) for name in names.split()]
    return json.dumps([model_folder, settings.model_init, *values], sort_keys=True, default=str)
