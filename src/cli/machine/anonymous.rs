//! [`Anonymous`]: a text without what tells whose machine it is from: paths, the user's name, the machine's name.
//!
//! A path is a word that begins with `/` or `~/`, or that has two or more `/` and is no address of the web; it becomes
//! `<path>`, and of a library the file's name stays. Units such as `tokens/s` are no paths. A known path, such as one that an
//! option names, is found whatever characters it has; an address of the web loses what stands before its `@`.

use std::path::{Path, PathBuf};

use super::record::machine;

/// What stands for a path, a user and a machine.
const PATH: &str = "<path>";
const USER: &str = "<user>";
const HOST: &str = "<host>";

/// What stands for a known path until words are looked at: a character for private use, which no message has.
const KNOWN: &str = "\u{e000}";

/// Variables that name folders.
const FOLDERS: [&str; 10] = [
    "LD_LIBRARY_PATH",
    "PATH",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
    "CUDA_HOME",
    "CUDA_PATH",
    "HF_HOME",
    "XDG_CACHE_HOME",
    "PEFT_TUNE_CACHE",
    "PEFT_TUNE_KERNELS",
];

/// Letters of a name below which it is left alone: it would be found in half of all words.
const LEAST_LETTERS: usize = 2;

/// Names of this machine and its user, which a text is to lose.
#[derive(Debug, Default)]
pub(super) struct Anonymous {
    /// Paths that are more than a word, longest first.
    paths: Vec<String>,
    users: Vec<String>,
    hosts: Vec<String>,
}

impl Anonymous {
    /// The names of this machine and of whoever runs the program, and the paths of its environment beside those that are `given`.
    pub(super) fn here(given: impl Iterator<Item = PathBuf>) -> Self {
        let variable = |name: &str| std::env::var(name).ok();
        let users = ["USER", "LOGNAME", "USERNAME", "SUDO_USER"];
        let users = users.into_iter().filter_map(variable);
        Self::new(variable("HOME"), given.chain(folders()), users, machine().host)
    }

    fn new(
        home: Option<String>,
        paths: impl Iterator<Item = PathBuf>,
        users: impl Iterator<Item = String>,
        host: String,
    ) -> Self {
        let home = home.filter(|home| home.len() > 1);
        let of_home = home.as_deref().and_then(|home| Path::new(home).file_name());
        let of_home = of_home.map(|name| name.to_string_lossy().into_owned());
        let long = |name: &String| name.chars().count() >= LEAST_LETTERS;
        let first = host.split('.').next().unwrap_or_default().to_owned();
        let mut users: Vec<String> = users.chain(of_home).filter(long).collect();
        // A name that is part of another goes behind it.
        users.sort_by_key(|name| std::cmp::Reverse(name.len()));
        let paths = paths.chain(home.map(PathBuf::from)).flat_map(|path| forms(&path));
        let mut paths: Vec<String> = paths.filter(|path| is_more_than_a_word(path)).collect();
        paths.sort_by_key(|path| std::cmp::Reverse(path.len()));
        Self {
            paths,
            users,
            hosts: [host, first].into_iter().filter(long).collect(),
        }
    }

    /// The text without them.
    pub(super) fn text(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for path in &self.paths {
            text = text.replace(path.as_str(), KNOWN);
        }
        text = without_paths(&without_credentials(&text));
        for (names, instead) in [(&self.hosts, HOST), (&self.users, USER)] {
            for name in names {
                text = without_word(&text, name, instead);
            }
        }
        text
    }
}

/// Folders that the environment names, and the current one.
fn folders() -> Vec<PathBuf> {
    let mut folders = Vec::new();
    for value in FOLDERS.into_iter().filter_map(std::env::var_os) {
        folders.extend(std::env::split_paths(&value));
        folders.push(PathBuf::from(value));
    }
    folders.extend(std::env::current_dir().ok());
    folders
}

/// A path as messages may have it: as it was given, from the root, and each within the quotes of a shell.
fn forms(path: &Path) -> Vec<String> {
    let whole = std::path::absolute(path).ok();
    let written = [Some(path.to_owned()), whole].into_iter().flatten();
    let written = written.map(|path| path.to_string_lossy().trim_end_matches('/').to_owned());
    written.flat_map(|path| [path.replace('\'', r"'\''"), path]).collect()
}

/// Whether a path would not be found as a word that looks like one.
fn is_more_than_a_word(path: &str) -> bool {
    let is_relative = path.contains('/') && !path.starts_with('/');
    is_relative || path.starts_with('/') && path.contains(|letter: char| ends_path(letter) || letter == ':')
}

/// The text without what stands before the `@` of an address: a name, a password, a token.
fn without_credentials(text: &str) -> String {
    const BEGINS: &str = "://";
    let mut kept = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(BEGINS) {
        let (scheme, address) = rest.split_at(at + BEGINS.len());
        kept.push_str(scheme);
        let ends = |letter: char| letter.is_whitespace() || "\"'`<>".contains(letter);
        let end = address.find(ends).unwrap_or(address.len());
        rest = match address[..end].rfind('@') {
            Some(at) => &address[at + 1..],
            None => address,
        };
    }
    kept.push_str(rest);
    kept
}

/// Characters that stand around a path, and are no part of it.
fn ends_path(letter: char) -> bool {
    letter.is_whitespace() || "\"'`()[]{}<>,;=".contains(letter)
}

/// The text with `<path>` for each path.
fn without_paths(text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.find(ends_path).unwrap_or(rest.len());
        let (word, behind) = rest.split_at(end);
        kept.push_str(&without_path(word));
        let next = behind.chars().next();
        kept.extend(next);
        rest = &behind[next.map_or(0, char::len_utf8)..];
    }
    kept
}

/// A word, or what stands for it where it is a path; what is before a colon stays. Addresses other than of the web name files,
/// databases and machines.
fn without_path(word: &str) -> String {
    if let Some((scheme, rest)) = word.split_once("://") {
        return match scheme {
            "http" | "https" if !rest.contains(KNOWN) => word.to_owned(),
            _ => PATH.to_owned(),
        };
    }
    let parts: Vec<String> = word.split(':').map(part_without_path).collect();
    parts.join(":")
}

fn part_without_path(part: &str) -> String {
    // `~` alone is the home folder itself.
    let begins = part.len() > 1 && (part.starts_with('/') || part.starts_with("~/")) || part == "~";
    if !begins && !part.contains(KNOWN) && part.matches('/').count() < 2 {
        return part.to_owned();
    }
    let file = part.rsplit('/').next().unwrap_or_default();
    match file.starts_with("lib") && file.contains(".so") && !file.contains(KNOWN) {
        true => format!("{PATH}/{file}"),
        false => PATH.to_owned(),
    }
}

/// The text with `instead` for a word.
fn without_word(text: &str, word: &str, instead: &str) -> String {
    let is_of_word = |letter: char| letter.is_alphanumeric() || letter == '_';
    let mut kept = String::with_capacity(text.len());
    let mut from = 0;
    for (at, _) in text.match_indices(word) {
        let before = text[..at].chars().next_back();
        let behind = text[at + word.len()..].chars().next();
        if !before.is_some_and(is_of_word) && !behind.is_some_and(is_of_word) {
            kept.push_str(&text[from..at]);
            kept.push_str(instead);
            from = at + word.len();
        }
    }
    kept.push_str(&text[from..]);
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ada() -> Anonymous {
        let users = ["ada".to_owned(), "x".to_owned()].into_iter();
        let paths = [
            "/mnt/my disk/cuda/lib",
            "/mnt/my disk/env (old)/bin/python",
            "/srv/o'hara",
            "my env/python",
        ];
        Anonymous::new(
            Some("/home/ada lovelace".to_owned()),
            paths.into_iter().map(PathBuf::from),
            users,
            "engine.example.org".to_owned(),
        )
    }

    #[test]
    fn paths_become_one_word_and_libraries_keep_their_names() {
        for (text, expected) in [
            (
                "python      /home/ada lovelace/venv/bin/python3 (3.12.3)",
                "python      <path> (3.12.3)",
            ),
            (
                "libcuda.so   /usr/lib/libcuda.so.580.1",
                "libcuda.so   <path>/libcuda.so.580.1",
            ),
            ("cannot read `/secret/a.json`: gone", "cannot read `<path>`: gone"),
            ("LD_LIBRARY_PATH=/a/b:/c/d", "LD_LIBRARY_PATH=<path>:<path>"),
            ("in ./runs/private/it, or ~", "in <path>, or <path>"),
        ] {
            assert_eq!(ada().text(text), expected);
        }
    }

    #[test]
    fn known_paths_are_found_with_blanks_and_quotes() {
        for (text, expected) in [
            ("looked in: /mnt/my disk/cuda/lib, /usr", "looked in: <path>, <path>"),
            (
                "libcuda.so  /mnt/my disk/cuda/lib/libcuda.so.1",
                "libcuda.so  <path>/libcuda.so.1",
            ),
            ("'/mnt/my disk/env (old)/bin/python' lacks trl", "'<path>' lacks trl"),
            (r"'/srv/o'\''hara/python': gone", "'<path>': gone"),
            ("my env/python (3.12.3)", "<path> (3.12.3)"),
            ("in https://example.com/srv/o'hara", "in <path>"),
        ] {
            assert_eq!(ada().text(text), expected);
        }
    }

    #[test]
    fn addresses_lose_who_asks_and_those_of_files_are_paths() {
        for (text, expected) in [
            ("file:///mnt/disk/a and sqlite:///b/c.db", "<path> and <path>"),
            ("file:///home/ada lovelace/a", "<path>"),
            ("https://ada:word@example.com/a", "https://example.com/a"),
            (
                "from `https://token:a=b,c@example.com/simple` or http://b@example.org",
                "from `https://example.com/simple` or http://example.org",
            ),
        ] {
            assert_eq!(ada().text(text), expected);
        }
    }

    #[test]
    fn units_and_addresses_are_no_paths() {
        for text in [
            "1,234 tokens/s and 12 GB/s",
            "see https://example.com/a/b",
            "a / b",
            "6.8.0-1/2",
        ] {
            assert_eq!(ada().text(text), text);
        }
    }

    #[test]
    fn names_of_people_and_machines_are_whole_words() {
        let text = "user ada on engine.example.org, or engine; adapters of ada_2, x";
        assert_eq!(
            ada().text(text),
            "user <user> on <host>, or <host>; adapters of ada_2, x"
        );
        assert_eq!(ada().text("by ada lovelace"), "by <user>");
        assert_eq!(Anonymous::default().text("ada"), "ada");
    }
}
