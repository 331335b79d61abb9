#!/usr/bin/env python3
"""Memory and speed of TRL's SFTTrainer and of transformers with PEFT on this CPU, beside what is predicted for them.

    scripts/measure/beside_trl.py --binary target/debug/peft-tune [--models quickstart,25m] [--settings 1,2,3]
        [--stacks trl,peft] [--rounds 1] [--work DIR] [--csv FILE] [--again FILE]

Needs torch, transformers, peft and trl. Twelve settings of two models: the quickstart's, and a random one of 25 million
parameters. TRL reads the same YAML as `peft-tune plan --check FILE --stack trl`; PEFT runs as a plain loop with a recipe that
`peft-tune plan FILE --stack peft` reads. Rows are full and random, so every batch is as long as the setting allows.

What is measured, each in a process of its own that is forked after the libraries are loaded:

tensors    what model, gradients, optimizer and activations take at their highest: parameters and buffers before the training,
           and the highest sum of all takes and gives of PyTorch's CPU allocator after it, as torch.profiler records them
           (each one, those inside of ops too; what oneDNN and OpenMP take by themselves is not among them)
process    the highest resident set, less the one before the model was loaded; a tiny training runs before that, so that
           code and objects of the libraries are there already
tokens/s   tokens of a step over the median CPU time of the steps, without the profiler, on one thread: other programs on the
           machine then change little

`--again FILE` takes measurements from a CSV file and predicts anew.
"""

import argparse
import csv
import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))
from peft_tune.backends.device import bytes_of, most_taken  # noqa: E402
from stacks import quantile, spearman  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
MLP = ["gate_proj", "up_proj", "down_proj"]
TARGETS = {"attention": ATTENTION, "mlp": MLP, "all": ATTENTION + MLP}
RANDOM = dict(model_type="qwen3", hidden_size=384, num_hidden_layers=8, num_attention_heads=6, num_key_value_heads=2,
              head_dim=64, intermediate_size=1024, vocab_size=16384, tie_word_embeddings=False,
              max_position_embeddings=1024)
TINY = dict(model_type="llama", hidden_size=32, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
            intermediate_size=64, vocab_size=64, max_position_embeddings=1024)
#: rank, rows, length, checkpointing, precision, optimizer, targets. `mixed`: F32 weights under autocast; in PEFT's loop as bf16.
SETTINGS = [
    (4, 1, 128, False, "fp32", "adamw", "attention"),
    (16, 2, 128, False, "fp32", "adamw", "all"),
    (64, 4, 128, False, "fp32", "sgd", "all"),
    (16, 4, 256, True, "fp32", "adamw", "all"),
    (8, 8, 64, True, "fp32", "adafactor", "attention"),
    (32, 2, 512, True, "fp32", "adamw", "all"),
    (4, 4, 128, False, "mixed", "adamw", "all"),
    (16, 1, 256, False, "bf16", "adamw", "attention"),
    (64, 8, 128, True, "bf16", "adamw", "all"),
    (16, 2, 512, False, "mixed", "sgd", "all"),
    (32, 4, 256, True, "mixed", "adafactor", "mlp"),
    (8, 16, 64, False, "bf16", "adamw", "all"),
]
KEYS = ("rank", "micro_batch", "sequence_length", "checkpointing", "precision", "optimizer", "targets")
#: Steps before those that are timed, and these; of the run that counts tensors.
WARM_UP, STEPS, COUNTED_STEPS = 2, 6, 3


def setting_of(number):
    return dict(zip(KEYS, SETTINGS[number - 1]), number=number)


def make_model(sizes, folder):
    """Writes a random model in F32 unless it is there."""
    from transformers import AutoConfig, AutoModelForCausalLM, set_seed

    if not (folder / "config.json").exists():
        set_seed(0)
        AutoModelForCausalLM.from_config(AutoConfig.for_model(**sizes)).save_pretrained(folder)
    return folder


def trl_file(setting, model, path):
    """The arguments of `trl sft`, as YAML."""
    said = {
        "model_name_or_path": str(model), "dtype": "bfloat16" if setting["precision"] == "bf16" else "float32",
        "bf16": setting["precision"] != "fp32", "use_peft": True, "lora_r": setting["rank"],
        "lora_alpha": 2 * setting["rank"], "lora_dropout": 0.0, "lora_target_modules": TARGETS[setting["targets"]],
        "per_device_train_batch_size": setting["micro_batch"], "gradient_accumulation_steps": 1,
        "max_length": setting["sequence_length"], "gradient_checkpointing": setting["checkpointing"],
        "optim": {"adamw": "adamw_torch_fused"}.get(setting["optimizer"], setting["optimizer"]),
        "learning_rate": 1e-4, "attn_implementation": "sdpa",
    }
    path.write_text("".join(f"{key}: {json.dumps(value)}\n" for key, value in said.items()))
    return said


def study_file(setting, model, path):
    """A study of one setting, for `plan --stack peft`; a study has to vary something, and alpha costs nothing."""
    precision = "fp32" if setting["precision"] == "fp32" else "bf16"
    data = {"train": str(ROOT / "search_spaces/quickstart/train.jsonl"),
            "held_out": str(ROOT / "search_spaces/quickstart/held_out.jsonl")}
    space = {"rank": setting["rank"], "alpha_ratio": [1, 2], "target_modules": [TARGETS[setting["targets"]]],
             "micro_batch": setting["micro_batch"], "gradient_accumulation": 1, "precision": precision,
             "gradient_checkpointing": "full" if setting["checkpointing"] else "none", "optimizer": setting["optimizer"]}
    study = {"study": "beside", "model": str(model), "data": data, "space": space,
             "trial": {"sequence_length": setting["sequence_length"]}, "objectives": ["throughput"], "budget": {"trials": 1}}
    path.write_text(json.dumps(study))


def predicted(binary, stack, setting, model):
    """What `peft-tune plan` says: bytes of tensors, and tokens/s with this CPU as the device."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "setting.yaml"
        if stack == "trl":
            trl_file(setting, model, path)
            command = [binary, "plan", "--check", str(path), "--stack", "trl"]
        else:
            study_file(setting, model, path)
            command = [binary, "plan", str(path), "--stack", "peft"]
        command += ["--device", "cpu", "--json"]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if not done.stdout:
        raise SystemExit(f"`{' '.join(command)}` failed: {done.stderr}")
    return json.loads(done.stdout)


def resident(key):
    """A field of this process's status, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) * 1024
    raise KeyError(key)


class Watch:
    """Times of steps, and the model once it is in the trainer."""

    def __init__(self):
        self.times, self.held = [], None

    def begin(self):
        self.start = time.process_time()

    def end(self):
        self.times.append(time.process_time() - self.start)


def rows_of(setting, model, steps):
    import torch

    vocabulary = json.loads((Path(model) / "config.json").read_text())["vocab_size"]
    generator = torch.Generator().manual_seed(1)
    shape = (setting["micro_batch"] * steps, setting["sequence_length"])
    return torch.randint(3, vocabulary, shape, generator=generator).tolist()


def load(setting, model):
    import torch
    from transformers import AutoModelForCausalLM

    # TRL's `mixed` is F32 weights under autocast; PEFT's loop has no autocast, and its weights are in 16 bits then.
    is_half = setting["precision"] == "bf16" or setting["precision"] == "mixed" and setting["stack"] == "peft"
    dtype = torch.bfloat16 if is_half else torch.float32
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=dtype, attn_implementation="sdpa")
    loaded.config.use_cache = False
    return loaded


def trl_training(setting, model, steps, watch):
    """SFTTrainer with what the YAML says; returns what starts it."""
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import ModelConfig, SFTConfig, SFTTrainer, TrlParser, get_peft_config

    folder = tempfile.mkdtemp(prefix="beside-trl-")
    path = Path(folder) / "trl.yaml"
    trl_file(setting, model, path)
    parsed = TrlParser((SFTConfig, ModelConfig)).parse_args_and_config(
        ["--config", str(path), "--output_dir", folder, "--max_steps", str(steps), "--use_cpu", "true", "--save_strategy",
         "no", "--report_to", "none", "--disable_tqdm", "true", "--logging_strategy", "no"])
    arguments, of_model = parsed[0], parsed[1]

    class Times(TrainerCallback):
        def on_step_begin(self, *_, **__):
            watch.begin()

        def on_step_end(self, *_, **__):
            watch.end()

    rows = rows_of(setting, model, steps)
    data = Dataset.from_dict({"input_ids": rows, "labels": rows})
    trainer = SFTTrainer(model=load(setting, model), args=arguments, train_dataset=data, callbacks=[Times()],
                         peft_config=get_peft_config(of_model), processing_class=tokenizer_of())
    watch.held = trainer.model
    return trainer.train


def tokenizer_of():
    """Rows are tokens already: only its padding token is asked for."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(ROOT / "search_spaces/quickstart/base")


def optimizer_of(name, parameters):
    import torch
    from transformers import Adafactor

    if name == "sgd":
        return torch.optim.SGD(parameters, lr=1e-4, momentum=0.9)
    if name == "adafactor":
        return Adafactor(parameters, lr=1e-4, relative_step=False, scale_parameter=False)
    return torch.optim.AdamW(parameters, lr=1e-4)


def peft_training(setting, model, steps, watch):
    """A plain loop around a model with adapters; returns what starts it."""
    import torch
    from peft import LoraConfig, get_peft_model

    loaded = load(setting, model)
    if setting["checkpointing"]:
        loaded.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        loaded.enable_input_require_grads()
    config = LoraConfig(r=setting["rank"], lora_alpha=2 * setting["rank"], target_modules=TARGETS[setting["targets"]],
                        task_type="CAUSAL_LM")
    loaded = get_peft_model(loaded, config)
    loaded.train()
    trained = [parameter for parameter in loaded.parameters() if parameter.requires_grad]
    optimizer = optimizer_of(setting["optimizer"], trained)
    rows = torch.tensor(rows_of(setting, model, steps))
    watch.held = loaded

    def train():
        for batch in rows.split(setting["micro_batch"]):
            watch.begin()
            out = loaded(input_ids=batch, labels=batch)
            out.loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            watch.end()

    return train


TRAININGS = {"trl": trl_training, "peft": peft_training}


def warm(setting, tiny):
    """A tiny training, which loads what the libraries load late."""
    small = dict(setting, micro_batch=2, sequence_length=32, rank=4)
    TRAININGS[setting["stack"]](small, tiny, 2, Watch())()


def warm_trl(setting):
    """The same for a setting of TRL, with the quickstart's model."""
    warm({**setting, "stack": "trl", "number": 0}, str(ROOT / "search_spaces/quickstart/base"))


def measure_tensors(setting, model, tiny):
    import torch

    warm(setting, tiny)
    watch = Watch()
    train = TRAININGS[setting["stack"]](setting, model, COUNTED_STEPS, watch)
    held = bytes_of([*watch.held.parameters(), *watch.held.buffers()])
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        train()
    return {"tensors_bytes": held + most_taken(profile.profiler.kineto_results.experimental_event_tree())}


def measure_process(setting, model, tiny):
    warm(setting, tiny)
    before = resident("VmRSS")
    watch = Watch()
    train = TRAININGS[setting["stack"]](setting, model, WARM_UP + STEPS, watch)
    Path("/proc/self/clear_refs").write_text("5")
    train()
    tokens = setting["micro_batch"] * setting["sequence_length"]
    return {"process_bytes": resident("VmHWM") - before, "tokens_per_s": tokens / statistics.median(watch.times[WARM_UP:])}


def forked(work, *given):
    """Runs `work` in a process that is forked from this one, and returns what it returned."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(reader)
            result = json.dumps(work(*given))
            os.write(writer, result.encode())
            code = 0
        except BaseException as error:  # noqa: BLE001 - the parent says what went wrong
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
        finally:
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    if not said:
        raise SystemExit(f"setting {given[0]} failed")
    return json.loads(said)


def measured(setting, model, tiny, rounds):
    found = forked(measure_tensors, setting, model, tiny)
    runs = [forked(measure_process, setting, model, tiny) for _ in range(rounds)]
    return {**found, **{key: statistics.median(run[key] for run in runs) for key in runs[0]}}


def import_all():
    """Loads the libraries without computing anything: threads would not survive a fork."""
    import datasets  # noqa: F401
    import peft  # noqa: F401
    import torch  # noqa: F401
    import transformers
    import trl

    transformers.AutoModelForCausalLM, transformers.Trainer, trl.SFTTrainer, trl.SFTConfig, trl.ModelConfig  # noqa: B018


def lines_of(arguments):
    """Measures and predicts, setting by setting."""
    import_all()
    tiny = make_model_in(arguments.work / "tiny", TINY)
    models = {"quickstart": ROOT / "search_spaces/quickstart/base", "25m": arguments.work / "25m"}
    make_model_in(models["25m"], RANDOM)
    for name in arguments.models.split(","):
        for number in map(int, arguments.settings.split(",")):
            for stack in arguments.stacks.split(","):
                setting = dict(setting_of(number), stack=stack)
                found = measured(setting, str(models[name]), str(tiny), arguments.rounds)
                yield {"model": name, "stack": stack, **setting, **found}


def make_model_in(folder, sizes):
    forked(lambda: str(make_model(sizes, folder)))
    return folder


def again(path):
    for row in csv.DictReader(open(path)):
        setting = setting_of(int(row["number"]))
        numbers = {key: float(row[key]) for key in ("tensors_bytes", "process_bytes", "tokens_per_s")}
        yield {**setting, "model": row["model"], "stack": row["stack"], **numbers}


def with_prediction(line, arguments):
    models = {"quickstart": ROOT / "search_spaces/quickstart/base", "25m": arguments.work / "25m"}
    plan = predicted(arguments.binary, line["stack"], line, models[line["model"]])
    return {**line, "predicted_tensors": plan["peak_tensors_bytes"], "predicted_process": plan["peak_process_bytes"],
            "predicted_tokens_per_s": plan["tokens_per_s"] or 0.0}


def shown(line):
    tensors = line["predicted_tensors"] / line["tensors_bytes"] - 1
    process = line["predicted_process"] / line["process_bytes"] - 1
    what = " ".join(str(line[key]) for key in KEYS)
    return (f"{line['model']:10} {line['stack']:5} {line['number']:2} {what:44} {line['tensors_bytes'] / 1e6:8.2f} "
            f"{line['predicted_tensors'] / 1e6:8.2f} {tensors:+7.1%}  {line['process_bytes'] / 1e6:7.1f} {process:+7.1%}  "
            f"{line['tokens_per_s']:8.0f} {line['predicted_tokens_per_s']:8.0f}")


def summary(lines):
    yield f"{'model':10} {'stack':5} {'tensors':>15} {'process':>15} {'rank of speed':>14}"
    groups = {}
    for line in lines:
        groups.setdefault((line["model"], line["stack"]), []).append(line)
    for (model, stack), rows in groups.items():
        parts = []
        for said, was in (("predicted_tensors", "tensors_bytes"), ("predicted_process", "process_bytes")):
            errors = [abs(row[said] / row[was] - 1) for row in rows]
            parts.append(f"{quantile(errors, 0.5):7.1%} {quantile(errors, 0.9):7.1%}")
        rank = spearman([(row["tokens_per_s"], row["predicted_tokens_per_s"]) for row in rows])
        yield f"{model:10} {stack:5} {' '.join(parts)} {rank if rank is None else round(rank, 2):>14}"


def write(path, machine, lines):
    command = "scripts/measure/beside_trl.py"
    with open(path, "w", newline="") as file:
        head = ["machine", "date", "command", *lines[0]]
        out = csv.DictWriter(file, head, lineterminator="\n")
        out.writeheader()
        for line in lines:
            plain = {key: round(value, 1) if isinstance(value, float) else value for key, value in line.items()}
            out.writerow({"machine": machine, "date": datetime.date.today(), "command": command, **plain})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", help="peft-tune; without it nothing is predicted")
    parser.add_argument("--models", default="quickstart,25m")
    parser.add_argument("--settings", default=",".join(str(number + 1) for number in range(len(SETTINGS))))
    parser.add_argument("--stacks", default="trl,peft")
    parser.add_argument("--rounds", type=int, default=1, help="runs that are timed, of which the middle one counts")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "beside_trl")
    parser.add_argument("--csv", type=Path, help="file that gets one line for each setting, model and stack")
    parser.add_argument("--machine", default="?", help="its name there")
    parser.add_argument("--again", type=Path, help="a file of before whose measurements are taken")
    arguments = parser.parse_args()
    os.environ.update(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", HF_DATASETS_DISABLE_PROGRESS_BARS="1")
    lines = []
    for line in again(arguments.again) if arguments.again else lines_of(arguments):
        lines.append(with_prediction(line, arguments) if arguments.binary else line)
        print(shown(lines[-1]) if arguments.binary else lines[-1], flush=True)
    if arguments.binary:
        print("\n".join(summary(lines)))
    if arguments.csv:
        write(arguments.csv, arguments.machine, lines)


if __name__ == "__main__":
    main()
