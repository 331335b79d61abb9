#!/usr/bin/env python3
"""How well do rankings by the built-in engine hold in TRL? One study file, searched with `--backend native` and `--backend trl`.

    scripts/measure/compare_backends.py --binary target/release/peft-tune --python PYTHON [--study space.yaml] [--work DIR]
        [--prefix CMD] [--piece N] [--threads N] [--json FILE]

PYTHON has torch, transformers, peft and trl. Without --study the model is random, with the tokenizer and the rows of the
quickstart, and both searches go through one grid of 32 settings: targets, rank, micro-batch, sequence length, activation
checkpointing. A study of yours has to use a sampler whose proposals do not depend on results (grid, random, sobol); `warm_start`,
pruners and `confirm` are best off in it. Prints a table of the settings that both completed, the faster first, and Spearman's
rank correlation of throughput, of peak memory and, where trials train, of the loss. `--prefix` is put before each search, which
runs `--piece` trials at a time and goes on where it stopped.
"""

import argparse
import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(Path(__file__).resolve().parent))
from stacks import spearman  # noqa: E402

ASSETS = ROOT / "search_spaces" / "quickstart"
SHAPE = dict(hidden_size=256, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=4, intermediate_size=688,
             vocab_size=1024, max_position_embeddings=512, tie_word_embeddings=False)
STUDY = """\
study: compared
model: {model}
data: {{train: {assets}/train.jsonl, held_out: {assets}/held_out.jsonl}}
objectives: [throughput, peak_memory]
trial: {{profile_steps: {steps}, profile_warmup: 2, timeout: 5m}}
space:
  target_modules: [attention, all-linear]
  rank: {{choices: [4, 64]}}
  micro_batch: {{choices: [2, 8]}}
  sequence_length: {{choices: [32, 112]}}
  gradient_checkpointing: [none, full]
  gradient_accumulation: 1
  alpha_ratio: 2
  precision: fp32
sampler: grid
seed: 1
confirm: none
budget: {{trials: 32}}
"""
BACKENDS = ("native", "trl")
METRICS = {"throughput": ("tokens/s", 1), "peak_memory": ("MB", 1e6), "loss": ("loss", 1)}
LEAST_SETTINGS = 20

MAKE_MODEL = """
import json, sys
from transformers import LlamaConfig, LlamaForCausalLM, set_seed
set_seed(0)
LlamaForCausalLM(LlamaConfig(bos_token_id=1, eos_token_id=2, pad_token_id=0, dtype="float32",
                             **json.loads(sys.argv[2]))).save_pretrained(sys.argv[1])
"""


def prepare(arguments):
    """The study file: the one given, or one of a random model in the work folder."""
    work = Path(arguments.work).resolve()
    work.mkdir(parents=True, exist_ok=True)
    if arguments.study:
        return work, Path(arguments.study).resolve()
    model = work / "model"
    if not (model / "config.json").exists():
        model.mkdir(parents=True, exist_ok=True)
        subprocess.run([arguments.python, "-c", MAKE_MODEL, str(model), json.dumps(SHAPE)], check=True)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(ASSETS / "base" / name, model / name)
    study = work / "compared.yaml"
    study.write_text(STUDY.format(model=model, assets=ASSETS, steps=arguments.steps - 2))
    return work, study


def search(arguments, work, study, backend):
    """Searches the file with a backend, some trials at a time."""
    for trials in range(arguments.piece, arguments.trials + arguments.piece, arguments.piece):
        words = [*shlex.split(arguments.prefix), arguments.binary, "search", str(study), "--backend", backend, "--as", backend,
                 "--db", str(work / "results.db"), "--trials", str(min(trials, arguments.trials)), "--threads",
                 str(arguments.threads), "--json"]
        if backend == "trl":
            words += ["--python", arguments.python]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)


def measured(arguments, work, study):
    """{setting: {metric: value}} of the completed trials; a setting is its sampled values by name."""
    rows = {}
    for table, column in (("trial_param", "param"), ("trial_metric", "metric")):
        statement = (f"select x.trial as number, x.name, x.value from {table} x join trial_summary t on t.study = x.study "
                     f"and t.trial = x.trial where x.study = '{study}' and t.state = 'complete'")
        output = subprocess.run([arguments.binary, "query", statement, "--db", str(work / "results.db"), "--format",
                                 "json"], check=True, capture_output=True, text=True).stdout
        for row in json.loads(output):
            rows.setdefault(row["number"], {}).setdefault(column, {})[row["name"]] = row["value"]
    found = {}
    for row in rows.values():
        setting = tuple(sorted((name, str(value).strip('"')) for name, value in row["param"].items()))
        found[setting] = {name: float(row["metric"][name]) for name in METRICS if row["metric"].get(name) is not None}
    return found


def shown(value, metric):
    _, unit = METRICS[metric]
    return f"{value:.4f}" if metric == "loss" else f"{value / unit:,.0f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="target/release/peft-tune")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--study", help="a study file of yours")
    parser.add_argument("--work", default="/tmp/compare-backends")
    parser.add_argument("--prefix", default="")
    parser.add_argument("--trials", type=int, default=32)
    parser.add_argument("--piece", type=int, default=32)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=12, help="steps of a profile phase, two of them before the measured ones")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    work, study = prepare(arguments)
    for backend in BACKENDS:
        search(arguments, work, study, backend)
    native, trl = (measured(arguments, work, backend) for backend in BACKENDS)
    both = sorted(set(native) & set(trl), key=lambda one: -native[one].get("throughput", 0.0))
    if len(both) < LEAST_SETTINGS:
        raise SystemExit(f"only {len(both)} settings were completed by both; {LEAST_SETTINGS} are needed")
    metrics = [name for name in METRICS if all(name in side[one] for side in (native, trl) for one in both)]
    heads = [f"{backend} {METRICS[name][0]}" for name in metrics for backend in BACKENDS]
    names = [name for name, _ in both[0]]
    print("| " + " | ".join([*names, *heads]) + " |")
    print("|" + "---|" * (len(names) + len(heads)))
    for one in both:
        values = [shown(side[one][name], name) for name in metrics for side in (native, trl)]
        print("| " + " | ".join([*(value for _, value in one), *values]) + " |")
    result = {"settings": len(both)}
    for name in metrics:
        result[name] = spearman([(native[one][name], trl[one][name]) for one in both])
    told = ", ".join(f"{name} {result[name]:.3f}" for name in metrics if result[name] is not None)
    print(f"\nSpearman over {len(both)} settings: {told}")
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
