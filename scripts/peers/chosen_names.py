"""Names that an option of a script takes, with commas between."""

import argparse


def among(noun, known):
    """The type of an option whose names are some of `known`; `noun` says in the refusal what one of them is."""

    def read(text):
        names = text.split(",")
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"no {noun} {name}; there are {', '.join(known)}")
        return names

    return read
