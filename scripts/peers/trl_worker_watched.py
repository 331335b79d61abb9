"""Runs the worker of `backend: trl` in this process, with a look at what it gives to TRL.

    trl_worker_watched.py RECORD.jsonl --device cpu --threads 2

Each trainer that is made adds a line to RECORD: the fields of its arguments and of its LoraConfig, as they were handed over.
Nothing else differs from `peft-tune worker --backend trl`; `PEFT_TUNE_PROGRAM` names the program.
"""

import dataclasses
import inspect
import json
import pathlib
import runpy
import sys

sys.dont_write_bytecode = True  # not beside the sources
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))


def watch(record):
    from peft_tune.backends.kinds import KINDS

    for kind in KINDS.values():
        watch_class(kind.trainer_class(), record)


def watch_class(trainer, record):
    make = trainer.__init__
    names = inspect.signature(make)

    def recorded(self, *words, **named):
        given = names.bind(self, *words, **named).arguments
        given = {**given, **given.get("kwargs", {})}
        fields = {name: dataclasses.asdict(given[name]) for name in ("args", "peft_config") if given.get(name) is not None}
        with open(record, "a", encoding="utf-8") as file:
            file.write(json.dumps(fields, default=repr, sort_keys=True) + "\n")
        make(self, *words, **named)

    trainer.__init__ = recorded


def main():
    record, *words = sys.argv[1:]
    watch(record)
    sys.argv = ["peft_tune.backends", *words]
    runpy.run_module("peft_tune.backends", run_name="__main__")


if __name__ == "__main__":
    main()
