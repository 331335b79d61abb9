//! Calls of the program on real trials, and what they printed; no tests of its own.

use std::path::Path;
use std::process::Output;

/// A call in a folder that has the database too.
pub(crate) fn run(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = crate::program();
    command.args(arguments).current_dir(folder);
    command.env("PEFT_TUNE_DB", folder.join("study.db")).output().unwrap()
}

/// Text of a call on either stream.
pub(crate) fn text(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// Folder of the quickstart's model and rows.
pub(crate) fn quickstart() -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("search_spaces/quickstart");
    folder.display().to_string()
}
