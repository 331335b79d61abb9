"""The trainer without a reference."""

from ...configs import ORPOConfig  # noqa: F401
from ...preference_trainers import ORPOTrainer  # noqa: F401
