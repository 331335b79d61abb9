//! The adapters for other trainers, as far as python3 alone takes them: a stand-in for the Hugging Face trainer goes through the
//! same callback, and a search sees its outcomes. `scripts/peers/launch-test.sh` does the same with TRL itself.
#![cfg(unix)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use peft_tune::worker::{CommandEvaluator, Evaluator, Task, TrialEvent, TrialRequest};
use peft_tune_core::study::{FailReason, Params, TrialNumber, TrialState};

/// The adapters' folder; `None` where there is no python3 to run them.
fn adapters() -> Option<PathBuf> {
    match Command::new("python3").arg("--version").output() {
        Ok(output) if output.status.success() => Some(Path::new(env!("CARGO_MANIFEST_DIR")).join("integrations")),
        _ => {
            println!("there is no python3 here");
            None
        }
    }
}

/// Runs the stand-in, cancels it after its first report where `cancels`, and returns its reports and its end.
fn train(folder: &Path, mode: &str, cancels: bool) -> (Vec<TrialEvent>, TrialState) {
    let command = ["python3", "-B", "tests/fake_trainer.py"].map(str::to_owned).to_vec();
    let mut evaluator = CommandEvaluator::new(command, folder.to_owned(), BTreeMap::new());
    let task = Task::Params {
        params: Params::from([("mode".to_owned(), mode.into())]),
        seed: 1,
        steps: Some(if cancels { 2_000 } else { 6 }),
    };
    let request = TrialRequest {
        number: TrialNumber(4),
        attempt: 1,
        task,
        memory_limit_bytes: None,
        time_limit_s: None,
        kernels: None,
        assignments: Vec::new(),
        pairing: None,
        first_adapter: None,
    };
    evaluator.submit(request).unwrap();
    let mut reports = Vec::new();
    loop {
        match evaluator.next_event(Duration::from_secs(120)).unwrap() {
            Some(TrialEvent::Ended { state, .. }) => return (reports, state),
            Some(event) => {
                if cancels {
                    evaluator.cancel(TrialNumber(4)).unwrap();
                }
                reports.push(event);
            }
            None => panic!("nothing for two minutes"),
        }
    }
}

/// The tables that the adapters read are shipped beside them; after a wanted change, write them anew with
/// `UPDATE_GOLDEN=1 cargo test --test it integrations`.
#[test]
fn the_adapters_have_the_names_that_the_program_prints() {
    let output = crate::program().args(["schema", "names"]).output().unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("integrations/names.json");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, &printed).unwrap();
    }
    assert_eq!(std::fs::read_to_string(path).unwrap(), printed);
}

#[test]
fn the_adapters_pass_their_own_tests() {
    let Some(folder) = adapters() else { return };
    let output = Command::new("python3")
        .args(["-B", "-m", "unittest", "discover", "-s", "tests"])
        .current_dir(folder)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_training_through_the_callback_reports_steps_memory_and_loss() {
    let Some(folder) = adapters() else { return };
    let (reports, state) = train(&folder, "fine", false);
    let TrialState::Complete { metrics } = state else {
        panic!("{state:?}")
    };
    assert_eq!(metrics.value("loss"), Some(1.5));
    assert_eq!(metrics.value("training_loss"), Some(0.5));
    let throughput = metrics.value("throughput").unwrap();
    assert!(throughput > 0.0 && throughput <= 100.0 / 0.001, "{throughput}");
    // Steps 3 to 6, after the warm-up, and the evaluation.
    assert_eq!(reports.len(), 5);
}

#[test]
fn running_out_of_memory_and_diverging_are_outcomes_with_what_was_known() {
    let Some(folder) = adapters() else { return };
    let (_, state) = train(&folder, "out_of_memory", false);
    let TrialState::Failed { reason, metrics } = state else {
        panic!("{state:?}")
    };
    assert!(matches!(reason, FailReason::OutOfMemory { .. }), "{reason:?}");
    assert!(metrics.value("throughput").is_some());
    let (_, state) = train(&folder, "diverges", false);
    assert!(
        matches!(
            state,
            TrialState::Failed {
                reason: FailReason::Diverged { at_step: 4, .. },
                ..
            }
        ),
        "{state:?}"
    );
}

#[test]
fn crashes_and_settings_that_cannot_be_trained_say_why() {
    let Some(folder) = adapters() else { return };
    let reason = |mode| match train(&folder, mode, false).1 {
        TrialState::Failed { reason, .. } => reason,
        other => panic!("{other:?}"),
    };
    assert!(matches!(reason("crashes"), FailReason::Crashed { message, .. } if message.contains("KeyError: 'labels'")));
    assert!(matches!(reason("invalid"), FailReason::Invalid { message } if message.contains("`mode`")));
}

#[test]
fn a_training_that_is_stopped_ends_after_its_step_with_what_it_measured() {
    let Some(folder) = adapters() else { return };
    let (_, state) = train(&folder, "slow", true);
    let TrialState::Pruned { metrics, .. } = state else {
        panic!("{state:?}")
    };
    // It ended by itself, as the evaluation after the last step shows.
    assert_eq!(metrics.value("loss"), Some(1.5));
}
