//! Study files and recipe files: what a sound one means, and what each kind of mistake says.

use std::path::Path;

use peft_tune::objective::{Bound, Direction};
use peft_tune::recipe::{Checkpointing, HeldOut, OptimizerKind, Recipe, TargetModules, TrainingLength};
use peft_tune::space::file::StudyFile;
use peft_tune::space::{
    Backend, Distribution, Effect, ReadOptions, RecipeError, RecipeFile, SamplerKind, Scale, SpaceError, Study,
    bindings, params_of, recipe_for,
};
use peft_tune::study::{ParamValue, Params};

/// A folder with a model directory and data files, as a study file expects them beside it.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("base")).unwrap();
    for name in ["base/config.json", "train.jsonl", "held_out.jsonl"] {
        std::fs::write(folder.path().join(name), "{}").unwrap();
    }
    folder
}

/// Reads `text` as a file of such a folder.
fn read(text: &str) -> Result<Study, SpaceError> {
    let folder = folder();
    let path = folder.path().join("space.yaml");
    std::fs::write(&path, text).unwrap();
    StudyFile::read(&path)
}

/// The study of a file with this `space` section and these further lines.
fn study(space: &str, rest: &str) -> Result<Study, SpaceError> {
    read(&format!(
        "model: ./base\ndata: {{train: train.jsonl, held_out: held_out.jsonl}}\n{rest}\nspace:\n{space}\n"
    ))
}

/// The message about a file, without the folder it happens to lie in.
fn message(result: Result<impl Sized, SpaceError>) -> String {
    let error = result.err().expect("the file is wrong");
    let text = error.to_string();
    match text.find(".yaml") {
        Some(end) => {
            let start = text[..end].rfind(['/', ' ']).map_or(0, |slash| slash + 1);
            let before = text[..start].find('/').map_or(&text[..start], |slash| &text[..slash]);
            format!("{before}{}", &text[start..])
        }
        None => text,
    }
}

/// The message about a `space` section.
fn space(section: &str) -> String {
    message(study(section, ""))
}

/// The message about further top-level lines, beside a sound `space` section.
fn top(lines: &str) -> String {
    message(study("  rank: [4, 8]", lines))
}

#[test]
fn unknown_keys_are_named_at_every_level_with_what_was_meant() {
    insta::assert_snapshot!(top("budgte: {trials: 4}"), @"space.yaml:3:1: unknown key `budgte`; did you mean `budget`?");
    insta::assert_snapshot!(top("learning_rate: 1e-4"), @"space.yaml:3:1: unknown key `learning_rate`; did you mean `space.learning_rate`?");
    insta::assert_snapshot!(top("trial: {profile_step: 4}"), @"space.yaml:3:9: unknown key `trial.profile_step`; did you mean `profile_steps`?");
    insta::assert_snapshot!(top("trial: {evaluation: {row: 4}}"), @"space.yaml:3:22: unknown key `trial.evaluation.row`; did you mean `rows`?");
    insta::assert_snapshot!(top("budget: {trails: 4}"), @"space.yaml:3:10: unknown key `budget.trails`; did you mean `trials`?");
    insta::assert_snapshot!(top("objectives: [{metric: loss, weight: 2}]"), @"space.yaml:3:29: unknown key `objectives[0].weight`; write one of metric, direction, reference, known_after");
    insta::assert_snapshot!(top("backend: {command: [a], cwd: b}"), @"space.yaml:3:25: unknown key `backend.cwd`; write one of command, folder, env");
    insta::assert_snapshot!(space("  rnak: [4, 8]"), @"space.yaml:5:3: unknown key `space.rnak`; did you mean `rank`?");
    insta::assert_snapshot!(space("  per_device_train_batch_size: [4, 8]"), @"space.yaml:5:3: unknown key `space.per_device_train_batch_size`; did you mean `micro_batch`?");
    insta::assert_snapshot!(space("  rank: {low: 4, hihg: 8}"), @"space.yaml:5:18: unknown key `space.rank.hihg`; did you mean `high`?");
    insta::assert_snapshot!(space("  zebra: 8"), @"space.yaml:5:3: unknown key `space.zebra`; write one of precision, rank, alpha, alpha_ratio, dropout, target_modules, rslora, dora, init, bias, lora_bias, sequence_length, packing, micro_batch, gradient_accumulation, global_batch, gradient_checkpointing, optimizer, learning_rate, schedule, warmup, weight_decay, momentum, nesterov, beta1, beta2, epsilon, max_grad_norm, loraplus_ratio");
    insta::assert_snapshot!(message(read("model: ./base\ndata: {train: train.jsonl, colums: {}}\nspace: {rank: [1, 2]}")), @"space.yaml:2:28: unknown key `data.colums`; did you mean `columns`?");
}

#[test]
fn missing_keys_are_named() {
    insta::assert_snapshot!(message(read("model: ./base\ndata: {train: train.jsonl}\n")), @"space.yaml:1:1: key `space` is missing; add it");
    insta::assert_snapshot!(message(read("data: {train: train.jsonl}\nspace: {rank: [1, 2]}\n")), @"space.yaml:1:1: key `model` is missing; add it");
    insta::assert_snapshot!(message(read("model: ./base\ndata: {held_out: 0.1}\nspace: {rank: [1, 2]}\n")), @"space.yaml:2:7: key `train` is missing in `data`; add it");
    insta::assert_snapshot!(space("  rank: {low: 4}"), @"space.yaml:5:3: key `high` is missing in `space.rank`; add it");
    insta::assert_snapshot!(top("objectives: [{direction: minimize}]"), @"space.yaml:3:14: key `metric` is missing in `objectives[0]`; add it");
}

#[test]
fn values_of_the_wrong_type_are_named() {
    insta::assert_snapshot!(top("budget: {trials: many}"), @"space.yaml:3:18: key `budget.trials`: found `many`; write a whole number, 0 or more");
    insta::assert_snapshot!(top("budget: {trials: -4}"), @"space.yaml:3:18: key `budget.trials`: found the number -4; write a whole number, 0 or more");
    insta::assert_snapshot!(top("budget: 40"), @"space.yaml:3:9: key `budget`: found the number 40; write keys and values");
    insta::assert_snapshot!(top("seed: 1.5"), @"space.yaml:3:7: key `seed`: found the number 1.5; write a whole number, 0 or more");
    insta::assert_snapshot!(top("objectives: throughput"), @"space.yaml:3:13: key `objectives`: found `throughput`; write a list");
    insta::assert_snapshot!(top("trial: {profile_steps: 0}"), @"space.yaml:3:24: key `trial.profile_steps`: found the number 0; write a whole number, 1 or more");
    insta::assert_snapshot!(top("sampler: annealing"), @"space.yaml:3:10: key `sampler`: found `annealing`; write one of auto, random, sobol, grid, nsga2, tpe, bayes, or {kind: .., options: {..}}");
    insta::assert_snapshot!(top("backend: docker"), @"space.yaml:3:10: key `backend`: found `docker`; write native, or {command: [program, argument, ..]}");
    insta::assert_snapshot!(space("  rank: {low: four, high: 8}"), @"space.yaml:5:15: key `space.rank.low`: found `four`; write a number");
    insta::assert_snapshot!(space("  rank: {low: 4.5, high: 8}"), @"space.yaml:5:15: key `space.rank.low`: `4.5` is not legal for `rank`; write a whole number from 1 to 4096");
    insta::assert_snapshot!(space("  optimizer: {low: 1, high: 8}"), @"space.yaml:5:3: key `space.optimizer`: found a range; write a list of choices, each one of adamw, sgd, adamw_8bit, paged_adamw, paged_adamw_8bit, lion, lion_8bit, adafactor, muon");
    insta::assert_snapshot!(space("  learning_rate: {low: 1e-5, high: 1e-3, scale: logarithmic}"), @"space.yaml:5:49: key `space.learning_rate.scale`: found `logarithmic`; write one of linear, log");
    insta::assert_snapshot!(message(read("model: ./base\ndata: {train: {a: 1}}\nspace: {rank: [1, 2]}")), @"space.yaml:2:15: key `data.train`: write a file or a list of files");
    insta::assert_snapshot!(message(read("model: ./base\ndata: {train: train.jsonl, format: parquet}\nspace: {rank: [1, 2]}")), @"space.yaml:2:36: key `data.format`: found `parquet`; write one of auto, alpaca, sharegpt, messages, prompt_completion, text, tokenized");
    insta::assert_snapshot!(message(read("model: ./base\ndata: {train: train.jsonl, held_out: {a: 1}}\nspace: {rank: [1, 2]}")), @"space.yaml:2:38: key `data.held_out`: write a fraction such as 0.1, a file or a list of files");
    insta::assert_snapshot!(message(read("- rank\n- alpha\n")), @"space.yaml:1:1: the file as a whole: found a list; write keys and values");
}

#[test]
fn ranges_must_hold_something() {
    insta::assert_snapshot!(space("  rank: {low: 8, high: 4}"), @"space.yaml:5:24: key `space.rank.high`: the range is empty: low 8 is not below high 4; swap them");
    insta::assert_snapshot!(space("  rank: {low: 8, high: 8}"), @"space.yaml:5:24: key `space.rank.high`: the range is empty: low 8 is not below high 8; write the value 8 itself to fix it");
    insta::assert_snapshot!(space("  weight_decay: {low: 0, high: 0.1, scale: log}"), @"space.yaml:5:23: key `space.weight_decay.low`: a log scale needs a low above 0, not 0; raise `low` or leave `scale` out");
    insta::assert_snapshot!(space("  rank: {low: 4, high: 8, step: 0}"), @"space.yaml:5:33: key `space.rank.step`: a step of 0 does not fit between 4 and 8; write one above 0 and at most 4");
    insta::assert_snapshot!(space("  dropout: {low: 0, high: 0.2, step: 0.5}"), @"space.yaml:5:38: key `space.dropout.step`: a step of 0.5 does not fit between 0 and 0.2; write one above 0 and at most 0.2");
    insta::assert_snapshot!(space("  rank: {low: 0, high: 8}"), @"space.yaml:5:15: key `space.rank.low`: `0` is not legal for `rank`; write a whole number from 1 to 4096");
    insta::assert_snapshot!(space("  dropout: {low: 0, high: 1}"), @"space.yaml:5:27: key `space.dropout.high`: `1` is not legal for `dropout`; write a number from 0 to below 1");
    insta::assert_snapshot!(space("  rank: {low: 4, high: 8, choices: [4]}"), @"space.yaml:5:27: `space.rank.choices` and `low` exclude each other: a parameter is a range, a list of choices or one value; keep one");
}

#[test]
fn choices_must_be_legal_and_different() {
    insta::assert_snapshot!(space("  rank: []"), @"space.yaml:5:3: key `space.rank`: the list of choices is empty; write at least one value");
    insta::assert_snapshot!(space("  rank: [4, 8, 4]"), @"space.yaml:5:16: key `space.rank[2]`: the choice `4` stands twice; remove one");
    insta::assert_snapshot!(space("  learning_rate: [1, 1.0]"), @"space.yaml:5:22: key `space.learning_rate[1]`: the choice `1` stands twice; remove one");
    insta::assert_snapshot!(space("  rank: [4, 0]"), @"space.yaml:5:13: key `space.rank[1]`: `0` is not legal for `rank`; write a whole number from 1 to 4096");
    insta::assert_snapshot!(space("  rank: 2.5"), @"space.yaml:5:9: key `space.rank`: `2.5` is not legal for `rank`; write a whole number from 1 to 4096");
    insta::assert_snapshot!(space("  optimizer: [adamw, adam]"), @"space.yaml:5:22: key `space.optimizer[1]`: `adam` is not legal for `optimizer`; write one of adamw, sgd, adamw_8bit, paged_adamw, paged_adamw_8bit, lion, lion_8bit, adafactor, muon");
    insta::assert_snapshot!(space("  gradient_checkpointing: [true, false]"), @"space.yaml:5:28: key `space.gradient_checkpointing[0]`: `true` is not legal for `gradient_checkpointing`; write one of none, every_second, full, offload");
    insta::assert_snapshot!(space("  target_modules: [q_proj, v_proj]"), @"space.yaml:5:20: key `space.target_modules[0]`: `q_proj` is not legal for `target_modules`; write one of all-linear, attention, mlp, or a list of module names (one set is `[[q_proj, v_proj]]`)");
    insta::assert_snapshot!(space("  max_grad_norm: [1.0, off]"), @"space.yaml:5:24: key `space.max_grad_norm[1]`: `off` is not legal for `max_grad_norm`; write a number above 0, or none");
    insta::assert_snapshot!(space("  rank: 8\n  alpha: 16"), @"space.yaml:4:1: key `space`: nothing to search; give at least one parameter several values");
}

#[test]
fn conditions_must_be_possible() {
    insta::assert_snapshot!(space("  optimizer: [adamw, sgd]\n  momentum: {low: 0, high: 0.9, when: {optimiser: sgd}}"), @"space.yaml:6:40: key `space.momentum.when.optimiser`: there is no parameter `optimiser` in `space`; did you mean `optimizer`?");
    insta::assert_snapshot!(space("  momentum: {low: 0, high: 0.9, when: {optimizer: sgd}}\n  optimizer: [adamw, sgd]"), @"space.yaml:5:40: key `space.momentum.when.optimizer`: `optimizer` stands below; move it above the parameter that depends on it");
    insta::assert_snapshot!(space("  momentum: {low: 0, high: 0.9, when: {momentum: 0.5}}"), @"space.yaml:5:40: key `space.momentum.when.momentum`: `momentum` cannot depend on itself; name another parameter");
    insta::assert_snapshot!(space("  optimizer: [adamw, sgd]\n  momentum: {low: 0, high: 0.9, when: {optimizer: lion}}"), @"space.yaml:6:51: key `space.momentum.when.optimizer`: `optimizer` is never `lion`; write one of adamw, sgd");
    insta::assert_snapshot!(space("  optimizer: [adamw, sgd]\n  momentum: {low: 0, high: 0.9, when: {optimizer: [sgd, lion]}}"), @"space.yaml:6:57: key `space.momentum.when.optimizer[1]`: `optimizer` is never `lion`; write one of adamw, sgd");
    insta::assert_snapshot!(space("  optimizer: adamw\n  rank: [1, 2]\n  momentum: {low: 0, high: 0.9, when: {optimizer: sgd}}"), @"space.yaml:7:51: key `space.momentum.when.optimizer`: `optimizer` is never `sgd`; it is fixed to adamw; write that, or remove this parameter");
    insta::assert_snapshot!(space("  learning_rate: {low: 1e-5, high: 1e-3}\n  warmup: {value: 5, when: {learning_rate: 1e-4}}"), @"space.yaml:6:44: key `space.warmup.when.learning_rate`: `learning_rate` is never `1e-4`; it takes any value of its range, so it never has exactly this one; give it a list of choices");
    insta::assert_snapshot!(space("  rank: {low: 4, high: 16, step: 4}\n  dora: {value: true, when: {rank: 6}}"), @"space.yaml:6:36: key `space.dora.when.rank`: `rank` is never `6`; write a value of its range, 4 to 16 by 4");
    insta::assert_snapshot!(space("  rank: {choices: [4, 8], when: {dora: true}}\n  dora: {choices: [true, false], when: {rank: 4}}"), @"space.yaml:5:34: key `space.rank.when.dora`: the conditions run in a circle: rank -> dora -> rank; remove one of them");
    insta::assert_snapshot!(space("  dora: [true, false]\n  rank: {choices: [4, 8], when: {dora: true, rslora: true}}"), @"space.yaml:6:27: key `space.rank.when`: found 2 conditions; write one, such as {optimizer: sgd}");
    insta::assert_snapshot!(space("  dora: [true, false]\n  rank: {choices: [4, 8], when: {dora: []}}"), @"space.yaml:6:34: key `space.rank.when.dora`: the list of choices is empty; write at least one value");
}

#[test]
fn keys_that_exclude_each_other_are_named() {
    insta::assert_snapshot!(space("  alpha: [16, 32]\n  alpha_ratio: 2"), @"space.yaml:6:3: `space.alpha_ratio` and `space.alpha` exclude each other: both set alpha; keep one");
    insta::assert_snapshot!(space("  gradient_accumulation: [1, 2]\n  global_batch: 32"), @"space.yaml:6:3: `space.global_batch` and `space.gradient_accumulation` exclude each other: each follows from the other and the micro-batch; keep one");
    insta::assert_snapshot!(message(study("  sequence_length: [256, 512]", "trial: {sequence_length: 256}")), @"space.yaml:3:9: `trial.sequence_length` and `space.sequence_length` exclude each other: both set the length of a row; keep one");
    insta::assert_snapshot!(top("trial: {training_steps: 20, training_tokens: 60k}"), @"space.yaml:3:29: `trial.training_tokens` and `trial.training_steps` exclude each other: both say how long a trial trains; keep one");
    insta::assert_snapshot!(top("backend: {command: [python3, train.py]}"), @"space.yaml:1:1: `model` and `backend.command` exclude each other: a command takes its settings from its own arguments and from `space`; keep one");
    insta::assert_snapshot!(space("  global_batch: [16, 6]\n  micro_batch: [4, 8]"), @"space.yaml:5:18: key `space.global_batch[0]`: a global batch of 6 is not a multiple of any micro-batch (4, 8); choose a global batch that is a multiple of the micro-batch");
    insta::assert_snapshot!(space("  global_batch: [16, 32]\n  micro_batch: [4, 5]"), @"space.yaml:6:20: key `space.micro_batch[1]`: a micro-batch of 5 divides no global batch of this file; remove it");
    insta::assert_snapshot!(message(read("backend: {command: [a]}\nspace:\n  x: {low: 0, high: 1, affects: [loss]}\ntrial: {profile_steps: 3}")), @"space.yaml:4:9: `trial.profile_steps` and `backend.command` exclude each other: a command takes its settings from its own arguments and from `space`; keep one");
    insta::assert_snapshot!(space("  rank: {low: 1, high: 4, affects: [loss]}"), @"space.yaml:5:27: key `space.rank.affects`: the native backend knows what each parameter affects; remove it");
}

#[test]
fn files_that_are_not_there_are_named() {
    insta::assert_snapshot!(message(read("model: ./bse\ndata: {train: train.jsonl}\nspace: {rank: [1, 2]}")), @"space.yaml:1:8: key `model`: there is no model directory ./bse; correct the path (it is relative to the folder of this file)");
    insta::assert_snapshot!(message(read("model: base/inner\ndata: {train: train.jsonl}\nspace: {rank: [1, 2]}")), @"space.yaml:1:8: key `model`: there is no model directory base/inner; correct the path (it is relative to the folder of this file)");
    insta::assert_snapshot!(message(read("model: ./base\ndata: {train: [train.jsonl, more.jsonl]}\nspace: {rank: [1, 2]}")), @"space.yaml:2:29: key `data.train[1]`: there is no file more.jsonl; correct the path (it is relative to the folder of this file)");
    insta::assert_snapshot!(message(read("model: ./base\ndata: {train: train.jsonl, held_out: test.jsonl}\nspace: {rank: [1, 2]}")), @"space.yaml:2:38: key `data.held_out`: there is no file test.jsonl; correct the path (it is relative to the folder of this file)");
    insta::assert_snapshot!(message(read("model: ./base\ndata: {train: train.jsonl, held_out: 1.5}\nspace: {rank: [1, 2]}")), @"space.yaml:2:38: key `data.held_out`: `1.5` is not legal for `held_out`; write a fraction above 0 and below 1, or a file");
    insta::assert_snapshot!(message(StudyFile::read(Path::new("/nowhere/space.yaml"))), @"cannot read space.yaml: there is no such file; check the path");
}

#[test]
fn objectives_and_constraints_must_be_measurable() {
    insta::assert_snapshot!(top("objectives: [throughput, los]"), @"space.yaml:3:26: key `objectives[1]`: unknown metric `los`; did you mean `loss`?");
    insta::assert_snapshot!(top("objectives: [throughput, f1]"), @"space.yaml:3:26: key `objectives[1]`: unknown metric `f1`; write one of throughput, peak_memory, loss");
    insta::assert_snapshot!(top("objectives: [loss, throughput, loss]"), @"space.yaml:3:32: key `objectives[2]`: loss stands twice; remove one");
    insta::assert_snapshot!(top("objectives: []"), @"space.yaml:3:1: key `objectives`: a study has 1 to 4 objectives, not 0; name at least one metric");
    insta::assert_snapshot!(top("objectives: [{metric: loss, direction: maximize}]"), @"space.yaml:3:40: key `objectives[0].direction`: the direction of `loss` is minimize; remove this key");
    insta::assert_snapshot!(top("objectives: [{metric: peak_memory, reference: 24 apples}]"), @"space.yaml:3:47: key `objectives[0].reference`: found `24 apples`; write a size such as 22 GiB");
    insta::assert_snapshot!(top("constraints: {peak_memory: 22 GiB}"), @r#"space.yaml:3:28: key `constraints.peak_memory`: found `22 GiB`; write a bound in quotes, "<= .." or ">= ..", with a size such as 22 GiB"#);
    insta::assert_snapshot!(top("constraints: {peak_memory: <= 22 Gigs}"), @r#"space.yaml:3:28: key `constraints.peak_memory`: found `<= 22 Gigs`; write a bound in quotes, "<= .." or ">= ..", with a size such as 22 GiB"#);
    insta::assert_snapshot!(top("constraints: {memory: <= 22 GiB}"), @"space.yaml:3:15: key `constraints.memory`: unknown metric `memory`; write one of throughput, peak_memory, loss");
    insta::assert_snapshot!(top("constraints:\n  throughput: >= 100"), @r#"space.yaml:4:15: not valid YAML: a `>` after `:` begins a text block; put the bound in quotes, ">= .."; check indentation, brackets and quotes here and on the line above"#);
}

#[test]
fn units_and_zeroes_are_named() {
    insta::assert_snapshot!(top("trial: {memory_limit: 22 G}"), @"space.yaml:3:23: key `trial.memory_limit`: found `22 G`; write a size with its unit, such as 22 GiB, 16GB or 500MB");
    insta::assert_snapshot!(top("trial: {timeout: 5 fortnights}"), @"space.yaml:3:18: key `trial.timeout`: found `5 fortnights`; write a time with its unit, such as 90s, 30m or 1h30m");
    insta::assert_snapshot!(top("trial: {training_tokens: 1.23456k}"), @"space.yaml:3:26: key `trial.training_tokens`: found `1.23456k`; write a whole number, such as 60000, 60k or 1.5M");
    insta::assert_snapshot!(top("trial: {training_tokens: 0}"), @"space.yaml:3:26: key `trial.training_tokens`: a training of length zero learns nothing; write a number above 0");
    insta::assert_snapshot!(top("trial: {timeout: 0s}"), @"space.yaml:3:18: key `trial.timeout`: no trial can keep a limit of 0; raise it, or remove the key");
    insta::assert_snapshot!(top("budget: {trials: 0}"), @"space.yaml:3:18: key `budget.trials`: a budget of zero runs nothing; write at least 1 trial and some time");
    insta::assert_snapshot!(top("budget: {time: 0m}"), @"space.yaml:3:16: key `budget.time`: a budget of zero runs nothing; write at least 1 trial and some time");
    insta::assert_snapshot!(top("training: {length: {epochs: 0}}"), @"space.yaml:3:12: key `training.length`: a training of length zero learns nothing; write a number above 0");
    insta::assert_snapshot!(top("training: {length: {hours: 1}}"), @"space.yaml:3:21: key `training.length`: found `hours`; write one of steps, tokens, epochs");
}

#[test]
fn text_that_is_not_yaml_is_named() {
    insta::assert_snapshot!(message(read("model: ./base\nspace: {rank: [4, 8}\n")), @"space.yaml:2:15: not valid YAML: mismatched bracket '[' closed by '}'; check indentation, brackets and quotes here and on the line above");
    insta::assert_snapshot!(message(read("model: ./base\n  data: x\n")), @"space.yaml:2:7: not valid YAML: mapping values are not allowed in this context; check indentation, brackets and quotes here and on the line above");
    insta::assert_snapshot!(message(read("model: a\nseed: 1\nmodel: b\n")), @"space.yaml:3:1: key `model` stands twice; remove one");
    insta::assert_snapshot!(message(read("space: {rank: [1, 2], rank: 3}\n")), @"space.yaml:1:23: key `rank` stands twice; remove one");
    insta::assert_snapshot!(message(read("space: *unknown\n")), @"space.yaml:1:8: not valid YAML: alias references unknown anchor; check indentation, brackets and quotes here and on the line above");
    insta::assert_snapshot!(message(read("a: 1\n---\nb: 2\n")), @"space.yaml:3:1: not valid YAML: a second document starts here (`---`); check indentation, brackets and quotes here and on the line above");
    insta::assert_snapshot!(message(read("# nothing\n")), @"space.yaml:1:1: the file is empty; start from one in search_spaces/");
    let folder = folder();
    let path = folder.path().join("space.yaml");
    std::fs::write(&path, b"study: caf\xe9\n").unwrap();
    insta::assert_snapshot!(message(StudyFile::read(&path)), @"space.yaml:1:11: not UTF-8 text; save the file as UTF-8");
    std::fs::write(&path, "x".repeat(2 << 20)).unwrap();
    insta::assert_snapshot!(message(StudyFile::read(&path)), @"space.yaml: 2097152 bytes are too many for a settings file (limit 1048576); name the study file, not the data");
}

#[test]
fn a_yaml_bomb_is_refused_at_once() {
    let mut text = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for level in 1..12 {
        let aliases = vec![format!("*a{}", level - 1); 10].join(", ");
        text.push_str(&format!("a{level}: &a{level} [{aliases}]\n"));
    }
    text.push_str("space: *a11\n");
    let started = std::time::Instant::now();
    insta::assert_snapshot!(message(read(&text)), @"space.yaml:1:38: grows too large when its aliases (`*name`) are written out; write the values themselves");
    assert!(started.elapsed().as_secs() < 5);
    let deep = format!("space: {}{}", "[".repeat(5000), "]".repeat(5000));
    insta::assert_snapshot!(message(read(&deep)), @"space.yaml:1:263: not valid YAML: recursion limit exceeded; check indentation, brackets and quotes here and on the line above");
}

#[test]
fn a_message_on_the_screen_shows_the_line() {
    let text = "study: a\nspace:\n  rank: [4, 8]\n  learning_rate: {low: 1e-3, high: 1e-5, scale: log}\n";
    let options = ReadOptions { check_files: false };
    let error = StudyFile::parse(Path::new("space.yaml"), text, options).unwrap_err();
    insta::assert_snapshot!(error.rendered(false), @r#"
    space.yaml:4:36: key `space.learning_rate.high`: the range is empty: low 0.001 is not below high 0.00001; swap them
       ╭─[4:36]
     3 │   rank: [4, 8]
     4 │   learning_rate: {low: 1e-3, high: 1e-5, scale: log}
       ·                                    ──┬─
       ·                                      ╰── here
       ╰────
    "#);
}

// ---- what a sound file means

const WHOLE: &str = "
study: everything
model: ./base
data:
  train: [train.jsonl]
  held_out: held_out.jsonl
  format: alpaca
  columns: {instruction: question}
  loss_on: all
objectives: [throughput, {metric: peak_memory, reference: 24 GiB}, {metric: loss, known_after: 20}]
constraints:
  peak_memory: <= 22 GiB
  throughput: '>= 1.5k'
space:
  optimizer: [adamw, sgd]
  rank: [32, 4, 8]
  alpha_ratio: 2
  learning_rate: {low: 5e-5, high: 5e-3, scale: log}
  dropout: {low: 0, high: 0.2, step: 0.05}
  micro_batch: {low: 1, high: 8}
  target_modules: [all-linear, attention, [q_proj, v_proj]]
  gradient_checkpointing: [full]
  momentum: {low: 0.8, high: 0.99, when: {optimizer: sgd}}
  nesterov: {value: true, when: {optimizer: [sgd]}}
  weight_decay: {choices: [0, 0.1], when: {optimizer: adamw}}
  max_grad_norm: null
trial:
  sequence_length: 256
  profile_steps: 7
  training_tokens: 60k
  evaluation: {rows: 64, times: 3}
  memory_limit: 2 GiB
  timeout: 10m
training: {length: {epochs: 3}}
budget: {trials: 40, time: 1h30m}
seed: 7
sampler: {kind: nsga2, options: {population: 20}}
";

#[test]
fn every_key_of_a_study_file_has_its_meaning() {
    let study = read(WHOLE).unwrap();
    assert_eq!(study.name, "everything");
    let base = study.base.as_ref().unwrap();
    assert!(Path::new(&base.model).is_absolute() && base.model.ends_with("base"));
    assert!(base.data.train[0].is_absolute() && base.data.train[0].ends_with("train.jsonl"));
    assert!(matches!(&base.data.held_out, HeldOut::File(path) if path.is_absolute()));
    assert_eq!(base.gradient_checkpointing, Checkpointing::Full);
    assert_eq!(base.optimizer.max_grad_norm, None);
    assert_eq!(base.batch.sequence_length, 256);
    assert_eq!(base.training.length, TrainingLength::Epochs(3.0));
    assert_eq!((study.seed, base.training.seed), (7, 7));

    let objectives: Vec<_> = study
        .objectives
        .iter()
        .map(|one| (one.metric.as_str(), one.direction))
        .collect();
    assert_eq!(
        objectives,
        [
            ("throughput", Direction::Maximize),
            ("peak_memory", Direction::Minimize),
            ("loss", Direction::Minimize)
        ]
    );
    assert_eq!(study.objectives[1].reference, Some((24u64 << 30) as f64));
    assert_eq!(study.objectives[2].known_after, Some(20));
    assert_eq!(study.constraints[0].bound, Bound::AtMost((22u64 << 30) as f64));
    assert_eq!(study.constraints[1].bound, Bound::AtLeast(1500.0));

    let measure = study.plan.measure.as_ref().unwrap();
    assert_eq!((measure.steps, measure.max_warmup_steps), (7, 10));
    let train = study.plan.train.as_ref().unwrap();
    assert_eq!(train.length, TrainingLength::Tokens(60_000));
    assert_eq!((train.evaluations, train.evaluation_rows), (3, Some(64)));
    assert_eq!(study.memory_limit_bytes, Some(2 << 30));
    assert_eq!(study.trial_timeout_s, Some(600.0));
    assert_eq!((study.budget.trials, study.budget.time_s), (Some(40), Some(5400.0)));
    assert_eq!(study.sampler.kind, SamplerKind::Nsga2);
    assert_eq!(study.sampler.options["population"], ParamValue::Int(20));
    assert_eq!(study.backend, Backend::Native);
    assert_eq!(study.source.text(), WHOLE);
    assert_eq!(study.source.sha256.len(), 64);
}

#[test]
fn parameters_keep_the_order_of_the_file_and_know_what_they_affect() {
    let study = read(WHOLE).unwrap();
    let described: Vec<String> = study
        .space
        .parameters
        .iter()
        .map(|parameter| {
            let condition = parameter.condition.as_ref().map(|condition| {
                let values: Vec<_> = condition.values.iter().map(ParamValue::to_string).collect();
                format!(" when {} is {}", condition.parameter, values.join(" or "))
            });
            let affects = parameter
                .affects
                .as_ref()
                .map(|metrics| format!(" affects {}", metrics.join(" and ")));
            let values = match &parameter.distribution {
                Distribution::Float { low, high, scale, step } => {
                    let scale = if *scale == Scale::Log { " log" } else { "" };
                    format!("{low}..{high}{scale} by {step:?}")
                }
                Distribution::Int { low, high, step, .. } => format!("{low}..{high} by {step}"),
                Distribution::Categorical { choices } => choices
                    .iter()
                    .map(ParamValue::to_string)
                    .collect::<Vec<_>>()
                    .join(" | "),
            };
            format!(
                "{}: {values}{}{}",
                parameter.name,
                condition.unwrap_or_default(),
                affects.unwrap_or_default()
            )
        })
        .collect();
    insta::assert_snapshot!(described.join("\n"), @r#"
    optimizer: adamw | sgd
    rank: 4 | 8 | 32
    learning_rate: 0.00005..0.005 log by None affects loss
    dropout: 0..0.2 by Some(0.05)
    micro_batch: 1..8 by 1
    target_modules: all-linear | attention | q_proj,v_proj
    momentum: 0.8..0.99 by None when optimizer is sgd
    nesterov: true when optimizer is sgd affects loss
    weight_decay: 0 | 0.1 when optimizer is adamw affects loss
    "#);
    let fixed: Vec<_> = study
        .fixed
        .iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    insta::assert_snapshot!(fixed.join(" "), @"alpha_ratio=2 gradient_checkpointing=full max_grad_norm=none");
}

#[test]
fn sampled_values_make_a_recipe() {
    let study = read(WHOLE).unwrap();
    let params = Params::from([
        ("optimizer".into(), "sgd".into()),
        ("rank".into(), ParamValue::Int(32)),
        ("learning_rate".into(), ParamValue::Float(1e-3)),
        ("micro_batch".into(), ParamValue::Int(2)),
        (
            "target_modules".into(),
            ParamValue::List(vec!["q_proj".into(), "v_proj".into()]),
        ),
        ("momentum".into(), ParamValue::Float(0.95)),
        ("nesterov".into(), ParamValue::Bool(true)),
    ]);
    let recipe = recipe_for(&study, &params).unwrap();
    let adapter = recipe.adapter.as_ref().unwrap();
    assert_eq!((adapter.rank, adapter.alpha), (32, 64.0));
    assert_eq!(
        adapter.target_modules,
        TargetModules::Named(vec!["q_proj".into(), "v_proj".into()])
    );
    assert_eq!(recipe.optimizer.kind, OptimizerKind::Sgd);
    assert_eq!((recipe.optimizer.momentum, recipe.optimizer.nesterov), (0.95, true));
    assert_eq!(recipe.batch.micro_batch, 2);
    assert_eq!(recipe.gradient_checkpointing, Checkpointing::Full);
    for (name, value) in &params {
        assert_eq!(params_of(&recipe).get(name), Some(value), "{name}");
    }
}

#[test]
fn the_global_batch_is_held_while_the_micro_batch_changes() {
    let study = study(
        "  global_batch: [16, 24]
  micro_batch: [2, 8, 16]",
        "",
    )
    .unwrap();
    let affects = |name: &str| {
        let found = study.space.parameters.iter().find(|parameter| parameter.name == name);
        found.unwrap().affects.clone()
    };
    assert_eq!(affects("micro_batch").unwrap(), ["throughput", "peak_memory"]);
    assert_eq!(affects("global_batch"), None);
    let recipe = |micro_batch: i64, global_batch: i64| {
        let params = Params::from([
            ("micro_batch".into(), micro_batch.into()),
            ("global_batch".into(), global_batch.into()),
        ]);
        recipe_for(&study, &params).map(|recipe| recipe.batch.gradient_accumulation)
    };
    assert_eq!((recipe(2, 16), recipe(16, 16), recipe(8, 24)), (Ok(8), Ok(1), Ok(3)));
    let error = recipe(16, 24).unwrap_err();
    assert!(matches!(error, RecipeError::Indivisible { .. }));
    insta::assert_snapshot!(error, @"`global_batch` 24 is not a multiple of `micro_batch` 16; lower `micro_batch`");
}

#[test]
fn only_the_phases_that_are_asked_for_are_planned() {
    let phases = |rest: &str| {
        let plan = study("  rank: [4, 8]", rest).unwrap().plan;
        (plan.measure.is_some(), plan.train.is_some())
    };
    assert_eq!(phases(""), (true, true));
    assert_eq!(phases("objectives: [throughput, peak_memory]"), (true, false));
    assert_eq!(phases("objectives: [loss]"), (false, true));
    assert_eq!(
        phases(
            "objectives: [loss]
constraints: {peak_memory: <= 1 GiB}"
        ),
        (true, true)
    );
    assert_eq!(
        phases(
            "objectives: [throughput]
trial: {training_steps: 5}"
        ),
        (true, true)
    );
}

#[test]
fn a_command_backend_takes_parameters_of_any_name() {
    let study = read(
        "backend: {command: [python3, train.py], env: {SEED: 1}}
objectives: [{metric: f1, direction: maximize, reference: 0, known_after: 2}, latency]
space:
  depth: {low: 2, high: 8, affects: [latency]}
  width: {low: 2, high: 8.5}
  kind: [a, b]
  mode: fast
  extra: {low: 1, high: 2, when: {kind: b}}
trial: {timeout: 5m}
",
    )
    .unwrap();
    let Backend::Command(backend) = &study.backend else {
        panic!("not a command")
    };
    assert_eq!(backend.command, ["python3", "train.py"]);
    assert!(backend.folder.is_absolute());
    assert_eq!(backend.env["SEED"], "1");
    assert_eq!(study.base, None);
    assert_eq!(study.fixed["mode"], "fast".into());
    assert_eq!(study.objectives[0].direction, Direction::Maximize);
    assert_eq!(study.objectives[1].direction, Direction::Minimize);
    let kinds: Vec<_> = study
        .space
        .parameters
        .iter()
        .map(|parameter| matches!(parameter.distribution, Distribution::Int { .. }))
        .collect();
    assert_eq!(kinds, [true, false, false, true]);
    assert_eq!(
        study.space.parameters[0].affects.as_deref(),
        Some(&["latency".to_string()][..])
    );
    assert_eq!(recipe_for(&study, &Params::new()), Err(RecipeError::NoRecipe));
}

#[test]
fn a_hub_id_stays_one_and_files_may_be_absent_where_they_are_not_checked() {
    let text = "model: Qwen/Qwen2.5-7B
data: {train: mine.jsonl}
space: {rank: [4, 8]}
";
    let path = Path::new("/somewhere/space.yaml");
    let study = StudyFile::parse(path, text, ReadOptions { check_files: false }).unwrap();
    let base = study.base.unwrap();
    assert_eq!(base.model, "Qwen/Qwen2.5-7B");
    assert_eq!(base.data.train, [Path::new("/somewhere/mine.jsonl")]);
    assert_eq!(study.name, "space");
    assert!(StudyFile::parse(path, text, ReadOptions::default()).is_err());
}

#[test]
fn a_mistake_seen_later_still_points_into_the_file() {
    let study = read(WHOLE).unwrap();
    let error = study.reject(&["sampler", "options", "population"], "must be even; write 20 or 22");
    insta::assert_snapshot!(message(Err::<(), _>(error)), @"space.yaml:37:46: key `sampler.options.population`: must be even; write 20 or 22");
}

// ---- recipe files

fn read_recipe(text: &str) -> Result<Recipe, SpaceError> {
    let folder = folder();
    let path = folder.path().join("recipe.yaml");
    std::fs::write(&path, text).unwrap();
    RecipeFile::read(&path)
}

#[test]
fn a_recipe_survives_its_file() {
    let study = read(WHOLE).unwrap();
    for point in 0..40 {
        let unit: Vec<f64> = (0..study.space.dimensions())
            .map(|axis| (f64::from(point) * 0.618 + axis as f64 * 0.37).fract())
            .collect();
        let recipe = recipe_for(&study, &study.space.params_at(&unit)).unwrap();
        let text = RecipeFile::to_yaml(&recipe).unwrap();
        let options = ReadOptions { check_files: false };
        let again = RecipeFile::parse(Path::new("/tmp/recipe.yaml"), &text, options).unwrap();
        assert_eq!(again, recipe, "{text}");
    }
}

#[test]
fn a_recipe_file_needs_only_model_and_data() {
    let recipe = read_recipe(
        "model: ./base
data: {train: train.jsonl}
adapter: {rank: 8}
",
    )
    .unwrap();
    assert_eq!(recipe.adapter.unwrap().rank, 8);
    let recipe = read_recipe(
        "model: ./base
data: {train: train.jsonl}
adapter: null
",
    )
    .unwrap();
    assert_eq!(recipe.adapter, None);
}

#[test]
fn mistakes_in_recipe_files_are_named() {
    let recipe = |rest: &str| {
        message(read_recipe(&format!(
            "model: ./base
data: {{train: train.jsonl}}
{rest}"
        )))
    };
    insta::assert_snapshot!(recipe("adapter: {rnak: 8}"), @"recipe.yaml:3:11: unknown key `adapter.rnak`; did you mean `rank`?");
    insta::assert_snapshot!(recipe("adapter: {rank: 0}"), @"recipe.yaml:3:17: key `adapter.rank`: `0` is not legal for `rank`; write a whole number from 1 to 4096");
    insta::assert_snapshot!(recipe("adapter: {rank: eight}"), @"recipe.yaml:3:17: key `adapter.rank`: found `eight`; write a whole number, 0 or more");
    insta::assert_snapshot!(recipe("adapter: {target_modules: everything}"), @"recipe.yaml:3:27: key `adapter.target_modules`: write one of all-linear, attention, mlp, or a list of module names");
    insta::assert_snapshot!(recipe("adapter: {target_modules: []}"), @"recipe.yaml:3:11: key `adapter.target_modules`: `` is not legal for `target_modules`; write one of all-linear, attention, mlp, or a list of module names (one set is `[[q_proj, v_proj]]`)");
    insta::assert_snapshot!(recipe("optimizer: {kind: adam}"), @"recipe.yaml:3:19: key `optimizer.kind`: found `adam`; write one of adamw, sgd, adamw_8bit, paged_adamw, paged_adamw_8bit, lion, lion_8bit, adafactor, muon");
    insta::assert_snapshot!(recipe("optimizer: {learning_rate: -1e-4}"), @"recipe.yaml:3:28: key `optimizer.learning_rate`: `-1e-4` is not legal for `learning_rate`; write a number above 0");
    insta::assert_snapshot!(recipe("precision: bfloat16"), @"recipe.yaml:3:12: key `precision`: found `bfloat16`; write one of fp32, bf16, fp16, int8, nf4, nf4_double");
    insta::assert_snapshot!(recipe("training: {length: {steps: 0}}"), @"recipe.yaml:3:12: key `training.length`: a training of length zero learns nothing; write a number above 0");
    insta::assert_snapshot!(recipe("space: {rank: [1, 2]}"), @"recipe.yaml:3:1: unknown key `space`; write one of model, data, adapter, precision, batch, gradient_checkpointing, optimizer, schedule, training");
    insta::assert_snapshot!(message(read_recipe("model: ./nowhere
data: {train: train.jsonl}
")), @"recipe.yaml:1:8: key `model`: there is no model directory ./nowhere; correct the path (it is relative to the folder of this file)");
}

#[test]
fn the_documentation_lists_every_parameter_and_what_it_changes() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/space-file.md");
    let text = std::fs::read_to_string(path).unwrap();
    let cell = |effect: Effect| match effect {
        Effect::Changes(reason) => format!("yes: {reason}"),
        Effect::ThroughGlobalBatch(reason) => format!("only with the global batch: {reason}"),
        Effect::Same(reason) => format!("no: {reason}"),
    };
    for binding in bindings() {
        let rows = [
            format!(
                "| `{}` | `{}` | {} | {} |",
                binding.name, binding.field, binding.legal, binding.about
            ),
            format!(
                "| `{}` | {} | {} | {} |",
                binding.name,
                cell(binding.effects.throughput),
                cell(binding.effects.peak_memory),
                cell(binding.effects.loss)
            ),
        ];
        for row in rows {
            assert!(text.contains(&row), "docs/space-file.md lacks the row\n{row}");
        }
    }
}

#[test]
fn the_file_in_the_documentation_is_sound() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/space-file.md");
    let text = std::fs::read_to_string(path).unwrap();
    let whole_files = text
        .split("```yaml\n")
        .skip(1)
        .filter_map(|block| block.split("```").next())
        .filter(|block| block.contains("objectives:"));
    for block in whole_files {
        let options = ReadOptions { check_files: false };
        StudyFile::parse(Path::new("docs.yaml"), block, options).unwrap_or_else(|error| panic!("{error}"));
    }
}
