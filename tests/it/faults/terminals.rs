//! Output of a search as a person sees it: narrow terminals, no colours, pipes, and what Ctrl-C says at once; machines
//! without a home, a network or a GPU.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::bench::{Bench, messages, signal};

const RUNNING: &str = "select count(*) as n from trial where phase = 'train' and state = 'running'";

/// Opens a new terminal of so many columns; returns its controller and its end.
fn terminal(columns: u16) -> (OwnedFd, OwnedFd) {
    let (mut controller, mut end) = (0, 0);
    let size = libc::winsize {
        ws_row: 24,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    let (null, size) = (std::ptr::null_mut(), (&raw const size).cast_mut());
    // SAFETY: the numbers and the size outlive the call; the rest is left to the system.
    let opened = unsafe { libc::openpty(&raw mut controller, &raw mut end, null, null.cast(), size) };
    assert_eq!(opened, 0);
    // SAFETY: setting a flag of an open descriptor has no precondition; both were just opened and belong to nobody else.
    unsafe {
        libc::fcntl(controller, libc::F_SETFD, libc::FD_CLOEXEC);
        (OwnedFd::from_raw_fd(controller), OwnedFd::from_raw_fd(end))
    }
}

/// Starts a command whose terminal is `end`.
fn started(command: &mut Command, end: OwnedFd) -> Child {
    let stream = || Stdio::from(end.try_clone().unwrap());
    command
        .stdin(stream())
        .stdout(stream())
        .stderr(stream())
        .env("TERM", "xterm");
    // SAFETY: only `setsid` and `ioctl` are called between fork and exec, which are async-signal-safe.
    unsafe {
        command.pre_exec(|| {
            libc::setsid();
            // What is typed there signals this process.
            libc::ioctl(0, libc::TIOCSCTTY, 0);
            Ok(())
        });
    }
    let child = command.spawn().unwrap();
    // Its own copies of the end would keep the terminal open.
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    child
}

/// Text that a command writes to a terminal of so many columns, with its exit code.
pub(crate) fn shown(mut command: Command, columns: u16) -> (String, Option<i32>) {
    let (controller, end) = terminal(columns);
    let mut child = started(&mut command, end);
    drop(command);
    let mut text = Vec::new();
    read_to(&mut File::from(controller), &mut text, None);
    let code = child.wait().unwrap().code();
    (String::from_utf8_lossy(&text).into_owned(), code)
}

/// Text that a command writes to a terminal at which `keys` are typed behind its `words`, with its exit code.
pub(crate) fn typed(mut command: Command, words: &str, keys: &[u8]) -> (String, Option<i32>) {
    let (controller, end) = terminal(100);
    let mut child = started(&mut command, end);
    drop(command);
    let (mut controller, mut text) = (File::from(controller), Vec::new());
    read_to(&mut controller, &mut text, Some((0, words)));
    controller.write_all(keys).unwrap();
    read_to(&mut controller, &mut text, None);
    let code = child.wait().unwrap().code();
    (String::from_utf8_lossy(&text).into_owned(), code)
}

/// Reads on until the text has these words behind its first `from` bytes, or to its end.
fn read_to(controller: &mut File, text: &mut Vec<u8>, words: Option<(usize, &str)>) {
    let mut block = [0; 4096];
    let has = |text: &[u8]| words.is_some_and(|(from, words)| String::from_utf8_lossy(&text[from..]).contains(words));
    // A terminal whose other end is closed reads as an error.
    while !has(text)
        && let Ok(count @ 1..) = controller.read(&mut block)
    {
        text.extend_from_slice(&block[..count]);
    }
    assert!(words.is_none() || has(text), "{}", String::from_utf8_lossy(text));
}

/// Sequences that steer the terminal in a text: the letter that ends each, and what follows up to the next.
fn steered(text: &str) -> impl Iterator<Item = (char, &str)> {
    text.split("\u{1b}[").skip(1).filter_map(|part| {
        let end = part.find(|c: char| c.is_ascii_alphabetic())?;
        Some((part[end..].chars().next()?, &part[end + 1..]))
    })
}

/// The lines that were drawn on a terminal of so many columns, without what steers it. What is longer goes on in the next line: so a line
/// may be padded to its end instead of being ended.
fn drawn(text: &str, columns: u16) -> Vec<String> {
    let first = text.split("\u{1b}[").next();
    let parts = first.into_iter().chain(steered(text).map(|(_, shown)| shown));
    parts
        .flat_map(|part| part.split(['\r', '\n']))
        .flat_map(|line| {
            let characters: Vec<char> = line.chars().collect();
            let rows = characters.chunks(usize::from(columns));
            rows.map(|row| row.iter().collect::<String>().trim_end().to_owned())
                .collect::<Vec<_>>()
        })
        .collect()
}

#[test]
fn the_line_of_a_search_is_whole_in_narrow_terminals() {
    for columns in [40, 60, 80] {
        let bench = Bench::new();
        let (text, code) = shown(bench.search("0.6", &["--trials", "3"]), columns);
        assert_eq!(code, Some(0), "{text}");
        let lines = drawn(&text, columns);
        let spinner = |line: &&String| {
            line.chars()
                .next()
                .is_some_and(|c| ('\u{2800}'..='\u{28ff}').contains(&c))
        };
        let own: Vec<&String> = lines.iter().filter(spinner).collect();
        assert!(own.iter().any(|line| line.contains("trial 1 (2 of 3)")), "{own:?}");
        assert!(own.iter().any(|line| line.contains(" · train ")), "{own:?}");
        assert!(lines.iter().any(|line| line.ends_with(" left")), "{lines:?}");
        assert!(
            own.iter().all(|line| line.chars().count() < usize::from(columns)),
            "{own:?}"
        );
    }
}

/// Lines that a terminal of so many columns has to break itself.
fn too_long(text: &str, columns: usize) -> Vec<&str> {
    let lines = text.lines().map(|line| line.trim_end_matches('\r'));
    lines.filter(|line| line.chars().count() > columns).collect()
}

#[test]
fn no_word_is_broken_in_narrow_terminals() {
    let bench = Bench::new();
    let mut search = bench.search("0.01", &["--trials", "8"]);
    search.stdout(Stdio::null()).stderr(Stdio::null());
    assert!(search.status().unwrap().success());
    for arguments in [
        &["explain"][..],
        &["show"],
        &["pareto"],
        &["pareto", "--plot"],
        &["status"],
        &["doctor"],
        &["plan", "space.yaml"],
        &["plan", "space.yaml", "--stack", "trl", "--device", "L4"],
        &["search", "space.yaml", "--dry-run"],
        &["export", "--format", "trl", "--output", "trl"],
        &["compare", "0", "1"],
    ] {
        let (text, code) = shown(bench.command(arguments), 40);
        assert_eq!(code, Some(0), "{arguments:?}: {text}");
        // A path may be longer than a line, and stands in one of its own then; so does a command to copy.
        let broken: Vec<&str> = too_long(&text, 40)
            .into_iter()
            .filter(|line| line.trim().contains(' ') && !line.contains("peft-tune "))
            .collect();
        assert!(broken.is_empty(), "{arguments:?}: {broken:#?}");
    }
    let (text, code) = shown(bench.command(&["show", "no-such-study-anywhere"]), 40);
    assert_eq!(code, Some(2));
    assert!(text.lines().next().unwrap().starts_with("error: no study"), "{text}");
    assert!(text.lines().count() > 1, "{text}");
    // Whoever reads a pipe gets whole lines.
    let output = bench.command(&["explain"]).output().unwrap();
    assert!(!too_long(&String::from_utf8(output.stdout).unwrap(), 40).is_empty());
}

/// The rows that a terminal of so many columns shows in the end, as xterm would: a full row goes on in the next with the next character.
fn rows_of(text: &str, columns: usize) -> Vec<String> {
    let (mut rows, mut row, mut column) = (vec![vec![' '; columns]], 0_usize, 0_usize);
    let mut characters = text.chars().peekable();
    while let Some(one) = characters.next() {
        match one {
            '\r' => column = 0,
            '\n' => row += 1,
            '\u{1b}' if characters.next_if_eq(&'[').is_some() => {
                let mut number = String::new();
                let letter = loop {
                    match characters.next() {
                        Some(letter) if letter.is_ascii_alphabetic() => break letter,
                        Some(part) => number.push(part),
                        None => return Vec::new(),
                    }
                };
                let count = number.parse().unwrap_or(1);
                match letter {
                    'A' => row = row.saturating_sub(count),
                    'B' => row += count,
                    'K' => rows[row].fill(' '),
                    'h' | 'l' | 'm' => {}
                    other => panic!("what does a terminal do with {other}?"),
                }
            }
            one => {
                if column == columns {
                    (row, column) = (row + 1, 0);
                }
                rows.resize(rows.len().max(row + 1), vec![' '; columns]);
                rows[row][column] = one;
                column += 1;
            }
        }
        rows.resize(rows.len().max(row + 1), vec![' '; columns]);
    }
    rows.into_iter()
        .map(|row| row.into_iter().collect::<String>().trim_end().to_owned())
        .collect()
}

#[test]
fn ctrl_c_leaves_no_line_of_progress_behind() {
    for columns in [40, 80] {
        let bench = Bench::of_trainings();
        let (controller, end) = terminal(columns);
        let mut controller = File::from(controller);
        let mut child = started(&mut bench.search("60", &["--trials", "3"]), end);
        let mut text = Vec::new();
        read_to(&mut controller, &mut text, Some((0, "trial 0 (1 of 3) · train")));
        // The keyboard's interrupt: the terminal itself echoes `^C`.
        for words in ["stopping · trial 0", "stopping now"] {
            let from = text.len();
            controller.write_all(b"\x03").unwrap();
            read_to(&mut controller, &mut text, Some((from, words)));
        }
        read_to(&mut controller, &mut text, None);
        assert_eq!(child.wait().unwrap().code(), Some(130));
        let rows = rows_of(&String::from_utf8_lossy(&text), usize::from(columns));
        assert!(rows.iter().any(|row| row.starts_with("finishing trial 0")), "{rows:#?}");
        assert!(
            rows.iter().all(|row| !row.contains("(1 of 3)") && !row.contains("^C")),
            "{rows:#?}"
        );
    }
}

#[test]
fn no_color_is_heeded() {
    let bench = Bench::new();
    let mut search = bench.search("0.2", &["--trials", "2"]);
    search.env("NO_COLOR", "1");
    let (text, code) = shown(search, 80);
    assert_eq!(code, Some(0), "{text}");
    assert!(steered(&text).all(|(kind, _)| kind != 'm'), "{text:?}");
}

#[test]
fn without_a_terminal_each_trial_is_a_line_and_a_closed_pipe_is_no_error() {
    let bench = Bench::new();
    let search = Bench::start(bench.search("0.1", &["--trials", "3"]));
    let output = search.wait_with_output().unwrap();
    let said = messages(&output);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(!said.contains('\u{1b}') && !said.contains('\r'), "{said:?}");
    for part in [
        "study faults: up to 3 trials",
        "trial 0 (1 of 3) · loading",
        "trial 0 (1 of 3) complete · ",
        "trial 2 (3 of 3) complete · ",
        "tokens/s",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    // Who reads the result has gone before it comes.
    let mut search = bench.search("0.1", &["--trials", "4"]);
    let mut child = search.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", messages(&output));
    // Nor is one who has had enough of the messages.
    let mut search = bench.search("0.1", &["--trials", "5"]);
    let mut child = search.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stderr.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&output.stdout).contains("5 trials"));
}

/// Reads what a process says until a line has `part`; how long that took.
pub(super) fn wait_for_words(stderr: &mut impl Read, part: &str) -> (String, Duration) {
    let began = Instant::now();
    let (mut said, mut byte) = (Vec::new(), [0; 1]);
    while !String::from_utf8_lossy(&said).contains(part) {
        assert_eq!(stderr.read(&mut byte).unwrap(), 1, "{}", String::from_utf8_lossy(&said));
        said.push(byte[0]);
    }
    (String::from_utf8_lossy(&said).into_owned(), began.elapsed())
}

#[test]
fn ctrl_c_is_answered_at_once_while_a_trial_trains() {
    let bench = Bench::of_trainings();
    let mut search = Bench::start(bench.search("60", &["--trials", "3"]));
    bench.wait_for(RUNNING);
    let mut stderr = search.stderr.take().unwrap();
    wait_for_words(&mut stderr, "results");
    signal(search.id(), libc::SIGINT);
    let (said, took) = wait_for_words(&mut stderr, "Ctrl-C again stops at once");
    assert!(said.contains("finishing trial 0 (train"), "{said}");
    // Quiet machines take a millisecond; this one may be busy.
    assert!(took < Duration::from_secs(1), "{took:?}");
    signal(search.id(), libc::SIGINT);
    let (said, took) = wait_for_words(&mut stderr, "is dropped, and the next search runs it again");
    assert!(said.contains("stopping now"), "{said}");
    assert!(took < Duration::from_secs(1), "{took:?}");
    assert_eq!(search.wait().unwrap().code(), Some(130));
}

#[test]
fn ctrl_c_while_the_data_are_read_ends_at_once_and_says_how_to_go_on() {
    let bench = Bench::new();
    let row =
        "{\"text\": \"".to_owned() + &"The tired baker gave an onion to six hungry teachers. ".repeat(40) + "\"}\n";
    std::fs::write(bench.path("long.jsonl"), row.repeat(20_000)).unwrap();
    let text = std::fs::read_to_string(bench.path("space.yaml")).unwrap();
    let data = text.lines().find(|line| line.starts_with("data: ")).unwrap().to_owned();
    let text = text.replace(&data, "data: {train: long.jsonl, held_out: 0.01}");
    std::fs::write(bench.path("space.yaml"), text).unwrap();
    let mut search = Bench::start(bench.search("0.1", &["--trials", "3", "--workers", "1"]));
    let mut stderr = search.stderr.take().unwrap();
    let (said, _) = wait_for_words(&mut stderr, "of data, once");
    assert!(
        said.contains("  takes    about "),
        "said before the data are read: {said}"
    );
    signal(search.id(), libc::SIGINT);
    let (said, took) = wait_for_words(&mut stderr, "begins again");
    assert!(
        said.contains("nothing is lost; `peft-tune search space.yaml --trials 3 --workers 1 --db "),
        "{said}"
    );
    assert!(took < Duration::from_secs(1), "{took:?}");
    assert_eq!(search.wait().unwrap().code(), Some(130));
}

#[test]
fn a_home_that_cannot_be_written_no_network_and_no_gpu_are_told_or_do_not_matter() {
    let bench = Bench::new();
    let mut search = bench.search("0.05", &["--trials", "2"]);
    search
        .env("HOME", "/proc/nobody")
        .env_remove("PEFT_TUNE_CACHE")
        .env_remove("XDG_CACHE_HOME");
    let output = search.output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", messages(&output));

    let mut search = bench.search("0.05", &["--trials", "2", "--devices", "cuda:0", "--as", "gpu"]);
    search.env_remove("PEFT_TUNE_MOCK").env("CUDA_VISIBLE_DEVICES", "");
    let output = search.output().unwrap();
    let said = messages(&output);
    assert_ne!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("cuda") && !said.contains("panicked"), "{said}");

    let text = std::fs::read_to_string(bench.path("space.yaml")).unwrap();
    let model = text
        .lines()
        .find(|line| line.starts_with("model: "))
        .unwrap()
        .to_owned();
    std::fs::write(bench.path("hub.yaml"), text.replace(&model, "model: nobody/nothing")).unwrap();
    let mut search = bench.command(&["search", "hub.yaml", "--as", "hub"]);
    search
        .env("HF_ENDPOINT", "http://127.0.0.1:9")
        .env("HF_HOME", bench.path("hub"))
        .env_remove("HF_HUB_OFFLINE");
    let output = search.output().unwrap();
    let said = messages(&output);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("nobody/nothing"), "{said}");
}
