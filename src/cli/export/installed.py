"""Reads exported files with the training tool that is installed beside this Python.

`peft-tune export --check` hands this text to the user's Python, with the tool's name and the folders of the files;
`scripts/peers/exports.py` calls the functions. A line of JSON for each folder goes to standard output, and whatever
libraries print to standard error. Nothing is trained, and nothing is downloaded.
"""

import ast
import contextlib
import dataclasses
import importlib
import importlib.metadata
import importlib.util
import io
import json
import os
import pathlib
import sys
import warnings


class CannotAsk(Exception):
    """The tool is not there, or is another than the files are for."""


def adapter_of_peft(directory):
    """The LoraConfig of the file."""
    from peft import LoraConfig

    written = json.loads((directory / "adapter_config.json").read_text())
    config = LoraConfig.from_pretrained(str(directory))
    dropped = set(written) - {field.name for field in dataclasses.fields(config)}
    assert not dropped, f"keys that this version drops: {', '.join(sorted(dropped))}"
    return config


def check_peft(directory):
    config = adapter_of_peft(directory)
    return f"LoraConfig of rank {config.r}, alpha {config.lora_alpha}"


#: Modules and names of the training arguments of TRL's trainers.
CONFIGS_OF_TRL = {
    "sft": ("trl", "SFTConfig"),
    "dpo": ("trl", "DPOConfig"),
    "kto": ("trl", "KTOConfig"),
    "orpo": ("trl.experimental.orpo", "ORPOConfig"),
}


def arguments_of_trl(directory):
    """Training arguments, the LoraConfig and the data sets, by the parser of `trl sft`, or of the trainer that the file is for."""
    trainer = next(name for name in CONFIGS_OF_TRL if (directory / f"trl_{name}.yaml").is_file())
    module, name = CONFIGS_OF_TRL[trainer]
    try:
        from trl import DatasetMixtureConfig, ModelConfig, ScriptArguments, TrlParser, get_peft_config

        config = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise CannotAsk(error) from error
    parser = TrlParser((ScriptArguments, config, ModelConfig, DatasetMixtureConfig))
    arguments = ["--config", str(directory / f"trl_{trainer}.yaml"), "--use_cpu", "true"]
    _, training, model, data = parser.parse_args_and_config(args=arguments, fail_with_unknown_args=True)
    return training, get_peft_config(model), data, model.model_name_or_path


def check_trl(directory):
    training, adapter, _, model = arguments_of_trl(directory)
    rank = "no adapter" if adapter is None else f"LoraConfig of rank {adapter.r}, alpha {adapter.lora_alpha}"
    template = template_of_trl(training, model) if getattr(training, "assistant_only_loss", False) else ""
    optimizer = getattr(training.optim, "value", training.optim)
    return f"{type(training).__name__} with {optimizer} at {training.learning_rate:g}, {rank}{template}"


def template_of_trl(training, model):
    """Whether answers alone can be learnt with the chat template, where the model is on this machine."""
    from transformers import AutoTokenizer

    try:
        from trl.chat_template_utils import get_training_chat_template
    except ImportError:
        return ""
    try:
        tokenizer = AutoTokenizer.from_pretrained(model)
    except (OSError, ValueError):
        return "; the model is not on this machine, so its chat template was not tried"
    path = getattr(training, "chat_template_path", None)
    if path and os.path.isfile(path):
        tokenizer.chat_template = pathlib.Path(path).read_text(encoding="utf-8")
    if "{% generation" not in (tokenizer.chat_template or "").replace("{%-", "{%"):
        get_training_chat_template(tokenizer)
    return ", a chat template that marks answers"


def config_of_axolotl(directory):
    """The config as axolotl validates it."""
    import yaml
    from axolotl.utils.config import validate_config
    from axolotl.utils.dict import DictDefault
    from axolotl.utils.schemas.config import AxolotlInputConfig

    written = yaml.safe_load((directory / "axolotl.yaml").read_text())
    dropped = set(written) - set(AxolotlInputConfig.model_fields)
    assert not dropped, f"keys that this version drops: {', '.join(sorted(dropped))}"
    # Of a machine with a recent GPU, whatever this one has.
    gpu = {"bf16": True, "fp8": False, "tf32": True, "n_gpu": 1, "compute_capability": "sm_90", "n_node": 1}
    torch = importlib.metadata.version("torch").split("+")[0]
    return validate_config(DictDefault(written), capabilities=gpu, env_capabilities={"torch_version": torch})


def check_axolotl(directory):
    config = config_of_axolotl(directory)
    return f"{config.adapter} of rank {config.lora_r}, {config.optimizer}"


def arguments_of_llamafactory(directory):
    """Model, data, training and fine-tuning arguments, and the data sets."""
    import torch
    import yaml

    if not torch.cuda.is_available():  # only the parser is asked
        torch.cuda.is_bf16_supported = lambda *_, **__: True
    from llamafactory.data.parser import get_dataset_list
    from llamafactory.hparams import get_train_args

    written = yaml.safe_load((directory / "llamafactory.yaml").read_text())
    written["use_cpu"] = True
    model, data, training, finetuning, _ = get_train_args(written)
    sets = get_dataset_list(data.dataset, str(directory))
    sets += get_dataset_list(data.eval_dataset or [], str(directory))
    return model, training, finetuning, sets


def check_llamafactory(directory):
    _, training, finetuning, sets = arguments_of_llamafactory(directory)
    return f"rank {finetuning.lora_rank}, {training.optim}, {len(sets)} data sets"


def config_of_torchtune(directory):
    """The config, with every component found and its arguments taken."""
    try:
        from torchtune import config
    except ImportError as error:  # its last release asks for modules that newer torchao versions have not
        raise CannotAsk(error) from error
    from omegaconf import OmegaConf

    sys.path.append(str(directory))  # as `tune run` does: rows of tokens are read by a module beside the file
    written = OmegaConf.load(directory / "torchtune.yaml")
    config.validate(written)
    return written


def check_torchtune(directory):
    written = config_of_torchtune(directory)
    return f"{written.model._component_} of rank {written.model.lora_rank}"


UNSLOTH_FUNCTIONS = ("from_pretrained", "get_peft_model", "train_on_responses_only")


def calls_of_unsloth(directory):
    """Calls of the script whose arguments are all known. Read from the sources: unsloth itself needs a GPU to be imported."""
    root = pathlib.Path(importlib.util.find_spec("unsloth").origin).parent
    known = {}
    for file in ("models/loader.py", "models/llama.py", "models/vision.py", "chat_templates.py"):
        if not (root / file).is_file():
            continue
        for node in ast.walk(ast.parse((root / file).read_text())):
            if isinstance(node, ast.FunctionDef) and node.name in UNSLOTH_FUNCTIONS:
                names = {argument.arg for argument in node.args.args + node.args.kwonlyargs}
                known.setdefault(node.name, set()).update(names | ({"*"} if node.args.kwarg else set()))
    known["SFTConfig"] = names_of_sft_config()
    checked = 0
    for node in ast.walk(ast.parse((directory / "unsloth_train.py").read_text())):
        name = getattr(getattr(node, "func", None), "attr", None) or getattr(getattr(node, "func", None), "id", None)
        if isinstance(node, ast.Call) and name in known and (names := known[name]):
            given = {keyword.arg for keyword in node.keywords}
            assert given <= names or "*" in names, f"{name} has no {', '.join(sorted(given - names))}"
            checked += 1
    assert checked >= 2, "the script does not call what it should"
    return checked


def names_of_sft_config():
    if importlib.util.find_spec("trl") is None:
        return set()
    from trl import SFTConfig

    return {field.name for field in dataclasses.fields(SFTConfig)}


def check_unsloth(directory):
    return f"{calls_of_unsloth(directory)} calls with arguments that it has"


TOOLS = {
    "peft": check_peft,
    "trl": check_trl,
    "axolotl": check_axolotl,
    "llamafactory": check_llamafactory,
    "torchtune": check_torchtune,
    "unsloth": check_unsloth,
}


def version_of(tool):
    try:
        return importlib.metadata.version(tool)
    except importlib.metadata.PackageNotFoundError:
        return None


def answer(tool, directory):
    """What the tool says of the files in one folder."""
    if importlib.util.find_spec(tool) is None:
        return {"outcome": "missing"}
    told = {"outcome": "accepted", "version": version_of(tool)}
    said = io.StringIO()
    # Files name one another as the tool reads them where it is started.
    os.chdir(directory)
    try:
        with contextlib.redirect_stderr(said):
            told["message"] = TOOLS[tool](directory)
    except SystemExit:  # parsers of arguments print what is wrong, and exit
        told |= {"outcome": "refused", "message": said.getvalue().strip().rpartition("\n")[2][:2000]}
    except (CannotAsk, ModuleNotFoundError) as error:
        told |= {"outcome": "unusable", "message": str(error)}
    except Exception as error:
        told |= {"outcome": "refused", "message": f"{type(error).__name__}: {error}"[:2000]}
    return told


def main():
    # Not the folder that this was started in: a file there may have a package's name.
    sys.path[:] = [path for path in sys.path if path]
    os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "DISABLE_VERSION_CHECK": "1"}
    warnings.filterwarnings("ignore")
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    tool, *directories = sys.argv[1:]
    for directory in [pathlib.Path(directory).resolve() for directory in directories]:
        print(json.dumps(answer(tool, directory)), file=answers, flush=True)


if __name__ == "__main__":
    main()
