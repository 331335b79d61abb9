"""A server that `wandb sync` takes for Weights & Biases: it keeps what runs send, in memory.

It answers the requests of the wandb package that sending offline runs needs: GraphQL (who one is, what the server can do,
a run made or continued, addresses for files), the stream of a run's history and summary, and uploads. What it does not know
it answers with null, and remembers under `unknown`. Checked with wandb 0.31.0.
"""

import gzip
import http.server
import json
import re
import socketserver
import sys
import threading
import urllib.parse

ENTITY = "peft-tune"


class Run:
    """What the server has of a run."""

    def __init__(self, name, project):
        self.name, self.project = name, project
        self.display_name = self.group = None
        self.config, self.summary, self.tags = {}, {}, []
        self.history = {}
        self.files = {}
        self.exit_code = None

    def answer(self):
        """As GraphQL tells it."""
        return {
            "id": self.name, "name": self.name, "displayName": self.display_name, "config": json.dumps(self.config),
            "sweepName": None, "historyLineCount": len(self.history), "stopped": False,
            "project": {"id": self.project, "name": self.project, "entity": {"id": ENTITY, "name": ENTITY}},
        }

    def stream(self, message):
        """Lines of files, each at its place, and the end."""
        for name, part in (message.get("files") or {}).items():
            lines = [line for text in part["content"] for line in text.splitlines()]
            if name == "wandb-history.jsonl":
                self.history.update(enumerate(map(json.loads, lines), part["offset"]))
            elif name == "wandb-summary.json":
                self.summary = json.loads(lines[-1])
        if message.get("complete"):
            self.exit_code = message.get("exitcode")


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *parts):
        pass

    def body(self):
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        return gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body

    def reply(self, value):
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.reply({})

    def do_POST(self):
        path = urllib.parse.urlparse(self.path).path
        body = self.body()
        if path == "/graphql":
            asked = json.loads(body)
            with self.server.lock:
                return self.reply({"data": self.graphql(asked["query"], asked.get("variables") or {})})
        stream = re.fullmatch(r"/files/([^/]+)/([^/]+)/([^/]+)/file_stream", path)
        if stream:
            _, project, name = map(urllib.parse.unquote, stream.groups())
            with self.server.lock:
                self.server.run(project, name).stream(json.loads(body))
            return self.reply({})
        self.server.unknown.append(path)
        self.reply({})

    def do_PUT(self):
        _, _, project, name, file = map(urllib.parse.unquote, self.path.split("/", 4))
        body = self.body()
        with self.server.lock:
            self.server.run(project, name).files[file] = body
        self.reply({})

    def graphql(self, query, variables):
        operation = (re.match(r"\s*(?:query|mutation)\s+(\w+)", query) or [None, "?"])[1]
        answer = getattr(self, f"on_{operation}", None)
        if answer is None:
            self.server.unknown.append(operation)
            return {}
        return answer(variables)

    def on_Viewer(self, _):
        return {"viewer": {"id": "1", "entity": ENTITY, "username": ENTITY, "flags": "{}", "email": "", "admin": False,
                           "teams": {"edges": []}}}

    def on_ServerFeaturesQuery(self, _):
        return {"serverInfo": {"features": []}}

    def on_RunResumeStatus(self, variables):
        return {"model": None}

    def on_UpsertBucket(self, variables):
        run = self.server.run(variables["project"], variables["name"])
        for key, attribute in (("displayName", "display_name"), ("groupName", "group"), ("tags", "tags")):
            if variables.get(key) is not None:
                setattr(run, attribute, variables[key])
        for key, attribute in (("config", "config"), ("summaryMetrics", "summary")):
            if variables.get(key):
                setattr(run, attribute, json.loads(variables[key]))
        return {"upsertBucket": {"bucket": run.answer(), "inserted": True}}

    def on_CreateRunFiles(self, variables):
        project, name = variables["project"], variables["run"]
        address = f"http://127.0.0.1:{self.server.server_port}/upload/{urllib.parse.quote(project)}/{name}"
        files = [{"name": file, "uploadUrl": f"{address}/{urllib.parse.quote(file)}"} for file in variables["files"]]
        return {"createRunFiles": {"runID": name, "uploadHeaders": [], "files": files}}


class WandbServer(socketserver.ThreadingMixIn, http.server.HTTPServer):
    """Answers on a free port until it is stopped."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server_port}"
        self.runs, self.unknown, self.lock = {}, [], threading.RLock()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def run(self, project, name):
        return self.runs.setdefault((project, name), Run(name, project))

    def handle_error(self, request, client_address):
        """Clients close connections as they like; anything else is told."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)

    def stop(self):
        self.shutdown()
        self.server_close()
