//! [`Commands`] of a shell's script, taken word by word: assignments, lists in brackets, keywords and heads of functions.

use super::blocks::{Block, Blocks};
use super::expansion::{begins_name, is_of_name};
use super::variables::{Assigned, Value, Variables};
use super::word::Word;

/// Commands that assign the words behind them.
const DECLARE: &[&str] = &["export", "declare", "local", "readonly", "typeset"];

/// Letters of their options by which a value is not the word that stands there.
const CHANGED: &[char] = &['A', 'i', 'l', 'n', 'u'];

/// Commands that give the variables whose names stand behind them values which cannot be followed.
const CHANGE: &[&str] = &[
    "read",
    "readarray",
    "mapfile",
    "getopts",
    "unset",
    "let",
    "printf",
    "for",
    "select",
];

/// Passages that may set variables and are not followed, at most so many that are kept.
const MOST_UNREAD: usize = 16;

/// A command of a script.
#[derive(Debug)]
pub(crate) struct Command {
    pub(crate) words: Vec<Word>,
    /// Passages in front of it that are not followed.
    pub(super) unread: usize,
}

/// Words of a script that may set variables and are not followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unread {
    pub(crate) words: String,
    /// The line that they end in.
    pub(crate) location: String,
}

/// The commands of a script up to a word of it.
#[derive(Debug)]
pub(super) struct Commands {
    pub(super) variables: Variables,
    pub(super) blocks: Blocks,
    /// What the command that ended last takes from elsewhere.
    pub(super) taken: Option<Taken>,
    ended: Vec<Command>,
    unread: Vec<Unread>,
    words: Vec<Word>,
    /// Assignments among the words.
    assignments: Vec<Assignment>,
    /// Words that are no assignments.
    others: usize,
    /// What the first of them is.
    opening: Opening,
    /// List in brackets whose words are being read.
    list: Option<OpenList>,
    /// Whether the command runs only by the outcome of the one before it, or beside it.
    is_joined: bool,
    function: FunctionHead,
}

/// What a word is, by its first sign `=`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) enum WordForm {
    /// Word without one.
    #[default]
    Unsigned,
    Assigns {
        name: String,
        is_append: bool,
    },
    Other,
}

/// A variable with its new value.
#[derive(Debug)]
struct Assignment {
    name: String,
    is_append: bool,
    value: Value,
}

/// The beginning of an assignment of a list.
#[derive(Debug)]
struct OpenList {
    name: String,
    is_append: bool,
    words: Vec<Word>,
}

/// What a command takes from elsewhere, with its words.
#[derive(Debug)]
pub(super) struct Taken {
    pub(super) from: Elsewhere,
    pub(super) words: String,
    /// Whether the command runs only by the outcome of the one before it, or beside it.
    pub(super) is_joined: bool,
}

/// Source that a command takes from.
#[derive(Debug)]
pub(super) enum Elsewhere {
    /// A file whose commands run here.
    File(Word),
    /// A text that may assign.
    Text,
    /// Another folder, to which the script goes.
    Folder(Option<Word>),
}

/// What stays of the commands around a file while its own run.
#[derive(Debug)]
pub(super) struct AroundFile {
    blocks: usize,
    ended: usize,
    is_joined: bool,
    function: FunctionHead,
}

/// What the first word of a command does to variables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Opening {
    #[default]
    Nothing,
    Declares,
    Changes,
}

/// The head of a function, as far as it was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum FunctionHead {
    #[default]
    Absent,
    BeforeName,
    BeforeBody,
}

impl Commands {
    /// No commands yet, of a script of these assignments.
    pub(super) fn of(assigned: Assigned) -> Self {
        Self {
            variables: Variables::of(assigned),
            blocks: Blocks::default(),
            taken: None,
            ended: Vec::new(),
            unread: Vec::new(),
            words: Vec::new(),
            assignments: Vec::new(),
            others: 0,
            opening: Opening::default(),
            list: None,
            is_joined: false,
            function: FunctionHead::default(),
        }
    }

    /// The variables, the commands that have ended, and what is not followed of the script.
    pub(super) fn into_parts(self) -> (Variables, Vec<Command>, Vec<Unread>) {
        (self.variables, self.ended, self.unread)
    }

    /// Notes that words which may set variables are not followed.
    pub(super) fn pass_over(&mut self, words: String, location: String) {
        if self.unread.len() < MOST_UNREAD {
            self.unread.push(Unread { words, location });
        }
    }

    /// Begins a file whose commands run here; gives what [`Self::end_file`] goes on with.
    pub(super) fn begin_file(&mut self, is_joined: bool) -> AroundFile {
        let around = AroundFile {
            blocks: self.blocks.count(),
            ended: self.ended.len(),
            is_joined: std::mem::take(&mut self.is_joined),
            function: std::mem::take(&mut self.function),
        };
        self.blocks.open(match is_joined {
            true => Block::JoinedFile,
            false => Block::File,
        });
        around
    }

    /// Ends a file, of which the assignments stay.
    pub(super) fn end_file(&mut self, around: AroundFile) {
        let AroundFile {
            blocks,
            ended,
            is_joined,
            function,
        } = around;
        self.blocks.close_to(blocks);
        self.ended.truncate(ended);
        (self.is_joined, self.function) = (is_joined, function);
    }

    /// Whether a name with `=` behind it would be assigned.
    pub(super) fn may_assign(&self) -> bool {
        self.list.is_none() && (self.others == 0 || self.opening == Opening::Declares)
    }

    /// Whether a command that is nothing but assignments has one already. Its value counts from the end of the command on here.
    pub(super) fn has_assigned(&self) -> bool {
        self.others == 0 && !self.assignments.is_empty()
    }

    /// Whether no word of a command was taken.
    pub(super) fn is_at_beginning(&self) -> bool {
        self.words.is_empty() && self.list.is_none()
    }

    pub(super) fn is_in_list(&self) -> bool {
        self.list.is_some()
    }

    pub(super) fn open_list(&mut self, name: String, is_append: bool) {
        self.list = Some(OpenList {
            name,
            is_append,
            words: Vec::new(),
        });
    }

    pub(super) fn close_list(&mut self) {
        let Some(OpenList { name, is_append, words }) = self.list.take() else {
            return;
        };
        self.assignments.push(Assignment {
            name,
            is_append,
            value: Value::List(words),
        });
    }

    /// The words that an expansion stands for here; `None` where the script does not say it.
    pub(super) fn expand(&mut self, expansion: &str) -> Option<Vec<Word>> {
        self.variables.is_in_function = self.blocks.are_called();
        self.variables.expand(expansion)
    }

    /// Takes a word of this form.
    pub(super) fn take(&mut self, word: Word, form: WordForm) {
        if let Some(list) = &mut self.list {
            list.words.push(word);
            return;
        }
        if let WordForm::Assigns { name, is_append } = form {
            let value = Value::One(word.behind(name.len() + usize::from(is_append) + 1));
            self.assignments.push(Assignment { name, is_append, value });
            self.words.push(word);
            return;
        }
        let letters = word.letters().unwrap_or_default();
        if self.words.is_empty() && self.is_keyword(letters) {
            return;
        }
        if self.others == 0 {
            self.opening = match letters {
                name if DECLARE.contains(&name) => Opening::Declares,
                name if CHANGE.contains(&name) => Opening::Changes,
                _ => Opening::Nothing,
            };
        } else if letters == "()" && self.words.len() == 1 {
            self.function = FunctionHead::BeforeBody;
            self.clear();
            return;
        }
        self.others += 1;
        self.words.push(word);
    }

    /// Whether a word that begins a command is a keyword, or the head of a function, and no part of it. What it opens or ends is noted.
    fn is_keyword(&mut self, word: &str) -> bool {
        match word {
            "then" | "do" | "else" | "elif" | "!" => {}
            "if" | "while" | "until" => self.blocks.open(Block::Branch),
            "fi" | "done" | "esac" | "}" => self.blocks.close(word),
            "for" | "select" => {
                self.blocks.open(Block::Branch);
                return false;
            }
            "case" => {
                self.blocks.open(Block::Case);
                return false;
            }
            "{" => {
                let head = std::mem::take(&mut self.function);
                self.blocks.open(match head {
                    FunctionHead::BeforeBody => Block::Function,
                    _ if self.is_joined => Block::JoinedGroup,
                    _ => Block::Group,
                });
            }
            "function" => self.function = FunctionHead::BeforeName,
            head if head.ends_with("(){") => self.blocks.open(Block::Function),
            head if head.ends_with("()") || self.function == FunctionHead::BeforeName => {
                self.function = FunctionHead::BeforeBody;
            }
            _ => return false,
        }
        true
    }

    /// Ends a command.
    pub(super) fn end(&mut self) {
        if let Some(list) = self.list.take() {
            self.variables.lose(&list.name);
        }
        if self.words.is_empty() && self.assignments.is_empty() {
            return;
        }
        self.taken = self.taken_by_command();
        let assignments = std::mem::take(&mut self.assignments);
        if self.others == 0 || self.opening == Opening::Declares {
            self.assign(assignments);
        } else if self.opening == Opening::Changes {
            for word in &self.words[1..] {
                let name = name_before(word.letters().unwrap_or_default());
                if !name.is_empty() {
                    self.variables.lose(name);
                }
            }
        }
        if self.others > 0 {
            self.ended.push(Command {
                words: std::mem::take(&mut self.words),
                // A function runs behind what stands further down.
                unread: match self.blocks.are_called() {
                    true => MOST_UNREAD,
                    false => self.unread.len(),
                },
            });
        }
        self.clear();
        self.is_joined = false;
    }

    /// Ends a command behind which another one runs where it succeeds, as assignments do.
    pub(super) fn end_before_and(&mut self) {
        let succeeds = !self.assignments.is_empty() && self.may_assign();
        let is_joined = self.is_joined || !succeeds;
        self.end();
        self.is_joined = is_joined;
    }

    /// Ends a command behind which another one runs where it fails, or beside it.
    pub(super) fn end_before_or(&mut self) {
        self.end();
        self.is_joined = true;
    }

    /// What the command takes from elsewhere, by its first word.
    fn taken_by_command(&self) -> Option<Taken> {
        let from = match self.words.first()?.letters()? {
            "source" | "." => Elsewhere::File(self.words.get(1)?.clone()),
            "eval" => Elsewhere::Text,
            "cd" | "pushd" | "popd" => Elsewhere::Folder(self.words.get(1).cloned()),
            name if DECLARE.contains(&name) && self.words.iter().any(Word::is_unsaid) => Elsewhere::Text,
            _ => return None,
        };
        let words: Vec<String> = self.words.iter().map(Word::text).collect();
        Some(Taken {
            from,
            words: words.join(" "),
            is_joined: self.is_joined,
        })
    }

    fn assign(&mut self, assignments: Vec<Assignment>) {
        let changes = |word: &Word| {
            let letters = word.letters().unwrap_or_default();
            letters.starts_with('-') && letters.contains(CHANGED)
        };
        let is_certain = !self.is_joined && self.blocks.are_certain() && !self.words.iter().any(changes);
        for Assignment { name, is_append, value } in assignments {
            match (is_certain, is_append) {
                (false, _) => self.variables.lose(&name),
                (true, true) => self.variables.append(&name, value),
                (true, false) => self.variables.assign(&name, value),
            }
        }
    }

    /// Leaves out the words of a command, as those in front of the end of a pattern.
    pub(super) fn clear(&mut self) {
        self.words.clear();
        self.assignments.clear();
        self.others = 0;
        self.opening = Opening::default();
    }
}

/// The name of a variable that a word begins with.
fn name_before(word: &str) -> &str {
    let end = word.find(|letter: char| !is_of_name(letter)).unwrap_or(word.len());
    let name = &word[..end];
    match name.starts_with(begins_name) {
        true => name,
        false => "",
    }
}
