"""The package as a user has it: the program from the wheel, a search of the quickstart, configs of the tools that are there."""

import json
import os
import stat
import subprocess
import sys

import pytest

import peft_tune


@pytest.fixture(scope="session")
def quickstart(tmp_path_factory):
    """The study of a short search, and the lines that told of it."""
    folder = tmp_path_factory.mktemp("quickstart")
    written = ["quickstart", "--output", str(folder), "--dry-run"]
    subprocess.run([str(peft_tune.find_program()), *written], check=True, capture_output=True, cwd=folder)
    lines = []
    study = peft_tune.search(
        folder / "quickstart.yaml", folder / "study.db", trials=2, time="20s", progress=lines.append
    )
    return study, lines


def test_a_search_returns_its_study_and_tells_of_it(quickstart):
    study, lines = quickstart
    assert study.name == "quickstart"
    assert lines
    assert study.objectives == {"throughput": "maximize", "peak_memory": "minimize", "loss": "minimize"}
    assert [trial.number for trial in study.trials] == list(range(len(study.trials)))
    complete = [trial for trial in study.trials if trial.state == "complete"]
    assert complete and all(trial.metrics["peak_memory"] > 0 for trial in complete)


def test_the_recommended_trial_is_on_the_front(quickstart):
    study, _ = quickstart
    best = study.recommended()
    assert best in study.front
    assert f"trial {best.number} " in study.reason
    assert study.trial(best.number) == best
    with pytest.raises(KeyError):
        study.trial(10_000)


def test_studies_are_found_again(quickstart):
    study, _ = quickstart
    assert peft_tune.open_study(database=study.database).name == study.name
    assert [one.name for one in peft_tune.studies(study.database)] == ["quickstart"]
    study.refresh()
    assert study.trials


def test_trials_become_a_table(quickstart):
    pandas = pytest.importorskip("pandas")
    study, _ = quickstart
    table = study.frame()
    assert isinstance(table, pandas.DataFrame)
    assert list(table.index) == [trial.number for trial in study.trials]
    assert {"state", "rank", "loss", "throughput"} <= set(table.columns)


def test_the_adapter_is_pefts(quickstart):
    peft = pytest.importorskip("peft")
    study, _ = quickstart
    best = study.recommended()
    config = best.lora_config()
    assert isinstance(config, peft.LoraConfig)
    assert (config.r, config.lora_alpha) == (best.params["rank"], 2 * best.params["rank"])


def test_the_training_is_trls(quickstart):
    trl = pytest.importorskip("trl")
    study, _ = quickstart
    best = study.recommended()
    config = best.sft_config(use_cpu=True, output_dir="elsewhere")
    assert isinstance(config, trl.SFTConfig)
    assert config.per_device_train_batch_size == best.params["micro_batch"]
    assert config.learning_rate == pytest.approx(best.params["learning_rate"])
    assert config.output_dir == "elsewhere"


def test_errors_are_the_programs(tmp_path):
    with pytest.raises(peft_tune.ProgramError, match="study.db"):
        peft_tune.open_study("none", tmp_path / "study.db")
    space = tmp_path / "space.yaml"
    space.write_text("study: x\nmodl: y\n")
    with pytest.raises(peft_tune.ProgramError, match="modl") as error:
        peft_tune.search(space, tmp_path / "study.db", progress=False)
    assert error.value.code == 2


def test_a_space_may_be_a_mapping(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trainer = tmp_path / "train.py"
    trainer.write_text("import json, sys\nx = json.load(sys.stdin)['params']['x']\nprint(json.dumps({'metrics': {'f': x * x}}))\n")
    space = {
        "study": "square",
        "backend": {"command": [sys.executable, str(trainer)]},
        "objectives": ["f"],
        "space": {"x": [-2, -1, 0, 1, 2]},
        "budget": {"trials": 5},
    }
    study = peft_tune.search(space, progress=False)
    assert study.recommended().params == {"x": 0}
    assert [path.name for path in tmp_path.glob(".peft-tune-*")] == []


def test_the_program_may_be_another(tmp_path, monkeypatch):
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\necho '{json.dumps([{'study': 'a'}])}'\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PEFT_TUNE_PROGRAM", os.fspath(program))
    assert [study.name for study in peft_tune.studies()] == ["a"]


def test_the_module_is_the_program_too():
    ended = subprocess.run([sys.executable, "-m", "peft_tune", "--version"], capture_output=True, text=True, check=True)
    assert ended.stdout.startswith("peft-tune ")
