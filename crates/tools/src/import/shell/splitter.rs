//! [`Splitter`] of a shell's script, as a shell splits it into commands: quotes, comments, lines that go on, and the signs behind which
//! another command begins. Variables in them are what the script says up to there.

use super::blocks::Block;
use super::commands::{Commands, Elsewhere, Taken, WordForm};
use super::expansion::{is_name, length_of};
use super::sources::Sources;
use super::variables::Assigned;
use super::word::{Origin, Word, WordPart};

/// A script up to a letter of it.
pub(super) struct Splitter<'r> {
    pub(super) commands: Commands,
    pub(super) sources: Sources<'r>,
    word: Option<Word>,
    form: WordForm,
    quote: Option<char>,
    /// Line at which the lines end that a command is given.
    document_end: Option<String>,
    /// Line of the text that is read.
    line: usize,
}

impl<'r> Splitter<'r> {
    /// The beginning of a script of these assignments.
    pub(super) fn of(assigned: Assigned, sources: Sources<'r>) -> Self {
        Self {
            commands: Commands::of(assigned),
            sources,
            word: None,
            form: WordForm::default(),
            quote: None,
            document_end: None,
            line: 1,
        }
    }

    /// Splits a text to its end.
    pub(super) fn split(&mut self, text: &str) {
        let mut rest = text;
        while let Some(letter) = rest.chars().next() {
            let behind = self.take(letter, rest);
            let read = rest.len() - behind.len();
            self.line += rest[..read].matches('\n').count();
            rest = behind;
        }
        self.end_command();
    }

    /// Takes the letter that a text begins with; gives what is left to read.
    fn take<'t>(&mut self, letter: char, text: &'t str) -> &'t str {
        let rest = &text[letter.len_utf8()..];
        match (self.quote, letter) {
            (Some(own), letter) if own == letter => self.quote = None,
            (Some('\''), letter) => self.push(letter),
            (_, '\\') => return self.escaped(rest),
            // Quotes of bash.
            (None, '$') if rest.starts_with(['\'', '"']) => {}
            (_, '$' | '`') => return self.expansion(letter, text),
            (Some(_), letter) => self.push(letter),
            (None, '\'' | '"') => {
                self.quote = Some(letter);
                self.word.get_or_insert_default();
            }
            (None, '#') if self.word.is_none() => return &rest[rest.find('\n').unwrap_or(rest.len())..],
            (None, '\n') => return self.end_line(rest),
            (None, ';' | '|' | '&') => return self.sign(letter, rest),
            (None, '<' | '>') => {
                // The number of a stream is no word.
                self.word.take_if(|word| is_stream(word));
                self.end_command();
                if let Some(end) = document_end_of(text) {
                    self.document_end = Some(end.to_owned());
                    self.commands.blocks.open(Block::Document);
                }
                return &rest[rest.find(['\n', ';', '|', '&']).unwrap_or(rest.len())..];
            }
            (None, ')') if self.ends_with('(') => self.push(letter),
            (None, '(') if self.begins_list() => self.open_list(),
            (None, '(') if self.begins_command() => self.commands.blocks.open(Block::Subshell),
            (None, ')') if self.commands.is_in_list() => {
                self.end_word();
                self.commands.close_list();
            }
            (None, ')') if self.commands.blocks.are_in(Block::Subshell) => {
                self.end_command();
                self.commands.blocks.close(")");
            }
            // What stands before it is a pattern.
            (None, ')') if self.commands.blocks.are_in(Block::Case) => {
                self.word = None;
                self.form = WordForm::default();
                self.commands.clear();
            }
            (None, '=') => self.equals(),
            (None, letter) if letter.is_whitespace() => self.end_word(),
            (None, letter) => self.push(letter),
        }
        rest
    }

    /// Takes what stands behind a backslash: nothing of the end of a line.
    fn escaped<'t>(&mut self, rest: &'t str) -> &'t str {
        let Some(letter) = rest.chars().next() else { return rest };
        let behind = &rest[letter.len_utf8()..];
        match letter {
            '\n' => return behind,
            '\r' => return behind.strip_prefix('\n').unwrap_or(behind),
            '"' | '\\' | '$' | '`' => {}
            _ if self.quote.is_some() => self.push('\\'),
            _ => {}
        }
        self.push(letter);
        behind
    }

    /// Ends a line. An option on a line of its own belongs to the command before it.
    fn end_line<'t>(&mut self, rest: &'t str) -> &'t str {
        let behind = rest.trim_start();
        match self.commands.is_in_list() || behind.starts_with("--") {
            true => self.end_word(),
            false => self.end_command(),
        }
        let line = behind.lines().next().unwrap_or_default();
        if self
            .document_end
            .take_if(|end| end.as_str() == line.trim_end())
            .is_some()
        {
            self.commands.blocks.close_document();
            return &behind[line.len()..];
        }
        behind
    }

    /// Takes a sign behind which another command begins.
    fn sign<'t>(&mut self, sign: char, rest: &'t str) -> &'t str {
        self.end_word();
        let behind = rest.strip_prefix(sign);
        match (sign, behind) {
            ('|', _) => self.commands.end_before_or(),
            ('&', Some(_)) => self.commands.end_before_and(),
            _ => self.commands.end(),
        }
        self.follow();
        behind.unwrap_or(rest)
    }

    /// Takes an expansion that a text begins with, or the letter where it is none.
    fn expansion<'t>(&mut self, letter: char, text: &'t str) -> &'t str {
        let Some(length) = length_of(text) else {
            self.push(letter);
            return &text[letter.len_utf8()..];
        };
        let (expansion, rest) = text.split_at(length);
        let is_late = self.commands.has_assigned() && (self.is_assignment() || self.commands.is_in_list());
        let found = self.commands.expand(expansion).filter(|_| !is_late);
        self.put(found.unwrap_or_else(|| vec![Word::unsaid(expansion)]));
        rest
    }

    /// Puts in what an expansion stands for, which is split into words where it stands without quotes.
    fn put(&mut self, words: Vec<Word>) {
        let is_whole = self.quote.is_some() || self.is_assignment();
        if words.is_empty() {
            self.word.take_if(|word| word.is_empty());
        }
        for (at, word) in words.into_iter().enumerate() {
            if at > 0 {
                self.end_word();
            }
            for part in word.into_parts() {
                match is_whole || part.origin == Origin::Nothing {
                    true => self.word.get_or_insert_default().extend(part),
                    false => self.split_part(&part),
                }
            }
        }
    }

    fn split_part(&mut self, part: &WordPart) {
        if part.text.starts_with(char::is_whitespace) {
            self.end_word();
        }
        for (at, text) in part.text.split_whitespace().enumerate() {
            if at > 0 {
                self.end_word();
            }
            self.word.get_or_insert_default().extend(WordPart {
                text: text.to_owned(),
                origin: part.origin.clone(),
            });
        }
        if part.text.ends_with(char::is_whitespace) {
            self.end_word();
        }
    }

    fn push(&mut self, letter: char) {
        self.word.get_or_insert_default().push(letter);
    }

    /// Takes the sign of an assignment, which it is behind a name in front of a command or of one that declares.
    fn equals(&mut self) {
        if self.form == WordForm::Unsigned {
            let letters = self.word.as_ref().and_then(Word::letters);
            let letters = letters.filter(|_| self.commands.may_assign()).unwrap_or_default();
            let name = letters.strip_suffix('+').unwrap_or(letters);
            if is_name(name) {
                self.form = WordForm::Assigns {
                    name: name.to_owned(),
                    is_append: name.len() < letters.len(),
                };
            } else {
                if let Some((name, _)) = letters.split_once('[').filter(|(name, _)| is_name(name)) {
                    self.commands.variables.lose(name);
                }
                self.form = WordForm::Other;
            }
        }
        self.push('=');
    }

    fn is_assignment(&self) -> bool {
        matches!(self.form, WordForm::Assigns { .. })
    }

    /// Whether a bracket begins the list that a variable is assigned.
    fn begins_list(&self) -> bool {
        self.is_assignment() && self.ends_with('=')
    }

    /// Whether the word is one of letters, of which this is the last one.
    fn ends_with(&self, letter: char) -> bool {
        let letters = self.word.as_ref().and_then(Word::letters);
        letters.is_some_and(|letters| letters.ends_with(letter))
    }

    /// Whether no letter of a command was taken.
    fn begins_command(&self) -> bool {
        self.word.is_none() && self.commands.is_at_beginning()
    }

    fn open_list(&mut self) {
        self.word = None;
        if let WordForm::Assigns { name, is_append } = std::mem::take(&mut self.form) {
            self.commands.open_list(name, is_append);
        }
    }

    fn end_word(&mut self) {
        let form = std::mem::take(&mut self.form);
        if let Some(word) = self.word.take() {
            self.commands.take(word, form);
        }
    }

    fn end_command(&mut self) {
        self.end_word();
        self.commands.end();
        self.follow();
    }

    /// Follows the command that has ended into the file whose commands it runs here, or notes that it is not followed.
    fn follow(&mut self) {
        let Some(Taken { from, words, is_joined }) = self.commands.taken.take() else {
            return;
        };
        let text = match &from {
            Elsewhere::File(name) => self.sources.begin(name),
            Elsewhere::Text => None,
            Elsewhere::Folder(folder) => return self.sources.go(folder.as_ref()),
        };
        let Some(text) = text else {
            self.commands.pass_over(words, self.sources.location(self.line));
            return;
        };
        let around = self.commands.begin_file(is_joined);
        let (quote, document_end) = (self.quote.take(), self.document_end.take());
        let line = std::mem::replace(&mut self.line, 1);
        self.split(&text);
        (self.quote, self.document_end, self.line) = (quote, document_end, line);
        self.commands.end_file(around);
        self.sources.end();
    }
}

/// Whether a word in front of `<` or `>` is the number of a stream.
fn is_stream(word: &Word) -> bool {
    let letters = word.letters();
    letters.is_some_and(|letters| letters.chars().all(|digit| digit.is_ascii_digit()))
}

/// The line at which the lines end that a text with `<<` begins; `None` of other texts.
fn document_end_of(text: &str) -> Option<&str> {
    let word = text.strip_prefix("<<").filter(|word| !word.starts_with('<'))?;
    let word = word.strip_prefix('-').unwrap_or(word).trim_start_matches([' ', '\t']);
    let end = word.find(|letter: char| letter.is_whitespace() || ";|&<>)".contains(letter));
    let word = word[..end.unwrap_or(word.len())].trim_matches(['"', '\'', '\\']);
    (!word.is_empty()).then_some(word)
}
