"""What peft-tune's settings are called elsewhere, read from names.json: the output of `peft-tune schema names`.

The adapters hold no tables of their own. A value that a tool has no words for is refused (outcome `invalid`), never run as
something else.
"""

import json
import math
import re
from pathlib import Path

from peft_tune_callback import Invalid

NAMES = json.loads((Path(__file__).resolve().parent / "names.json").read_text(encoding="utf-8"))
#: Settings whose values are rows of a table.
TABLES = {
    "optimizer": "optimizers",
    "precision": "precisions",
    "gradient_checkpointing": "checkpointing",
    "init": "inits",
}
#: A schedule-free optimizer gets the number as it is, and takes a share for a fraction of one step.
STEPS_OF_WARMUP = "`warmup`: this optimizer warms up by itself and counts in steps; give a number of 1 or more"
#: Share of the steps that axolotl takes for no warm-up, whatever its version.
NO_WARMUP = 1e-9


def row(setting, value):
    """The row of a setting's value; None where there is none."""
    table = NAMES[TABLES[setting]]
    if setting == "gradient_checkpointing" and re.fullmatch("every_([2-9]|[1-9][0-9]+)", str(value)):
        value = "every_N"
    return table.get(value) or next((row for row in table.values() if value in row.get("aliases", [])), None)


def keys(setting, value, tool):
    """A tool's own keys for a setting's value."""
    known = row(setting, value)
    if known is None:
        raise Invalid(f"`{setting}` {value} is none of {', '.join(NAMES[TABLES[setting]])}")
    if known["keys"][tool] is None:
        others = [name for name, row in NAMES[TABLES[setting]].items() if row["keys"][tool] is not None]
        raise Invalid(f"`{setting}` {value}: {tool} has no such thing; it has {', '.join(others)}")
    return dict(known["keys"][tool])


def schedule_row(value):
    """The row of a schedule; None where there is none."""
    table = NAMES["schedules"]
    return table.get(value) or next((row for row in table.values() if value in row["aliases"]), None)


def schedule_keys(value, warms_up, tool):
    """A tool's keys for a schedule, which may have another name behind a warm-up."""
    known = schedule_row(value)
    if known is None:
        raise Invalid(f"`schedule` {value} is none of {', '.join(NAMES['schedules'])}")
    with_warmup = known["keys_with_warmup"]
    return dict((with_warmup if with_warmup and warms_up else known["keys"])[tool])


def schedule_arguments(value, params, steps):
    """The key for a schedule's arguments, some of which are counted in steps."""
    known = schedule_row(value) or {"arguments": []}
    made = {argument: params.get(setting, default(setting)) for argument, setting in known["arguments"]}
    if "num_decay_steps" in made:
        made["num_decay_steps"] = warmup_steps(made["num_decay_steps"], steps)
        if made["num_decay_steps"] is None:
            raise Invalid("`lr_decay`: the length of the training is not known in steps; give a number of 1 or more")
    return {"lr_scheduler_kwargs": made} if made else {}


def is_schedule_free(optimizer):
    """Whether an optimizer warms up by itself and has no other schedule."""
    known = row("optimizer", optimizer)
    return known is not None and known["schedule_free"]


def key_of(setting, tool):
    """A tool's key for a setting that is one key there. Raises where the tool has none."""
    key = NAMES["settings"][setting]["keys"][tool]
    if key is None:
        raise Invalid(f"`{setting}`: {tool} has no such setting; remove it from `space`")
    return key


def default(setting):
    """The value that peft-tune gives to a setting that is not given."""
    return NAMES["settings"][setting]["default"]


def modules(value):
    """Names of the modules of a preset, fused ones among them: each model has those that it has. Lists stay as they are."""
    if not isinstance(value, str):
        return list(value)
    preset = NAMES["target_presets"].get(value)
    if preset is None:
        presets = ", ".join(NAMES["target_presets"])
        raise Invalid(f"`target_modules` {value}: write one of {presets}, or a list such as `[[q_proj, v_proj]]`")
    return [*preset["modules"], *preset["fused_modules"]]


def accumulation(params, processes, micro_batch):
    """Micro-batches of a step on each of so many processes; None where the trial says nothing of it."""
    global_batch = params.get("global_batch")
    if global_batch is None:
        return params.get("gradient_accumulation")
    share = micro_batch * processes
    if global_batch % share:
        raise Invalid(f"`global_batch` {global_batch} is not a multiple of {share}; lower `micro_batch`")
    return global_batch // share


def warmup_steps(warmup, steps):
    """Steps of a warm-up that is a number of steps (1 or more) or a share of all of them; None where these are not known."""
    if warmup >= 1:
        return int(warmup)
    return math.ceil(warmup * (steps or 0)) if steps or not warmup else None


def has_share_of_warmup(config):
    """Whether a configuration warms up for a share of its steps."""
    return float(config.get("warmup_ratio") or 0) > NO_WARMUP


def configuration(base, trial, tool, processes):
    """The configuration `base` of axolotl or LLaMA-Factory with a trial's parameters. Names that peft-tune does not know are
    the tool's own keys and go in as they are."""
    config, params = dict(base), dict(trial.params)
    is_free = is_schedule_free(params.get("optimizer", config.get(key_of("optimizer", tool))))
    if is_free:
        params["schedule"] = "constant"
    if "warmup" in params:
        put_warmup(config, params["warmup"], trial.steps, tool)
    if is_free and has_share_of_warmup(config):
        raise Invalid(STEPS_OF_WARMUP)
    if "warmup" in params or "schedule" in params:
        put_schedule(config, params.pop("schedule", None), trial, tool, is_free)
    for name in ("warmup", "lr_decay", "lr_decay_type", "min_lr_rate"):
        params.pop(name, None)
    for setting in TABLES:
        if setting in params:
            put(config, setting, params.pop(setting), trial.params, tool)
    if "target_modules" in params:
        put_targets(config, params.pop("target_modules"), tool)
    micro_batch = params.get("micro_batch", config.get(key_of("micro_batch", tool), 1))
    steps = accumulation(params, processes, micro_batch)
    ratio = params.pop("alpha_ratio", None)
    for name in ("devices", "global_batch", "gradient_accumulation", "momentum", "nesterov"):
        params.pop(name, None)
    for name, value in params.items():
        put_plain(config, name, value, tool)
    if steps is not None:
        config[key_of("gradient_accumulation", tool)] = steps
    if ratio is not None:
        config[key_of("alpha", tool)] = ratio * config[key_of("rank", tool)]
    if trial.steps:
        config["max_steps"] = trial.steps
    config.update(seed=trial.seed % 2**32, include_num_input_tokens_seen="non_padding")
    return config


def put_plain(config, name, value, tool):
    """Puts a setting that is one key with the same value there, or one of the tool's own."""
    if name not in NAMES["settings"]:
        config[name] = value
    elif NAMES["settings"][name]["keys"][tool] is None and value == default(name):
        pass
    elif value in (None, "none") and name == "max_grad_norm":
        # A norm of 0 never clips.
        config[key_of(name, tool)] = 0.0
    elif value == default(name) == "none":
        # Absent there; `beta2` is the optimizer's own then.
        if name != "beta2":
            config.pop(key_of(name, tool), None)
    else:
        config[key_of(name, tool)] = value


def put(config, setting, value, params, tool):
    """Puts a value that is a row of a table, in place of what another row's keys said."""
    known = row(setting, value)
    # An optimizer that peft-tune does not know is the tool's own.
    said = {key_of(setting, tool): value} if known is None and setting == "optimizer" else keys(setting, value, tool)
    if setting == "precision" and known["constants"] is None and "adapter" not in config:
        # A dense model may train whole.
        said.pop("adapter", None)
    clear(config, TABLES[setting], tool)
    config.update(said)
    if setting == "optimizer" and known is not None:
        config.pop("optim_args", None)
        config.update(momentum_keys(params, value, tool))
        for key, constant in beta2_keys(value, tool).items():
            config.setdefault(key, constant)


def momentum_keys(params, kind, tool):
    """Keys for the momentum of an optimizer that has it: transformers' `optim_args`, which its own optimizers read."""
    known = row("optimizer", kind)
    if not known["reads"]["momentum"]:
        return {}
    if known["keys"]["trl"] is None:
        if "momentum" in params:
            raise Invalid(f"`momentum`: {tool} has no such setting for {kind}; remove it from `space`")
        return {}
    momentum, nesterov = (params.get(name, default(name)) for name in ("momentum", "nesterov"))
    nesterov = known["reads"]["nesterov"] and nesterov
    return {"optim_args": f"momentum={momentum}" + (",nesterov=true" if nesterov else "")}


def beta2_keys(kind, tool):
    """The key of an optimizer's own `beta2`, which the tools take for AdamW's where it is not given."""
    beta2 = row("optimizer", kind)["reads"]["default_beta2"]
    return {} if beta2 is None else {key_of("beta2", tool): beta2}


def put_schedule(config, value, trial, tool, is_free):
    """Puts a schedule, of which some have another name behind a warm-up. Without a value, the one that `config` has."""
    table = NAMES["schedules"]
    if value is None:
        said_by = (name for name, row in table.items() if row["keys"][tool].items() <= config.items())
        value = next(said_by, None)
        if value is None:
            return
    else:
        config.pop("lr_scheduler_kwargs", None)
    known = schedule_row(value)
    clear(config, "schedules", tool)
    if known is None:
        # The tool's own.
        config[key_of("schedule", tool)] = value
    else:
        warms_up = config.get("warmup_steps") or has_share_of_warmup(config)
        config.update(schedule_keys(value, warms_up and not is_free, tool))
        if "lr_scheduler_kwargs" not in config:
            config.update(schedule_arguments(value, trial.params, trial.steps))


def put_targets(config, value, tool):
    """Puts the modules that get adapters, or the tool's own word for all of them."""
    key = key_of("target_modules", tool)
    clear(config, "target_presets", tool)
    config.pop(key, None)
    preset = NAMES["target_presets"].get(value) if isinstance(value, str) else None
    if preset and preset["keys"][tool]:
        config.update(preset["keys"][tool])
    else:
        names = modules(value)
        config[key] = ",".join(names) if tool == "llamafactory" else names


def put_warmup(config, warmup, steps, tool):
    """Puts the warm-up in steps where these are known, and as a share where they are not."""
    for key in ("warmup_steps", "warmup_ratio"):
        config.pop(key, None)
    of_steps = warmup_steps(warmup, steps)
    if of_steps is None:
        config["warmup_ratio"] = warmup
    elif of_steps == 0 and tool == "axolotl":
        # Its versions 0.10 to 0.12 take 0 for nothing said, and so for 3% of the steps.
        config["warmup_ratio"] = NO_WARMUP
    else:
        config[key_of("warmup", tool)] = of_steps


def clear(config, table, tool):
    """Takes out the keys of all rows of a table: what one says, another need not say."""
    for known in NAMES[table].values():
        for key in known["keys"][tool] or {}:
            config.pop(key, None)
