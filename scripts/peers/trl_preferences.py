"""Searches on preferences with TRL itself, on the CPU: the quickstart's model, and rows made of its rows. trl-test.sh runs this.

    trl_preferences.py PROGRAM FOLDER [--only dpo,kto,orpo]

The interpreter that runs this has TRL. Of each trainer:

search    two trials are complete, with a loss and rewards
peak      the peak of tensors that a trial measured beside what `plan --stack trl --device cpu` predicts: within 10%
fields    the trainer's arguments and LoraConfig of a trial beside those that TRL's parser makes of the export, field by field
losses    a trial's steps beside those of TRL's own trainer, by the export's file, rows and seed
held out  what the trial measures after the last of them beside what that trainer says of the same rows in one micro-batch:
          rewards, and the loss of dpo; those of kto and orpo are means of TRL's that depend on the micro-batch
ranks     two ranks of a micro-batch each, linked by gloo, beside one device with two: losses and norms of the steps (of kto of
          the first one, before which nothing has drifted), held-out losses and rewards
part      the last evaluation beside a rival that is better on each row, on one device and on two: it ends early, with the loss
          over all rows
start     one step of the exported folder, started as its file says
whole     of kto also a search that trains the whole model in bf16, beside a copy of it: the peak as above
"""

import argparse
import dataclasses
import importlib
import json
import os
import pathlib
import shutil
import subprocess
import sys

sys.dont_write_bytecode = True  # not beside the sources
HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "src/cli/export"))
import evaluations_in_part  # noqa: E402
import installed  # noqa: E402
from chosen_names import among  # noqa: E402
from trl_worker import ASSETS, OF_LENGTH, compare_fields, overridden, plan_of, query, watched_worker, worker_of  # noqa: E402

STEPS, HELD_OUT, TRAIN = 4, 8, 60
ROWS = TRAIN + evaluations_in_part.ROWS
#: Relative difference of losses that the order of a sum makes.
WITHIN = 1e-4
#: Share of the measured peak by which the predicted one may miss it.
PEAK_WITHIN = 0.1

#: What each study fixes beside its trainer, and fields of a trial that may then differ.
SPACES = {
    "dpo": ("reference: precomputed", {"precompute_ref_log_probs"}),  # a trial asks the reference outside of its steps' time
    "kto": ("reference: each_step", set()),
    "orpo": ("schedule: constant", set()),
}
#: What trains.
ADAPTER = "rank: 4\n  dropout: 0\n  precision: fp32"
WHOLE = "method: full\n  precision: bf16"
STUDY = """\
study: {study}
model: {assets}/base
data: {{train: {folder}/{kind}_train.jsonl, held_out: {folder}/{kind}_held_out.jsonl}}
space:
  trainer: {kind}
  beta: [0.1, 0.3]
  {fixed}
  learning_rate: 3e-3
  warmup: 0
  {trained}
  micro_batch: 4
  gradient_accumulation: 2
trial: {{sequence_length: 64, profile_steps: 2, profile_warmup: 2, training_steps: 6, evaluation: {{rows: {held_out}, times: 2}}}}
sampler: grid
pruner: none
confirm: none
budget: {{trials: 2}}
backend: {{trl: {{python: {python}}}}}
"""
TRAINERS = {"dpo": ("trl", "DPOTrainer"), "kto": ("trl", "KTOTrainer"), "orpo": ("trl.experimental.orpo", "ORPOTrainer")}
QUIET = {
    "TRL_EXPERIMENTAL_SILENCE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "TQDM_DISABLE": "1",
}
#: Values of an evaluation, and TRL's names for those that do not depend on its micro-batches.
REWARDS = {"accuracy": "eval_rewards/accuracies", "margin": "eval_rewards/margins"}


def fail(text):
    raise SystemExit(f"trl_preferences.py: {text}")


def write_rows(options, kind):
    """Rows whose bad answers are those to other questions."""
    chats = [json.loads(line)["messages"] for line in open(ASSETS / "train.jsonl", encoding="utf-8")][:ROWS]
    rows = []
    for number, (*prompt, answer) in enumerate(chats):
        other = chats[(number + 7) % len(chats)][-1]
        if kind == "kto":
            is_good = number % 3 != 0
            rows.append({"prompt": prompt, "completion": [answer if is_good else other], "label": is_good})
        else:
            rows.append({"prompt": prompt, "chosen": [answer], "rejected": [other]})
    for split, part in (("train", rows[:TRAIN]), ("held_out", rows[TRAIN:])):
        lines = "".join(json.dumps(row) + "\n" for row in part)
        (options.folder / f"{kind}_{split}.jsonl").write_text(lines, encoding="utf-8")


def program(options, *words):
    ran = subprocess.run([options.program, *map(str, words)], capture_output=True, text=True, check=False, cwd=options.folder)
    if ran.returncode != 0:
        fail(f"{' '.join(map(str, words))} ended with {ran.returncode}: {ran.stderr}")
    return ran


def search(options, kind, study, trained):
    """Searches a study of this name."""
    fixed, _ = SPACES[kind]
    path = options.folder / f"{study}.yaml"
    said = {"study": study, "kind": kind, "fixed": fixed, "trained": trained, "assets": ASSETS, "folder": options.folder}
    text = STUDY.format(**said, held_out=HELD_OUT, python=sys.executable)
    path.write_text(text, encoding="utf-8")
    program(options, "search", path, "--db", options.database)


def check_search(options, kind):
    """Searches, and returns the number of a complete trial with its recipe."""
    write_rows(options, kind)
    search(options, kind, kind, ADAPTER)
    trials = query(options, f"select state from trial_summary where study = '{kind}'")
    if [trial["state"] for trial in trials] != ["complete"] * 2:
        fail(f"trials of {kind} are not complete: {trials}")
    counted = query(options, f"select name, count(*) as n from trial_metric where study = '{kind}' group by name")
    counted = {row["name"]: row["n"] for row in counted}
    lacking = [name for name in ("loss", "reward_accuracy", "reward_margin", "throughput") if counted.get(name) != 2]
    if lacking:
        fail(f"trials of {kind} have no {', '.join(lacking)}: {counted}")
    statement = (
        "select trial.number as number, trial.recipe as recipe from trial join study on study.id = trial.study_id "
        f"where study.name = '{kind}' order by trial.number limit 1"
    )
    found = query(options, statement)[0]
    return found["number"], json.loads(found["recipe"])


def check_peak(options, study):
    """Returns by which share of the measured peak of tensors the predicted one of a study misses it."""
    words = ["--stack", "trl", "--device", "cpu", "--json", "--db", options.database]
    planned = program(options, "plan", options.folder / f"{study}.yaml", *words)
    predicted = json.loads(planned.stdout)["peak_tensors_bytes"]
    statement = f"select max(value) as peak from trial_metric where study = '{study}' and name = 'peak_memory'"
    measured = query(options, statement)[0]["peak"]
    error = predicted / measured - 1
    if abs(error) > PEAK_WITHIN:
        fail(f"the peak of {study} is {measured / 1e6:.2f} MB, predicted were {predicted / 1e6:.2f} MB ({error:+.1%})")
    return error


def exported(options, kind, number):
    folder = options.folder / f"exported_{kind}"
    words = ["--db", options.database, "--study", kind, "--trial", number, "--format", "trl", "--output", folder]
    program(options, "export", *words)
    return folder


def check_fields(kind, trial, folder):
    training, adapter, *_ = installed.arguments_of_trl(folder)
    export = {"args": dataclasses.asdict(training), "peft_config": dataclasses.asdict(adapter)}
    export = json.loads(json.dumps(export, default=repr, sort_keys=True))
    _, own = SPACES[kind]
    allowed = {"args": overridden() | OF_LENGTH | own, "peft_config": set()}
    compare_fields(f"a trial of {kind}", trial, export, allowed)
    return f"{len(export['args'])} of {type(training).__name__}"


def trained_by_trl(options, kind, folder):
    """Losses of the export's steps, and what TRL says of held-out rows after them."""
    from datasets import load_dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback, set_seed

    training, adapter, _, model = installed.arguments_of_trl(folder)
    training.output_dir, training.max_steps = str(options.folder / "by_trl"), STEPS
    training.logging_steps, training.report_to, training.disable_tqdm = 1, [], True
    training.save_strategy = training.eval_strategy = "no"
    training.per_device_eval_batch_size, training.dataloader_pin_memory = HELD_OUT, False
    rows = load_dataset(str(folder / "trl_data"))
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    model = AutoModelForCausalLM.from_pretrained(model, dtype="float32")
    # As TRL does before it makes an adapter, but for its ORPO.
    set_seed(training.seed)
    module, name = TRAINERS[kind]
    trainer = getattr(importlib.import_module(module), name)(
        model=model,
        args=training,
        train_dataset=rows["train"],
        eval_dataset=rows["test"].select(range(HELD_OUT)),
        processing_class=tokenizer,
        peft_config=adapter,
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return losses, trainer.evaluate()


def differs(one, other):
    return abs(one - other) > WITHIN * max(1.0, abs(other))


def check_losses(kind, told, losses):
    ours = [step["loss"] for step in told.steps]
    if len(ours) != STEPS or len(losses) != STEPS or any(map(differs, ours, losses)):
        fail(f"a trial of {kind} has the losses {ours}, and TRL {losses}")
    if not differs(ours[0], ours[-1]):
        fail(f"a trial of {kind} learns nothing: {ours}")


def check_held_out(kind, told, theirs):
    """Compares an evaluation, and returns the names of what was compared."""
    last = told.evaluations[-1]
    compared = {name: (last["reward"][name], theirs[key]) for name, key in REWARDS.items() if key in theirs}
    if kind == "dpo":
        compared["loss"] = (last["loss"], theirs["eval_loss"])
    wrong = {name: pair for name, pair in compared.items() if differs(*pair)}
    if wrong or "margin" not in compared:
        fail(f"held-out rows of {kind} are scored otherwise than by TRL: {wrong or theirs}")
    return ", ".join(compared)


def on_devices(recipe):
    """A recipe on one device and on two."""
    on_one, on_two = (json.loads(json.dumps(recipe)) for _ in range(2))
    on_one["batch"].update(micro_batch=2, gradient_accumulation=2)
    on_two["batch"].update(micro_batch=2, gradient_accumulation=1, devices=2)
    return on_one, on_two


def check_ranks(options, kind, recipe):
    """Compares a training on two devices with that on one, and returns the number of its steps that are."""
    on_one, on_two = on_devices(recipe)
    with worker_of(options) as worker:
        one, two = [worker.run(number, of_this, plan_of(STEPS)) for number, of_this in enumerate([on_one, on_two])]
    # TRL takes the drift of kto over the micro-batches of all ranks.
    steps = 1 if kind == "kto" else STEPS
    compared = []
    for told in (one, two):
        values = [step[name] for step in told.steps[:steps] for name in ("loss", "grad_norm", "tokens")]
        values.append(told.ended["state"]["metrics"]["loss_before"])
        if kind != "kto":
            last = told.evaluations[-1]
            values += [last["loss"], *last["reward"].values()]
        compared.append(values)
    if len(one.steps) != STEPS or len(two.steps) != STEPS or any(map(differs, *compared)):
        fail(f"on two devices {kind} trains to {compared[1]}, and on one to {compared[0]}")
    return steps


def check_part(options, kind, recipe):
    """Ends evaluations early, and returns after how many rows each of them."""
    with worker_of(options) as worker:
        try:
            plan, both = plan_of(STEPS), enumerate(on_devices(recipe))
            return [evaluations_in_part.ended_early(worker, 2 * at, of_this, plan) for at, of_this in both]
        except evaluations_in_part.Wrong as error:
            fail(f"{kind}: {error}")


def check_start(kind, folder):
    config = f"trl_{kind}.yaml"
    if kind == "orpo":
        command = [sys.executable, "trl_orpo.py"]
    else:
        trl = shutil.which("trl", path=str(pathlib.Path(sys.executable).parent)) or shutil.which("trl")
        command = [trl or fail("there is no command `trl` beside this Python"), kind]
    words = {"max_steps": 1, "output_dir": folder / "out", "save_strategy": "no", "eval_strategy": "no", "report_to": "none"}
    words |= {"use_cpu": "true", "dataloader_pin_memory": "false"}
    given = [str(word) for name, value in words.items() for word in (f"--{name}", value)]
    ran = subprocess.run([*command, "--config", config, *given], capture_output=True, text=True, check=False, cwd=folder)
    if ran.returncode != 0 or not (folder / "out" / "adapter_model.safetensors").is_file():
        fail(f"the exported {config} does not train: {ran.stderr[-3000:]}")


def check(options, kind):
    number, recipe = check_search(options, kind)
    error = check_peak(options, kind)
    folder = exported(options, kind, number)
    record = options.folder / f"{kind}_record.jsonl"
    with watched_worker(options, record) as worker:
        told = worker.run(number, recipe, plan_of(STEPS))
    fields = check_fields(kind, json.loads(record.read_text().splitlines()[-1]), folder)
    losses, evaluated = trained_by_trl(options, kind, folder)
    check_losses(kind, told, losses)
    compared = check_held_out(kind, told, evaluated)
    on_ranks = check_ranks(options, kind, recipe)
    parts = " and ".join(map(str, check_part(options, kind, recipe)))
    check_start(kind, folder)
    as_trl = f"{STEPS} losses, and {compared} of held-out rows, as TRL's; {on_ranks} losses on two ranks as on one"
    as_trl += f"; an evaluation that ends after {parts} of {evaluations_in_part.ROWS} rows"
    print(f"{kind}: two trials; a peak predicted {error:+.1%}; {fields} as exported; {as_trl}; the export starts")
    if kind == "kto":
        search(options, kind, "whole", WHOLE)
        print(f"{kind} of the whole model beside its copy: a peak predicted {check_peak(options, 'whole'):+.1%}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=lambda path: str(pathlib.Path(path).resolve()))
    parser.add_argument("folder", type=lambda path: pathlib.Path(path).resolve(), help="for what is written")
    parser.add_argument("--only", type=among("trainer", SPACES), default=list(SPACES), help="names of trainers")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    options.database = options.folder / "preferences.db"
    os.environ |= {**QUIET, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    os.environ["HF_DATASETS_CACHE"] = str(options.folder / "datasets")
    for kind in options.only:
        check(options, kind)


if __name__ == "__main__":
    main()
