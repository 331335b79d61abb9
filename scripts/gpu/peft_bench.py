#!/usr/bin/env python3
"""Times PEFT on the shapes, batches and settings that `peft-tune gpu-check --parts bench` times, with random weights.

    python3 scripts/gpu/peft_bench.py OUTPUT.json [--shapes llama-3.2-3b,...] [--batches 2x4096,8x512] [--precisions bf16,nf4] [--steps 5]
                              [--no-compile] [--append] [--device cpu]

Rank 16 on all linear layers, fused AdamW on the adapters, with and without checkpointing. The modes are the ways in which trainers
run PEFT, and those in which it could be run better:

- adapters in F32 under BF16 autocast (PEFT's default, and TRL's), or in BF16 without (`autocast_adapter_dtype=False`);
- the model's own loss, one that takes the head in chunks of tokens, or Liger's kernels;
- compiled by torch.compile, or not;
- SDPA as PyTorch chooses it, SDPA by cuDNN, or the `flash_attn` package.

A mode that this machine cannot run has a row that says why. NF4 needs `bitsandbytes`. Where `peft` is not installed, its arithmetic is
done by a module of twenty lines, and the results say so.
"""

import argparse
import contextlib
import gc
import importlib.util
import json
import os
import sys
import time
from typing import NamedTuple

import torch
import torch.utils.checkpoint
from torch.nn.attention import SDPBackend, sdpa_kernel
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
TYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


class Mode(NamedTuple):
    """One way of running PEFT."""

    adapters: str  # "f32" or "bf16"
    autocast: bool
    loss: str = "model"  # "chunked" or "liger"
    compiled: bool = False
    attention: str = "sdpa"  # "cudnn" or "flash"

    def name(self):
        parts = ["autocast, " * self.autocast + f"{self.adapters} adapters"]
        parts += {"model": [], "chunked": ["chunked loss"], "liger": ["liger"]}[self.loss]
        parts += ["compile"] * self.compiled
        parts += [] if self.attention == "sdpa" else [f"{self.attention} attention"]
        return ", ".join(parts)

    def missing(self):
        """Why it cannot run here; None where it can."""
        if self.loss == "liger" and liger is None:
            return "liger_kernel cannot be imported"
        if self.attention == "flash" and importlib.util.find_spec("flash_attn") is None:
            return "flash_attn cannot be imported"
        if not torch.cuda.is_available() and (self.loss == "liger" or self.compiled or self.attention != "sdpa"):
            return "left out on a CPU"
        return None


def modes(precision, compiles):
    """The likely best ones and the usual one first: what there is time for is measured."""
    autocast, bf16 = Mode("f32", True), Mode("bf16", False)
    if precision == "fp32":
        autocast = bf16 = Mode("f32", False)
    found = [
        bf16._replace(loss="liger"),
        bf16._replace(loss="chunked"),
        autocast,
        bf16._replace(loss="chunked", compiled=True),
        bf16._replace(loss="chunked", attention="cudnn"),
        # PyTorch's own choice of attention for 16 bits is its form of flash attention.
        bf16._replace(loss="liger", attention="flash"),
        autocast._replace(loss="liger"),
        autocast._replace(loss="chunked"),
        bf16,
        autocast._replace(loss="chunked", compiled=True),
    ]
    if precision == "fp32":
        found = [mode for mode in found if mode.attention == "sdpa"]
    return list(dict.fromkeys(mode for mode in found if compiles or not mode.compiled))


class Lora(torch.nn.Module):
    """PEFT's linear layer with an adapter: parameters of their own type, input cast to it, result cast back."""

    def __init__(self, base, rank, alpha, dtype):
        super().__init__()
        self.base, self.scaling = base, alpha / rank
        device = base.weight.device
        self.a = torch.nn.Parameter((torch.randn(rank, base.in_features, device=device) * 0.02).to(dtype))
        self.b = torch.nn.Parameter(torch.zeros(base.out_features, rank, device=device, dtype=dtype))

    def forward(self, x):
        y = self.base(x)
        update = torch.nn.functional.linear(torch.nn.functional.linear(x.to(self.a.dtype), self.a), self.b)
        return (y + update * self.scaling).to(y.dtype)


def adapted(model, adapters):
    if peft is not None:
        config = peft.LoraConfig(r=16, lora_alpha=32, target_modules=TARGETS, task_type="CAUSAL_LM")
        model = peft.get_peft_model(model, config, autocast_adapter_dtype=adapters == "f32")
        # Behind coded weights the adapters are F32 whatever is asked for; trainers cast them themselves.
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.to(TYPES[adapters])
        return model, f"peft {peft.__version__}"
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if name in TARGETS:
                setattr(module, name, Lora(child, 16, 32, TYPES[adapters]))
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


def make(shape, precision, checkpointing, mode, device):
    torch.manual_seed(1)
    with torch.device(device):
        previous = torch.get_default_dtype()
        torch.set_default_dtype(torch.float32 if precision == "fp32" else torch.bfloat16)
        attention = "flash_attention_2" if mode.attention == "flash" else "sdpa"
        model = AutoModelForCausalLM.from_config(SHAPES[shape](), attn_implementation=attention)
        torch.set_default_dtype(previous)
    if mode.loss == "liger":
        liger._apply_liger_kernel_to_instance(model=model)
    if precision == "nf4":
        model = quantized(model)
    model, implementation = adapted(model, mode.adapters)
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        if hasattr(model, "enable_input_require_grads"):
            model.enable_input_require_grads()
    model.train()
    return model, implementation


@contextlib.contextmanager
def surroundings(shape, mode, device):
    """Autocast and attention's form; what Liger changes in the model's module is undone for the modes behind."""
    module = sys.modules[AutoModelForCausalLM._model_mapping[type(SHAPES[shape]())].__module__]
    before = dict(vars(module))
    try:
        with contextlib.ExitStack() as stack:
            if mode.attention == "cudnn":
                stack.enter_context(sdpa_kernel(SDPBackend.CUDNN_ATTENTION))
            yield lambda: torch.autocast(device, torch.bfloat16, enabled=mode.autocast)
    finally:
        vars(module).update(before)


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
    if mode.loss != "chunked":
        return lambda ids: model(input_ids=ids, labels=ids).loss
    # The transformer within PEFT's wrapper, adapters and all.
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    if mode.compiled:
        inner.model = torch.compile(inner.model)
    return lambda ids: chunked_loss(inner, ids)


def synchronize(device):
    if device == "cuda":
        torch.cuda.synchronize()


def measure(shape, rows, length, precision, checkpointing, mode, steps, device):
    with surroundings(shape, mode, device) as autocast:
        model, implementation = make(shape, precision, checkpointing, mode, device)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=True)
        ids = torch.randint(0, model.config.vocab_size, (rows, length), device=device)
        loss_of = losses(model, mode)
        seconds = []
        for step in range(steps + 3):
            if step == 1 and device == "cuda":
                torch.cuda.reset_peak_memory_stats()
            synchronize(device)
            start = time.perf_counter()
            with autocast():
                loss = loss_of(ids)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(trained, 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            synchronize(device)
            seconds.append(time.perf_counter() - start)
    step_s = sorted(seconds[3:])[len(seconds[3:]) // 2]
    return dict(
        implementation=implementation,
        adapter_dtype=str(trained[0].dtype),
        tokens_per_s=rows * length / step_s,
        step_s=step_s,
        peak_bytes=torch.cuda.max_memory_allocated() if device == "cuda" else None,
        reserved_bytes=torch.cuda.max_memory_reserved() if device == "cuda" else None,
        loss=loss.item(),
    )


def settings(arguments):
    """Compiling takes as long as several other modes: with checkpointing, where less is gained, it comes behind all of them."""
    of = {precision: modes(precision, not arguments.no_compile) for precision in arguments.precisions.split(",")}
    late = []
    for place in range(max(map(len, of.values()))):
        for shape in arguments.shapes.split(","):
            for precision in (name for name, wanted in of.items() if place < len(wanted)):
                for batch in arguments.batches.split(","):
                    for checkpointing in [False, True]:
                        mode = of[precision][place]
                        setting = mode, shape, precision, *map(int, batch.split("x")), checkpointing
                        if mode.compiled and checkpointing:
                            late.append(setting)
                        else:
                            yield setting
    yield from late


def passed_over(mode, precision, seconds_left):
    if precision == "nf4" and bitsandbytes is None:
        return "bitsandbytes cannot be imported"
    return mode.missing() or (None if seconds_left > 0 else "no time was left")


def write(path, results):
    """Whole or not at all: whoever ends this program finds what it had."""
    with open(path + ".part", "w") as file:
        json.dump(results, file, indent=1)
    os.replace(path + ".part", path)


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
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    arguments = parser.parse_args()
    started, results = time.perf_counter(), []
    if arguments.append and os.path.exists(arguments.output):
        results = json.load(open(arguments.output))
    for mode, shape, precision, rows, length, checkpointing in settings(arguments):
        result = dict(shape=shape, rows=rows, length=length, precision=precision,
                      checkpointing="full" if checkpointing else "none", mode=mode.name())
        message = passed_over(mode, precision, arguments.seconds - (time.perf_counter() - started))
        try:
            if message is None:
                result.update(measure(shape, rows, length, precision, checkpointing, mode, arguments.steps, arguments.device))
        except Exception as error:  # noqa: BLE001: any failure is this setting's result
            message = f"{type(error).__name__}: {str(error)[:300]}"
        if message is not None:
            result["message"] = message
        gc.collect()
        if arguments.device == "cuda":
            torch.cuda.empty_cache()
        torch._dynamo.reset()
        results.append(result)
        print(json.dumps(result), flush=True)
        write(arguments.output, results)


if __name__ == "__main__":
    main()
