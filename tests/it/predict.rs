//! Predicted bytes against those that the engine's allocator counts.

#[path = "../../examples/predict/cases.rs"]
mod cases;

use peft_tune_engine::profile::ceilings;

/// Other tests of this process would be counted too: the comparison runs in a process of its own.
#[test]
fn predicted_peak_memory_is_near_the_counted_one() {
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
    let (mut far, mut errors) = (Vec::new(), Vec::new());
    for case in cases::draw(16, 7) {
        let outcome = case.run(ceilings::host());
        assert_eq!(outcome.predicted_saved, outcome.counted_saved, "{}", case.describe());
        // On a busy machine a thread may get no part of the small ops, and then keeps no scratch: up to two mebibytes.
        let off = outcome.predicted.total().abs_diff(outcome.counted);
        errors.push(outcome.error().abs());
        if outcome.error().abs() > 0.04 && off > 2 << 20 {
            far.push(format!("{}: {:+.2}%", case.describe(), 100.0 * outcome.error()));
        }
    }
    assert!(far.is_empty(), "{}", far.join("\n"));
    errors.sort_by(f64::total_cmp);
    let median = errors[errors.len() / 2];
    assert!(median < 0.04, "half of all errors are above {:.2}%", 100.0 * median);
}
