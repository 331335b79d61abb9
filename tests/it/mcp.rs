//! `peft-tune mcp`: tools for agents, driven by the messages that a client sends.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::program;
use super::query::Results;

/// Time that a search of a few short trials may take.
const PATIENCE: Duration = Duration::from_secs(300);

/// A server and the client's end of its streams.
struct Session {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    calls: u64,
}

impl Session {
    /// Starts the program and shakes hands with it.
    fn start(root: &Path, arguments: &[&str]) -> Self {
        let mut child = program()
            .arg("mcp")
            .args(arguments)
            .current_dir(root)
            .env_remove("PEFT_TUNE_DB")
            // Trials are a stand-in's, of this many seconds.
            .env("PEFT_TUNE_MOCK", "0.2")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut session = Self {
            child,
            input,
            output,
            calls: 0,
        };
        let client = json!({"name": "test", "version": "1"});
        let hello = json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client});
        let answer = session.request("initialize", &hello);
        assert_eq!(answer["result"]["serverInfo"]["name"], "peft-tune", "{answer}");
        assert!(
            answer["result"]["instructions"]
                .as_str()
                .unwrap()
                .contains("`plan` before `search`")
        );
        session.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        session
    }

    fn send(&mut self, message: &Value) {
        writeln!(self.input.as_mut().unwrap(), "{message}").unwrap();
    }

    /// The response to a request. Every line of standard output is a message of the protocol.
    fn request(&mut self, method: &str, params: &Value) -> Value {
        self.calls += 1;
        self.send(&json!({"jsonrpc": "2.0", "id": self.calls, "method": method, "params": params}));
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        let message: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
        assert_eq!(
            (&message["jsonrpc"], &message["id"]),
            (&json!("2.0"), &json!(self.calls)),
            "{message}"
        );
        message
    }

    fn call(&mut self, tool: &str, arguments: &Value) -> Value {
        let answer = self.request("tools/call", &json!({"name": tool, "arguments": arguments}));
        answer.get("result").unwrap_or_else(|| panic!("{answer}")).clone()
    }

    /// The result of a tool: the same as text and as an object, which has the keys that its schema demands.
    fn done(&mut self, tool: &str, arguments: &Value) -> Value {
        let result = self.call(tool, arguments);
        assert_eq!(result["isError"], false, "{tool}: {result}");
        let text: Value = serde_json::from_str(result["content"][0]["text"].as_str().unwrap()).unwrap();
        match &text {
            Value::Array(_) => assert_eq!(result["structuredContent"]["rows"], text),
            _ => assert_eq!(result["structuredContent"], text),
        }
        text
    }

    /// The message of a tool that fails.
    fn refused(&mut self, tool: &str, arguments: &Value) -> String {
        let result = self.call(tool, arguments);
        assert_eq!(result["isError"], true, "{tool}: {result}");
        result["content"][0]["text"].as_str().unwrap().to_owned()
    }

    /// The status of the latest study, once no process runs it.
    fn ended(&mut self) -> Value {
        let began = Instant::now();
        loop {
            let status = self.done("status", &json!({}));
            if status["running"] == false {
                return status;
            }
            assert!(began.elapsed() < PATIENCE, "{status}");
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// The client goes: the server ends by itself, and well.
    fn close(mut self) {
        self.input = None;
        let mut rest = String::new();
        self.output.read_line(&mut rest).unwrap();
        assert_eq!(rest, "");
        assert!(self.child.wait().unwrap().success());
    }
}

/// The files of the quickstart, with trials that are over soon; a folder, and the study file's name in it.
fn quickstart() -> (tempfile::TempDir, &'static str) {
    let folder = tempfile::tempdir().unwrap();
    let mut command = program();
    command
        .args(["quickstart", "--output", ".", "--dry-run"])
        .current_dir(folder.path());
    assert!(command.env_remove("PEFT_TUNE_DB").output().unwrap().status.success());
    let path = folder.path().join("quickstart.yaml");
    let text = std::fs::read_to_string(&path).unwrap();
    let short = text.replace("training_epochs: 1 ", "training_tokens: 2k ");
    assert_ne!(short, text);
    let short = short + "\nconfirm: none\n";
    std::fs::write(path, short).unwrap();
    (folder, "quickstart.yaml")
}

#[test]
fn tools_are_listed_with_their_schemas() {
    let folder = tempfile::tempdir().unwrap();
    let mut session = Session::start(folder.path(), &[]);
    let answer = session.request("tools/list", &json!({}));
    let tools = answer["result"]["tools"].as_array().unwrap();
    let names: Vec<&str> = tools.iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    assert_eq!(
        names,
        [
            "plan", "search", "status", "stop", "resume", "explain", "query", "profile", "export"
        ]
    );
    for tool in tools {
        let schema = &tool["inputSchema"];
        assert_eq!(schema["type"], "object", "{tool}");
        assert!(tool["description"].as_str().unwrap().len() > 40, "{tool}");
        assert!(!tool["description"].as_str().unwrap().contains('\n'), "{tool}");
        assert_eq!(tool["annotations"]["destructiveHint"], false, "{tool}");
        assert_eq!(tool["outputSchema"]["type"], "object", "{tool}");
        for (name, property) in schema["properties"].as_object().unwrap() {
            assert!(property["description"].is_string(), "{name} of {tool}");
            assert_ne!(name, "force");
        }
    }
    let of = |name: &str| tools.iter().find(|tool| tool["name"] == name).unwrap();
    assert_eq!(of("plan")["inputSchema"]["required"], json!(["file"]));
    assert_eq!(of("query")["annotations"]["readOnlyHint"], true);
    assert_eq!(of("search")["annotations"]["readOnlyHint"], false);
    assert!(of("search")["inputSchema"]["properties"]["trials"].is_object());
    let formats = of("export")["inputSchema"]["properties"]["format"]["enum"]
        .as_array()
        .unwrap();
    assert!(
        formats.contains(&json!("peft")) && formats.contains(&json!("optuna")),
        "{formats:?}"
    );
    let answer = session.request("tools/call", &json!({"name": "delete", "arguments": {}}));
    assert_eq!(answer["error"]["code"], -32602, "{answer}");
    session.close();
}

#[test]
fn a_plan_and_rows_are_those_of_the_commands() {
    let (folder, file) = quickstart();
    let mut session = Session::start(folder.path(), &[]);
    let plan = session.done("plan", &json!({"file": file, "device": "L4", "top": 3}));
    let output = program()
        .args(["plan", file, "--device", "L4", "--top", "3", "--json"])
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert_eq!(plan, serde_json::from_slice::<Value>(&output.stdout).unwrap());
    session.close();

    let results = Results::new();
    let mut session = Session::start(results.folder.path(), &[]);
    let sql = "select trial, state, loss from trial_summary order by trial";
    let rows = session.done("query", &json!({ "sql": sql }));
    let shown = results.shown(&["query", sql, "--format", "json"]);
    assert_eq!(rows, serde_json::from_str::<Value>(&shown).unwrap());
    let explained = session.done("explain", &json!({"study": "quickstart"}));
    let shown = results.shown(&["explain", "quickstart", "--json"]);
    assert_eq!(explained, serde_json::from_str::<Value>(&shown).unwrap());
    session.close();
}

#[test]
fn rubbish_and_several_calls_at_once_are_answered() {
    let results = Results::new();
    let mut session = Session::start(results.folder.path(), &[]);
    for rubbish in [
        "rubbish",
        "[]",
        r#"{"a": 1}"#,
        r#"{"jsonrpc": "2.0", "method": "no/notification"}"#,
    ] {
        writeln!(session.input.as_mut().unwrap(), "{rubbish}").unwrap();
    }
    let many =
        "with recursive n(x) as (select 1 union all select x + 1 from n where x < 100000) select x, 'long' from n";
    let statements = ["select 1 as a", many, "select 3 as a", "select 4 as"];
    for (id, sql) in statements.iter().enumerate() {
        let params = json!({"name": "query", "arguments": {"sql": sql}});
        session.send(&json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}));
    }
    let mut results = vec![Value::Null; statements.len()];
    while results.iter().any(Value::is_null) {
        let mut line = String::new();
        assert_ne!(session.output.read_line(&mut line).unwrap(), 0, "{results:?}");
        let message: Value = serde_json::from_str(&line).unwrap();
        match message["id"].as_u64() {
            Some(id) => results[usize::try_from(id).unwrap()] = message["result"].clone(),
            None => assert!(message["error"]["code"].is_i64(), "{message}"),
        }
    }
    assert_eq!(results[0]["structuredContent"], json!({"rows": [{"a": 1}]}));
    let told = results[1]["content"][0]["text"].as_str().unwrap();
    assert!(results[1]["isError"] == true && told.contains("`limit`"), "{told}");
    assert_eq!(results[2]["structuredContent"], json!({"rows": [{"a": 3}]}));
    assert_eq!(results[3]["isError"], true, "{}", results[3]);
    // Of long messages the end is told, where the reason stands, and that something is left out.
    let told = session.refused("status", &json!({"study": "x".repeat(100_000)}));
    assert!(
        told.starts_with("no study `xxx") && told.ends_with("it has `quickstart`") && told.len() < 70_000,
        "{told}"
    );
    assert!(told.contains(" bytes of messages are left out]"), "{told}");
    session.close();
}

#[test]
fn what_leads_out_of_the_root_or_writes_is_refused() {
    let (outside, file) = quickstart();
    let results = Results::new();
    let root = results.folder.path();
    let before = std::fs::read(root.join("peft-tune.db")).unwrap();
    let text = std::fs::read_to_string(outside.path().join(file)).unwrap();
    let here = outside.path().display();
    let elsewhere = text
        .replace("./quickstart/base", &format!("{here}/quickstart/base"))
        .replace("quickstart/train.jsonl", &format!("{here}/quickstart/train.jsonl"))
        .replace(
            "quickstart/held_out.jsonl",
            &format!("{here}/quickstart/held_out.jsonl"),
        );
    std::fs::write(root.join("elsewhere.yaml"), &elsewhere).unwrap();
    for (name, line) in [
        ("launched", "launcher: {command: [nice]}"),
        ("sent", "track: [mlflow=http://127.0.0.1:9]"),
        ("written", "track: [tensorboard=../runs]"),
    ] {
        std::fs::write(root.join(format!("{name}.yaml")), format!("{elsewhere}\n{line}\n")).unwrap();
    }
    let mut session = Session::start(root, &[]);
    let absolute = outside.path().join(file);
    for (tool, arguments, told) in [
        ("plan", json!({"file": absolute}), "lies outside of"),
        ("search", json!({"file": "../quickstart.yaml"}), "lies outside of"),
        ("search", json!({"file": "elsewhere.yaml"}), "--also-read"),
        ("search", json!({"file": "launched.yaml"}), "--allow-commands"),
        ("search", json!({"file": "sent.yaml"}), "which an agent may not"),
        ("search", json!({"file": "written.yaml"}), "lies outside of"),
        ("profile", json!({"recipe": "/etc/hostname"}), "lies outside of"),
        (
            "export",
            json!({"format": "peft", "output": "../out"}),
            "lies outside of",
        ),
        (
            "export",
            json!({"format": "peft", "output": "out", "force": true}),
            "force",
        ),
        ("status", json!({"study": "other"}), "no study `other`"),
        ("status", json!({"study": "--help"}), "no study `--help`"),
        ("resume", json!({"study": "other"}), "no study `other`"),
        ("query", json!({"sql": "delete from trial"}), "is not allowed"),
        ("query", json!({"sql": "--output=x"}), ""),
        ("plan", json!({"file": 7}), "argument `file`: invalid type: integer"),
        (
            "search",
            json!({"file": file, "trials": "many"}),
            "argument `trials`: invalid type: string",
        ),
        ("search", json!({"file": file, "budget": 3}), "unknown field `budget`"),
        ("resume", json!({"budget": 3}), "unknown field `budget`"),
        ("plan", json!({}), "missing field `file`"),
        ("profile", json!({}), "--trial"),
        ("profile", json!({"trial": 99}), "99"),
    ] {
        let message = session.refused(tool, &arguments);
        assert!(
            message.contains(told) && !message.starts_with("error:"),
            "{tool} {arguments}: {message}"
        );
    }
    session.close();
    assert!(std::fs::read(root.join("peft-tune.db")).unwrap() == before);
    assert_eq!(std::fs::read_dir(root).unwrap().count(), 5, "nothing was written");

    let mut session = Session::start(root, &["--also-read", &here.to_string()]);
    session.done("plan", &json!({"file": "elsewhere.yaml", "device": "L4"}));
    session.close();
    let output = program()
        .args(["mcp", "--db", "../results.db"])
        .current_dir(root)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}

#[test]
fn a_search_runs_on_its_own_and_is_stopped_resumed_and_exported() {
    let (folder, file) = quickstart();
    let root = folder.path();
    let mut session = Session::start(root, &[]);
    let status = session.done("search", &json!({"file": file, "trials": 500, "time": "1h"}));
    assert_eq!(
        (&status["study"], &status["running"]),
        (&json!("quickstart"), &json!(true)),
        "{status}"
    );
    // It goes on without the server that started it, however that ended.
    session.child.kill().unwrap();
    session.child.wait().unwrap();
    let mut session = Session::start(root, &[]);
    assert_eq!(session.done("status", &json!({}))["running"], true);
    let again = session.refused("search", &json!({"file": file}));
    assert!(again.contains("quickstart"), "{again}");
    let count = "select count(*) as n from trial where state = 'complete'";
    let began = Instant::now();
    while session.done("query", &json!({ "sql": count }))[0]["n"] == 0 {
        assert!(began.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(200));
    }
    session.done("stop", &json!({"study": "quickstart", "now": true}));
    let finished = session.ended()["finished"].as_u64().unwrap();
    session.done(
        "resume",
        &json!({"study": "quickstart", "trials": finished + 1, "time": "1h"}),
    );
    assert!(session.ended()["finished"].as_u64().unwrap() > finished);

    let export = json!({"format": "peft", "output": "out/adapter"});
    let files = session.done("export", &export);
    let path = files["files"][0].as_str().unwrap();
    assert!(path.ends_with("out/adapter/adapter_config.json"), "{files}");
    let before = std::fs::read(path).unwrap();
    assert!(session.refused("export", &export).contains("is there already"));
    assert!(std::fs::read(path).unwrap() == before);
    session.close();
}
