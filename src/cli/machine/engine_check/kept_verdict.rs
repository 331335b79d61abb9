//! Verdicts that are kept from one process to the next: a file of the cache for each GPU, driver, version and choice of kernels,
//! and where TRL is the reference for each set of its packages. A file that cannot be read counts as none.

use std::io;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::engine_gpu::EngineGpu;
use super::verdict::{Reference, Verdict};
use crate::cli::machine::cpu_ceilings::build;
use crate::cli::machine::record::driver;
use crate::cli::processes::interpreter::Stack;
use peft_tune_core::hexadecimal;
use peft_tune_core::whole_file::write_whole;
use peft_tune_engine::data::cache_folder;
use peft_tune_kernels::Kernels;

/// Folder of the cache that has the files.
const FOLDER: &str = "gpu-checks";
/// Characters of the digest that names a file.
const DIGITS: usize = 16;

/// What a verdict holds for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Subject {
    /// The GPU as its driver calls it.
    gpu: String,
    driver: String,
    /// Version and kind of build of this program.
    build: String,
    kernels: String,
    against: Reference,
    /// Packages of the reference; none of the CPU.
    packages: String,
}

/// A verdict with what it holds for, as a file has it.
#[derive(Debug, Serialize, Deserialize)]
struct KeptVerdict {
    subject: Subject,
    verdict: Verdict,
}

impl Subject {
    /// The engine on a GPU with these kernels, against TRL in a Python, or against the CPU.
    pub(super) fn new(gpu: &EngineGpu, kernels: Kernels, stack: Option<&Stack>) -> Self {
        Self {
            gpu: gpu.name.clone(),
            driver: driver().unwrap_or_default(),
            build: build(),
            kernels: kernels.flag().to_owned(),
            against: Reference::by(stack),
            packages: stack.map_or_else(String::new, Stack::versions),
        }
    }

    /// The verdict that is kept; `None` where there is none.
    pub(super) fn kept(&self) -> Option<Verdict> {
        let text = std::fs::read(self.file()?).ok()?;
        let kept: KeptVerdict = serde_json::from_slice(&text).ok()?;
        (kept.subject == *self).then_some(kept.verdict)
    }

    /// Keeps a verdict in place of an earlier one.
    ///
    /// # Errors
    /// No cache, or one that cannot be written to.
    pub(super) fn keep(&self, verdict: &Verdict) -> io::Result<()> {
        let no_cache = || io::Error::other("there is no cache; name a folder in PEFT_TUNE_CACHE");
        let file = self.file().ok_or_else(no_cache)?;
        let kept = KeptVerdict {
            subject: self.clone(),
            verdict: verdict.clone(),
        };
        let text = serde_json::to_vec_pretty(&kept)?;
        file.parent().map_or(Ok(()), std::fs::create_dir_all)?;
        write_whole(&file, &text, true)
    }

    fn file(&self) -> Option<PathBuf> {
        let Self {
            gpu,
            driver,
            build,
            kernels,
            against,
            packages,
        } = self;
        let text = format!("{gpu}\0{driver}\0{build}\0{kernels}\0{against:?}\0{packages}");
        let mut digits = hexadecimal(&Sha256::digest(text));
        digits.truncate(DIGITS);
        Some(cache_folder()?.join(FOLDER).join(format!("{digits}.json")))
    }
}
