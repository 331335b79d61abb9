"""The race through the real program and its database, beside peers.

    python3 benches/race/race.py --binary target/release/peft-tune [--problems zdt1,lora] [--seeds 10] [--trials 60]
                                 [--samplers ours,optuna_gp,optuna_tpe,optuna_nsga2,botorch]

Ours: `peft-tune search` on a generated search space with the `command` backend (problem.py); values are read back from the
database. Peers run where they are installed (`pip install optuna botorch`) and are left out, with a line that says so, where
not. Prints mean hypervolume after 20, 40 and 60 evaluations, failed trials and seconds a proposal.
"""
import argparse
import os
import random
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from problem import PROBLEMS, space_file

HERE = Path(__file__).resolve().parent


def hypervolume(points, reference):
    """Exact, by slices along the last objective (two and three objectives)."""
    inside = [p for p in points if p is not None and all(v < r for v, r in zip(p, reference))]
    if len(reference) == 2:
        total, height = 0.0, reference[1]
        for x, y in sorted(inside):
            if y < height:
                total += (reference[0] - x) * (height - y)
                height = y
        return total
    levels = sorted({p[-1] for p in inside}) + [reference[-1]]
    slices = zip(levels, levels[1:])
    return sum((b - a) * hypervolume([p[:-1] for p in inside if p[-1] <= a], reference[:-1]) for a, b in slices)


def ours(name, seed, trials, options):
    """Runs the binary; returns the values of each trial in order (None for a failed one) and seconds in all."""
    with tempfile.TemporaryDirectory() as folder:
        space = Path(folder, "space.yaml")
        space.write_text(space_file(name, seed, trials, [sys.executable, str(HERE / "problem.py")]))
        database = Path(folder, "study.db")
        began = time.perf_counter()
        command = [options.binary, "search", str(space), "--json", "--db", str(database)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{' '.join(command)}: {done.stderr}")
        seconds = time.perf_counter() - began
        # Only whole trials count; what a stopped or failed one measured is no evaluation.
        rows = sqlite3.connect(database).execute(
            """select t.trial, m.name, m.value from trial_summary as t
               left join trial_metric as m on m.study = t.study and m.trial = t.trial and t.state = 'complete'
               order by t.trial"""
        )
        measured = {}
        for number, metric, value in rows:
            measured.setdefault(number, {})[metric] = value
        metrics = list(PROBLEMS[name][2])
        values = [measured[number] for number in sorted(measured)]
        return [[one[m] for m in metrics] if all(m in one for m in metrics) else None for one in values], seconds


def draw(space, number, choice):
    """A setting, from functions that draw a number in a range and one of several choices."""
    params = {}
    for name, spec in space.items():
        condition = spec.get("when", {}) if isinstance(spec, dict) else {}
        if any(params.get(parent) != value for parent, value in condition.items()):
            continue
        choices = spec if isinstance(spec, list) else spec.get("choices")
        params[name] = choice(name, choices) if choices else number(name, spec["low"], spec["high"], spec.get("scale") == "log")
    return params


def optuna_sampler(kind):
    def run(name, seed, trials, options):
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        function, space, references = PROBLEMS[name]
        constrained = {"constraints_func": lambda trial: trial.user_attrs["constraint"]} if name == "lora" else {}
        make = {
            "tpe": lambda: optuna.samplers.TPESampler(multivariate=True, group=True, seed=seed, **constrained),
            "gp": lambda: optuna.samplers.GPSampler(deterministic_objective=True, seed=seed, **constrained),
            "nsga2": lambda: optuna.samplers.NSGAIISampler(seed=seed, **constrained),
        }
        study = optuna.create_study(directions=["minimize"] * len(references), sampler=make[kind]())
        values, seconds = [], 0.0
        for _ in range(trials):
            began = time.process_time()
            trial = study.ask()
            params = draw(
                space,
                lambda key, low, high, log: trial.suggest_float(key, low, high, log=log),
                lambda key, choices: trial.suggest_categorical(key, choices),
            )
            seconds += time.process_time() - began
            values.append(function(params))
            trial.set_user_attr("constraint", [1.0 if values[-1] is None else -1.0])
            # A trial out of memory is told at the reference point, as breaking a constraint.
            study.tell(trial, values[-1] or list(references.values()))
        return values, seconds

    return run


def botorch(name, seed, trials, options):
    """qLogNEHVI on continuous problems, ten Sobol points first."""
    import torch
    from botorch.acquisition.multi_objective.logei import qLogNoisyExpectedHypervolumeImprovement
    from botorch.fit import fit_gpytorch_mll
    from botorch.models import ModelListGP, SingleTaskGP
    from botorch.models.transforms import Standardize
    from botorch.optim import optimize_acqf
    from gpytorch.mlls import SumMarginalLogLikelihood

    function, space, references = PROBLEMS[name]
    if not all(isinstance(spec, dict) and "choices" not in spec for spec in space.values()):
        return None
    torch.manual_seed(seed)
    ranges = [(spec["low"], spec["high"]) for spec in space.values()]
    units = [u.double() for u in torch.quasirandom.SobolEngine(len(space), scramble=True, seed=seed).draw(10)]
    evaluate = lambda unit: function({key: lo + (hi - lo) * float(u) for key, (lo, hi), u in zip(space, ranges, unit)})
    values, seconds = [evaluate(unit) for unit in units], 0.0
    reference = -torch.tensor(list(references.values()), dtype=torch.double)
    while len(values) < trials:
        began = time.process_time()
        x, y = torch.stack(units), -torch.tensor(values, dtype=torch.double)
        models = [SingleTaskGP(x, y[:, i : i + 1], outcome_transform=Standardize(1)) for i in range(y.shape[1])]
        model = ModelListGP(*models)
        fit_gpytorch_mll(SumMarginalLogLikelihood(model.likelihood, model))
        acquisition = qLogNoisyExpectedHypervolumeImprovement(model, reference, x, prune_baseline=True)
        bounds = torch.tensor([[0.0] * len(space), [1.0] * len(space)], dtype=torch.double)
        found, _ = optimize_acqf(acquisition, bounds, q=1, num_restarts=4, raw_samples=256)
        seconds += time.process_time() - began
        units.append(found[0].detach())
        values.append(evaluate(units[-1]))
    return values, seconds


def uniform(name, seed, trials, options):
    function, space, _ = PROBLEMS[name]
    generator = random.Random(seed)

    def number(_, low, high, log):
        unit = generator.random()
        return low * (high / low) ** unit if log else low + (high - low) * unit

    return [function(draw(space, number, lambda _, choices: generator.choice(choices))) for _ in range(trials)], 0.0


SAMPLERS = {
    "ours": ours,
    "optuna_gp": optuna_sampler("gp"),
    "optuna_tpe": optuna_sampler("tpe"),
    "optuna_nsga2": optuna_sampler("nsga2"),
    "botorch": botorch,
    "random": uniform,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=os.environ.get("PEFT_TUNE", "target/release/peft-tune"))
    parser.add_argument("--problems", default=",".join(PROBLEMS))
    parser.add_argument("--samplers", default=",".join(SAMPLERS))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--trials", type=int, default=60)
    options = parser.parse_args()
    for name in options.problems.split(","):
        reference = list(PROBLEMS[name][2].values())
        for sampler in options.samplers.split(","):
            runs = []
            try:
                for seed in range(options.first_seed, options.first_seed + options.seeds):
                    run = SAMPLERS[sampler](name, seed, options.trials, options)
                    runs += [run] if run else []
            except ImportError as missing:
                print(f"{name:<9} {sampler:<13} left out: {missing}", flush=True)
                continue
            if not runs:
                print(f"{name:<9} {sampler:<13} left out: it has no form for this space", flush=True)
                continue
            mean = lambda measure: sum(map(measure, runs)) / len(runs)
            counts = [count for count in (20, 40, 60) if count <= options.trials] or [options.trials]
            volumes = [mean(lambda run: hypervolume(run[0][:count], reference)) for count in counts]
            failed = mean(lambda run: sum(one is None for one in run[0]))
            each = mean(lambda run: run[1]) / options.trials
            at = "  ".join(f"{count}: {volume:9.4f}" for count, volume in zip(counts, volumes))
            print(f"{name:<9} {sampler:<13} {at}  failed {failed:4.1f}  {1e3 * each:8.1f} ms a trial", flush=True)


if __name__ == "__main__":
    main()
