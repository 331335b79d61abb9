"""A stand-in for safetensors."""
