//! Folder where tokenised data is kept between runs.

use std::ffi::OsString;
use std::path::PathBuf;

/// `PEFT_TUNE_CACHE`, else `peft-tune` in the user's cache folder (`XDG_CACHE_HOME`, else `~/.cache`); `None` if there
/// is neither.
pub fn cache_folder() -> Option<PathBuf> {
    folder_of(|name| std::env::var_os(name))
}

fn folder_of(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let folder = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    folder("PEFT_TUNE_CACHE")
        .or_else(|| folder("XDG_CACHE_HOME").map(|folder| folder.join("peft-tune")))
        .or_else(|| folder("HOME").map(|folder| folder.join(".cache").join("peft-tune")))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn the_first_variable_that_is_set_decides() {
        let of = |set: &[(&str, &str)]| folder_of(|name| Some(set.iter().find(|(known, _)| *known == name)?.1.into()));
        let all = [
            ("PEFT_TUNE_CACHE", "/own"),
            ("XDG_CACHE_HOME", "/xdg"),
            ("HOME", "/home"),
        ];
        assert_eq!(of(&all).as_deref(), Some(Path::new("/own")));
        assert_eq!(of(&all[1..]).as_deref(), Some(Path::new("/xdg/peft-tune")));
        let empty = [("PEFT_TUNE_CACHE", ""), ("HOME", "/home")];
        assert_eq!(of(&empty).as_deref(), Some(Path::new("/home/.cache/peft-tune")));
        assert_eq!(of(&[]), None);
    }
}
