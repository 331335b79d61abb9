"""Studies and their trials, as the program tells them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ._program import run, run_json

if TYPE_CHECKING:
    import pandas
    import peft
    import trl

DATABASE = "peft-tune.db"


@dataclass(frozen=True)
class Trial:
    """One trial of a study: the setting that it tried, how it ended, what was measured.

    `metrics` has `throughput` in tokens/s, `peak_memory` in bytes, `loss` in nats, and all else that the program stored.
    """

    number: int
    params: Mapping[str, Any]
    state: str
    metrics: Mapping[str, float]
    study: "Study" = field(repr=False, compare=False)

    def export(self, format: str, folder: str | os.PathLike[str], *, force: bool = False) -> Path:
        """Writes the setting for a tool (`peft`, `trl`, `axolotl`, ...) into a folder, which it returns.

        Raises `ProgramError` where the tool cannot express it.
        """
        arguments = ["export", "--format", format, "--trial", str(self.number), "--output", os.fspath(folder)]
        arguments += ["--study", self.study.name, "--db", str(self.study.database)]
        run([*arguments, *(["--force"] if force else [])])
        return Path(folder)

    def lora_config(self) -> "peft.LoraConfig":
        """The adapter as PEFT makes it. Needs `peft`."""
        from peft import LoraConfig

        with tempfile.TemporaryDirectory() as folder:
            return LoraConfig.from_pretrained(str(self.export("peft", folder)))

    def sft_config(self, **changes: Any) -> "trl.SFTConfig":
        """The training as TRL runs it; `changes` are arguments of `SFTConfig`, such as `output_dir`. Needs `trl`."""
        from trl import DatasetMixtureConfig, ModelConfig, ScriptArguments, SFTConfig, TrlParser

        parser = TrlParser((ScriptArguments, SFTConfig, ModelConfig, DatasetMixtureConfig))
        with tempfile.TemporaryDirectory() as folder:
            arguments = ["--config", str(self.export("trl", folder) / "trl_sft.yaml")]
            for name, value in changes.items():
                arguments += [f"--{name}", str(value)]
            _, training, _, _ = parser.parse_args_and_config(args=arguments)
        return training


class Study:
    """One study of a results database. The database is only read; what is read stays until `refresh`."""

    def __init__(self, name: str, database: str | os.PathLike[str] = DATABASE) -> None:
        self.name = name
        self.database = Path(database)

    def __repr__(self) -> str:
        return f"Study({self.name!r}, {str(self.database)!r})"

    def _told(self, command: str) -> dict[str, Any]:
        told: dict[str, Any] = run_json([command, self.name, "--db", str(self.database)])
        return told

    def refresh(self) -> None:
        """Forgets what was read, so that it is read again."""
        for name in ("_shown", "_explained", "_front"):
            self.__dict__.pop(name, None)

    @cached_property
    def _shown(self) -> dict[str, Any]:
        return self._told("show")

    @cached_property
    def _explained(self) -> dict[str, Any]:
        return self._told("explain")

    @cached_property
    def _front(self) -> dict[str, Any]:
        return self._told("pareto")

    @property
    def objectives(self) -> dict[str, str]:
        """The direction (`minimize`, `maximize`) of each objective."""
        return {one["metric"]: one["direction"] for one in self._shown["objectives"]}

    @property
    def trials(self) -> list[Trial]:
        """All trials in the order of their numbers."""
        return [self._trial(one) for one in self._shown["trials"]]

    def _trial(self, one: Mapping[str, Any]) -> Trial:
        state = one["state"]
        return Trial(one["number"], one["params"], state["state"], state.get("metrics", {}), self)

    def trial(self, number: int) -> Trial:
        """The trial of that number. Raises `KeyError`."""
        for trial in self.trials:
            if trial.number == number:
                return trial
        raise KeyError(f"{self.name} has no trial {number}")

    @property
    def front(self) -> list[Trial]:
        """The trials that no other beats in every objective."""
        return [self.trial(one["trial"]) for one in self._front["front"]]

    def recommended(self) -> Trial:
        """The trial that the program recommends. Raises `LookupError` while it recommends none."""
        recommendation = self._explained.get("recommendation")
        if not recommendation:
            raise LookupError(f"{self.name} has no trial to recommend yet")
        return self.trial(recommendation["trial"])

    @property
    def reason(self) -> str:
        """Why that one, in words."""
        recommendation = self._explained.get("recommendation") or {}
        return str(recommendation.get("reason", ""))

    def frame(self) -> "pandas.DataFrame":
        """The trials as a table: a row each, `number` and `state`, then parameters and metrics. Needs `pandas`."""
        import pandas

        rows = [{"number": one.number, "state": one.state, **one.params, **one.metrics} for one in self.trials]
        return pandas.DataFrame(rows).set_index("number")


def studies(database: str | os.PathLike[str] = DATABASE) -> list[Study]:
    """The studies of a database. Raises `ProgramError` where there is none."""
    return [Study(one["study"], database) for one in run_json(["studies", "--db", os.fspath(database)])]


def open_study(name: str | None = None, database: str | os.PathLike[str] = DATABASE) -> Study:
    """A study by name, or the latest one.

    Raises `ProgramError` where there is no such database or study.
    """
    named = [] if name is None else [name]
    return Study(run_json(["show", *named, "--db", os.fspath(database)])["study"], database)
