"""The race's black boxes as a program for the `command` backend, and their search spaces.

    python3 problem.py zdt1        evaluates one trial: a JSON object on standard input, JSON lines on standard output
    python3 problem.py zdt1 space  prints the search-space file

Formulas: ZDT1-3 (Zitzler, Deb, Thiele 2000; ZDT3 as published, with the factor g outside), DTLZ2 and DTLZ7 (Deb et al.
2002), vehicle safety (Liao et al. 2008, as RE3-5-4 in Tanabe and Ishibuchi 2020), and a mixed, conditional problem shaped
like LoRA tuning, which runs out of memory. Everything is minimised. Standard library only.
"""
import json
import math
import sys


def of(params):
    return [params[f"x{index}"] for index in range(len(params))]


def zdt(shape):
    def evaluate(params):
        x = of(params)
        g = 1 + 9 * sum(x[1:]) / (len(x) - 1)
        return [x[0], g * shape(x[0] / g, x[0])]

    return evaluate


def dtlz2(params):
    x = of(params)
    g = 1 + sum((value - 0.5) ** 2 for value in x[2:])
    a, b = x[0] * math.pi / 2, x[1] * math.pi / 2
    return [g * math.cos(a) * math.cos(b), g * math.cos(a) * math.sin(b), g * math.sin(a)]


def dtlz7(params):
    x = of(params)
    g = 1 + 9 * sum(x[2:]) / len(x[2:])
    h = 3 - sum(value / (1 + g) * (1 + math.sin(3 * math.pi * value)) for value in x[:2])
    return [x[0], x[1], (1 + g) * h]


def vehicle(params):
    a, b, c, d, e = of(params)
    mass = 1640.2823 + 2.3573285 * a + 2.3220035 * b + 4.5688768 * c + 7.7213633 * d + 4.4559504 * e
    acceleration = (
        6.5856 + 1.15 * a - 1.0427 * b + 0.9738 * c + 0.8364 * d - 0.3695 * a * d + 0.0861 * a * e + 0.3628 * b * d
        - 0.1106 * a**2 - 0.3437 * c**2 + 0.1764 * d**2
    )
    intrusion = (
        -0.0551 + 0.0181 * a + 0.1024 * b + 0.0421 * c - 0.0073 * a * b + 0.024 * b * c - 0.0118 * b * d
        - 0.0204 * c * d - 0.008 * c * e - 0.0241 * b**2 + 0.0109 * d**2
    )
    return [mass, acceleration, intrusion]


CAPACITY_GIB, STEPS, KNOWN_AFTER = 24.0, 100, 2
PRECISIONS = {  # bytes a weight, FLOP/s, dequantising seconds, loss
    "fp32": (4.0, 60e12, 0.0, 0.0),
    "bf16": (2.0, 150e12, 0.0, 0.004),
    "int8": (1.05, 90e12, 0.030, 0.012),
    "nf4": (0.56, 120e12, 0.022, 0.035),
}
OPTIMIZERS = {  # bytes of state, seconds, best learning rate, loss
    "adamw": (8.0, 0.004, 3e-4, 0.0),
    "adamw8bit": (2.0, 0.007, 3e-4, 0.006),
    "lion": (4.0, 0.003, 6e-5, 0.015),
    "adafactor": (0.2, 0.010, 8e-4, 0.030),
    "sgd": (4.0, 0.002, 2e-2, 0.10),
}
TARGETS = {"qv": (4 * 2048, 2), "attn": (8 * 2048, 4), "all": (8 * 2048 + 3 * (2048 + 5632), 7)}
LAYERS, HIDDEN, WEIGHTS = 24, 2048, 1.5e9


def lora_cost(params):
    """Throughput in tokens/s and memory in GiB: known after a few steps, independent of the loss's parameters."""
    weight_bytes, peak, dequantise, _ = PRECISIONS[params["precision"]]
    state_bytes, overhead, _, _ = OPTIMIZERS[params["optimizer"]]
    per_layer, modules = TARGETS[params["targets"]]
    twice = bool(params.get("double_quant", False))
    kept = bool(params["grad_ckpt"])
    width = 2.0 if params["precision"] == "fp32" else 1.0
    tokens = params["batch"] * 1024
    adapters = params["rank"] * per_layer * LAYERS
    activations = width * (2 * HIDDEN * LAYERS + 34 * HIDDEN if kept else 34 * HIDDEN * LAYERS) * tokens
    activations += 2 * adapters / (HIDDEN * LAYERS) * tokens * width * (0.25 if kept else 1.0)
    weights = WEIGHTS * (weight_bytes - (0.04 if twice else 0.0))
    memory = 1.04 * (weights + adapters * (8 + state_bytes) + activations + 8 * 32000 * tokens) / 2**30 + 0.8
    flops = tokens * (WEIGHTS * (6 if kept else 4) + 6 * adapters)
    fixed = 0.020 + 0.0006 * LAYERS * modules / 2 + overhead + dequantise * (1.5 if kept else 1.0) + 0.004 * twice
    return tokens / (fixed + flops / (peak * tokens / (tokens + 2500))), memory


def lora_loss(params, steps):
    """Loss after a number of steps."""
    _, _, best, worse = OPTIMIZERS[params["optimizer"]]
    per_layer, _ = TARGETS[params["targets"]]
    rank, batch = params["rank"], params["batch"]
    best *= math.sqrt(batch / 8) * math.sqrt(2 / params["alpha_ratio"]) * (32 / rank) ** 0.15
    off = math.log10(params["lr"] / best)
    penalty = 1.6 * math.tanh((0.45 if off < 0 else 0.9) * off**2 / 1.6)
    end = 1.80 + 0.16 * (rank * per_layer / (16 * 8 * 2048)) ** -0.45 + worse + PRECISIONS[params["precision"]][3]
    end += 0.10 * (params["dropout"] - 0.06) ** 2 / 0.01 * (0.3 + 0.1 * math.log2(rank / 4 + 1))
    end += 0.004 * bool(params.get("double_quant", False))
    if params["optimizer"] == "sgd":
        end += 1.2 * (params["momentum"] - 0.9) ** 2
    half_life = 12 * (8 / batch) ** 0.35 * (1 + 1.5 * penalty)
    return end + penalty + 1.1 * (1 + steps / half_life) ** -0.9


def lora(params):
    throughput, memory = lora_cost(params)
    if memory > CAPACITY_GIB:
        return None
    return [-throughput / 1e4, memory / CAPACITY_GIB, lora_loss(params, STEPS) - 1.8]


def cube(dimensions, low=0.0, high=1.0):
    return {f"x{index}": {"low": low, "high": high} for index in range(dimensions)}


LORA_SPACE = {
    "rank": [4, 8, 16, 32, 64, 128, 256],
    "batch": [1, 2, 4, 8, 16, 32, 64],
    "precision": list(PRECISIONS),
    "double_quant": {"choices": [False, True], "when": {"precision": "nf4"}},
    "grad_ckpt": [False, True],
    "optimizer": list(OPTIMIZERS),
    "momentum": {"low": 0.5, "high": 0.99, "when": {"optimizer": "sgd"}},
    "targets": list(TARGETS),
    "lr": {"low": 1e-5, "high": 1e-1, "scale": "log"},
    "alpha_ratio": [0.5, 1.0, 2.0, 4.0],
    "dropout": {"low": 0.0, "high": 0.2},
}
SQUARE_ROOT = zdt(lambda ratio, _: 1 - math.sqrt(ratio))
WAVES = zdt(lambda ratio, x: 1 - math.sqrt(ratio) - ratio * math.sin(10 * math.pi * x))
HOLLOW = zdt(lambda ratio, _: 1 - ratio**2)
# Name: function, space, objectives with their reference values.
PROBLEMS = {
    "zdt1": (SQUARE_ROOT, cube(6), {"f0": 11.0, "f1": 11.0}),
    "zdt2": (HOLLOW, cube(6), {"f0": 11.0, "f1": 11.0}),
    "zdt3": (WAVES, cube(6), {"f0": 11.0, "f1": 11.0}),
    "dtlz2_3": (dtlz2, cube(6), {"f0": 1.1, "f1": 1.1, "f2": 1.1}),
    "dtlz7_3": (dtlz7, cube(6), {"f0": 1.1, "f1": 1.1, "f2": 25.0}),
    "vehicle": (vehicle, cube(5, 1.0, 3.0), {"f0": 1864.72022, "f1": 11.81993945, "f2": 0.2903999384}),
    "lora": (lora, LORA_SPACE, {"speed": 0.0, "memory": 1.0, "loss": 2.0}),
}


def space_file(name, seed, trials, program):
    """The search space as YAML, which JSON is a part of."""
    _, space, references = PROBLEMS[name]
    return json.dumps(
        {
            "study": f"{name}-{seed}",
            "backend": {"command": [*program, name]},
            "objectives": [{"metric": metric, "reference": value} for metric, value in references.items()],
            "space": space,
            "budget": {"trials": trials},
            "seed": seed,
        },
        indent=1,
    )


def trial(name):
    function, _, references = PROBLEMS[name]
    values = function(json.load(sys.stdin)["params"])
    if values is None:
        print(json.dumps({"outcome": "out_of_memory"}))
    else:
        print(json.dumps({"metrics": dict(zip(references, values))}))


if __name__ == "__main__":
    if sys.argv[2:] == ["space"]:
        print(space_file(sys.argv[1], 0, 60, ["python3", __file__]))
    else:
        trial(sys.argv[1])
