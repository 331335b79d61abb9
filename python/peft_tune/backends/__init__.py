"""The worker of `backend: trl` and `unsloth`: a process that trains trials with TRL and speaks the protocol of workers.

`peft-tune worker --backend trl` starts it. Nothing here is for scripts: its names may change with any version.
"""
