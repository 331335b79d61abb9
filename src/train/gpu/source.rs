//! The sources of the kernels.

/// A `.cu` file without its beginning, which all share.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Source {
    /// Name for messages and files.
    pub name: &'static str,
    /// The text of the file.
    pub text: &'static str,
}

/// What every file begins with.
#[cfg(any(feature = "cuda", test))]
pub(super) const PRELUDE: &str = include_str!("prelude.cuh");

impl Source {
    /// The text that NVRTC compiles.
    #[cfg(feature = "cuda")]
    pub(super) fn whole(&self) -> String {
        format!("{PRELUDE}\n#line 1 \"{}.cu\"\n{}", self.name, self.text)
    }
}

/// Every kernel file of the program, for whoever compiles them all.
#[cfg(feature = "cuda")]
pub fn all_sources() -> Vec<&'static Source> {
    let mut sources = crate::train::ops::cuda_sources();
    sources.extend([&crate::train::optimizer::CUDA_SOURCE, &crate::train::quant::CUDA_SOURCE]);
    sources
}
