//! [`Anonymous`]: a text without what tells whose machine it is from: paths, the user's name, the machine's name.
//!
//! A path is a word that begins with `/` or `~/`, or that has two or more `/` and is no address of the web; it becomes
//! `<path>`, and of a library the file's name stays. Units such as `tokens/s` are no paths.

use std::path::Path;

use super::record::machine;

/// What stands for a path, a user and a machine.
const PATH: &str = "<path>";
const USER: &str = "<user>";
const HOST: &str = "<host>";

/// Letters of a name below which it is left alone: it would be found in half of all words.
const LEAST_LETTERS: usize = 2;

/// Names of this machine and its user, which a text is to lose.
#[derive(Debug, Default)]
pub(super) struct Anonymous {
    home: Option<String>,
    users: Vec<String>,
    hosts: Vec<String>,
}

impl Anonymous {
    /// The names of this machine and of whoever runs the program.
    pub(super) fn here() -> Self {
        let variable = |name: &str| std::env::var(name).ok();
        let users = ["USER", "LOGNAME", "USERNAME", "SUDO_USER"];
        Self::new(variable("HOME"), users.into_iter().filter_map(variable), machine().host)
    }

    fn new(home: Option<String>, users: impl Iterator<Item = String>, host: String) -> Self {
        let home = home.filter(|home| home.len() > 1);
        let of_home = home.as_deref().and_then(|home| Path::new(home).file_name());
        let of_home = of_home.map(|name| name.to_string_lossy().into_owned());
        let long = |name: &String| name.chars().count() >= LEAST_LETTERS;
        let first = host.split('.').next().unwrap_or_default().to_owned();
        let mut users: Vec<String> = users.chain(of_home).filter(long).collect();
        // A name that is part of another goes behind it.
        users.sort_by_key(|name| std::cmp::Reverse(name.len()));
        Self {
            users,
            hosts: [host, first].into_iter().filter(long).collect(),
            home,
        }
    }

    /// The text without them.
    pub(super) fn text(&self, text: &str) -> String {
        // A home folder with blanks in its name is more than one word.
        let text = match &self.home {
            Some(home) if home.contains(char::is_whitespace) => text.replace(home.as_str(), "~"),
            _ => text.to_owned(),
        };
        let mut text = without_paths(&text);
        for (names, instead) in [(&self.hosts, HOST), (&self.users, USER)] {
            for name in names {
                text = without_word(&text, name, instead);
            }
        }
        text
    }
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

/// A word, or what stands for it where it is a path; what is before a colon stays.
fn without_path(word: &str) -> String {
    if word.contains("://") {
        return word.to_owned();
    }
    let parts: Vec<String> = word.split(':').map(part_without_path).collect();
    parts.join(":")
}

fn part_without_path(part: &str) -> String {
    // `~` alone is the home folder itself.
    let begins = part.len() > 1 && (part.starts_with('/') || part.starts_with("~/")) || part == "~";
    if !begins && part.matches('/').count() < 2 {
        return part.to_owned();
    }
    let file = part.rsplit('/').next().unwrap_or_default();
    match file.starts_with("lib") && file.contains(".so") {
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
        Anonymous::new(
            Some("/home/ada lovelace".to_owned()),
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
