//! A short form of `cargo run --release --example kills`.

use std::time::Duration;

use super::bench;

#[path = "../../../examples/kills/suite.rs"]
mod suite;

#[test]
fn searches_and_workers_that_are_killed_lose_and_repeat_nothing() {
    println!("{}", suite::kill(crate::cases_of(20, 10) as u64, 20));
}

#[test]
fn eight_workers_run_every_trial_of_a_study_once() {
    println!("{}", suite::many_trials(300, None));
}

#[test]
fn eight_workers_that_are_killed_with_their_search_run_every_trial_once() {
    println!("{}", suite::many_trials(200, Some(Duration::from_secs(3))));
}
