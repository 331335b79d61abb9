"""What a training changes for the whole process, put back before the next one: names, graphs, the precision of products."""

import contextlib
import sys

#: Modules in which liger-kernel replaces names, and not in the model that it is applied to alone.
PATCHED = ("transformers.models.", "transformers.loss.")


class ProcessState:
    """The process as it was before a training."""

    def __init__(self, torch):
        self._backends = getattr(torch, "backends", None)
        self._precision = getattr(self._backends, "fp32_precision", None)
        self._names = []

    def begin(self, training):
        """Keeps what a training with these arguments may change."""
        self.forget_training()
        if training.use_liger_kernel:
            loaded = [module for name, module in list(sys.modules.items()) if name.startswith(PATCHED) and module]
            self._names = [(module, dict(vars(module))) for module in loaded]
        if training.torch_compile:
            # Graphs of an earlier model count towards the most after which the compiler gives up without a word.
            forget_graphs()

    def forget_training(self):
        """Puts names back, and what libraries keep of the last training, such as where in its rows it was."""
        for module, names in self._names:
            now = vars(module)
            for name, value in names.items():
                if now.get(name) is not value:
                    setattr(module, name, value)
        self._names = []
        from accelerate.state import GradientState

        GradientState._reset_state()
        if (optimizers := sys.modules.get("bitsandbytes.optim")) is not None:
            # It holds embeddings, and takes parameters in their places for them from then on: those have no 8-bit states.
            optimizers.GlobalOptimManager.get_instance().initialize()

    def forget_trial(self, training):
        """Puts back what the arguments of a trial changed where they were read; `None` where none were."""
        self.forget_training()
        if training is None or not training.torch_compile:
            return
        forget_graphs()
        # With these arguments transformers has products of F32 rounded to TF32 on a GPU.
        if self._precision is not None:
            with contextlib.suppress(RuntimeError):
                self._backends.fp32_precision = self._precision


def forget_graphs():
    """Drops the graphs that PyTorch's compiler keeps."""
    if (dynamo := sys.modules.get("torch._dynamo")) is not None:
        dynamo.reset()
