"""What TRL has no command for."""
