#!/usr/bin/env python3
"""Compares rows of data files as they are trained with what transformers and TRL make of the same rows.

    python scripts/peers/data_files.py PEFT_TUNE [--template NAME] FILES OR FOLDERS...

needs transformers, TRL and tokenizers, and pyarrow for Parquet. The program shows the first 100 rows of each file (`peft-tune rows
--json`); this script reads the file by itself and makes tokens and targets of them with the model of the quickstart:

- chats: an answer lies between the rendering of what comes before it, with the prompt for an answer, and the rendering up to it. With
  `--template NAME` a chat template of TRL is used, and an answer is what its template for training marks;
- prompts and completions: as TRL's trainer has them, cut where the token ids of prompt and whole part;
- texts: with the end-of-text token;
- alpaca: as LLaMA-Factory makes a chat of it, and once more with the Alpaca project's prompt, for a model without a template.

A difference has a name, and the program must say it: in a warning, a reason or an error. What it does not say is silent, and ends the
script with status 1. Where the columns are of no known format, the file is read again with `data.columns`, as the error says.
`SOURCES` names files of public repositories to try.
"""

import argparse
import collections
import contextlib
import csv
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

from chat_masks import BASE, TEMPLATES, difference, model_of
from transformers import AutoTokenizer

#: Files of public repositories on GitHub.
SOURCES = """
hiyouga/LLaMA-Factory: data/*_demo.json data/*_demo.jsonl data/identity.json data/reason_tool_use_demo_50.jsonl
modelscope/ms-swift: tests/llm/data/*.{csv,json,jsonl}      pytorch/torchtune: tests/assets/*_tiny.json
axolotl-ai-cloud/axolotl: tests/fixtures/*.json tests/fixtures/alpaca/alpaca.json
InternLM/xtuner: examples/demo_data/*/data.json tests/resource/{gsm8k_train_example_data,openai_sft}.jsonl
    tests/resource/mllm_sft_text_example_data.jsonl
yangjianxin1/Firefly: data/dummy_*.jsonl data/pretrain/dummy_pretrain.jsonl
shibing624/MedicalGPT: data/{grpo,pretrain,reward,sft}/*.{jsonl,txt}
NVIDIA/NeMo-Aligner: tests/functional/test_data/{dummy-dpo,dummy-sft,synthetic-123}.jsonl
hpcaitech/ColossalAI: applications/ColossalChat/tests/test_data/{dpo,kto,sft}/*.jsonl
    applications/ColossalChat/examples/training_scripts/lora_sft_data.jsonl
openai/openai-cookbook: examples/data/{drone_training,toy_chat_fine_tuning}.jsonl
Lightning-AI/litgpt: tests/data/_fixtures/*.json            OpenBMB/MiniCPM: finetune/data/*/train.json
ml-explore/mlx-examples: {lora,wwdc25}/data/train.jsonl     lm-sys/FastChat: data/dummy_conversation.json
tatsu-lab/stanford_alpaca: seed_tasks.jsonl                 THUDM/ChatGLM-6B: improve/data_sample.jsonl
togethercomputer/finetuning: TrainMathInstruct-500.json     nlpxucan/WizardLM: Wizard{LM,Math}/data/*_test*.jsonl
LAION-AI/Open-Assistant: backend/test_data/generic/test_generic_data.json
gururise/AlpacaDataCleaned: dataset_extensions/GPTeacher/*/*-similarity_0.6*.json
yizhongw/self-instruct: data/finetuning/t0_train_50k/data_per_template/*.jsonl
"""

#: What a user would rename in files of other columns: `data.columns`, tried in this order where a row has the names.
RENAMES = [dict(pair.split("=") for pair in one.split()) for one in """
input=context output=response / output=response instruction=instruction / completion=chosen prompt=prompt
completion=chosen_response prompt=prompt / messages=chosen_messages / messages=chosen / conversations=conversation
instruction=query output=response / prompt=question completion=answer / prompt=question completion=response_j
prompt=prompt completion=response / prompt=input completion=output / instruction=toy_input output=toy_output system=toy_system
text=toy_text / text=response
""".replace("\n", " / ").strip(" /").split(" / ")]

ROLES = {"human": "user", "user": "user", "system": "system", "developer": "developer"}
ROLES |= dict.fromkeys(["gpt", "assistant", "model", "bot", "chatgpt", "chatbot", "function_call"], "assistant")
ROLES |= dict.fromkeys(["tool", "observation", "function", "ipython", "function_response"], "tool")
#: Keys that say whether a message is learnt, and what they mean where they are true.
FLAGS = {"weight": True, "loss_weight": True, "loss": True, "train": True, "training": True, "masked": False}
ALPACA = (
    "Below is an instruction that describes a task{0}. Write a response that appropriately completes the request.\n\n"
    "### Instruction:\n{1}\n\n{2}### Response:\n"
)
COUNT = 100

#: What a warning must say of a difference.
SAYS = {
    "calls as the text they came as": r"function calls that the chat template does not write",
    "an end behind the last answer": r"the chat template writes no end",
    "the system message, not the column": r"have a `system` column beside a system message",
}


def read(path):
    """Rows of a file as Python reads them."""
    if path.suffix == ".parquet":
        import pyarrow.parquet

        return pyarrow.parquet.read_table(path).slice(0, COUNT).to_pylist()
    text = path.read_text(encoding="utf-8-sig")
    if path.suffix in (".txt", ".csv"):
        return [{"text": text}] if path.suffix == ".txt" else list(csv.DictReader(text.splitlines(keepends=True)))
    try:
        whole = json.loads(text)
    except json.JSONDecodeError:
        return [json.loads(line) for line in text.split("\n") if line.strip()]
    if isinstance(whole, list) or {"conversations", "messages"} & set(whole):
        return whole if isinstance(whole, list) else [whole]
    return next((value for value in whole.values() if isinstance(value, list) and value and isinstance(value[0], dict)), [whole])


def without_null(value):
    """A value without keys that are null, however deep: files with one schema for all rows have the keys of all in each."""
    if isinstance(value, dict):
        return {key: without_null(one) for key, one in value.items() if one is not None}
    return [without_null(one) for one in value] if isinstance(value, list) else value


def text_of(content):
    """A message's text: itself, or its parts behind one another."""
    text = lambda part: part if isinstance(part, str) else part.get("text") or part.get("value") or ""  # noqa: E731
    return "".join(map(text, content)) if isinstance(content, list) else content


def chat_of(items, writes_calls, found):
    """Messages as templates want them, and whether each is learnt."""
    messages, learnt = [], []
    for item in items:
        item = {key: without_null(value) if key == "tool_calls" else value for key, value in item.items() if value is not None}
        flags = [bool(float(item.pop(key))) == means for key, means in FLAGS.items() if key in item]
        role = item.pop("role", None) or item.pop("from", "")
        content = text_of(item.pop("content", item.pop("value", None)))
        message = {"role": ROLES[role.strip().lower()], **({} if content is None else {"content": content}), **item}
        if role == "function_call" and writes_calls:
            calls = json.loads(content)
            calls = calls if isinstance(calls, list) else [calls]
            message |= {"content": "", "tool_calls": [{"type": "function", "function": call} for call in calls]}
        elif role == "function_call":
            found.add("calls as the text they came as")
        says_nothing = not (content or "").strip() and not message.get("tool_calls") and not message.get("reasoning_content")
        messages.append(message)
        learnt.append(message["role"] == "assistant" and all(flags) and not says_nothing)
    return messages, learnt


def meaning(row, renames, template, is_parquet):
    """What a row is: its kind, and what belongs to it; and names of differences that must be said."""
    row, found = dict(row), set()
    for key, name in renames.items():
        row[key] = row.pop(name, None)
    for key, items in row.items():
        if key in ("messages", "conversations", "history", "tools") and isinstance(items, str):
            row[key] = json.loads(items) if items.strip() else None
    if "input_ids" in row:
        masks = ("attention_mask", "completion_mask", "assistant_masks", "loss_mask")
        columns = [row.get(key) or [1] * len(row["input_ids"]) for key in masks]
        labels = row.get("labels") or row["input_ids"]
        kept = [token for token in zip(row["input_ids"], labels, *columns) if token[2]]
        return "ids", ([token[0] for token in kept], [token[1] if all(token[3:]) else -100 for token in kept]), found
    turns = row.get("messages") or row.get("conversations")
    if turns is not None:
        messages, learnt = chat_of(turns, "tool_calls" in template, found)
        system = row.get("system")
        if isinstance(system, str) and system.strip():
            if messages[0]["role"] != "system":
                messages, learnt = [{"role": "system", "content": system}, *messages], [False, *learnt]
            elif messages[0]["content"] != system:
                found.add("the system message, not the column")
        tools = [json.loads(tool) if isinstance(tool, str) else tool for tool in row.get("tools") or []]
        tools = without_null(tools) if is_parquet else tools
        return "chat", (messages, learnt, tools or None), found
    if "completion" in row and isinstance(row["completion"], list):
        known, learnt = chat_of([*row["prompt"], *row["completion"]], "tool_calls" in template, found)
        return "chat", (known, [at >= len(row["prompt"]) and one for at, one in enumerate(learnt)], None), found
    if "completion" in row:
        return "completion", (row.get("prompt") or "", str(row["completion"])), found
    if "instruction" not in row:
        return "text", row["text"], found
    instruction, given, output, system = (str(row.get(key) or "") for key in ("instruction", "input", "output", "system"))
    if not template:
        more = (", paired with an input that provides further context", f"### Input:\n{given}\n\n") if given else ("", "")
        opening = ALPACA.format(more[0], instruction, more[1])
        prompt = opening if not system else system + opening[opening.index("\n\n"):]
        return "completion", (prompt, output), found
    messages = [{"role": "system", "content": system}] * bool(system)
    for question, answer in row.get("history") or []:
        messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    messages += [{"role": "user", "content": "\n".join(filter(None, [instruction, given]))}, {"role": "assistant", "content": output}]
    return "chat", (messages, [message["role"] == "assistant" for message in messages], None), found


def shared(one, other):
    """Tokens that two beginnings share."""
    return len(os.path.commonprefix([list(one), list(other)]))


def of_chat(tokenizer, marked, messages, learnt, tools):
    """Ids and targets of a chat as transformers and TRL have them; targets are None where nothing marks them."""
    def render(count, **more):
        made = tokenizer.apply_chat_template(messages[:count], tools=tools, return_dict=True, **more)
        return made if more.get("return_assistant_tokens_mask") else made["input_ids"]

    ids = render(len(messages))
    if marked:
        made = render(len(messages), chat_template=marked, return_assistant_tokens_mask=True)
        answers = [one for one, message in zip(learnt, messages) if message["role"] == "assistant"]
        return ids, [bool(one) for one in made["assistant_masks"]] if made["input_ids"] == ids and all(answers) else None
    targets = [False] * len(ids)
    for at in (at for at, one in enumerate(learnt) if one):
        end = render(at + 1)
        # An empty chat cannot be rendered: what a prompt adds behind a first message opens it, too.
        start = render(at, add_generation_prompt=True) if at else render(1, add_generation_prompt=True)[len(end):]
        for token in range(shared(start, ids), shared(end, ids)):
            targets[token] = True
    return ids, targets


def expected(tokenizer, marked, row, renames, is_parquet):
    """Ids, targets and names of what must be said of one row."""
    (kind, what, found), eos = meaning(row, renames, tokenizer.chat_template or "", is_parquet), tokenizer.eos_token
    if kind == "ids":
        return what[0], [label != -100 for label in what[1]], found
    if kind == "text":
        ids = tokenizer(what if what.endswith(eos) else what + eos)["input_ids"]
        return ids, [True] * len(ids), found
    if kind == "completion":
        prompt, completion = what
        ids = tokenizer(prompt + (completion if completion.endswith(eos) else completion + eos))["input_ids"]
        start = shared(tokenizer(prompt)["input_ids"], ids)
        return ids, [at >= start for at in range(len(ids))], found
    return *of_chat(tokenizer, marked, *what), found


def ask(program, folder, path, renames, *more):
    """What the program shows, or the error that it ends with."""
    recipe = folder / "recipe.yaml"
    data = {"train": str(path), "held_out": str(path), "columns": renames}
    recipe.write_text(json.dumps({"model": str(folder), "data": data, "batch": {"sequence_length": 1 << 20}}), encoding="utf-8")
    ran = subprocess.run([program, "rows", str(recipe), "--json", *more], capture_output=True, text=True, check=False)
    if ran.returncode == 0:
        return json.loads(ran.stdout)
    return re.sub(r"^error: (\S+( (line|row) \d+)?: )?", "", ran.stderr.strip().splitlines()[-1])


def shown(program, folder, path, rows):
    """Rows of training as the program shows them, its warnings, and what was renamed; a text where it refuses the file."""
    renames = {}
    seen = ask(program, folder, path, renames, "--count", str(COUNT))
    if isinstance(seen, str) and seen.startswith("cannot tell the format"):
        renames = next((one for one in RENAMES if set(one.values()) <= set(rows[0])), {})
        seen = ask(program, folder, path, renames, "--count", str(COUNT)) if renames else seen
    if isinstance(seen, str):
        return seen, [], renames
    training = [row for row in seen["rows"] if row["set"] == "training"]
    if path.suffix == ".txt" and training:
        # One text, shown in parts; the first token of each has nothing before it there.
        parts = [[{**row["tokens"][0], "target": True}, *row["tokens"][1:]] for row in training]
        training = [{**training[0], "tokens": sum(parts, [])}]
    # Only so many tokens are shown at once.
    for at, row in enumerate(training):
        if row["hidden"]:
            training[at] = ask(program, folder, path, renames, "--row", str(row["number"]))["rows"][0]
    return training, seen["warnings"], renames


def compare(ours, theirs, tokenizer):
    """Whether ids and targets are the same, and names of what differs."""
    tokens, (ids, targets, found) = ours["tokens"], theirs
    our_ids, our_targets = [token["id"] for token in tokens], [token["target"] for token in tokens]
    if our_ids != list(ids):
        if our_ids[:-1] != list(ids):
            return False, False, found | {"other ids"}
        found = found | {"an end behind the last answer"}
        ids, targets = our_ids, None if targets is None else [*targets, True]
    if targets is None:
        return our_ids == list(theirs[0]), None, found
    # Nothing predicts the first token.
    roles = [token.get("role") for token in tokens]
    name = difference(our_targets[1:], targets[1:], roles[1:], our_ids[1:], lambda one: tokenizer.decode([one]))
    return our_ids == list(theirs[0]), name is None, found | ({name} if name else set())


def report(program, folder, tokenizer, marked, path):
    """One line of the table, and what is silent."""
    rows = [{}]
    with contextlib.suppress(ValueError):
        rows = read(path)
    training, warnings, renames = shown(program, folder, path, rows)
    names, silent, same = collections.Counter(), [], collections.Counter()
    is_alpaca = not isinstance(training, str) and isinstance(rows[0], dict) and {"instruction", "output"} <= {*rows[0], *renames}
    if isinstance(training, str):
        names[f"refused: {training.split(';')[0][:110]}"] += 1
        training = []
    elif len(training) != min(len(rows), COUNT):
        silent.append(f"{path.name}: {len(training)} rows of {len(rows)}")
    for ours, row in zip(training, rows):
        if ours["hidden"] or ours["left_out"]:
            names[f"left out: {ours['left_out'][:90]}" if ours["left_out"] else "more tokens than are shown"] += 1
            continue
        same["rows"] += 1
        try:
            theirs = expected(tokenizer, marked, row, renames, path.suffix == ".parquet")
        except Exception as error:  # whatever a template raises
            silent.append(f"{path.name} row {ours['number']}: refused there only: {error!r}"[:200])
            continue
        same_ids, same_targets, found = compare(ours, theirs, tokenizer)
        same.update({"ids": same_ids, "targets": bool(same_targets), "unmarked": same_targets is None})
        for name in found:
            names[name[:90]] += 1
            # Where marks begin and end, chat_masks.py compares for all templates.
            is_known = marked and name.startswith("the mark ")
            if not is_known and not any(re.search(SAYS.get(name, "^$"), warning) for warning in warnings):
                silent.append(f"{path.name} row {ours['number']}: {name[:300]}")
    return (path.name, same["rows"], same["ids"], same["targets"], same["unmarked"], names, is_alpaca), silent


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--template", help="a chat template of TRL that has one for training beside it, such as qwen3")
    parser.add_argument("files", nargs="+", type=pathlib.Path)
    asked = parser.parse_args()
    program = str(pathlib.Path(asked.program).resolve())
    files = [file.resolve() for one in asked.files for file in (sorted(one.iterdir()) if one.is_dir() else [one])]
    lines, silent, total = [], [], collections.Counter()
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["PEFT_TUNE_CACHE"] = str(pathlib.Path(scratch) / "cache")
        folders = [pathlib.Path(scratch) / "chat", pathlib.Path(scratch) / "plain"]
        marked = None
        if asked.template:
            model_of(TEMPLATES / f"{asked.template}.jinja", folders[0])
            marked = (TEMPLATES / f"{asked.template}_training.jinja").read_text(encoding="utf-8")
        else:
            shutil.copytree(BASE, folders[0])
        shutil.copytree(BASE, folders[1])
        config = json.loads((BASE / "tokenizer_config.json").read_text(encoding="utf-8"))
        (folders[1] / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": None}), encoding="utf-8")
        for path in files:
            for folder in folders:
                if folder.name == "plain" and not lines[-1][0][-1]:
                    continue
                line, said = report(program, folder, AutoTokenizer.from_pretrained(folder), marked, path)
                lines.append((line, folder.name))
                silent += said
    width = max(len(line[0]) for line, _ in lines) + 8
    print(f"{'file':<{width}} {'rows':>5} {'ids':>5} {'targets':>7}  differences")
    for (name, rows, ids, targets, unmarked, names, _), folder in lines:
        told = "; ".join(f"{count} {name}" for name, count in names.most_common())
        told += f"{'; ' * bool(told)}{unmarked} without marks to compare" if unmarked else ""
        print(f"{name + (' (plain)' if folder == 'plain' else ''):<{width}} {rows:>5} {ids:>5} {targets:>7}  {told}")
        total.update({"rows": rows, "ids": ids, "targets": targets, "without marks": unmarked, "files": folder == "chat"})
    print("all:", ", ".join(f"{count:d} {name}" for name, count in total.items()))
    print(*(f"silent: {line}" for line in silent), sep="\n")
    raise SystemExit(1 if silent else 0)


if __name__ == "__main__":
    main()
