#!/usr/bin/env python3
"""Lets a client of the Model Context Protocol use every tool of `peft-tune mcp` on the quickstart.

    pip install mcp
    scripts/peers/mcp_client.py --binary target/release/peft-tune [--trials 4]

Prints a line a tool; exits with 1 if one fails. Without the package it says so and ends. Checked with mcp 2.3.0.
"""

import argparse
import asyncio
import importlib.util
import json
import pathlib
import subprocess
import sys
import tempfile


class Failed(Exception):
    pass


async def call(client, tool, **arguments):
    """The result of a tool, as the object that it also is."""
    result = await client.call_tool(tool, arguments)
    text = " ".join(block.text for block in result.content)
    if result.is_error:
        raise Failed(f"{tool}: {text}")
    if not isinstance(result.structured_content, dict):
        raise Failed(f"{tool} answered no object: {text}")
    return result.structured_content


async def ended(client):
    """The status of the study once no process runs it."""
    while True:
        status = await call(client, "status")
        if not status["running"]:
            return status
        await asyncio.sleep(1)


async def refused(client, tool, **arguments):
    result = await client.call_tool(tool, arguments)
    if not result.is_error:
        raise Failed(f"{tool} {arguments}: it was not refused")
    print(f"{tool}: refused, {result.content[0].text.splitlines()[0]}")


async def stop_and_resume(client):
    """A search of more trials than anybody waits for is stopped at once, seen as ended, and resumed to one more."""
    status = await call(client, "search", file="quickstart.yaml", name="long", trials=500, time="1h")
    if not status["running"]:
        raise Failed(f"search: {status}")
    await refused(client, "search", file="quickstart.yaml", name="long")
    while not (await call(client, "status", study="long"))["finished"]:
        await asyncio.sleep(0.5)
    await call(client, "stop", study="long", now=True)
    stopped = await ended(client)
    await call(client, "resume", study="long", trials=stopped["finished"] + 1, time="1h")
    resumed = await ended(client)
    if resumed["finished"] <= stopped["finished"]:
        raise Failed(f"resume: {resumed}")
    print(f"stop, resume: {stopped['finished']} trials finished, then {resumed['finished']}")


async def work(client, root, trials):
    tools = [tool.name for tool in (await client.list_tools()).tools]
    print(f"tools: {', '.join(tools)}")
    plan = await call(client, "plan", file="quickstart.yaml", top=3)
    print(f"plan: {', '.join(plan)}")
    status = await call(client, "search", file="quickstart.yaml", trials=trials)
    print(f"search: study {status['study']}, running: {status['running']}")
    status = await ended(client)
    print(f"status: {status['finished']} finished, states {status['states']}")
    rows = (await call(client, "query", sql="select trial, throughput, loss from pareto_front order by loss"))["rows"]
    if not rows:
        raise Failed("query: the front is empty")
    print(f"query: a front of {len(rows)}, the least loss {rows[0]['loss']}")
    explained = await call(client, "explain")
    print(f"explain: {', '.join(explained)}")
    files = (await call(client, "export", format="peft", output="adapter"))["files"]
    rank = json.loads(pathlib.Path(files[0]).read_text())["r"]
    print(f"export: {len(files)} files, rank {rank}")
    profile = await call(client, "profile", trial=rows[0]["trial"], budget="2s")
    print(f"profile: {len(profile['profile']['ops'])} ops, {len(profile['diagnosis'])} findings")
    await stop_and_resume(client)
    await refused(client, "export", format="peft", output="adapter")
    await refused(client, "export", format="peft", output=str(root.parent / "elsewhere"))
    await refused(client, "query", sql="delete from trial")


def shorten(study):
    """Trials that are over soon."""
    text = study.read_text()
    short = text.replace("training_epochs: 1 ", "training_tokens: 2k ")
    assert short != text
    study.write_text(short + "\nconfirm: none\n")


async def run(options, root):
    from mcp import Client, StdioServerParameters

    server = StdioServerParameters(command=options.binary, args=["mcp", "--root", str(root)])
    async with Client(server) as client:
        await work(client, root, options.trials)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", default="target/release/peft-tune")
    parser.add_argument("--trials", type=int, default=4)
    options = parser.parse_args()
    if importlib.util.find_spec("mcp") is None:
        print("passed over: the package mcp is not installed (pip install mcp)")
        return 0
    options.binary = str(pathlib.Path(options.binary).resolve())
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder).resolve() / "root"
        command = [options.binary, "quickstart", "--output", str(root), "--dry-run"]
        subprocess.run(command, check=True, capture_output=True, cwd=folder)
        shorten(root / "quickstart.yaml")
        failures = []
        try:
            asyncio.run(run(options, root))
        except* Failed as failed:
            failures = [str(one) for one in failed.exceptions]
    print("\n".join(failures), end="\n" if failures else "", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
