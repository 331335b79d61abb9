//! Words for a shell: what is printed to be pasted, and what another machine's shell reads.

use std::fmt::Write as _;

/// A word as a POSIX shell reads it; on one line and without characters that steer a terminal, whatever it holds.
pub fn shell_word(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:@%+,".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    if !word.chars().any(char::is_control) {
        return format!("'{}'", word.replace('\'', r"'\''"));
    }
    let mut quoted = String::from("$'");
    for c in word.chars() {
        match c {
            '\'' | '\\' => quoted.extend(['\\', c]),
            // Writing to a string cannot fail.
            c if c.is_control() => write!(quoted, "\\u{:04x}", u32::from(c)).unwrap_or_default(),
            c => quoted.push(c),
        }
    }
    quoted + "'"
}

/// A command line of these words.
pub fn command_line<Word: AsRef<str>>(words: impl IntoIterator<Item = Word>) -> String {
    let words: Vec<String> = words.into_iter().map(|word| shell_word(word.as_ref())).collect();
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a shell hands on of a word.
    fn read_back(word: &str) -> Vec<u8> {
        let script = format!("printf %s {}", shell_word(word));
        let output = std::process::Command::new("bash")
            .args(["-c", &script])
            .env("LC_ALL", "C.UTF-8")
            .output();
        output.unwrap().stdout
    }

    #[test]
    fn a_shell_reads_each_word_back_as_it_was() {
        for word in [
            "",
            "quickstart",
            "a b",
            "`id`",
            "$(id)",
            "it's",
            "a b'; rm -rf $HOME",
            "-x",
            "~",
            "a;b|c&d>e",
            "\\",
            "é\u{1b}[31m\n'\\",
        ] {
            assert_eq!(read_back(word), word.as_bytes(), "{word:?}: {}", shell_word(word));
        }
    }

    #[test]
    fn what_a_shell_prints_cannot_steer_the_terminal() {
        assert_eq!(shell_word("a\u{1b}b"), r"$'a\u001bb'");
        assert_eq!(command_line(["peft-tune", "show", "a b"]), "peft-tune show 'a b'");
    }
}
