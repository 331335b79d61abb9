"""A model whose loss is a parabola of the one number that its adapter has, deeper for some tokens than for others."""

import copy
import random
from types import SimpleNamespace

from torch import Parameter, Tensor

#: Nats of the best model, and those that a training can gain of a token with the number 0.
FLOOR, GAIN = 1.0, 3.0
NO_TARGET = -100


class Model:
    def __init__(self, numbers, attention):
        self.config = SimpleNamespace(_attn_implementation=attention)
        self.weight = Parameter(4 * numbers, requires_grad=False)
        self.adapter = None
        self.training = False
        #: Nats of every token, where they are given.
        self.fixed_nats = None

    def with_adapter(self, config, seed):
        """This model with a fresh adapter."""
        self.adapter = Parameter(4 * 64 * config.r, value=0.01 * random.Random(seed).random())
        return self

    def parameters(self):
        return [self.weight] + ([] if self.adapter is None else [self.adapter])

    def named_parameters(self):
        return list(zip(("weight", "adapter"), self.parameters()))

    def buffers(self):
        return []

    def modules(self):
        return [self]

    def train(self, mode=True):
        self.training = mode
        return self

    def eval(self):
        return self.train(False)

    def distance(self):
        """How far the adapter is from the best one."""
        return 1.0 - (0.0 if self.adapter is None else self.adapter.value)

    def nats(self, token):
        if self.fixed_nats is not None:
            return self.fixed_nats
        return FLOOR + (GAIN - 0.1 * (token % 7)) * self.distance() ** 2

    def slope(self, token):
        return -2.0 * (GAIN - 0.1 * (token % 7)) * self.distance()

    def __call__(self, input_ids, labels, attention_mask=None, position_ids=None, use_cache=False, fused_lm_head=True):
        targets = [row[1:] for row in labels.rows]
        is_target = [[token != NO_TARGET for token in row] for row in targets]
        losses = [[-self.nats(token) if token != NO_TARGET else 0.0 for token in row] for row in targets]
        right = [[token != NO_TARGET and token % 7 > 7 * self.distance() for token in row] for row in targets]
        return SimpleNamespace(log_probs=Tensor(losses), label_mask=Tensor(is_target), is_top1=Tensor(right))

    def __deepcopy__(self, memo):
        other = copy.copy(self)
        other.weight = copy.deepcopy(self.weight, memo)
        return other
