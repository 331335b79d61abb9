"""What the worker of `backend: trl` does with TRL itself, on the CPU. scripts/peers/trl-test.sh runs this.

    trl_worker.py PROGRAM DATABASE FOLDER [--only bits,ranks,..] [--kills 3] [--seed 1]

The interpreter that runs this has TRL. DATABASE has a study `trl` with a complete trial, whose recipe is taken.

bits       settings A, B, A in one worker and A in a fresh one: losses, rates, norms and held-out losses equal to the bit
ranks      two ranks of a micro-batch each beside one device with two: losses and norms within 1e-5; the same to the bit with rows
           that other processes read, and ranks end with their worker
part       the last evaluation beside a rival that is better on each row, on one device and on two: it ends early, with the loss
           over all rows
fields     SFTConfig and LoraConfig of a trial beside those that TRL's parser makes of `export --format trl`, field by field
choices    eager attention: losses within 1% of the plain setting's; two processes that read rows, and the plain setting behind all
           of them: losses equal to the bit
compiled   the same of a compiled model, where it is asked for: its compiler takes minutes
steps      `peft-tune check` of ten steps from one adapter, in fp32 and in bf16: the engines agree; losses in fp32 within 1e-5
peak       the measured peak beside what `plan --check --stack trl --device cpu` predicts: within 3%
limit      a trial that needs more than it may take is out of memory, and the process trains the next one
profile    `profile --backend trl`: phases make up the step, products are its largest op, parts of the memory its peak; a trace;
           eager attention is found
overhead   the least of later trials' time besides its steps and evaluations: under half a second
kills      a search each of whose Python workers is killed by SIGKILL, at a random moment of its start or of a trial:
           no finished trial is lost or run again, no process is left
"""

import argparse
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time
import types

sys.dont_write_bytecode = True  # not beside the sources
import evaluations_in_part  # noqa: E402
import ten_steps  # noqa: E402
from chosen_names import among  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
ASSETS = HERE.parents[1] / "search_spaces" / "quickstart"
#: Fields in which a trial and its export differ because their lengths do: a share of the steps becomes a number of them.
OF_LENGTH = {"max_steps", "num_train_epochs", "warmup_steps"}
PEAK_WITHIN, OVERHEAD_S = 0.03, 0.5
#: Rows of a micro-batch that takes several times as much as it may.
MANY_ROWS, LIMIT_BYTES = 1024, 1 << 30
#: Part of a step by which its phases may make up more or less, and PyTorch's names of products.
PHASES_WITHIN, PRODUCTS = 0.05, ("aten::mm", "aten::addmm", "aten::bmm")
#: Relative difference of losses that other kernels may make by rounding.
ROUNDED = 0.01
#: Share of the kills that come before the worker greets, and seconds that such a start takes at the least.
AT_START, START_S = 0.2, 3.0
#: Relative distance of fp32 numbers of one training on two devices and on one.
RANKS_WITHIN = 1e-5
#: Seconds in which the ranks of a worker that was killed are gone.
GONE_S = 10.0
#: Module whose processes are the Python workers.
MODULE = "peft_tune.backends"


def fail(text):
    raise SystemExit(f"trl_worker.py: {text}")


class Worker:
    """A worker, spoken to as a search does."""

    def __init__(self, command, environment=()):
        self.process = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **dict(environment)},
        )
        protocol = self.hear()["protocol"]
        self.say(request="hello", protocol=protocol, version="0", heartbeat_s=5.0, take_turns=False, together=False)

    def say(self, **request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()

    def hear(self):
        line = self.process.stdout.readline()
        if not line:
            fail(f"the worker ended with {self.process.wait()}")
        return json.loads(line)

    def begin(self, number, recipe, plan, limit_bytes=None, pairing=None):
        """Hands a trial over."""
        self.say(
            request="trial",
            number=number,
            attempt=1,
            task={"recipe": {"recipe": recipe, "plan": plan}},
            memory_limit_bytes=limit_bytes,
            time_limit_s=None,
            pairing=pairing,
        )

    def run(self, number, recipe, plan, limit_bytes=None, state="complete", pairing=None):
        """Runs a trial to its end, which is to be of this state, and returns what it told."""
        self.begin(number, recipe, plan, limit_bytes, pairing)
        told = types.SimpleNamespace(steps=[], evaluations=[], rows=None, ended=None)
        while told.ended is None:
            message = self.hear()
            event = message.get("event")
            if event == "step" and message["phase"] == "train":
                told.steps.append(message["step"])
            elif event == "evaluation":
                told.evaluations.append(message["evaluation"])
                told.rows = message.get("rows")
            elif event == "ended":
                told.ended = message
        if told.ended["state"]["state"] != state:
            fail(f"trial {number} ended so: {told.ended}")
        return told

    def stop(self):
        self.say(request="stop")
        while self.hear().get("event") != "bye":
            pass
        if self.process.wait() != 0:
            fail(f"a worker that was asked to stop ended with {self.process.returncode}")

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            self.stop()
        self.process.kill()


def worker_of(options):
    words = ["worker", "--backend", "trl", "--python", sys.executable, "--device", "cpu", "--threads", options.threads]
    return Worker([options.program, *words])


def watched_worker(options, record):
    """The same, in a Python that writes down what TRL gets."""
    words = [record, "--device", "cpu", "--threads", options.threads]
    environment = {
        "PEFT_TUNE_PROGRAM": options.program,
        "OMP_NUM_THREADS": str(options.threads),
        "MKL_NUM_THREADS": str(options.threads),
        "CUDA_VISIBLE_DEVICES": "",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_VERBOSITY": "error",
    }
    return Worker([sys.executable, HERE / "trl_worker_watched.py", *words], environment)


def query(options, statement, database=None):
    ran = ten_steps.run(
        options.program, "query", statement, "--db", database or options.database, "--format", "json", folder=options.folder
    )
    return json.loads(ran.stdout)


def plan_of(steps, evaluations=1, measure=None):
    train = {"length": {"steps": steps}, "evaluations": evaluations, "evaluation_rows": 8}
    return {"measure": measure, "train": train if steps else None}


def recipes(options):
    """The recipe of a complete trial with its number, and another one that shares the base model alone."""
    rows = query(options, "select number, recipe from trial where state = 'complete' order by number limit 1")
    if not rows:
        fail("no trial of the study is complete")
    first = json.loads(rows[0]["recipe"])
    other = json.loads(rows[0]["recipe"])
    other["adapter"].update(rank=16, alpha=16.0, dropout=0.0, target_modules="all-linear")
    other["optimizer"].update(kind="sgd", learning_rate=1e-1)
    other["batch"].update(micro_batch=2, gradient_accumulation=2)
    other["gradient_checkpointing"] = "full"
    other["training"]["seed"] = first["training"]["seed"] + 1
    return rows[0]["number"], first, other


def values_of(told):
    """All numbers of a training that its seed decides."""
    of_steps = [(step["loss"], step["learning_rate"], step["grad_norm"], step["tokens"]) for step in told.steps]
    return of_steps, [(one["loss"], one.get("standard_error"), one["accuracy"]) for one in told.evaluations]


def check_bits(options):
    _, first, other = recipes(options)
    plan = plan_of(6, evaluations=2, measure={"steps": 2, "max_warmup_steps": 2})
    with worker_of(options) as worker:
        told = [worker.run(number, recipe, plan) for number, recipe in enumerate([first, other, first])]
    with worker_of(options) as worker:
        fresh = worker.run(0, first, plan)
    values = [values_of(one) for one in told]
    if len(values[0][0]) != 6 or len(values[0][1]) != 2:
        fail(f"a training of six steps and two evaluations told {values[0]}")
    if values[1] == values[0]:
        fail("two settings train alike")
    for name, found in [("after another setting", values[2]), ("in a fresh process", values_of(fresh))]:
        if found != values[0]:
            fail(f"{name} a setting trains to {found}, and not to {values[0]}")
    counted = f"{len(values[0][0])} steps and {len(values[0][1])} evaluations"
    print(f"bits: {counted}, the same after another setting and in a fresh process")


def check_part(options):
    _, recipe, _ = recipes(options)
    recipe["adapter"]["dropout"] = 0.0
    on_two = json.loads(json.dumps(recipe))
    on_two["batch"].update(micro_batch=2, gradient_accumulation=1, devices=2)
    with worker_of(options) as worker:
        try:
            counts = [evaluations_in_part.ended_early(worker, 2 * at, one, plan_of(4)) for at, one in enumerate([recipe, on_two])]
        except evaluations_in_part.Wrong as error:
            fail(error)
    print(f"part: an evaluation ends after {counts[0]} rows of {evaluations_in_part.ROWS}, and on two devices after {counts[1]}")


def workers_below(process):
    """Python workers that a process has started."""
    found = []
    for task in pathlib.Path(f"/proc/{process}/task").glob("*/children"):
        try:
            children = task.read_text().split()
        except OSError:
            continue
        for child in children:
            if MODULE in command_line(child):
                found.append(int(child))
    return found


def processes_below(process):
    """Python workers and ranks below a process, children of children too."""
    own = workers_below(process)
    return own + [one for child in own for one in processes_below(child)]


def is_near(first, second):
    """Whether numbers are the same but for rounding in fp32, of which sums of another order have more."""
    return all(abs(one - other) <= RANKS_WITHIN * max(abs(one), abs(other)) for one, other in zip(first, second, strict=True))


def check_ranks(options):
    _, recipe, _ = recipes(options)
    # Each rank draws masks of its own.
    recipe["adapter"]["dropout"] = 0.0
    on_one, on_two = json.loads(json.dumps(recipe)), recipe
    on_one["batch"].update(micro_batch=2, gradient_accumulation=2)
    on_two["batch"].update(micro_batch=2, gradient_accumulation=1, devices=2)
    loaded = {**on_two, "torch": {"dataloader_num_workers": 2}}
    plan = plan_of(6, evaluations=2, measure={"steps": 2, "max_warmup_steps": 2})
    with worker_of(options) as worker:
        recipes_of = enumerate([on_one, on_two, loaded, on_two])
        one, two, by_processes, again = [worker.run(number, of_this, plan) for number, of_this in recipes_of]
        ranks = processes_below(worker.process.pid)
        worker.run(4, on_one, plan_of(2))
        left = processes_below(worker.process.pid)
    if len(ranks) != 3 or left:
        fail(f"two ranks and their launcher are the processes {ranks}, and {left} stay for a trial on one device")
    steps = [[value for step in values_of(told)[0] for value in step] for told in (one, two)]
    evaluations = [[value for told_of in values_of(told)[1] for value in told_of] for told in (one, two)]
    if not is_near(*steps) or not is_near(*evaluations):
        fail(f"on two devices a setting trains to {values_of(two)}, and on one to {values_of(one)}")
    if values_of(again) != values_of(two):
        fail(f"ranks that stay train a setting to {values_of(again)} after {values_of(two)}")
    if values_of(by_processes) != values_of(two):
        fail(f"rows that two processes of each rank read train to {values_of(by_processes)}, and others to {values_of(two)}")
    tokens = [told.ended["state"]["metrics"]["train_tokens"] for told in (one, two)]
    if tokens[0] != tokens[1]:
        fail(f"of the same rows {tokens} tokens are counted")
    killed = worker_of(options)
    killed.begin(0, on_two, plan_of(10_000))
    while killed.hear().get("event") != "step":
        pass
    ranks = processes_below(killed.process.pid)
    killed.process.kill()
    killed.process.wait()
    began = time.monotonic()
    while any(MODULE in command_line(process) for process in ranks):
        if time.monotonic() - began > GONE_S:
            fail(f"the ranks {ranks} outlived their worker")
        time.sleep(0.01)
    print(f"ranks: {len(one.steps)} steps on two devices as on one, and {len(ranks)} processes end with their worker")


def fields_of_export(options, number):
    """Fields of SFTConfig and LoraConfig that TRL makes of the exported file."""
    import dataclasses

    from trl import DatasetMixtureConfig, ModelConfig, ScriptArguments, SFTConfig, TrlParser, get_peft_config

    folder = options.folder / "exported"
    words = ["--db", options.database, "--study", "trl", "--trial", number, "--format", "trl", "--output", folder]
    ten_steps.run(options.program, "export", *words, folder=options.folder)
    parser = TrlParser((ScriptArguments, SFTConfig, ModelConfig, DatasetMixtureConfig))
    _, arguments, model, *_ = parser.parse_args_and_config(["--config", str(folder / "trl_sft.yaml")])
    return {"args": dataclasses.asdict(arguments), "peft_config": dataclasses.asdict(get_peft_config(model))}


def overridden():
    """Fields that a trial sets otherwise, as the worker says itself."""
    sys.path.insert(0, str(HERE.parents[1] / "python"))
    from peft_tune.backends.settings import OVERRIDES

    return set(OVERRIDES)


def compare_fields(name, trial, export, allowed):
    """Holds the configs of a trial against those of its export; `allowed` has the fields of each that may differ."""
    for config, may_differ in allowed.items():
        ours, theirs = trial[config], export[config]
        if set(ours) != set(theirs):
            fail(f"fields of {config} are those of another class: {sorted(set(ours) ^ set(theirs))}")
        wrong = {field: (ours[field], theirs[field]) for field in ours if ours[field] != theirs[field] and field not in may_differ}
        if wrong:
            fail(f"{config} of {name} and of its export differ: {wrong}")


def check_fields(options):
    number, recipe, _ = recipes(options)
    record = options.folder / "record.jsonl"
    with watched_worker(options, record) as worker:
        worker.run(number, recipe, plan_of(4))
    trial = json.loads(record.read_text().splitlines()[-1])
    export = json.loads(json.dumps(fields_of_export(options, number), default=repr, sort_keys=True))
    if set(trial) != set(export):
        fail(f"the trainer of a trial was given {sorted(trial)}, that of an export gets {sorted(export)}")
    allowed = {"args": overridden() | OF_LENGTH, "peft_config": set()}
    compare_fields("a trial", trial, export, allowed)
    counts = [len(trial[config]) for config in ("args", "peft_config")]
    print(f"fields: {counts[0]} of SFTConfig and {counts[1]} of LoraConfig are those of the export, but for {len(allowed['args'])}")


def check_choices(options):
    compare_choices(options, rounded={"eager": {"attn_implementation": "eager"}}, same={"processes": {"dataloader_num_workers": 2}})


def check_compiled(options):
    compare_choices(options, rounded={"compiled": {"torch_compile": True}}, same={})


def compare_choices(options, rounded, same):
    """Trains the plain setting, then with choices that may change losses by rounding and not at all, then the plain one again."""
    _, first, _ = recipes(options)
    # A compiled model draws other masks.
    first["adapter"]["dropout"] = 0.0
    chosen = {"plain": {}, **rounded, **same, "plain again": {}}
    told = {}
    with worker_of(options) as worker:
        for number, (name, choices) in enumerate(chosen.items()):
            told[name] = values_of(worker.run(number, {**first, "torch": choices}, plan_of(4)))
    for name in (*same, "plain again"):
        if told[name] != told["plain"]:
            fail(f"{name} trains to {told[name]}, and the plain setting to {told['plain']}")
    plain = [step[0] for step in told["plain"][0]]
    for name in rounded:
        losses = [step[0] for step in told[name][0]]
        furthest = max(abs(one / other - 1) for one, other in zip(losses, plain, strict=True))
        if furthest > ROUNDED:
            fail(f"losses of {name} differ by {furthest:.1%} from the plain setting's: {losses} and {plain}")
    print(f"{' and '.join([*rounded, *same])}: train as the plain setting does, and leave nothing behind")


def check_steps(options):
    """The study, rows and adapter of ten_steps.py: its lora_b is not zero."""
    asked = types.SimpleNamespace(program=options.program, form="plain", length=64, accumulation=2, as_stored=False)
    with tempfile.TemporaryDirectory(dir=options.folder) as scratch:
        recipe = ten_steps.prepared(asked, pathlib.Path(scratch))
        in_bf16 = recipe.with_name("bf16.yaml")
        text = recipe.read_text(encoding="utf-8")
        if "precision: fp32" not in text:
            fail(f"the recipe is not in fp32: {text}")
        in_bf16.write_text(text.replace("precision: fp32", "precision: bf16"), encoding="utf-8")
        fp32, bf16 = (compared(options, one) for one in (recipe, in_bf16))
    if fp32["losses"] > ten_steps.LOSS_WITHIN:
        fail(f"losses differ from the engine's by {fp32['losses']:.1e}")
    shown = [f"{one['losses']:.1e} and norms of gradients within {one['gradients']:.1e}" for one in (fp32, bf16)]
    print(f"steps: ten losses within {shown[0]} of the engine's in fp32, {shown[1]} in bf16")


def compared(options, recipe):
    """The largest differences between the two engines; fails where `check` says that they do not agree."""
    words = ["--backend", "trl", "--python", sys.executable, "--steps", ten_steps.STEPS, "--device", "cpu", "--json"]
    words += ["--threads", options.threads]
    try:
        found = json.loads(ten_steps.run(options.program, "check", recipe.name, *words, folder=recipe.parent).stdout)
    except RuntimeError as error:
        fail(f"check of {recipe.name}: {error}")
    counts = [len(found[engine]["steps"]) for engine in ("native", "trl")]
    if counts != [ten_steps.STEPS] * 2 or not found["agrees"]:
        fail(f"check of {recipe.name} says with exit code 0: {counts} steps, {found['reasons']}")
    return found["differences"]


def check_peak(options):
    _, recipe, _ = recipes(options)
    plan = plan_of(0, measure={"steps": 3, "max_warmup_steps": 2})
    with worker_of(options) as worker:
        for number, dropout in enumerate((0.0, 0.1)):
            recipe["adapter"]["dropout"] = dropout
            measured = worker.run(number, recipe, plan).ended["state"]["metrics"]["peak_memory"]
            compare_peak(options, recipe, plan, measured)


def compare_peak(options, recipe, plan, measured):
    asked = json.dumps({"tool": "trl", "recipe": recipe, "plan": plan})
    files = subprocess.run(
        [options.program, "trial-files"], input=asked + "\n", capture_output=True, text=True, check=True, cwd=options.folder
    )
    path = options.folder / "peak.yaml"
    path.write_text(json.loads(files.stdout)["config"], encoding="utf-8")
    words = ["plan", "--check", path, "--stack", "trl", "--device", "cpu", "--json"]
    # What does not fit a device has a code of its own; the prediction is printed all the same.
    ran = subprocess.run([options.program, *map(str, words)], capture_output=True, text=True, check=False, cwd=options.folder)
    if not ran.stdout:
        fail(f"plan --check: {ran.stderr}")
    predicted = json.loads(ran.stdout)["peak_tensors_bytes"]
    error = predicted / measured - 1
    if abs(error) > PEAK_WITHIN:
        fail(f"the peak is {measured / 1e6:.1f} MB, predicted were {predicted / 1e6:.1f} MB ({error:+.1%})")
    dropout = recipe["adapter"]["dropout"]
    print(f"peak: {measured / 1e6:.1f} MB of tensors with a dropout of {dropout}, predicted {error:+.1%}")


def check_limit(options):
    _, recipe, _ = recipes(options)
    many = {**recipe, "batch": {**recipe["batch"], "micro_batch": MANY_ROWS}}
    plan = plan_of(0, measure={"steps": 3, "max_warmup_steps": 2})
    with worker_of(options) as worker:
        reason = worker.run(0, many, plan, LIMIT_BYTES, state="failed").ended["state"]["reason"]
        if reason["kind"] != "out_of_memory":
            fail(f"a micro-batch of {MANY_ROWS} rows ended so: {reason}")
        worker.run(1, recipe, plan, LIMIT_BYTES)
    print(f"limit: {MANY_ROWS} rows are out of memory in phase {reason['phase']}, and the next trial is complete")


def check_profile(options):
    _, recipe, _ = recipes(options)
    # Numbers drawn for a dropout take as long as the products of so small a model.
    recipe["adapter"]["dropout"] = 0.0
    path, trace = options.folder / "profiled.yaml", options.folder / "profiled.json"
    path.write_text(json.dumps(recipe), encoding="utf-8")
    words = ["profile", path, "--backend", "trl", "--python", sys.executable, "--device", "cpu", "--threads", options.threads]
    words += ["--budget", "5s", "--trace", trace, "--no-store", "--json"]
    # Medians of a few steps: other work on the machine can pull them apart.
    for _ in range(3):
        profile = json.loads(ten_steps.run(options.program, *words, folder=options.folder).stdout)["profile"]
        shares = sum(phase["share"] for phase in profile["phases"])
        if abs(shares - 1) <= PHASES_WITHIN:
            break
    else:
        fail(f"phases make up {shares:.1%} of the step: {profile['phases']}")
    seconds = {}
    for op in profile["ops"]:
        seconds[op["name"]] = seconds.get(op["name"], 0.0) + op["seconds"]
    first = max(seconds, key=seconds.get, default=None)
    if first not in PRODUCTS or not any(op["flops"] for op in profile["ops"] if op["name"] == first):
        fail(f"the largest op is {first}, and no product with FLOPs: {seconds}")
    memory = profile["memory"]
    if sum(part["bytes"] for part in memory["parts"]) != memory["peak_bytes"]:
        fail(f"parts of the memory are not its peak: {memory}")
    events = len(json.loads(trace.read_text(encoding="utf-8"))["traceEvents"])
    path.write_text(json.dumps({**recipe, "torch": {"attn_implementation": "eager"}}), encoding="utf-8")
    findings = json.loads(ten_steps.run(options.program, *words, folder=options.folder).stdout)["diagnosis"]
    eager = [finding["evidence"] for finding in findings if finding["rule"] == "eager_attention"]
    if not eager or " 0.0% " in eager[0]:
        fail(f"attention that keeps its scores is not found by its passes over them: {findings}")
    print(f"profile: phases are {shares:.1%} of the step, {first} is its largest op, {events} events in the trace")


def check_overhead(options):
    _, first, other = recipes(options)
    found = []
    with worker_of(options) as worker:
        worker.run(0, first, plan_of(4))
        # Other work on the machine makes one slower, and none faster.
        for number, recipe in enumerate([other, first, other] * 4, start=1):
            if number > 3 and min(found) <= OVERHEAD_S:
                break
            told = worker.run(number, {**recipe, "training": {**recipe["training"], "seed": number}}, plan_of(4))
            steps = sum(step["seconds"]["total"] for step in told.steps)
            found.append(told.ended["wall_s"] - steps - sum(one["seconds"] for one in told.evaluations))
    shown = ", ".join(f"{seconds:.2f}" for seconds in found)
    if min(found) > OVERHEAD_S:
        fail(f"a later trial takes {shown} s besides its steps and evaluations; {OVERHEAD_S} s are allowed")
    print(f"overhead: {shown} s of later trials besides their steps and evaluations")


STUDY = """\
study: kills
model: {assets}/base
data: {{train: {assets}/train.jsonl, held_out: {assets}/held_out.jsonl}}
objectives: [throughput, loss]
space:
  rank: [2, 4, 8]
  learning_rate: {{low: 1e-4, high: 1e-2, scale: log}}
  micro_batch: [2, 4]
  precision: fp32
trial: {{sequence_length: 64, profile_steps: 2, profile_warmup: 2, training_steps: 12, evaluation: {{rows: 4}}}}
sampler: random
pruner: none
confirm: none
backend: {{trl: {{python: {python}}}}}
"""


def command_line(process):
    try:
        return pathlib.Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def finished(options, database, before):
    """What is finished by now; fails where a trial of before is not, or was run again."""
    if query(options, "pragma integrity_check", database)[0]["integrity_check"] != "ok":
        fail("the database is damaged")
    rows = query(
        options,
        "select number, ended_at, attempt, wall_s from trial where state not in ('waiting', 'running')",
        database,
    )
    now = {row["number"]: (row["ended_at"], row["attempt"], row["wall_s"]) for row in rows}
    lost = {number: trial for number, trial in before.items() if now.get(number) != trial}
    if lost:
        fail(f"trials were lost or run again: {lost}")
    return now


class Log:
    """The log of searches, read while it is written."""

    def __init__(self, path):
        self._path, self._at = path, 0
        path.write_text("", encoding="utf-8")

    def next(self):
        """The next event; `None` where none is there yet."""
        with open(self._path, encoding="utf-8") as file:
            file.seek(self._at)
            line = file.readline()
            if not line.endswith("\n"):
                return None
            self._at = file.tell()
        return json.loads(line)


def search_of(options, database, trials):
    words = ["search", options.folder / "kills.yaml", "--db", database, "--trials", trials, "--attempts", 1000]
    words += ["--log-file", options.folder / "kills.jsonl", "--log-format", "json", "--log-level", "info"]
    with open(options.folder / "kills.log", "a", encoding="utf-8") as said:
        return subprocess.Popen([options.program, *map(str, words)], stdout=said, stderr=said, cwd=options.folder)


def killed_of(options, search, log, dice, most):
    """Kills each worker of a search once, until it ends or so many are killed; returns how many."""
    killed, began, ready, has_trial = set(), time.monotonic(), None, False
    while search.poll() is None and len(killed) < most:
        if time.monotonic() - began > 600:
            search.kill()
            fail("a search has not ended in ten minutes")
        event = log.next()
        if event is None:
            time.sleep(0.02)
            continue
        told = event.get("message")
        if told == "started a worker" and dice.random() < AT_START:
            worker, latest_s = event["process"], START_S
        elif told in ("a worker is ready", "a trial begins", "a trial ended"):
            ready = event.get("process", ready)
            has_trial = told == "a trial begins" or (has_trial and told != "a trial ended")
            if ready is None or not has_trial:
                continue
            # The rehearsal is over: what is killed has a trial.
            worker, latest_s = ready, options.trial_s
        else:
            continue
        time.sleep(dice.uniform(0.0, latest_s))
        if worker not in killed and is_worker(worker):
            os.kill(worker, signal.SIGKILL)
            killed.add(worker)
        ready = None
    return len(killed)


def is_worker(process):
    """Whether a process is a worker, which the program is until it becomes Python."""
    line = command_line(process)
    return MODULE in line or " worker " in line


def check_kills(options):
    dice = random.Random(options.seed)
    text = STUDY.format(assets=ASSETS, python=sys.executable)
    (options.folder / "kills.yaml").write_text(text, encoding="utf-8")
    database = options.folder / "kills.db"
    done, known, log = 0, {}, Log(options.folder / "kills.jsonl")
    while done < options.kills:
        left = options.kills - done
        # About one trial ends between two kills. A search that is through, or whose workers never greeted, is started again.
        search = search_of(options, database, len(known) + left + 1)
        done += killed_of(options, search, log, dice, left)
        if search.wait() not in (0, 5):
            fail(f"the search ended with {search.returncode}: {(options.folder / 'kills.log').read_text()[-2000:]}")
        known = finished(options, database, known)
    if search_of(options, database, len(known) + 2).wait() != 0:
        fail(f"the search cannot be finished: {(options.folder / 'kills.log').read_text()[-2000:]}")
    known = finished(options, database, known)
    left = query(options, "select count(*) as n from trial where state in ('waiting', 'running')", database)[0]["n"]
    failed = query(options, "select count(*) as n from trial where state = 'failed'", database)[0]["n"]
    if left or failed:
        fail(f"{left} trials are not run and {failed} failed")
    lines = map(json.loads, (options.folder / "kills.jsonl").read_text(encoding="utf-8").splitlines())
    started = {one["process"] for one in lines if one["message"] == "started a worker"}
    if still := [process for process in started if is_worker(process)]:
        fail(f"the workers {still} outlived their search")
    attempts = query(options, "select count(*) as n from lost_attempt", database)[0]["n"]
    if not attempts:
        fail(f"none of {done} kills took a trial from its worker")
    counted = f"{len(known)} trials finished, none lost or run again, {attempts} attempts noted as lost"
    print(f"kills: {done} of {len(started)} Python workers, {counted}")


CHECKS = {
    "bits": check_bits,
    "ranks": check_ranks,
    "part": check_part,
    "fields": check_fields,
    "choices": check_choices,
    "compiled": check_compiled,
    "steps": check_steps,
    "peak": check_peak,
    "limit": check_limit,
    "profile": check_profile,
    "overhead": check_overhead,
    "kills": check_kills,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=lambda path: str(pathlib.Path(path).resolve()))
    parser.add_argument("database", type=lambda path: pathlib.Path(path).resolve())
    parser.add_argument("folder", type=lambda path: pathlib.Path(path).resolve(), help="for what is written")
    usual = [name for name in CHECKS if name != "compiled"]
    parser.add_argument("--only", type=among("check", CHECKS), default=usual, help="names of checks")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1, help="of the moments of kills")
    parser.add_argument("--trial-s", type=float, default=2.0, help="a worker is killed at most so many seconds after it greets")
    options = parser.parse_args()
    for name in options.only:
        CHECKS[name](options)


if __name__ == "__main__":
    main()
