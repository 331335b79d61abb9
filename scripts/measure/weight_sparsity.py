#!/usr/bin/env python3
"""What a `weight_sparsity` does to throughput, memory and loss.

    scripts/measure/weight_sparsity.py --binary target/release/peft-tune [--shape quickstart] [--model DIR] [--work DIR]
        [--steps 200] [--precisions bf16] [--seeds 3] [--rows 4] [--length 128]

Needs nothing but Python. Shapes are those of values_of_setting.py; `--model` takes another model for the data. Each value of the
setting is a study of one trial for each seed, the values in turns: throughput and memory from the profile phase, the held-out
losses of the dense base model, of the sparse one, and behind so many steps. Medians of the seeds, and the lowest and highest
throughput.
"""

import statistics
from pathlib import Path

from values_of_setting import arguments, measure, model_and_data

KINDS = ["none", "magnitude_2_4", "wanda_2_4"]


def main():
    parser = arguments(__doc__, work="weight-sparsity", shape="quickstart", precisions="bf16", steps=200, profile_steps=10,
                       length=128)
    parser.add_argument("--model", type=lambda path: Path(path).resolve())
    parser.add_argument("--rate", default="2e-3")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=4)
    args = parser.parse_args()
    work = args.work.resolve()
    model, data = model_and_data(args.shape, work)
    model = args.model or model
    print("precision weight_sparsity throughput lowest highest base_MB peak_MB load_s dense_before before after")
    for precision in args.precisions.split(","):
        found = {kind: [] for kind in KINDS}
        for seed in range(args.seeds):
            # Another order for each seed, since a machine's speed drifts.
            for kind in KINDS[seed % 3 :] + KINDS[: seed % 3]:
                space = (
                    f"model: {model}\ndata: {{train: {data[0]}, held_out: {data[1]}}}\nseed: {seed}\nconfirm: none\n"
                    f"objectives: [throughput, peak_memory, loss]\nbudget: {{trials: 1}}\n"
                    f"trial: {{sequence_length: {args.length}, training_steps: {args.steps}, "
                    f"profile_steps: {args.profile_steps}, profile_warmup: 3, evaluation: {{times: 1}}}}\nsampler: grid\n"
                    f"space: {{precision: {precision}, weight_sparsity: {kind}, rank: 16, alpha: [32, 33], "
                    f"micro_batch: {args.rows}, learning_rate: {args.rate}}}\n"
                )
                found[kind].append(measure(args, space, work / f"{precision}-{kind}-{seed}"))
        for kind in KINDS:
            of = lambda name: [one[name] for one in found[kind] if name in one]
            middle = lambda name: statistics.median(of(name) or [float("nan")])
            rates = of("throughput")
            dense = middle("loss_before_dense") if kind != "none" else middle("loss_before")
            print(precision, kind, f"{middle('throughput'):.0f}", f"{min(rates):.0f}", f"{max(rates):.0f}",
                  f"{middle('base_memory_bytes') / 1e6:.2f}", f"{middle('peak_memory') / 1e6:.2f}",
                  f"{middle('load_s'):.2f}", f"{dense:.4f}", f"{middle('loss_before'):.4f}", f"{middle('loss'):.4f}",
                  flush=True)


if __name__ == "__main__":
    main()
