"""Evaluations of a trial, and what they share with those of other trials that evaluate alike."""

import functools

from . import evaluation, rival, settings


class KnownEvaluations:
    """What evaluations found that holds for later trials of the process."""

    def __init__(self):
        #: Losses before any training, by what decides them.
        self.losses_before = {}
        #: What frozen references say of held-out answers, by what decides it; among ranks, of the micro-batches of this one.
        self.references = {}


class Evaluations:
    """Evaluations of models of one trial, all on the same held-out rows."""

    def __init__(self, of_trial, files, held_out, first_adapter, runner):
        """`of_trial` are the settings of the trial, and `runner` has what stays between trials."""
        self._settings, self._files, self._held_out = of_trial, files, held_out
        self._runner = runner
        training, model = of_trial.training, of_trial.model
        #: What decides an evaluation of a model beside what it learnt.
        self._alike = (
            of_trial.kind.name,
            settings.key_of(of_trial, files.model),
            (files.held_out, files.held_out_length),
            len(held_out),
            training.per_device_train_batch_size,
            getattr(training, "pad_to_multiple_of", None),
            (training.bf16, training.fp16, model.use_peft, model.use_dora, first_adapter),
            (training.torch_compile, training.use_liger_kernel),
        )

    def loss_before(self, made):
        """The loss of the untrained model: the same for all settings that start and are evaluated alike."""
        key = (self._alike, getattr(self._settings.training, "beta", None))
        known = self._runner.evaluated.losses_before
        if key not in known:
            known[key] = self.evaluated(made).loss
        return known[key]

    def evaluated(self, made, watch=None):
        """An evaluation; what a frozen reference says of its rows is the same in all that are alike."""
        kind, size = self._settings.kind, self._settings.training.per_device_train_batch_size
        ranks, references = self._runner.ranks, self._runner.evaluated.references
        if not kind.compares:
            return evaluation.evaluate(made, self._held_out, size, ranks, watch)
        return kind.evaluate(made, self._held_out, size, ranks, references.setdefault(self._alike, {}), watch)

    def beside(self, pairing):
        """A watch on the last evaluation, where a request compares it."""
        files = self._files
        if pairing is None:
            return None
        if self._settings.kind.compares:
            return rival.BesideRival(pairing.get("rival"), lambda: [1] * len(self._held_out))
        targets = functools.partial(self._runner.rows.targets, files.held_out, files.held_out_windows)
        return rival.BesideRival(pairing.get("rival"), targets)
