//! The count of what is said of a folder of configs, with the program and with one that stands in for a broken one.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

/// Calls the script on a folder; `None` where there is no python3 to run it.
fn counted(folder: &Path, program: &Path, more: &[&str]) -> Option<Output> {
    if Command::new("python3").arg("--version").output().is_err() {
        println!("there is no python3: left out");
        return None;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/checks/public_configs.py");
    let mut command = Command::new("python3");
    command.arg("-B").arg(script).args([folder, program]).args(more);
    Some(command.output().unwrap())
}

fn text_of(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// Writes files by their path in a folder.
fn folder_of(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = folder.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    folder
}

/// The row of a table whose first column is this, as numbers.
fn row(text: &str, table: &str, first: &str) -> Vec<u32> {
    let mut lines = text.lines().skip_while(|line| !line.starts_with(table));
    let found = lines
        .find_map(|line| line.strip_prefix(first))
        .unwrap_or_else(|| panic!("{text}"));
    found.split_whitespace().map(|cell| cell.parse().unwrap()).collect()
}

#[test]
fn configs_are_counted_by_tool_outcome_and_what_is_said() {
    let folder = folder_of(&[
        (
            "one/axolotl.yaml",
            "base_model: org/m\nadapter: lora\nlora_r: 16\nlora_target_linear: true\nmicro_batch_size: 1\nsequence_len: 512\nwarp: 9\n",
        ),
        (
            "one/deeper/swift.yaml",
            "model: org/m\ntrain_type: lora\nlora_rank: 8\n",
        ),
        ("none.yaml", "x: 1\n"),
        ("wrong.yml", "base_model: org/m\nsequence_len: long\n"),
        ("readme.md", "# no config\n"),
        (".git/config.yaml", "x: 1\n"),
    ]);
    let program = Path::new(env!("CARGO_BIN_EXE_peft-tune"));
    let json = folder.path().join("all.out");
    let more = ["--limit", "300", "--json", json.to_str().unwrap()];
    let Some(output) = counted(folder.path(), program, &more) else {
        return;
    };
    let text = text_of(&output);
    assert_eq!(output.status.code(), Some(0), "{text}");
    // Files, and those read, refused, of no tool, refused without a name, crashed, hung.
    for table in ["init --from", "plan --check"] {
        for (tool, counts) in [
            ("axolotl", [1, 1, 0, 0, 0, 0, 0]),
            ("ms-swift (not read)", [1, 0, 1, 0, 0, 0, 0]),
            ("none", [2, 0, 1, 1, 0, 0, 0]),
            ("all", [4, 1, 2, 1, 0, 0, 0]),
        ] {
            assert_eq!(row(&text, table, tool), counts, "{table}, {tool}: {text}");
        }
    }
    for said in [
        "unknown keys: 1 in 1 files",
        "axolotl: `warp`",
        "axolotl: rows: N tokens, as the file says, not packed",
        "none: FILE: `sequence_len`",
    ] {
        assert!(text.contains(said), "{said}: {text}");
    }
    let all: Value = serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap();
    let files = all["files"].as_array().unwrap();
    let axolotl = files.iter().find(|file| file["file"] == "one/axolotl.yaml").unwrap();
    assert_eq!((files.len(), &axolotl["tool"]), (4, &Value::from("axolotl")));
    assert_eq!(axolotl["verdict"], "fits_by_an_unproven_model");
}

#[test]
fn what_crashes_hangs_or_refuses_without_a_word_is_a_fault() {
    let folder = folder_of(&[
        ("crash.yaml", ""),
        ("hang.yaml", ""),
        ("mute.yaml", ""),
        ("fine.yaml", ""),
    ]);
    let program = folder.path().join("program");
    let stand_in = "#!/bin/sh\ncase \"$*\" in\n*crash.yaml*) kill -SEGV $$ ;;\n*hang.yaml*) exec sleep 600 ;;\n\
                    *mute.yaml*) echo 'error: no' >&2; exit 2 ;;\nesac\necho '{\"stack\": \"trl\"}'\n";
    std::fs::write(&program, stand_in).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let Some(output) = counted(folder.path(), &program, &["--limit", "2"]) else {
        return;
    };
    let text = text_of(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    for table in ["init --from", "plan --check"] {
        assert_eq!(row(&text, table, "all"), [4, 1, 0, 0, 1, 1, 1], "{table}: {text}");
    }
    for fault in [
        "crash (code -11) in init of crash.yaml",
        "hang (code None) in check of hang.yaml",
        "refused without a name (code 2) in check of mute.yaml: error: no",
    ] {
        assert!(text.contains(fault), "{fault}: {text}");
    }
    let empty = tempfile::tempdir().unwrap();
    let nothing = counted(empty.path(), &program, &[]).unwrap();
    assert!(!nothing.status.success() && text_of(&nothing).contains("no files below"));
}
