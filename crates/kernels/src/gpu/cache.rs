//! The folder in which compiled kernels and measured choices lie: `$PEFT_TUNE_KERNELS`, else `$XDG_CACHE_HOME/peft-tune/kernels`,
//! else `~/.cache/peft-tune/kernels`.

use std::path::Path;

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

/// Writes a file whole: other processes may be reading the folder.
pub(super) fn write_whole(file: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let part = file.with_extension(format!("{}.part", std::process::id()));
    if let Some(folder) = file.parent() {
        std::fs::create_dir_all(folder)?;
    }
    std::fs::write(&part, bytes)?;
    std::fs::rename(part, file)
}
