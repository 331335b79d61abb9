#!/usr/bin/env python3
"""Checks YAML files against the JSON Schemas that `peft-tune schema` prints.

    pip install jsonschema ruamel.yaml
    scripts/checks/schemas.py target/debug/peft-tune search_spaces/*.yaml

Files named recipe*.yaml are held against the recipe's schema, all others against the study file's. Prints one line a
file and exits with 1 if one does not fit. It also makes sure that the schemas refuse some wrong files: a schema that
accepts everything would pass the first check too. ruamel.yaml reads YAML 1.2, as peft-tune does (PyYAML takes 5e-5 for
text).
"""
import json
import pathlib
import subprocess
import sys

import jsonschema
import ruamel.yaml

WRONG = [
    {"space": {"rank": [4, 8]}},
    {"model": "a/b", "data": {"train": "x"}, "space": {"rnak": [4]}},
    {"model": "a/b", "data": {"train": "x"}, "space": {"rank": [0]}},
    {"model": "a/b", "data": {"train": "x"}, "space": {"rank": {"low": 4}}},
    {"model": "a/b", "data": {"train": "x"}, "space": {"optimizer": "adam"}},
    {"model": "a/b", "data": {"trian": "x"}, "space": {"rank": [4, 8]}},
    {"model": "a/b", "data": {"train": "x"}, "space": {"rank": [4, 8]}, "budget": {"trials": -1}},
    {"model": "a/b", "data": {"train": "x"}, "space": {"rank": [4, 8]}, "trial": {"timeout": "soon"}},
    {"model": "a/b", "data": {"train": "x"}, "space": {"rank": ["1k"]}},
    {"model": "a/b", "data": {"train": "x"}, "space": {"rank": [4, 8]}, "trial": {"profile_steps": 0}},
    {"model": "a/b", "data": {"train": "x"}, "space": {"rank": [4, 8]}, "training": {"length": {"tokens": "many"}}},
]
RIGHT = [
    {"backend": {"command": ["a"]}, "objectives": ["f1"], "space": {"depth": {"low": 1, "high": 4, "affects": ["f1"]}}},
    {
        "model": "a/b",
        "data": {"train": "x", "max_rows": "10k"},
        "space": {"sequence_length": ["1k", 2000], "warmup": {"low": "1k", "high": "2k"}},
        "trial": {"training_steps": "2k", "evaluation": {"rows": "1k"}},
        "training": {"length": {"tokens": "1.5M"}},
    },
]


def plain(value):
    """ruamel's containers as plain ones."""
    return json.loads(json.dumps(value))


def main():
    program, *paths = sys.argv[1:]
    schemas = {}
    for kind in ("space", "recipe"):
        text = subprocess.run([program, "schema", kind], check=True, capture_output=True, text=True).stdout
        schemas[kind] = jsonschema.Draft202012Validator(json.loads(text))
        schemas[kind].check_schema(schemas[kind].schema)
    yaml = ruamel.yaml.YAML(typ="safe", pure=True)
    failed = False
    for path in map(pathlib.Path, paths):
        kind = "recipe" if path.name.startswith("recipe") else "space"
        errors = [
            f"{'/'.join(map(str, error.absolute_path))}: {error.message[:200]}"
            for error in schemas[kind].iter_errors(plain(yaml.load(path.read_text())))
        ]
        print(path, "; ".join(errors) or "fits", sep=": ")
        failed |= bool(errors)
    for number, wrong in enumerate(WRONG):
        if schemas["space"].is_valid(wrong):
            print(f"the schema accepts wrong file {number}: {wrong}")
            failed = True
    for number, right in enumerate(RIGHT):
        if not schemas["space"].is_valid(right):
            print(f"the schema refuses right file {number}: {right}")
            failed = True
    return failed


if __name__ == "__main__":
    sys.exit(main())
