//! Where tokenised data is kept between runs.

use std::path::PathBuf;

/// `PEFT_TUNE_CACHE`, else `peft-tune` in the user's cache folder (`XDG_CACHE_HOME`, else `~/.cache`); `None` if there
/// is neither.
pub fn cache_folder() -> Option<PathBuf> {
    let from_env = |name: &str| {
        std::env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    from_env("PEFT_TUNE_CACHE")
        .or_else(|| from_env("XDG_CACHE_HOME").map(|folder| folder.join("peft-tune")))
        .or_else(|| from_env("HOME").map(|folder| folder.join(".cache").join("peft-tune")))
}
