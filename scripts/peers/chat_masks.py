#!/usr/bin/env python3
"""Compares what is trained of chats with transformers, TRL's templates for training and TRL's chat templates.

    python scripts/peers/chat_masks.py PEFT_TUNE [TEMPLATES...]

needs transformers, TRL and tokenizers. Each template of TRL that has one for training beside it renders a set of chats: with
one turn and several, with words of an answer in questions, systems and results of tools, with calls, tools and reasoning. The
program shows its rows (`peft-tune rows --json`), transformers renders the same messages. A row is compared token by token: the
ids, and which of them are learnt. Where the template for training marks other tokens, the difference has a name. What is not
the same and has no name ends the script with status 1.
"""

import collections
import datetime
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import trl
from tokenizers import AddedToken, Tokenizer
from transformers import AutoTokenizer
from transformers.utils import chat_template_utils, logging

logging.set_verbosity_error()


class OneDay(datetime.datetime):
    """The day that the program tells templates which ask for today's: tokens are the same tomorrow."""

    @classmethod
    def now(cls, tz=None):
        return cls(2024, 7, 26, tzinfo=tz)


chat_template_utils.datetime = OneDay
ROOT = pathlib.Path(__file__).resolve().parents[2]
BASE = ROOT / "search_spaces" / "quickstart" / "base"
TEMPLATES = pathlib.Path(trl.__file__).parent / "chat_templates"
CONTROL = re.compile(r"<[|｜][^<>|｜]+[|｜]>|<(?:start|end)_of_turn>|<turn\||\|turn>|<bos>|<eos>|</?s>|\[/?INST\]|<\|[a-z_]+>|<[a-z_]+\|>")


def user(text):
    return {"role": "user", "content": text}


def assistant(text, **more):
    return {"role": "assistant", "content": text, **more}


def call(name, **arguments):
    return {"type": "function", "id": "abcdefghi", "function": {"name": name, "arguments": arguments}}


def result(text):
    return {"role": "tool", "content": text, "name": "look", "tool_call_id": "abcdefghi"}


SYSTEM = {"role": "system", "content": "Be brief. yes"}
TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Looks at a place.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "a city"}}, "required": ["city"]},
    },
}

#: Chats by name; `tools` where they come with some.
CHATS = {
    "one turn": ([user("Why?"), assistant("So it is.")], None),
    "two turns": ([user("a"), assistant("b"), user("c"), assistant("d")], None),
    "the answer stands in the question": ([user("Is the sky red or blue? red it is not."), assistant("red")], None),
    "the same words everywhere": ([user("yes"), assistant("yes"), user("yes yes"), assistant("yes"), user("yes"), assistant("yes yes")], None),
    "a system": ([SYSTEM, user("yes or no?"), assistant("yes")], None),
    "a system and two turns": ([SYSTEM, user("Is it so, yes or no?"), assistant("yes"), user("Sure?"), assistant("Quite.")], None),
    "white space": ([user(" two\n\nlines \n"), assistant("\n it's so \n"), user("x"), assistant("y")], None),
    "words of templates": ([user("assistant user system"), assistant("assistant"), user("user"), assistant("user")], None),
    "reasoning": ([user("2+2?"), assistant("Four.", reasoning_content="two and two")], None),
    "reasoning in two turns": (
        [user("2+2?"), assistant("Four.", reasoning_content="two and two"), user("3+3?"), assistant("Six.", reasoning_content="three and three")],
        None,
    ),
    "reasoning in the text": ([user("2+2?"), assistant("<think>\ntwo and two\n</think>\n\nFour."), user("more"), assistant("No.")], None),
    "a call": (
        [user("How is Bern?"), assistant("", tool_calls=[call("look", city="Bern")]), result("It is 42 now."), assistant("42")],
        [TOOL],
    ),
    "two calls": (
        [
            user("Bern?"),
            assistant("", tool_calls=[call("look", city="Bern")]),
            result("rain"),
            assistant("rain"),
            user("Rome?"),
            assistant("", tool_calls=[call("look", city="Rome")]),
            result("sun"),
            assistant("sun"),
        ],
        [TOOL],
    ),
    "a call at the end": ([user("How is Bern?"), assistant("", tool_calls=[call("look", city="Bern")])], [TOOL]),
    "tools that are not called": ([user("Hi"), assistant("Hello")], [TOOL]),
    "unicode": ([user("Grüße 你好 🙂"), assistant("🙂 你好 Grüße")], None),
}


def model_of(template, folder):
    """A folder with a tokenizer that knows the special tokens of a template."""
    folder.mkdir()
    text = template.read_text(encoding="utf-8")
    tokenizer = Tokenizer.from_file(str(BASE / "tokenizer.json"))
    controls = sorted(set(CONTROL.findall(text)))
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in controls])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = json.loads((BASE / "tokenizer_config.json").read_text(encoding="utf-8"))
    config.pop("chat_template", None)
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    shutil.copy(BASE / "config.json", folder)
    (folder / "model.safetensors").symlink_to(BASE / "model.safetensors")
    (folder / "chat_template.jinja").write_text(text, encoding="utf-8")
    # As GLM's own: these turns end with the beginning of the next one.
    stops = [tokenizer.token_to_id(token) for token in ("<|user|>", "<|observation|>", "<|system|>") if "[gMASK]" in text]
    ids = {"eos_token_id": [json.loads((BASE / "config.json").read_text())["eos_token_id"], *filter(None, stops)]}
    (folder / "generation_config.json").write_text(json.dumps(ids), encoding="utf-8")


def shown_by_program(program, folder, rows):
    """Each row's ids, targets and roles; a text where it was left out."""
    data = folder / "rows.jsonl"
    data.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    recipe = folder / "recipe.yaml"
    recipe.write_text(json.dumps({
        "model": str(folder), "data": {"train": str(data), "held_out": str(data)},
        "batch": {"sequence_length": 4096},
    }), encoding="utf-8")
    ran = subprocess.run([program, "rows", str(recipe), "--json", "--count", str(len(rows))], capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        return ran.stderr.strip().splitlines()[-1]
    shown = []
    for row in json.loads(ran.stdout)["rows"]:
        if row["left_out"]:
            shown.append(row["left_out"])
        else:
            tokens = row["tokens"]
            shown.append(([token["id"] for token in tokens], [token["target"] for token in tokens], [token.get("role") for token in tokens]))
    return shown


def rendered_by_transformers(tokenizer, template, messages, tools):
    """Ids and mask; a text where transformers refuses."""
    try:
        made = tokenizer.apply_chat_template(
            messages, tools=tools, chat_template=template, return_dict=True, return_assistant_tokens_mask="generation" in template
        )
    except Exception as error:  # whatever the template raises
        return f"{type(error).__name__}: {error}"
    return made["input_ids"], made.get("assistant_masks")


def difference(ours, theirs, roles, ids, names):
    """What differs in which tokens are learnt, by name; None where nothing does."""
    more = [at for at, (our, their) in enumerate(zip(ours, theirs)) if our and not their]
    less = [at for at, (our, their) in enumerate(zip(ours, theirs)) if their and not our]
    if not more and not less:
        return None
    # The mark begins at the role's end or within the reasoning's opening; generation begins behind what the prompt gives.
    if not more and all(not ours[at] and any(ours[at:at + 24]) for at in less):
        return "the mark begins before what the prompt gives"
    # Such as the end of the turn, or what opens a tool's result, at which generation stops.
    if not less and all(roles[at] is None for at in more):
        return "the mark leaves out what the template writes behind the prompt"
    return f"learnt only here: {[names(ids[at]) for at in more]}, only there: {[names(ids[at]) for at in less]}"


def main():
    program = str(pathlib.Path(sys.argv[1]).resolve())
    asked = sys.argv[2:]
    table = collections.Counter()
    unnamed = []
    with tempfile.TemporaryDirectory() as scratch:
        for marked in sorted(TEMPLATES.glob("*_training.jinja")):
            plain = marked.with_name(marked.name.replace("_training", ""))
            name = plain.stem
            if not plain.exists() or asked and name not in asked:
                continue
            folder = pathlib.Path(scratch) / name
            model_of(plain, folder)
            tokenizer = AutoTokenizer.from_pretrained(folder)
            rows = [{"messages": messages, **({"tools": tools} if tools else {})} for messages, tools in CHATS.values()]
            # A chat that the template refuses is an error for the whole file: those are asked alone.
            for chat, row in zip(CHATS, rows):
                shown = shown_by_program(program, folder, [row])
                messages, tools = CHATS[chat]
                theirs = rendered_by_transformers(tokenizer, plain.read_text(encoding="utf-8"), messages, tools)
                where = f"{name}, {chat}"
                refused = isinstance(shown, str) or isinstance(theirs, str) and isinstance(shown[0], str)
                if isinstance(theirs, str) or refused:
                    both = isinstance(theirs, str) and refused
                    table["refused by both" if both else "refused by one"] += 1
                    if not both:
                        unnamed.append(f"{where}: refused by one: ours {shown!r:.160}, theirs {theirs!r:.160}")
                    continue
                if isinstance(shown[0], str):
                    table["left out with a reason"] += 1
                    print(f"{where}: left out: {shown[0][:150]}")
                    continue
                (ids, targets, roles), expected = shown[0], list(theirs[0])
                strangers = {role for role, target in zip(roles, targets) if target} - {None, "assistant"}
                if strangers:
                    table["texts of others learnt"] += 1
                    unnamed.append(f"{where}: texts of {strangers} are learnt")
                    continue
                appended = len(ids) == len(expected) + 1 and ids[:-1] == expected and targets[-1]
                if ids != expected and not appended:
                    table["other ids"] += 1
                    unnamed.append(f"{where}: other ids")
                    continue
                table["ids compared"] += 1
                learnt = rendered_by_transformers(tokenizer, marked.read_text(encoding="utf-8"), messages, tools)
                if isinstance(learnt, str) or list(learnt[0])[:len(expected)] != expected:
                    table["rendered otherwise for training"] += 1
                    continue
                mask = [bool(one) for one in learnt[1]]
                count = min(len(mask), len(targets))
                found = difference(targets[1:count], mask[1:count], roles[1:count], ids[1:count], lambda one: tokenizer.decode([one]))
                if found is None:
                    table["the same tokens learnt"] += 1
                elif found.startswith("learnt only"):
                    table["other tokens learnt"] += 1
                    unnamed.append(f"{where}: {found}")
                else:
                    table[found] += 1
    width = max(map(len, table))
    for name, count in sorted(table.items()):
        print(f"{name:<{width}}  {count}")
    for line in unnamed:
        print("unnamed:", line)
    sys.exit(1 if unnamed else 0)


if __name__ == "__main__":
    main()
