//! Trials on several devices against the same on one, and what becomes of a device that dies or hangs.
//!
//! On the CPU a device is a process. Gradients of several ranks differ from those of one only by the order in which
//! micro-batches are added up: n additions in F32 are off by at most n units in the last place of the largest partial sum,
//! and the tolerance below is four times that.
#![cfg(target_os = "linux")]

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use peft_tune::worker::{Evaluator, Launcher, Placement, PoolSettings, TrialEvent, WorkerPool};
use peft_tune_core::architecture::Architecture;
use peft_tune_core::objective::{Direction, LOSS, PEAK_MEMORY, THROUGHPUT};
use peft_tune_core::plan::{ShardedBytes, base_bytes};
use peft_tune_core::recipe::{BatchSettings, DataSettings, HeldOut, Precision, Recipe, Sharding, TrainingLength};
use peft_tune_core::score::{ScoreCommand, ScorePlan};
use peft_tune_core::study::{
    AccuracyPlan, FailReason, MeasurePlan, Metrics, Phase, TrainPlan, TrialNumber, TrialPlan, TrialState,
};
use peft_tune_engine::data::{BatchSource, MicroBatch, PreparedData, RowOrder};
use peft_tune_engine::hub::ModelFiles;
use peft_tune_engine::parallel::Collective;
use peft_tune_engine::{
    AnswerSettings, BaseModel, Control, EvaluatedRows, Generated, Prompt, RowLoss, RowWatch, StepEvent, Trainer,
};
use peft_tune_kernels::device;

use super::sharded_weights::on_all;
use super::trial_run::{self, complete};

const STEPS: u64 = 10;

fn recipe(devices: usize) -> Recipe {
    let assets = Path::new(env!("CARGO_MANIFEST_DIR")).join("search_spaces/quickstart");
    let data = DataSettings {
        train: vec![assets.join("train.jsonl")].into(),
        held_out: HeldOut::Files(vec![assets.join("held_out.jsonl")]),
        max_rows: Some(64),
        ..DataSettings::default()
    };
    let mut recipe = Recipe::new(assets.join("base").to_str().unwrap(), data);
    recipe.precision = Precision::Fp32;
    recipe.batch = BatchSettings {
        sequence_length: 64,
        micro_batch: 1,
        gradient_accumulation: 6 / devices,
        devices,
        ..BatchSettings::default()
    };
    recipe.adapter.as_mut().unwrap().rank = 4;
    // Masks depend on a row's place in the global batch, which each rank must know.
    recipe.adapter.as_mut().unwrap().dropout = 0.1;
    recipe.optimizer.learning_rate = 1e-2;
    recipe
}

/// Results of a training of [`STEPS`] steps.
struct Trained {
    events: Vec<StepEvent>,
    first_gradients: Vec<f32>,
    values: Vec<f32>,
    held_out_loss: f64,
    answers: Vec<Generated>,
    /// Passes that this rank made for answers.
    passes: usize,
}

/// Trains on the calling thread, as one of several ranks where there is a collective.
fn train(recipe: &Recipe, collective: Option<Arc<dyn Collective>>) -> Trained {
    let files = ModelFiles::resolve_weights(&recipe.model, &mut ()).unwrap();
    let data = PreparedData::of_recipe(recipe, &files).unwrap();
    let base = BaseModel::load(&files.folder, recipe.precision, &device::open("cpu").unwrap()).unwrap();
    let mut trainer = Trainer::new(Arc::new(base), recipe, STEPS).unwrap();
    if let Some(collective) = collective {
        trainer = trainer.with_collective(collective).unwrap();
    }
    let order = RowOrder::Shuffled { seed: 1 };
    let source = BatchSource::new(data.train().clone(), &recipe.batch, order).unwrap();
    let mut trained = Trained {
        events: Vec::new(),
        first_gradients: Vec::new(),
        values: Vec::new(),
        held_out_loss: 0.0,
        answers: Vec::new(),
        passes: 0,
    };
    for step in 0..STEPS {
        trained.events.push(trainer.step(&source.global_batch(step)).unwrap());
        if step == 0 {
            trained.first_gradients = trainer.parameters().gradients.to_vec1().unwrap();
        }
    }
    trained.values = trainer.parameters().values.to_vec1().unwrap();
    let held_out: Vec<MicroBatch> = peft_tune_engine::data::evaluation_batches(data.held_out(), 3, Some(16)).collect();
    trained.held_out_loss = trainer.evaluate(&held_out).unwrap().loss;
    let questions = data.held_out().questions(7);
    let prompts: Vec<Prompt<'_>> = questions
        .iter()
        .map(|question| Prompt {
            tokens: &question.prompt,
            stop_ids: &[],
        })
        .collect();
    let settings = AnswerSettings {
        max_tokens: 5,
        batch: 2,
    };
    let mut count = || {
        trained.passes += 1;
        Control::Continue
    };
    trained.answers = trainer.answers(&prompts, &settings, &mut count).unwrap();
    trained
}

/// Trains on `devices` ranks, each in a thread.
fn train_on(devices: usize) -> Vec<Trained> {
    let recipe = recipe(devices);
    on_all(devices, |collective| train(&recipe, Some(collective)))
}

/// The largest difference over the largest value.
fn difference(left: &[f32], right: &[f32]) -> f32 {
    assert_eq!(left.len(), right.len());
    let largest = right.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
    let differences = left.iter().zip(right).map(|(left, right)| (left - right).abs());
    differences.fold(0.0_f32, f32::max) / largest
}

#[test]
fn gradients_and_trainings_on_several_ranks_are_those_of_one_device() {
    let alone = train(&recipe(1), None);
    for devices in [1, 2, 3] {
        let ranks = train_on(devices);
        for rank in &ranks {
            assert_eq!(rank.values, ranks[0].values, "the same bits on every rank of {devices}");
            assert_eq!(rank.first_gradients, ranks[0].first_gradients);
        }
        let first = &ranks[0];
        if devices == 1 {
            assert_eq!(first.values, alone.values, "one rank is one device, bit for bit");
        }
        let off = difference(&first.first_gradients, &alone.first_gradients);
        assert!(
            off <= 4.0 * 6.0 * f32::EPSILON,
            "gradients of {devices} ranks are off by {off}"
        );
        for (found, expected) in first.events.iter().zip(&alone.events) {
            assert_eq!(
                (found.tokens, found.target_tokens),
                (expected.tokens, expected.target_tokens)
            );
            let off = (found.loss - expected.loss).abs() / expected.loss;
            assert!(off < 1e-4, "step {} of {devices} ranks: {off}", found.step);
        }
        // Ten steps of AdamW carry the last places of the first ones on.
        let off = difference(&first.values, &alone.values);
        assert!(off < 2e-3, "values after ten steps of {devices} ranks are off by {off}");
        let off = (first.held_out_loss - alone.held_out_loss).abs() / alone.held_out_loss;
        assert!(off < 1e-4, "held-out loss of {devices} ranks is off by {off}");
        // Each rank answers its own batches, and all know all answers.
        assert_eq!(first.answers.len(), 7);
        assert!(ranks.iter().all(|rank| rank.answers == alone.answers));
        let passes: Vec<usize> = ranks.iter().map(|rank| rank.passes).collect();
        assert_eq!(passes.iter().sum::<usize>(), alone.passes, "{passes:?}");
        assert!(
            devices == 1 || passes.iter().all(|own| *own < alone.passes),
            "{passes:?}"
        );
    }
}

#[test]
fn a_rank_that_waits_for_another_says_for_how_long() {
    const LATE: Duration = Duration::from_millis(800);
    let step = |recipe: &Recipe, collective: Option<Arc<dyn Collective>>, late: Duration| {
        let files = ModelFiles::resolve_weights(&recipe.model, &mut ()).unwrap();
        let data = PreparedData::of_recipe(recipe, &files).unwrap();
        let base = BaseModel::load(&files.folder, recipe.precision, &device::open("cpu").unwrap()).unwrap();
        let mut trainer = Trainer::new(Arc::new(base), recipe, 1).unwrap();
        if let Some(collective) = collective {
            trainer = trainer.with_collective(collective).unwrap();
        }
        let order = RowOrder::Shuffled { seed: 1 };
        let source = BatchSource::new(data.train().clone(), &recipe.batch, order).unwrap();
        // All are ready by now.
        std::thread::sleep(late);
        trainer.step(&source.global_batch(0)).unwrap().seconds
    };
    assert_eq!(step(&recipe(1), None, Duration::ZERO).link, 0.0);
    let two = recipe(2);
    let seconds = on_all(2, |collective| {
        let late = LATE * collective.rank() as u32;
        step(&two, Some(collective), late)
    });
    // A part of the wait may go to a first rank that has fewer cores meanwhile.
    assert!(seconds[0].link > 0.25 * LATE.as_secs_f64(), "{seconds:?}");
    for one in &seconds {
        assert!(
            one.link > 0.0 && one.link <= one.backward && one.backward < one.total,
            "{seconds:?}"
        );
    }
}

#[test]
fn a_step_at_the_end_of_an_epoch_that_has_no_rows_for_some_ranks_is_that_of_one_device() {
    // Epochs of 7 rows: steps of 6 rows and of 1, for which one rank has a micro-batch.
    let of = |devices: usize| {
        let mut recipe = recipe(devices);
        recipe.data.max_rows = Some(7);
        recipe
    };
    let alone = train(&of(1), None);
    let most = alone.events[0].tokens;
    assert!(alone.events[1].tokens < most && alone.events[3].tokens < most);
    let epochs = alone.events.chunks_exact(2);
    let tokens: BTreeSet<u64> = epochs.map(|steps| steps[0].tokens + steps[1].tokens).collect();
    assert_eq!(tokens.len(), 1, "each epoch takes the same rows: {tokens:?}");
    for devices in [2, 3] {
        let recipe = of(devices);
        let ranks = on_all(devices, |collective| train(&recipe, Some(collective)));
        assert!(ranks.iter().all(|rank| rank.values == ranks[0].values));
        for (found, expected) in ranks[0].events.iter().zip(&alone.events) {
            assert_eq!(
                (found.tokens, found.target_tokens),
                (expected.tokens, expected.target_tokens)
            );
            let off = (found.loss - expected.loss).abs() / expected.loss;
            assert!(off < 1e-4, "step {} of {devices} ranks: {off}", found.step);
            let off = (found.grad_norm - expected.grad_norm).abs() / expected.grad_norm;
            assert!(off < 1e-3, "gradients of step {} of {devices} ranks: {off}", found.step);
        }
        let off = difference(&ranks[0].values, &alone.values);
        assert!(off < 2e-3, "values after ten steps of {devices} ranks are off by {off}");
    }
}

/// Ends an evaluation at its first look.
struct EndsAt(usize);

impl RowWatch for EndsAt {
    fn next_look(&self) -> Option<usize> {
        Some(self.0)
    }

    fn look(&mut self, _: &[RowLoss]) -> Control {
        Control::Stop
    }
}

/// The loss, and those of the rows, of an untrained model over all rows, and of an evaluation that ends behind six.
fn evaluated(devices: usize, collective: Option<Arc<dyn Collective>>) -> (f64, [EvaluatedRows; 2]) {
    let recipe = recipe(devices);
    let files = ModelFiles::resolve_weights(&recipe.model, &mut ()).unwrap();
    let data = PreparedData::of_recipe(&recipe, &files).unwrap();
    let base = BaseModel::load(&files.folder, recipe.precision, &device::open("cpu").unwrap()).unwrap();
    let mut trainer = Trainer::new(Arc::new(base), &recipe, STEPS).unwrap();
    if let Some(collective) = collective {
        trainer = trainer.with_collective(collective).unwrap();
    }
    let held_out: Vec<MicroBatch> = peft_tune_engine::data::evaluation_batches(data.held_out(), 1, Some(16)).collect();
    let loss = trainer.evaluate(&held_out).unwrap().loss;
    let all = trainer.evaluate_rows(&held_out, &mut ()).unwrap();
    let part = trainer.evaluate_rows(&held_out, &mut EndsAt(6)).unwrap();
    (loss, [all, part])
}

#[test]
fn rows_of_an_evaluation_sum_to_its_loss_and_every_rank_knows_them() {
    let (loss, [all, part]) = evaluated(1, None);
    assert_eq!(all.evaluation.loss, loss, "the same bits");
    let sum: f64 = all.rows.iter().map(|row| row.loss).sum();
    let tokens: usize = all.rows.iter().map(|row| row.target_tokens).sum();
    assert!(all.rows.len() >= 16);
    assert_eq!(tokens as u64, all.evaluation.target_tokens);
    assert!((sum / tokens as f64 / loss - 1.0).abs() < 1e-9);
    // The rows of a part are rows of the whole, and not the first ones.
    assert_eq!(part.rows.len(), 6);
    assert!(part.rows.iter().all(|row| all.rows[row.row] == *row));
    assert!(part.rows.iter().any(|row| row.row >= 6), "{:?}", part.rows);
    for devices in [2, 3] {
        for (whole, [of_all, of_part]) in on_all(devices, |collective| evaluated(devices, Some(collective))) {
            assert_eq!((whole, &of_all.rows), (of_all.evaluation.loss, &all.rows));
            // A look comes when all ranks have gone through their rows.
            assert!((6..6 + devices).contains(&of_part.rows.len()), "{devices} ranks");
            assert!(of_part.rows.iter().all(|row| all.rows[row.row] == *row));
        }
    }
}

/// An evaluator whose processes all have `name` in their environment, and whose ranks wait so long for each other.
fn evaluator_with(name: &str, patience: Duration) -> WorkerPool {
    let patience = format!("PEFT_TUNE_RANK_PATIENCE_S={}", patience.as_secs());
    let prefix = ["env", &format!("PEFT_TUNE_TEST={name}"), &patience].map(str::to_owned);
    let launcher = Launcher::with_prefix(prefix.to_vec(), env!("CARGO_BIN_EXE_peft-tune").into());
    let mut settings = PoolSettings::new(launcher, vec![Placement::whole_machine(Some(2))]);
    settings.silent_after = Duration::from_secs(600);
    WorkerPool::new(settings)
}

fn evaluator(name: &str) -> WorkerPool {
    evaluator_with(name, Duration::from_secs(15))
}

fn plan(measured: u64, trained: u64) -> TrialPlan {
    TrialPlan {
        measure: (measured > 0).then_some(MeasurePlan {
            steps: measured,
            max_warmup_steps: 1,
            serve: None,
        }),
        train: (trained > 0).then_some(TrainPlan {
            length: TrainingLength::Steps(trained),
            evaluations: 1,
            evaluation_rows: Some(8),
            accuracy: AccuracyPlan::default(),
            seed_offset: 0,
        }),
    }
}

/// Runs a trial to its end and calls `watch` with each event before that.
fn run(
    evaluator: &mut WorkerPool,
    number: u64,
    trial: (Recipe, TrialPlan),
    watch: impl FnMut(&mut WorkerPool, &TrialEvent),
) -> TrialState {
    trial_run::run(evaluator, number, trial, Duration::from_secs(120), watch)
}

/// Processes with `name` in their environment and `word` among their arguments.
fn processes(name: &str, word: &str) -> Vec<i32> {
    let marker = format!("PEFT_TUNE_TEST={name}");
    let has = |path: std::path::PathBuf, text: &str| {
        let content = std::fs::read(path).unwrap_or_default();
        content.split(|byte| *byte == 0).any(|part| part == text.as_bytes())
    };
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let ids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    ids.filter(|id| {
        let folder = Path::new("/proc").join(id.to_string());
        has(folder.join("environ"), &marker) && has(folder.join("cmdline"), word)
    })
    .collect()
}

fn signal(id: i32, signal: i32) {
    // SAFETY: sends a signal to a process that this test started.
    assert_eq!(unsafe { libc::kill(id, signal) }, 0);
}

/// The process that is rank `rank`.
fn rank_process(name: &str, rank: usize) -> i32 {
    let is_it = |id: &&i32| {
        let line = std::fs::read_to_string(format!("/proc/{id}/cmdline")).unwrap_or_default();
        line.contains(&format!("--rank\0{rank}\0"))
    };
    *processes(name, "rank").iter().find(is_it).unwrap()
}

fn wait_until_gone(name: &str) {
    let began = Instant::now();
    while !processes(name, "rank").is_empty() {
        assert!(began.elapsed() < Duration::from_secs(20), "ranks are left over");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn shared_memory() -> BTreeSet<String> {
    let entries = std::fs::read_dir("/dev/shm").unwrap().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.contains("peft")).collect()
}

#[test]
fn a_trial_on_two_processes_measures_both_and_trains_as_one() {
    let name = "whole";
    let mut evaluator = evaluator(name);
    let one = complete(run(&mut evaluator, 0, (recipe(1), plan(3, STEPS)), |_, _| {}));
    assert!(processes(name, "rank").is_empty(), "one device needs no ranks");
    let mut steps = 0;
    let two = complete(run(&mut evaluator, 1, (recipe(2), plan(3, STEPS)), |_, event| {
        if let TrialEvent::Step { step, .. } = event {
            assert!(step.seconds.total > 0.0);
            steps += 1;
        }
    }));
    assert_eq!(
        steps, STEPS,
        "told once each, the measured ones are the first of the training"
    );
    assert_eq!(recipe(1).loss_key(), recipe(2).loss_key());
    assert_ne!(recipe(1).cost_key(), recipe(2).cost_key());
    let loss = |metrics: &Metrics| metrics.value(LOSS).unwrap();
    assert!(
        (loss(&one) - loss(&two)).abs() < 1e-4 * loss(&one),
        "{} and {}",
        loss(&one),
        loss(&two)
    );
    assert_eq!(
        one.value("train_tokens"),
        two.value("train_tokens"),
        "tokens of all devices"
    );
    assert!(two.value(THROUGHPUT).unwrap() > 0.0);
    // One device's part: the base model is on each.
    let memory = two.value(PEAK_MEMORY).unwrap() / one.value(PEAK_MEMORY).unwrap();
    assert!((0.7..1.3).contains(&memory), "{memory}");
    // The ranks stay for the next trial.
    let before = processes(name, "rank");
    assert_eq!(before.len(), 2);
    complete(run(&mut evaluator, 2, (recipe(2), plan(0, 2)), |_, _| {}));
    assert_eq!(processes(name, "rank"), before);
    drop(evaluator);
    wait_until_gone(name);
    assert!(shared_memory().is_empty());
}

/// The recipe with weights that its devices share out.
fn sharded(devices: usize) -> Recipe {
    let mut recipe = recipe(devices);
    recipe.batch.sharding = Sharding::Full;
    recipe
}

#[test]
fn trials_on_shared_weights_have_the_loss_of_whole_ones_and_hold_less() {
    let name = "sharded";
    let mut evaluator = evaluator(name);
    let whole = complete(run(&mut evaluator, 0, (recipe(2), plan(2, STEPS)), |_, _| {}));
    let shared = complete(run(&mut evaluator, 1, (sharded(2), plan(2, STEPS)), |_, _| {}));
    assert_eq!(shared.value(LOSS), whole.value(LOSS), "to the last bit");
    assert_eq!(recipe(2).loss_key(), sharded(2).loss_key());
    assert_ne!(recipe(2).cost_key(), sharded(2).cost_key());
    let held = |metrics: &Metrics| metrics.value("base_memory_bytes").unwrap();
    let config = Path::new(&recipe(2).model).join("config.json");
    let architecture = Architecture::from_config(&config).unwrap();
    let expected = ShardedBytes::new(&architecture, Precision::Fp32, 2);
    assert_eq!(held(&shared), (expected.own.values + expected.windows.values) as f64);
    assert_eq!(
        held(&whole),
        base_bytes(&architecture, Precision::Fp32, Default::default()).values as f64
    );
    // Four layers of which two are in windows: as much as before. Of more layers less is there, which `predict` measures.
    assert_eq!(held(&shared), held(&whole));
    // What a rank has of its model stays for the next trial, and goes where that wants all of it.
    for (number, recipe) in [(2, sharded(2)), (3, recipe(2)), (4, sharded(3))] {
        let again = complete(run(&mut evaluator, number, (recipe.clone(), plan(0, STEPS)), |_, _| {}));
        if recipe.batch.devices == 2 {
            assert_eq!(again.value(LOSS), whole.value(LOSS));
        }
    }
    drop(evaluator);
    wait_until_gone(name);
}

#[test]
fn a_rank_that_cannot_answer_is_named_to_the_others_and_nobody_waits() {
    let recipe = recipe(2);
    let files = ModelFiles::resolve_weights(&recipe.model, &mut ()).unwrap();
    let base = BaseModel::load(&files.folder, recipe.precision, &device::open("cpu").unwrap()).unwrap();
    let base = Arc::new(base);
    // An empty prompt cannot be answered, and the third is of the second rank's batch.
    let tokens: [&[u32]; 4] = [&[1, 2], &[3], &[], &[4]];
    let prompts = tokens.map(|tokens| Prompt { tokens, stop_ids: &[] });
    let settings = AnswerSettings {
        max_tokens: 2,
        batch: 2,
    };
    let errors = on_all(2, |collective| {
        let trainer = Trainer::new(base.clone(), &recipe, 1).unwrap();
        let mut trainer = trainer.with_collective(collective).unwrap();
        let answers = trainer.answers(&prompts, &settings, &mut || Control::Continue);
        answers.unwrap_err().to_string()
    });
    assert!(errors[0].contains("rank 1 of 2 could not do its part"), "{errors:?}");
    assert!(!errors[1].contains("rank"), "its own reason: {errors:?}");
}

#[test]
fn answers_are_those_of_one_device_however_many_share_them_out() {
    let mut evaluator = evaluator("answers");
    let folder = tempfile::tempdir().unwrap();
    let mut answered = |number: u64, recipe: Recipe| {
        let rows = folder.path().join(number.to_string());
        let mut plan = plan(0, STEPS);
        let train = plan.train.as_mut().unwrap();
        train.accuracy.is_required = true;
        train.accuracy.score = Some(Box::new(ScorePlan {
            rows: 5,
            max_new_tokens: 6,
            batch: 2,
            exact_match: None,
            command: Some(ScoreCommand {
                command: ["sh", "-c", "cat >> \"$ROWS\"; echo '{\"scored\": 1}'"]
                    .map(str::to_owned)
                    .to_vec(),
                folder: folder.path().to_owned(),
                env: [("ROWS".to_owned(), rows.display().to_string())].into(),
                timeout_s: 60.0,
                metrics: [("scored".to_owned(), Direction::Maximize)].into(),
            }),
        }));
        let metrics = complete(run(&mut evaluator, number, (recipe, plan), |_, _| {}));
        assert_eq!(
            (metrics.value("answers"), metrics.value("scored")),
            (Some(5.0), Some(1.0))
        );
        std::fs::read_to_string(rows).unwrap()
    };
    let alone = answered(0, recipe(1));
    assert_eq!(alone.lines().count(), 5, "{alone}");
    for (number, recipe) in [(1, recipe(2)), (2, recipe(3)), (3, sharded(2))] {
        assert_eq!(answered(number, recipe), alone, "trial {number}");
    }
    drop(evaluator);
    wait_until_gone("answers");
}

/// Runs a long trial on two ranks, does something to rank 1 in its midst, and returns the reason of its end.
fn disturbed(name: &str, recipe: Recipe, disturb: fn(i32)) -> FailReason {
    // One that hangs is waited for.
    let mut evaluator = evaluator_with(name, Duration::from_secs(5));
    let mut done = false;
    let state = run(&mut evaluator, 0, (recipe.clone(), plan(0, 100_000)), |_, event| {
        if let (TrialEvent::Step { step, .. }, false) = (event, done)
            && step.step == 5
        {
            disturb(rank_process(name, 1));
            done = true;
        }
    });
    let TrialState::Failed { reason, .. } = state else {
        panic!("{state:?}")
    };
    wait_until_gone(name);
    // The trial process is as good as before.
    complete(run(&mut evaluator, 1, (recipe, plan(0, 2)), |_, _| {}));
    drop(evaluator);
    wait_until_gone(name);
    assert!(shared_memory().is_empty());
    reason
}

#[test]
fn a_rank_that_is_killed_ends_the_others_and_is_named() {
    for (name, recipe) in [("killed", recipe(2)), ("killed-sharded", sharded(2))] {
        let reason = disturbed(name, recipe, |rank| signal(rank, libc::SIGKILL));
        let FailReason::Crashed { phase, message } = reason else {
            panic!("{reason:?}")
        };
        assert_eq!(phase, Phase::Train);
        assert!(
            message.contains("rank 1 of 2") && message.contains("signal 9"),
            "{message}"
        );
    }
}

#[test]
fn a_rank_that_hangs_ends_the_others_and_is_named() {
    for (name, recipe) in [("hangs", recipe(2)), ("hangs-sharded", sharded(2))] {
        let reason = disturbed(name, recipe, |rank| signal(rank, libc::SIGSTOP));
        let FailReason::Crashed { message, .. } = reason else {
            panic!("{reason:?}")
        };
        assert!(message.contains("rank 1 of 2 has not arrived within 5 s"), "{message}");
    }
}

#[test]
fn a_trial_on_several_ranks_can_be_stopped_and_leaves_nothing_when_its_process_is_killed() {
    let name = "stopped";
    let mut evaluator = evaluator(name);
    let state = run(&mut evaluator, 0, (recipe(2), plan(0, 100_000)), |evaluator, event| {
        if matches!(event, TrialEvent::Step { step, .. } if step.step == 3) {
            evaluator.cancel(TrialNumber(0)).unwrap();
        }
    });
    assert!(
        matches!(state, TrialState::Pruned { at_step, .. } if at_step >= 3),
        "{state:?}"
    );
    let state = run(&mut evaluator, 1, (recipe(2), plan(0, 100_000)), |_, event| {
        if matches!(event, TrialEvent::Step { step, .. } if step.step == 3) {
            signal(processes(name, "worker")[0], libc::SIGKILL);
        }
    });
    assert!(matches!(state, TrialState::Failed { .. }), "{state:?}");
    wait_until_gone(name);
}

#[test]
fn a_share_that_does_not_divide_the_global_batch_says_so() {
    use peft_tune::space::{ReadOptions, StudyFile, recipe_for};
    use peft_tune_core::study::Params;
    let text = "model: m\ndata: {train: t.jsonl}\nspace: {micro_batch: 2, devices: [1, 2, 3], global_batch: 8}\n";
    let study = StudyFile::parse(Path::new("s.yaml"), text, ReadOptions { check_files: false }).unwrap();
    let with = |devices: i64| recipe_for(&study, &Params::from([("devices".to_owned(), devices.into())]));
    let recipe = with(2).unwrap();
    assert_eq!((recipe.batch.devices, recipe.batch.gradient_accumulation), (2, 2));
    assert_eq!(recipe.batch.global_batch(), 8);
    let error = with(3).unwrap_err().to_string();
    assert!(error.contains("times 3 `devices`"), "{error}");
}
