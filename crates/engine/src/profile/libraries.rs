//! Folders in which NVIDIA's libraries may lie on this machine: as `scripts/gpu/launch.sh` looks for them.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Folders of toolkits and drivers, beside what the environment names.
const USUAL: [&str; 9] = [
    "/usr/local/cuda",
    "/opt/cuda",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/lib/wsl/lib",
    "/usr/local/nvidia/lib64",
    "/usr/local/nvidia/lib",
];

/// Folders in which a toolkit has its libraries.
const OF_TOOLKIT: [&str; 4] = ["lib64", "lib", "targets/x86_64-linux/lib", "extras/CUPTI/lib64"];

/// Roots of Python installations, beside the active environment.
const PYTHONS: [&str; 3] = ["/usr/local", "/usr", "/opt/conda"];

/// Folders that exist, in the order in which libraries are looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LibraryFolders(Vec<PathBuf>);

impl LibraryFolders {
    /// Folders of this process's environment.
    pub fn of_environment() -> Self {
        Self::of(|name| std::env::var_os(name).filter(|value| !value.is_empty()))
    }

    /// `LD_LIBRARY_PATH`; toolkits (`CUDA_HOME`, `CUDA_PATH`, the usual places); the loader's folders; wheels of the active
    /// Python environment (`VIRTUAL_ENV`, `CONDA_PREFIX`), of the user and of the system.
    fn of(variable: impl Fn(&str) -> Option<OsString>) -> Self {
        let mut folders: Vec<PathBuf> = Vec::new();
        if let Some(path) = variable("LD_LIBRARY_PATH") {
            folders.extend(std::env::split_paths(&path).filter(|folder| !folder.as_os_str().is_empty()));
        }
        let named = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(&variable);
        for root in named.map(PathBuf::from).chain(USUAL.iter().map(PathBuf::from)) {
            folders.extend(OF_TOOLKIT.map(|folder| root.join(folder)));
            folders.push(root);
        }
        let environments = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(&variable);
        let user = variable("HOME").map(|home| PathBuf::from(home).join(".local"));
        for root in environments
            .map(PathBuf::from)
            .chain(user)
            .chain(PYTHONS.iter().map(PathBuf::from))
        {
            folders.extend(wheels(&root));
        }
        let mut seen = std::collections::HashSet::new();
        folders.retain(|folder| folder.is_dir() && seen.insert(folder.clone()));
        Self(folders)
    }

    /// Makes a list of these folders and no others.
    #[cfg(test)]
    pub(super) fn from_folders(folders: Vec<PathBuf>) -> Self {
        Self(folders)
    }

    /// The folders.
    pub fn folders(&self) -> &[PathBuf] {
        &self.0
    }

    /// The first file whose name starts with `name` (`libcublas.so`): that of the highest version in its folder.
    pub fn find(&self, name: &str) -> Option<PathBuf> {
        self.0.iter().find_map(|folder| {
            let files = entries(folder);
            let is_one = |path: &PathBuf| {
                let file = path.file_name().map(|file| file.to_string_lossy().into_owned());
                file.is_some_and(|file| file.starts_with(name))
            };
            files.into_iter().rfind(is_one)
        })
    }
}

/// Folders of NVIDIA's wheels in the Pythons below `root`: `lib/python3.12/site-packages/nvidia/cu13/lib`.
fn wheels(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for python in entries(&root.join("lib")) {
        let name = python.file_name().map(|name| name.to_string_lossy().into_owned());
        if !name.is_some_and(|name| name.starts_with("python3")) {
            continue;
        }
        for packages in ["site-packages", "dist-packages"] {
            let parts = entries(&python.join(packages).join("nvidia"));
            found.extend(parts.into_iter().map(|part| part.join("lib")));
        }
    }
    found
}

/// Paths in a folder, by name; none where it cannot be read.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = files.map(|file| file.path()).collect();
    paths.sort();
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder with files, and folders with nothing else set.
    fn folders(root: &Path, files: &[&str], variables: &[(&str, &str)]) -> LibraryFolders {
        for file in files {
            let path = root.join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        LibraryFolders::of(|name| {
            let value = variables.iter().find(|(variable, _)| *variable == name);
            value.map(|(_, value)| root.join(value).into_os_string())
        })
    }

    #[test]
    fn wheels_of_the_active_environment_are_looked_through() {
        let root = tempfile::tempdir().unwrap();
        let wheel = "venv/lib/python3.12/site-packages/nvidia/cu13/lib/libcupti.so.13";
        let found = folders(root.path(), &[wheel, "venv/lib/other.txt"], &[("VIRTUAL_ENV", "venv")]);
        assert_eq!(found.find("libcupti.so"), Some(root.path().join(wheel)));
        assert_eq!(found.find("libno-such-library.so"), None);
    }

    #[test]
    fn what_the_user_names_comes_before_a_toolkit_and_that_before_wheels() {
        let root = tempfile::tempdir().unwrap();
        let files = [
            "own/libcublas.so.13",
            "toolkit/lib64/libcublas.so.12",
            "venv/lib/python3.9/site-packages/nvidia/cublas/lib/libcublas.so.11",
        ];
        let all = [
            ("LD_LIBRARY_PATH", "own"),
            ("CUDA_HOME", "toolkit"),
            ("VIRTUAL_ENV", "venv"),
        ];
        for skip in 0..files.len() {
            let found = folders(root.path(), &files, &all[skip..]).find("libcublas.so");
            // A machine's own toolkit may come before the wheels.
            assert!(skip == 2 || found == Some(root.path().join(files[skip])), "{found:?}");
        }
    }

    #[test]
    fn the_highest_version_of_a_folder_is_taken() {
        let root = tempfile::tempdir().unwrap();
        let files = ["own/libnvrtc.so.12", "own/libnvrtc.so.13"];
        let found = folders(root.path(), &files, &[("LD_LIBRARY_PATH", "own")]);
        assert_eq!(found.find("libnvrtc.so"), Some(root.path().join(files[1])));
    }
}
