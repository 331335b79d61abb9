//! Data sets of the hub: a training on one, from a stand-in for the hub to the cache, and from the cache alone.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};

use crate::train::Workplace;

/// Repositories of the hub: by repository and revision, a commit and its files.
type Repositories = BTreeMap<(&'static str, &'static str), (&'static str, BTreeMap<String, Vec<u8>>)>;

const CONVERSION: &str = "refs%2Fconvert%2Fparquet";

/// A server that answers as the hub does, as far as data sets go.
struct StandIn {
    address: String,
    /// The lines of the requests.
    asked: Arc<Mutex<Vec<String>>>,
}

impl StandIn {
    fn new(repositories: Repositories) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (repositories, log) = (Arc::new(repositories), Arc::clone(&asked));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (repositories, log) = (Arc::clone(&repositories), Arc::clone(&log));
                std::thread::spawn(move || answer(stream, &repositories, &log));
            }
        });
        Self { address, asked }
    }

    fn requests(&self) -> usize {
        self.asked.lock().unwrap().len()
    }
}

/// Answers the requests of one connection.
fn answer(stream: TcpStream, repositories: &Repositories, log: &Mutex<Vec<String>>) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut stream = stream;
    loop {
        let (mut first, mut range) = (String::new(), None);
        if reader.read_line(&mut first).unwrap_or(0) == 0 {
            return;
        }
        let mut has_token = false;
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).unwrap_or(0) == 0 || line.trim().is_empty() {
                break;
            }
            let line = line.trim().to_lowercase();
            has_token |= line.starts_with("authorization: bearer secret");
            range = line.strip_prefix("range: bytes=").map(str::to_owned).or(range);
        }
        log.lock().unwrap().push(first.trim().to_owned());
        let path = first.split(' ').nth(1).unwrap_or_default();
        let path = path.split('?').next().unwrap_or_default();
        let reply = match path {
            _ if path.contains("/gated") && has_token => reply("403 Forbidden", "", b""),
            _ if path.starts_with("/api/datasets/") => listing(path, repositories),
            _ => file(path, range.as_deref(), repositories),
        };
        if stream.write_all(&reply).is_err() {
            return;
        }
    }
}

fn reply(status: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n{headers}\r\n", body.len());
    [head.as_bytes(), body].concat()
}

/// `/api/datasets/ID/revision/REVISION`
fn listing(path: &str, repositories: &Repositories) -> Vec<u8> {
    let rest = path.trim_start_matches("/api/datasets/");
    let Some((id, revision)) = rest.split_once("/revision/") else {
        return reply("404 Not Found", "", b"");
    };
    let of_id = repositories.iter().filter(|((name, _), _)| *name == id);
    for ((_, name), (commit, files)) in of_id {
        if revision == *name || revision == *commit {
            let siblings: Vec<_> = files
                .keys()
                .map(|file| serde_json::json!({"rfilename": file}))
                .collect();
            let body = serde_json::json!({"sha": commit, "siblings": siblings}).to_string();
            return reply("200 OK", "Content-Type: application/json\r\n", body.as_bytes());
        }
    }
    // The hub says so of what it does not have to those who do not say who they are; of revisions it says 404.
    match repositories.keys().any(|(name, _)| *name == id) {
        true => reply("404 Not Found", "", b""),
        false => reply("401 Unauthorized", "", b""),
    }
}

/// `/datasets/ID/resolve/COMMIT/FILE`
fn file(path: &str, range: Option<&str>, repositories: &Repositories) -> Vec<u8> {
    let rest = path.trim_start_matches("/datasets/");
    let found = rest.split_once("/resolve/").and_then(|(id, rest)| {
        let (commit, name) = rest.split_once('/')?;
        let mut of_id = repositories.iter().filter(|((name, _), _)| *name == id);
        let (_, (_, files)) = of_id.find(|(_, (known, _))| *known == commit)?;
        Some((commit, files.get(name)?))
    });
    let Some((commit, bytes)) = found else {
        return reply("404 Not Found", "", b"");
    };
    let (from, to) = range.and_then(|range| range.split_once('-')).unwrap_or(("0", ""));
    let from: usize = from.parse().unwrap_or(0);
    let to: usize = to
        .parse()
        .map_or(bytes.len(), |last: usize| (last + 1).min(bytes.len()));
    let etag = format!(
        "{commit}{:x}",
        bytes
            .iter()
            .fold(7_u64, |sum, byte| sum * 31 % 1_000_003 + u64::from(*byte))
    );
    let headers = format!(
        "ETag: \"{etag}\"\r\nX-Repo-Commit: {commit}\r\nContent-Range: bytes {from}-{}/{}\r\n",
        to.saturating_sub(1),
        bytes.len()
    );
    reply("206 Partial Content", &headers, &bytes[from..to])
}

/// A training in a folder of its own, with its own cache of the hub.
struct HubTraining {
    place: Workplace,
}

impl HubTraining {
    fn new(data: &str) -> Self {
        let place = Workplace::new(&[("data", data), ("training", "{length: {steps: 2}, shuffle: false}")]);
        Self { place }
    }

    fn hub(&self) -> PathBuf {
        self.place.path("hub")
    }

    fn rows(&self) -> Vec<u8> {
        std::fs::read(self.place.path("rows.jsonl")).unwrap()
    }

    fn train(&self, hub: &str, more: &[(&str, &str)]) -> Output {
        let mut command: Command = self.place.command(&["--output", "out", "--force", "--json"]);
        for name in ["HF_TOKEN", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"] {
            command.env_remove(name);
        }
        let command = command.env("HF_HOME", self.hub()).env("HF_ENDPOINT", hub);
        command.envs(more.iter().copied()).output().unwrap()
    }

    /// Message of a training on data that cannot be had.
    fn refused(&self, hub: &str, more: &[(&str, &str)]) -> String {
        let output = self.train(hub, more);
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{told}");
        told
    }
}

fn succeeds(output: &Output) -> Vec<serde_json::Value> {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    crate::train::lines(&output.stdout)
}

fn parquet() -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/data/tokenized.parquet");
    let mut bytes = Vec::new();
    std::fs::File::open(path).unwrap().read_to_end(&mut bytes).unwrap();
    bytes
}

#[test]
fn a_data_set_is_downloaded_once_into_the_standard_cache() {
    let place = HubTraining::new(
        "{train: hf://datasets/owner/rows, held_out: hf://datasets/owner/rows/test, format: tokenized}",
    );
    let rows = place.rows();
    let files = BTreeMap::from([
        ("README.md".to_owned(), b"# rows".to_vec()),
        ("data/train.jsonl".to_owned(), rows.clone()),
        ("data/test.jsonl".to_owned(), rows.clone()),
    ]);
    let hub = StandIn::new(BTreeMap::from([(("owner/rows", "main"), ("abc123", files))]));
    let losses = |lines: &[serde_json::Value]| crate::train::column(lines, "step", "loss");
    let first = losses(&succeeds(&place.train(&hub.address, &[])));
    let folder = place.hub().join("hub/datasets--owner--rows");
    assert_eq!(
        std::fs::read_to_string(folder.join("refs/main")).unwrap().trim(),
        "abc123"
    );
    assert_eq!(
        std::fs::read(folder.join("snapshots/abc123/data/train.jsonl")).unwrap(),
        rows
    );
    assert!(!folder.join("snapshots/abc123/README.md").exists());

    // From then on nobody is asked, and nobody need be there.
    let asked = hub.requests();
    assert_eq!(losses(&succeeds(&place.train(&hub.address, &[]))), first);
    assert_eq!(hub.requests(), asked);
    let nobody = "http://127.0.0.1:9";
    assert_eq!(
        losses(&succeeds(&place.train(nobody, &[("HF_HUB_OFFLINE", "1")]))),
        first
    );
    // The same as from the file itself.
    place.place.write_recipe(&[
        ("data", "{train: rows.jsonl, held_out: rows.jsonl, format: tokenized}"),
        ("training", "{length: {steps: 2}, shuffle: false}"),
    ]);
    assert_eq!(losses(&succeeds(&place.train(nobody, &[]))), first);
}

#[test]
fn the_conversion_is_preferred_and_has_configurations_and_splits() {
    let place = HubTraining::new(
        "{train: hf://datasets/owner/rows:en, held_out: hf://datasets/owner/rows:en/test, format: tokenized}",
    );
    let converted = BTreeMap::from([
        ("en/train/0000.parquet".to_owned(), parquet()),
        ("en/test/0000.parquet".to_owned(), parquet()),
        ("fr/train/0000.parquet".to_owned(), parquet()),
    ]);
    let own = BTreeMap::from([("rows.py".to_owned(), b"code".to_vec())]);
    let hub = StandIn::new(BTreeMap::from([
        (("owner/rows", CONVERSION), ("c0ffee", converted)),
        (("owner/rows", "main"), ("abc123", own)),
    ]));
    succeeds(&place.train(&hub.address, &[]));
    let folder = place.hub().join("hub/datasets--owner--rows");
    assert_eq!(
        std::fs::read_to_string(folder.join("refs/refs/convert/parquet"))
            .unwrap()
            .trim(),
        "c0ffee"
    );
    assert!(folder.join("snapshots/c0ffee/en/train/0000.parquet").is_file());
    assert!(!folder.join("snapshots/c0ffee/fr").exists());

    let told = |address: &str| {
        let place = HubTraining::new(&format!("{{train: {address}, held_out: 0.5, format: tokenized}}"));
        place.refused(&hub.address, &[])
    };
    let message = told("hf://datasets/owner/rows");
    for part in [
        "data.train",
        "no configuration",
        "`en`, `fr`",
        "hf://datasets/owner/rows:en",
    ] {
        assert!(message.contains(part), "{message}");
    }
    let message = told("hf://datasets/owner/rows:en/dev");
    for part in ["no split `dev`", "`test`, `train`", "hf://datasets/owner/rows:en/test"] {
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn what_cannot_be_had_is_said_with_the_remedy() {
    let place = HubTraining::new("{train: hf://datasets/owner/rows, held_out: 0.5, format: tokenized}");
    let own = BTreeMap::from([("rows.py".to_owned(), b"code".to_vec())]);
    let gated = BTreeMap::from([("train.jsonl".to_owned(), b"{}".to_vec())]);
    let hub = StandIn::new(BTreeMap::from([
        (("owner/code", "main"), ("abc123", own)),
        (("owner/gated", "main"), ("abc123", gated)),
    ]));
    let says = |told: String, parts: &[&str]| {
        for part in parts {
            assert!(told.contains(part), "{part}: {told}");
        }
    };
    let nobody = "http://127.0.0.1:9";
    says(
        place.refused(nobody, &[]),
        &["cannot reach the hub", "hf://datasets/owner/rows", "HF_HOME"],
    );
    says(
        place.refused(nobody, &[("HF_HUB_OFFLINE", "1")]),
        &["not complete in the cache", "HF_HUB_OFFLINE"],
    );
    says(
        place.refused(&hub.address, &[]),
        &["no data set hf://datasets/owner/rows", "HF_TOKEN"],
    );
    // An id without the address is a path, and the message says what to write.
    let space = "model: /m\ndata: {train: owner/rows}\nspace: {rank: [1, 2]}";
    std::fs::write(
        place.place.path("space.yaml"),
        space.replace("/m", &crate::golden::folder("ref_llama/model").display().to_string()),
    )
    .unwrap();
    let mut search = crate::program();
    let output = search
        .args(["search", "space.yaml", "--db", "a.db"])
        .current_dir(place.place.path(""))
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let told = String::from_utf8_lossy(&output.stderr)
        .split_whitespace()
        .collect::<String>();
    assert!(told.contains("hf://datasets/owner/rows"), "{told}");
    let place = HubTraining::new("{train: hf://datasets/owner/code, held_out: 0.5, format: tokenized}");
    says(
        place.refused(&hub.address, &[]),
        &["holds no Parquet", "rows.py", "to_json"],
    );
    let place = HubTraining::new("{train: hf://datasets/owner/gated, held_out: 0.5, format: tokenized}");
    let told = place.refused(&hub.address, &[("HF_TOKEN", "secret")]);
    says(told, &["refuses access", "403", "/datasets/owner/gated"]);
}
