//! Models, data and databases come from others: none of them may end or starve the program.

use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::bench::{Bench, messages};
use super::study::with_own_model;

const SPACE: &str = "
space: {rank: [2, 4], precision: fp32, learning_rate: 1e-3}
trial: {sequence_length: 64, profile_steps: 1, training_steps: 2, evaluation: {rows: 2}}
budget: {trials: 2}
confirm: none
";

/// Longest time that any input may cost.
const MOST: Duration = Duration::from_secs(60);

/// A search on a model with these changes: what it says, within a time that is no hang.
fn searched(change: impl FnOnce(&Bench)) -> (Option<i32>, String) {
    let bench = with_own_model(SPACE);
    change(&bench);
    let mut search = bench.search("0", &[]);
    search.env("PEFT_TUNE_ROW_TIMEOUT_S", "3");
    let mut search = Bench::start(search);
    let began = Instant::now();
    while search.try_wait().unwrap().is_none() {
        if began.elapsed() > MOST {
            search.kill().unwrap();
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let output = search.wait_with_output().unwrap();
    (output.status.code(), messages(&output))
}

fn with_template(template: &str) -> (Option<i32>, String) {
    searched(|bench| std::fs::write(bench.path("base/chat_template.jinja"), template).unwrap())
}

#[test]
fn a_template_ends_neither_the_program_nor_the_machine_s_memory() {
    let doubling =
        "{% set ns = namespace(s='x') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s }}";
    let (code, said) = with_template(doubling);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("takes more than") || said.contains("MiB"), "{said}");
    let endless = "{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}";
    let (code, said) = with_template(endless);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("chat template"), "{said}");
    let slow = "{% for i in range(90000) %}{% set x = ('a' * 50000000) | replace('a', 'b') | length %}{% endfor %}x";
    let (code, said) = with_template(slow);
    assert_eq!(code, Some(2), "{said}");
    assert!(
        said.contains("does not come to an end") || said.contains("takes more than"),
        "{said}"
    );
    for deep in [
        format!("{{{{ 1{} }}}}", "+1".repeat(100_000)),
        "{% if x %}".repeat(100_000),
        format!("{{{{ {}1 }}}}", "-".repeat(100_000)),
    ] {
        let (code, said) = with_template(&deep);
        assert_eq!(code, Some(2), "{said}");
        assert!(said.contains("does not compile"), "{said}");
    }
}

/// Changes a model's tokenizer.
fn with_tokenizer(change: impl FnOnce(&mut Value)) -> (Option<i32>, String) {
    searched(|bench| {
        let path = bench.path("base/tokenizer.json");
        let mut tokenizer: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        change(&mut tokenizer);
        std::fs::write(&path, tokenizer.to_string()).unwrap();
    })
}

#[test]
fn a_tokenizer_that_panics_or_multiplies_its_text_is_refused() {
    let replace =
        |pattern: &str, content: &str| json!({"type": "Replace", "pattern": {"String": pattern}, "content": content});
    // Whether these are wrong is for the library to say; the program goes on either way.
    for normalizer in [
        replace("", "x"),
        json!({"type": "Precompiled", "precompiled_charsmap": "AAAA"}),
        json!({"type": "Replace", "pattern": {"Regex": "(a*)*b"}, "content": "x"}),
    ] {
        let (code, said) = with_tokenizer(|tokenizer| tokenizer["normalizer"] = normalizer.clone());
        assert!(matches!(code, Some(0 | 2)), "{normalizer}: {said}");
    }
    let doubling: Vec<Value> = (0..40).map(|_| replace("e", "ee")).collect();
    let (code, said) = with_tokenizer(|tokenizer| {
        tokenizer["normalizer"] = json!({"type": "Sequence", "normalizers": doubling});
    });
    assert_eq!(code, Some(2), "{said}");
    assert!(
        said.contains("takes more than") || said.contains("does not come to an end"),
        "{said}"
    );
}

#[test]
fn a_prompt_meets_a_hostile_tokenizer_in_a_process_of_its_own() {
    let bench = with_own_model(SPACE);
    let path = bench.path("base/tokenizer.json");
    let mut tokenizer: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let doubling = json!({"type": "Replace", "pattern": {"String": "e"}, "content": "ee"});
    tokenizer["normalizer"] = json!({"type": "Sequence", "normalizers": vec![doubling; 40]});
    std::fs::write(&path, tokenizer.to_string()).unwrap();
    let mut generate = bench.command(&["generate", "--model", "./base", "--prompt", "e", "--max-tokens", "1"]);
    let output = generate.env("PEFT_TUNE_ROW_TIMEOUT_S", "3").output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", messages(&output));
    let said = messages(&output);
    assert!(
        said.contains("takes more than") || said.contains("does not come to an end"),
        "{said}"
    );
}

#[test]
fn a_variable_that_cannot_be_read_is_refused_before_anything_runs() {
    let bench = with_own_model(SPACE);
    for (name, value) in [
        ("PEFT_TUNE_ROW_TIMEOUT_S", "10 minutes"),
        ("PEFT_TUNE_CACHE_GIB", "-1"),
        ("PEFT_TUNE_READING_LINE_S", "1s"),
        ("PEFT_TUNE_GPU_CHECK_SECONDS", "5m"),
        ("PEFT_TUNE_PRODUCTS", "last"),
        ("RAYON_NUM_THREADS", "two"),
    ] {
        let output = bench.search("0", &[]).env(name, value).output().unwrap();
        let said = messages(&output);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(&format!("{name}=`{value}`: set it to ")), "{said}");
    }
    assert!(!bench.path("study.db").exists());
    // A variable that is set to nothing is not set.
    let empty = bench
        .command(&["rows", "space.yaml"])
        .env("PEFT_TUNE_CACHE_GIB", "")
        .output()
        .unwrap();
    assert_eq!(empty.status.code(), Some(0), "{}", messages(&empty));
    let unlogged = bench
        .command(&["rows", "space.yaml"])
        .env("RUST_LOG", "loud")
        .output()
        .unwrap();
    assert!(
        messages(&unlogged).contains("RUST_LOG is passed over: `loud`"),
        "{}",
        messages(&unlogged)
    );
}

#[test]
fn files_without_end_are_refused() {
    for name in [
        "base/config.json",
        "base/tokenizer.json",
        "base/tokenizer_config.json",
        "space.yaml",
    ] {
        let (code, said) = searched(|bench| {
            std::fs::remove_file(bench.path(name)).unwrap_or_default();
            std::os::unix::fs::symlink("/dev/zero", bench.path(name)).unwrap();
        });
        assert_eq!(code, Some(2), "{name}: {said}");
    }
    // A row of 64 MB.
    let (code, said) = searched(|bench| {
        let row = format!("{{\"text\": \"{}\"}}\n", "word ".repeat(13 << 20));
        std::fs::write(bench.path("long.jsonl"), row).unwrap();
        let text = std::fs::read_to_string(bench.path("space.yaml")).unwrap();
        let from = text.find("data: ").unwrap();
        let to = from + text[from..].find('\n').unwrap();
        let own = text.replace(&text[from..to], "data: {train: long.jsonl, held_out: long.jsonl}");
        std::fs::write(bench.path("space.yaml"), own).unwrap();
    });
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("more than 32 MiB"), "{said}");
}

fn shell(bench: &Bench, line: &str) -> Output {
    let line = line.replace("peft-tune", env!("CARGO_BIN_EXE_peft-tune"));
    let mut command = Command::new("bash");
    command.args(["-c", &line]).current_dir(bench.path(""));
    command.env("PEFT_TUNE_DB", bench.path("study.db")).output().unwrap()
}

#[test]
fn output_that_nobody_takes_is_no_panic() {
    let bench = Bench::of(SPACE);
    Bench::succeed(bench.search("0", &["--trials", "3"]));
    for command in [
        "schema",
        "schema names",
        "completions bash",
        "studies",
        "show",
        "pareto",
        "explain",
        "query 'select * from trial'",
        "export --format trl --output exported",
        "plan space.yaml",
        "doctor",
    ] {
        let full = shell(&bench, &format!("peft-tune {command} > /dev/full"));
        let said = messages(&full);
        assert!(!said.contains("panicked"), "{command}: {said}");
        assert_eq!(full.status.code(), Some(1), "{command}: {said}");
        let piped = shell(
            &bench,
            &format!("peft-tune {command} --json 2>&1 | head -c 1 >/dev/null; rm -rf exported"),
        );
        assert!(!messages(&piped).contains("panicked"), "{command}");
        let silent = shell(
            &bench,
            &format!("peft-tune {command} 2> /dev/full > /dev/null; echo $? >&2; rm -rf exported"),
        );
        assert!(
            matches!(messages(&silent).trim(), "0" | "1"),
            "{command}: {}",
            messages(&silent)
        );
    }
}

#[test]
fn a_database_from_someone_else_steers_neither_the_program_nor_the_terminal() {
    let bench = Bench::of(SPACE);
    Bench::succeed(bench.search("0", &["--trials", "3"]));
    let change = |sql: &str| {
        let script =
            "import sqlite3, sys\nc = sqlite3.connect(sys.argv[1])\nc.executescript(sys.argv[2])\nc.commit()\n";
        let done = Command::new("python3")
            .args(["-c", script])
            .arg(bench.path("study.db"))
            .arg(sql)
            .status();
        done.is_ok_and(|status| status.success())
    };
    if !change("update study set definition = '5'") {
        return;
    }
    let all = [
        "studies",
        "show",
        "pareto",
        "explain",
        "report --output page.html",
        "status",
        "query 'select * from study'",
    ];
    for definition in [
        "5",
        "null",
        "[]",
        "{\"settings\": 5}",
        "{\"settings\": {\"space\": 5, \"base\": 7, \"plan\": []}}",
    ] {
        assert!(change(&format!("update study set definition = '{definition}'")));
        for command in all {
            let output = shell(&bench, &format!("peft-tune {command}"));
            let said = messages(&output);
            assert!(
                !said.contains("panicked") && output.status.code().is_some(),
                "{definition}: {command}: {said}"
            );
        }
    }
    assert!(change(
        "update study set name = 'a' || char(27) || '[2Jb', created_at = '2026' || char(27) || 'c', resumed_at = char(27) || 'c'"
    ));
    for command in all {
        let output = shell(&bench, &format!("peft-tune {command}"));
        let printed = [output.stdout, output.stderr].concat();
        assert!(
            !printed.contains(&27),
            "{command}: {}",
            String::from_utf8_lossy(&printed)
        );
    }
}

#[test]
fn two_trainings_do_not_share_an_output_folder() {
    let bench = with_own_model(SPACE);
    let assets = Path::new(env!("CARGO_MANIFEST_DIR")).join("search_spaces/quickstart");
    let recipe = format!(
        "model: {0}/base\ndata: {{train: [{0}/train.jsonl], held_out: {0}/held_out.jsonl}}\nprecision: fp32\n\
         batch: {{sequence_length: 64}}\ntraining: {{length: {{steps: 4000}}}}\n",
        assets.display()
    );
    std::fs::write(bench.path("recipe.yaml"), recipe).unwrap();
    let train = |more: &[&str]| {
        let mut train = bench.command(&["train", "recipe.yaml", "--output", "out", "--checkpoint-every", "1"]);
        train.args(more);
        train
    };
    let mut first = Bench::start(train(&[]));
    let began = Instant::now();
    while !bench.path("out/checkpoints").is_dir() {
        assert!(began.elapsed() < MOST && first.try_wait().unwrap().is_none());
        std::thread::sleep(Duration::from_millis(30));
    }
    for how in ["--resume", "--force"] {
        let output = train(&[how]).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{}", messages(&output));
        assert!(
            messages(&output).contains("another training runs"),
            "{}",
            messages(&output)
        );
    }
    first.kill().unwrap();
    first.wait().unwrap();
}

#[test]
fn a_training_that_cannot_go_through_its_rows_is_refused_at_the_start() {
    let bench = with_own_model(SPACE);
    let assets = Path::new(env!("CARGO_MANIFEST_DIR")).join("search_spaces/quickstart");
    let recipe = format!(
        "model: ./base\ndata: {{train: [{0}/train.jsonl], held_out: {0}/held_out.jsonl}}\nprecision: fp32\n\
         batch: {{sequence_length: 64}}\ntraining: {{length: {{steps: 2}}}}\n",
        assets.display()
    );
    std::fs::write(bench.path("recipe.yaml"), &recipe).unwrap();
    let config = bench.path("base/config.json");
    let whole: Value = serde_json::from_slice(&std::fs::read(&config).unwrap()).unwrap();
    for (key, value, says) in [
        ("max_position_embeddings", 16, "longer than the 16 positions"),
        ("vocab_size", 20, "the model's vocabulary ends at 20"),
    ] {
        let mut changed = whole.clone();
        changed[key] = value.into();
        std::fs::write(&config, changed.to_string()).unwrap();
        let output = bench
            .command(&["train", "recipe.yaml", "--output", "out"])
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2), "{}", messages(&output));
        assert!(messages(&output).contains(says), "{}", messages(&output));
        assert!(!bench.path("out").exists());
    }
}

#[test]
fn numbers_without_measure_are_refused() {
    for (from, to) in [
        ("sequence_length: 64", "sequence_length: 99999999999"),
        ("budget: {trials: 2}", "budget: {time: 100000000000000000000d}"),
        ("budget: {trials: 2}", "budget: {trials: 99999999999999999999}"),
    ] {
        let bench = Bench::of(&SPACE.replace(from, to));
        let output = bench.search("0", &[]).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{to}: {}", messages(&output));
    }
    for hosts in ["[-oProxyCommand=id]", "['a b']", "[ok, '-x']"] {
        let bench = Bench::of(&format!("{SPACE}launcher: {{ssh: {{hosts: {hosts}}}}}\n"));
        let output = bench.search("0", &[]).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{hosts}: {}", messages(&output));
        assert!(
            messages(&output).contains("does not begin with"),
            "{}",
            messages(&output)
        );
    }
}
