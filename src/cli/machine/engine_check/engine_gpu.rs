//! The GPU that the built-in engine would train on, and the program that checks it.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use peft_tune_engine::profile::LibraryFolders;
use peft_tune_kernels::device;

/// Device of the first GPU.
const FIRST: &str = "cuda:0";
/// Variable that names a program which plays a GPU of the engine, for tests. With the word `name` it prints the GPU's name; with
/// other words it stands in for this program's commands `gpu-check` and `check`.
const PLAYED: &str = "PEFT_TUNE_MOCK_GPU";
/// Files that are there where the kernel has a driver of GPUs: NVIDIA's, AMD's, and that of Windows below Linux.
const OF_DRIVERS: [&str; 4] = ["/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/kfd", "/dev/dxg"];
/// Interface of NVIDIA's driver, without which PyTorch has no GPU of NVIDIA's.
const DRIVER: &str = "libcuda.so";

/// A GPU that the built-in engine can use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cli) struct EngineGpu {
    /// Name that workers know it by, such as `cuda:0`.
    pub device: String,
    /// What its driver calls it.
    pub name: String,
}

impl EngineGpu {
    /// The first GPU; `None` where this program has none that it can use.
    pub(in crate::cli) fn first() -> Option<Self> {
        Self::named(FIRST)
    }

    /// The GPU of a name such as `cuda:1`; `None` of the processor, and of a GPU that this program cannot use.
    pub(in crate::cli) fn named(device: &str) -> Option<Self> {
        let name = match played() {
            Some(program) if device == FIRST => name_of(&program),
            Some(_) => None,
            // One that is too old is passed over.
            None => device::check(device)
                .ok()
                .and_then(|()| device::named_gpu(device))
                .map(|gpu| gpu.name),
        };
        Some(Self {
            device: device.to_owned(),
            name: name?,
        })
    }
}

/// Whether this machine may have a GPU, of whichever maker: PyTorch may see one that the engine does not. Nothing is started.
pub(in crate::cli) fn may_have_gpu() -> bool {
    let has_driver = OF_DRIVERS.iter().any(|file| Path::new(file).exists());
    has_driver || LibraryFolders::of_environment().find(DRIVER).is_some()
}

/// A command of the program that checks a GPU: this one, or what plays the GPU.
///
/// # Errors
/// A program that does not know its own path.
pub(super) fn checker() -> io::Result<Command> {
    Ok(Command::new(played().map_or_else(std::env::current_exe, Ok)?))
}

/// The program that plays a GPU of the engine, where one is named.
fn played() -> Option<PathBuf> {
    let program = std::env::var_os(PLAYED).filter(|program| !program.is_empty());
    program.map(PathBuf::from)
}

/// The name of the GPU that a program plays.
fn name_of(program: &Path) -> Option<String> {
    let output = Command::new(program).arg("name").output().ok()?;
    let name = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    (output.status.success() && !name.is_empty()).then_some(name)
}
