"""peft-tune from Python: run a search, open its study, take the recommended setting as PEFT's and TRL's configs.

    import peft_tune

    study = peft_tune.search("space.yaml", trials=40)
    best = study.recommended()
    model = get_peft_model(base, best.lora_config())

The program computes everything; this package runs it and reads the JSON that it prints.
"""

from ._program import ProgramError, find_program
from ._search import search
from ._study import Study, Trial, open_study, studies

__all__ = ["ProgramError", "Study", "Trial", "find_program", "open_study", "search", "studies"]
