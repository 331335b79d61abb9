//! The folder in which compiled kernels and measured choices lie: `$PEFT_TUNE_KERNELS`, else `$XDG_CACHE_HOME/peft-tune/kernels`,
//! else `~/.cache/peft-tune/kernels`.

use std::path::Path;

use peft_tune_core::whole_file::write_whole;

/// The folder; `None` where nothing says where it should be.
#[cfg(feature = "cuda")]
pub(super) fn folder() -> Option<std::path::PathBuf> {
    use std::path::PathBuf;

    let variable = |name| {
        std::env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    variable("PEFT_TUNE_KERNELS")
        .or_else(|| variable("XDG_CACHE_HOME").map(|cache| cache.join("peft-tune/kernels")))
        .or_else(|| variable("HOME").map(|home| home.join(".cache/peft-tune/kernels")))
}

/// Writes a file of the folder, which is made where it is missing. What others read there is whole, also after a power failure.
pub(super) fn keep(file: &Path, bytes: &[u8]) -> std::io::Result<()> {
    file.parent().map_or(Ok(()), std::fs::create_dir_all)?;
    write_whole(file, bytes, true)
}
