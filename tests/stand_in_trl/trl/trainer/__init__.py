"""Parts of the trainer."""
