//! [`Sources`]: files that a script of a shell runs as a part of itself (`source env.sh`), as far as they lie beside it.

use std::collections::BTreeMap;
use std::rc::Rc;

use super::word::Word;

/// Files within files, at most so many.
const DEEPEST: usize = 8;

/// Files of a script, at most so many, each as often as it is run.
const MOST: usize = 32;

/// Longest text of a file, in bytes.
const LONGEST: usize = 1 << 18;

/// Expansions that stand for the script's own folder, without quotes, braces and blanks.
const OWN_FOLDER: [&str; 3] = ["$(dirname$0)", "`dirname$0`", "$(cd$(dirname$0)&&pwd)"];

/// The text of a file below the script's folder, by its path from there; `None` where there is none.
pub(crate) type Beside<'r> = &'r dyn Fn(&str) -> Option<String>;

/// Files of a script up to a command of it.
pub(super) struct Sources<'r> {
    beside: Beside<'r>,
    texts: BTreeMap<String, Option<Rc<str>>>,
    /// Files that are being run, the innermost one last.
    open: Vec<String>,
    /// Files that were begun.
    count: usize,
    /// Whether the script went to another folder than its own.
    is_moved: bool,
}

impl<'r> Sources<'r> {
    /// Files at the beginning of a script.
    pub(super) fn of(beside: Beside<'r>) -> Self {
        Self {
            beside,
            texts: BTreeMap::new(),
            open: Vec::new(),
            count: 0,
            is_moved: false,
        }
    }

    /// Files at the beginning of their script again, with the texts that were read.
    pub(super) fn again(self) -> Self {
        let Self { beside, texts, .. } = self;
        Self {
            texts,
            ..Self::of(beside)
        }
    }

    /// Begins the file that a word names, and gives its text. `None` where it does not lie beside the script, where it is being run, and
    /// of more files than a person would write.
    pub(super) fn begin(&mut self, name: &Word) -> Option<Rc<str>> {
        let path = self.path_of(name)?;
        if self.open.len() == DEEPEST || self.count == MOST || self.open.contains(&path) {
            return None;
        }
        let text = match self.texts.get(&path) {
            Some(known) => known.clone(),
            None => {
                let text = (self.beside)(&path).filter(|text| text.len() <= LONGEST);
                let text: Option<Rc<str>> = text.map(Rc::from);
                self.texts.insert(path.clone(), text.clone());
                text
            }
        }?;
        self.open.push(path);
        self.count += 1;
        Some(text)
    }

    /// Ends the file that was begun last.
    pub(super) fn end(&mut self) {
        self.open.pop();
    }

    /// Takes the folder that the script goes to.
    pub(super) fn go(&mut self, folder: Option<&Word>) {
        let is_own = folder.is_some_and(|word| word.is_unsaid() && self.is_own_folder(&word.text()));
        self.is_moved |= !is_own;
    }

    /// A line of what is being run, in words.
    pub(super) fn location(&self, line: usize) -> String {
        match self.open.last() {
            Some(file) => format!("line {line} of {file}"),
            None => format!("line {line}"),
        }
    }

    /// The path that a word names, from the script's folder.
    fn path_of(&self, name: &Word) -> Option<String> {
        let path = match name.behind_unsaid() {
            Some((folder, behind)) if self.is_own_folder(folder) => behind.strip_prefix('/')?,
            _ if self.is_moved => return None,
            _ => name.letters()?,
        };
        let path = path.trim_start_matches("./");
        (!path.is_empty()).then(|| path.to_owned())
    }

    /// Whether an expansion stands for the script's folder. In a file `BASH_SOURCE` is the file's own.
    fn is_own_folder(&self, expansion: &str) -> bool {
        let mut bare = expansion.replace(['"', '\'', '{', '}', ' '], "").replace("--", "");
        if self.open.is_empty() {
            bare = bare.replace("BASH_SOURCE[0]", "0").replace("BASH_SOURCE", "0");
        }
        OWN_FOLDER.contains(&bare.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unsaid(folder: &str, behind: &str) -> Word {
        let mut word = Word::unsaid(folder);
        behind.chars().for_each(|letter| word.push(letter));
        word
    }

    #[test]
    fn files_beside_the_script_are_begun_and_no_others() {
        let beside = |path: &str| ["env.sh", "a/b.sh"].contains(&path).then(|| format!("of {path}"));
        let mut sources = Sources::of(&beside);
        let mut of = |word: &Word| {
            let text = sources.begin(word);
            text.inspect(|_| sources.end()).map(|text| text.to_string())
        };
        for path in ["env.sh", "./env.sh"] {
            assert_eq!(of(&Word::said(path)).as_deref(), Some("of env.sh"), "{path}");
        }
        assert_eq!(of(&Word::said("a/b.sh")).as_deref(), Some("of a/b.sh"));
        assert_eq!(of(&Word::said("none.sh")), None);
        assert_eq!(of(&unsaid("$HOME", "/env.sh")), None);
        for folder in [
            "$(dirname \"$0\")",
            "$(cd -- \"$(dirname \"${BASH_SOURCE[0]}\")\" && pwd)",
        ] {
            assert_eq!(of(&unsaid(folder, "/env.sh")).as_deref(), Some("of env.sh"), "{folder}");
        }
    }

    #[test]
    fn files_of_another_folder_are_not_looked_for() {
        let beside = |_: &str| Some(String::new());
        let mut sources = Sources::of(&beside);
        sources.go(Some(&Word::unsaid("$(dirname $0)")));
        assert!(sources.begin(&Word::said("env.sh")).is_some());
        sources.end();
        sources.go(Some(&Word::said("elsewhere")));
        assert!(sources.begin(&Word::said("env.sh")).is_none());
        assert!(sources.begin(&unsaid("$(dirname $0)", "/env.sh")).is_some());
        assert_eq!(sources.location(3), "line 3 of env.sh");
    }

    #[test]
    fn files_that_run_themselves_end() {
        let beside = |_: &str| Some(String::new());
        let mut sources = Sources::of(&beside);
        assert!(sources.begin(&Word::said("a")).is_some());
        assert!(sources.begin(&Word::said("./a")).is_none());
        let begun = (0..100).filter(|number| sources.begin(&Word::said(&format!("b{number}"))).is_some());
        assert_eq!(begun.count(), DEEPEST - 1);
        let mut sources = sources.again();
        let one_by_one = (0..100).filter(|_| {
            let is_begun = sources.begin(&Word::said("a")).is_some();
            sources.end();
            is_begun
        });
        assert_eq!(one_by_one.count(), MOST);
    }
}
