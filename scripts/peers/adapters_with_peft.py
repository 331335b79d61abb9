#!/usr/bin/env python3
"""Trains adapters of every kind with peft-tune and opens what it wrote with PEFT.

    pip install torch transformers peft safetensors
    scripts/peers/adapters_with_peft.py [--program target/release/peft-tune]

For each kind: PEFT loads the directory without a missing or unexpected key, every tensor it then holds has the bits that
were written, its held-out loss and token accuracy are those that `train` reported, and the model that `merge` writes has PEFT's
logits.
Exits with 1 at the first difference.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from peft import PeftModel, get_peft_model_state_dict
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

ROOT = Path(__file__).resolve().parents[2]
BASE = ROOT / "search_spaces/quickstart/base"
KINDS = {
    "lora": "rank: 8, alpha: 16",
    "rslora": "rank: 8, alpha: 4, rslora: true",
    "dora": "rank: 8, alpha: 16, dora: true",
    "gaussian": "rank: 8, alpha: 16, init: gaussian",
    "lora_bias": "rank: 4, alpha: 8, lora_bias: true",
    "attention": "rank: 4, alpha: 8, target_modules: [q_proj, v_proj]",
    "patterns": "rank: 4, alpha: 8, rank_pattern: {q_proj: 2}, alpha_pattern: {down_proj: 32}",
    "layers": "rank: 4, alpha: 8, layers_to_transform: [1, 3]",
    "norms": "rank: 4, alpha: 8, modules_to_save: [norm]",
}
TOLERANCE = 1e-5


def rows(count, seed):
    """Rows of a dozen tokens, each of which mostly has the same successor, with every third target masked."""
    generator = torch.Generator().manual_seed(seed)
    draw = lambda most: torch.randint(0, most, (1,), generator=generator).item()
    for _ in range(count):
        steps = [draw(12)]
        while len(steps) < 48:
            steps.append((steps[-1] * 5 + 1) % 12 if draw(10) < 8 else draw(12))
        ids = [40 * step + 11 for step in steps]
        yield {"input_ids": ids, "labels": [-100 if place % 3 == 0 else token for place, token in enumerate(ids)]}


def write_rows(path, count, seed):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows(count, seed)))


def recipe(adapter):
    return f"""
model: {BASE}
data: {{train: train.jsonl, held_out: held_out.jsonl}}
adapter: {{{adapter}}}
precision: fp32
batch: {{micro_batch: 4, sequence_length: 64}}
optimizer: {{kind: adamw, learning_rate: 5e-3}}
training: {{length: {{steps: 40}}, seed: 3}}
"""


def held_out(model, path):
    """Loss and token accuracy."""
    total, right, targets = 0.0, 0, 0
    for line in path.read_text().splitlines():
        row = json.loads(line)
        ids, labels = torch.tensor([row["input_ids"]]), torch.tensor(row["labels"])
        with torch.no_grad():
            logits = model(input_ids=ids).logits[0, :-1].float()
        total += torch.nn.functional.cross_entropy(logits, labels[1:], ignore_index=-100, reduction="sum").item()
        targets += int((labels[1:] != -100).sum())
        right += int((logits.argmax(-1) == labels[1:]).sum())
    return total / targets, right / targets


def base_model(path=BASE):
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()


def check(kind, adapter, program, folder):
    write_rows(folder / "train.jsonl", 64, 1)
    write_rows(folder / "held_out.jsonl", 8, 2)
    (folder / "recipe.yaml").write_text(recipe(adapter))
    run = [program, "train", folder / "recipe.yaml", "--output", folder / "out", "--json"]
    printed = subprocess.run(run, check=True, capture_output=True, text=True, timeout=600).stdout
    reported = json.loads(printed.splitlines()[-1])["held_out_loss"]
    reported_accuracy = json.loads((folder / "out/result.json").read_text())["last_evaluation"]["accuracy"]

    model = PeftModel.from_pretrained(base_model(), folder / "out").eval()
    written = load_file(folder / "out/adapter_model.safetensors")
    held = get_peft_model_state_dict(model)
    if sorted(written) != sorted(held):
        sys.exit(f"{kind}: PEFT holds other tensors: {sorted(set(written) ^ set(held))}")
    for name, tensor in written.items():
        if not torch.equal(tensor.view(torch.int32), held[name].float().view(torch.int32)):
            sys.exit(f"{kind}: {name} has other bits in PEFT")
    loss, accuracy = held_out(model, folder / "held_out.jsonl")
    if abs(loss - reported) > TOLERANCE * loss:
        sys.exit(f"{kind}: PEFT's held-out loss is {loss}, train reported {reported}")
    # A right token more or less, where two logits are as good as equal.
    if accuracy < 0.05 or abs(accuracy - reported_accuracy) > 0.004:
        sys.exit(f"{kind}: PEFT's token accuracy is {accuracy}, train reported {reported_accuracy}")

    note = ""
    if kind != "lora_bias":  # its bias has no place in layers without one, and merge says so
        merge = [program, "merge", "--model", BASE, "--adapter", folder / "out", "--output", folder / "merged"]
        subprocess.run(merge, check=True, capture_output=True, timeout=600)
        ids = torch.tensor([next(rows(1, 9))["input_ids"]])
        with torch.no_grad():
            ours, theirs = base_model(folder / "merged")(input_ids=ids).logits, model(input_ids=ids).logits
        # The base model is stored in bf16, and so is what is merged into it.
        error = ((ours - theirs).norm() / theirs.norm()).item()
        note = f", merged logits within {error:.1e}"
        if error > 1e-2:
            sys.exit(f"{kind}: merged logits differ by {error}")
    print(f"{kind}: {len(written)} tensors equal, loss {loss:.6f} (reported {reported:.6f}), "
          f"token accuracy {accuracy:.4f} ({reported_accuracy:.4f}){note}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=Path, default=ROOT / "target/release/peft-tune")
    program = parser.parse_args().program.resolve()
    for kind, adapter in KINDS.items():
        with tempfile.TemporaryDirectory() as folder:
            check(kind, adapter, program, Path(folder))


if __name__ == "__main__":
    main()
