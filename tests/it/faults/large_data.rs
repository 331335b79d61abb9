//! Data that take a while to read: what is said meanwhile, an interrupt, a disk that is too small for their tokens.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use super::bench::{Bench, messages, signal};
use super::terminals::wait_for_words;

/// A study and a recipe on 5.5 MB of texts in `long.jsonl`.
fn with_long_data() -> Bench {
    let bench = Bench::new();
    let row =
        "{\"text\": \"".to_owned() + &"The tired baker gave an onion to six hungry teachers. ".repeat(40) + "\"}\n";
    std::fs::write(bench.path("long.jsonl"), row.repeat(2_500)).unwrap();
    let text = std::fs::read_to_string(bench.path("space.yaml")).unwrap();
    let line = |start: &str| text.lines().find(|line| line.starts_with(start)).unwrap();
    let data = "data: {train: long.jsonl, held_out: 0.01}";
    let recipe = format!(
        "{}\n{data}\nadapter: {{rank: 2}}\nprecision: fp32\n\
         batch: {{micro_batch: 1, gradient_accumulation: 1, sequence_length: 64}}\n\
         training: {{length: {{steps: 1}}, evaluation_rows: 1}}\n",
        line("model: ")
    );
    std::fs::write(bench.path("recipe.yaml"), recipe).unwrap();
    std::fs::write(bench.path("space.yaml"), text.replace(line("data: "), data)).unwrap();
    bench
}

/// Names of the files of the cache that hold tokens, or some of them.
fn token_files(bench: &Bench) -> Vec<String> {
    let names = std::fs::read_dir(bench.path("cache")).into_iter().flatten().flatten();
    let names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names
        .filter(|name| name.ends_with(".tokens") || name.ends_with(".tmp"))
        .collect()
}

/// Interrupts a command while it tokenises; what it said, with what must be said before.
fn interrupted(bench: &Bench, mut command: Command, words: &str) -> String {
    command.env("PEFT_TUNE_READING_LINE_S", "0");
    let mut child = Bench::start(command);
    let mut stderr = child.stderr.take().unwrap();
    let (mut said, _) = wait_for_words(&mut stderr, "free in ");
    said += &wait_for_words(&mut stderr, "tokenising 5.2 MiB of data: ").0;
    signal(child.id(), libc::SIGINT);
    let (rest, took) = wait_for_words(&mut stderr, words);
    assert!(took < Duration::from_secs(2), "{took:?}");
    let began = Instant::now();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{said}{rest}");
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    // The process that tokenises is ended by the system.
    let began = Instant::now();
    while !token_files(bench).is_empty() && began.elapsed() < Duration::from_secs(5) {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(token_files(bench), [""; 0], "an unfinished file is left");
    said += &rest;
    let _ = stderr.read_to_string(&mut said);
    said
}

#[test]
fn reading_says_how_far_it_is_and_leaves_nothing_half_done() {
    let bench = with_long_data();
    let train = || bench.command(&["train", "recipe.yaml"]);
    let said = interrupted(&bench, train(), "begins again");
    let cache = bench.path("cache");
    for words in [
        "reading 5.2 MiB of data, once",
        "their tokens take about ",
        &format!("that are free in {}", cache.display()),
        "tokenising 5.2 MiB of data: ",
        "stopped before the first step, and nothing is lost; `peft-tune train recipe.yaml` begins again",
    ] {
        assert!(said.contains(words), "`{words}` is missing in {said}");
    }
    assert!(!bench.path("recipe-trained").exists());
    let search = || bench.search("0", &["--trials", "2"]);
    let said = interrupted(&bench, search(), "begins again");
    for words in [
        "reading 5.2 MiB of data, once",
        "their tokens take about ",
        "tokenising 5.2 MiB of data: ",
        "stopped before the first trial",
    ] {
        assert!(said.contains(words), "`{words}` is missing in {said}");
    }
    // The next one reads all of it, and those behind it find what it left.
    let output = search().output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", messages(&output));
    let files = token_files(&bench);
    assert!(files.len() == 1 && files[0].ends_with(".tokens"), "{files:?}");
    let output = train().env("PEFT_TUNE_READING_LINE_S", "0").output().unwrap();
    let said = messages(&output);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(!said.contains("tokenising"), "{said}");
    assert_eq!(token_files(&bench), files);
}

/// Checks a training that cannot write the tokens of its data, and what it says.
fn refused(output: &std::process::Output, cache: &Path) {
    let said = messages(output);
    assert_eq!(output.status.code(), Some(2), "{said}");
    let folder = format!("by the first of them, and {} has room for ", cache.display());
    for words in [
        "the tokens of all rows take about 2.",
        &folder,
        "PEFT_TUNE_CACHE",
        "`data.max_rows`",
    ] {
        assert!(said.contains(words), "`{words}` is missing in {said}");
    }
    assert_eq!(said.matches("error:").count(), 1, "{said}");
}

#[test]
fn tokens_that_cannot_fit_are_refused_after_the_first_rows() {
    let bench = with_long_data();
    let mut train = bench.command(&["train", "recipe.yaml"]);
    let limit = || {
        let most = libc::rlimit {
            rlim_cur: 1 << 20,
            rlim_max: 1 << 20,
        };
        // SAFETY: the value outlives the call; ignoring a signal has no precondition.
        unsafe {
            libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
            libc::setrlimit(libc::RLIMIT_FSIZE, &raw const most);
        }
        Ok(())
    };
    // SAFETY: the closure allocates nothing and takes no lock.
    unsafe { train.pre_exec(limit) };
    refused(&train.output().unwrap(), &bench.path("cache"));
    assert_eq!(token_files(&bench), [""; 0]);
    // Fewer rows fit.
    let recipe = std::fs::read_to_string(bench.path("recipe.yaml")).unwrap();
    let fewer = recipe.replace("held_out: 0.01", "held_out: 0.01, max_rows: 300");
    std::fs::write(bench.path("recipe.yaml"), fewer).unwrap();
    let mut train = bench.command(&["train", "recipe.yaml"]);
    // SAFETY: as above.
    unsafe { train.pre_exec(limit) };
    let output = train.output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", messages(&output));
}

#[test]
fn a_disk_too_small_for_the_tokens_is_told_before_it_is_full() {
    let bench = with_long_data();
    let cache = bench.path("cache");
    std::fs::create_dir(&cache).unwrap();
    // A file system of one MiB, which this shell alone sees.
    let script = "mount -t tmpfs -o size=1m none cache || exit 77\nexec \"$PROGRAM\" train recipe.yaml";
    let mut command = Command::new("unshare");
    command.args(["-rm", "sh", "-c", script]).current_dir(bench.path(""));
    command
        .env("PROGRAM", env!("CARGO_BIN_EXE_peft-tune"))
        .env("PEFT_TUNE_CACHE", &cache)
        .env_remove("RUST_LOG");
    let Ok(output) = command.output() else {
        return eprintln!("skipped: there is no `unshare` here");
    };
    if messages(&output).contains("unshare") || output.status.code() == Some(77) {
        return eprintln!("skipped: a file system cannot be mounted here: {}", messages(&output));
    }
    refused(&output, &cache);
}
