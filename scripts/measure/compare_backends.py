#!/usr/bin/env python3
"""How well do rankings by the built-in engine hold for another trainer? The same settings by `native` and by TRL.

    scripts/measure/compare_backends.py --binary target/release/peft-tune --python PYTHON [--work DIR] [--prefix CMD]
        [--piece N] [--threads N] [--json FILE]

PYTHON has torch, transformers, peft and trl. The model is random, with the tokenizer and the rows of the quickstart. Both
studies go through one grid of 32 settings: targets, rank, micro-batch, sequence length, activation checkpointing. Prints a table
of all settings, and Spearman's rank correlation of throughput and of peak memory over those that both completed. `--prefix` is
put before each search, which runs `--piece` trials at a time and goes on where it stopped.
"""

import argparse
import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ASSETS = ROOT / "search_spaces" / "quickstart"
SHAPE = dict(hidden_size=256, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=4, intermediate_size=688,
             vocab_size=1024, max_position_embeddings=512, tie_word_embeddings=False)
SPACE = """\
space:
  target_modules: [attention, all-linear]
  rank: {choices: [4, 64]}
  micro_batch: {choices: [2, 8]}
  sequence_length: {choices: [32, 112]}
  gradient_checkpointing: [none, full]
  gradient_accumulation: 1
  alpha_ratio: 2
  precision: fp32
sampler: grid
seed: 1
confirm: none
budget: {trials: 32}
"""
PARAMS = ["target_modules", "rank", "micro_batch", "sequence_length", "gradient_checkpointing"]
METRICS = ["throughput", "peak_memory"]

MAKE_MODEL = """
import json, sys
from transformers import LlamaConfig, LlamaForCausalLM, set_seed
set_seed(0)
LlamaForCausalLM(LlamaConfig(bos_token_id=1, eos_token_id=2, pad_token_id=0, dtype="float32",
                             **json.loads(sys.argv[2]))).save_pretrained(sys.argv[1])
"""


def prepare(arguments):
    """Model and space files in the work folder."""
    work = Path(arguments.work).resolve()
    model = work / "model"
    if not (model / "config.json").exists():
        model.mkdir(parents=True, exist_ok=True)
        subprocess.run([arguments.python, "-c", MAKE_MODEL, str(model), json.dumps(SHAPE)], check=True)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(ASSETS / "base" / name, model / name)
    native = f"""\
study: native
model: {model}
data: {{train: {ASSETS / "train.jsonl"}, held_out: {ASSETS / "held_out.jsonl"}}}
objectives: [throughput, peak_memory]
trial: {{profile_steps: {arguments.steps - 2}, profile_warmup: 2}}
"""
    command = [arguments.python, "train.py", f"--model={model}", f"--train={ASSETS / 'train.jsonl'}",
               f"--threads={arguments.threads}"]
    trl = f"""\
study: trl
objectives: [{{metric: throughput, direction: maximize}}, peak_memory]
backend: {{command: {json.dumps(command)}, folder: {ROOT / "integrations" / "trl"}}}
trial: {{steps: {arguments.steps}, timeout: 5m}}
"""
    (work / "native.yaml").write_text(native + SPACE)
    (work / "trl.yaml").write_text(trl + SPACE)
    return work


def search(arguments, work, name):
    """Runs a study, some trials at a time."""
    settings = 32
    for trials in range(arguments.piece, settings + arguments.piece, arguments.piece):
        words = [*shlex.split(arguments.prefix), arguments.binary, "search", str(work / f"{name}.yaml"), "--db",
                 str(work / "results.db"), "--trials", str(min(trials, settings)), "--json"]
        if name == "native":
            words += ["--threads", str(arguments.threads)]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)


def measured(arguments, work, study):
    """{setting: {metric: value}} of the completed trials."""
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
        params = {name: str(value).strip('"') for name, value in row["param"].items()}
        found[tuple(params[name] for name in PARAMS)] = {name: float(row["metric"][name]) for name in METRICS}
    return found


def ranks(values):
    """Ranks from 1; equal values share the mean of theirs."""
    order = sorted(range(len(values)), key=values.__getitem__)
    result = [0.0] * len(values)
    start = 0
    while start < len(order):
        end = start
        while end + 1 < len(order) and values[order[end + 1]] == values[order[start]]:
            end += 1
        for place in range(start, end + 1):
            result[order[place]] = (start + end) / 2 + 1
        start = end + 1
    return result


def spearman(left, right):
    """Pearson's correlation of the ranks."""
    left, right = ranks(left), ranks(right)
    mean = (len(left) + 1) / 2
    covariance = sum((a - mean) * (b - mean) for a, b in zip(left, right))
    spread = (sum((a - mean) ** 2 for a in left) * sum((b - mean) ** 2 for b in right)) ** 0.5
    return covariance / spread if spread else float("nan")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="target/release/peft-tune")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--work", default="/tmp/compare-backends")
    parser.add_argument("--prefix", default="")
    parser.add_argument("--piece", type=int, default=32)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    work = prepare(arguments)
    for name in ("native", "trl"):
        search(arguments, work, name)
    native, trl = (measured(arguments, work, name) for name in ("native", "trl"))
    both = sorted(set(native) & set(trl), key=lambda one: -native[one]["throughput"])
    if len(both) < 20:
        raise SystemExit(f"only {len(both)} settings were completed by both; 20 are needed")
    print("| " + " | ".join([*PARAMS, "native tokens/s", "TRL tokens/s", "native MB", "TRL MB"]) + " |")
    print("|" + "---|" * (len(PARAMS) + 4))
    for one in both:
        speeds = [f"{side[one]['throughput']:,.0f}" for side in (native, trl)]
        memory = [f"{side[one]['peak_memory'] / 1e6:,.0f}" for side in (native, trl)]
        print("| " + " | ".join([*one, *speeds, *memory]) + " |")
    result = {"settings": len(both)}
    for metric in METRICS:
        result[metric] = spearman([native[one][metric] for one in both], [trl[one][metric] for one in both])
    print(f"\nSpearman over {len(both)} settings: throughput {result['throughput']:.3f}, "
          f"peak memory {result['peak_memory']:.3f}")
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
