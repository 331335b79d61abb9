#!/usr/bin/env python3
"""Bytes that autograd saves for one more decoder layer, by setting: what transformers and PEFT keep of it. Then the highest
bytes of tensors while one adapted layer runs forward, which its weights and input are not among.

Made with torch 2.15, transformers 5.23 and peft 0.21.2 on the CPU: `python3 stack_saved.py`. Storages are counted once, and
parameters are left out, as is what is let go before the forward pass ends (DoRA's row norms have a graph of their own). The
unit tests of `layer.rs` and `dora.rs` in `crates/core/src/predict/stack` have the figures.
"""

import weakref

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]


def build(layers, attention, dtype, targets, dropout, kv_heads, dora=False):
    config = LlamaConfig(
        hidden_size=64, num_hidden_layers=layers, num_attention_heads=8, num_key_value_heads=kv_heads,
        intermediate_size=192, vocab_size=512, tie_word_embeddings=False, attn_implementation=attention, use_cache=False,
    )
    model = LlamaForCausalLM(config).to(dtype)
    if targets is not None:
        lora = LoraConfig(r=4, lora_alpha=8, lora_dropout=dropout, target_modules=targets, use_dora=dora)
        model = get_peft_model(model, lora)
        model.enable_input_require_grads()
    return model.train()


def saved(layers, autocast, *setting):
    torch.manual_seed(0)
    model = build(layers, *setting)
    own = {tensor.untyped_storage().data_ptr() for tensor in [*model.parameters(), *model.buffers()]}
    alive = weakref.WeakSet()

    class Saved:
        def __init__(self, tensor):
            self.tensor = tensor

    def pack(tensor):
        saved = Saved(tensor)
        alive.add(saved)
        return saved

    ids = torch.randint(0, 512, (2, 32))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved.tensor):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            output = model(input_ids=ids, labels=ids)
    storages = {saved.tensor.untyped_storage().data_ptr(): saved.tensor.untyped_storage().nbytes() for saved in alive}
    del output
    return sum(size for address, size in storages.items() if address not in own)


for name, autocast, *setting in [
    ("bf16 qkvo eager", False, "eager", torch.bfloat16, ATTENTION, 0.0, 8),
    ("bf16 all eager gqa", False, "eager", torch.bfloat16, "all-linear", 0.0, 4),
    ("bf16 all eager gqa dropout", False, "eager", torch.bfloat16, "all-linear", 0.1, 4),
    ("bf16 autocast all eager", True, "eager", torch.bfloat16, "all-linear", 0.0, 8),
    ("fp32 autocast all eager", True, "eager", torch.float32, "all-linear", 0.0, 8),
    ("fp32 all sdpa", False, "sdpa", torch.float32, "all-linear", 0.0, 8),
    ("bf16 qkvo sdpa", False, "sdpa", torch.bfloat16, ATTENTION, 0.0, 8),
    ("bf16 full eager", False, "eager", torch.bfloat16, None, 0.0, 8),
    ("fp32 all sdpa dora", False, "sdpa", torch.float32, "all-linear", 0.0, 8, True),
    ("bf16 qkvo eager dora", False, "eager", torch.bfloat16, ATTENTION, 0.0, 8, True),
    ("bf16 all eager gqa dora", False, "eager", torch.bfloat16, "all-linear", 0.0, 4, True),
    ("bf16 all eager gqa dora dropout", False, "eager", torch.bfloat16, "all-linear", 0.1, 4, True),
    ("bf16 autocast all eager dora", True, "eager", torch.bfloat16, "all-linear", 0.0, 8, True),
    ("bf16 autocast all eager dora dropout", True, "eager", torch.bfloat16, "all-linear", 0.1, 8, True),
    ("fp32 autocast all eager dora", True, "eager", torch.float32, "all-linear", 0.0, 8, True),
]:
    print(name, saved(2, autocast, *setting) - saved(1, autocast, *setting))


class Peak(TorchDispatchMode):
    """Counts the storages that ops make, as long as they live."""

    def __init__(self, known):
        super().__init__()
        self.known = {tensor.untyped_storage().data_ptr() for tensor in known}
        self.now = self.highest = 0

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        output = op(*args, **(kwargs or {}))
        for tensor in tree_leaves(output):
            if isinstance(tensor, torch.Tensor):
                self.see(tensor.untyped_storage())
        return output

    def see(self, storage):
        address, size = storage.data_ptr(), storage.nbytes()
        if address in self.known:
            return
        self.known.add(address)
        self.now += size
        self.highest = max(self.highest, self.now)

        def gone():
            self.known.discard(address)
            self.now -= size

        weakref.finalize(storage, gone)


for name, dtype in [("fp32", torch.float32), ("bf16", torch.bfloat16)]:
    layer = torch.nn.Sequential(torch.nn.Linear(1536, 512, bias=False)).to(dtype)
    layer = get_peft_model(layer, LoraConfig(r=4, target_modules=["0"], use_dora=True)).train()
    x = torch.randn(1, 1536, dtype=dtype, requires_grad=True)
    with Peak([*layer.parameters(), x]) as peak:
        output = layer(x)
    print("peak of one layer dora", name, peak.highest)
