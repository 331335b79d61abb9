//! Predicted bytes against those that the engine's allocator counts.

#[path = "../../examples/predict/cases.rs"]
mod cases;

use peft_tune::profile::ceilings;

/// Other tests of this process would be counted too: the comparison runs in a process of its own.
#[test]
fn predicted_peak_memory_is_within_two_percent_of_the_counted_one() {
    let program = std::env::current_exe().unwrap();
    let run = std::process::Command::new(program)
        .args(["--ignored", "--exact", "predict::alone"])
        .output()
        .unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stdout));
}

#[test]
#[ignore = "counts every byte of its process; the test above runs it"]
fn alone() {
    let mut far = Vec::new();
    for case in cases::draw(16, 7) {
        let outcome = case.run(ceilings::host());
        assert_eq!(outcome.predicted_saved, outcome.counted_saved, "{}", case.describe());
        // On a busy machine a thread may get no part of the small ops, and then keeps no scratch: half a mebibyte.
        let off = outcome.predicted.total().abs_diff(outcome.counted);
        if outcome.error().abs() > 0.02 && off > 512 << 10 {
            far.push(format!("{}: {:+.2}%", case.describe(), 100.0 * outcome.error()));
        }
    }
    assert!(far.is_empty(), "{}", far.join("\n"));
}
