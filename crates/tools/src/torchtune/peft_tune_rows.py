"""Rows of token ids for torchtune's recipes, as `peft-tune export` names them in torchtune.yaml.

`tune run` finds this file in the folder that it is started in.
"""

import itertools

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
    """Rows with `input_ids` and, unless all of a row is learnt, `labels` (-100 is not learnt).

    `order` has the number of each row, and which of the parts that its targets are dealt out to it stands for.
    """

    def __init__(self, rows, longest, order=()):
        self.rows, self.longest, self.order = rows, longest, order

    def __len__(self):
        return len(self.order)

    def __getitem__(self, at):
        number, part, parts = self.order[at]
        tokens, labels = self.row(number)
        kept = set(targets(labels)[part::parts])
        return {"tokens": tokens, "labels": [label if at in kept else IGNORED for at, label in enumerate(labels)]}

    def row(self, number):
        row = self.rows[number]
        tokens = row["input_ids"][: self.longest]
        # Nothing predicts the first token, and recipes weigh micro-batches by their labels.
        return tokens, [IGNORED, *(row.get("labels") or tokens)[1 : self.longest]]


def targets(labels):
    return [at for at, label in enumerate(labels) if label != IGNORED]


def filled(order, global_batch, rows):
    """A pass over rows with its last step made whole, since torchtune trains no others: its rows stand there several times,
    each equally often, which leaves the mean of their losses as it is. For what is then missing some rows are halved: the
    same tokens twice, with every other target each."""
    short = len(order) % global_batch
    whole, last = order[: len(order) - short], order[len(order) - short :]
    copies = last * (global_batch // short) if short else []
    missing = global_batch - len(copies) if short else 0
    with_halves = (at for at, number in enumerate(copies) if len(targets(rows.row(number)[1])) > 1)
    halved = set(itertools.islice(with_halves, missing))
    if len(halved) < missing:
        print(f"{missing - len(halved)} rows of one target count once more in the last step of a pass")
    parts = [(number, part, 2) for at, number in enumerate(copies) if at in halved for part in (0, 1)]
    others = [number for at, number in enumerate(copies) if at not in halved] + copies[: missing - len(halved)]
    return [(number, 0, 1) for number in whole + others] + parts


def token_rows(
    tokenizer,
    *,
    source,
    split="train",
    passes=1,
    steps=0,
    shuffle=False,
    seed=0,
    batch_size=1,
    accumulation=1,
    devices=1,
    packed=False,
    **files,
):
    """All rows `passes` times over: a pass ends with a step of its own, and with `shuffle` each has another order. Packed, as often
    as fills `steps`, since no pack has more tokens than a sequence."""
    rows, order = TokenRows(load_dataset(source, split=split, **files), tokenizer.max_seq_len), []
    count, global_batch = len(rows.rows), batch_size * accumulation * devices
    if packed and steps:
        tokens = sum(len(rows.row(number)[0]) for number in range(count))
        passes = -(-steps * global_batch * tokenizer.max_seq_len // max(tokens, 1))
    chance = torch.Generator().manual_seed(seed)
    for _ in range(passes):
        numbers = torch.randperm(count, generator=chance) if shuffle else torch.arange(count)
        order += [(number, 0, 1) for number in numbers.tolist()] if packed else filled(numbers.tolist(), global_batch, rows)
    rows.order = order
    return PackedDataset(rows, max_seq_len=tokenizer.max_seq_len) if packed else rows
