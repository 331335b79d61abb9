"""A stand-in for the Hugging Face trainer, in the standard library: it calls a callback as that does, and learns nothing.

The parameter `mode` says how the training goes: `fine`, `out_of_memory`, `diverges`, `crashes`, `invalid`, or `slow`.
"""

import sys
import time
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from peft_tune_callback import Invalid, Memory, PeftTuneCallback, tuned


class OutOfMemoryError(RuntimeError):
    """Has the name of torch's."""


def train(trial, callback):
    mode, steps = trial.param("mode", default="fine"), trial.steps or 5
    state = SimpleNamespace(global_step=0, num_input_tokens_seen=0)
    control = SimpleNamespace(should_training_stop=False)
    if mode == "invalid":
        raise Invalid("`mode` invalid cannot be trained")
    callback.on_train_begin(None, state, control)
    while state.global_step < steps and not control.should_training_stop:
        callback.on_step_begin(None, state, control)
        time.sleep(0.05 if mode == "slow" else 0.001)
        state.num_input_tokens_seen += 100
        state.global_step += 1
        callback.on_step_end(None, state, control)
        loss = float("nan") if mode == "diverges" and state.global_step == 4 else 3.0 / state.global_step
        callback.on_log(None, state, control, logs={"loss": loss})
        if mode == "out_of_memory" and state.global_step == 4:
            raise OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        if mode == "crashes" and state.global_step == 4:
            raise KeyError("labels")
    callback.on_evaluate(None, state, control, metrics={"eval_loss": 1.5})


def main():
    print("a trainer that chats before it begins")
    with tuned() as trial:
        print("and while it trains")
        callback = PeftTuneCallback(trial, Memory())
        train(trial, callback)
        trial.finish(callback.result())


if __name__ == "__main__":
    main()
