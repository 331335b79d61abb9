//! `init` as people call it.

use std::path::Path;
use std::process::Output;

use peft_tune::export::ExportFormat;
use peft_tune::space::{ReadOptions, StudyFile};
use peft_tune::tools::Tool;
use peft_tune_core::recipe::{DataFormat, LongRows, Recipe};

fn run(folder: &Path, arguments: &[&str]) -> Output {
    crate::program()
        .arg("init")
        .args(arguments)
        .current_dir(folder)
        .env("HF_HUB_CACHE", folder.join("cache"))
        .stdin(std::process::Stdio::null())
        .output()
        .unwrap()
}

/// A folder with a model's `config.json` and rows to train on.
fn place() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("base");
    std::fs::create_dir(&model).unwrap();
    let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/ref_qwen2/model/config.json");
    std::fs::copy(config, model.join("config.json")).unwrap();
    std::fs::write(
        folder.path().join("train.jsonl"),
        "{\"prompt\": \"a\", \"completion\": \"b\"}\n".repeat(20),
    )
    .unwrap();
    folder
}

#[test]
fn what_is_found_becomes_a_study_file_that_a_search_reads() {
    let folder = place();
    let output = run(folder.path(), &["--yes", "--memory", "2GiB"]);
    assert!(output.status.success(), "{output:?}");
    let path = folder.path().join("space.yaml");
    let study = StudyFile::read_with(&path, ReadOptions { check_files: true }).unwrap();
    assert_eq!(study.memory_limit_bytes, Some(2 << 30));
    assert_eq!(study.name, "base-train");
    assert!(study.base.unwrap().model.ends_with("base"));
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(
        text.contains("format: prompt_completion") && text.contains("sequence_length: 128"),
        "{text}"
    );
    // A small model has the usual size of trials on any machine, and higher learning rates than large ones.
    for part in [
        "global_batch: 16 ",
        "training_tokens: 100000 ",
        "evaluation: {rows: 128, times: 2}",
        "learning_rate: {low: 1e-4, high: 8e-3, scale: log}",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    for part in [
        "each trial, as the file says it:",
        "by the bytes of the rows",
        "1e-4 to 8e-3",
        "run `init` again",
    ] {
        assert!(told.contains(part), "{part}: {told}");
    }
    let again = run(folder.path(), &["--yes", "--memory", "2GiB"]);
    assert_eq!(again.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&again.stderr).contains("--force"));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
}

#[test]
fn a_model_that_the_engine_lacks_gets_a_study_that_trains_in_trl() {
    let folder = place();
    let config = folder.path().join("base/config.json");
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, text.replace("\"qwen2\"", "\"falcon_h1\"")).unwrap();
    let output = run(folder.path(), &["--yes", "--memory", "2GiB"]);
    assert!(output.status.success(), "{output:?}");
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(told.contains("it lacks the family `falcon_h1`"), "{told}");
    let path = folder.path().join("space.yaml");
    let study = StudyFile::read_with(&path, ReadOptions { check_files: true }).unwrap();
    assert_eq!(study.backend.name(), "trl");
    let values = |name: &str| study.values(name).iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(values("target_modules"), ["all-linear"]);
    assert_eq!(
        (values("packing"), values("optimizer")),
        (vec!["false".into()], vec!["adamw".into()])
    );
    // A config of TRL's is spanned likewise.
    let own = "model_name_or_path: base\nuse_peft: true\nlora_target_modules: [q_proj, v_proj]\nlearning_rate: 1e-4\n";
    std::fs::write(folder.path().join("trl_sft.yaml"), own).unwrap();
    let words = [
        "--from",
        "trl_sft.yaml",
        "--data",
        "train.jsonl",
        "--output",
        "around.yaml",
    ];
    let output = run(folder.path(), &words);
    assert!(output.status.success(), "{output:?}");
    let around = StudyFile::read_with(&folder.path().join("around.yaml"), ReadOptions { check_files: true }).unwrap();
    assert_eq!(around.backend.name(), "trl");
    assert!(
        !around
            .values("target_modules")
            .iter()
            .any(|value| value.to_string() == "attention")
    );
}

#[test]
fn a_file_elsewhere_names_the_model_and_the_data_where_they_are() {
    let folder = place();
    let output = run(
        folder.path(),
        &["--model", "base", "--data", "train.jsonl", "--output", "deep/er.yaml"],
    );
    assert!(output.status.success(), "{output:?}");
    StudyFile::read_with(&folder.path().join("deep/er.yaml"), ReadOptions { check_files: true }).unwrap();
}

#[test]
fn what_is_missing_or_cannot_fit_is_told() {
    let folder = place();
    for (arguments, message) in [
        (
            &["--model", "./none", "--data", "train.jsonl"][..],
            "no model at ./none",
        ),
        (&["--model", "base", "--data", "none.jsonl"], "no data at none.jsonl"),
        (&["--model", "base", "--memory", "1kB"], "fits"),
        (&["--model", "base", "--memory", "much"], "size"),
        (&["--model", "base", "--data", "base/config.json"], "config.json"),
    ] {
        let output = run(folder.path(), arguments);
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {told}");
        assert!(told.contains(message), "{arguments:?}: {told}");
        assert!(!folder.path().join("space.yaml").exists(), "{arguments:?}");
    }
    let empty = tempfile::tempdir().unwrap();
    let output = run(empty.path(), &["--yes"]);
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("--model"),
        "{output:?}"
    );
}

/// A recipe of the model and rows that come with the program, unlike the defaults in what tools can say.
fn own_recipe() -> Recipe {
    let quickstart = Path::new(env!("CARGO_MANIFEST_DIR")).join("search_spaces/quickstart");
    let mut recipe = crate::export::lora();
    recipe.model = quickstart.join("base").to_string_lossy().into_owned();
    recipe.data.train = vec![quickstart.join("train.jsonl")].into();
    recipe.batch.micro_batch = 2;
    recipe.batch.gradient_accumulation = 6;
    recipe.batch.sequence_length = 96;
    recipe.optimizer.learning_rate = 3e-3;
    recipe.optimizer.weight_decay = 0.01;
    recipe.training.seed = 5;
    let adapter = recipe.adapter.as_mut().unwrap();
    (adapter.rank, adapter.alpha) = (8, 24.0);
    recipe
}

const OWN_DATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/search_spaces/quickstart/train.jsonl");

#[test]
fn a_config_of_every_tool_becomes_a_study_around_its_setting() {
    let recipe = own_recipe();
    for format in ExportFormat::all().filter(|format| *format != ExportFormat::Recipe) {
        let folder = tempfile::tempdir().unwrap();
        let exported = crate::export::export_again(&recipe, format, folder.path(), false).unwrap();
        let name = exported.files[0].file_name().unwrap().to_str().unwrap();
        // Of the adapter alone, the rows are to be named.
        let data: &[&str] = if format == ExportFormat::Tool(Tool::Peft) {
            &["--data", OWN_DATA]
        } else {
            &[]
        };
        let output = run(folder.path(), &[&["--from", name], data].concat());
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{format}: {told}");
        assert!(!told.contains("passed over"), "{format}: {told}");
        let path = folder.path().join("space.yaml");
        let study = StudyFile::read_with(&path, ReadOptions { check_files: true }).unwrap();
        let own = |name: &str| study.baseline[name].to_string();
        assert_eq!(own("rank"), "8", "{format}");
        let base = study.base.as_ref().unwrap();
        assert_eq!(study.fixed["alpha_ratio"].to_string(), "3", "{format}");
        assert_eq!(
            (base.model.as_str(), base.data.train.files().next().unwrap().as_path()),
            (recipe.model.as_str(), Path::new(OWN_DATA))
        );
        assert_eq!(base.data.format, recipe.data.format);
        if format != ExportFormat::Tool(Tool::Peft) {
            assert_eq!(
                (own("learning_rate"), own("micro_batch")),
                ("0.003".into(), "2".into()),
                "{format}"
            );
            assert_eq!(study.fixed["global_batch"].to_string(), "12", "{format}");
            assert_eq!((base.batch.sequence_length, base.training.seed), (96, 5), "{format}");
            assert_eq!(base.optimizer.weight_decay, 0.01, "{format}");
            // A share of the trial's steps, whatever the training's.
            assert!(base.schedule.warmup > 0.0 && base.schedule.warmup < 0.1, "{format}");
            assert_eq!(base.data.loss_on, recipe.data.loss_on, "{format}");
        }
        // The own setting lies in the space, with neighbours on both sides.
        for parameter in &study.space.parameters {
            let own = &study.baseline[&parameter.name];
            assert!(
                parameter.distribution.nearest(own).is_some(),
                "{format}: {}",
                parameter.name
            );
        }
    }
}

#[test]
fn what_init_makes_of_a_config_is_planned_and_searched() {
    let folder = tempfile::tempdir().unwrap();
    crate::export::export_again(&own_recipe(), ExportFormat::Tool(Tool::Axolotl), folder.path(), false).unwrap();
    let output = run(folder.path(), &["--from", "axolotl.yaml", "--output", "around.yaml"]);
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        said.contains("wrote around.yaml; next: peft-tune plan around.yaml"),
        "{said}"
    );
    for arguments in [
        &["plan", "around.yaml", "--device", "L4"][..],
        &["search", "around.yaml", "--dry-run"],
    ] {
        let mut command = crate::program();
        command.args(arguments).current_dir(folder.path());
        let output = command
            .env("PEFT_TUNE_DB", folder.path().join("study.db"))
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

#[test]
fn a_config_that_cannot_be_taken_over_says_why_and_what_to_do() {
    let folder = place();
    let from = |text: &str, more: &[&str]| {
        std::fs::write(folder.path().join("a.yaml"), text).unwrap();
        let output = run(folder.path(), &[&["--from", "a.yaml", "--force"], more].concat());
        (
            output.status.code(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    };
    let hub =
        "base_model: ./base\nadapter: lora\nlora_r: 8\nwarp_factor: 9\ndatasets:\n  - {path: set, type: alpaca}\n";
    let (code, told) = from(hub, &[]);
    assert_eq!(code, Some(2), "{told}");
    assert!(
        told.contains("datasets.path: set") && told.contains("`--data`"),
        "{told}"
    );
    assert!(!folder.path().join("space.yaml").exists());
    let (code, told) = from(hub, &["--data", "train.jsonl"]);
    assert_eq!(code, Some(0), "{told}");
    for part in ["`warp_factor`", "check their spelling", "a tenth of the training rows"] {
        assert!(told.contains(part), "{part}: {told}");
    }
    // Other rows than the file's have other columns, which is nothing to tell.
    assert!(
        !told.contains("datasets.path") && !told.contains("other columns"),
        "{told}"
    );
    // axolotl leaves long rows out where its file says nothing of them.
    let text = std::fs::read_to_string(folder.path().join("space.yaml")).unwrap();
    assert!(
        text.contains("long_rows: \"drop\"") && text.contains("# longer rows are left out"),
        "{text}"
    );
    for (text, part) in [
        ("adapter: lora\nmicro_batch_size: 1\n", "names no model"),
        ("base_model: ./none\nmicro_batch_size: 1\n", "no model at ./none"),
        ("base_model: ./base\nmicro_batch_size: 1\n", "names no files of rows"),
        ("base_model: ./base\nmicro_batch_size: 0\n", "`micro_batch_size`"),
        ("x: 1\n", "tells its tool"),
    ] {
        let data: &[&str] = if part.contains("no model") {
            &["--data", "train.jsonl"]
        } else {
            &[]
        };
        let (code, told) = from(text, data);
        assert_eq!(code, Some(2), "{text}: {told}");
        assert!(told.contains(part), "{part}: {told}");
    }
}

#[test]
fn the_tool_of_a_config_is_named_where_its_keys_do_not_tell_it() {
    let folder = place();
    let shared = "model_name_or_path: ./base\nper_device_train_batch_size: 2\nlora_rank: 4\n";
    std::fs::write(folder.path().join("a.yaml"), shared).unwrap();
    std::fs::write(folder.path().join("none.yaml"), "x: 1\n").unwrap();
    let from = |arguments: &[&str]| {
        let output = run(folder.path(), &[arguments, &["--data", "train.jsonl"]].concat());
        (
            output.status.code(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    };
    let (code, told) = from(&["--from", "none.yaml"]);
    assert!(code == Some(2) && told.contains("name the tool with --stack"), "{told}");
    let (code, told) = from(&["--from", "none.yaml", "--stack", "axolotl"]);
    assert!(code == Some(2) && told.contains("names no model"), "{told}");
    let (code, told) = from(&["--from", "a.yaml", "--stack", "megatron"]);
    assert!(code == Some(2) && told.contains("llamafactory"), "{told}");
    let (code, told) = from(&["--model", "./base", "--stack", "trl"]);
    assert!(code == Some(2) && told.contains("--from"), "{told}");
    assert!(!folder.path().join("space.yaml").exists());
    let (code, told) = from(&["--from", "a.yaml", "--stack", "llamafactory"]);
    assert!(code == Some(0) && !told.contains("passed over"), "{told}");
    let study = StudyFile::read_with(&folder.path().join("space.yaml"), ReadOptions { check_files: true }).unwrap();
    assert_eq!(study.baseline["rank"].to_string(), "4");
}

#[test]
fn configs_of_programs_that_are_not_read_are_refused_by_name() {
    let folder = place();
    for (text, title) in [
        (
            "model: ./base\ntrain_type: lora\nlora_rank: 8\ndataset: d\n",
            "ms-swift",
        ),
        ("checkpoint_dir: ./base\nlora_r: 8\nlora_query: true\n", "litgpt"),
        (
            "model: ./base\npeft_config:\n  name: lora\n  r: 16\ncutoff_len: 64\n",
            "LLaMA-Factory's newer form (v1)",
        ),
    ] {
        std::fs::write(folder.path().join("a.yaml"), text).unwrap();
        for arguments in [
            &["init", "--from", "a.yaml", "--data", "train.jsonl"][..],
            &["plan", "--check", "a.yaml"],
            &["plan", "--check", "a.yaml", "--stack", "trl"],
        ] {
            let mut command = crate::program();
            let output = command.args(arguments).current_dir(folder.path()).output().unwrap();
            let told = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{arguments:?}: {told}");
            let refused = format!("a.yaml is a config of {title}, which is not read: write");
            assert!(told.contains(&refused), "{arguments:?}: {told}");
        }
    }
}

/// The model that comes with the program: it has a tokenizer, a chat template and 512 positions.
const OWN_MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/search_spaces/quickstart/base");

#[test]
fn rows_that_are_longer_are_left_out_where_they_are_few() {
    let folder = tempfile::tempdir().unwrap();
    // So many rows, of which some have so many words.
    let init = |rows: usize, long: usize, words: usize| {
        let row = |answer: &str| format!("{{\"prompt\": \"q\", \"completion\": \"{answer}\"}}\n");
        let rows = row("b").repeat(rows - long) + &row(&"a b ".repeat(words / 2)).repeat(long);
        std::fs::write(folder.path().join("train.jsonl"), rows).unwrap();
        let arguments = ["--yes", "--force", "--memory", "2GiB", "--model", OWN_MODEL];
        let output = run(folder.path(), &[&arguments[..], &["--data", "train.jsonl"]].concat());
        assert!(output.status.success(), "{output:?}");
        let path = folder.path().join("space.yaml");
        let study = StudyFile::read_with(&path, ReadOptions { check_files: true }).unwrap();
        let base = study.base.unwrap();
        let text = std::fs::read_to_string(path).unwrap();
        (base.data.long_rows, base.batch.sequence_length, text)
    };
    let (long_rows, length, text) = init(40, 0, 0);
    assert_eq!((long_rows, length), (LongRows::Cut, 128));
    assert!(
        !text.contains("long_rows") && text.contains("# longer rows are cut"),
        "{text}"
    );
    // More than one in a hundred: the length is theirs.
    let (long_rows, length, text) = init(40, 2, 200);
    assert!(length > 128 && length.is_multiple_of(64), "{length}");
    assert_eq!(long_rows, LongRows::Cut, "{text}");
    // One in 201, or more than the model has positions for.
    for (rows, long, length) in [(201, 1, 128), (40, 2, 512), (40, 4, 512)] {
        let (long_rows, found, text) = init(rows, long, 1200);
        assert_eq!((long_rows, found), (LongRows::Drop, length), "{text}");
        let told = format!("# {long} of {rows} rows are longer than {length} tokens and are left out");
        assert!(
            text.contains(&told) && text.contains("# longer rows are left out"),
            "{text}"
        );
    }
    let (long_rows, length, text) = init(40, 10, 1200);
    assert_eq!((long_rows, length), (LongRows::Cut, 512), "{text}");
    assert!(text.contains("# 10 of 40 rows are longer and are cut"), "{text}");
}

#[test]
fn questions_and_answers_become_chats_where_the_model_has_a_template() {
    let folder = tempfile::tempdir().unwrap();
    let init = |row: &str, more: &[&str]| {
        std::fs::write(folder.path().join("train.jsonl"), format!("{row}\n").repeat(20)).unwrap();
        let arguments = ["--yes", "--force", "--model", OWN_MODEL, "--data", "train.jsonl"];
        let output = run(folder.path(), &[&arguments[..], more].concat());
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{told}");
        let path = folder.path().join("space.yaml");
        let study = StudyFile::read_with(&path, ReadOptions { check_files: true }).unwrap();
        (study.base.unwrap().data, told)
    };
    let question = "{\"question\": \"Why?\", \"answer\": \"So.\"}";
    let (data, told) = init(question, &[]);
    assert_eq!(data.format, DataFormat::Alpaca, "{told}");
    assert_eq!(
        (&*data.columns["instruction"], &*data.columns["output"]),
        ("question", "answer")
    );
    assert!(
        told.contains("trained as chats") && told.contains("<|im_start|>") && told.contains("--columns says"),
        "{told}"
    );
    let text = std::fs::read_to_string(folder.path().join("space.yaml")).unwrap();
    assert!(
        text.contains("# format: prompt_completion, and columns: {completion: \"answer\", prompt: \"question\"}"),
        "{text}"
    );
    // Who named the columns is not told of the option.
    let (data, told) = init(question, &["--columns", "prompt=question,completion=answer"]);
    assert_eq!(data.format, DataFormat::Alpaca, "{told}");
    assert!(
        told.contains("trained as chats") && !told.contains("--columns says"),
        "{told}"
    );
    // Messages are chats already; a column that chats do not read keeps the rows as they are.
    let messages = "{\"prompt\": [{\"role\": \"user\", \"content\": \"Why?\"}], \
                    \"completion\": [{\"role\": \"assistant\", \"content\": \"So.\"}]}";
    let labelled = "{\"prompt\": \"Why?\", \"completion\": \"So.\", \"label\": true}";
    for (row, is_told) in [(messages, false), (labelled, true)] {
        let (data, told) = init(row, &[]);
        assert_eq!(data.format, DataFormat::PromptCompletion, "{told}");
        assert!(!told.contains("trained as chats"), "{told}");
        assert_eq!(told.contains("as plain prompt and completion"), is_told, "{told}");
    }
}

#[test]
fn columns_of_questions_and_answers_are_found_or_named() {
    let folder = place();
    let path = folder.path();
    let told = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();
    let init = |data: &str, more: &[&str]| {
        let arguments = [&["--yes", "--force", "--memory", "2GiB", "--data", data], more].concat();
        run(path, &arguments)
    };
    std::fs::write(
        path.join("usual.csv"),
        "question,answer\nWhat?,That.\n".to_owned() + &"Who?,Me.\n".repeat(20),
    )
    .unwrap();
    let output = init("usual.csv", &[]);
    assert!(
        output.status.success() && told(&output).contains("`question` is taken as `prompt`"),
        "{output:?}"
    );
    let study = StudyFile::read_with(&path.join("space.yaml"), ReadOptions { check_files: true }).unwrap();
    let columns = study.base.unwrap().data.columns;
    assert_eq!(columns.get("completion").map(String::as_str), Some("answer"));

    std::fs::write(
        path.join("own.csv"),
        "frage,antwort\nWas?,Das.\n".to_owned() + &"Wer?,Ich.\n".repeat(20),
    )
    .unwrap();
    let refused = init("own.csv", &[]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(
        told(&refused).contains("--columns prompt=question") && told(&refused).contains("`frage`"),
        "{refused:?}"
    );
    let output = init("own.csv", &["--columns", "prompt=frage,completion=antwort"]);
    assert!(output.status.success(), "{output:?}");
    let study = StudyFile::read_with(&path.join("space.yaml"), ReadOptions { check_files: true }).unwrap();
    assert_eq!(
        study.base.unwrap().data.columns.get("prompt").map(String::as_str),
        Some("frage")
    );
    assert_eq!(init("own.csv", &["--columns", "prompt"]).status.code(), Some(2));
}
