"""Both ends of tied embeddings (PEFT 0.21.2, torch 2.15.0, transformers 5.24.0), on the toy Llama of ref_llama, whose LM head is the
embedding:
    python seeded.py make ref_llama && python make_tied.py

Writes ref_variants/tied.json: losses of 10 AdamW steps, and one behind them, from adapters that save an end of the embedding whole or
both, and the losses of models whose files hold another end than config.json says. No adapter is kept: each is ref_llama/adapter_init
with 1.25 times the base model's embedding as `embed_tokens` and 0.75 times it as `lm_head`, which tests/it/tied_embeddings.rs makes
again. `*_tied` has 1.25 times the embedding as both.
"""

import json
import os
import shutil
import tempfile
import warnings

import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

warnings.filterwarnings("ignore")
torch.set_num_threads(1)
SOURCE, OUT = "ref_llama", "ref_variants/tied.json"
EMBED, HEAD = "model.embed_tokens", "lm_head"
ids = load_file(f"{SOURCE}/inputs.safetensors")["input_ids"]
embedding = load_file(f"{SOURCE}/model/model.safetensors")[f"{EMBED}.weight"]


def load(model):
    return AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="eager")


def adapter(modules, ends, ties):
    """The folder of an adapter with `ends` saved whole."""
    folder = tempfile.mkdtemp()
    config = json.load(open(f"{SOURCE}/adapter_init/adapter_config.json"))
    config.update(modules_to_save=modules, ensure_weight_tying=ties)
    json.dump(config, open(f"{folder}/adapter_config.json", "w"))
    tensors = load_file(f"{SOURCE}/adapter_init/adapter_model.safetensors")
    for name, value in ends.items():
        tensors[f"base_model.model.{name}.weight"] = value.clone()
    save_file(tensors, f"{folder}/adapter_model.safetensors", metadata={"format": "pt"})
    return folder


def losses(folder):
    model = PeftModel.from_pretrained(load(f"{SOURCE}/model"), folder, is_trainable=True).train()
    trained = {id(p): p for p in model.parameters() if p.requires_grad}
    optimizer = torch.optim.AdamW(trained.values(), lr=1e-3, weight_decay=0.0, foreach=False)
    losses = []
    for _ in range(10):
        loss = model(input_ids=ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    losses.append(model(input_ids=ids, labels=ids).loss.item())
    # What PEFT saves and loads again is the same.
    saved = tempfile.mkdtemp()
    model.save_pretrained(saved)
    again = PeftModel.from_pretrained(load(f"{SOURCE}/model"), saved)
    assert abs(again(input_ids=ids, labels=ids).loss.item() - losses[-1]) < 1e-6
    print(modules_of(saved), losses[0], losses[-1])
    return losses


def modules_of(folder):
    config = json.load(open(f"{folder}/adapter_config.json"))
    whole = [name for name in load_file(f"{folder}/adapter_model.safetensors") if "lora" not in name]
    return config["modules_to_save"], config["ensure_weight_tying"], whole


def model_loss(change):
    """The loss of the model whose tensors `change` changed, as config.json has it, with the adapter of the reference."""
    folder = f"{tempfile.mkdtemp()}/model"
    shutil.copytree(f"{SOURCE}/model", folder)
    tensors = load_file(f"{folder}/model.safetensors")
    change(tensors)
    save_file(tensors, f"{folder}/model.safetensors", metadata={"format": "pt"})
    model = PeftModel.from_pretrained(load(folder), f"{SOURCE}/adapter_init")
    return model(input_ids=ids, labels=ids).loss.item()


def own_head(tensors):
    tensors[f"{HEAD}.weight"] = 0.75 * embedding


def head_alone(tensors):
    tensors[f"{HEAD}.weight"] = tensors.pop(f"{EMBED}.weight")


embed, head = 1.25 * embedding, 0.75 * embedding
results = {
    "embed_tokens": losses(adapter(["embed_tokens"], {EMBED: embed}, False)),
    "lm_head": losses(adapter(["lm_head"], {HEAD: head}, False)),
    "both": losses(adapter(["embed_tokens", "lm_head"], {EMBED: embed, HEAD: head}, False)),
    # As PEFT writes it, and as this program does.
    "embed_tokens_tied": losses(adapter(["embed_tokens", EMBED], {EMBED: embed, HEAD: embed}, True)),
    "lm_head_tied": losses(adapter(["lm_head"], {EMBED: embed, HEAD: embed}, True)),
    "own_head": model_loss(own_head),
    "head_alone": model_loss(head_alone),
}
json.dump(results, open(OUT, "w"), indent=1)
