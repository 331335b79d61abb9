//! [`Word`]: a word of a command, with what says each part of it.

use std::rc::Rc;

/// A word of a command, with the values of variables in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Word {
    parts: Vec<WordPart>,
}

/// Letters of a word that have one origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WordPart {
    pub(super) text: String,
    pub(super) origin: Origin,
}

/// What says a part of a word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// The script, by letters or by a variable.
    Script,
    /// The script, for where whoever starts it says nothing else, by this expansion.
    Default(Rc<str>),
    /// Nothing: the part is the expansion itself.
    Nothing,
}

impl Word {
    /// A word that the script says.
    pub(super) fn said(text: &str) -> Self {
        Self::of(text, Origin::Script)
    }

    /// A word that the script says by an expansion, for where it is given nothing else.
    pub(super) fn by_default(text: &str, expansion: &str) -> Self {
        Self::of(text, Origin::Default(expansion.into()))
    }

    /// A word that the script does not say, as the expansion of it.
    pub(super) fn unsaid(expansion: &str) -> Self {
        Self::of(expansion, Origin::Nothing)
    }

    fn of(text: &str, origin: Origin) -> Self {
        let text = text.to_owned();
        Self {
            parts: vec![WordPart { text, origin }],
        }
    }

    /// The word as it is read: what the script does not say stands in it as its expansion.
    pub(crate) fn text(&self) -> String {
        self.parts.iter().map(|part| part.text.as_str()).collect()
    }

    /// Whether the script says all of the word.
    pub(crate) fn is_said(&self) -> bool {
        self.parts.iter().all(|part| part.origin != Origin::Nothing)
    }

    /// Whether the script says no letter of the word.
    pub(crate) fn is_unsaid(&self) -> bool {
        !self.parts.is_empty() && self.parts.iter().all(|part| part.origin == Origin::Nothing)
    }

    /// Whether the word stands for any number of words that the script does not say, as `"$@"` does.
    pub(crate) fn is_unsaid_list(&self) -> bool {
        let is_list = |text: &str| {
            let begins = ["$@", "$*", "${@", "${*"].iter().any(|start| text.starts_with(start));
            begins || text.ends_with("[@]}") || text.ends_with("[*]}")
        };
        self.is_unsaid() && self.parts.iter().any(|part| is_list(&part.text))
    }

    /// Expansions of the word that are read as their defaults.
    pub(crate) fn defaults(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().filter_map(|part| match &part.origin {
            Origin::Default(expansion) => Some(&**expansion),
            Origin::Script | Origin::Nothing => None,
        })
    }

    /// The word where it is one of letters alone.
    pub(super) fn letters(&self) -> Option<&str> {
        match self.parts.as_slice() {
            [
                WordPart {
                    text,
                    origin: Origin::Script,
                },
            ] => Some(text.as_str()),
            _ => None,
        }
    }

    /// The expansion that the word begins with, where the script does not say it, and the letters behind it; `None` of other words.
    pub(super) fn behind_unsaid(&self) -> Option<(&str, &str)> {
        match self.parts.as_slice() {
            [
                WordPart {
                    text: expansion,
                    origin: Origin::Nothing,
                },
                WordPart {
                    text: letters,
                    origin: Origin::Script,
                },
            ] => Some((expansion.as_str(), letters.as_str())),
            _ => None,
        }
    }

    /// Expansions of the word that the script does not say.
    pub(super) fn unsaid_parts(&self) -> impl Iterator<Item = &str> {
        let parts = self.parts.iter().filter(|part| part.origin == Origin::Nothing);
        parts.map(|part| part.text.as_str())
    }

    /// Whether there is no letter in the word.
    pub(super) fn is_empty(&self) -> bool {
        self.parts.iter().all(|part| part.text.is_empty())
    }

    /// What a copy of the word takes, in bytes, about.
    pub(super) fn size(&self) -> usize {
        1 + self.parts.iter().map(|part| 1 + part.text.len()).sum::<usize>()
    }

    pub(super) fn push(&mut self, letter: char) {
        match self.parts.last_mut() {
            Some(last) if last.origin == Origin::Script => last.text.push(letter),
            _ => self.parts.push(WordPart {
                text: letter.into(),
                origin: Origin::Script,
            }),
        }
    }

    pub(super) fn extend(&mut self, part: WordPart) {
        match self.parts.last_mut() {
            Some(last) if last.origin == Origin::Script && part.origin == Origin::Script => {
                last.text.push_str(&part.text)
            }
            _ => self.parts.push(part),
        }
    }

    /// Puts another word behind this one.
    pub(super) fn append(&mut self, other: Self) {
        other.parts.into_iter().for_each(|part| self.extend(part));
    }

    pub(super) fn into_parts(self) -> Vec<WordPart> {
        self.parts
    }

    /// The word behind its first bytes, which are letters.
    pub(super) fn behind(&self, bytes: usize) -> Self {
        let mut parts = self.parts.clone();
        if let Some(first) = parts.first_mut() {
            first.text = first.text.get(bytes..).unwrap_or_default().to_owned();
        }
        parts.retain(|part| !part.text.is_empty() || part.origin != Origin::Script);
        Self { parts }
    }
}
