"""Renders and tokenises chats with transformers, to compare with. Run from this folder:

    pip install transformers==5.23.0 jinja2==3.1.6 tokenizers
    python make_golden.py

Writes rendered.json (templates x chats) and tokenised.json (the tokenizers of ../../fixtures).
"""

import datetime
import json
import pathlib

import jinja2
from transformers import AutoTokenizer
from transformers.utils import chat_template_utils

HERE = pathlib.Path(__file__).parent
FIXTURES = HERE.parent.parent / "fixtures"


class Fixed(datetime.datetime):
    """The day that this project tells templates."""

    @classmethod
    def now(cls, tz=None):
        return cls(2024, 7, 26)


def user(text):
    return {"role": "user", "content": text}


def assistant(text, **more):
    return {"role": "assistant", "content": text, **more}


TOOL = {
    "type": "function",
    "function": {
        "name": "tide",
        "description": "Height of the tide, with <b>marks</b> & 'quotes' å",
        "parameters": {"type": "object", "properties": {"hour": {"type": "integer"}}, "required": ["hour"]},
    },
}
CALL = {"type": "function", "function": {"name": "tide", "arguments": {"hour": 5, "exact": 1.0}}}
CHATS = {
    "one": [user("When does the ferry leave?"), assistant("At five.")],
    "two": [user(" How far? "), assistant("Eleven miles.\n"), user("And in fog?"), assistant(" It rings. ")],
    "system": [{"role": "system", "content": "You live by the sea."}, user("Hei på deg ☀️"), assistant("Hei!")],
    "prompt": [{"role": "system", "content": "Short."}, user("Name the knot.")],
    "thinking": [
        user("Six?"),
        assistant("<think>\nstitches\n</think>\n\nSix."),
        user("Sure?"),
        assistant("<think>\ncounted\n</think>\n\nYes."),
    ],
    "call": [user("Tide?"), assistant("", tool_calls=[CALL]), {"role": "tool", "content": "2.1"}, assistant("2.1 m")],
    "wrong": [assistant("I begin."), assistant("I go on.")],
}
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}


def render(template, messages, tools, add_generation_prompt):
    try:
        rendered, spans = chat_template_utils.render_jinja_template(
            conversations=[messages],
            chat_template=template,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            return_assistant_tokens_mask="{% generation" in template or "{%- generation" in template,
            **SPECIAL,
        )
    except jinja2.exceptions.TemplateError:
        return None
    text = rendered[0]
    # Characters to bytes.
    spans = [[len(text[:at].encode()) for at in span] for span in (spans[0] if spans else [])]
    return {"text": text, "spans": spans}


def rendered():
    cases = []
    for path in sorted((HERE / "templates").glob("*.jinja")):
        for name, messages in CHATS.items():
            for tools in [None, [TOOL]]:
                for prompt in [False, True]:
                    result = render(path.read_text(encoding="utf-8"), messages, tools, prompt)
                    case = {"template": path.name, "chat": name, "tools": tools is not None, "prompt": prompt}
                    cases.append({**case, "result": result})
    return {"chats": CHATS, "tool": TOOL, "special": SPECIAL, "cases": cases}


def tokenised():
    texts = ["The tide table.", " two  spaces", "storm på kysten ☀️\n\nnew", "a<|im_end|>b</s>c", "☀"]
    files = {}
    for folder in ["tokenizer", "tokenizer_with_bos"]:
        tokenizer = AutoTokenizer.from_pretrained(FIXTURES / folder)
        files[folder] = [{"text": text, "ids": tokenizer(text)["input_ids"]} for text in texts]
    tokenizer = AutoTokenizer.from_pretrained(FIXTURES / "tokenizer")
    marked = (HERE / "templates" / "marked.jinja").read_text(encoding="utf-8")
    chats = {}
    for name in ["one", "two", "system"]:
        encoded = tokenizer.apply_chat_template(
            CHATS[name], chat_template=marked, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
        )
        chats[name] = {"ids": encoded["input_ids"], "mask": encoded["assistant_masks"]}
    return {"texts": files, "chats": chats}


def write(name, value):
    (HERE / name).write_text(json.dumps(value, ensure_ascii=False, indent=None) + "\n", encoding="utf-8")


if __name__ == "__main__":
    chat_template_utils.datetime = Fixed
    write("rendered.json", rendered())
    write("tokenised.json", tokenised())
