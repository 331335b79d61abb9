"""Samples of tensors that are too large to keep: every 13th value of each, and of all values the largest absolute one
and the root of the sum of squares. `tests/it/golden/sample.rs` compares with them."""

import torch

STRIDE = 13


def sampled(tensors):
    """What to save for `tensors`: each name's sample, and `largest` and `norm` in the order of the names."""
    wide = {name: value.detach().flatten().double() for name, value in sorted(tensors.items())}
    out = {name: tensors[name].detach().flatten()[::STRIDE].clone() for name in wide}
    out["largest"] = torch.stack([value.abs().max() for value in wide.values()]).float()
    out["norm"] = torch.stack([value.square().sum().sqrt() for value in wide.values()])
    return out
