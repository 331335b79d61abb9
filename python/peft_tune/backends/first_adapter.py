"""The adapter that a training starts from, where another engine hands one over: then both start from the same values."""

import os

from .trial_files import Invalid

#: File of the weights in PEFT's layout.
WEIGHTS = "adapter_model.safetensors"
#: Names that an error shows at the most.
MOST_NAMES = 3


def folder_of(request):
    """The folder that a request names; `None` where trainings start from an adapter of their own. Raises `Invalid`."""
    handed = request.get("first_adapter")
    if handed is None:
        return None
    if "read" not in handed:
        raise Invalid("this backend reads the first adapter of a training and does not write it: the other engine does")
    return handed["read"]


def load(model, folder):
    """Gives the weights in a folder to the adapter of a model, which has all of them and no others. Raises `Invalid`."""
    from peft import set_peft_model_state_dict
    from safetensors.torch import load_file

    path = os.path.join(folder, WEIGHTS)
    try:
        weights = load_file(path)
    except OSError as error:
        raise Invalid(f"cannot read the adapter to start from, {path}: {error}") from error
    # PEFT knows the layouts of files that hold an adapter, and says which weights were not there or not wanted.
    loaded = set_peft_model_state_dict(model, weights)
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    others = sorted({*loaded.unexpected_keys, *trained.intersection(loaded.missing_keys)})
    if others:
        shown = ", ".join(others[:MOST_NAMES])
        raise Invalid(f"{path} is not of this setting's adapter: {len(others)} weights differ, such as {shown}")
