//! Messages for each kind of mistake in a study file.

use std::path::Path;

use peft_tune::space::ReadOptions;
use peft_tune::space::file::StudyFile;
use proptest::prelude::*;

use super::files::{WHOLE, folder, message, read, study};

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
    insta::assert_snapshot!(top("backend: {command: [a], cwd: b}"), @"space.yaml:3:25: unknown key `backend.cwd`; write one of command, folder, env, trl, unsloth, auto");
    insta::assert_snapshot!(space("  rnak: [4, 8]"), @"space.yaml:5:3: unknown key `space.rnak`; did you mean `rank`?");
    insta::assert_snapshot!(space("  per_device_train_batch_size: [4, 8]"), @"space.yaml:5:3: unknown key `space.per_device_train_batch_size`; did you mean `micro_batch`?");
    insta::assert_snapshot!(space("  rank: {low: 4, hihg: 8}"), @"space.yaml:5:18: unknown key `space.rank.hihg`; did you mean `high`?");
    insta::assert_snapshot!(space("  zebra: 8"), @"space.yaml:5:3: unknown key `space.zebra`; write one of method, precision, activation_quantization, weight_sparsity, quantization_aware, precision_schedule, rank, alpha, alpha_ratio, dropout, target_modules, rslora, dora, init, bias, lora_bias, sequence_length, packing, group_by_length, micro_batch, devices, sharding, gradient_accumulation, global_batch, prefetch_depth, gradient_checkpointing, optimizer, optimizer_offload, learning_rate, schedule, warmup, lr_decay, lr_decay_type, min_lr_rate, weight_decay, momentum, nesterov, beta1, beta2, epsilon, max_grad_norm, loraplus_ratio, attn_implementation, torch_compile, use_liger_kernel, dataloader_num_workers, trainer, beta, reference");
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
    insta::assert_snapshot!(top("price: dear"), @"space.yaml:3:8: key `price`: found `dear`; write a price of an hour above 0 in US dollars, such as 2.49/h or $0.80/h");
    insta::assert_snapshot!(top("price: 0"), @"space.yaml:3:8: key `price`: found the number 0; write a price of an hour above 0 in US dollars, such as 2.49/h or $0.80/h");
    insta::assert_snapshot!(top("seed: 1.5"), @"space.yaml:3:7: key `seed`: found the number 1.5; write a whole number, 0 or more");
    insta::assert_snapshot!(top("objectives: throughput"), @"space.yaml:3:13: key `objectives`: found `throughput`; write a list");
    insta::assert_snapshot!(top("trial: {profile_steps: 0}"), @"space.yaml:3:24: key `trial.profile_steps`: found the number 0; write a whole number, 1 or more, such as 60000, 60k or 1.5M");
    insta::assert_snapshot!(top("sampler: annealing"), @"space.yaml:3:10: key `sampler`: found `annealing`; write one of auto, random, sobol, grid, nsga2, tpe, bayes, or {kind: .., options: {..}}");
    insta::assert_snapshot!(top("backend: docker"), @"space.yaml:3:10: key `backend`: found `docker`; write native, trl, unsloth, auto, {trl: {python: ..}}, {unsloth: {python: ..}}, {auto: {python: ..}}, or {command: [program, argument, ..]}");
    insta::assert_snapshot!(space("  rank: {low: four, high: 8}"), @"space.yaml:5:15: key `space.rank.low`: found `four`; write a number");
    insta::assert_snapshot!(space("  rank: {low: 4.5, high: 8}"), @"space.yaml:5:15: key `space.rank.low`: `4.5` is not legal for `rank`; write a whole number from 1 to 4096");
    insta::assert_snapshot!(space("  optimizer: {low: 1, high: 8}"), @"space.yaml:5:3: key `space.optimizer`: found a range; write a list of choices, each one of adamw, sgd, adamw_8bit, paged_adamw, paged_adamw_8bit, lion, lion_8bit, adafactor, muon, adamw_schedulefree");
    insta::assert_snapshot!(space("  learning_rate: {low: 1e-5, high: 1e-3, scale: logarithmic}"), @"space.yaml:5:49: key `space.learning_rate.scale`: found `logarithmic`; write one of linear, log");
    insta::assert_snapshot!(message(read("model: ./base\ndata: {train: {a: 1}}\nspace: {rank: [1, 2]}")), @"space.yaml:2:16: unknown key `data.train.a`; write one of file, weight");
    insta::assert_snapshot!(message(read("model: ./base\ndata: {train: train.jsonl, format: parquet}\nspace: {rank: [1, 2]}")), @"space.yaml:2:36: key `data.format`: found `parquet`; write one of auto, alpaca, sharegpt, messages, prompt_completion, text, tokenized, preference, unpaired_preference");
    insta::assert_snapshot!(message(read("model: ./base\ndata: {train: train.jsonl, held_out: {a: 1}}\nspace: {rank: [1, 2]}")), @"space.yaml:2:38: key `data.held_out`: write a fraction such as 0.1, a file or a list of files");
    insta::assert_snapshot!(message(read("- rank\n- alpha\n")), @"space.yaml:1:1: the file as a whole: found a list; write keys and values");
}

#[test]
fn mixtures_must_be_possible() {
    let mixed = |train: &str| {
        message(read(&format!(
            "model: ./base\ndata: {{train: {train}}}\nspace: {{rank: [1, 2]}}"
        )))
    };
    insta::assert_snapshot!(mixed("[{file: train.jsonl, weight: 0.7}, {file: held_out.jsonl, weight: -1}]"), @"space.yaml:2:81: key `data.train[1].weight`: the weight of held_out.jsonl is -1; write a number above 0, or leave the set out");
    insta::assert_snapshot!(mixed("[{file: train.jsonl, weight: .nan}, {file: held_out.jsonl, weight: 1}]"), @"space.yaml:2:44: not valid YAML: non-finite float `.nan` rejected by the configured policy; check indentation, brackets and quotes here and on the line above");
    insta::assert_snapshot!(mixed("[{file: train.jsonl, weight: heavy}, {file: held_out.jsonl, weight: 1}]"), @"space.yaml:2:44: key `data.train[0].weight`: found `heavy`; write a number");
    insta::assert_snapshot!(mixed("[{file: train.jsonl, weight: 1}, {file: train.jsonl, weight: 1}]"), @"space.yaml:2:55: key `data.train[1].file`: train.jsonl stands in the mixture twice; name it once, with the sum of both weights");
    let other_words = mixed("[{file: train.jsonl, weight: 1}, {file: ./train.jsonl, weight: 1}]");
    assert!(
        other_words.ends_with("train.jsonl stands in the mixture twice; name it once, with the sum of both weights")
    );
    insta::assert_snapshot!(mixed("[{file: train.jsonl, weight: 1}, {file: more.jsonl, weight: 1}]"), @"space.yaml:2:55: key `data.train[1].file`: there is no file more.jsonl; correct the path (it is relative to the folder of this file)");
    insta::assert_snapshot!(mixed("[{file: train.jsonl, weight: 1}, {file: [held_out.jsonl, more.jsonl], weight: 1}]"), @"space.yaml:2:72: key `data.train[1].file[1]`: there is no file more.jsonl; correct the path (it is relative to the folder of this file)");
    insta::assert_snapshot!(mixed("[{file: train.jsonl, weight: 1}, held_out.jsonl]"), @"space.yaml:2:15: key `data.train`: held_out.jsonl has no weight beside sets that have one; write `{file: held_out.jsonl, weight: ...}`, or no weights at all");
    insta::assert_snapshot!(mixed("[{file: train.jsonl, weight: 1}]"), @"space.yaml:2:8: key `data.train`: a mixture needs two sets or more, and this one has 1; write the file alone, or add a set");
    insta::assert_snapshot!(mixed("{file: train.jsonl, weight: 1}"), @"space.yaml:2:22: key `data.train.file`: a mixture needs two sets or more, and this one has 1; write the file alone, or add a set");
    insta::assert_snapshot!(mixed("[{file: train.jsonl}, {file: held_out.jsonl}]"), @"space.yaml:2:16: key `weight` is missing in `data.train[0]`; add it");
    insta::assert_snapshot!(mixed("[{file: train.jsonl, wieght: 1}, {file: held_out.jsonl, weight: 1}]"), @"space.yaml:2:36: unknown key `data.train[0].wieght`; did you mean `weight`?");
    insta::assert_snapshot!(mixed("[{file: [], weight: 1}, {file: held_out.jsonl, weight: 1}]"), @"space.yaml:2:17: key `data.train[0].file`: set 1 of the mixture names no file; name one or more under `file`");
    insta::assert_snapshot!(mixed("[{file: hf://datasets/x, weight: 1}, {file: held_out.jsonl, weight: 1}]"), @"space.yaml:2:23: key `data.train[0].file`: `hf://datasets/x` is no data set of the hub (it has no owner and name); write hf://datasets/OWNER/NAME, and behind it, where they are needed, @REVISION, :CONFIGURATION and /SPLIT or /FILE");
    insta::assert_snapshot!(mixed("5"), @"space.yaml:2:15: key `data.train`: found the number 5; write a file, a list of files, or a list of sets such as `{file: a.jsonl, weight: 0.7}`");
    insta::assert_snapshot!(mixed("[]"), @"space.yaml:2:8: key `data.train`: the list of choices is empty; write at least one value");
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
    insta::assert_snapshot!(space("  rank: [4, 8, 4]"), @"space.yaml:5:16: key `space.rank[2]`: the choice `4` appears twice; remove one");
    insta::assert_snapshot!(space("  learning_rate: [1, 1.0]"), @"space.yaml:5:22: key `space.learning_rate[1]`: the choice `1` appears twice; remove one");
    insta::assert_snapshot!(space("  rank: [4, 0]"), @"space.yaml:5:13: key `space.rank[1]`: `0` is not legal for `rank`; write a whole number from 1 to 4096");
    insta::assert_snapshot!(space("  rank: 2.5"), @"space.yaml:5:9: key `space.rank`: `2.5` is not legal for `rank`; write a whole number from 1 to 4096");
    insta::assert_snapshot!(space("  optimizer: [adamw, adam]"), @"space.yaml:5:22: key `space.optimizer[1]`: `adam` is not legal for `optimizer`; write one of adamw, sgd, adamw_8bit, paged_adamw, paged_adamw_8bit, lion, lion_8bit, adafactor, muon, adamw_schedulefree");
    insta::assert_snapshot!(space("  gradient_checkpointing: [true, false]"), @"space.yaml:5:28: key `space.gradient_checkpointing[0]`: `true` is not legal for `gradient_checkpointing`; write none, every_N (every_2, every_3, ...), full or offload");
    insta::assert_snapshot!(space("  target_modules: [q_proj, v_proj]"), @"space.yaml:5:20: key `space.target_modules[0]`: `q_proj` is not legal for `target_modules`; write one of all-linear, attention, mlp, or a list of module names (one set is `[[q_proj, v_proj]]`)");
    insta::assert_snapshot!(space("  max_grad_norm: [1.0, off]"), @"space.yaml:5:24: key `space.max_grad_norm[1]`: `off` is not legal for `max_grad_norm`; write a number above 0, or none");
    insta::assert_snapshot!(space("  rank: 8\n  alpha: 16"), @"space.yaml:4:1: key `space`: nothing to search; give at least one parameter several values");
}

#[test]
fn conditions_must_be_possible() {
    insta::assert_snapshot!(space("  optimizer: [adamw, sgd]\n  momentum: {low: 0, high: 0.9, when: {optimiser: sgd}}"), @"space.yaml:6:40: key `space.momentum.when.optimiser`: there is no parameter `optimiser` in `space`; did you mean `optimizer`?");
    insta::assert_snapshot!(space("  momentum: {low: 0, high: 0.9, when: {optimizer: sgd}}\n  optimizer: [adamw, sgd]"), @"space.yaml:5:40: key `space.momentum.when.optimizer`: `optimizer` is declared below; move it above the parameter that depends on it");
    insta::assert_snapshot!(space("  momentum: {low: 0, high: 0.9, when: {momentum: 0.5}}"), @"space.yaml:5:40: key `space.momentum.when.momentum`: `momentum` cannot depend on itself; name another parameter");
    insta::assert_snapshot!(space("  optimizer: [adamw, sgd]\n  momentum: {low: 0, high: 0.9, when: {optimizer: lion}}"), @"space.yaml:6:51: key `space.momentum.when.optimizer`: `optimizer` is never `lion`; write one of adamw, sgd");
    insta::assert_snapshot!(space("  optimizer: [adamw, sgd]\n  momentum: {low: 0, high: 0.9, when: {optimizer: [sgd, lion]}}"), @"space.yaml:6:57: key `space.momentum.when.optimizer[1]`: `optimizer` is never `lion`; write one of adamw, sgd");
    insta::assert_snapshot!(space("  optimizer: adamw\n  rank: [1, 2]\n  momentum: {low: 0, high: 0.9, when: {optimizer: sgd}}"), @"space.yaml:7:51: key `space.momentum.when.optimizer`: `optimizer` is never `sgd`; it is fixed to adamw; write that, or remove this parameter");
    insta::assert_snapshot!(space("  learning_rate: {low: 1e-5, high: 1e-3}\n  warmup: {value: 5, when: {learning_rate: 1e-4}}"), @"space.yaml:6:44: key `space.warmup.when.learning_rate`: `learning_rate` is never `1e-4`; it takes any value of its range, so it never has exactly this one; give it a list of choices");
    insta::assert_snapshot!(space("  rank: {low: 4, high: 16, step: 4}\n  dora: {value: true, when: {rank: 6}}"), @"space.yaml:6:36: key `space.dora.when.rank`: `rank` is never `6`; write a value of its range, 4 to 16 by 4");
    insta::assert_snapshot!(space("  rank: {choices: [4, 8], when: {dora: true}}\n  dora: {choices: [true, false], when: {rank: 4}}"), @"space.yaml:5:34: key `space.rank.when.dora`: the conditions form a cycle: rank -> dora -> rank; remove one of them");
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
    insta::assert_snapshot!(space("  learning_rate: {low: 1e-5, high: 1e-3, scale: log, fixed: maybe}"), @"space.yaml:5:61: key `space.learning_rate.fixed`: found `maybe`; write true or false");
    insta::assert_snapshot!(space("  rank: {low: 4, high: 8, fixed: false}"), @"space.yaml:5:34: key `space.rank.fixed`: a range of `rank` never widens; remove `fixed`");
    insta::assert_snapshot!(space("  learning_rate: {low: 1e-5, high: 1e-3, step: 1e-5, fixed: false}"), @"space.yaml:5:61: key `space.learning_rate.fixed`: `learning_rate` widens as a range without `step` that lies in 1e-8..1, and no other; remove `fixed`");
    insta::assert_snapshot!(space("  rank: {choices: [4, 8], fixed: true}"), @"space.yaml:5:10: `space.rank.choices` and `fixed` exclude each other: a parameter is a range, a list of choices or one value; keep one");
    insta::assert_snapshot!(space("  rank: {low: 1, high: 4, affects: [loss]}"), @"space.yaml:5:27: key `space.rank.affects`: only a command's parameters say what they affect; remove it");
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
    insta::assert_snapshot!(top("objectives: [throughput, f1]"), @"space.yaml:3:26: key `objectives[1]`: unknown metric `f1`; write one of throughput, peak_memory, loss, token_accuracy, token_accuracy_lost_percent, loss_kept_percent, top1_agreement_percent, retained_loss_increase, base_kl, reward_accuracy, reward_margin, serve_ms_per_token");
    insta::assert_snapshot!(top("objectives: [loss, throughput, loss]"), @"space.yaml:3:32: key `objectives[2]`: loss appears twice; remove one");
    insta::assert_snapshot!(top("objectives: []"), @"space.yaml:3:1: key `objectives`: a study has 1 to 4 objectives, not 0; name at least one metric");
    insta::assert_snapshot!(top("objectives: [{metric: loss, direction: maximize}]"), @"space.yaml:3:40: key `objectives[0].direction`: the direction of `loss` is minimize; remove this key");
    insta::assert_snapshot!(top("objectives: [{metric: peak_memory, reference: 24 apples}]"), @"space.yaml:3:47: key `objectives[0].reference`: found `24 apples`; write a size such as 22 GiB");
    insta::assert_snapshot!(top("constraints: {peak_memory: 22 GiB}"), @r#"space.yaml:3:28: key `constraints.peak_memory`: found `22 GiB`; write a bound in quotes, "<= .." or ">= ..", with a size such as 22 GiB"#);
    insta::assert_snapshot!(top("constraints: {peak_memory: <= 22 Gigs}"), @r#"space.yaml:3:28: key `constraints.peak_memory`: found `<= 22 Gigs`; write a bound in quotes, "<= .." or ">= ..", with a size such as 22 GiB"#);
    insta::assert_snapshot!(top("constraints: {memory: <= 22 GiB}"), @"space.yaml:3:15: key `constraints.memory`: unknown metric `memory`; write one of throughput, peak_memory, loss, token_accuracy, token_accuracy_lost_percent, loss_kept_percent, top1_agreement_percent, retained_loss_increase, base_kl, reward_accuracy, reward_margin, serve_ms_per_token");
    insta::assert_snapshot!(top("objectives: [accuracy]"), @"space.yaml:3:14: key `objectives[0]`: unknown metric `accuracy`; write one of throughput, peak_memory, loss, token_accuracy, token_accuracy_lost_percent, loss_kept_percent, top1_agreement_percent, retained_loss_increase, base_kl, reward_accuracy, reward_margin, serve_ms_per_token");
    insta::assert_snapshot!(top("constraints: {token_accuracy: '>= 62'}"), @r##"space.yaml:3:31: key `constraints.token_accuracy`: found `>= 62`; write a bound in quotes, "<= .." or ">= ..", with a share from 0 to 1, such as 0.62 or 62%"##);
    insta::assert_snapshot!(top("constraints: {top1_agreement_percent: '>= 120'}"), @r##"space.yaml:3:39: key `constraints.top1_agreement_percent`: found `>= 120`; write a bound in quotes, "<= .." or ">= ..", with a percentage from 0 to 100, such as 98.8"##);
    insta::assert_snapshot!(top("objectives: [{metric: token_accuracy, reference: 3}]"), @"space.yaml:3:50: key `objectives[0].reference`: found `3`; write a share from 0 to 1, such as 0.62 or 62%");
    insta::assert_snapshot!(top("objectives: [top1_agreement_percent]\ntrial: {evaluation: {accuracy_check: false}}"), @"space.yaml:4:38: key `trial.evaluation.accuracy_check`: `top1_agreement_percent` is what this measures, and the study asks for it; remove this key");
    insta::assert_snapshot!(top("constraints:\n  throughput: >= 100"), @r#"space.yaml:4:15: not valid YAML: a `>` after `:` begins a text block; put the bound in quotes, ">= .."; check indentation, brackets and quotes here and on the line above"#);
}

#[test]
fn units_and_zeroes_are_named() {
    insta::assert_snapshot!(top("trial: {memory_limit: 22 G}"), @"space.yaml:3:23: key `trial.memory_limit`: found `22 G`; write a size with its unit, such as 22 GiB, 16GB or 500MB");
    insta::assert_snapshot!(top("trial: {timeout: 5 fortnights}"), @"space.yaml:3:18: key `trial.timeout`: found `5 fortnights`; write a time with its unit of at most ten years, such as 90s, 30m or 1h30m");
    insta::assert_snapshot!(top("trial: {training_tokens: 1.23456k}"), @"space.yaml:3:26: key `trial.training_tokens`: found `1.23456k`; write a whole number, such as 60000, 60k or 1.5M");
    insta::assert_snapshot!(top("training: {length: {tokens: 1.0005k}}"), @"space.yaml:3:29: key `training.length.tokens`: found `1.0005k`; write a whole number, such as 60000, 60k or 1.5M");
    insta::assert_snapshot!(top("training: {length: {steps: -4}}"), @"space.yaml:3:28: key `training.length.steps`: found the number -4; write a whole number, such as 60000, 60k or 1.5M");
    insta::assert_snapshot!(top("trial: {training_steps: 0k}"), @"space.yaml:3:25: key `trial.training_steps`: found `0k`; write a whole number, 1 or more, such as 60000, 60k or 1.5M");
    insta::assert_snapshot!(space("  sequence_length: [1k, 1.0005k]"), @"space.yaml:5:25: key `space.sequence_length[1]`: `1.0005k` is not legal for `sequence_length`; write a whole number from 2 to 4194304");
    insta::assert_snapshot!(space("  rank: {low: 1k, high: 2k}"), @"space.yaml:5:15: key `space.rank.low`: found a number with a unit; write a plain number, such as 1000");
    insta::assert_snapshot!(top("trial: {training_tokens: 0}"), @"space.yaml:3:26: key `trial.training_tokens`: a training of length zero learns nothing; write a number above 0");
    insta::assert_snapshot!(top("trial: {timeout: 0s}"), @"space.yaml:3:18: key `trial.timeout`: no trial can keep a limit of 0; raise it, or remove the key");
    insta::assert_snapshot!(top("budget: {trials: 0}"), @"space.yaml:3:18: key `budget.trials`: a budget of zero runs nothing; write at least 1 trial and some time");
    insta::assert_snapshot!(top("budget: {time: 0m}"), @"space.yaml:3:16: key `budget.time`: a budget of zero runs nothing; write at least 1 trial and some time");
    insta::assert_snapshot!(top("training: {length: {epochs: 0}}"), @"space.yaml:3:12: key `training.length`: a training of length zero learns nothing; write a number above 0");
    insta::assert_snapshot!(top("training: {length: {hours: 1}}"), @"space.yaml:3:21: key `training.length.hours`: found `hours`; write one of auto, steps, tokens, epochs");
    insta::assert_snapshot!(top("training: {length: always}"), @"space.yaml:3:20: key `training.length`: found `always`; write one of auto, steps, tokens, epochs");
}

#[test]
fn a_length_that_the_search_cannot_find_is_named() {
    insta::assert_snapshot!(top("training: {length: auto}\nconfirm: none"), @"space.yaml:3:20: key `training.length`: `auto` rests on trainings made longer, which `confirm` leaves out: let it make some (`longer: 1`), or write a length, such as {epochs: 1}");
    insta::assert_snapshot!(top("training: {length: auto}\nconfirm: {longer: 0}"), @"space.yaml:3:20: key `training.length`: `auto` rests on trainings made longer, which `confirm` leaves out: let it make some (`longer: 1`), or write a length, such as {epochs: 1}");
    insta::assert_snapshot!(top("training: {length: auto}\nobjectives: [throughput, peak_memory]"), @"space.yaml:3:20: key `training.length`: `auto` follows the loss, which this study does not measure: add `loss` to `objectives`, or write a length, such as {epochs: 1}");
}

#[test]
fn text_that_is_not_yaml_is_named() {
    insta::assert_snapshot!(message(read("model: ./base\nspace: {rank: [4, 8}\n")), @"space.yaml:2:15: not valid YAML: mismatched bracket '[' closed by '}'; check indentation, brackets and quotes here and on the line above");
    insta::assert_snapshot!(message(read("model: ./base\n  data: x\n")), @"space.yaml:2:7: not valid YAML: mapping values are not allowed in this context; check indentation, brackets and quotes here and on the line above");
    insta::assert_snapshot!(message(read("model: a\nseed: 1\nmodel: b\n")), @"space.yaml:3:1: key `model` appears twice; remove one");
    insta::assert_snapshot!(message(read("space: {rank: [1, 2], rank: 3}\n")), @"space.yaml:1:23: key `rank` appears twice; remove one");
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
fn settings_of_pruning_stopping_and_confirming_are_checked() {
    insta::assert_snapshot!(top("pruner: hyperband"), @"space.yaml:3:9: key `pruner`: found `hyperband`; write one of none, dominance, asha, median, or {kind: .., eta: ..}");
    insta::assert_snapshot!(top("pruner: {kind: asha, warm_up: 0.1}"), @"space.yaml:3:22: key `pruner.warm_up`: pruner `asha` has no such setting, only `dominance` and `median` has; remove it");
    insta::assert_snapshot!(top("pruner: {kind: asha, eta: 1}"), @"space.yaml:3:27: key `pruner.eta`: found 1; write a number above 1, such as 3");
    insta::assert_snapshot!(top("pruner: {kind: median, warm_up: 50}"), @"space.yaml:3:33: key `pruner.warm_up`: found 50; write a share from 0 to below 1, such as 0.02");
    insta::assert_snapshot!(top("pruner: median\ntrial: {evaluation: {times: 1}}"), @"space.yaml:4:29: key `trial.evaluation.times`: pruner `median` judges by evaluations on the way, and there is none; raise this, or take `pruner: none`");
    insta::assert_snapshot!(top("stop: never"), @"space.yaml:3:7: key `stop`: found `never`; write none, or {least_gain: .., patience: ..}");
    insta::assert_snapshot!(top("stop: {patience: 0}"), @"space.yaml:3:18: key `stop.patience`: found the number 0; write a whole number, 1 or more");
    insta::assert_snapshot!(top("confirm: {interval: 2}"), @"space.yaml:3:21: key `confirm.interval`: found 2; write a share from 0 to below 1, such as 0.02");
    insta::assert_snapshot!(top("confirm: {repeats: 1001}"), @"space.yaml:3:20: key `confirm.repeats`: found 1001; write a whole number from 1 to 1000");
    insta::assert_snapshot!(top("confirm: {trials: 4000000000}"), @"space.yaml:3:19: key `confirm.trials`: found 4000000000; write a whole number from 1 to 1000");
    insta::assert_snapshot!(top("confirm: {repeat: 2}"), @"space.yaml:3:11: unknown key `confirm.repeat`; did you mean `repeats`?");
    insta::assert_snapshot!(top("trial: {steps: 100}"), @"space.yaml:3:9: key `trial.steps`: this is the length of a command's trial; write `training_steps`");
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

#[test]
fn a_mistake_seen_later_still_points_into_the_file() {
    let study = read(WHOLE).unwrap();
    let error = study.reject(&["sampler", "options", "population"], "must be even; write 20 or 22");
    insta::assert_snapshot!(message(Err::<(), _>(error)), @"space.yaml:38:46: key `sampler.options.population`: must be even; write 20 or 22");
}

proptest! {
    #[test]
    fn a_damaged_file_is_read_or_refused_with_a_place(
        edits in prop::collection::vec((0..WHOLE.len(), 0..4usize, "[a-z0-9:{}\\[\\],*&#>|' \n-]{0,4}"), 1..4)
    ) {
        let mut text = WHOLE.to_owned();
        for (start, length, insert) in edits {
            let start = start.min(text.len());
            let end = (start + length).min(text.len());
            text.replace_range(start..end, &insert);
        }
        let options = ReadOptions { check_files: false };
        if let Err(error) = StudyFile::parse(Path::new("space.yaml"), &text, options) {
            let place = error.place().unwrap();
            prop_assert!(place.line >= 1 && place.line <= text.lines().count() + 1, "{}", error);
            prop_assert!(error.rendered(false).starts_with("space.yaml:"));
        }
    }
}

#[test]
fn what_scores_answers_is_checked() {
    let cases = [
        "objectives: [exact_match]",
        "score: {}",
        "score: {exact_match: {extract: {}}}",
        "score: {exact_match: {extract: {regex: '('}}}",
        "score: {exact_match: {extract: {json_path: answer}}}",
        "score: {exact_match: {extract: {json_path: $.answer, take: last}}}",
        "score: {exact_match: {normalize: [upper]}}",
        "score: {exact_match: {}, timeout: 5s}",
        "score: {command: [], metrics: {f1: maximize}}",
        "score: {command: [score]}",
        "score: {command: [score], metrics: {loss: maximize}}",
        "score: {command: [score], metrics: {f 1: maximize}}",
        "score: {command: [score], metrics: {f1: up}}",
        "score: {command: [score], metrics: {f1: maximize}, timeout: 0s}",
        "score: {command: [score], metrics: {f1: maximize}, folder: nowhere}",
        "score: {command: [score], metrics: {f1: maximize}}\nobjectives: [{metric: f1, direction: minimize}]",
        "score: {command: [score], metrics: {f1: maximize}}\nobjectives: [f2]",
        "score: {exact_match: {}, rows: 0}",
        "constraints: {exact_match: '>= 50'}\nscore: {exact_match: {}}",
        "constraints: {token_accuracy_lost_percent: '<= 1.2'}\ntrial: {evaluation: {fp32_training: false}}",
    ];
    let said: Vec<String> = cases.iter().map(|case| top(case)).collect();
    insta::assert_snapshot!(said.join("\n"), @r##"space.yaml:3:14: key `objectives[0]`: `exact_match` is measured on generated answers; add `score: {exact_match: {}}`
space.yaml:3:1: key `score`: nothing scores the answers; write `exact_match: {}` or `command: [program, argument, ..]`
space.yaml:3:23: key `score.exact_match.extract`: write one of `regex` and `json_path`
space.yaml:3:40: key `score.exact_match.extract.regex`: this is no regular expression: unclosed group
space.yaml:3:44: key `score.exact_match.extract.json_path`: a JSON path begins with `$`, as in $.answer
space.yaml:3:60: key `score.exact_match.extract.take`: `take` is about matches of a `regex`; remove it
space.yaml:3:35: key `score.exact_match.normalize[0]`: found `upper`; write one of strip, lower, punctuation, spaces, articles, numbers
space.yaml:3:35: key `score.timeout`: this is about the program of `score.command`, and there is none; add it, or remove this key
space.yaml:3:9: key `score.command`: there is no program; write [program, argument, ..]
space.yaml:3:9: key `score.command`: no metric of this program is named; add `metrics: {name: maximize}` beside it, with what it prints
space.yaml:3:37: key `score.metrics.loss`: the engine has a metric of this name; give the program's another
space.yaml:3:37: key `score.metrics.f 1`: the name of a metric has letters, digits and `_`, `-`, `.` or `/`
space.yaml:3:41: key `score.metrics.f1`: found `up`; write one of minimize, maximize
space.yaml:3:61: key `score.timeout`: no program keeps a limit of 0; raise it, or remove the key
space.yaml:3:60: key `score.folder`: there is no folder nowhere; correct the path (it is relative to the folder of this file)
space.yaml:4:38: key `objectives[0].direction`: the direction of `f1` is maximize; remove this key
space.yaml:4:14: key `objectives[0]`: unknown metric `f2`; write one of throughput, peak_memory, loss, token_accuracy, token_accuracy_lost_percent, loss_kept_percent, top1_agreement_percent, retained_loss_increase, base_kl, reward_accuracy, reward_margin, serve_ms_per_token, f1
space.yaml:3:32: key `score.rows`: found the number 0; write a whole number, 1 or more, such as 60000, 60k or 1.5M
space.yaml:3:28: key `constraints.exact_match`: found `>= 50`; write a bound in quotes, "<= .." or ">= ..", with a share from 0 to 1, such as 0.62 or 62%
space.yaml:4:37: key `trial.evaluation.fp32_training`: `token_accuracy_lost_percent` is what this measures, and the study asks for it; remove this key"##);
    insta::assert_snapshot!(message(read("model: ./base\ndata: {train: train.jsonl, loss_on: all}\nscore: {exact_match: {}}\nspace: {rank: [1, 2]}")), @"space.yaml:2:37: key `data.loss_on`: `score` has models answer the prompts of held-out rows, and `loss_on: all` tells no prompt from an answer; remove one of both");
}

#[test]
fn schedules_of_the_precision_that_some_trial_cannot_follow_are_refused() {
    let refused = |section: &str, top: &str, said: &str| {
        let message = message(study(section, top));
        assert!(
            message.contains("key `space.precision_schedule") && message.contains(said),
            "{message}"
        );
    };
    let sound = |section: &str| drop(study(section, "").unwrap());
    refused(
        "  precision_schedule: [none, half]",
        "",
        "fp32_N (the first N steps in fp32",
    );
    refused(
        "  precision: fp32\n  precision_schedule: [none, fp32_4]",
        "",
        "fp32 computes all steps in fp32 already",
    );
    refused(
        "  precision: [bf16, nf4]\n  precision_schedule: [none, fp32_4]",
        "",
        "when: {precision: [bf16, fp16]}",
    );
    refused(
        "  rank: [4, 8]\n  precision_schedule: fp32_40",
        "trial: {training_steps: 40}",
        "has 40 steps",
    );
    refused(
        "  precision_schedule: [none, adaptive_9]",
        "training: {length: {steps: 9}}",
        "has 9 steps",
    );
    sound("  precision_schedule: [none, fp32_4, adaptive_8]");
    sound("  precision: [fp32, bf16, nf4]\n  precision_schedule: {choices: [none, fp32_4], when: {precision: bf16}}");
}

#[test]
fn updates_of_paged_optimizers_on_the_host_are_refused() {
    let refused = |section: &str, said: &str| {
        let message = message(study(section, ""));
        assert!(
            message.contains("key `space.optimizer_offload") && message.contains(said),
            "{message}"
        );
    };
    let sound = |section: &str| drop(study(section, "").unwrap());
    refused("  optimizer_offload: [none, device]", "none, host");
    let paged = "`optimizer: paged_adamw` has them in host memory to update on the device; write `optimizer: adamw`, or \
        `optimizer_offload: none`; or add `when: {optimizer: [adamw]}` to it";
    refused(
        "  optimizer: [adamw, paged_adamw]\n  optimizer_offload: [none, host]",
        paged,
    );
    refused(
        "  rank: [2, 4]\n  optimizer: paged_adamw_8bit\n  optimizer_offload: host",
        "write `optimizer: adamw_8bit`",
    );
    sound("  optimizer: [adamw, lion_8bit, muon]\n  optimizer_offload: [none, host]");
    sound("  optimizer: [adamw, paged_adamw]\n  optimizer_offload: {choices: [none, host], when: {optimizer: adamw}}");
    sound("  optimizer: [adamw, paged_adamw]\n  optimizer_offload: none");
    let recipe = |optimizer: &str| {
        let text = format!("model: ./base\ndata: {{train: train.jsonl}}\noptimizer: {{{optimizer}}}\n");
        message(super::recipe_file::read_recipe(&text))
    };
    assert!(
        recipe("kind: paged_adamw, offload: host").contains("key `optimizer.offload`"),
        "the recipe's own key"
    );
}

#[test]
fn weights_that_some_trial_cannot_share_out_are_refused() {
    let refused = |section: &str, top: &str, said: &str| {
        let message = message(study(section, top));
        assert!(
            message.contains("key `space.sharding") && message.contains(said),
            "{message}"
        );
    };
    let sound = |section: &str| drop(study(section, "").unwrap());
    let one = "shares weights out among devices, and `devices` is 1; raise `devices`, or write `sharding: none`; or add \
        `when: {devices: [2]}` to it";
    refused("  sharding: [none, half]", "", "none, full");
    refused("  rank: [2, 4]\n  sharding: full", "", one);
    refused("  devices: [1, 2]\n  sharding: [none, full]", "", one);
    refused("  devices: {low: 1, high: 4}\n  sharding: [none, full]", "", one);
    refused(
        "  devices: 2\n  method: full\n  precision: bf16\n  micro_batch: [1, 2]\n  sharding: full",
        "",
        "full fine-tuning has none",
    );
    refused(
        "  devices: 2\n  dora: [false, true]\n  sharding: [none, full]",
        "",
        "`dora: true`",
    );
    refused(
        "  devices: 2\n  init: pissa\n  sharding: [none, full]",
        "",
        "`init: pissa`",
    );
    sound("  devices: 2\n  sharding: [none, full]");
    sound("  devices: [1, 2]\n  sharding: {choices: [none, full], when: {devices: 2}}");
    sound("  devices: 2\n  dora: [false, true]\n  sharding: {choices: [none, full], when: {dora: false}}");
}
