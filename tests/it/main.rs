//! Integration tests, all in one binary: each further binary would link the whole engine again.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is how a test reports")]
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a test says what it left out, and why"
)]

use peft_tune_engine::profile::CountingAllocator;

/// Allocator of the program: tests measure memory.
#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

/// The program under test. Tests run side by side: a search that waited for a quiet moment would wait in vain.
fn program() -> std::process::Command {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_peft-tune"));
    command.env("PEFT_TUNE_WAIT_QUIET", "0s");
    command
}

/// Whether tests that take long run all of their cases: with `PEFT_TUNE_ALL_CASES`, as `just test-all` sets it.
fn has_all_cases() -> bool {
    std::env::var_os("PEFT_TUNE_ALL_CASES").is_some()
}

/// Cases of a test that takes long: a part of them, or all with `PEFT_TUNE_ALL_CASES`.
fn cases_of(all: usize, usually: usize) -> usize {
    match has_all_cases() {
        true => all,
        false => usually,
    }
}

/// Accuracies as objectives and constraints, measured on real trials.
mod accuracy;
/// Activations in 8 bits: trainings, searches and what is refused.
mod activations;
/// Models under a name of their own.
mod adopt;
/// Every way to look at a study says the same of it.
mod agreement;
mod baseline;
/// Budgets of time in a search.
mod budget;
/// Calls of the program on real trials; no tests of its own.
mod calls;
mod changed_inputs;
/// Loading model directories: shards, damage, disagreement with the configuration.
mod checkpoints;
/// Micro-batches from data files, against transformers' tokens and templates.
mod data;
/// Trials on several devices against the same on one, and what becomes of a device that dies or hangs.
mod data_parallel;
/// Measurements that something else on the machine slowed down.
mod disturbed;
/// The documents: widths, links, and what they say of commands, exit codes and predictions.
mod docs;
/// Reports of `doctor` for issues.
mod doctor;
/// Checks of the built-in engine on a GPU that a program plays, and what `backend: auto` makes of them.
mod engine_check;
/// Mixtures of experts beyond the checks that all families share: adapters as PEFT writes them, storage, bad inputs.
mod experts;
/// Explanations of what a study found, in words.
mod explain;
/// Files for other tools against golden ones.
mod export;
/// Exported files, read by what stands in for the installed tools.
mod export_check;
/// `export --receipt`: ten steps of a tool beside the engine's.
mod export_receipt;
/// Rows beside exported files.
mod export_rows;
/// Faults around trials: processes that die or hang, databases that fail, people who stop.
#[cfg(target_os = "linux")]
mod faults;
/// Trials that are stopped early, that inherit from others, or that are repeated.
mod fidelity;
/// The walls between the floors: who may use whom, and which folder a heavy dependency enters through.
mod floors;
/// Folders for databases; no tests of its own.
mod folders;
/// What trainings make a model forget, on real trials.
mod forgetting;
/// Gradients that overflow in fp16.
mod fp16_trials;
/// Training every parameter of the base model, and writing the trained model.
mod full_fine_tuning;
/// Models in GGUF form, read and written.
mod gguf;
/// Reading the references in `tests/golden/ref_*`; no tests of its own.
mod golden;
/// The launcher of the package with NVIDIA support.
#[cfg(unix)]
mod gpu_launch;
/// Numbers of a GPU that trials tell, as `show`, reports and the dashboard show them.
mod gpu_numbers;
/// The scripts that check and time a GPU, without one.
#[cfg(unix)]
mod gpu_scripts;
/// Layers that do not attend: what they keep, and that they keep to their documents.
mod hybrids;
/// Adapters for other trainers, with a stand-in for one.
mod integrations;
/// Kernels that fail, and the form of the ops that the search goes on in.
mod kernel_faults;
/// Trial processes that something else starts: Slurm, ssh, Kubernetes.
mod launchers;
/// Tools for agents, driven as a client does.
mod mcp;
/// Studies with a stand-in for the trial process; no tests of its own.
mod mocked;
/// Prices of devices: costs of plans and searches, and devices ranked by them.
mod money;
/// Language models inside of multimodal checkpoints.
mod multimodal;
/// Optimizers, schedules and clipping against their reference implementations.
mod optimizer;
/// Weights that other programs quantized, against their own readers.
mod packed;
/// The engine's losses, gradients and logits on every model family, against PEFT's.
mod parity;
/// PEFT adapter directories: reading, writing, and refusing damaged ones.
mod peft_directory;
/// Output of `plan` from dimensions alone.
mod plan;
/// Trials whose precision changes on their way.
mod precision_trials;
mod predict;
/// Proposals of samplers, as they were written down once.
mod proposals;
/// Trials that report on their way, and what a pruner makes of that.
mod pruning;
/// The script that counts what is said of public configs.
#[cfg(unix)]
mod public_configs;
/// Peaks of memory that others print, beside predictions of their settings.
mod published_peaks;
/// Quantized weights against bitsandbytes.
mod quant;
/// Trainings that take a later quantization into account: gradients, what is merged of them, what is refused.
mod quantization_aware;
/// Merged models that are quantized: what is written, read back and refused.
mod quantized_merge;
/// The assets of the quickstart, and the generator that made them.
mod quickstart;
/// Pages of the documentation that are made from the program's tables.
mod reference;
/// The door to the scripts.
#[cfg(unix)]
mod scripts;
/// Searches whose trials train together over one base model.
mod search_together;
/// Frozen weights that ranks share out.
mod sharded_weights;
/// Trials side by side that need the same measurement.
mod sharing;
/// Study and recipe files: what they mean, and what each mistake says.
mod space;
/// Studies for another tool's stack, and exports that fit its device.
mod target;
/// Trainings on one base in the same passes.
mod together;
/// The study loop with a stand-in for the trial process.
mod tune;
/// The tutorial and the how-tos, run as a reader would.
#[cfg(unix)]
mod tutorial;
/// The engine's kinds of adapter, optimizers and schedules, against PEFT's.
mod variants;
/// Ranges that widen by themselves.
mod widen;
/// The words with which doc comments begin.
mod words;

/// Cost and loss keys of single settings, on the real engine through a worker.
mod keys;
/// `query`, `show`, `pareto` and `studies` as people call them, on real database files.
mod query;
/// Cost and loss keys of every setting with every optimizer, against the table.
mod settings;

/// Evaluations that end early, beside the best one on the same rows.
mod rivals;

/// Programs under test that can be interrupted whoever runs the tests; no tests of its own.
#[cfg(unix)]
mod signals;

/// Uses of results: comparing, deleting, importing, exporting studies, and files that are not sound.
mod results;
mod rows;

/// Data sets of the hub: trainings against a stand-in for it, the cache, and what is said where there is nothing.
mod hub_data;
/// Files of other tools read as recipes, against what `export` writes.
mod import;
/// `init`: the study files it writes, and what it refuses.
mod init;

/// The space files that come with the program, and the schemas that editors complete them with.
mod spaces_shipped;
/// Sparse weights: what stays, trainings, searches, merged models and what is refused.
mod sparsity;
/// Plans of a study for one tool, and the baseline that they answer for.
mod stack_baseline;
/// The results database: files, layouts of other versions, resuming, being killed, and its document.
mod store;

/// Text from a model, and adapters merged into one.
mod generate;
/// Settings measured in depth, inference, and the spans behind both.
mod profile;
/// Servers of models that `infer-bench --url` measures.
mod served;
/// What a token costs that is served, as a goal.
mod serving;
/// Models whose LM head is the embedding: adapters on either end, and files with another one.
mod tied_embeddings;
/// Files of other tools as people write them, through the program: what becomes of each key, and what is refused by name.
mod tool_files;
/// Studies in experiment trackers.
mod trackers;
/// Whole trainings through the command: outputs, checkpoints, endings, event files.
mod train;
/// Scripts and notebooks that train, read as settings.
mod training_scripts;
/// Files that a trial in another stack trains from, beside what `export` writes.
mod trial_files;
/// One trial through a pool of workers; no tests of its own.
mod trial_run;
/// Searches whose trials the worker in Python trains, with stand-ins for PyTorch and TRL.
#[cfg(target_os = "linux")]
mod trl_backend;
/// Two engines that train the same, one of them with stand-ins for PyTorch and TRL.
#[cfg(target_os = "linux")]
mod trl_check;
/// Trials in TRL that other programs slow down, with stand-ins for PyTorch and TRL.
#[cfg(target_os = "linux")]
mod trl_disturbed;
/// Searches on models that only TRL may train, and the engine that `backend: auto` takes.
mod trl_families;
/// Searches on preferences through stand-ins of TRL's trainers.
#[cfg(target_os = "linux")]
mod trl_preferences;
/// Trials in TRL on several devices: the ranks of a worker, and how they end.
#[cfg(target_os = "linux")]
mod trl_ranks;
/// Searches whose trials TRL trains, without Python.
mod trl_search;
/// Searches whose models unsloth loads, with stand-ins for it, PyTorch and TRL.
#[cfg(target_os = "linux")]
mod unsloth_backend;
/// Searches that start from earlier studies in the same database.
mod warm_start;
/// Commands that are watched, with faults in them.
#[cfg(target_os = "linux")]
mod watch;

/// The pages in headless Chromium, where there is one.
mod browser;
/// The live page over real sockets: headers, who is turned away, news while a study runs, requests.
mod dashboard;
/// A study as a web page and as charts.
mod report;
