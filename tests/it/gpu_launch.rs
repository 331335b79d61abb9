//! The launcher of the package with NVIDIA support: a shell script that finds the libraries, or says which one is missing.

use std::path::Path;
use std::process::{Command, Output};

/// Libraries that the program is linked to.
const LIBRARIES: [&str; 6] = [
    "libcuda.so.1",
    "libcudart.so.13",
    "libcublas.so.13",
    "libcublasLt.so.13",
    "libcurand.so.10",
    "libnvrtc.so.13",
];

/// A package whose program shows where it would look, and its libraries but `without`.
fn package(without: Option<&str>) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    lay(folder.path(), &folder.path().join("lib"), without);
    folder
}

/// Puts launcher and program into one folder and the libraries into another.
fn lay(programs: &Path, libraries: &Path, without: Option<&str>) {
    std::fs::create_dir_all(programs).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/gpu/launch.sh");
    std::fs::copy(script, programs.join("peft-tune")).unwrap();
    let program = programs.join("peft-tune.bin");
    std::fs::write(&program, "#!/bin/sh\necho \"$LD_LIBRARY_PATH\"; echo \"$@\"\n").unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&program, mode).unwrap();
    std::fs::create_dir_all(libraries).unwrap();
    for library in LIBRARIES.into_iter().filter(|library| Some(*library) != without) {
        std::fs::write(libraries.join(library), "").unwrap();
    }
}

/// Starts it with nothing else that would name a library.
fn launch(package: &Path) -> Output {
    let mut command = Command::new("sh");
    command.arg(package.join("peft-tune")).args(["doctor", "--json"]);
    for variable in [
        "LD_LIBRARY_PATH",
        "CUDA_HOME",
        "CUDA_PATH",
        "VIRTUAL_ENV",
        "CONDA_PREFIX",
    ] {
        command.env_remove(variable);
    }
    command.env("PATH", "/usr/bin:/bin:/usr/sbin:/sbin").output().unwrap()
}

#[test]
fn with_all_libraries_the_program_starts_and_finds_them() {
    let package = package(None);
    let output = launch(package.path());
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let folder = package.path().canonicalize().unwrap().join("lib");
    assert!(lines[0].split(':').any(|one| Path::new(one) == folder), "{text}");
    assert_eq!(lines[1], "doctor --json");
}

#[test]
fn installed_from_a_wheel_the_program_finds_the_libraries_of_the_wheels_beside_it() {
    let environment = tempfile::tempdir().unwrap();
    let wheels = environment.path().join("lib/python3.13/site-packages/nvidia/cu13/lib");
    lay(&environment.path().join("bin"), &wheels, None);
    let output = launch(&environment.path().join("bin"));
    let text = String::from_utf8(output.stdout).unwrap();
    let wheels = wheels.canonicalize().unwrap();
    let searched = text.lines().next().unwrap_or_default();
    assert!(searched.split(':').any(|one| Path::new(one) == wheels), "{text}");
}

#[test]
fn each_library_that_is_missing_is_named_with_what_brings_it_and_where_it_was_looked_for() {
    for library in LIBRARIES {
        let package = package(Some(library));
        let output = launch(package.path());
        if output.status.success() {
            // This machine has it.
            continue;
        }
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(text.starts_with(&format!("error: {library} is missing.")), "{text}");
        let brings = match library {
            "libcuda.so.1" => "install the driver",
            _ => "pip install nvidia-cuda-runtime",
        };
        assert!(text.contains(brings), "{text}");
        let folder = package.path().canonicalize().unwrap().join("lib");
        assert!(text.contains(&format!("  {}\n", folder.display())), "{text}");
    }
}

#[test]
fn a_c_library_older_than_the_archive_says_is_named_before_the_program_starts() {
    let package = package(None);
    let needed = package.path().join("glibc");
    std::fs::write(&needed, "2.99\n").unwrap();
    let output = launch(package.path());
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(
        text.starts_with("error: this program needs the C library glibc 2.99 or newer, and this system has 2."),
        "{text}"
    );
    assert!(text.contains("container"), "{text}");
    std::fs::write(&needed, "2.4\n").unwrap();
    let output = launch(package.path());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
