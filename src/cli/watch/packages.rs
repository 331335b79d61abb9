//! Versions of the Python packages that a run trains with, from the folder that they are installed in. Nothing is run.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::cli::processes::interpreter::{ENVIRONMENTS, on_search_path};

/// Packages whose version may change speed, memory or results.
const PACKAGES: [&str; 16] = [
    "accelerate",
    "axolotl",
    "bitsandbytes",
    "datasets",
    "deepspeed",
    "flash_attn",
    "liger_kernel",
    "llamafactory",
    "peft",
    "torch",
    "torchtune",
    "transformers",
    "triton",
    "trl",
    "unsloth",
    "xformers",
];

/// Versions of packages by their names, of the environment that a command runs in; empty where none is found.
pub(super) fn versions(program: &str) -> BTreeMap<String, String> {
    let variables = ENVIRONMENTS.iter().filter_map(std::env::var_os);
    let active = variables.filter(|value| !value.is_empty()).map(PathBuf::from);
    // A program in `bin` of an environment is that environment's.
    let own = found(program).and_then(|path| Some(path.parent()?.parent()?.to_owned()));
    let mut roots = own.into_iter().chain(active);
    roots.find_map(|root| versions_in(&root)).unwrap_or_default()
}

/// The path of a program, as a shell finds it.
fn found(program: &str) -> Option<PathBuf> {
    match program.contains('/') {
        true => Some(PathBuf::from(program)),
        false => on_search_path(program),
    }
}

/// The versions that the environment at `root` has; `None` where it has none of the packages.
fn versions_in(root: &Path) -> Option<BTreeMap<String, String>> {
    let entries = |folder: &Path| std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut all = BTreeMap::new();
    for python in entries(&root.join("lib")) {
        for folder in entries(&python.path().join("site-packages")) {
            let name = folder.file_name();
            let installed = name.to_str().and_then(|name| name.strip_suffix(".dist-info"));
            if let Some((name, version)) = installed.and_then(|installed| installed.rsplit_once('-')) {
                let name = name.to_lowercase().replace('-', "_");
                if PACKAGES.contains(&name.as_str()) {
                    all.insert(name, version.to_owned());
                }
            }
        }
    }
    (!all.is_empty()).then_some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_those_of_the_programs_environment() {
        let root = tempfile::tempdir().unwrap();
        let packages = root.path().join("lib/python3.12/site-packages");
        for name in [
            "torch-2.9.1+cpu.dist-info",
            "trl-0.25.0.dist-info",
            "other-1.dist-info",
            "torch",
        ] {
            std::fs::create_dir_all(packages.join(name)).unwrap();
        }
        let program = root.path().join("bin/trl");
        let found = versions(&program.to_string_lossy());
        let found: Vec<(&str, &str)> = found
            .iter()
            .map(|(name, version)| (name.as_str(), version.as_str()))
            .collect();
        assert_eq!(found, [("torch", "2.9.1+cpu"), ("trl", "0.25.0")]);
        assert_eq!(versions_in(Path::new("/no/such/folder")), None);
    }
}
