//! The doors to the scripts: the recipes of the `justfile`, and the parts of the gate.

use std::collections::BTreeMap;
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

#[test]
fn no_recipe_stands_twice() {
    let recipes = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("justfile")).unwrap();
    let mut names: Vec<&str> = recipes
        .lines()
        .filter(|line| line.starts_with(|first: char| first.is_ascii_lowercase()) && !line.contains(":="))
        .filter_map(|line| line.split([' ', ':']).next())
        .collect();
    let all = names.len();
    assert!(all > 50, "{names:?}");
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), all, "`just` refuses a file in which a recipe stands twice");
}

/// Parts of the gate by name, each with the paths that it covers.
fn parts(root: &Path) -> BTreeMap<String, Vec<String>> {
    let table = std::fs::read_to_string(root.join(".ci/parts.txt")).unwrap();
    let mut parts = BTreeMap::<String, Vec<String>>::new();
    for line in table.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let mut words = line.split_whitespace().map(str::to_owned);
        parts.entry(words.next().unwrap()).or_default().extend(words);
    }
    parts
}

/// Whether git would find something under a path of the table: a file or a folder, or a file whose whole path is like it where a
/// star stands for anything.
fn matches_a_file(root: &Path, path: &str) -> bool {
    let Some((before, _)) = path.split_once('*') else {
        return root.join(path).exists();
    };
    let mut folders = vec![root.join(before.rsplit_once('/').map_or("", |(folder, _)| folder))];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten() {
            let entry = entry.unwrap().path();
            if entry.is_file() && is_like(entry.strip_prefix(root).unwrap().to_str().unwrap(), path) {
                return true;
            }
            if entry.is_dir() && !entry.ends_with("target") && !entry.ends_with(".git") {
                folders.push(entry);
            }
        }
    }
    false
}

/// Whether a text is like a pattern from its first letter to its last; a star stands for anything.
fn is_like(text: &str, pattern: &str) -> bool {
    let Some((before, behind)) = pattern.split_once('*') else {
        return text == pattern;
    };
    let starts = text.char_indices().map(|(at, _)| at).chain([text.len()]);
    text.starts_with(before)
        && starts
            .filter(|at| *at >= before.len())
            .any(|at| is_like(&text[at..], behind))
}

#[test]
fn each_part_of_the_gate_has_a_script_and_covers_what_it_runs() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let parts = parts(root);
    let mut scripts: Vec<String> = std::fs::read_dir(root.join(".ci/parts"))
        .unwrap()
        .map(|entry| entry.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned())
        .collect();
    scripts.sort();
    assert_eq!(scripts, parts.keys().cloned().collect::<Vec<_>>());
    for (part, paths) in &parts {
        for path in paths {
            assert!(matches_a_file(root, path), "{part} covers {path}, where nothing is");
        }
        let commands = std::fs::read_to_string(root.join(format!(".ci/parts/{part}.sh"))).unwrap();
        let run = commands
            .split(|letter: char| letter.is_whitespace() || letter == '"')
            .filter(|word| word.starts_with("scripts/") || word.starts_with(".ci/"));
        for script in run {
            assert!(
                paths.iter().any(|path| script.starts_with(path.as_str())),
                "{part} runs {script} and does not cover it"
            );
        }
    }
    let passed = std::fs::read_to_string(root.join(".ci/passed.txt")).unwrap();
    for line in passed.lines() {
        let (part, digest) = line.split_once(' ').unwrap();
        assert!(parts.contains_key(part), "{part} has passed and is no part");
        assert!(digest.len() == 64 && digest.bytes().all(|digit| digit.is_ascii_hexdigit()));
    }
}

#[test]
fn a_part_of_the_gate_is_to_be_run_again_once_a_file_of_it_has_changed() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let tree = tempfile::tempdir().unwrap();
    let run = |program: &str, arguments: &[&str]| {
        let output = std::process::Command::new(program)
            .args(arguments)
            .current_dir(tree.path())
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    std::fs::create_dir_all(tree.path().join(".ci/parts")).unwrap();
    std::fs::copy(root.join(".ci/part"), tree.path().join(".ci/part")).unwrap();
    let write = |file: &str, text: &str| std::fs::write(tree.path().join(file), text).unwrap();
    write(
        ".ci/parts.txt",
        "# A comment.\none  a.txt\none  sub*.cu\n\ntwo  b.txt\n",
    );
    write(".ci/parts/one.sh", "exit 0\n");
    write(".ci/parts/two.sh", "exit 3\n");
    write("a.txt", "a");
    write("b.txt", "b");
    run("git", &["init", "-q"]);
    let status = || run(".ci/part", &[]);
    assert_eq!(status(), "to run  one\nto run  two\n");
    assert!(run(".ci/part", &["run"]).contains("part two cannot be had here: left out"));
    // What could not be had is not taken for passed.
    assert_eq!(status(), "passed  one\nto run  two\n");
    // Nor is a part whose file has changed, come or gone.
    std::fs::create_dir(tree.path().join("sub")).unwrap();
    for file in ["a.txt", "sub/new.cu"] {
        write(file, "changed");
        assert_eq!(status(), "to run  one\nto run  two\n", "{file}");
        run(".ci/part", &["run", "one"]);
        assert_eq!(status(), "passed  one\nto run  two\n", "{file}");
    }
    std::fs::remove_file(tree.path().join("sub/new.cu")).unwrap();
    assert_eq!(status(), "to run  one\nto run  two\n");
    // Its own commands count among its files, and what fails is not noted.
    write(".ci/parts/one.sh", "exit 1\n");
    let failed = std::process::Command::new(".ci/part")
        .arg("run")
        .current_dir(tree.path())
        .output()
        .unwrap();
    assert_eq!(failed.status.code(), Some(1), "{failed:?}");
    assert_eq!(status(), "to run  one\nto run  two\n");
    write("b.txt", "other");
    write(".ci/parts/one.sh", "echo changes > a.txt\n");
    assert!(run(".ci/part", &["run", "one"]).contains("changed meanwhile: not noted"));
}
