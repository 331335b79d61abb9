//! What the compiler cannot see of the floor plan: inside a crate, arrows between modules run down only, and a heavy
//! dependency enters through one folder. Between crates the manifests keep the walls.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The crates and their modules from the ground up: a module uses only modules before it.
const CRATES: &[(&str, &[&str])] = &[
    (
        "crates/core/src",
        &[
            "bounded",
            "hexadecimal",
            "protobuf",
            "quantity",
            "objective",
            "score",
            "panic",
            "whole_file",
            "architecture",
            "recipe",
            "study",
            "space",
            "plan",
            "predict",
        ],
    ),
    (
        "crates/kernels/src",
        &[
            "kernel_form",
            "thread_pool",
            "flat",
            "gpu",
            "compare",
            "quant",
            "ops",
            "device",
        ],
    ),
    (
        "crates/engine/src",
        &[
            "guarded",
            "span",
            "tensor",
            "parameters",
            "gguf",
            "hub",
            "tokenizer",
            "parallel",
            "checkpoint",
            "adapter",
            "error",
            "base",
            "data",
            "optimizer",
            "model",
            "training",
            "sparsity",
            "merge",
            "generation",
            "run",
            "check",
            "profile",
        ],
    ),
    (
        "src",
        &[
            "files",
            "shell",
            "tools",
            "space",
            "store",
            "export",
            "worker",
            "report",
            "track",
            "tune",
            "dashboard",
            "cli",
        ],
    ),
];

/// A heavy dependency of the tuner, and the modules it may be used in.
const DOORS: &[(&str, &[&str])] = &[
    ("sqlx", &["store"]),
    ("libsqlite3_sys", &["store"]),
    ("unicode_width", &["report"]),
    ("resvg", &["report"]),
    ("axum", &["dashboard"]),
    ("ureq", &["track"]),
    ("clap", &["cli"]),
    ("indicatif", &["cli"]),
    ("rmcp", &["cli"]),
    ("anyhow", &["cli"]),
    ("miette", &["cli", "space"]),
];

#[test]
fn arrows_run_down_only() {
    let mut wrong = Vec::new();
    for (root, modules) in CRATES {
        let floor = |name: &str| modules.iter().position(|module| *module == name);
        for file in source_files(root) {
            let Some(own) = floor(&file.module()) else {
                assert!(
                    ["lib", "main"].contains(&file.module().as_str()),
                    "{} is not in the table of floors",
                    file.path.display()
                );
                continue;
            };
            for used in file.used_modules() {
                if floor(&used).is_some_and(|used| used > own) {
                    wrong.push(format!("{}: may not use {used}", file.path.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn heavy_dependencies_enter_through_one_door() {
    let mut wrong = Vec::new();
    for file in source_files("src") {
        for (dependency, allowed) in DOORS {
            if file.text.contains(&format!("{dependency}::")) && !allowed.contains(&file.module().as_str()) {
                wrong.push(format!("{}: no door for {dependency}", file.path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A source file with the names of the modules that lead to it.
struct SourceFile {
    path: PathBuf,
    modules: Vec<String>,
    text: String,
}

impl SourceFile {
    /// The top-level module that it belongs to.
    fn module(&self) -> String {
        self.modules.first().cloned().unwrap_or_else(|| "lib".to_owned())
    }

    /// The names that follow `crate::` or as many `super::` as lead there, also inside `use crate::{a, b::c}`.
    fn used_modules(&self) -> BTreeSet<String> {
        let mut used = BTreeSet::new();
        let to_the_root = "super::".repeat(self.modules.len());
        for (start, prefix) in ["crate::", to_the_root.as_str()]
            .iter()
            .filter(|prefix| !prefix.is_empty())
            .flat_map(|prefix| self.text.match_indices(prefix))
        {
            // A longer chain of `super` begins inside an inline module, and this is its tail.
            if !self.text[..start].ends_with("::") {
                used.extend(first_names(&self.text[start + prefix.len()..]));
            }
        }
        used
    }
}

/// The first name of each path of a `use` tree, or of one path.
fn first_names(rest: &str) -> Vec<String> {
    let name = |text: &str| -> String { text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect() };
    let Some(group) = rest.strip_prefix('{') else {
        return vec![name(rest)];
    };
    let group = group.split(';').next().unwrap_or_default();
    let (mut names, mut depth) = (Vec::new(), 0);
    for part in group.split_inclusive(['{', '}', ',']) {
        if depth == 0 {
            names.push(name(part.trim()));
        }
        depth += part.matches('{').count() as i32 - part.matches('}').count() as i32;
    }
    names
}

/// Every source file below `root`.
fn source_files(root: &str) -> Vec<SourceFile> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(root);
    let (mut files, mut folders) = (Vec::new(), vec![root.clone()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let inside = path.strip_prefix(&root).unwrap().with_extension("");
                let mut modules: Vec<String> = inside.iter().map(|name| name.to_str().unwrap().to_owned()).collect();
                modules.pop_if(|name| name == "mod");
                files.push(SourceFile {
                    text: std::fs::read_to_string(&path).unwrap(),
                    path,
                    modules,
                });
            }
        }
    }
    files
}
