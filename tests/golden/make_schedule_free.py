"""ref_variants/schedule_free.json: trainings of the toy Llama with the published Schedule-Free AdamW, in float32.

Made with torch 2.15.0, transformers 5.23.0, peft 0.21.2 and schedulefree 1.4.1 on a CPU, in this folder:
    python seeded.py make ref_llama && python make_schedule_free.py

Each has the losses of 20 steps, at the point where gradients are taken, and behind them the loss in `eval()` mode.
"""

import json

import torch
from peft import PeftModel
from safetensors.torch import load_file
from schedulefree import AdamWScheduleFree
from transformers import AutoModelForCausalLM

torch.set_num_threads(1)
ids = load_file("ref_llama/inputs.safetensors")["input_ids"]


def losses(**settings):
    base = AutoModelForCausalLM.from_pretrained("ref_llama/model", dtype=torch.float32, attn_implementation="eager")
    model = PeftModel.from_pretrained(base, "ref_llama/adapter_init", is_trainable=True).train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = AdamWScheduleFree(trained, foreach=False, **settings)
    optimizer.train()
    made = []
    for _ in range(20):
        loss = model(input_ids=ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        made.append(loss.item())
        optimizer.step()
    at_y = model(input_ids=ids, labels=ids).loss.item()
    optimizer.eval()
    made.append(model(input_ids=ids, labels=ids).loss.item())
    return {"losses": made, "loss_at_y": at_y}


trainings = {
    "schedule_free_lr2e-3": losses(lr=2e-3),
    "schedule_free_lr2e-3_warmup4_wd0.1": losses(lr=2e-3, warmup_steps=4, weight_decay=0.1, betas=(0.95, 0.99)),
}
json.dump(trainings, open("ref_variants/schedule_free.json", "w"), indent=1)
