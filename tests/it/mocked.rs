//! Studies of the quickstart's model and data with a stand-in for the trial process; no tests of its own.

use std::path::Path;
use std::process::Output;

/// The program with a stand-in for the trial process.
pub(crate) fn peft_tune(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = crate::program();
    command.args(arguments).current_dir(folder);
    command.env("PEFT_TUNE_MOCK", "0.01");
    command.env("PEFT_TUNE_DB", folder.join("study.db")).output().unwrap()
}

pub(crate) fn errors_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A folder with the quickstart's model and data, and a study file.
pub(crate) fn folder_with(space: &str) -> tempfile::TempDir {
    let folder = crate::folders::for_database();
    let quickstart = Path::new(env!("CARGO_MANIFEST_DIR")).join("search_spaces/quickstart");
    std::fs::create_dir(folder.path().join("base")).unwrap();
    for entry in std::fs::read_dir(quickstart.join("base")).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), folder.path().join("base").join(entry.file_name())).unwrap();
    }
    for name in ["train.jsonl", "held_out.jsonl"] {
        std::fs::copy(quickstart.join(name), folder.path().join(name)).unwrap();
    }
    std::fs::write(folder.path().join("space.yaml"), space).unwrap();
    folder
}
