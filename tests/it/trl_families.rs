//! Models that the built-in engine lacks: searches on them in TRL, what is refused and offered, and the engine that
//! `backend: auto` takes.
#![cfg(unix)]

use std::path::Path;
use std::process::Output;

use serde_json::json;

use crate::mocked::errors_of;
use crate::trl_search::{BACKEND, GPU, SPACE, bench, command, python_with, queried, refused, stand_in, succeeds};

/// Gives the model of a folder keys of another family in its `config.json`.
fn of_family(folder: &Path, change: impl FnOnce(&mut serde_json::Value)) {
    let path = folder.join("base/config.json");
    let mut config: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    change(&mut config);
    std::fs::write(&path, config.to_string()).unwrap();
}

fn falcon(config: &mut serde_json::Value) {
    config["model_type"] = "falcon_h1".into();
    config["architectures"] = json!(["FalconH1ForCausalLM"]);
}

#[test]
fn a_model_that_the_engine_lacks_is_searched_in_trl_and_offered_that_elsewhere() {
    let folder = bench(SPACE);
    let folder = folder.path();
    of_family(folder, falcon);
    let told = refused(folder, &["search", "space.yaml"]);
    for part in [
        "model_type `falcon_h1`",
        "is not supported",
        "or search with `--backend trl`",
    ] {
        assert!(told.contains(part), "{told}");
    }
    let in_trl = ["search", "space.yaml", "--backend", "trl", "--python", "./python"];
    let said = errors_of(&succeeds(folder, &in_trl));
    assert!(
        said.contains("it lacks the family `falcon_h1`") && said.contains("is what PEFT takes that for"),
        "{said}"
    );
    assert_eq!(
        queried(folder, "select architecture, parameters from model"),
        "architecture,parameters\nfalcon_h1,"
    );
    // A rate by the width of the model, between those of the range.
    let rate =
        "select cast(value as real) as rate from trial_param where name = 'learning_rate' order by trial limit 1";
    let rate = queried(folder, rate);
    let rate: f64 = rate.lines().nth(1).unwrap().parse().unwrap();
    assert!(
        (rate / (5e-4 * (2000.0_f64 / 128.0).sqrt()) - 1.0).abs() < 1e-3,
        "{rate}"
    );
    succeeds(folder, &["export", "--format", "trl", "--output", "out"]);
    let exported = std::fs::read_to_string(folder.join("out/trl_sft.yaml")).unwrap();
    assert!(exported.contains("all-linear"), "{exported}");
}

#[test]
fn names_for_some_layers_of_a_model_that_is_not_known_are_refused_or_told() {
    let folder = bench(&format!("{SPACE}{BACKEND}"));
    let folder = folder.path();
    of_family(folder, falcon);
    let space = |name: &str, targets: &str| {
        let text = SPACE.replace(
            "rank: [2, 4, 8, 16]",
            &format!("rank: [2, 4], target_modules: {targets}"),
        );
        std::fs::write(folder.join(name), format!("{text}{BACKEND}")).unwrap();
    };
    space("presets.yaml", "[attention, all-linear]");
    let told = refused(folder, &["search", "presets.yaml"]);
    for part in [
        "key `space.target_modules`",
        "`falcon_h1`",
        "`attention`",
        "all-linear",
        "down_proj, ",
        "q_proj",
    ] {
        assert!(told.contains(part), "{told}");
    }
    space("names.yaml", "[[q_proj, in_proj], [self_attn.q_proj]]");
    let said = errors_of(&succeeds(folder, &["search", "names.yaml"]));
    assert!(
        said.contains("no matrix of the checkpoint is called `in_proj`"),
        "{said}"
    );
    assert!(!said.contains("is called `self_attn.q_proj`"), "{said}");
    let baseline = format!("{SPACE}{BACKEND}baseline: {{target_modules: mlp}}\n");
    std::fs::write(folder.join("baseline.yaml"), baseline).unwrap();
    let told = refused(folder, &["search", "baseline.yaml"]);
    assert!(
        told.contains("key `baseline.target_modules`") && told.contains("`mlp`"),
        "{told}"
    );
}

#[test]
fn a_model_whose_dimensions_cannot_be_read_is_searched_and_said_to_be_such() {
    let folder = bench(&format!("{SPACE}{BACKEND}"));
    let folder = folder.path();
    of_family(folder, |config| {
        let mut text = config.clone();
        text["model_type"] = "gemma3n_text".into();
        text["intermediate_size"] = json!([352, 352, 352, 352]);
        *config =
            json!({"model_type": "gemma3n", "architectures": ["Gemma3nForConditionalGeneration"], "text_config": text});
    });
    let said = errors_of(&succeeds(folder, &["search", "space.yaml"]));
    for part in [
        "is more than a language model",
        "the dimensions of `gemma3n` cannot be read",
        "intermediate_size",
    ] {
        assert!(said.contains(part), "{said}");
    }
}

#[test]
fn weights_in_pytorchs_own_form_are_trained_in_trl_and_refused_elsewhere_with_the_way_out() {
    let folder = bench(&format!("{SPACE}{BACKEND}"));
    let folder = folder.path();
    std::fs::rename(
        folder.join("base/model.safetensors"),
        folder.join("base/pytorch_model.bin"),
    )
    .unwrap();
    succeeds(folder, &["search", "space.yaml"]);
    let weights = "select path like '%pytorch_model.bin' as is_it from study_input where role = 'weights'";
    assert_eq!(queried(folder, weights), "is_it\n1");
    for command in ["explain", "pareto"] {
        succeeds(folder, &[command]);
    }
    succeeds(folder, &["export", "--format", "trl", "--output", "out"]);
    let told = refused(folder, &["search", "space.yaml", "--as", "here", "--backend", "native"]);
    for part in ["only PyTorch's own weights", "--backend trl", "save_pretrained('.')"] {
        assert!(told.contains(part), "{told}");
    }
    // Of a family that is not known names of modules are not held against what cannot be listed.
    of_family(folder, falcon);
    let names = SPACE.replace(
        "rank: [2, 4, 8, 16]",
        "rank: [2, 4], target_modules: [[in_proj], [q_proj]]",
    );
    std::fs::write(folder.join("names.yaml"), format!("{names}{BACKEND}")).unwrap();
    let said = errors_of(&succeeds(folder, &["search", "names.yaml", "--as", "names"]));
    assert!(
        said.contains("the matrices of the checkpoint cannot be listed here"),
        "{said}"
    );
}

#[test]
fn trials_in_trl_need_a_tokenizer() {
    let folder = bench(&format!("{SPACE}{BACKEND}"));
    let folder = folder.path();
    std::fs::remove_file(folder.join("base/tokenizer.json")).unwrap();
    let told = refused(folder, &["search", "space.yaml"]);
    assert!(
        told.contains("need the model's tokenizer") && told.contains("base has none"),
        "{told}"
    );
}

/// What a search with `backend: auto` says of its engine.
pub(crate) fn engine_line(said: &str) -> String {
    let mut lines = said.lines();
    let found = lines.find(|line| line.starts_with("auto takes ") || line.starts_with("the study goes on in "));
    found.unwrap_or_else(|| panic!("no engine is named: {said}")).to_owned()
}

/// Output of a command on a machine with the driver of a GPU, which PyTorch may have.
fn beside_driver(folder: &Path, arguments: &[&str]) -> Output {
    std::fs::write(folder.join("libcuda.so.1"), "").unwrap();
    let mut command = command(folder, arguments);
    let output = command.env("LD_LIBRARY_PATH", folder).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", errors_of(&output));
    output
}

#[test]
fn an_engine_that_is_left_open_is_chosen_by_family_and_device() {
    let auto = ["search", "space.yaml", "--python", "./python"];
    let cases: [(bool, bool, &[&str]); 4] = [
        (
            true,
            false,
            &[
                "auto takes the built-in engine: it has the family `llama`",
                "trials run on the CPU",
            ],
        ),
        (
            true,
            true,
            &["auto takes TRL: PyTorch has a GPU here", "/python has TRL"],
        ),
        (false, false, &["auto takes TRL: ", "it lacks the family `falcon_h1`"]),
        (false, true, &["auto takes TRL: ", "it lacks the family `falcon_h1`"]),
    ];
    for (is_known, has_gpu, parts) in cases {
        let folder = bench(&format!("{SPACE}backend: auto\n"));
        let folder = folder.path();
        if !is_known {
            of_family(folder, falcon);
        }
        if has_gpu {
            python_with(folder, "1.16.0", &[GPU]);
        }
        let ran = if has_gpu { beside_driver } else { succeeds };
        let said = errors_of(&ran(folder, &auto));
        let line = engine_line(&said);
        for part in parts {
            assert!(line.contains(part), "{line}");
        }
        let in_trl = line.contains("takes TRL");
        assert_eq!(said.contains("trials train in TRL: "), in_trl, "{said}");
        let stored = "select definition ->> '$.settings.backend.trl' is not null as in_trl from study";
        assert_eq!(queried(folder, stored), format!("in_trl\n{}", u8::from(in_trl)));
        let dry = errors_of(&ran(folder, &[&auto[..], &["--as", "other", "--dry-run"]].concat()));
        assert_eq!(engine_line(&dry), line);
    }
}

#[test]
fn no_python_is_started_where_the_engine_does_not_depend_on_one() {
    let folder = bench(&format!("{SPACE}backend: {{auto: {{python: ./python}}}}\n"));
    let folder = folder.path();
    let was_asked = || std::fs::remove_file(folder.join("asked")).is_ok();
    stand_in(folder, "touch asked\necho no TRL here >&2\nexit 1");
    let line = engine_line(&errors_of(&succeeds(
        folder,
        &["search", "space.yaml", "--devices", "cpu"],
    )));
    assert!(
        line.ends_with("it has the family `llama`, and trials run on the CPU"),
        "{line}"
    );
    assert!(!was_asked());
    // A driver may have a GPU for PyTorch, a study may have begun there, and a family may be one of TRL's alone.
    beside_driver(folder, &["search", "space.yaml", "--as", "beside"]);
    assert!(was_asked());
    of_family(folder, falcon);
    let told = refused(folder, &["search", "space.yaml", "--as", "other", "--devices", "cpu"]);
    assert!(told.contains("no TRL here") && was_asked(), "{told}");
    python_with(folder, "1.16.0", &[]);
    let line = engine_line(&errors_of(&succeeds(
        folder,
        &["search", "space.yaml", "--as", "falcon"],
    )));
    assert!(
        line.starts_with("auto takes TRL: ") && line.contains("/python has TRL"),
        "{line}"
    );
    of_family(folder, |config| config["model_type"] = "llama".into());
    let begun = ["search", "space.yaml", "--as", "begun", "--devices", "cpu"];
    succeeds(folder, &[&begun[..], &["--backend", "trl"]].concat());
    let said = errors_of(&succeeds(folder, &[&begun[..], &["--trials", "4"]].concat()));
    assert_eq!(
        engine_line(&said),
        "the study goes on in TRL, as it began; auto would take the built-in engine now: it has the family `llama`, and trials run on \
         the CPU"
    );
}

#[test]
fn where_no_engine_can_train_both_reasons_are_told() {
    let folder = bench(SPACE);
    let folder = folder.path();
    of_family(folder, falcon);
    stand_in(folder, "echo no TRL here >&2; exit 1");
    let auto = ["search", "space.yaml", "--backend", "auto", "--python", "./python"];
    let told = refused(folder, &auto);
    for part in [
        "no engine can train this study",
        "it lacks the family `falcon_h1`",
        "no TRL here",
    ] {
        assert!(told.contains(part), "{told}");
    }
    assert!(!folder.join("study.db").exists());
    // What TRL does not do leaves the built-in engine, also beside a GPU of PyTorch's.
    let checked = "{sequence_length: 128, evaluation: {accuracy_check: true}}";
    let other = bench(&SPACE.replace("{sequence_length: 128}", checked));
    python_with(other.path(), "1.16.0", &[GPU]);
    let line = engine_line(&errors_of(&succeeds(
        other.path(),
        &[&auto[..], &["--dry-run"]].concat(),
    )));
    assert!(line.starts_with("auto takes the built-in engine"), "{line}");
    let command = bench("backend: {command: [run]}\nobjectives: [loss]\nspace: {x: [1, 2]}\n");
    let told = refused(command.path(), &["search", "space.yaml", "--backend", "auto"]);
    assert!(told.contains("leave `--backend` out"), "{told}");
}

#[test]
fn a_study_keeps_the_engine_that_it_began_in() {
    let folder = bench(&format!("{SPACE}backend: auto\n"));
    let folder = folder.path();
    let auto = |trials: &str| {
        let words = ["search", "space.yaml", "--python", "./python", "--trials", trials];
        engine_line(&errors_of(&succeeds(folder, &words)))
    };
    assert!(auto("3").starts_with("auto takes the built-in engine"));
    assert_eq!(auto("4"), "the study goes on in the built-in engine, as it began");
    python_with(folder, "1.16.0", &[GPU]);
    let words = ["search", "space.yaml", "--python", "./python", "--trials", "5"];
    let line = engine_line(&errors_of(&beside_driver(folder, &words)));
    assert!(
        line.contains("goes on in the built-in engine, as it began; auto would take TRL now: PyTorch has a GPU here"),
        "{line}"
    );
    assert_eq!(queried(folder, "select count(*) as n from study"), "n\n1");

    let other = bench(&format!("{SPACE}backend: auto\n"));
    let other = other.path();
    of_family(other, falcon);
    succeeds(other, &["search", "space.yaml", "--python", "./python"]);
    stand_in(other, "echo gone >&2; exit 1");
    of_family(other, |config| config["model_type"] = "llama".into());
    let told = refused(
        other,
        &["search", "space.yaml", "--python", "./python", "--trials", "4"],
    );
    assert!(
        told.contains("the study began in TRL") && told.contains("gone") && told.contains("--as NEW_NAME"),
        "{told}"
    );
}

#[cfg(target_os = "linux")]
#[test]
fn a_model_that_the_built_in_engine_lacks_is_trained() {
    use crate::faults::bench::{Finished, SPACE, messages};
    use crate::faults::study::with_own_model;
    use crate::trl_backend::{has_python, search};

    if !has_python() {
        return;
    }
    let bench = with_own_model(SPACE);
    let rewritten = |name: &str, from: &str, to: &str| {
        let text = std::fs::read_to_string(bench.path(name)).unwrap();
        assert!(text.contains(from), "{text}");
        std::fs::write(bench.path(name), text.replace(from, to)).unwrap();
    };
    rewritten("base/config.json", "\"llama\"", "\"falcon_h1\"");
    let output = search(&bench, &["--trials", "3"]).output().unwrap();
    let said = messages(&output);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("it lacks the family `falcon_h1`"), "{said}");
    let finished = bench.sound(&Finished::new());
    let complete = bench.count("select count(*) as n from trial where state = 'complete'");
    assert!(finished.len() >= 3 && complete == finished.len() as u64, "{finished:?}");

    // A file that names no class is told by the rehearsal: TRL would not know what to load.
    rewritten("base/config.json", "\"LlamaForCausalLM\"", "");
    let output = search(&bench, &["--as", "no class"]).output().unwrap();
    let said = messages(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("names no `architectures`"), "{said}");
}
