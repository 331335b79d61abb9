//! Findings of the diagnosis, each raised by steps that have the fault: on the processor, and in TRL by its stand-ins.
//! `scripts/gpu/stand-in-test.sh` meets on the GPU in software what only a GPU raises.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use peft_tune_engine::profile::diagnosis::Rule;
use serde_json::Value;

use super::command::{recipe, shown};
use super::trl;
use crate::mocked::errors_of;
use crate::trl_backend::has_python;

/// Time in which some profile must show a fault.
const PATIENCE: Duration = Duration::from_secs(240);

/// Words of the recipe without a fault.
const ADAPTER: &str = "adapter: {rank: 4}";
const BATCH: &str = "micro_batch: 2, gradient_accumulation: 2, sequence_length: 64";
const DATA: &str = "data: {train: train.jsonl}";
const MODEL: &str = "tests/golden/ref_llama/model";
const PRECISION: &str = "precision: fp32";

/// Recipe whose steps on the processor have a fault.
struct Faulty {
    /// Words of the recipe without one, and what stands in their place.
    changes: &'static [(&'static str, &'static str)],
    arguments: &'static [&'static str],
    /// Rules that find the fault.
    rules: &'static [Rule],
}

const FAULTY: &[Faulty] = &[
    // A step of a millisecond: logging it and updating codes take their part, and save nothing.
    Faulty {
        changes: &[
            (ADAPTER, "adapter: {rank: 2}\noptimizer: {kind: adamw_8bit}"),
            (BATCH, "micro_batch: 1, gradient_accumulation: 1, sequence_length: 8"),
        ],
        arguments: &[],
        rules: &[Rule::LogsTooOften, Rule::Needless8bit],
    },
    // Ops that are over as soon as they have begun.
    Faulty {
        changes: &[(BATCH, "micro_batch: 1, gradient_accumulation: 2, sequence_length: 4")],
        arguments: &["--threads", "1", "--memory-limit", "1GiB"],
        rules: &[Rule::SmallMicroBatch, Rule::RoomForALargerMicroBatch],
    },
    Faulty {
        changes: &[
            (ADAPTER, "adapter: null"),
            (BATCH, "micro_batch: 1, gradient_accumulation: 1, sequence_length: 8"),
        ],
        arguments: &["--memory-limit", "1MiB"],
        rules: &[Rule::OptimizerState],
    },
    // Rows of 23 tokens on average, where 64 may be.
    Faulty {
        changes: &[(PRECISION, "precision: fp32\ngradient_checkpointing: full")],
        arguments: &[],
        rules: &[Rule::RecomputesWithRoomLeft, Rule::ShortRows],
    },
    // The highest rank that the smallest weight takes.
    Faulty {
        changes: &[(ADAPTER, "adapter: {rank: 32}")],
        arguments: &[],
        rules: &[Rule::RankTooHigh],
    },
    Faulty {
        changes: &[(
            DATA,
            "data: {train: train.jsonl, held_out: 0.5}\ntraining: {length: {steps: 100}, evaluate_every: 1}",
        )],
        arguments: &[],
        rules: &[Rule::EvaluatesTooOften],
    },
    // Few tokens for each weight that is widened.
    Faulty {
        changes: &[
            (MODEL, "search_spaces/quickstart/base"),
            (PRECISION, "precision: nf4"),
            (BATCH, "micro_batch: 2, gradient_accumulation: 1, sequence_length: 16"),
        ],
        arguments: &[],
        rules: &[Rule::DequantizationBound],
    },
];

/// Recipe whose steps in TRL have a fault.
struct FaultyInTrl {
    recipe: &'static str,
    /// Variables by which the stand-ins have it.
    variables: &'static [(&'static str, &'static str)],
    rule: Rule,
}

const FAULTY_IN_TRL: &[FaultyInTrl] = &[
    // Rows come from a slow disk.
    FaultyInTrl {
        recipe: "",
        variables: &[("STAND_IN_ROW_S", "0.005")],
        rule: Rule::DataBound,
    },
    FaultyInTrl {
        recipe: "torch: {attn_implementation: eager}\n",
        variables: &[],
        rule: Rule::EagerAttention,
    },
    // Updates take longer than both passes.
    FaultyInTrl {
        recipe: "",
        variables: &[("STAND_IN_STEP_S", "0.02")],
        rule: Rule::SlowUpdates,
    },
];

/// Threads that keep processors busy beside a profile, until this is dropped.
struct Neighbours {
    is_over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Neighbours {
    /// Begins to keep every second processor busy.
    fn begin() -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let threads = (0..processors.div_ceil(2)).map(|_| {
            let is_over = Arc::clone(&is_over);
            std::thread::spawn(move || keep_busy(&is_over))
        });
        Self {
            threads: threads.collect(),
            is_over,
        }
    }
}

/// Keeps a processor busy until somebody says that it is over.
fn keep_busy(is_over: &AtomicBool) {
    while !is_over.load(Ordering::Relaxed) {
        std::hint::spin_loop();
    }
}

impl Drop for Neighbours {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().unwrap();
        }
    }
}

/// Names of the rules that found something.
fn found(profile: &[u8]) -> BTreeSet<String> {
    let result: Value = serde_json::from_slice(profile).unwrap();
    let findings = result["diagnosis"].as_array().unwrap().iter();
    findings
        .map(|finding| finding["rule"].as_str().unwrap().to_owned())
        .collect()
}

/// Profiles until all of `rules` have found something: where other programs take the processors, a later one shows it.
fn assert_found(directory: &Path, arguments: &[&str], rules: &[Rule]) {
    let line = [&["profile", "recipe.yaml", "--json"][..], arguments].concat();
    let begun = Instant::now();
    let mut seen = BTreeSet::new();
    while !rules.iter().all(|rule| seen.contains(rule.name())) {
        assert!(begun.elapsed() < PATIENCE, "{rules:?} are not all among {seen:?}");
        seen.extend(found(shown(&line, directory).as_bytes()));
    }
}

#[test]
fn steps_that_have_a_fault_say_so() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let sound = std::fs::read_to_string(recipe(directory, "")).unwrap();
    for faulty in FAULTY {
        let changed = faulty.changes.iter().fold(sound.clone(), |text, (from, to)| {
            assert!(text.contains(from), "{from} is not in {text}");
            text.replace(from, to)
        });
        std::fs::write(directory.join("recipe.yaml"), changed).unwrap();
        let arguments = [&["--budget", "500ms"][..], faulty.arguments].concat();
        assert_found(directory, &arguments, faulty.rules);
    }
}

#[test]
fn programs_that_take_processors_from_a_profile_are_noticed() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    recipe(directory, "");
    // What the machine can do is measured and kept before.
    shown(&["profile", "recipe.yaml", "--budget", "100ms"], directory);
    let _neighbours = Neighbours::begin();
    // The device is looked at five times a second.
    let arguments = ["--budget", "4s", "--interval", "0.001"];
    assert_found(directory, &arguments, &[Rule::NoisyNeighbour]);
}

#[test]
fn steps_in_trl_that_have_a_fault_say_so() {
    if !has_python() {
        return;
    }
    for faulty in FAULTY_IN_TRL {
        let folder = trl::bench(faulty.recipe);
        let arguments = ["recipe.yaml", "--budget", "300ms", "--no-store", "--json"];
        let mut command = trl::profile(folder.path(), &arguments);
        let output = command.envs(faulty.variables.iter().copied()).output().unwrap();
        assert!(output.status.success(), "{}", errors_of(&output));
        let found = found(&output.stdout);
        assert!(found.contains(faulty.rule.name()), "{:?}: {found:?}", faulty.rule);
        if faulty.rule == Rule::DataBound && cfg!(target_os = "linux") {
            // The stand-in sleeps, which is neither a processor's work nor a disk's.
            let evidence = evidence_of(&output.stdout, faulty.rule);
            assert!(evidence.contains("and a disk reads next to nothing"), "{evidence}");
        }
    }
}

/// Evidence of the finding of a rule.
fn evidence_of(profile: &[u8], rule: Rule) -> String {
    let result: Value = serde_json::from_slice(profile).unwrap();
    let mut findings = result["diagnosis"].as_array().unwrap().iter();
    let finding = findings.find(|finding| finding["rule"] == rule.name()).unwrap();
    finding["evidence"].as_str().unwrap().to_owned()
}

/// Rows that lie in memory are prepared by a thread that computes.
#[cfg(target_os = "linux")]
#[test]
fn a_profile_says_what_the_thread_that_prepares_rows_does() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    recipe(directory, "");
    let text = shown(
        &["profile", "recipe.yaml", "--budget", "300ms", "--json", "--no-store"],
        directory,
    );
    let result: Value = serde_json::from_str(&text).unwrap();
    let waits = &result["profile"]["data"]["waits"];
    let processor_s = waits["thread"]["processor_s"].as_f64().unwrap();
    // The kernel counts a thread's time a little before and behind.
    let preparing_s = waits["preparing_s"].as_f64().unwrap();
    assert!(processor_s > 0.0 && processor_s < 2.0 * preparing_s + 1e-4, "{waits:#}");
    assert!(waits["thread"]["read_bytes"].as_f64().unwrap() >= 0.0, "{waits:#}");
}

#[test]
fn every_rule_is_documented_and_finds_something_in_a_real_step() {
    let read = |path: &str| std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap();
    let (page, on_a_gpu) = (read("docs/profiling.md"), read("scripts/gpu/stand-in-test.sh"));
    let on_the_processor = FAULTY.iter().flat_map(|faulty| faulty.rules).copied();
    let in_trl = FAULTY_IN_TRL.iter().map(|faulty| faulty.rule);
    let raised: Vec<Rule> = on_the_processor.chain(in_trl).chain([Rule::NoisyNeighbour]).collect();
    let table = page
        .split("\n## ")
        .find(|part| part.starts_with("Diagnosis\n"))
        .unwrap();
    let rows = table.lines().filter(|line| line.starts_with("| `"));
    assert_eq!(rows.count(), Rule::ALL.len());
    for rule in Rule::ALL {
        let name = rule.name();
        assert!(table.contains(&format!("\n| `{name}` |")), "there is no row for {name}");
        assert!(
            raised.contains(rule) || on_a_gpu.contains(name),
            "no real step raises {name}"
        );
    }
}
