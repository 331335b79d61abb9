#!/usr/bin/env python3
"""Times PEFT on the shapes, batches and settings that `peft-tune gpu-check --parts bench` times, with random weights.

    python3 scripts/gpu/peft_bench.py OUTPUT.json [--shapes llama-3.2-3b,...] [--batches 2x4096,8x512] [--precisions bf16,nf4] [--steps 5]
                              [--no-compile] [--append]

SDPA, rank 16 on all linear layers, fused AdamW on the adapters, with and without checkpointing; eager and torch.compile, with the
model's own loss and with one that takes the head in chunks of tokens, and with Liger's kernels where `liger_kernel` is installed.
NF4 needs `bitsandbytes`. Where `peft` is not installed, its arithmetic is done by a module of twenty lines, and the results say so.
"""

import argparse
import gc
import json
import os
import time

import torch
import torch.utils.checkpoint
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config

try:
    import peft
except ImportError:
    peft = None
try:
    import bitsandbytes
except ImportError:
    bitsandbytes = None
try:
    import liger_kernel.transformers as liger
except ImportError:
    liger = None

COMMON = dict(attention_dropout=0.0, use_cache=False)
SHAPES = {
    "qwen2.5-0.5b": lambda: Qwen2Config(
        hidden_size=896, num_hidden_layers=24, num_attention_heads=14, num_key_value_heads=2, intermediate_size=4864,
        vocab_size=151936, tie_word_embeddings=True, max_position_embeddings=32768, rms_norm_eps=1e-6, **COMMON),
    "llama-3.2-3b": lambda: LlamaConfig(
        hidden_size=3072, num_hidden_layers=28, num_attention_heads=24, num_key_value_heads=8, head_dim=128,
        intermediate_size=8192, vocab_size=128256, tie_word_embeddings=True, max_position_embeddings=131072,
        rms_norm_eps=1e-5, **COMMON),
    "llama-3.1-8b": lambda: LlamaConfig(
        hidden_size=4096, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8, head_dim=128,
        intermediate_size=14336, vocab_size=128256, tie_word_embeddings=False, max_position_embeddings=131072,
        rms_norm_eps=1e-5, **COMMON),
    "llama-2-7b": lambda: LlamaConfig(
        hidden_size=4096, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=32, intermediate_size=11008,
        vocab_size=32000, tie_word_embeddings=False, max_position_embeddings=4096, rms_norm_eps=1e-5, **COMMON),
    "tiny": lambda: LlamaConfig(
        hidden_size=256, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, intermediate_size=688,
        vocab_size=4096, tie_word_embeddings=False, max_position_embeddings=8192, **COMMON),
}
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


class Lora(torch.nn.Module):
    """PEFT's linear layer with an adapter: F32 parameters, input cast to them, result cast back."""

    def __init__(self, base, rank, alpha):
        super().__init__()
        self.base, self.scaling = base, alpha / rank
        device = base.weight.device
        self.a = torch.nn.Parameter(torch.randn(rank, base.in_features, device=device) * 0.02)
        self.b = torch.nn.Parameter(torch.zeros(base.out_features, rank, device=device))

    def forward(self, x):
        y = self.base(x)
        update = torch.nn.functional.linear(torch.nn.functional.linear(x.to(self.a.dtype), self.a), self.b)
        return (y + update * self.scaling).to(y.dtype)


def adapted(model):
    if peft is not None:
        config = peft.LoraConfig(r=16, lora_alpha=32, target_modules=TARGETS, task_type="CAUSAL_LM")
        return peft.get_peft_model(model, config), f"peft {peft.__version__}"
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if name in TARGETS:
                setattr(module, name, Lora(child, 16, 32))
    return model, "plain LoRA modules (peft is not installed)"


def quantized(model):
    """The linear layers of the decoder in NF4, their constants quantized again, as QLoRA has them."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if name in TARGETS:
                coded = bitsandbytes.nn.Linear4bit(
                    child.in_features, child.out_features, bias=child.bias is not None, compute_dtype=torch.bfloat16,
                    compress_statistics=True, quant_type="nf4")
                coded.weight = bitsandbytes.nn.Params4bit(
                    child.weight.data, requires_grad=False, compress_statistics=True, quant_type="nf4")
                coded.bias = child.bias
                # Values are coded when they are moved.
                setattr(module, name, coded.to("cuda"))
    return model


def make(shape, precision, checkpointing, mode):
    torch.manual_seed(1)
    with torch.device("cuda"):
        previous = torch.get_default_dtype()
        torch.set_default_dtype(torch.float32 if precision == "fp32" else torch.bfloat16)
        model = AutoModelForCausalLM.from_config(SHAPES[shape](), attn_implementation="sdpa")
        torch.set_default_dtype(previous)
    if mode == "liger":
        liger._apply_liger_kernel_to_instance(model=model)
    if precision == "nf4":
        model = quantized(model)
    model, implementation = adapted(model)
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        if hasattr(model, "enable_input_require_grads"):
            model.enable_input_require_grads()
    model.train()
    return model, implementation


def loss_of_chunk(head, hidden, targets):
    return torch.nn.functional.cross_entropy(head(hidden).float(), targets, reduction="sum")


def chunked_loss(inner, ids, tokens=1024):
    """Mean cross-entropy whose logits exist for so many tokens at a time, forward and again backward."""
    hidden = inner.model(input_ids=ids).last_hidden_state[:, :-1].flatten(0, 1)
    targets, sums = ids[:, 1:].flatten(), []
    for first in range(0, len(targets), tokens):
        part = slice(first, first + tokens)
        sums.append(torch.utils.checkpoint.checkpoint(
            loss_of_chunk, inner.lm_head, hidden[part], targets[part], use_reentrant=False))
    return torch.stack(sums).sum() / len(targets)


def losses(model, mode):
    """The loss of a batch, as `mode` computes it."""
    # The transformer within PEFT's wrapper, adapters and all.
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    if mode in ("eager", "compile"):
        run = torch.compile(model) if mode == "compile" else model
        return lambda ids: run(input_ids=ids, labels=ids).loss
    if mode == "liger":
        return lambda ids: model(input_ids=ids, labels=ids).loss
    if mode == "compile, chunked loss":
        inner.model = torch.compile(inner.model)
    return lambda ids: chunked_loss(inner, ids)


def measure(shape, rows, length, precision, checkpointing, mode, steps):
    model, implementation = make(shape, precision, checkpointing, mode)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=True)
    ids = torch.randint(0, model.config.vocab_size, (rows, length), device="cuda")
    loss_of = losses(model, mode)
    seconds = []
    for step in range(steps + 3):
        if step == 1:
            torch.cuda.reset_peak_memory_stats()
        torch.cuda.synchronize()
        start = time.perf_counter()
        loss = loss_of(ids)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    step_s = sorted(seconds[3:])[len(seconds[3:]) // 2]
    return dict(
        implementation=implementation,
        tokens_per_s=rows * length / step_s,
        step_s=step_s,
        peak_bytes=torch.cuda.max_memory_allocated(),
        reserved_bytes=torch.cuda.max_memory_reserved(),
        loss=loss.item(),
    )


def modes(compiles):
    """The likely best ones first: what there is time for is measured."""
    yield from ["eager, chunked loss", "eager"]
    if liger is not None:
        yield "liger"
    if compiles:
        yield from ["compile, chunked loss", "compile"]


def settings(arguments):
    for mode in modes(not arguments.no_compile):
        for shape in arguments.shapes.split(","):
            for precision in arguments.precisions.split(","):
                for batch in arguments.batches.split(","):
                    for checkpointing in [False, True]:
                        yield mode, shape, precision, *map(int, batch.split("x")), checkpointing


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("output")
    parser.add_argument("--shapes", default="qwen2.5-0.5b,llama-3.2-3b,llama-3.1-8b")
    parser.add_argument("--batches", default="2x4096,8x512")
    parser.add_argument("--precisions", default="bf16,nf4")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--append", action="store_true", help="keeps what the file has")
    parser.add_argument("--seconds", type=float, default=900, help="begins nothing new after so long")
    arguments = parser.parse_args()
    started, results = time.perf_counter(), []
    if arguments.append and os.path.exists(arguments.output):
        results = json.load(open(arguments.output))
    for mode, shape, precision, rows, length, checkpointing in settings(arguments):
        if time.perf_counter() - started > arguments.seconds or (precision == "nf4" and bitsandbytes is None):
            continue
        result = dict(shape=shape, rows=rows, length=length, precision=precision,
                      checkpointing="full" if checkpointing else "none", mode=mode)
        try:
            result.update(measure(shape, rows, length, precision, checkpointing, mode, arguments.steps))
        except Exception as error:  # noqa: BLE001: any failure is this setting's result
            result["message"] = f"{type(error).__name__}: {str(error)[:300]}"
        gc.collect()
        torch.cuda.empty_cache()
        torch._dynamo.reset()
        results.append(result)
        print(json.dumps(result), flush=True)
        with open(arguments.output, "w") as file:
            json.dump(results, file, indent=1)


main()
