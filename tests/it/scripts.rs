//! The scripts' one door.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Every file below a folder that may be executed. What others only read or import may not.
fn executables(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            executables(&path, found);
        } else if path.metadata().unwrap().permissions().mode() & 0o111 != 0 {
            found.push(path);
        }
    }
}

#[test]
fn every_script_that_is_run_has_a_recipe() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let recipes = std::fs::read_to_string(root.join("justfile")).unwrap();
    let mut scripts = Vec::new();
    executables(&root.join("scripts"), &mut scripts);
    assert!(scripts.len() > 10, "{scripts:?}");
    let without: Vec<_> = scripts
        .iter()
        .map(|path| path.strip_prefix(root).unwrap().to_str().unwrap())
        .filter(|script| !recipes.contains(script))
        .collect();
    assert!(without.is_empty(), "no recipe in the justfile runs {without:?}");
}

#[test]
fn scripts_that_workflows_run_are_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut scripts = Vec::new();
    for entry in std::fs::read_dir(root.join(".github/workflows")).unwrap() {
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        scripts.extend(
            text.split_whitespace()
                .filter(|word| word.starts_with("scripts/"))
                .map(str::to_owned),
        );
    }
    assert!(scripts.len() > 5, "{scripts:?}");
    for script in scripts {
        let found = root.join(&script).metadata();
        assert!(
            found.is_ok_and(|file| file.permissions().mode() & 0o111 != 0),
            "{script} cannot be run"
        );
    }
}
