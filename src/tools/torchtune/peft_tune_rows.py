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
    """Rows with `input_ids` and, unless all of a row is learnt, `labels` (-100 is not learnt), in some order."""

    def __init__(self, rows, longest, order):
        self.rows, self.longest, self.order = rows, longest, order

    def __len__(self):
        return len(self.order)

    def __getitem__(self, at):
        row = self.rows[self.order[at]]
        tokens = row["input_ids"][: self.longest]
        # Nothing predicts the first token, and recipes weigh micro-batches by their labels.
        return {"tokens": tokens, "labels": [IGNORED, *(row.get("labels") or tokens)[1 : self.longest]]}


def token_rows(tokenizer, *, source, split="train", passes=1, shuffle=False, seed=0, packed=False, **files):
    """All rows `passes` times over: a pass is whole before the next begins, with `shuffle` each in another order."""
    rows = load_dataset(source, split=split, **files)
    chance = torch.Generator().manual_seed(seed)
    orders = (torch.randperm(len(rows), generator=chance).tolist() if shuffle else range(len(rows)) for _ in range(passes))
    ordered = TokenRows(rows, tokenizer.max_seq_len, [at for order in orders for at in order])
    return PackedDataset(ordered, max_seq_len=tokenizer.max_seq_len) if packed else ordered
