//! [`commands_of`] a shell's script, as a shell splits them: quotes, comments, lines that go on, and the signs behind which another
//! command begins. Variables in them are what the script says up to there.

use super::blocks::Block;
use super::commands::{Commands, WordForm};
use super::expansion::{is_name, length_of};
use super::variables::Assigned;
use super::word::{Origin, Word, WordPart};

/// The commands of a script by their words.
pub(crate) fn commands_of(text: &str) -> Vec<Vec<Word>> {
    // What a loop or a function assigns is not known before it either.
    let counted = Splitter::of(Assigned::default()).split(text).variables;
    let of_script = counted.into_assigned();
    Splitter::of(of_script).split(text).into_ended()
}

/// A script up to a letter of it.
struct Splitter {
    commands: Commands,
    word: Option<Word>,
    form: WordForm,
    quote: Option<char>,
    /// Line at which the lines end that a command is given.
    document_end: Option<String>,
}

impl Splitter {
    fn of(assigned: Assigned) -> Self {
        Self {
            commands: Commands::of(assigned),
            word: None,
            form: WordForm::default(),
            quote: None,
            document_end: None,
        }
    }

    fn split(mut self, text: &str) -> Commands {
        let mut rest = text;
        while let Some(letter) = rest.chars().next() {
            rest = self.take(letter, rest);
        }
        self.end_command();
        self.commands
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The last command that begins with `x`, as a line.
    fn last(text: &str) -> String {
        let commands = commands_of(text);
        let mut lines = commands.iter().map(|words| {
            let words: Vec<String> = words.iter().map(Word::text).collect();
            words.join("|")
        });
        lines.rfind(|line| line.starts_with("x|")).unwrap_or_default()
    }

    #[test]
    fn variables_are_what_the_script_says_up_to_the_command() {
        for (text, line) in [
            ("A=1\nx $A", "x|1"),
            ("A=1; A=2; x $A; A=3", "x|2"),
            ("A='1 2' B=\"3 4\"\nx $A \"$B\" '$A' \\$A", "x|1|2|3 4|$A|$A"),
            ("export A=1 B=2\nx ${A}0 $B.", "x|10|2."),
            ("declare -r A=1\nx a$A$A", "x|a11"),
            ("A=b\nB=$A-$A\nx \"$B\"", "x|b-b"),
            ("A=\"--lr 1  --r 2 \"\nx $A end", "x|--lr|1|--r|2|end"),
            ("A=\nx $A \"$A\" end", "x||end"),
            ("A=1\nA=2 x $A", ""),
            ("A=1\nA+=2\nx $A", "x|12"),
            (
                "A=(--lr 1\n  # of a run\n  --name \"a b\")\nA+=(c)\nx \"${A[@]}\" end",
                "x|--lr|1|--name|a b|c|end",
            ),
            ("A=()\nx \"${A[@]}\" end", "x|end"),
            ("A=8\nx $((A * 2)) ${B:-$A}", "x|16|8"),
            (": ${A:=5}\nx $A", "x|5"),
            ("{ A=1; }\nx $A", "x|1"),
            ("export A=1 && B=2 && x $A$B", "x|12"),
            ("A=1\ncat <<EOF > f\nC=2\nEOF\nB=3\nx $A$B", "x|13"),
            ("A=1\nsbatch <<EOF\nx $A\nEOF", "x|1"),
        ] {
            assert_eq!(last(text), line, "{text}");
        }
        let with_own = commands_of("A=1\nA=2 x $A");
        let own: Vec<String> = with_own[0].iter().map(Word::text).collect();
        assert_eq!(own, ["A=2", "x", "1"]);
    }

    #[test]
    fn what_cannot_be_followed_stays_as_it_stands() {
        for (text, line) in [
            ("x $A", "x|$A"),
            ("A=$1\nx $A/b", "x|$1/b"),
            ("A=$(nproc)\nx $A", "x|$(nproc)"),
            ("x \"$@\" ${A[@]} `a b`", "x|$@|${A[@]}|`a b`"),
            ("if [ -z \"$B\" ]; then A=1; else A=2; fi\nx $A", "x|$A"),
            ("A=0\n[ -z \"$B\" ] && A=1\nx $A", "x|$A"),
            ("A=0\n[ -z \"$B\" ] ||\n  A=1\nx $A", "x|$A"),
            ("A=1\nfor B in 1 2; do x $A $B; A=2; done", "x|$A|$B"),
            ("A=1\nfor B in 1 2; do x $A $B; done", "x|1|$B"),
            ("[ -f f ] && A=1 && B=2\nx $B", "x|$B"),
            ("A=1\npython - <<-'END'\n  A=2\n  if (A):\n  END\nx $A", "x|$A"),
            ("A=1\n[ -n \"$B\" ] && { C=1; A=2; }\nx $A", "x|$A"),
            ("A=1\nwhile IFS= read -r A; do echo; done < f\nx $A", "x|$A"),
            ("A=1\ncase $1 in\n  --a) A=$2; shift ;;\n  *) x ;;\nesac\nx $A", "x|$A"),
            ("A=1\nf() { A=2; }\nf\nx $A", "x|$A"),
            ("A=1\nfunction f {\n  x $A\n}\nA=2\nf", "x|$A"),
            ("A=1\nf ()\n{\n  x $A\n}\nf", "x|1"),
            ("A=1\n(A=2; x $A)", "x|$A"),
            ("unset A\nx $A", "x|$A"),
            ("A=1\ndeclare -i A=2+3\nx $A", "x|$A"),
            ("A=1\nA[0]=2\nx $A", "x|$A"),
            ("A=1 B=$A\nx $B", "x|$A"),
            ("echo a | read A\nx $A", "x|$A"),
            ("A=(1 $B\n", ""),
        ] {
            assert_eq!(last(text), line, "{text}");
        }
    }

    #[test]
    fn patterns_and_keywords_are_no_words_of_a_command() {
        let text = "case $A in\n  --lr) B=1 ;;\n  b|c) x --name \"a (b)\" ;;\nesac";
        assert_eq!(last(text), "x|--name|a (b)");
        assert_eq!(last("if ! x a; then echo; fi"), "x|a");
        assert_eq!(last("f(){ x a; }; f"), "x|a");
    }
}
