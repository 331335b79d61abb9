#!/usr/bin/env python3
"""What the values of one setting do to throughput, memory and loss.

    scripts/measure/values_of_setting.py --binary target/release/peft-tune [--shape 135m] [--work DIR] [--steps 40]
        [--setting precision_schedule] [--values none,fp32_10,adaptive_10] [--precisions bf16,fp16] [--seeds 1] [--rows 4]
        [--length 256]

Needs nothing but Python. `--shape quickstart` takes the model and data of search_spaces/quickstart, `135m` a model of that shape
with random values and rows whose next token mostly follows from the last, so that there is something to learn. Each setting is
a study of one trial for each seed: throughput and peak memory from the profile phase, the held-out loss behind so many steps.
"""

import argparse
import array
import csv
import io
import json
import os
import random
import statistics
import struct
import subprocess
from pathlib import Path

HIDDEN, LAYERS, HEADS, KEYS, MLP, VOCABULARY = 576, 30, 9, 3, 1536, 49152
ROOT = Path(__file__).resolve().parents[2]


def bf16(values):
    """F32 values as the bytes of BF16, cut off."""
    wide = array.array("I", array.array("f", values).tobytes())
    return array.array("H", (value >> 16 for value in wide)).tobytes()


def make_model(folder):
    """Writes the 135M shape: matrices of normal values, norms of ones."""
    if (folder / "rows.jsonl").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    config = dict(model_type="llama", hidden_size=HIDDEN, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
                  num_key_value_heads=KEYS, intermediate_size=MLP, vocab_size=VOCABULARY, tie_word_embeddings=True,
                  max_position_embeddings=2048, rms_norm_eps=1e-5, bos_token_id=1, eos_token_id=2,
                  architectures=["LlamaForCausalLM"], rope_theta=10000.0)
    (folder / "config.json").write_text(json.dumps(config))
    width = HIDDEN // HEADS
    shapes = {"model.embed_tokens.weight": [VOCABULARY, HIDDEN], "model.norm.weight": [HIDDEN]}
    for layer in range(LAYERS):
        name = f"model.layers.{layer}"
        shapes |= {
            f"{name}.input_layernorm.weight": [HIDDEN], f"{name}.post_attention_layernorm.weight": [HIDDEN],
            f"{name}.self_attn.q_proj.weight": [HIDDEN, HIDDEN], f"{name}.self_attn.o_proj.weight": [HIDDEN, HIDDEN],
            f"{name}.self_attn.k_proj.weight": [KEYS * width, HIDDEN],
            f"{name}.self_attn.v_proj.weight": [KEYS * width, HIDDEN],
            f"{name}.mlp.gate_proj.weight": [MLP, HIDDEN], f"{name}.mlp.up_proj.weight": [MLP, HIDDEN],
            f"{name}.mlp.down_proj.weight": [HIDDEN, MLP],
        }
    generator, header, offset = random.Random(1), {}, 0
    # One long stretch of normal values, from which every matrix takes its own part.
    pool = bf16([generator.gauss(0.0, 0.02) for _ in range(1 << 20)])
    parts = []
    for name, shape in shapes.items():
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        if len(shape) == 1:
            data = bf16([1.0] * count)
        else:
            start = 2 * generator.randrange(1 << 19)
            turned = pool[start:] + pool[:start]
            data = (turned * (2 * count // len(turned) + 1))[: 2 * count]
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
        parts.append(data)
    text = json.dumps(header).encode()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.writelines(parts)
    follower = [generator.randrange(3, 2000) for _ in range(2000)]
    lines = []
    for _ in range(256):
        row = [generator.randrange(3, 2000)]
        while len(row) < 256:
            row.append(follower[row[-1]] if generator.random() < 0.8 else generator.randrange(3, 2000))
        lines.append(json.dumps({"input_ids": row}))
    (folder / "rows.jsonl").write_text("\n".join(lines[:240]) + "\n")
    (folder / "held_out.jsonl").write_text("\n".join(lines[240:]) + "\n")


def measure(args, space, folder):
    """The metrics of a study's only trial."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "space.yaml").write_text(space)
    database = folder / "study.db"
    database.unlink(missing_ok=True)
    environment = dict(os.environ, PEFT_TUNE_DB=str(database))
    run = [args.binary, "search", "space.yaml", "--threads", str(args.threads)]
    subprocess.run(run, cwd=folder, env=environment, check=True, capture_output=True)
    query = [args.binary, "query", "select name, value from trial_metric", "--format", "csv"]
    said = subprocess.run(query, cwd=folder, env=environment, check=True, capture_output=True, text=True).stdout
    return {row["name"]: float(row["value"]) for row in csv.DictReader(io.StringIO(said))}


def arguments(about, **defaults):
    """A parser of what every study of one trial takes."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=lambda path: str(Path(path).resolve()), required=True)
    parser.add_argument("--shape", choices=["135m", "quickstart"])
    parser.add_argument("--work", type=Path)
    parser.add_argument("--precisions")
    for name in ["steps", "profile-steps", "length", "threads"]:
        parser.add_argument(f"--{name}", type=int)
    parser.set_defaults(threads=2, **defaults | {"work": Path(defaults["work"])})
    return parser


def model_and_data(shape, work):
    """The model of a shape, and its training and held-out rows; what is not in the repository is made."""
    if shape == "135m":
        make_model(work / "model")
        return work / "model", (work / "model/rows.jsonl", work / "model/held_out.jsonl")
    quickstart = ROOT / "search_spaces/quickstart"
    return quickstart / "base", (quickstart / "train.jsonl", quickstart / "held_out.jsonl")


def main():
    parser = arguments(__doc__, work="values-of-setting", shape="135m", precisions="bf16,fp16", steps=40, profile_steps=3,
                       length=256)
    parser.add_argument("--setting", default="precision_schedule")
    parser.add_argument("--values", default="none,fp32_10,adaptive_10")
    parser.add_argument("--rate", default="1e-3")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--loss-only", action="store_true", help="leave the profile phase out")
    args = parser.parse_args()
    work = args.work.resolve()
    model, data = model_and_data(args.shape, work)
    print(f"precision {args.setting} throughput fp32_steps own_steps peak_MB fp32_share loss deviation")
    settings = [(precision, value) for precision in args.precisions.split(",") for value in args.values.split(",")]
    for precision, value in settings:
        found = []
        for seed in range(args.seeds):
            objectives = "[loss]" if args.loss_only else "[throughput, peak_memory, loss]"
            profile = "" if args.loss_only else f"profile_steps: {args.profile_steps}, profile_warmup: 1, "
            is_meant = precision != "fp32" or args.setting != "precision_schedule"
            setting = f", {args.setting}: {value}" if is_meant else ""
            space = (
                f"model: {model}\ndata: {{train: {data[0]}, held_out: {data[1]}}}\nseed: {seed}\nconfirm: none\n"
                f"objectives: {objectives}\nbudget: {{trials: 1}}\ntraining: {{length: {{steps: {args.steps}}}}}\n"
                f"trial: {{sequence_length: {args.length}, training_steps: {args.steps}, {profile}"
                f"evaluation: {{times: 1}}}}\n"
                f"sampler: grid\nspace: {{precision: {precision}{setting}, rank: 16, alpha: [32, 33], micro_batch: {args.rows}, "
                f"learning_rate: {args.rate}}}\n"
            )
            found.append(measure(args, space, work / f"{precision}-{value}-{seed}"))
        number = lambda name: statistics.median(one.get(name, 0.0) for one in found)
        losses = [one["loss"] for one in found]
        deviation = statistics.stdev(losses) if len(losses) > 1 else 0.0
        print(precision, value, f"{number('throughput'):.0f}", f"{number('throughput_fp32_steps'):.0f}",
              f"{number('throughput_own_steps'):.0f}", f"{number('peak_memory') / 1e6:.1f}",
              f"{number('train_fp32_steps') / args.steps:.2f}", f"{statistics.mean(losses):.4f}", f"{deviation:.4f}",
              flush=True)


if __name__ == "__main__":
    main()
