//! Meaning of a sound study file.

use std::path::Path;

use peft_tune::space::file::StudyFile;
use peft_tune::space::{Backend, ReadOptions, RecipeError, Study, params_of, recipe_for};
use peft_tune_core::objective::{Bound, Direction};
use peft_tune_core::recipe::settings::settings;
use peft_tune_core::recipe::{Checkpointing, HeldOut, OptimizerKind, TargetModules, TrainingLength};
use peft_tune_core::space::{Distribution, Scale};
use peft_tune_core::study::{ParamValue, Params};
use peft_tune_search::SamplerKind;

use super::files::{WHOLE, read, study};

#[test]
fn one_epoch_stands_in_for_a_length_that_the_search_finds() {
    let with = |length: &str| read(&WHOLE.replace("length: {epochs: 3}", &format!("length: {length}"))).unwrap();
    let (auto, given) = (with("auto"), with("{tokens: 2M}"));
    let length = |study: &peft_tune::space::Study| study.base.as_ref().unwrap().training.length;
    assert!(auto.finds_length && !given.finds_length);
    assert_eq!(length(&auto), TrainingLength::Epochs(1.0));
    assert_eq!(length(&given), TrainingLength::Tokens(2_000_000));
}

#[test]
fn every_key_of_a_study_file_has_its_meaning() {
    let study = read(WHOLE).unwrap();
    assert_eq!(study.name, "everything");
    let base = study.base.as_ref().unwrap();
    assert!(Path::new(&base.model).is_absolute() && base.model.ends_with("base"));
    let train = base.data.train.files().next().unwrap();
    assert!(train.is_absolute() && train.ends_with("train.jsonl"));
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
    let price = study.price.as_ref().unwrap();
    assert_eq!((price.usd_per_h, price.source.as_str()), (2.49, "the study file"));
    assert_eq!(study.sampler.kind, SamplerKind::Nsga2);
    assert_eq!(study.sampler.options["population"], ParamValue::Int(20));
    assert_eq!(study.backend, Backend::Native);
    assert!(!study.engine_is_open);
    assert_eq!(study.source.text(), WHOLE);
    assert_eq!(study.source.sha256.len(), 64);
}

#[test]
fn counts_of_a_study_take_units() {
    let study = study(
        "  sequence_length: [1k, 2k]
  micro_batch: {low: 1, high: 1k}
  warmup: 1.5k
  rank: 8",
        "objectives: [throughput, {metric: loss, known_after: 2k}]
trial:
  profile_steps: 1k
  profile_warmup: 3k
  training_steps: 4k
  evaluation: {rows: 1.2k}
training: {length: {tokens: 200k}, evaluate_every: 5k, evaluation_rows: 6k}
baseline: {sequence_length: 1k}
pruner: {kind: asha, least_steps: 7k}
confirm: {steps: 8k}
score: {exact_match: {}, rows: 9k, max_new_tokens: 1k, batch: 2k}",
    )
    .unwrap();
    let parameter = |name: &str| {
        &study
            .space
            .parameters
            .iter()
            .find(|one| one.name == name)
            .unwrap()
            .distribution
    };
    assert_eq!(
        *parameter("sequence_length"),
        Distribution::Categorical {
            choices: vec![ParamValue::Int(1000), ParamValue::Int(2000)]
        }
    );
    assert!(matches!(
        parameter("micro_batch"),
        Distribution::Int { low: 1, high: 1000, .. }
    ));
    assert_eq!(study.fixed["warmup"], ParamValue::Float(1500.0));
    assert_eq!(study.baseline["sequence_length"], ParamValue::Int(1000));
    let base = study.base.as_ref().unwrap();
    assert_eq!(base.training.length, TrainingLength::Tokens(200_000));
    assert_eq!(base.training.evaluate_every, Some(5000));
    assert_eq!(base.training.evaluation_rows, Some(6000));
    assert_eq!(study.objectives[1].known_after, Some(2000));
    let measure = study.plan.measure.as_ref().unwrap();
    assert_eq!((measure.steps, measure.max_warmup_steps), (1000, 3000));
    let train = study.plan.train.as_ref().unwrap();
    assert_eq!(
        (train.length, train.evaluation_rows),
        (TrainingLength::Steps(4000), Some(1200))
    );
    let score = train.accuracy.score.as_ref().unwrap();
    assert_eq!((score.rows, score.max_new_tokens, score.batch), (9000, 1000, 2000));
    assert_eq!(study.pruner.least_steps, 7000);
    assert_eq!(study.confirm.as_ref().unwrap().steps, 8000);
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
        ("target_modules".into(), ParamValue::list(["q_proj", "v_proj"])),
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
fn a_rank_changes_how_fast_a_token_is_served_where_the_adapter_is_not_merged() {
    let affects = |name: &str, mode: &str| {
        let rest = format!("objectives: [loss, serve_ms_per_token]\nserve: {{mode: {mode}}}");
        let study = study("  rank: [4, 8]\n  precision: [bf16, nf4]", &rest).unwrap();
        let found = study.space.parameters.iter().find(|parameter| parameter.name == name);
        found.unwrap().affects.clone()
    };
    assert_eq!(affects("rank", "beside"), None);
    assert_eq!(
        affects("rank", "merged").unwrap(),
        ["throughput", "peak_memory", "loss"]
    );
    assert_eq!(affects("precision", "merged"), None);
}

#[test]
fn a_global_batch_is_one_of_the_micro_batch_that_is_fixed_beside_it() {
    // The micro-batch that a recipe has by default does not divide it.
    let study = study("  rank: [4, 8]\n  global_batch: 6\n  micro_batch: 1", "").unwrap();
    let batch = study.base.unwrap().batch;
    assert_eq!((batch.micro_batch, batch.gradient_accumulation), (1, 6));
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
    assert_eq!(base.data.train, "/somewhere/mine.jsonl".into());
    assert_eq!(study.name, "space");
    assert!(StudyFile::parse(path, text, ReadOptions::default()).is_err());
}

/// The two tables of the settings stand in the documentation as the rows say; `UPDATE_GOLDEN=1` writes them anew.
#[test]
fn the_documentation_has_the_tables_of_the_settings() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/space-file.md");
    let mut text = std::fs::read_to_string(&path).unwrap();
    let mut meanings = String::from("| name | recipe field | legal values | meaning |\n|---|---|---|---|\n");
    let mut effects = String::from("| name | throughput | peak memory | loss |\n|---|---|---|---|\n");
    for row in settings() {
        let unit = row.unit.map(|unit| format!(" ({unit})")).unwrap_or_default();
        meanings += &format!(
            "| `{}` | `{}` | {}{unit} | {} |\n",
            row.name, row.field, row.legal, row.about
        );
        let of = row.effects;
        effects += &format!(
            "| `{}` | {} | {} | {} |\n",
            row.name, of.throughput, of.peak_memory, of.loss
        );
    }
    for table in [meanings, effects] {
        let head = table.lines().next().unwrap();
        let start = text.find(head).unwrap();
        let end = text[start..]
            .find("\n\n")
            .map_or(text.len(), |length| start + length + 1);
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            text.replace_range(start..end, &table);
            std::fs::write(&path, &text).unwrap();
            continue;
        }
        assert_eq!(text[start..end], table, "write it anew with UPDATE_GOLDEN=1");
    }
    let long = text
        .lines()
        .flat_map(|line| line.split(" | "))
        .find(|cell| cell.starts_with("with ") && cell.len() > 200);
    assert_eq!(long, None, "a cell that nobody reads");
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

#[test]
fn ranges_widen_where_that_changes_the_loss_alone_unless_they_are_fixed() {
    let native = read(
        "model: ./base
data: {train: train.jsonl}
space:
  learning_rate: {low: 1e-4, high: 2e-3, scale: log}
  weight_decay: {low: 0, high: 0.2, fixed: true}
  warmup: {low: 10, high: 100}
  rank: {low: 4, high: 64, fixed: true}
  dropout: {low: 0, high: 0.1}
",
    )
    .unwrap();
    let command = read(
        "backend: {command: [run]}
objectives: [loss]
space: {x: {low: 0.5, high: 1.5, fixed: false}, y: {low: 0.5, high: 1.5}}
",
    )
    .unwrap();
    let widest = |study: &Study, name: &str| {
        let mut parameters = study.space.parameters.iter();
        let found = parameters.find(|one| one.name == name).unwrap();
        found.widest.map(|widest| widest.to_string())
    };
    assert_eq!(widest(&native, "learning_rate").unwrap(), "1.5625e-6..0.128");
    for name in ["weight_decay", "warmup", "rank", "dropout"] {
        assert_eq!(widest(&native, name), None, "{name}");
    }
    assert_eq!(widest(&command, "x").unwrap(), "0..2.25");
    assert_eq!(widest(&command, "y"), None);
}

#[test]
fn accuracies_are_maximised_and_change_with_what_changes_the_loss() {
    let study = read(
        "model: ./base
data: {train: train.jsonl}
objectives: [throughput, token_accuracy, top1_agreement_percent]
constraints: {loss_kept_percent: '>= 99%', token_accuracy: '>= 40%'}
space: {learning_rate: {low: 1e-4, high: 1e-2}, gradient_checkpointing: [none, full]}
",
    )
    .unwrap();
    let directions: Vec<Direction> = study.objectives.iter().map(|one| one.direction).collect();
    assert_eq!(directions, [Direction::Maximize; 3]);
    let bounds: Vec<Bound> = study.constraints.iter().map(|one| one.bound).collect();
    assert_eq!(bounds, [Bound::AtLeast(99.0), Bound::AtLeast(0.4)]);
    let accuracy = study.plan.train.unwrap().accuracy;
    assert!(accuracy.check && accuracy.is_required);
    let affects = |name: &str| {
        let mut parameters = study.space.parameters.iter();
        let found = parameters.find(|one| one.name == name).unwrap();
        found.affects.clone().unwrap()
    };
    assert_eq!(
        affects("learning_rate"),
        ["loss", "token_accuracy", "top1_agreement_percent", "loss_kept_percent"]
    );
    let costs = affects("gradient_checkpointing");
    assert!(!costs.iter().any(|metric| metric == "token_accuracy"), "{costs:?}");
}
