#!/usr/bin/env python3
"""What `sharding: full` does to throughput and memory of a rank, and that it leaves the loss as it is.

    scripts/measure/sharding.py --binary target/release/peft-tune [--shape 135m] [--work DIR] [--devices 2] [--steps 6]
        [--precisions bf16,fp32,nf4] [--rows 1,4] [--length 256]

Needs nothing but Python. The shapes are those of values_of_setting.py. Each setting is a study of one trial: throughput, peak
memory and bytes of the weights from the profile phase, the held-out loss behind so many steps.
"""

from values_of_setting import arguments, measure, model_and_data


def main():
    parser = arguments(__doc__, work="sharding", shape="135m", precisions="bf16,fp32,nf4", steps=6, profile_steps=8, length=256)
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--rows", default="4")
    args = parser.parse_args()
    work = args.work.resolve()
    model, data = model_and_data(args.shape, work)
    print("precision rows sharding tokens_per_s ratio peak_MB weights_MB loss same_loss")
    for precision in args.precisions.split(","):
        for rows in args.rows.split(","):
            whole = None
            for sharding in ["none", "full"]:
                space = (
                    f"model: {model}\ndata: {{train: {data[0]}, held_out: {data[1]}}}\nconfirm: none\n"
                    f"objectives: [throughput, peak_memory, loss]\nbudget: {{trials: 1}}\n"
                    f"training: {{length: {{steps: {args.steps}}}}}\n"
                    f"trial: {{sequence_length: {args.length}, training_steps: {args.steps}, "
                    f"profile_steps: {args.profile_steps}, profile_warmup: 2, evaluation: {{times: 1}}}}\n"
                    f"sampler: grid\nspace: {{precision: {precision}, devices: {args.devices}, sharding: {sharding}, rank: 16, "
                    f"alpha: [32, 33], micro_batch: {rows}, learning_rate: 1e-3}}\n"
                )
                found = measure(args, space, work / f"{precision}-{rows}-{sharding}")
                whole = whole or found
                print(precision, rows, sharding, f"{found['throughput']:.0f}",
                      f"{found['throughput'] / whole['throughput']:.2f}", f"{found['peak_memory'] / 1e6:.1f}",
                      f"{found['base_memory_bytes'] / 1e6:.1f}", f"{found['loss']:.6f}", found["loss"] == whole["loss"],
                      flush=True)


if __name__ == "__main__":
    main()
