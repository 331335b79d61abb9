"""A stand-in for transformers."""

import os


class TrainerCallback:
    def on_train_begin(self, args, state, control, **_):
        pass

    def on_optimizer_step(self, args, state, control, **_):
        pass

    def on_step_end(self, args, state, control, **_):
        pass


class PrinterCallback(TrainerCallback):
    """Prints at the end of a step what is no message."""

    def on_step_end(self, args, state, control, **_):
        print({"event": "step", "number": state.global_step})


class Trainer:
    """What trainers have in common: their callbacks, and that a training is a loop of theirs."""

    def add_callback(self, callback):
        self._callbacks.append(callback)

    def train(self):
        return self._inner_training_loop()


class AutoProcessor:
    pad_token, eos_token = None, "</s>"

    @classmethod
    def from_pretrained(cls, folder, trust_remote_code=False):
        if not os.path.isfile(os.path.join(folder, "tokenizer.json")):
            raise OSError(f"{folder} has no tokenizer")
        return cls()
