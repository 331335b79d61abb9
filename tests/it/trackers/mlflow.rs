//! MLflow: a file store, and a stand-in for a server that keeps what it is sent.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use super::{Bench, files};
use crate::mocked;

/// State of a server.
#[derive(Default)]
struct ServerState {
    experiments: Vec<String>,
    runs: BTreeMap<String, Value>,
    /// Every value of a metric that was ever sent.
    values: Vec<(String, Value)>,
    artifacts: BTreeMap<String, Vec<u8>>,
    requests: usize,
    /// The request that is answered with an error, counted from 1, and whether it is done before.
    fails: Option<(usize, bool)>,
}

/// A server on a port of its own, as MLflow's interface has it.
struct StandIn {
    address: String,
    kept: Arc<Mutex<ServerState>>,
}

impl StandIn {
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let kept = Arc::new(Mutex::new(ServerState::default()));
        let shared = kept.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let shared = shared.clone();
                std::thread::spawn(move || serve(&stream.unwrap(), &shared));
            }
        });
        Self { address, kept }
    }

    /// Runs that are there by their name, without those that were deleted.
    fn runs(&self) -> BTreeMap<String, Value> {
        let kept = self.kept.lock().unwrap();
        let there = kept
            .runs
            .values()
            .filter(|run| run["info"]["lifecycle_stage"] == "active");
        there
            .map(|run| (run["info"]["run_name"].as_str().unwrap().to_owned(), run.clone()))
            .collect()
    }
}

/// Answers requests of one connection until it ends.
fn serve(stream: &TcpStream, kept: &Mutex<ServerState>) {
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
            if line.trim().is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        let path = first.split(' ').nth(1).unwrap();
        let mut kept = kept.lock().unwrap();
        kept.requests += 1;
        let answer = match kept.fails.filter(|(at, _)| *at == kept.requests) {
            Some((_, is_done)) => {
                if is_done {
                    let _ = kept.answer(path, &body);
                }
                Err((500, "INTERNAL_ERROR"))
            }
            None => kept.answer(path, &body),
        };
        let (status, text) = match answer {
            Ok(answer) => (200, answer.to_string()),
            Err((status, code)) => (
                status,
                json!({"error_code": code, "message": "told by the stand-in"}).to_string(),
            ),
        };
        let head = format!(
            "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            text.len()
        );
        let mut stream = stream;
        stream.write_all((head + &text).as_bytes()).unwrap();
    }
}

impl ServerState {
    fn answer(&mut self, path: &str, body: &[u8]) -> Result<Value, (u16, &'static str)> {
        if let Some(artifact) = path.strip_prefix("/api/2.0/mlflow-artifacts/artifacts/") {
            self.artifacts.insert(artifact.to_owned(), body.to_owned());
            return Ok(json!({}));
        }
        let body: Value = serde_json::from_slice(body).unwrap_or_default();
        let method = path.strip_prefix("/api/2.0/mlflow/").unwrap();
        let run = body["run_id"].as_str().unwrap_or_default().to_owned();
        match method.split('?').next().unwrap() {
            "experiments/get-by-name" => {
                let name = method.split("experiment_name=").nth(1).unwrap();
                let found = self.experiments.iter().position(|one| one == name);
                let id = found.ok_or((404, "RESOURCE_DOES_NOT_EXIST"))?;
                Ok(json!({"experiment": {"experiment_id": id.to_string(), "name": name}}))
            }
            "experiments/create" => {
                self.experiments.push(body["name"].as_str().unwrap().to_owned());
                Ok(json!({"experiment_id": (self.experiments.len() - 1).to_string()}))
            }
            "runs/create" => {
                let id = format!("run{}", self.runs.len());
                let info = json!({
                    "run_id": id, "run_name": body["run_name"], "status": "RUNNING", "lifecycle_stage": "active",
                    "artifact_uri": format!("mlflow-artifacts:/0/{id}/artifacts"),
                });
                let run = json!({"info": info, "data": {"tags": body["tags"], "params": [], "metrics": []}});
                self.runs.insert(id, run.clone());
                Ok(json!({"run": run}))
            }
            "runs/search" => {
                let mark = body["filter"].as_str().unwrap().split('\'').nth(1).unwrap();
                let of_study = |run: &&Value| {
                    run["info"]["lifecycle_stage"] == "active"
                        && run["data"]["tags"]
                            .as_array()
                            .unwrap()
                            .iter()
                            .any(|tag| tag["value"] == mark)
                };
                Ok(json!({"runs": self.runs.values().filter(of_study).collect::<Vec<_>>()}))
            }
            "runs/log-batch" => {
                let entries = |key: &str| body[key].as_array().cloned().unwrap_or_default();
                assert!(entries("params").len() <= 100 && entries("metrics").len() <= 1000);
                for metric in entries("metrics") {
                    self.values.push((run.clone(), metric.clone()));
                    put(&mut self.runs.get_mut(&run).unwrap()["data"]["metrics"], metric);
                }
                for param in entries("params") {
                    put(&mut self.runs.get_mut(&run).unwrap()["data"]["params"], param);
                }
                for tag in entries("tags") {
                    put(&mut self.runs.get_mut(&run).unwrap()["data"]["tags"], tag);
                }
                Ok(json!({}))
            }
            "runs/set-tag" => {
                put(&mut self.runs.get_mut(&run).unwrap()["data"]["tags"], body);
                Ok(json!({}))
            }
            "runs/update" => {
                let info = &mut self.runs.get_mut(&run).unwrap()["info"];
                info["status"] = body["status"].clone();
                info["end_time"] = body["end_time"].clone();
                Ok(json!({"run_info": info}))
            }
            "runs/delete" => {
                self.runs.get_mut(&run).unwrap()["info"]["lifecycle_stage"] = json!("deleted");
                Ok(json!({}))
            }
            other => panic!("MLflow has no {other} that is used here"),
        }
    }
}

/// Takes the place of an entry of the same key.
fn put(entries: &mut Value, entry: Value) {
    let entries = entries.as_array_mut().unwrap();
    entries.retain(|one| one["key"] != entry["key"]);
    entries.push(entry);
}

fn entry<'a>(run: &'a Value, of: &str, key: &str) -> Option<&'a Value> {
    let entries = run["data"][of].as_array().unwrap();
    entries.iter().find(|one| one["key"] == key).map(|one| &one["value"])
}

#[test]
fn a_server_gets_every_value_once_whatever_is_resumed() {
    let (bench, server) = (Bench::new(), StandIn::new());
    let place = format!("mlflow={}", server.address);
    bench.said(&["search", "space.yaml", "--track", &place]);
    let runs = server.runs();
    assert_eq!(runs.keys().collect::<Vec<_>>(), ["trial 0", "trial 1", "trial 2"]);
    for run in runs.values() {
        assert_eq!(run["info"]["status"], "FINISHED");
        assert!(run["info"]["end_time"].as_i64().unwrap() > 1_600_000_000_000);
        assert!(entry(run, "params", "rank").is_some() && entry(run, "params", "learning_rate").is_some());
        assert!(entry(run, "metrics", "throughput").unwrap().as_f64().unwrap() > 0.0);
        assert_eq!(entry(run, "tags", "state").unwrap(), "complete");
    }
    assert_eq!(
        runs.values()
            .filter(|run| entry(run, "tags", "recommended").is_some())
            .count(),
        1
    );
    let (values, requests) = {
        let kept = server.kept.lock().unwrap();
        assert_eq!(kept.artifacts.len(), 3);
        assert!(
            kept.artifacts.contains_key("0/run0/artifacts/recipe.yaml"),
            "{:?}",
            kept.artifacts.keys()
        );
        (kept.values.clone(), kept.requests)
    };
    let of_first = |key: &str| {
        values
            .iter()
            .filter(|(run, one)| run == "run0" && one["key"] == key)
            .count()
    };
    assert_eq!((of_first("train_loss"), of_first("throughput")), (4, 1));
    // The search again, which has nothing left to do, and from outside: only looks.
    bench.said(&["search", "space.yaml", "--track", &place]);
    bench.said(&["track", "--to", &place]);
    let kept = server.kept.lock().unwrap();
    assert_eq!(kept.values, values);
    assert_eq!(kept.requests, requests + 4);
}

#[test]
fn whichever_request_fails_each_value_is_there_once_in_the_end() {
    let bench = Bench::new();
    bench.said(&["search", "space.yaml"]);
    for (at, is_done) in (1..12).flat_map(|at| [(at, false), (at, true)]) {
        let server = StandIn::new();
        server.kept.lock().unwrap().fails = Some((at, is_done));
        let place = format!("mlflow={}", server.address);
        let said = bench.said(&["track", "--to", &place]);
        assert!(said.contains("answers 500: INTERNAL_ERROR"), "{at}: {said}");
        assert!(said.contains("takes the study again"), "{at}: {said}");
        bench.said(&["track", "--to", &place]);
        let runs = server.runs();
        assert_eq!(runs.len(), 3, "{at} {is_done}");
        assert!(runs.values().all(|run| run["info"]["status"] == "FINISHED"));
        let kept = server.kept.lock().unwrap();
        let mut values: Vec<String> = kept.values.iter().map(|(run, one)| format!("{run} {one}")).collect();
        let sent = values.len();
        values.sort();
        values.dedup();
        assert_eq!(values.len(), sent, "{at} {is_done}: something was sent twice");
        assert_eq!(kept.runs.len(), 3, "{at} {is_done}");
    }
}

#[test]
fn a_server_that_is_not_there_leaves_the_search_alone() {
    let bench = Bench::new();
    // A port that nobody listens on.
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let place = format!("mlflow=http://{free}");
    let said = bench.said(&["search", "space.yaml", "--track", &place, "--track", "tensorboard=runs"]);
    assert_eq!(said.matches("does not take the study now").count(), 1, "{said}");
    assert!(
        said.contains("cannot reach") && said.contains("lacks 3 trials"),
        "{said}"
    );
    assert_eq!(files(&bench.path("runs")).len(), 3, "the other tracker has everything");
    assert_eq!(bench.run(&["track", "--to", &place]).status.code(), Some(1));
}

#[test]
fn a_file_store_is_what_an_export_writes_and_is_continued() {
    let bench = Bench::new();
    bench.said(&["search", "space.yaml", "--track", "mlflow=store"]);
    bench.said(&["export", "--format", "mlflow", "--output", "exported"]);
    let relative = |folder: &str| {
        let root = bench.path(folder);
        let files = files(&root).into_iter();
        let files = files.map(|(path, bytes)| (path.strip_prefix(&root).unwrap().to_owned(), bytes));
        // They hold where they lie, and the experiment's when the last run began.
        files
            .filter(|(path, _)| !path.ends_with("meta.yaml"))
            .collect::<Vec<_>>()
    };
    assert!(relative("store").len() > 30);
    assert!(relative("store") == relative("exported"));
    let whole = files(&bench.path("store"));
    let (path, bytes) = whole
        .iter()
        .find(|(path, _)| path.ends_with("metrics/train_loss"))
        .unwrap();
    for kept in [0, 3, bytes.len() / 2, bytes.len() - 1] {
        std::fs::write(path, &bytes[..kept]).unwrap();
        bench.said(&["track", "--to", "mlflow=store"]);
        assert!(files(&bench.path("store")) == whole, "after {kept} bytes");
    }
    assert_eq!(
        mocked::errors_of(&bench.run(&["track", "--to", "mlflow=sqlite:///a.db"]))
            .matches("mlflow server")
            .count(),
        1
    );
}
