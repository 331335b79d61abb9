//! Predicted bytes against those that the engine's allocator counts.

#[path = "../../examples/predict/cases.rs"]
mod cases;

use std::collections::BTreeSet;

use peft_tune_core::plan::ModelPlan;
use peft_tune_core::recipe::{OptimizerKind, PrecisionSchedule, QuantizationAware, Recipe, Sharding, WeightSparsity};
use peft_tune_engine::profile::ceilings;

/// Error that a prediction may have at most against the counted peak: what docs/prediction.md claims.
const TOLERANCE: f64 = 0.02;

/// Error for the whole model trained by an optimizer that works on one matrix at a time: which of them is there at the
/// peak is bounded from above.
const TOLERANCE_OF_MATRICES: f64 = 0.07;

/// Error with steps in F32 on weights of 16 bits: what is bounded from above in such a step is a larger share of a
/// total in which the weights take half; with AMX, whose buffers of both dtypes are kept, it is 4.3% in one recipe.
const TOLERANCE_OF_SCHEDULES: f64 = 0.05;

/// Most that two errors of one recipe differ by, with whole weights and with shared ones.
const SAME_ERROR: f64 = 0.002;

fn tolerance(recipe: &Recipe) -> f64 {
    let by_matrices = matches!(recipe.optimizer.kind, OptimizerKind::Adafactor | OptimizerKind::Muon);
    match recipe.adapter.is_none() && by_matrices {
        true => TOLERANCE_OF_MATRICES,
        false if !recipe.precision_schedule.is_none() => TOLERANCE_OF_SCHEDULES,
        false => TOLERANCE,
    }
}

/// Other tests of this process would be counted too: the comparison runs in a process of its own. It has one thread: of
/// several, each comes to some of an op's tasks or to none as chance has it, and keeps what they ask for or does not.
#[test]
fn predicted_peak_memory_is_within_two_percent_of_the_counted_one() {
    let program = std::env::current_exe().unwrap();
    let run = std::process::Command::new(program)
        .args(["--ignored", "--exact", "predict::alone"])
        .env("RAYON_NUM_THREADS", "1")
        .output()
        .unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stdout));
}

#[test]
#[ignore = "counts every byte of its process; the test above runs it"]
fn alone() {
    let mut far = Vec::new();
    for case in first_of_each_family(cases::draw(64, 7, &[64, 128, 200])) {
        let outcome = case.run(ceilings::host());
        assert_eq!(outcome.predicted_saved, outcome.counted_saved, "{}", case.describe());
        if outcome.error().abs() > tolerance(&case.recipe) {
            far.push(format!("{}: {:+.2}%", case.describe(), 100.0 * outcome.error()));
        }
    }
    // Steps in F32 on weights of 16 bits, as a schedule of the precision has them.
    let schedules = ["fp32_1", "adaptive_1"].map(|name| PrecisionSchedule::from_name(name).unwrap());
    let cases = cases::draw(32, 11, &[64, 128, 200]);
    let both = cases.iter().zip(schedules.iter().cycle());
    let cases: Vec<_> = both.filter_map(|(case, schedule)| scheduled(case, *schedule)).collect();
    assert!(cases.len() > 8);
    for case in every_second(cases) {
        let outcome = case.run(ceilings::host());
        if outcome.error().abs() > tolerance(&case.recipe) {
            far.push(format!("{}: {:+.2}%", case.describe(), 100.0 * outcome.error()));
        }
    }
    // One rank of those that share the weights out.
    let cases = cases::draw(32, 13, &[64, 128, 200]);
    let ranks = [2, 3, 8];
    let cases: Vec<_> = cases
        .iter()
        .zip(ranks.iter().cycle())
        .filter_map(|(case, ranks)| shared_out(case, *ranks))
        .collect();
    assert!(cases.len() > 8);
    for case in every_second(cases) {
        let outcome = case.run(ceilings::host());
        // What is missed with whole weights as well is none of this.
        let whole = || with_whole_weights(&case).run(ceilings::host()).error();
        if outcome.error().abs() > tolerance(&case.recipe) && (outcome.error() - whole()).abs() > SAME_ERROR {
            far.push(format!(
                "{}, shared out: {:+.2}%",
                case.describe(),
                100.0 * outcome.error()
            ));
        }
    }
    // Weights of which two of four values are left out, where the recipe has a place for that.
    let cases: Vec<_> = cases::draw(32, 13, &[64, 128, 200]).iter().filter_map(sparse).collect();
    assert!(cases.len() > 8);
    for case in every_second(cases) {
        let outcome = case.run(ceilings::host());
        assert_eq!(outcome.predicted_saved, outcome.counted_saved, "{}", case.describe());
        if outcome.error().abs() > tolerance(&case.recipe) {
            far.push(format!("{}: {:+.2}%", case.describe(), 100.0 * outcome.error()));
        }
    }
    // Several trainings on one base, where the recipe can be one of them.
    let mut groups = 0;
    let drawn = cases::draw(24, 17, &[64, 128, 200]).into_iter();
    let together = drawn.filter_map(|case| case.run_together(ceilings::host()).map(|bytes| (case, bytes)));
    for (case, (counted, predicted)) in together.take(crate::cases_of(usize::MAX, 9)) {
        groups += 1;
        let error = predicted.total() as f64 / counted as f64 - 1.0;
        if error.abs() > TOLERANCE {
            far.push(format!("{}, three together: {:+.2}%", case.describe(), 100.0 * error));
        }
    }
    assert!(groups > 8, "{groups}");
    assert!(far.is_empty(), "{}", far.join("\n"));
}

/// The first case of each family, or all cases of a long test.
fn first_of_each_family(cases: Vec<cases::Case>) -> Vec<cases::Case> {
    let mut families = BTreeSet::new();
    let is_first = |case: &cases::Case| families.insert(case.family) || crate::has_all_cases();
    cases.into_iter().filter(is_first).collect()
}

/// Every second case, or all cases of a long test.
fn every_second(cases: Vec<cases::Case>) -> Vec<cases::Case> {
    cases.into_iter().step_by(crate::cases_of(1, 2)).collect()
}

fn with_whole_weights(case: &cases::Case) -> cases::Case {
    let mut recipe = case.recipe.clone();
    (recipe.batch.devices, recipe.batch.sharding) = (1, Sharding::None);
    cases::Case {
        family: case.family,
        config: case.config.clone(),
        recipe,
        rows: case.rows,
        length: case.length,
    }
}

/// Returns the case as one of `ranks` ranks; `None` where the recipe freezes nothing, or cannot be shared out.
fn shared_out(case: &cases::Case, ranks: usize) -> Option<cases::Case> {
    let mut recipe = case.recipe.clone();
    recipe.quantization_aware = QuantizationAware::None;
    (recipe.batch.devices, recipe.batch.sharding) = (ranks, Sharding::Full);
    recipe.check_sharding().is_ok().then(|| cases::Case {
        family: case.family,
        config: case.config.clone(),
        recipe,
        rows: case.rows,
        length: case.length,
    })
}

/// Returns the case with sparse weights; `None` where the recipe or the model has no place for them.
fn sparse(case: &cases::Case) -> Option<cases::Case> {
    let mut recipe = case.recipe.clone();
    (recipe.quantization_aware, recipe.weight_sparsity) = (QuantizationAware::None, WeightSparsity::Magnitude);
    ModelPlan::of_recipe(&case.architecture(), &recipe)
        .is_ok()
        .then(|| cases::Case {
            family: case.family,
            config: case.config.clone(),
            recipe,
            rows: case.rows,
            length: case.length,
        })
}

/// Returns the case with a schedule, whose first step is in F32, and with more steps that are ready ahead; `None` where
/// the precision has none.
fn scheduled(case: &cases::Case, schedule: PrecisionSchedule) -> Option<cases::Case> {
    let mut recipe = case.recipe.clone();
    recipe.quantization_aware = QuantizationAware::None;
    recipe.precision_schedule = schedule;
    recipe.batch.prefetch_depth = 16;
    recipe.check_precision_schedule(None).is_ok().then(|| cases::Case {
        family: case.family,
        config: case.config.clone(),
        recipe,
        rows: case.rows,
        length: case.length,
    })
}
