"""State of a process that a trainer leaves behind."""


class GradientState:
    shared = {}

    @classmethod
    def _reset_state(cls):
        cls.shared.clear()
