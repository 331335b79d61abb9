"""Every form that a file of rows can have, filled with sums and colours: what `exported_rows.py` exports and compares.

A form is rows and what the study says of them. Among the rows of each are some that end within the sequence length,
some whose answer does not, and one whose question alone does not. No chance and no network are involved.
"""

import csv
import dataclasses
import json
import subprocess

COLOURS = "red blue green yellow black white brown grey pink orange violet gold silver ivory olive".split()

#: Writes tools, calls and reasoning, which the quickstart's own template does not.
TEMPLATE = """\
{%- if tools %}<|im_start|>system
Tools:{% for tool in tools %} {{ tool.function.name }}{% endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{% if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>
{% endif %}{{ message.content or '' }}
{%- for call in message.tool_calls or [] %}<call>{{ call.function | tojson }}</call>{% endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
#: Turns without the names of roles.
PLAIN_TEMPLATE = """\
{%- for message in messages %}{{ 'Q: ' if message.role == 'user' else 'A: ' if message.role == 'assistant' else 'S: ' }}
{{- message.content }}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}A: {% endif %}"""
TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    },
}


def colours(count, start):
    return " ".join(COLOURS[(start + at) % len(COLOURS)] for at in range(count))


def pair(at):
    """A question and its answer: one of five answers is long, one of twenty questions longer than usual lengths."""
    if at % 20 == 7:
        return f"Say the last of {colours(60, at)}.", COLOURS[at % len(COLOURS)]
    if at % 5 == 3:
        return f"Name {20 + at} colours.", colours(20 + at, at) + "."
    if at % 2:
        return f"Name {at % 4 + 1} colours, no more.", colours(at % 4 + 1, at) + "."
    return f"What is {at} plus {3 * at + 1}?", f"It is {4 * at + 1}."


def user(text):
    return {"role": "user", "content": text}


def assistant(text, **more):
    return {"role": "assistant", "content": text, **more}


def human(text):
    return {"from": "human", "value": text}


def gpt(text):
    return {"from": "gpt", "value": text}


def turns(at):
    """Questions and answers in turn, of which later rows have more."""
    return [pair(at), *(pair(2 * (at + more) + 2) for more in range(at % 3))]


SYSTEM = "You are brief."


def chat(at, **more):
    return [message for question, answer in turns(at) for message in (user(question), assistant(answer, **more))]


def calling(at):
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": at}}}
    result = {"role": "tool", "content": str(at + 1)}
    return [user(f"Add {at}."), assistant("", tool_calls=[call]), result, assistant(f"It is {at + 1}.")]


def masked(at):
    """Of two answers the first is not to be learnt; two names of the same mark, by turns."""
    (question, answer), (next_question, next_answer) = pair(at), pair(at + 40)
    mask = {"train": False} if at % 2 else {"weight": 0}
    return [user(question), assistant(answer, **mask), user(next_question), assistant(next_answer)]


def token_ids(at):
    count = 20 if at % 5 else 150
    ids = [300 + (7 * at + 3 * place) % 600 for place in range(count)]
    return {"input_ids": ids, "labels": [-100 if place < 6 else token for place, token in enumerate(ids)]}


@dataclasses.dataclass
class Form:
    """What stands in one row, and what the study says of the data."""

    row: object
    data: dict = dataclasses.field(default_factory=dict)
    template: str = None
    files: int = 1
    extension: str = "jsonl"
    held_out: object = None


def alpaca(at, **more):
    question, answer = pair(at)
    return {"instruction": question, "output": answer, **more}


def plain(at):
    question, answer = pair(at)
    return {"prompt": question + "\n", "completion": answer}


def renamed(row, **names):
    return lambda at: {names.get(key, key): value for key, value in row(at).items()}


def columns(**names):
    return {"columns": names}


def one_turn(at):
    question, answer = pair(at)
    return {"messages": [user(question), assistant(answer)]}


def sharegpt(at):
    return {"conversations": [one for question, answer in turns(at) for one in (human(question), gpt(answer))]}


ALL = {"loss_on": "all"}
STOPS = {"template_targets": "stop_tokens"}

OF_PLAIN = {"prompt": "question", "completion": "answer"}
OF_ALPACA = {"instruction": "question", "output": "answer"}
FORMS = {
    "messages": Form(one_turn),
    "messages-turns": Form(lambda at: {"messages": chat(at)}),
    "messages-system": Form(lambda at: {"messages": [{"role": "system", "content": SYSTEM}, *chat(at)]}),
    "messages-all": Form(lambda at: {"messages": chat(at)}, ALL),
    "messages-stops": Form(lambda at: {"messages": chat(at)}, STOPS),
    "messages-stops-all": Form(lambda at: {"messages": chat(at)}, {**ALL, **STOPS}),
    "messages-mask": Form(lambda at: {"messages": masked(at)}),
    "messages-tools": Form(lambda at: {"messages": calling(at), "tools": [TOOL]}, template=TEMPLATE),
    "messages-reasoning": Form(lambda at: {"messages": chat(at, reasoning_content="Let me see.")}, template=TEMPLATE),
    "messages-template": Form(lambda at: {"messages": chat(at)}, template=PLAIN_TEMPLATE),
    "messages-columns": Form(renamed(one_turn, messages="talk"), columns(messages="talk")),
    "messages-files": Form(lambda at: {"messages": chat(at)}, files=2),
    "messages-parquet": Form(lambda at: {"messages": chat(at)}, extension="parquet"),
    "messages-max-rows": Form(lambda at: {"messages": chat(at)}, {"max_rows": 9}),
    "messages-fraction": Form(lambda at: {"messages": chat(at)}, held_out=0.2),
    "sharegpt": Form(sharegpt),
    "sharegpt-system": Form(lambda at: {"system": SYSTEM, **sharegpt(at)}),
    "plain": Form(plain),
    "plain-all": Form(plain, ALL),
    "plain-columns": Form(renamed(plain, **OF_PLAIN), columns(**OF_PLAIN)),
    "plain-csv": Form(plain, extension="csv"),
    "plain-messages": Form(lambda at: {"prompt": [user(pair(at)[0])], "completion": [assistant(pair(at)[1])]}),
    "alpaca": Form(alpaca),
    "alpaca-input": Form(lambda at: alpaca(at, input=colours(at % 4, at))),
    "alpaca-history": Form(lambda at: alpaca(at, history=[list(pair(at + 40))])),
    "alpaca-system": Form(lambda at: alpaca(at, system=SYSTEM)),
    "alpaca-columns": Form(renamed(alpaca, **OF_ALPACA), columns(**OF_ALPACA)),
    "text": Form(lambda at: {"text": " ".join(pair(at))}),
    "text-all": Form(lambda at: {"text": " ".join(pair(at))}, ALL),
    "tokenized": Form(token_ids),
    "tokenized-all": Form(lambda at: {"input_ids": token_ids(at)["input_ids"]}),
}


def write_rows(path, rows, python):
    """Writes rows as the file's extension says; Parquet by the interpreter that has `pyarrow`."""
    if path.suffix == ".csv":
        with open(path, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        return
    lines = path.with_suffix(".jsonl")
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    if path.suffix == ".parquet":
        convert = "import sys, pyarrow.json as j, pyarrow.parquet as p\n"
        convert += "p.write_table(j.read_json(sys.argv[1]), sys.argv[2])"
        subprocess.run([python, "-c", convert, lines, path], check=True)
        lines.unlink()
