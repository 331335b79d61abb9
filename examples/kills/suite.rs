//! Searches and workers that are killed at any moment, and large studies: what finished stays, and nothing runs twice.
//! Everything here panics where that does not hold.

use std::time::{Duration, Instant};

use super::bench::{Bench, Dice, Finished, children, signal};

/// Kills searches and workers, about as many of each, and checks after each search. Says what it did.
pub(super) fn kill(kills: u64, seed: u64) -> String {
    let bench = Bench::new();
    Bench::succeed(bench.search("0.01", &["--trials", "2"]));
    let mut finished = bench.sound(&Finished::new());
    let mut dice = Dice(seed);
    let (mut done, mut workers_killed) = (0, 0);
    while done < kills {
        let arguments = ["--workers", "2", "--attempts", "1000", "--trials", "1000000"];
        let mut search = Bench::start(bench.search("0.04", &arguments));
        for _ in 0..dice.below(3) {
            std::thread::sleep(Duration::from_millis(50 + dice.below(700)));
            let workers = children(search.id());
            if !workers.is_empty() && done + 1 < kills {
                let chosen = dice.below(workers.len() as u64) as usize;
                signal(workers[chosen].0, libc::SIGKILL);
                (done, workers_killed) = (done + 1, workers_killed + 1);
            }
        }
        std::thread::sleep(Duration::from_millis(dice.below(900)));
        let workers = children(search.id());
        search.kill().unwrap();
        search.wait().unwrap();
        done += 1;
        assert_all_end(&workers);
        finished = bench.sound(&finished);
    }
    let trials = (finished.len() + 4).to_string();
    Bench::succeed(bench.search("0.01", &["--trials", &trials, "--attempts", "1000"]));
    let end = bench.sound(&finished);
    assert!(end.len() >= finished.len() + 4);
    assert_eq!(
        bench.count("select count(*) as n from trial where state in ('waiting', 'running')"),
        0
    );
    assert_eq!(
        bench.count("select count(*) as n from (select number from trial group by number having count(*) > 1)"),
        0
    );
    let lost = bench.count("select count(*) as n from lost_attempt");
    format!(
        "{done} kills, {workers_killed} of them of workers: {} trials finished, {lost} attempts noted as lost",
        end.len()
    )
}

/// Runs a study of so many made-up trials on eight workers; where an interval is given, kills the search with all of them again and
/// again. Says what it did.
pub(super) fn many_trials(trials: u64, killed_every: Option<Duration>) -> String {
    let bench = Bench::new();
    let mut finished = Finished::new();
    let mut kills = 0;
    let began = Instant::now();
    while (finished.len() as u64) < trials {
        let trials = trials.to_string();
        let arguments = ["--workers", "8", "--trials", &trials, "--attempts", "1000", "--json"];
        let mut search = Bench::start(bench.search("0", &arguments));
        let started = Instant::now();
        while search.try_wait().unwrap().is_none() && killed_every.is_none_or(|every| started.elapsed() < every) {
            std::thread::sleep(Duration::from_millis(20));
        }
        let workers = children(search.id());
        match search.try_wait().unwrap() {
            Some(status) => assert!(status.success(), "the search ended with {status}"),
            None => {
                kills += 1;
                search.kill().unwrap();
                search.wait().unwrap();
            }
        }
        assert_all_end(&workers);
        finished = bench.sound(&finished);
    }
    assert_eq!(finished.len() as u64, trials);
    assert_eq!(bench.count("select count(distinct number) as n from trial"), trials);
    if killed_every.is_none() {
        assert_eq!(bench.count("select count(*) as n from trial where attempt > 1"), 0);
    }
    format!(
        "{trials} trials on eight workers, all killed {kills} times, in {:.1} s",
        began.elapsed().as_secs_f64()
    )
}

/// Checks that a killed search leaves no worker behind, which would disturb the next one's measurements.
fn assert_all_end(workers: &[(u32, String)]) {
    let began = Instant::now();
    while workers.iter().any(|(worker, words)| is_still(*worker, words)) {
        assert!(
            began.elapsed() < Duration::from_secs(10),
            "a worker outlived its search"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn is_still(process: u32, words: &str) -> bool {
    let now = std::fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
    !now.is_empty() && String::from_utf8_lossy(&now).replace('\0', " ") == words
}
