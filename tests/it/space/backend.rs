//! Backends of a study file: forms of the key, what each means, and what trials in TRL do not do.

use std::path::Path;

use peft_tune::space::file::StudyFile;
use peft_tune::space::{Backend, Loader, ReadOptions, TrlBackend};

use super::files::{folder, message, read, study};

/// The message about further top-level lines, beside a sound `space` section.
fn top(lines: &str) -> String {
    message(study("  rank: [4, 8]", lines))
}

#[test]
fn a_study_in_trl_means_what_it_means_natively() {
    let study = |backend: &str| {
        let text = format!(
            "model: ./base\ndata: {{train: train.jsonl}}\nbackend: {backend}\nlauncher: {{command: [nice]}}\n\
             trial: {{memory_limit: 2 GiB, training_steps: 4, evaluation: {{accuracy_check: false}}}}\n\
             objectives: [throughput, peak_memory, loss, token_accuracy]\nbaseline: {{devices: 1}}\n\
             space: {{rank: [4, 8], learning_rate: {{low: 1e-4, high: 1e-3}}, devices: 1, sharding: none}}\n"
        );
        let options = ReadOptions { check_files: false };
        StudyFile::parse(Path::new("/somewhere/space.yaml"), &text, options).unwrap()
    };
    let native = study("native");
    for (backend, loader, python) in [
        ("trl", Loader::Transformers, None),
        ("{trl: {}}", Loader::Transformers, None),
        (
            "{trl: {python: ./.venv/bin/python}}",
            Loader::Transformers,
            Some("/somewhere/.venv/bin/python"),
        ),
        (
            "{trl: {python: /opt/python}}",
            Loader::Transformers,
            Some("/opt/python"),
        ),
        ("unsloth", Loader::Unsloth, None),
        ("{unsloth: {python: /opt/python}}", Loader::Unsloth, Some("/opt/python")),
    ] {
        let trl = study(backend);
        let python = python.map(Into::into);
        assert_eq!(trl.backend, Backend::Trl(TrlBackend { loader, python }), "{backend}");
        assert!(trl.backend.trains_recipes() && trl.backend.name() == loader.name());
        assert_eq!(trl.problem(), native.problem());
        assert_eq!((&trl.base, &trl.plan), (&native.base, &native.plan));
        assert_eq!((&trl.space, &trl.fixed), (&native.space, &native.fixed));
        assert_eq!((&trl.baseline, &trl.confirm), (&native.baseline, &native.confirm));
    }
    assert!(native.plan.measure.is_some() && native.plan.train.is_some() && native.confirm.is_some());
}

#[test]
fn a_backend_that_is_asked_for_takes_the_place_of_the_file_s() {
    let folder = folder();
    let path = folder.path().join("space.yaml");
    let read_for = |backend: &str, asked: &Backend| {
        let rest = "model: ./base\ndata: {train: train.jsonl}\nspace: {rank: [4, 8]}";
        std::fs::write(&path, format!("{backend}\n{rest}\n")).unwrap();
        StudyFile::read_for(&path, Some(asked.clone()))
    };
    let backend = |text: &str, asked: &Backend| read_for(text, asked).unwrap().backend;
    let trl = |python: Option<&Path>| {
        Backend::Trl(TrlBackend {
            python: python.map(Path::to_owned),
            ..TrlBackend::default()
        })
    };
    let named = "backend: {trl: {python: train.jsonl}}";
    let of_file = folder.path().join("train.jsonl");
    let of_file = of_file.as_path();
    let other = Path::new("/opt/python");
    assert_eq!(backend("", &trl(None)), trl(None));
    assert_eq!(backend("", &Backend::Native), Backend::Native);
    assert_eq!(backend(named, &trl(None)), trl(Some(of_file)));
    assert_eq!(backend(named, &trl(Some(other))), trl(Some(other)));
    assert_eq!(StudyFile::read_for(&path, None).unwrap().backend, trl(Some(of_file)));
    // What the file says of one is nothing of the other.
    let unsloth = Backend::Trl(TrlBackend::by(Loader::Unsloth));
    assert_eq!(backend(named, &unsloth), unsloth);
    assert_eq!(
        backend("backend: {unsloth: {python: train.jsonl}}", &trl(None)),
        trl(None)
    );
    // An interpreter that does not run the trials need not be there.
    let gone = "backend: {trl: {python: nowhere}}";
    assert_eq!(backend(gone, &Backend::Native), Backend::Native);
    assert_eq!(backend(gone, &trl(Some(other))), trl(Some(other)));
    let refused = |text: &str, asked: &Backend| message(read_for(text, asked));
    insta::assert_snapshot!(refused("score: {exact_match: {}}", &trl(None)), @"space.yaml:1:1: key `score`: trials in TRL answer no prompts so far; remove it, or search with the native backend");
    insta::assert_snapshot!(refused("score: {exact_match: {}}", &unsloth), @"space.yaml:1:1: key `score`: trials in unsloth answer no prompts so far; remove it, or search with the native backend");
    insta::assert_snapshot!(refused("backend: {command: [run]}", &trl(None)), @"space.yaml:1:11: key `backend.command`: the parameters of a command are known to it alone; leave `--backend` out");
}

#[test]
fn an_engine_that_is_left_open_is_open_until_one_is_asked_for() {
    let folder = folder();
    let path = folder.path().join("space.yaml");
    let of_file = folder.path().join("train.jsonl");
    let trl = |python: Option<&Path>| {
        Backend::Trl(TrlBackend {
            python: python.map(Path::to_owned),
            ..TrlBackend::default()
        })
    };
    for (backend, python) in [
        ("auto", None),
        ("{auto: {}}", None),
        ("{auto: {python: train.jsonl}}", Some(of_file.as_path())),
    ] {
        let rest = "model: ./base\ndata: {train: train.jsonl}\nspace: {rank: [4, 8]}";
        std::fs::write(&path, format!("backend: {backend}\n{rest}\n")).unwrap();
        let read_for = |asked: Option<Backend>| {
            let study = StudyFile::read_for(&path, asked).unwrap();
            (study.backend, study.engine_is_open)
        };
        assert_eq!(read_for(None), (Backend::Native, true), "{backend}");
        assert_eq!(read_for(Some(Backend::Native)), (Backend::Native, false), "{backend}");
        assert_eq!(read_for(Some(trl(None))), (trl(python), false), "{backend}");
        let other = Path::new("/opt/python");
        assert_eq!(read_for(Some(trl(Some(other)))), (trl(Some(other)), false), "{backend}");
        // The choice is not between these, and its Python is not theirs.
        let unsloth = Backend::Trl(TrlBackend::by(Loader::Unsloth));
        assert_eq!(read_for(Some(unsloth.clone())), (unsloth, false), "{backend}");
    }
}

#[test]
fn keys_of_the_backend_that_run_nothing_or_too_much_are_named() {
    insta::assert_snapshot!(top("backend: {}"), @"space.yaml:3:1: key `backend`: these keys name nothing that runs the trials; write `native`, `trl`, `unsloth`, `auto`, {trl: {python: ..}}, {unsloth: {python: ..}}, {auto: {python: ..}} or {command: [program, argument, ..]}");
    insta::assert_snapshot!(top("backend: {command: [a], trl: {}}"), @"space.yaml:3:25: `backend.trl` and `backend.command` exclude each other: one of them runs the trials; keep one");
    insta::assert_snapshot!(top("backend: {trl: {}, unsloth: {}}"), @"space.yaml:3:20: `backend.unsloth` and `backend.trl` exclude each other: one of them runs the trials; keep one");
    insta::assert_snapshot!(top("backend: {auto: {}, trl: {}}"), @"space.yaml:3:11: `backend.auto` and `backend.trl` exclude each other: one of them runs the trials; keep one");
    insta::assert_snapshot!(top("backend: {auto: {}, env: {A: 1}}"), @"space.yaml:3:21: key `backend.env`: this is about the program of `backend.command`, and there is none; remove it");
    insta::assert_snapshot!(top("backend: {trl: {}, env: {A: 1}}"), @"space.yaml:3:20: key `backend.env`: this is about the program of `backend.command`, and there is none; remove it");
    insta::assert_snapshot!(top("backend: {trl: {}, folder: base}"), @"space.yaml:3:20: key `backend.folder`: this is about the program of `backend.command`, and there is none; remove it");
    insta::assert_snapshot!(top("backend: {trl: {pyhton: python3}}"), @"space.yaml:3:17: unknown key `backend.trl.pyhton`; did you mean `python`?");
    insta::assert_snapshot!(top("backend: {trl: {python: nowhere}}"), @"space.yaml:3:25: key `backend.trl.python`: there is no interpreter nowhere; correct the path (it is relative to the folder of this file)");
    insta::assert_snapshot!(top("backend: {trl: {python: base}}"), @"space.yaml:3:25: key `backend.trl.python`: this is a folder; name the interpreter in it, such as `bin/python` in that of an environment");
    insta::assert_snapshot!(top("backend: {auto: {python: nowhere}}"), @"space.yaml:3:26: key `backend.auto.python`: there is no interpreter nowhere; correct the path (it is relative to the folder of this file)");
    insta::assert_snapshot!(top("backend: trl\ntrial: {steps: 100}"), @"space.yaml:4:9: key `trial.steps`: this is the length of a command's trial; write `training_steps`");
}

#[test]
fn what_trials_in_trl_do_not_do_is_refused() {
    let keys = [
        "target_stack: axolotl",
        "target_device: A100 40GB",
        "score: {exact_match: {}}",
        "trial: {evaluation: {accuracy_check: true}}",
        "trial: {evaluation: {fp32_training: true}}",
        "launcher: {slurm: {}}",
        "launcher: {ssh: {hosts: [gpu1]}}",
        "launcher: {kubernetes: {image: peft-tune}}",
        "objectives: [loss, loss_kept_percent]",
        "objectives: [{metric: exact_match}]",
        "constraints: {token_accuracy_lost_percent: '<= 1.2'}",
        "constraints: {top1_agreement_percent: '>= 98'}",
    ];
    let said: Vec<String> = keys.iter().map(|key| top(&format!("backend: trl\n{key}"))).collect();
    insta::assert_snapshot!(said.join("\n"), @r##"space.yaml:4:1: key `target_stack`: trials in TRL are measured there, and nothing is predicted of another stack; remove it, or search with the native backend
space.yaml:4:1: key `target_device`: trials in TRL are measured on this machine, and nothing is predicted of another device; remove it, or search with the native backend
space.yaml:4:1: key `score`: trials in TRL answer no prompts so far; remove it, or search with the native backend
space.yaml:4:22: key `trial.evaluation.accuracy_check`: trials in TRL are not compared with fp32 base weights so far; remove it, or search with the native backend
space.yaml:4:22: key `trial.evaluation.fp32_training`: trials in TRL are not compared with trainings in fp32 so far; remove it, or search with the native backend
space.yaml:4:1: key `launcher`: trials in TRL run on this machine so far; remove it, or search with the native backend
space.yaml:4:1: key `launcher`: trials in TRL run on this machine so far; remove it, or search with the native backend
space.yaml:4:1: key `launcher`: trials in TRL run on this machine so far; remove it, or search with the native backend
space.yaml:4:20: key `objectives[1]`: trials in TRL do not measure `loss_kept_percent` so far; write one of throughput, peak_memory, loss, token_accuracy, reward_accuracy, reward_margin, or search with the native backend
space.yaml:4:23: key `objectives[0].metric`: trials in TRL do not measure `exact_match` so far; write one of throughput, peak_memory, loss, token_accuracy, reward_accuracy, reward_margin, or search with the native backend
space.yaml:4:15: key `constraints.token_accuracy_lost_percent`: trials in TRL do not measure `token_accuracy_lost_percent` so far; write one of throughput, peak_memory, loss, token_accuracy, reward_accuracy, reward_margin, or search with the native backend
space.yaml:4:15: key `constraints.top1_agreement_percent`: trials in TRL do not measure `top1_agreement_percent` so far; write one of throughput, peak_memory, loss, token_accuracy, reward_accuracy, reward_margin, or search with the native backend"##);
    for value in [
        "devices: [1, 2]",
        "devices: {low: 1, high: 4}",
        "devices: 2\n  sharding: full",
        "optimizer_offload: [none, host]",
    ] {
        let found = study(&format!("  rank: [4, 8]\n  {value}"), "backend: trl");
        assert!(found.is_ok(), "{value}");
    }
    let mixed = "model: ./base\ndata: {train: [{file: train.jsonl, weight: 0.7}, {file: held_out.jsonl, weight: 0.3}]}\n\
        backend: trl\nspace: {rank: [1, 2]}";
    insta::assert_snapshot!(message(read(mixed)), @"space.yaml:2:8: key `data.train`: trials in TRL mix no sets by weights so far; name files alone, or search with the native backend");
}
