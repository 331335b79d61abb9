"""TRL's trainers that trials have, a row for each: where they are, and what a micro-batch of theirs is."""

import importlib
from collections.abc import Callable
from typing import NamedTuple

from . import preference


class Kind(NamedTuple):
    """A trainer of TRL."""

    name: str
    #: Module of the trainer and its arguments, and their names there.
    module: str
    config: str
    trainer: str
    #: Rows, tokens but for padding, and target tokens of a micro-batch.
    counts: Callable
    #: Evaluates the model of a trainer on held-out answers; `None` of one that compares none.
    evaluate: Callable | None = None
    #: Columns of a row as tokens, as far as TRL itself makes them of the texts; none where rows come as tokens.
    columns: tuple = ()
    #: Whether the tokens of a row depend on the rows that it is trained with in a micro-batch.
    is_batched: bool = False

    @property
    def compares(self):
        """Whether the trainer compares answers, whose texts it tokenises itself."""
        return bool(self.columns)

    @property
    def file(self):
        """Name of the file that the trainer is started with."""
        return f"trl_{self.name}.yaml"

    def config_class(self):
        """The class of the training arguments."""
        return getattr(importlib.import_module(self.module), self.config)

    def trainer_class(self):
        """The class of the trainer."""
        return getattr(importlib.import_module(self.module), self.trainer)


def counts_of_tokens(batch):
    """Rows, tokens and targets of rows of tokens; on a GPU they are counted there."""
    ids, mask, places = batch["input_ids"], batch.get("attention_mask"), batch.get("position_ids")
    # Rows without padding are one long row, whose documents have their positions.
    tokens = ids.numel() if mask is None else mask.sum()
    rows = ids.shape[0] if mask is not None or places is None else (places == 0).sum()
    return rows, tokens, (batch["labels"][..., 1:] != -100).sum()


KINDS = {
    kind.name: kind
    for kind in (
        Kind("sft", "trl", "SFTConfig", "SFTTrainer", counts_of_tokens),
        Kind(
            "dpo",
            "trl",
            "DPOConfig",
            "DPOTrainer",
            preference.counts_of_pairs,
            preference.evaluate_dpo,
            ("prompt_ids", "chosen_ids", "rejected_ids"),
        ),
        Kind(
            "kto",
            "trl",
            "KTOConfig",
            "KTOTrainer",
            preference.counts_of_answers,
            preference.evaluate_kto,
            ("prompt_ids", "completion_ids", "KL_completion_ids", "label"),
            is_batched=True,
        ),
        Kind(
            "orpo",
            "trl.experimental.orpo",
            "ORPOConfig",
            "ORPOTrainer",
            preference.counts_of_halves,
            preference.evaluate_orpo,
            tuple(
                f"{answer}_{part}" for answer in ("chosen", "rejected") for part in ("input_ids", "attention_mask", "labels")
            ),
        ),
    )
}
