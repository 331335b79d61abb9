//! Files that change and clocks that jump.

use std::process::Command;

use super::bench::{Bench, Finished, messages};

#[test]
fn a_model_that_is_damaged_under_way_ends_the_search_and_spoils_no_trial() {
    let bench = Bench::new();
    let text = std::fs::read_to_string(bench.path("space.yaml")).unwrap();
    let model = text
        .lines()
        .find_map(|line| line.strip_prefix("model: "))
        .unwrap()
        .to_owned();
    std::fs::write(bench.path("space.yaml"), text.replace(&model, "./base")).unwrap();
    std::fs::create_dir(bench.path("base")).unwrap();
    for file in std::fs::read_dir(&model).unwrap().flatten() {
        std::fs::copy(file.path(), bench.path("base").join(file.file_name())).unwrap();
    }
    let weights = bench.path("base/model.safetensors");
    let whole = std::fs::read(&weights).unwrap();
    // Real trials: each new process has to load what is damaged.
    let mut search = bench.command(&["search", "space.yaml", "--trials", "100000"]);
    search.env("PEFT_TUNE_FAULT", "exit:evaluate,attempts=1");
    let search = Bench::start(search);
    bench.wait_for("select count(*) as n from trial where state = 'complete'");
    std::fs::write(&weights, &whole[..whole.len() / 2]).unwrap();
    let output = search.wait_with_output().unwrap();
    let said = messages(&output);
    assert_eq!(output.status.code(), Some(6), "{said}");
    assert!(
        said.contains("model.safetensors was changed or removed while the study ran"),
        "{said}"
    );
    let finished = bench.sound(&Finished::new());
    assert_eq!(
        bench.count("select count(*) as n from trial where state not in ('complete', 'waiting')"),
        0
    );
    std::fs::write(&weights, &whole).unwrap();
    let trials = (finished.len() + 2).to_string();
    Bench::succeed(bench.command(&["search", "space.yaml", "--trials", &trials]));
    assert_eq!(bench.sound(&finished).len(), finished.len() + 2);
}

/// Lets the time of day jump by four hundred days to and fro at every look, and leaves the other clocks alone.
const JUMPING_CLOCK: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>

static long jump(void) {
    static int looks;
    return (__sync_fetch_and_add(&looks, 1) % 3 - 1) * 400L * 86400L;
}
int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int code = real(clock, now);
    if (clock == CLOCK_REALTIME) now->tv_sec += jump();
    return code;
}
int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    static int (*real)(struct timeval *, void *);
    if (!real) real = dlsym(RTLD_NEXT, "gettimeofday");
    int code = real(now, zone);
    now->tv_sec += jump();
    return code;
}
"#;

/// Compiles a library that takes the place of functions of the system; `false` where there is no compiler.
fn has_library(bench: &Bench, source: &str) -> bool {
    std::fs::write(bench.path("own.c"), source).unwrap();
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-o", "own.so", "own.c", "-ldl"]);
    let status = compiler.current_dir(bench.path("")).status();
    let is_there = status.is_ok_and(|status| status.success());
    if !is_there {
        eprintln!("skipped: there is no C compiler here");
    }
    is_there
}

#[test]
fn a_file_system_without_locks_is_told() {
    let bench = Bench::new();
    let no_locks = "#include <errno.h>\nint flock(int file, int how) { errno = ENOLCK; return -1; }\n";
    if !has_library(&bench, no_locks) {
        return;
    }
    let mut search = bench.search("0", &[]);
    let output = search.env("LD_PRELOAD", bench.path("own.so")).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", messages(&output));
    assert!(messages(&output).contains("has no locks"), "{}", messages(&output));
}

/// Lets a process have so many threads beside its first.
const FEW_THREADS: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
static int alive;
struct work { void *(*run)(void *); void *with; };
static void *run(void *given) {
    struct work work = *(struct work *)given;
    free(given);
    void *result = work.run(work.with);
    __sync_fetch_and_sub(&alive, 1);
    return result;
}
int pthread_create(pthread_t *thread, const pthread_attr_t *settings, void *(*start)(void *), void *with) {
    static int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    if (!real) real = dlsym(RTLD_NEXT, "pthread_create");
    if (__sync_fetch_and_add(&alive, 1) >= atoi(getenv("MOST_THREADS"))) {
        __sync_fetch_and_sub(&alive, 1);
        return EAGAIN;
    }
    struct work *work = malloc(sizeof *work);
    work->run = start;
    work->with = with;
    int code = real(thread, settings, run, work);
    if (code) __sync_fetch_and_sub(&alive, 1);
    return code;
}
"#;

#[test]
fn a_machine_without_threads_is_told_and_one_with_few_is_enough() {
    let bench = Bench::new();
    if !has_library(&bench, FEW_THREADS) {
        return;
    }
    for (threads, code) in [(0, 1), (5, 1), (8, 0), (9, 0), (12, 0)] {
        let name = format!("with-{threads}");
        let mut search = bench.search("0", &["--as", &name]);
        search.env("LD_PRELOAD", bench.path("own.so"));
        let output = search.env("MOST_THREADS", threads.to_string()).output().unwrap();
        let said = messages(&output);
        assert_eq!(output.status.code(), Some(code), "{threads} threads: {said}");
        assert_eq!(said.contains("threads more, and 8 are needed"), code == 1, "{said}");
    }
}

#[test]
fn address_space_that_is_too_small_is_told_and_never_a_crash() {
    let bench = Bench::new();
    let sizes = [100_000, 200_000, 400_000, 600_000, 1_000_000];
    for kib in sizes.into_iter().step_by(crate::cases_of(1, 2)) {
        for arguments in ["search space.yaml --as s", "plan space.yaml", "doctor", "studies"] {
            let program = bench.command(&[]).get_program().to_owned();
            let line = format!("ulimit -v {kib}; exec '{}' {arguments}", program.display());
            let mut shell = std::process::Command::new("sh");
            shell.args(["-c", &line]).current_dir(bench.path(""));
            shell
                .env("PEFT_TUNE_DB", bench.path("study.db"))
                .env("PEFT_TUNE_MOCK", "0");
            let output = shell.output().unwrap();
            let code = output.status.code();
            assert!(
                code.is_some_and(|code| code <= 6),
                "{line}: {:?}: {}",
                output.status,
                messages(&output)
            );
        }
    }
}

#[test]
fn a_clock_that_jumps_changes_no_duration_and_no_order() {
    let bench = Bench::new();
    if !has_library(&bench, JUMPING_CLOCK) {
        return;
    }
    let mut search = bench.search(
        "0.2",
        &["--workers", "2", "--stuck-after", "20s", "--silent-after", "10s"],
    );
    search.env("LD_PRELOAD", bench.path("own.so"));
    Bench::succeed(search);
    let rows = bench.rows("select number, started_at, ended_at, wall_s, attempt from trial order by number");
    assert_eq!(rows.len(), 8);
    for row in &rows {
        let wall = row["wall_s"].as_f64().unwrap();
        assert!((0.15..20.0).contains(&wall), "{row}");
        assert_eq!(row["attempt"], 1, "nothing was taken for stuck or silent: {row}");
    }
    let jumped = "select count(*) as n from trial where abs(julianday(ended_at) - julianday(started_at)) > 100";
    assert!(bench.count(jumped) > 0, "the clock did jump");
    bench.sound(&Finished::new());
}
