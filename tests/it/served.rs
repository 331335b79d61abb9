//! `infer-bench --url` against a server that speaks OpenAI's interface, and against servers that do not.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Output;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};

/// Milliseconds until the first token, and from one to the next.
const FIRST_MS: u64 = 30;
const BASE_MS: u64 = 10;
const ADAPTER_MS: u64 = 30;

/// Behaviour of a server.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Behaviour {
    /// Answers token by token.
    Streams,
    /// Does so, and lists no models.
    ListsNothing,
    /// Answers with the whole text at once.
    InOnePiece,
    /// Ends each answer behind its first token.
    OneToken,
    /// Is a page for people.
    Page,
    /// Refuses prompts.
    Refuses,
    /// Breaks off behind the first token.
    BreaksOff,
    /// Never answers.
    Hangs,
}

/// Requests that a server saw.
#[derive(Debug, Default)]
struct Seen {
    bodies: Vec<Value>,
    /// Who asks, as the requests say it.
    authorizations: Vec<String>,
    now: usize,
    most_at_once: usize,
}

/// A server on a port of its own.
struct StandIn {
    address: String,
    seen: Arc<Mutex<Seen>>,
}

impl StandIn {
    fn new(behaviour: Behaviour) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let seen = Arc::new(Mutex::new(Seen::default()));
        let shared = seen.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let shared = shared.clone();
                std::thread::spawn(move || serve(&stream.unwrap(), behaviour, &shared));
            }
        });
        Self { address, seen }
    }
}

/// Answers requests of one connection until it ends.
fn serve(stream: &TcpStream, behaviour: Behaviour, seen: &Mutex<Seen>) {
    let mut reader = BufReader::new(stream);
    loop {
        let mut first = String::new();
        if reader.read_line(&mut first).unwrap_or(0) == 0 {
            return;
        }
        let mut length = 0;
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
            if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("authorization")
            {
                seen.lock().unwrap().authorizations.push(value.trim().to_owned());
            }
            if line.trim().is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        let path = first.split(' ').nth(1).unwrap();
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        match path {
            "/v1/models" => list(stream, behaviour),
            "/v1/completions" => {
                let mut now = seen.lock().unwrap();
                now.bodies.push(body.clone());
                now.now += 1;
                now.most_at_once = now.most_at_once.max(now.now);
                drop(now);
                let goes_on = complete(stream, behaviour, &body);
                seen.lock().unwrap().now -= 1;
                if !goes_on {
                    return;
                }
            }
            path => panic!("{path}"),
        }
    }
}

fn list(stream: &TcpStream, behaviour: Behaviour) {
    let models = json!({"object": "list", "data": [{"id": "base"}, {"id": "tuned"}]}).to_string();
    match behaviour {
        Behaviour::Page => answer(stream, 200, "text/html", "<html>welcome</html>"),
        Behaviour::ListsNothing => answer(stream, 404, "application/json", "{}"),
        _ => answer(stream, 200, "application/json", &models),
    }
}

/// Answers a completion; whether the connection goes on.
fn complete(stream: &TcpStream, behaviour: Behaviour, body: &Value) -> bool {
    match behaviour {
        Behaviour::Refuses => {
            let refusal = json!({"object": "error", "message": "the prompt is too long"}).to_string();
            answer(stream, 400, "application/json", &refusal);
        }
        Behaviour::InOnePiece => {
            let whole = json!({"choices": [{"text": "a b", "finish_reason": "stop"}]}).to_string();
            answer(stream, 200, "application/json", &whole);
        }
        Behaviour::Hangs => std::thread::sleep(Duration::from_secs(20)),
        Behaviour::Page => answer(stream, 200, "text/html", "<html>welcome</html>"),
        Behaviour::Streams | Behaviour::ListsNothing | Behaviour::OneToken | Behaviour::BreaksOff => {
            return tokens(stream, behaviour, body);
        }
    }
    true
}

/// Answers with as many tokens as were asked for, or with one; whether it came to the end.
fn tokens(mut stream: &TcpStream, behaviour: Behaviour, body: &Value) -> bool {
    let head = "HTTP/1.1 200 X\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    let mut send = |data: &str| {
        let event = format!("data: {data}\n\n");
        // The other side may have gone.
        let _ = stream.write_all(format!("{:x}\r\n{event}\r\n", event.len()).as_bytes());
    };
    let wait = match body["model"].as_str().unwrap() {
        "tuned" => ADAPTER_MS,
        _ => BASE_MS,
    };
    let wanted = match behaviour {
        Behaviour::OneToken => 1,
        _ => body["max_tokens"].as_u64().unwrap(),
    };
    for token in 0..wanted {
        std::thread::sleep(Duration::from_millis(if token == 0 { FIRST_MS } else { wait }));
        let reason = (token + 1 == wanted).then_some("length");
        send(&json!({"choices": [{"text": " a", "finish_reason": reason}]}).to_string());
        if behaviour == Behaviour::BreaksOff {
            return false;
        }
    }
    let asked = body["prompt"].as_str().unwrap().split(' ').count();
    send(&json!({"choices": [], "usage": {"prompt_tokens": asked, "completion_tokens": wanted}}).to_string());
    send("[DONE]");
    let _ = stream.write_all(b"0\r\n\r\n");
    true
}

fn answer(mut stream: &TcpStream, status: u16, kind: &str, text: &str) {
    let head = format!(
        "HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n",
        text.len()
    );
    let _ = stream.write_all((head + text).as_bytes());
}

fn bench(folder: &Path, url: &str, more: &[&str]) -> Output {
    std::fs::write(folder.join("prompts.txt"), "one\n\none two three\none two\n").unwrap();
    let mut program = crate::program();
    program
        .args([
            "infer-bench",
            "--url",
            url,
            "--prompts",
            "prompts.txt",
            "--budget",
            "0s",
        ])
        .args(more)
        .current_dir(folder)
        .env_remove("OPENAI_API_KEY");
    program.output().unwrap()
}

fn text_of(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_server_is_measured_with_and_without_the_adapter() {
    let folder = tempfile::tempdir().unwrap();
    let server = StandIn::new(Behaviour::Streams);
    let common = [
        "--model",
        "base",
        "--adapter",
        "tuned",
        "--new-tokens",
        "6",
        "--batch-sizes",
        "1,4",
    ];
    let output = bench(
        folder.path(),
        &format!("{}/v1/", server.address),
        &[&common[..], &["--json"]].concat(),
    );
    assert!(output.status.success(), "{}", text_of(&output.stderr));
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let models: Vec<&str> = json
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["model"].as_str().unwrap())
        .collect();
    assert_eq!(models, ["base", "tuned"]);
    let value = |model: usize, point: usize, path: &str| {
        let value = json[model]["points"][point].pointer(path);
        value
            .and_then(Value::as_f64)
            .unwrap_or_else(|| panic!("{path}: {json}"))
    };
    for (model, wait) in [(0, BASE_MS), (1, ADAPTER_MS)] {
        for (point, requests) in [(0, 3.0), (1, 4.0)] {
            assert_eq!(value(model, point, "/requests"), requests);
            assert_eq!(value(model, point, "/new_tokens"), 6.0);
            assert!(value(model, point, "/first_token/p50_s") >= 1e-3 * FIRST_MS as f64);
            // The stand-in sleeps so long at least; on a busy machine longer. There the first token may be read late, and the
            // others then seem nearer to it.
            let least = 1e-3 * wait as f64;
            assert!(value(model, point, "/token/p50_s") >= 0.5 * least, "{json}");
            assert!(value(model, point, "/token/p95_s") >= value(model, point, "/token/p50_s"));
            assert!(value(model, point, "/request/p50_s") >= 5.0 * least);
            assert!(value(model, point, "/tokens_per_s") > 0.0);
        }
        // Prompts of one, three and two words, each once.
        assert_eq!(value(model, 0, "/prompt_tokens"), 2.0);
    }
    assert!(value(1, 0, "/token/p50_s") > value(0, 0, "/token/p50_s"), "{json}");
    assert!(value(0, 1, "/tokens_per_s") > value(0, 0, "/tokens_per_s"), "{json}");
    let seen = server.seen.lock().unwrap();
    assert!((2..=4).contains(&seen.most_at_once), "{}", seen.most_at_once);
    let sound = |body: &Value| body["stream"] == true && body["temperature"] == 0;
    assert!(seen.bodies.iter().all(sound), "{:?}", seen.bodies);
    // A first answer, and three and four requests, of each model.
    assert_eq!(seen.bodies.len(), 2 * (1 + 3 + 4));
    drop(seen);

    let output = bench(
        folder.path(),
        &server.address,
        &[&common[..], &["--svg", "curve.svg"]].concat(),
    );
    let text = text_of(&output.stdout);
    for part in [
        "at once",
        "tuned",
        "with the adapter, 4 at once: token +",
        "median time of a token",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let svg = std::fs::read_to_string(folder.path().join("curve.svg")).unwrap();
    assert_eq!(svg.matches("<circle").count(), 4);
    assert!(!folder.path().join("peft-tune.db").exists(), "nothing is stored");
}

#[test]
fn answers_of_one_token_have_no_time_of_a_token() {
    let folder = tempfile::tempdir().unwrap();
    let server = StandIn::new(Behaviour::OneToken);
    let common = ["--model", "base", "--adapter", "tuned", "--batch-sizes", "1"];
    let output = bench(folder.path(), &server.address, &[&common[..], &["--json"]].concat());
    assert!(output.status.success(), "{}", text_of(&output.stderr));
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let point = &json[0]["points"][0];
    assert_eq!((&point["token"], &point["new_tokens"]), (&Value::Null, &json!(1.0)));
    assert!(point["first_token"]["p50_s"].as_f64().unwrap() > 0.0, "{json}");

    let arguments = [&common[..], &["--svg", "curve.svg"]].concat();
    let output = bench(folder.path(), &server.address, &arguments);
    assert!(output.status.success(), "{}", text_of(&output.stderr));
    let text = text_of(&output.stdout);
    for part in ["1 at once: token not known, first token", "not in the curve"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(
        !text.contains(" 0.00 ms") && !text.contains("median time of a token"),
        "{text}"
    );
    let told = text_of(&output.stderr);
    assert!(told.contains("no drawing: no answer has a second token"), "{told}");
    assert!(!folder.path().join("curve.svg").exists());
}

#[test]
fn a_server_that_lists_nothing_is_asked_by_the_name_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let server = StandIn::new(Behaviour::ListsNothing);
    let arguments = ["--model", "any", "--new-tokens", "2", "--batch-sizes", "1", "--json"];
    let output = bench(folder.path(), &server.address, &arguments);
    assert!(output.status.success(), "{}", text_of(&output.stderr));
    assert!(text_of(&output.stderr).contains("does not list its models"));
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((json.as_array().unwrap().len(), &json[0]["form"]), (1, &json!("base")));
}

#[test]
fn what_is_no_server_is_refused_by_what_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |url: &str, more: &[&str]| {
        let common = ["--model", "base", "--new-tokens", "4", "--batch-sizes", "2"];
        let arguments = [&common[..], more].concat();
        let output = bench(folder.path(), url, &arguments);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        text_of(&output.stderr)
    };
    let cases = [
        (Behaviour::Page, "is no OpenAI-compatible server"),
        (Behaviour::Refuses, "answers 400: the prompt is too long"),
        (Behaviour::InOnePiece, "in one piece, and not as a stream"),
        (Behaviour::BreaksOff, "broke off an answer"),
    ];
    for (behaviour, message) in cases {
        let server = StandIn::new(behaviour);
        let error = refused(&server.address, &[]);
        assert!(error.contains(message), "{behaviour:?}: {error}");
    }
    let server = StandIn::new(Behaviour::Hangs);
    let error = refused(&server.address, &["--timeout", "300ms"]);
    assert!(
        error.contains("did not answer within 0.3 s; raise `--timeout`"),
        "{error}"
    );
    let server = StandIn::new(Behaviour::Streams);
    let error = refused(&server.address, &["--adapter", "missing"]);
    assert!(
        error.contains("has no model `missing`; name one that it has: base, tuned"),
        "{error}"
    );
    let error = refused(&server.address, &["--timeout", "0s"]);
    assert!(error.contains("`--timeout` leaves no time"), "{error}");
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = refused(&format!("http://{free}"), &[]);
    assert!(
        error.contains("cannot reach") && error.contains("start the server"),
        "{error}"
    );
    let error = refused("localhost:8000", &[]);
    assert!(error.contains("is no address of a server"), "{error}");
}

#[test]
fn the_password_of_an_address_is_sent_and_not_shown() {
    let folder = tempfile::tempdir().unwrap();
    let server = StandIn::new(Behaviour::Streams);
    let with_password = |address: &str| address.replace("http://", "http://user:wordpass@");
    let common = ["--model", "base", "--new-tokens", "3", "--batch-sizes", "1"];
    let output = bench(
        folder.path(),
        &with_password(&server.address),
        &[&common[..], &["--svg", "curve.svg"]].concat(),
    );
    let (text, told) = (text_of(&output.stdout), text_of(&output.stderr));
    assert!(output.status.success(), "{told}");
    let svg = std::fs::read_to_string(folder.path().join("curve.svg")).unwrap();
    assert!(svg.contains("http://(left out)@127.0.0.1"), "{svg}");
    for shown in [text, told, svg] {
        assert!(!shown.contains("wordpass"), "{shown}");
    }
    // "user:wordpass" in base 64.
    let sent = server.seen.lock().unwrap().authorizations.clone();
    assert!(!sent.is_empty());
    assert!(sent.iter().all(|one| one == "Basic dXNlcjp3b3JkcGFzcw=="), "{sent:?}");

    let page = StandIn::new(Behaviour::Page);
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for (address, message) in [
        (page.address, "is no OpenAI-compatible server"),
        (format!("http://{free}"), "cannot reach"),
    ] {
        let output = bench(folder.path(), &with_password(&address), &common);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        let error = text_of(&output.stderr);
        assert!(
            error.contains(message) && error.contains("(left out)@127.0.0.1"),
            "{error}"
        );
        assert!(!error.contains("wordpass"), "{error}");
    }
}

#[test]
fn held_out_rows_of_a_recipe_are_asked() {
    let folder = tempfile::tempdir().unwrap();
    let model = crate::generate::model_with_tokenizer(folder.path());
    let row = |row: usize| format!("{{\"prompt\": \"river {row}\", \"completion\": \" and snow\"}}\n");
    let rows: String = (0..20).map(row).collect();
    std::fs::write(folder.path().join("train.jsonl"), rows).unwrap();
    let recipe = format!(
        "model: {}\ndata: {{train: train.jsonl, held_out: 0.2}}\nadapter: {{rank: 4}}\n",
        model.display()
    );
    std::fs::write(folder.path().join("recipe.yaml"), recipe).unwrap();
    let server = StandIn::new(Behaviour::Streams);
    let arguments = ["--model", "base", "--new-tokens", "2", "--batch-sizes", "1", "--json"];
    let mut program = crate::program();
    let output = program
        .args([
            "infer-bench",
            "--url",
            &server.address,
            "--prompts",
            "recipe.yaml",
            "--budget",
            "0s",
        ])
        .args(arguments)
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text_of(&output.stderr));
    let seen = server.seen.lock().unwrap();
    let prompts = || seen.bodies.iter().map(|body| body["prompt"].as_str().unwrap());
    // A fifth of the rows, behind the first answer.
    assert_eq!(prompts().count(), 1 + 4);
    assert!(
        prompts().all(|prompt| prompt.contains("river") && !prompt.contains("snow")),
        "{:?}",
        seen.bodies
    );
}
