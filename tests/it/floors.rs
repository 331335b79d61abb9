//! Rules of the floor plan that the compiler cannot see: inside a crate, arrows between modules run down only, files use
//! each other in no circle, and a heavy dependency enters through one folder. Between crates the manifests keep the walls.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The crates, and the folder of the commands, with their modules from the ground up: a module uses only modules before
/// it.
const CRATES: &[(&str, &[&str])] = &[
    (
        "crates/core/src",
        &[
            "bounded",
            "hexadecimal",
            "median",
            "protobuf",
            "python_json",
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
        "crates/tools/src",
        &[
            "keys",
            "known_keys",
            "optimizer_names",
            "tool",
            "called",
            "import",
            "training_arguments",
            "transformers",
            "export",
            "plan",
            "row",
            "peft",
            "trl",
            "axolotl",
            "llamafactory",
            "torchtune",
            "unsloth",
            "table",
        ],
    ),
    (
        "crates/page/src",
        &[
            "question",
            "error",
            "form",
            "menu",
            "numbers",
            "cost",
            "published",
            "planned",
            "door",
            "tests",
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
            "predictor",
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
            "space",
            "store",
            "export",
            "worker",
            "report",
            "track",
            "draft",
            "tune",
            "dashboard",
            "cli",
        ],
    ),
    (
        "src/cli",
        &[
            "exit_codes",
            "error",
            "secrets",
            "terminal",
            "whole_output",
            "page_output",
            "row_formats",
            "options",
            "processes",
            "machine",
            "engines",
            "data",
            "forecast",
            "train",
            "model",
            "database",
            "study",
            "init",
            "export",
            "search",
            "plan",
            "check",
            "profile",
            "watch",
            "help",
            "no_command",
            "mcp",
            "commands",
        ],
    ),
];

/// Folders whose files use each other in no circle.
const WITHOUT_CIRCLES: &[&str] = &[
    "src",
    "crates/core/src",
    "crates/tools/src",
    "crates/page/src",
    "crates/search/src",
    "crates/kernels/src",
    "crates/engine/src",
];

/// A heavy dependency of the tuner, and the modules it may be used in.
const DOORS: &[(&str, &[&str])] = &[
    ("sqlx", &["store"]),
    ("libsqlite3_sys", &["store"]),
    ("unicode_width", &["report"]),
    ("resvg", &["report"]),
    ("axum", &["dashboard"]),
    ("ureq", &["track", "cli"]),
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
            for used in file.used_modules(root) {
                if floor(&used).is_some_and(|used| used > own) {
                    wrong.push(format!("{}: may not use {used}", file.path.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn files_use_each_other_in_no_circle() {
    for root in WITHOUT_CIRCLES {
        let files = source_files(root);
        let none = |re_exports: &ReExports| {
            let circles = circles(root, &files, re_exports);
            assert!(circles.is_empty(), "files of {root} in circles: {circles:#?}");
        };
        // As it is written a path ends at a folder's face, which uses the folder's files.
        none(&ReExports::new());
        none(&re_exports(&files));
    }
}

#[test]
fn a_name_is_followed_through_faces_to_its_file() {
    let file = |path: &str, text: &str| {
        let names = path.trim_end_matches(".rs").split('/');
        SourceFile {
            path: path.into(),
            modules: names.filter(|name| *name != "mod").map(str::to_owned).collect(),
            text: text.to_owned(),
        }
    };
    let files = [
        file("lib.rs", "pub use room::{Desk,\n    drawer::Key};\n"),
        file(
            "room/mod.rs",
            "mod desk;\npub(crate) mod drawer;\npub(super) use self::desk::Desk;\n",
        ),
        file(
            "room/desk.rs",
            "use crate::Key;\n// crate::comment\n#[cfg(test)]\nmod tests {\n    use crate::test;\n}\n",
        ),
        file("room/drawer.rs", "fn of(desk: &super::Desk) {}\n"),
    ];
    let circles = circles("crates/room/src", &files, &re_exports(&files));
    let used = |name: &str| BTreeSet::from([vec!["room".to_owned(), name.to_owned()]]);
    let found: Vec<_> = circles.into_iter().map(|(file, used)| (file.join("/"), used)).collect();
    let expected = [("room/desk", used("drawer")), ("room/drawer", used("desk"))];
    assert_eq!(found, expected.map(|(file, used)| (file.to_owned(), used)));
}

/// Paths under which names are known, each with the path that a `use` takes the name from.
type ReExports = BTreeMap<Vec<String>, Vec<String>>;

/// The names that files know by a `use`, those that it renames under their first name. A name that is a module's too stays one.
fn re_exports(files: &[SourceFile]) -> ReExports {
    let mut re_exports: ReExports = files.iter().flat_map(SourceFile::re_exports).collect();
    files.iter().for_each(|file| drop(re_exports.remove(&file.modules)));
    re_exports
}

/// The path that a path stands for, through all re-exports that it leads through.
fn followed(mut path: Vec<String>, re_exports: &ReExports) -> Vec<String> {
    /// More steps than re-exports take; one that takes a name from itself has no last one.
    const MOST_STEPS: usize = 8;
    for _ in 0..MOST_STEPS {
        let known = (1..=path.len()).find_map(|end| Some((end, re_exports.get(&path[..end])?)));
        let Some((end, from)) = known else { break };
        path = [from.as_slice(), &path[end..]].concat();
    }
    path
}

/// Files in circles, or between two of them, each with what it uses of the others.
fn circles<'a>(
    root: &str,
    files: &'a [SourceFile],
    re_exports: &ReExports,
) -> BTreeMap<&'a [String], BTreeSet<Vec<String>>> {
    let modules: BTreeSet<Vec<String>> = files.iter().map(|file| file.modules.clone()).collect();
    let mut uses: BTreeMap<&[String], BTreeSet<Vec<String>>> = BTreeMap::new();
    for file in files {
        let used = file.used_paths(root).into_iter();
        let used = used.map(|path| followed(path, re_exports));
        let used = used.filter_map(|path| (1..=path.len()).rev().find_map(|end| modules.get(&path[..end])));
        let used = used.filter(|one| !file.modules.starts_with(one)).cloned();
        uses.insert(&file.modules, used.collect());
    }
    // What uses nothing that is left, or is used by nothing that is left, is in no circle.
    loop {
        let before = uses.len();
        let left: BTreeSet<Vec<String>> = uses.keys().map(|file| file.to_vec()).collect();
        let users: BTreeSet<Vec<String>> = uses.values().flatten().cloned().collect();
        uses.retain(|file, used| users.contains(*file) && used.iter().any(|one| left.contains(one)));
        if uses.len() == before {
            return uses;
        }
    }
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
pub(crate) struct SourceFile {
    pub path: PathBuf,
    modules: Vec<String>,
    pub text: String,
}

impl SourceFile {
    /// The top-level module that it belongs to.
    fn module(&self) -> String {
        self.modules.first().cloned().unwrap_or_else(|| "lib".to_owned())
    }

    /// The names that follow the root's path or as many `super::` as lead there, also inside `use crate::{a, b::c}`.
    fn used_modules(&self, root: &str) -> BTreeSet<String> {
        let mut used = BTreeSet::new();
        let to_the_root = "super::".repeat(self.modules.len());
        for (start, prefix) in [path_of(root).as_str(), to_the_root.as_str()]
            .iter()
            .filter(|prefix| !prefix.is_empty())
            .flat_map(|prefix| self.text.match_indices(prefix))
        {
            // A longer chain of `super` begins inside an inline module, and this is its tail.
            if !self.text[..start].ends_with("::") {
                let paths = paths(&self.text[start + prefix.len()..]).into_iter();
                used.extend(paths.filter_map(|path| path.into_iter().next()));
            }
        }
        used
    }

    /// The text without comments, and without the tests at its foot.
    fn code(&self) -> String {
        const TESTS: &str = "#[cfg(test)]\n";
        let begins_tests = |start: usize| {
            let line = self.text[start + TESTS.len()..].lines().next().unwrap_or_default();
            line.contains("mod ") && line.ends_with('{')
        };
        let mut tests = self.text.match_indices(TESTS).map(|(start, _)| start);
        let end = tests.find(|start| begins_tests(*start));
        let lines = self.text[..end.unwrap_or(self.text.len())].lines();
        let code = lines.filter(|line| !line.trim_start().starts_with("//"));
        code.collect::<Vec<_>>().join("\n")
    }

    /// The names that this file knows by a `use` of its own, each with the path from the root that it is taken from.
    fn re_exports(&self) -> Vec<(Vec<String>, Vec<String>)> {
        let own: &[String] = match self.module().as_str() {
            "lib" | "main" => &[],
            _ => &self.modules,
        };
        let code = self.code();
        let uses = code.match_indices("use ").filter(|(start, _)| {
            let before = &code[..*start];
            let line = &before[before.rfind('\n').map_or(0, |end| end + 1)..];
            line.is_empty() || line.starts_with("pub")
        });
        let paths = uses.flat_map(|(start, word)| paths(&code[start + word.len()..]));
        let known = paths.filter_map(|path| {
            let steps = path.iter().take_while(|name| *name == "super").count();
            let (above, rest) = match path.first()?.as_str() {
                "crate" => (0, &path[1..]),
                "self" => (own.len(), &path[1..]),
                _ => (own.len().checked_sub(steps)?, &path[steps..]),
            };
            Some(([own, &path[path.len() - 1..]].concat(), [&own[..above], rest].concat()))
        });
        known.collect()
    }

    /// The paths from the root that its code names, tests left out: whole, from `super` on, and in a folder's face from one of its
    /// files on.
    fn used_paths(&self, root: &str) -> BTreeSet<Vec<String>> {
        let code = self.code();
        let text = code.as_str();
        let from = |modules: &[String], text: &str| -> Vec<Vec<String>> {
            let paths = paths(text).into_iter();
            paths.map(|path| [modules, path.as_slice()].concat()).collect()
        };
        let whole = path_of(root);
        let mut used: BTreeSet<Vec<String>> = BTreeSet::new();
        for (start, _) in text.match_indices(&whole) {
            used.extend(from(&[], &text[start + whole.len()..]));
        }
        for (start, _) in text.match_indices("super::") {
            let rest = text[start..].trim_start_matches("super::");
            let steps = (text.len() - start - rest.len()) / "super::".len();
            // What follows another `super` was taken with it; and one step too many begins inside an inline module.
            if !text[..start].ends_with("::")
                && let Some(above) = self.modules.len().checked_sub(steps)
            {
                used.extend(from(&self.modules[..above], rest));
            }
        }
        if self.path.ends_with("mod.rs") {
            for (start, word) in text.match_indices("use ") {
                used.extend(from(&self.modules, &text[start + word.len()..]));
            }
        }
        used
    }
}

/// How code names the root of a table: `crate::`, or `crate::cli::` for a folder of a crate.
fn path_of(root: &str) -> String {
    let (_, inside) = root.split_once("src").unwrap_or_default();
    format!("crate{}::", inside.replace('/', "::"))
}

/// The paths of the `use` tree, or the one path, that a text begins with.
fn paths(text: &str) -> Vec<Vec<String>> {
    let Some(group) = text.strip_prefix('{') else {
        let name: String = text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        let ends = match text[name.len()..].strip_prefix("::") {
            Some(rest) => paths(rest),
            None => vec![Vec::new()],
        };
        return ends.into_iter().map(|end| [vec![name.clone()], end].concat()).collect();
    };
    let (mut all, mut depth, mut start) = (Vec::new(), 0, 0);
    for (at, sign) in group.char_indices() {
        match sign {
            '{' => depth += 1,
            '}' | ',' if depth == 0 => {
                all.extend(paths(group[start..at].trim()));
                start = at + 1;
                if sign == '}' {
                    break;
                }
            }
            '}' => depth -= 1,
            _ => {}
        }
    }
    all
}

/// Every source file below `root`.
pub(crate) fn source_files(root: &str) -> Vec<SourceFile> {
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
