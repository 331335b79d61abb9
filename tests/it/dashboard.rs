//! The dashboard on a real socket, while a study runs with a stand-in for the trial process.

use std::path::Path;
use std::time::Duration;

use peft_tune::dashboard::{ConnectionLimits, Dashboard, DashboardSettings};
use peft_tune::space::{ReadOptions, Study, StudyFile};
use peft_tune::store::{Store, StudyRecord};
use peft_tune::tune::{Ending, Interrupt, Tuner, TunerParts};
use peft_tune::worker::{MockEvaluator, Task, TrialRequest};
use peft_tune_core::study::{Metrics, ParamValue, Trial, TrialState};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::report::{HOSTILE, synthetic};

const SPACE: &str = r#"
study: watched
model: some/model
data: {train: train.jsonl}
space:
  rank: [4, 8, 16]
  learning_rate: {low: 1e-4, high: 1e-2, scale: log}
trial: {sequence_length: 64, profile_steps: 2, training_steps: 3}
budget: {trials: 1}
sampler: random
"#;

/// A dashboard that is served, and how to reach it.
struct Served {
    port: u16,
    token: Option<String>,
}

async fn served(database: &Path, control: bool) -> Served {
    served_with(database, control, ConnectionLimits::default()).await
}

async fn served_with(database: &Path, control: bool, limits: ConnectionLimits) -> Served {
    let store = Store::open(database).await.unwrap();
    let settings = DashboardSettings {
        port: 0,
        study: None,
        control,
        limits,
    };
    let dashboard = Dashboard::bind(store, settings).await.unwrap();
    let url = dashboard.url();
    let port = url.trim_end_matches('/').rsplit_once(':').unwrap().1.parse().unwrap();
    let token = dashboard
        .control_url()
        .map(|url| url.split_once("#token=").unwrap().1.to_owned());
    tokio::spawn(dashboard.serve(std::future::pending()));
    Served { port, token }
}

/// An answer: status, headers as they came, body.
struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Served {
    /// Sends a request with these header lines and reads the whole answer.
    async fn send(&self, line: &str, headers: &[String], body: &str) -> Answer {
        let mut socket = TcpStream::connect(("127.0.0.1", self.port)).await.unwrap();
        let text = format!(
            "{line} HTTP/1.1\r\nConnection: close\r\nContent-Length: {}\r\n{}\r\n\r\n{body}",
            body.len(),
            headers.join("\r\n")
        );
        socket.write_all(text.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        timeout(Duration::from_secs(30), socket.read_to_end(&mut answer))
            .await
            .unwrap()
            .unwrap();
        let answer = String::from_utf8(answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        Answer {
            status: head.split(' ').nth(1).unwrap().parse().unwrap(),
            head: head.to_lowercase(),
            body: body.to_owned(),
        }
    }

    fn host(&self) -> String {
        format!("Host: 127.0.0.1:{}", self.port)
    }

    async fn get(&self, path: &str) -> Answer {
        self.send(&format!("GET {path}"), &[self.host()], "").await
    }

    async fn ask(&self, request: &Value, token: Option<&str>) -> Answer {
        let mut headers = vec![self.host(), "Content-Type: application/json".to_owned()];
        headers.extend(token.map(|token| format!("Authorization: Bearer {token}")));
        self.send("POST /api/request", &headers, &request.to_string()).await
    }
}

/// The events of a study as they come.
struct Listening(BufReader<TcpStream>);

impl Listening {
    async fn to(served: &Served) -> Self {
        let mut socket = TcpStream::connect(("127.0.0.1", served.port)).await.unwrap();
        let text = format!("GET /api/events HTTP/1.1\r\n{}\r\n\r\n", served.host());
        socket.write_all(text.as_bytes()).await.unwrap();
        Self(BufReader::new(socket))
    }

    /// The next event of this name.
    async fn next(&mut self, name: &str) -> Value {
        let wanted = format!("event: {name}");
        let mut found = false;
        loop {
            let mut line = String::new();
            let read = timeout(Duration::from_secs(30), self.0.read_line(&mut line))
                .await
                .expect("no event came");
            assert!(read.unwrap() > 0, "the stream ended");
            if line.trim_end() == wanted {
                found = true;
            } else if let Some(data) = line.strip_prefix("data: ").filter(|_| found) {
                return serde_json::from_str(data.trim_end()).unwrap();
            }
        }
    }
}

pub(crate) fn study() -> Study {
    StudyFile::parse(Path::new("space.yaml"), SPACE, ReadOptions { check_files: false }).unwrap()
}

pub(crate) fn record(study: &Study) -> StudyRecord {
    StudyRecord {
        name: study.name.clone(),
        space_path: "space.yaml".into(),
        space_text: SPACE.to_owned(),
        definition: json!({"space": study.space}),
        objectives: study.objectives.clone(),
        constraints: Vec::new(),
        seed: study.seed,
        sampler: "random".to_owned(),
        model: None,
        data_set: None,
        machine: None,
    }
}

/// Runs the study until it ends or has so many trials, each in about so many milliseconds.
pub(crate) async fn search(database: &Path, trials: u64, milliseconds: u64) -> Ending {
    let mut study = study();
    study.budget.trials = Some(trials);
    let store = Store::open(database).await.unwrap();
    let open = store.studies().begin(&record(&study)).await.unwrap();
    let measure = move |request: &TrialRequest| {
        std::thread::sleep(Duration::from_millis(milliseconds));
        let Task::Recipe { recipe, .. } = &request.task else {
            panic!("no recipe")
        };
        let rank = recipe.adapter.as_ref().unwrap().rank as f64;
        let rate = recipe.optimizer.learning_rate;
        let values = [
            ("throughput", 1000.0 / rank),
            ("peak_memory", 100.0 * rank),
            ("loss", 3.0 - rate - rank / 100.0),
        ];
        TrialState::Complete {
            metrics: Metrics::from(values),
        }
    };
    let problem = peft_tune_search::Problem {
        space: study.space.clone(),
        objectives: study.objectives.clone(),
        constraints: Vec::new(),
    };
    let parts = TunerParts {
        study: &study,
        store: &store,
        id: open.id,
        sampler: peft_tune_search::build(study.sampler.kind, &problem, study.seed).unwrap(),
        evaluator: Box::new(MockEvaluator::new(1, measure)),
        observer: &mut (),
        interrupt: Interrupt::default(),
    };
    Tuner::new(parts).await.unwrap().run().await.unwrap()
}

#[tokio::test]
async fn every_answer_is_guarded() {
    let folder = crate::folders::for_database();
    let database = folder.path().join("a.db");
    synthetic(&database, HOSTILE, 20, 2).await;
    let served = served(&database, true).await;
    for path in [
        "/",
        "/assets/page.css",
        "/assets/live.js",
        "/api/view",
        "/no-such",
        "/assets/../Cargo.toml",
    ] {
        let answer = served.get(path).await;
        for header in [
            "content-security-policy: default-src 'none'; script-src 'self'; style-src 'self';",
            "x-frame-options: deny",
            "x-content-type-options: nosniff",
            "referrer-policy: no-referrer",
            "cache-control: no-store",
        ] {
            assert!(answer.head.contains(header), "{path}: {}", answer.head);
        }
        assert!(!answer.head.contains("access-control-allow-origin"), "{path}");
    }
    let page = served.get("/").await;
    assert_eq!(page.status, 200);
    assert!(
        !page.body.contains("<script>") && !page.body.contains("<style"),
        "the page has no inline code"
    );
    assert!(!page.body.contains("alert(1)</script>"));
    assert!(
        !page.body.contains(served.token.as_ref().unwrap()),
        "the page must not tell the token"
    );
    assert_eq!(served.get("/?study=none").await.status, 404);
    let icon = served.get("/favicon.ico").await;
    assert_eq!(
        (icon.status, icon.body.starts_with("<svg")),
        (200, true),
        "{}",
        icon.body
    );
}

#[tokio::test]
async fn foreign_hosts_pages_and_guessed_tokens_are_turned_away() {
    let folder = crate::folders::for_database();
    let database = folder.path().join("a.db");
    synthetic(&database, "guarded", 3, 2).await;
    let served = served(&database, true).await;
    let token = served.token.clone().unwrap();
    let rebound = served
        .send("GET /api/view", &["Host: evil.example".to_owned()], "")
        .await;
    assert_eq!((rebound.status, rebound.body.contains("guarded")), (421, false));
    // Other pages may not even make it work, or take the places of pages that listen; a link to it may be followed.
    for (path, header, status) in [
        ("/api/events", "Origin: http://evil.example", 403),
        ("/api/view", "Origin: null", 403),
        ("/api/view", "Sec-Fetch-Site: cross-site", 403),
        ("/", "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate", 200),
        ("/api/view", "Sec-Fetch-Site: same-origin", 200),
    ] {
        let answer = served
            .send(&format!("GET {path}"), &[served.host(), header.to_owned()], "")
            .await;
        assert_eq!(answer.status, status, "{path} {header}: {}", answer.body);
    }
    let pause = json!({"kind": "pause"});
    assert_eq!(served.ask(&pause, None).await.status, 401);
    assert_eq!(served.ask(&pause, Some("guess")).await.status, 401);
    let foreign = [
        served.host(),
        "Content-Type: application/json".to_owned(),
        "Origin: http://evil.example".to_owned(),
        format!("Authorization: Bearer {token}"),
    ];
    assert_eq!(
        served
            .send("POST /api/request", &foreign, &pause.to_string())
            .await
            .status,
        403
    );
    assert_eq!(served.ask(&json!({"kind": "drop"}), Some(&token)).await.status, 422);
    let plain = [
        served.host(),
        "Content-Type: text/plain".to_owned(),
        format!("Authorization: Bearer {token}"),
    ];
    assert_eq!(
        served
            .send("POST /api/request", &plain, &pause.to_string())
            .await
            .status,
        415
    );
    let store = Store::open_read_only(&database).await.unwrap();
    let study = store.studies().find(None).await.unwrap();
    assert!(
        store.requests().waiting(study.id).await.unwrap().is_empty(),
        "nothing was asked of the study"
    );
}

#[tokio::test]
async fn a_study_in_the_place_of_a_deleted_one_has_nothing_of_it() {
    let folder = crate::folders::for_database();
    let database = folder.path().join("a.db");
    synthetic(&database, "first", 5, 4).await;
    let served = served(&database, false).await;
    let curves = async || {
        let view: Value = serde_json::from_str(&served.get("/api/view").await.body).unwrap();
        let of_training = |one: &&Value| one["name"] == "training loss";
        let count = view["curves"].as_array().unwrap().iter().filter(of_training).count();
        (view["study"]["name"].clone(), count)
    };
    assert_eq!(curves().await, (json!("first"), 5));
    let store = Store::open(&database).await.unwrap();
    let first = store.studies().find(None).await.unwrap();
    store.studies().delete(first.id, "first").await.unwrap();
    store.close().await.unwrap();
    // It gets the same number, and its trials measured no step.
    synthetic(&database, "second", 5, 0).await;
    let store = Store::open_read_only(&database).await.unwrap();
    assert_eq!(store.studies().find(None).await.unwrap().id, first.id);
    assert_eq!(curves().await, (json!("second"), 0));
}

#[tokio::test]
async fn a_dashboard_that_only_shows_takes_no_request() {
    let folder = crate::folders::for_database();
    let database = folder.path().join("a.db");
    synthetic(&database, "shown", 3, 2).await;
    let served = served(&database, false).await;
    assert_eq!(served.token, None);
    assert_eq!(served.ask(&json!({"kind": "stop"}), Some("")).await.status, 403);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_sees_trials_come_and_can_pause_enqueue_and_stop() {
    let folder = crate::folders::for_database();
    let database = folder.path().join("a.db");
    // The study must be there before a page can listen to it.
    let first = Store::open(&database).await.unwrap();
    first.studies().begin(&record(&study())).await.unwrap();
    first.close().await.unwrap();
    let served = served(&database, true).await;
    let token = served.token.clone();
    let control = async {
        let token = token.as_deref();
        let mut events = Listening::to(&served).await;
        let first = events.next("view").await;
        assert_eq!(first["whole"], true, "a page that comes back forgets what it had");
        let mut seen = first["trials"].as_array().unwrap().len();
        while seen < 4 {
            let more = events.next("view").await;
            assert_eq!(more["whole"], false);
            seen += more["trials"].as_array().unwrap().len();
        }
        let now = events.next("now").await;
        assert_eq!(now["running"], true, "{now}");
        assert!(now["sample"]["process_bytes"].as_f64().unwrap() > 0.0, "{now}");
        let outlook = &now["outlook"];
        assert_eq!(
            (&outlook["stage"], &outlook["budget_trials"]),
            (&json!("trials"), &json!(100_000))
        );
        assert!(outlook["share"].as_f64().unwrap() > 0.0, "{now}");
        assert!(outlook["left"].as_str().unwrap().ends_with(" left for trials"), "{now}");
        assert!(now["spent"].as_str().unwrap().contains(" of 100000 trials, "), "{now}");

        assert_eq!(served.ask(&json!({"kind": "pause"}), token).await.status, 202);
        while events.next("now").await["paused"] != true {}
        let outside = json!({"kind": "enqueue", "params": {"rank": 5, "learning_rate": 1e-3}});
        let refused = served.ask(&outside, token).await;
        assert_eq!(
            (
                refused.status,
                refused.body.contains("`rank` cannot be 5: give it one of 4, 8, 16")
            ),
            (422, true)
        );
        let wanted = json!({"kind": "enqueue", "params": {"rank": 8, "learning_rate": 0.00125}});
        assert_eq!(served.ask(&wanted, token).await.status, 202);
        while events.next("now").await["queue"] == json!([]) {}
        // A page has params rounded: of a copy it sends what changes, and the rest is the trial's to the last digit.
        let copy = json!({"kind": "clone", "trial": 2, "changes": {"rank": 16}});
        assert_eq!(served.ask(&copy, token).await.status, 202);
        for (request, why) in [
            (
                json!({"kind": "clone", "trial": 2, "changes": {"rank": 5}}),
                "give it one of 4, 8, 16",
            ),
            (
                json!({"kind": "clone", "trial": 999_999}),
                "the study has no trial 999999",
            ),
            (json!({"kind": "clone"}), "missing field `trial`"),
        ] {
            let refused = served.ask(&request, token).await;
            assert_eq!(
                (refused.status, refused.body.contains(why)),
                (422, true),
                "{}",
                refused.body
            );
        }
        assert_eq!(served.ask(&json!({"kind": "resume"}), token).await.status, 202);
        while events.next("now").await["queue"] != json!([]) {}
        assert_eq!(served.ask(&json!({"kind": "stop"}), token).await.status, 202);
    };
    let (ending, ()) = tokio::join!(search(&database, 100_000, 15), control);
    assert_eq!(ending, Ending::Interrupted);
    let store = Store::open_read_only(&database).await.unwrap();
    let study = store.studies().find(None).await.unwrap();
    let trials = store.history().trials(study.id).await.unwrap();
    let ran = trials
        .iter()
        .find(|trial| trial.params["learning_rate"] == ParamValue::Float(0.00125));
    assert_eq!(ran.expect("the setting ran").params["rank"], ParamValue::Int(8));
    let copied = |trial: &&Trial| trial.params["learning_rate"] == trials[2].params["learning_rate"];
    let copies: Vec<&Trial> = trials.iter().filter(copied).collect();
    let last = copies.last().expect("trial 2 itself is one");
    assert_eq!((copies.len() > 1, &last.params["rank"]), (true, &ParamValue::Int(16)));
    assert!(trials.len() < 100_000, "the search stopped before its budget was spent");
}

#[tokio::test]
async fn a_study_that_does_not_run_is_shown_so() {
    let folder = crate::folders::for_database();
    let database = folder.path().join("a.db");
    synthetic(&database, "over", 5, 2).await;
    let served = served(&database, false).await;
    let now = Listening::to(&served).await.next("now").await;
    assert_eq!(
        (&now["running"], &now["paused"], &now["trials"]),
        (&json!(false), &json!(false), &json!([]))
    );
}

/// Whether the other end closes this connection within ten seconds; what it sends until then is not read, or all of it is.
async fn is_closed(socket: &mut TcpStream) -> bool {
    let mut rest = Vec::new();
    let end = timeout(Duration::from_secs(10), socket.read_to_end(&mut rest)).await;
    end.is_ok()
}

/// Requests that a slow reader sends at once: their answers are more than a system keeps for it.
const ASKED: usize = 1000;

#[tokio::test]
async fn a_slow_client_is_let_go_and_holds_nobody_up() {
    let folder = crate::folders::for_database();
    let database = folder.path().join("a.db");
    synthetic(&database, HOSTILE, 20, 2).await;
    let limits = ConnectionLimits {
        answered_within: Duration::from_secs(2),
        idle: Duration::from_millis(600),
        taken_within: Duration::from_millis(600),
    };
    let served = served_with(&database, true, limits).await;
    let connect = || TcpStream::connect(("127.0.0.1", served.port));

    // One says nothing, one sends its request a byte at a time, and others ask for more than they take.
    let mut silent = connect().await.unwrap();
    let mut slow = connect().await.unwrap();
    let mut readers = Vec::new();
    for _ in 0..3 {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        let mut reader = socket.connect(([127, 0, 0, 1], served.port).into()).await.unwrap();
        let text = format!("GET /assets/page.css HTTP/1.1\r\n{}\r\n\r\n", served.host());
        reader.write_all(text.repeat(ASKED).as_bytes()).await.unwrap();
        readers.push(reader);
    }
    let sending = tokio::spawn(async move {
        let request = b"GET /api/view HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ";
        let mut sent = 0;
        for byte in request.iter().copied().chain(std::iter::repeat(b'x')) {
            if slow.write_all(&[byte]).await.is_err() {
                return sent;
            }
            sent += 1;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        sent
    });
    let answer = served.get("/assets/page.css").await;
    assert_eq!(answer.status, 200);
    assert!(is_closed(&mut silent).await);
    let sent = timeout(Duration::from_secs(20), sending)
        .await
        .expect("still sending")
        .unwrap();
    assert!(sent > 10, "closed after {sent} bytes");

    for reader in &mut readers {
        // That it was cut off is an error or an end, after what was underway.
        let mut taken = Vec::new();
        let _ = timeout(Duration::from_secs(30), reader.read_to_end(&mut taken))
            .await
            .expect("not cut off");
        let all = ASKED * answer.body.len();
        assert!(taken.len() < all, "{} of {all}", taken.len());
    }
    assert_eq!(served.get("/api/view").await.status, 200);
}
