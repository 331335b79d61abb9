"""Programs of the command `trl`."""
