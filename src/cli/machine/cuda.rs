//! CUDA on this machine: the driver and the libraries that training on an NVIDIA GPU needs, and what is missing.

use std::fmt::Write;
use std::path::PathBuf;

use serde::Serialize;

use super::record::driver;
use peft_tune_engine::profile::LibraryFolders;
use peft_tune_kernels::device;

/// Whether an NVIDIA GPU can be used, and why not.
#[derive(Debug, Serialize)]
pub(super) struct Cuda {
    /// Whether this program was built for CUDA.
    built: bool,
    /// Version of the kernel's driver, where there is one.
    driver: Option<String>,
    /// Libraries that training on a GPU needs.
    libraries: Vec<Library>,
    /// Folders in which the libraries were looked for.
    looked_in: Vec<PathBuf>,
    /// What to do to use a GPU; `None` where one is used.
    missing: Option<String>,
}

/// One library and where it was found.
#[derive(Debug, Serialize)]
struct Library {
    name: &'static str,
    purpose: &'static str,
    found: Option<PathBuf>,
}

/// Libraries by the start of their file names; the last two are not needed to train.
const LIBRARIES: [(&str, &str); 8] = [
    (
        "libcuda.so",
        "the driver's interface: install the NVIDIA driver, 580 or later",
    ),
    ("libcudart.so", "CUDA runtime: `pip install nvidia-cuda-runtime`"),
    ("libcublas.so", "matrix products: `pip install nvidia-cublas`"),
    ("libcublasLt.so", "matrix products: `pip install nvidia-cublas`"),
    ("libcurand.so", "random numbers: `pip install nvidia-curand`"),
    ("libnvrtc.so", "compiles kernels: `pip install nvidia-cuda-nvrtc`"),
    (
        "libnvidia-ml.so",
        "utilisation and power in profiles: comes with the driver",
    ),
    ("libcupti.so", "kernels in profiles: `pip install nvidia-cuda-cupti`"),
];

/// How many of [`LIBRARIES`] a training on a GPU needs.
const NEEDED: usize = 6;

impl Cuda {
    /// CUDA as this program finds it.
    pub(super) fn here() -> Self {
        let built = cfg!(feature = "cuda");
        let driver = driver();
        let folders = LibraryFolders::of_environment();
        let libraries: Vec<Library> = LIBRARIES
            .iter()
            .map(|(name, purpose)| Library {
                name,
                purpose,
                found: folders.find(name),
            })
            .collect();
        let absent = libraries.iter().take(NEEDED).find(|library| library.found.is_none());
        let missing = if built && (absent.is_none() || device::first_gpu().is_some()) {
            device::open("cuda").err().map(|error| error.to_string())
        } else if driver.is_none() && libraries[0].found.is_none() {
            Some("no NVIDIA driver: there is no GPU, or its driver is not installed".to_owned())
        } else if let Some(library) = absent {
            let (name, purpose) = (library.name, library.purpose);
            Some(format!(
                "{name} is in none of the folders below ({purpose}), or name its folder in LD_LIBRARY_PATH"
            ))
        } else {
            Some("this program was built without GPU support: build it with `--features cuda`".to_owned())
        };
        Self {
            built,
            driver,
            libraries,
            looked_in: folders.folders().to_vec(),
            missing,
        }
    }

    /// Lines of `doctor`: the driver, the libraries with their places, and what is missing.
    pub(super) fn to_text(&self) -> String {
        let built = if self.built { "with" } else { "without" };
        let mut text = format!("  built {built} CUDA support\n");
        let _ = writeln!(text, "  driver      {}", self.driver.as_deref().unwrap_or("none"));
        for library in &self.libraries {
            let found = library.found.as_ref().map(|path| path.display().to_string());
            let _ = writeln!(
                text,
                "  {:<20}{}",
                library.name,
                found.unwrap_or_else(|| "not found".to_owned())
            );
        }
        if let Some(missing) = &self.missing {
            let _ = writeln!(text, "  not used: {missing}");
            let folders: Vec<String> = self
                .looked_in
                .iter()
                .map(|folder| folder.display().to_string())
                .collect();
            let _ = writeln!(text, "  looked in: {}", folders.join(", "));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_gpu_it_says_what_is_missing() {
        let cuda = Cuda::here();
        if device::default_name() == "cpu" {
            assert!(cuda.missing.is_some());
            assert!(cuda.to_text().contains("not used: "), "{}", cuda.to_text());
        }
    }
}
