//! Reads every source file and fails on an arrow between modules that the table below does not have.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Module, and the modules it may use. A new arrow is a change to this table, with its reason in the commit.
const ARROWS: &[(&str, &[&str])] = &[
    ("objective", &[]),
    ("architecture", &[]),
    ("recipe", &[]),
    ("study", &["objective", "recipe"]),
    ("space", &["objective", "recipe", "study"]),
    // What the engine allocates by and the prediction adds up is said once, below both.
    ("plan", &["architecture", "recipe"]),
    ("predict", &["architecture", "objective", "plan", "recipe"]),
    ("search", &["objective", "space", "study"]),
    ("store", &["objective", "recipe", "space", "study"]),
    ("train", &["architecture", "plan", "recipe"]),
    ("export", &["architecture", "recipe", "space", "study"]),
    // What is measured is handed on as the prediction takes it.
    ("profile", &["architecture", "plan", "predict", "recipe", "train"]),
    ("worker", &["objective", "profile", "recipe", "study", "train"]),
    (
        "report",
        &["objective", "profile", "recipe", "search", "space", "study"],
    ),
    (
        "tune",
        &[
            "objective",
            "predict",
            "recipe",
            "report",
            "search",
            "space",
            "store",
            "study",
            "train",
            "worker",
        ],
    ),
    (
        "dashboard",
        &["objective", "report", "search", "space", "store", "study"],
    ),
    (
        "cli",
        &[
            "architecture",
            "dashboard",
            "export",
            "objective",
            "plan",
            "predict",
            "profile",
            "recipe",
            "report",
            "search",
            "space",
            "store",
            "study",
            "train",
            "tune",
            "worker",
        ],
    ),
];

/// A heavy dependency, and the modules it may be used in.
const DOORS: &[(&str, &[&str])] = &[
    ("candle_core", &["train", "profile"]),
    ("candle_nn", &["train"]),
    ("cudarc", &["train", "profile"]),
    ("sqlx", &["store"]),
    ("libsqlite3_sys", &["store"]),
    ("unicode_width", &["report"]),
    ("resvg", &["report"]),
    ("axum", &["dashboard"]),
    ("clap", &["cli"]),
    ("indicatif", &["cli"]),
    ("anyhow", &["cli"]),
    ("miette", &["cli", "space"]),
    ("tokenizers", &["train"]),
    ("argmin", &["search"]),
    ("faer", &["search", "train"]),
];

#[test]
fn arrows_run_down_only() {
    let mut wrong = Vec::new();
    for (module, path) in source_files() {
        let Some((_, allowed)) = ARROWS.iter().find(|(name, _)| *name == module) else {
            assert!(
                module == "lib" || module == "main",
                "{module} is not in the table of floors"
            );
            continue;
        };
        for used in used_modules(&std::fs::read_to_string(&path).unwrap()) {
            if used != module && !allowed.contains(&used.as_str()) {
                wrong.push(format!("{}: {module} may not use {used}", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn heavy_dependencies_enter_through_one_door() {
    let mut wrong = Vec::new();
    for (module, path) in source_files() {
        let text = std::fs::read_to_string(&path).unwrap();
        for (dependency, allowed) in DOORS {
            if text.contains(&format!("{dependency}::")) && !allowed.contains(&module.as_str()) {
                wrong.push(format!("{}: {dependency} is not for {module}", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_table_of_floors_has_no_circle() {
    let position = |name: &str| ARROWS.iter().position(|(module, _)| *module == name).unwrap();
    for (module, allowed) in ARROWS {
        for used in *allowed {
            assert!(position(used) < position(module), "{module} -> {used} runs up");
        }
    }
}

/// Every source file with the name of the top-level module it belongs to.
fn source_files() -> Vec<(String, PathBuf)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let (mut files, mut folders) = (Vec::new(), vec![root.clone()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let first = path.strip_prefix(&root).unwrap().components().next().unwrap();
                let module = Path::new(first.as_os_str())
                    .file_stem()
                    .unwrap()
                    .to_str()
                    .unwrap()
                    .to_owned();
                files.push((module, path));
            }
        }
    }
    files
}

/// The names that follow `crate::`, also inside `use crate::{a, b::c}`.
fn used_modules(text: &str) -> BTreeSet<String> {
    let mut used = BTreeSet::new();
    for (start, _) in text.match_indices("crate::") {
        let rest = &text[start + "crate::".len()..];
        if let Some(group) = rest.strip_prefix('{') {
            let group = group.split(';').next().unwrap_or_default();
            let mut depth = 0;
            for part in group.split_inclusive(['{', '}', ',']) {
                let name: String = part
                    .trim()
                    .chars()
                    .take_while(|c| c.is_alphanumeric() || *c == '_')
                    .collect();
                if depth == 0 && !name.is_empty() {
                    used.insert(name);
                }
                depth += part.matches('{').count() as i32 - part.matches('}').count() as i32;
            }
        } else {
            used.insert(rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect());
        }
    }
    used
}
