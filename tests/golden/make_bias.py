"""Trained biases of the base model (PEFT 0.21.2, torch 2.15.0), on the toy Qwen2 of ref_qwen2, whose q, k and v have one:
    python seeded.py make ref_qwen2 && python make_bias.py && python seeded.py find ref_variants

Writes ref_variants/bias_*/ (the adapter), bias_*.grads.safetensors and bias.json (losses of 20 AdamW steps). With
`bias: all` the biases of layers without an adapter train too.
"""

import json
import os

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from sample import sampled
from transformers import AutoModelForCausalLM, set_seed

torch.set_num_threads(1)
SOURCE, OUT = "ref_qwen2", "ref_variants"
ids = load_file(f"{SOURCE}/inputs.safetensors")["input_ids"]


def variant(bias, targets):
    set_seed(7)
    base = AutoModelForCausalLM.from_pretrained(f"{SOURCE}/model", dtype=torch.float32, attn_implementation="eager")
    config = LoraConfig(r=8, lora_alpha=16, lora_dropout=0.0, target_modules=targets, task_type="CAUSAL_LM", bias=bias)
    model = get_peft_model(base, config).train()
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            if "lora_B" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.02)
    model.save_pretrained(f"{OUT}/bias_{bias}")
    if os.path.exists(f"{OUT}/bias_{bias}/README.md"):
        os.remove(f"{OUT}/bias_{bias}/README.md")
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    optimizer = torch.optim.AdamW(trained.values(), lr=1e-3, weight_decay=0.0, foreach=False)
    losses = []
    for step in range(20):
        loss = model(input_ids=ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        if step == 0:
            gradients = {name.replace(".default", ""): p.grad.clone() for name, p in trained.items()}
            save_file(sampled(gradients), f"{OUT}/bias_{bias}.grads.safetensors")
        optimizer.step()
        losses.append(loss.item())
    return losses + [model(input_ids=ids, labels=ids).loss.item()]


results = {
    "bias_all": {"losses": variant("all", ["q_proj", "down_proj"])},
    "bias_lora_only": {"losses": variant("lora_only", ["q_proj", "k_proj", "down_proj"])},
}
json.dump(results, open(f"{OUT}/bias.json", "w"), indent=1)
