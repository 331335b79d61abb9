"""The base model, which stays on the device between trials and is never given to a trainer itself.

Each trial trains a copy of the modules that shares the frozen tensors: TRL and PEFT change methods, hooks and configs
of what they are given, and dropping the copy leaves none of that behind.
"""

import copy
import json
import os
import sys

from . import device as devices
from . import settings as of_trial
from .trial_files import Invalid


class Base:
    """A loaded model with what is known of its tensors."""

    def __init__(self, model):
        self.model = model
        self.tensors = devices.tensors_of(model)
        ready_scales(model)
        self._scales = scales_of(model)
        self.frozen_bytes = frozen_bytes_of(self.tensors, self._scales)
        self._trained = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
        self._watched = self.tensors
        self._versions = [tensor._version for tensor in self._watched]

    def copied(self):
        """The model with modules of its own and these tensors."""
        for parameter, is_trained in self._trained:
            parameter.requires_grad_(is_trained)
            parameter.grad = None
        return copy.deepcopy(self.model, {id(shared): shared for shared in [*self.tensors, *self._scales]})

    def note_sync(self):
        """Notes that ranks have written the values of the first one, which are their own, and go on to do so with buffers."""
        self._watched = [parameter for parameter, _ in self._trained]
        self._versions = [tensor._version for tensor in self._watched]

    def is_untouched(self):
        """Whether no tensor was written to since the model was loaded."""
        return all(tensor._version == version for tensor, version in zip(self._watched, self._versions))


def frozen_bytes_of(tensors, scales):
    """Bytes of a base model: its parameters and buffers, and what bitsandbytes keeps beside them."""
    return devices.bytes_of([*tensors, *tensors_in(scales)])


def ready_scales(model):
    """Has modules of 8 bits take their scales from the weights, which the first forward pass does otherwise.

    Of copies that share a weight the first alone would find any, and the others compute with scales that are none of
    the weight's.
    """
    for module in model.modules():
        if getattr(getattr(module, "weight", None), "CB", None) is not None:
            module.init_8bit_state()


def scales_of(model):
    """What bitsandbytes keeps beside quantized weights, no parameters and no buffers."""
    scales = []
    for module in model.modules():
        weight, state = getattr(module, "weight", None), getattr(module, "state", None)
        scales += [getattr(holder, name, None) for holder in (weight, state) for name in ("CB", "SCB")]
        scales += [getattr(holder, "quant_state", None) for holder in (module, weight)]
    return [one for one in scales if one is not None]


def tensors_in(scales):
    """The tensors of such scales, of which some are nested."""
    for one in scales:
        if hasattr(one, "untyped_storage"):
            yield one
        elif one is not None:
            yield from (value for value in vars(one).values() if hasattr(value, "untyped_storage"))
            yield from tensors_in([getattr(one, "state2", None)])


def check_class(folder):
    """Raises `Invalid` where a model's file does not name its class: TRL loads the first one that stands there."""
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
        named = json.load(file).get("architectures")
    if not named:
        raise Invalid("config.json names no `architectures`, by which TRL picks the class to load: copy the key from the published file")


def key_of_tokenizer(settings, folder):
    """What decides which tokenizer a trial has."""
    return folder, getattr(settings.training, "eos_token", None), getattr(settings.training, "pad_token", None)


class BaseModels:
    """The base model that was used last, and its tokenizer. A trial on another one finds the memory free."""

    def __init__(self, device):
        self._device = device
        self._base = (None, None)
        self._tokenizer = (None, None)

    @property
    def held_bytes(self):
        """Bytes of the tensors that are kept."""
        base = self._base[1]
        return 0 if base is None else base.frozen_bytes

    def has(self, settings, folder):
        """Whether the model of these settings is there."""
        return settings.keeps_base and self._base[0] == of_trial.key_of(settings, folder)

    def load(self, settings, folder):
        """Loads a model that is kept, unless it is there, and returns the bytes of its tensors."""
        key = of_trial.key_of(settings, folder)
        if self._base[0] != key:
            self.forget()
            self._base = (key, Base(self._loaded(settings, folder)))
        return self._base[1].frozen_bytes

    def take(self, settings, folder):
        """A model to train, and the bytes of its base tensors. It is loaded anew where a training changes these."""
        if settings.keeps_base:
            frozen_bytes = self.load(settings, folder)
            return self._base[1].copied(), frozen_bytes
        self._forget_base()
        model = self._loaded(settings, folder)
        base_bytes = frozen_bytes_of(devices.tensors_of(model), scales_of(model))
        return model if settings.loader is None else settings.loader.with_adapter(model), base_bytes

    def reference(self, settings, folder):
        """The copy of the model that answers are compared with, loaded as the model is; `None` where there is none.

        TRL would load one by the arguments of the file, which a model that is handed over leaves unread: in fp32.
        """
        return self._loaded(settings, folder) if settings.has_copy else None

    def tokenizer(self, settings, folder):
        """The tokenizer, or processor, of a model. Trainers change its tokens of padding and end."""
        training, key = settings.training, key_of_tokenizer(settings, folder)
        if self._tokenizer[0] != key:
            from transformers import AutoProcessor

            try:
                found = AutoProcessor.from_pretrained(folder, trust_remote_code=training.trust_remote_code)
            except (ImportError, OSError, ValueError) as error:
                said = " ".join(str(error).split())
                raise Invalid(
                    f"the model's tokenizer, or the processor that TRL reads in its place, cannot be loaded: {said}; that of a model "
                    "with images takes its preprocessor_config.json, and `pip install pillow torchvision`"
                ) from error
            if settings.kind.compares and getattr(found, "pad_token", "") is None:
                # As TRL does, but for its ORPO.
                found.pad_token = found.eos_token
            self._tokenizer = (key, found)
        return self._tokenizer[1]

    def check(self):
        """Drops a base model that something was written to, and says so."""
        base = self._base[1]
        if base is not None and not base.is_untouched():
            print("the trial changed weights of the base model: it is loaded anew", file=sys.stderr)
            del base
            self.forget()

    def note_sync(self):
        """Notes that ranks have made the base model's tensors equal, which they were."""
        if self._base[1] is not None:
            self._base[1].note_sync()

    def forget(self):
        """Drops what is kept."""
        self._tokenizer = (None, None)
        self._forget_base()

    def _forget_base(self):
        self._base = (None, None)
        self._device.empty()

    def _loaded(self, settings, folder):
        """The model, loaded with the arguments that `trl sft` gives, or as the settings say themselves."""
        if settings.loader is not None:
            model, tokenizer = settings.loader.load()
            self._tokenizer = (key_of_tokenizer(settings, folder), tokenizer)
            return model
        from trl import get_quantization_config
        from trl.trainer.utils import create_model_from_path

        check_class(folder)
        of_model, training = settings.model, settings.training
        arguments = {
            "revision": of_model.model_revision,
            "trust_remote_code": training.trust_remote_code,
            "attn_implementation": of_model.attn_implementation,
            "dtype": of_model.dtype,
            **settings.model_init,
        }
        quantization = get_quantization_config(of_model)
        if quantization is not None:
            arguments["quantization_config"] = quantization
        # The whole model on the one device: `auto` could leave a part on the processor, and measure something else. FSDP and
        # DeepSpeed move it there themselves, a part at a time.
        is_moved = self._device.is_gpu and not settings.is_moved_by_engine
        arguments["device_map"] = {"": self._device.index} if is_moved else None
        return create_model_from_path(os.fspath(folder), **arguments)
