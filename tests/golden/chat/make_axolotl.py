#!/usr/bin/env python3
"""What axolotl's own chat strategy learns of chats: token ids and labels, with answers and with all roles trained.

    pip install transformers==5.16.1 pydantic          # no PyTorch
    pip download --no-deps axolotl==0.19.0 && unzip -d axolotl-0.19.0 axolotl-0.19.0-*.whl
    tests/golden/chat/make_axolotl.py axolotl-0.19.0

The strategy is axolotl's file as it is; of its neighbours it needs names only, which stand in here, since importing the
package would import PyTorch. Tokenizer and template are the quickstart's. Writes axolotl.json beside this script.
"""

import importlib.util
import json
import logging
import pathlib
import sys
import types

HERE = pathlib.Path(__file__).resolve().parent
BASE = HERE.parents[2] / "search_spaces" / "quickstart" / "base"


def system(text):
    return {"role": "system", "content": text}


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


CHATS = [
    [user("Name 3 colours"), assistant("red, blue and green.")],
    [system("You are brief."), user("What is 2 plus 3?"), assistant("It is 5."), user("Thanks"), assistant("Welcome")],
    [user("Write code"), assistant("def f(x):\n    return x\n\nprint(f(2))")],
    [user("Où est-il ? 😀"), assistant("Là-bas 😀")],
    [assistant("I begin."), user("Go on!"), assistant("No.")],
    [system("Nobody answers."), user("Hello?")],
]


class Strategy:
    def __init__(self, prompter, tokenizer, train_on_inputs, sequence_len):
        self.prompter, self.tokenizer = prompter, tokenizer
        self.train_on_inputs, self.sequence_len = train_on_inputs, sequence_len


def strategies(package):
    from pydantic import BaseModel

    stand_ins = {
        "axolotl": {},
        "axolotl.prompt_strategies": {},
        "axolotl.prompt_tokenizers": {"PromptTokenizingStrategy": Strategy},
        "axolotl.prompters": {"IGNORE_TOKEN_ID": -100, "Prompter": object},
        "axolotl.utils": {},
        "axolotl.utils.chat_templates": {"get_chat_template_from_config": None},
        "axolotl.utils.dict": {"remove_none_values": lambda value: value},
        "axolotl.utils.logging": {"get_logger": logging.getLogger},
        "axolotl.utils.schemas": {},
        "axolotl.utils.schemas.datasets": {"DatasetConfig": BaseModel},
    }
    for name, words in stand_ins.items():
        module = sys.modules[name] = types.ModuleType(name)
        module.__path__ = []
        vars(module).update(words)
    for name in ("jinja_template_analyzer", "chat_template"):
        path = package / "axolotl" / "prompt_strategies" / f"{name}.py"
        spec = importlib.util.spec_from_file_location(f"axolotl.prompt_strategies.{name}", path)
        module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return module


def rows(module, tokenizer, roles):
    words = {"role": "role", "content": "content"}
    prompter = module.ChatTemplatePrompter(
        tokenizer, chat_template=tokenizer.chat_template, message_property_mappings=words
    )
    strategy = module.ChatTemplateStrategy(
        prompter, tokenizer, train_on_inputs=False, sequence_len=512, roles_to_train=roles, train_on_eos="turn"
    )
    made = [strategy._tokenize_single_prompt({"messages": chat}) for chat in CHATS]
    return [{"ids": list(row["input_ids"]), "labels": list(row["labels"])} for row in made]


def main():
    from transformers import AutoTokenizer

    module = strategies(pathlib.Path(sys.argv[1]))
    tokenizer = AutoTokenizer.from_pretrained(str(BASE))
    golden = {
        "chats": CHATS,
        "completions": rows(module, tokenizer, ["assistant"]),
        "all": rows(module, tokenizer, ["system", "user", "assistant"]),
    }
    (HERE / "axolotl.json").write_text(json.dumps(golden) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
