"""`python -m peft_tune` is the program."""

import subprocess
import sys

from ._program import find_program

sys.exit(subprocess.call([str(find_program()), *sys.argv[1:]]))
