//! `export --check`: what stands in for the user's Python and its packages.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::{Duration, Instant};

use super::program;
use super::query::Results;

/// A study with trials, and a Python beside it.
struct Check {
    results: Results,
}

impl Check {
    fn new() -> Self {
        Self {
            results: Results::new(),
        }
    }

    fn root(&self) -> &Path {
        self.results.folder.path()
    }

    fn export(&self, arguments: &[&str], environment: &[(&str, &Path)]) -> Output {
        let mut command = program();
        command
            .args([
                "export",
                "--trial",
                "1",
                "--force",
                "--no-data",
                "--output",
                "out",
                "--check",
            ])
            .args(arguments)
            .current_dir(self.root())
            .env_remove("PEFT_TUNE_DB");
        for (name, value) in environment {
            command.env(name, value);
        }
        command.output().unwrap()
    }

    /// A program in the place of Python.
    fn stand_in(&self, script: &str) -> PathBuf {
        let path = self.root().join("python");
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    /// A folder for PYTHONPATH with a PEFT whose LoraConfig has these keys.
    fn peft(&self, keys: &[&str]) -> PathBuf {
        let folder = self.root().join("packages");
        std::fs::create_dir_all(folder.join("peft")).unwrap();
        std::fs::create_dir_all(folder.join("peft-9.8.7.dist-info")).unwrap();
        let metadata = "Metadata-Version: 2.1\nName: peft\nVersion: 9.8.7\n";
        std::fs::write(folder.join("peft-9.8.7.dist-info/METADATA"), metadata).unwrap();
        let fields: String = keys.iter().map(|key| format!("    {key}: object = None\n")).collect();
        let package = format!(
            "import dataclasses, json, os\nprint('a library that prints')\n@dataclasses.dataclass\nclass LoraConfig:\n{fields}\
             \x20   @classmethod\n    def from_pretrained(cls, folder):\n        \
             written = json.load(open(os.path.join(folder, 'adapter_config.json')))\n        \
             names = [field.name for field in dataclasses.fields(cls)]\n        \
             return cls(**{{key: value for key, value in written.items() if key in names}})\n"
        );
        std::fs::write(folder.join("peft/__init__.py"), package).unwrap();
        folder
    }

    /// The keys of the file that was written.
    fn keys(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.root().join("out/adapter_config.json")).unwrap();
        let written: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&text).unwrap();
        written.keys().cloned().collect()
    }
}

/// Exit code, standard output, standard error.
fn said(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn a_peft_that_has_every_key_accepts_and_one_that_drops_a_key_refuses() {
    if std::process::Command::new("python3").arg("--version").output().is_err() {
        println!("there is no python3: left out");
        return;
    }
    let check = Check::new();
    let nothing = check.stand_in("exit 0");
    let nothing = nothing.to_str().unwrap();
    check.export(&["--format", "peft", "--python", nothing], &[]);
    let keys = check.keys();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    assert!(keys.contains(&"r") && keys.contains(&"use_rslora"), "{keys:?}");
    // A file of a package's name in the current folder is not the package.
    std::fs::write(check.root().join("peft.py"), "raise SystemExit(3)\n").unwrap();

    let packages = check.peft(&keys);
    let (code, output, errors) = said(&check.export(&["--format", "peft"], &[("PYTHONPATH", &packages)]));
    assert_eq!(code, Some(0), "{errors}");
    assert!(output.starts_with("out/adapter_config.json\n"), "{output}");
    assert!(
        errors.contains("peft 9.8.7 accepts out/adapter_config.json: LoraConfig of rank"),
        "{errors}"
    );
    assert!(!output.contains("a library that prints"), "{output}");

    let fewer: Vec<&str> = keys.iter().copied().filter(|key| *key != "use_rslora").collect();
    let packages = check.peft(&fewer);
    let (code, output, errors) = said(&check.export(&["--format", "peft"], &[("PYTHONPATH", &packages)]));
    assert_eq!(code, Some(9), "{errors}");
    assert!(output.starts_with("out/adapter_config.json\n"), "{output}");
    let told = "peft 9.8.7 in python3 refuses out/adapter_config.json: AssertionError: keys that this version drops: use_rslora";
    assert!(errors.contains(told), "{errors}");
}

#[test]
fn a_tool_that_cannot_be_asked_is_told_with_what_to_do() {
    let check = Check::new();
    for (script, told) in [
        (
            r#"echo '{"outcome": "missing"}'"#,
            "trl is not installed in PYTHON: install it there (`PYTHON -m pip install trl`), or name another Python with --python",
        ),
        (
            r#"echo '{"outcome": "unusable", "version": "0.1", "message": "cannot import name TrlParser"}'"#,
            "trl 0.1 in PYTHON cannot be used: cannot import name TrlParser",
        ),
        (
            "echo 'SyntaxError: invalid syntax' >&2; exit 1",
            "PYTHON ended with exit status: 1 before it said what it makes of the files; its last words: SyntaxError",
        ),
        (
            "exec sleep 100",
            "PYTHON did not say within 1.0 s what trl makes of the files",
        ),
    ] {
        let python = check.stand_in(script);
        let python = python.to_str().unwrap();
        let began = Instant::now();
        let output = check.export(&["--format", "trl", "--python", python, "--check-within", "1s"], &[]);
        let (code, output, errors) = said(&output);
        assert_eq!(code, Some(10), "{script}: {errors}");
        assert!(errors.contains(&told.replace("PYTHON", python)), "{script}: {errors}");
        assert!(
            output.starts_with("out/trl_sft.yaml\n"),
            "the file is written: {output}"
        );
        assert!(began.elapsed() < Duration::from_secs(60), "{script}");
    }
    let (code, _, errors) = said(&check.export(&["--format", "trl"], &[("PATH", Path::new("/nonexistent"))]));
    assert_eq!(code, Some(10), "{errors}");
    assert!(
        errors.contains("cannot start python3") && errors.contains("--python"),
        "{errors}"
    );
}

#[test]
fn what_no_tool_reads_cannot_be_checked() {
    let check = Check::new();
    for format in ["recipe", "csv"] {
        let output = program()
            .args(["export", "--format", format, "--output", "out", "--check"])
            .current_dir(check.root())
            .env_remove("PEFT_TUNE_DB")
            .output()
            .unwrap();
        let (code, _, errors) = said(&output);
        assert_eq!(code, Some(2), "{format}: {errors}");
        assert!(errors.contains("without --check"), "{format}: {errors}");
        assert!(!check.root().join("out").exists(), "{format}");
    }
}
