"""Rows of token ids for torchtune's recipes, as `peft-tune export` names them in torchtune.yaml.

`tune run` finds this file in the folder that it is started in.
"""

import torch
from datasets import load_dataset
from torch.utils.data import Dataset
from torchtune.datasets import PackedDataset

IGNORED = -100


class Padding:
    """What a recipe asks of its tokenizer where rows are tokens already: how long they are, and what fills them up."""

    def __init__(self, max_seq_len, pad_id=0):
        self.max_seq_len, self.pad_id = max_seq_len, pad_id


class TokenRows(Dataset):
    """Rows with `input_ids` and, unless all of a row is learnt, `labels` (-100 is not learnt), in the order of their numbers."""

    def __init__(self, rows, tokenizer, order):
        self.rows, self.tokenizer, self.order = rows, tokenizer, order

    def __len__(self):
        return len(self.order)

    def __getitem__(self, at):
        if self.order[at] is None:
            return {"tokens": [self.tokenizer.pad_id], "labels": [IGNORED]}
        row, longest = self.rows[self.order[at]], self.tokenizer.max_seq_len
        tokens = row["input_ids"][:longest]
        # Nothing predicts the first token, and recipes weigh micro-batches by their labels.
        return {"tokens": tokens, "labels": [IGNORED, *(row.get("labels") or tokens)[1:longest]]}


def filled(order, batch_size, accumulation):
    """The rows of a pass with its last step made whole: its rows dealt out to the micro-batches, and behind them rows without a
    target (None), which count for nothing. A micro-batch of these alone would have no loss."""
    short = len(order) % (batch_size * accumulation)
    whole, rest = order[: len(order) - short], order[len(order) - short :]
    batches = [rest[first::accumulation] for first in range(accumulation if rest else 0)]
    assert all(batches), f"{short} rows of the last step are too few for {accumulation} micro-batches; change `batch_size`"
    return whole + [row for batch in batches for row in batch + [None] * (batch_size - len(batch))]


def token_rows(
    tokenizer, *, source, split="train", passes=1, shuffle=False, seed=0, batch_size=1, accumulation=1, packed=False, **files
):
    """All rows `passes` times over: a pass ends with a step of its own, and with `shuffle` each has another order."""
    rows, order = load_dataset(source, split=split, **files), []
    chance = torch.Generator().manual_seed(seed)
    for _ in range(passes):
        numbers = torch.randperm(len(rows), generator=chance) if shuffle else torch.arange(len(rows))
        order += filled(numbers.tolist(), batch_size, accumulation)
    ordered = TokenRows(rows, tokenizer, order)
    return PackedDataset(ordered, max_seq_len=tokenizer.max_seq_len) if packed else ordered
