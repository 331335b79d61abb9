"""A stand-in for accelerate."""
