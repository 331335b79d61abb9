//! [`ShellScript`]: a script of a shell by its commands.

use super::commands::{Command, Unread};
use super::expansion::names_in;
use super::sources::{Beside, Sources};
use super::splitter::Splitter;
use super::variables::Assigned;
use super::word::Word;

/// A script, taken apart.
#[derive(Debug)]
pub(crate) struct ShellScript {
    pub(crate) commands: Vec<Command>,
    unread: Vec<Unread>,
    assigned: Assigned,
}

impl ShellScript {
    /// The script of a text, with files that lie beside it.
    pub(crate) fn of(text: &str, beside: Beside<'_>) -> Self {
        // What a loop or a function assigns is not known before it either.
        let mut counting = Splitter::of(Assigned::default(), Sources::of(beside));
        counting.split(text);
        let (counted, sources) = (counting.commands.variables.into_assigned(), counting.sources);
        let mut splitter = Splitter::of(counted, sources.again());
        splitter.split(text);
        let (variables, commands, unread) = splitter.commands.into_parts();
        Self {
            commands,
            unread,
            assigned: variables.into_assigned(),
        }
    }

    /// What stands before a command, may set variables and is not followed.
    pub(crate) fn unread_before(&self, command: &Command) -> &[Unread] {
        &self.unread[..command.unread.min(self.unread.len())]
    }

    /// Variables of which a word lacks the values, as the script assigns them nowhere.
    pub(crate) fn lacking<'w>(&self, word: &'w Word) -> impl Iterator<Item = &'w str> {
        word.unsaid_parts()
            .flat_map(names_in)
            .filter(move |name| !self.assigned.has(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Files beside the scripts.
    fn beside(path: &str) -> Option<String> {
        let text = match path {
            "env.sh" => "#!/bin/sh\nexport A=1 # one\nB=\"$A 2\"\nx --hidden\n",
            "circle.sh" => "A=1\n. ./circle.sh\nB=$A",
            "branch.sh" => "if true; then\nA=1\nfi\nsource env.sh; C='3",
            _ => return None,
        };
        Some(text.to_owned())
    }

    fn script_of(text: &str) -> ShellScript {
        ShellScript::of(text, &beside)
    }

    /// The last command that begins with `x`, as a line.
    fn last(text: &str) -> String {
        let script = script_of(text);
        let mut lines = script.commands.iter().map(|command| {
            let words: Vec<String> = command.words.iter().map(Word::text).collect();
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
        let with_own = script_of("A=1\nA=2 x $A");
        let own: Vec<String> = with_own.commands[0].words.iter().map(Word::text).collect();
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

    #[test]
    fn files_beside_the_script_assign_in_their_turn() {
        for (text, line) in [
            ("source env.sh\nx $A \"$B\"", "x|1|1 2"),
            ("A=0\n. ./env.sh; x $A", "x|1"),
            (". env.sh\nA=3\nx $A", "x|3"),
            ("set -a; source \"$(dirname \"$0\")/env.sh\" > /dev/null; x $A", "x|1"),
            ("source env.sh || exit 1\nx $A", "x|1"),
            ("source circle.sh\nx $A$B", "x|11"),
            ("source branch.sh\nx $A \"$B\" $C", "x|$A|$A 2|3"),
            ("{ source env.sh; }\nx $A", "x|1"),
            ("[ -f env.sh ] && source env.sh\nx $A", "x|$A"),
            ("A=0\nif [ -f env.sh ]; then . env.sh; fi\nx $A", "x|$A"),
            ("f() { source env.sh; }\nf\nx $A", "x|$A"),
            ("(source env.sh)\nx $A", "x|$A"),
            ("cd elsewhere\nsource env.sh\nx $A", "x|$A"),
            ("cd \"$(dirname \"$0\")\"\nsource env.sh\nx $A", "x|1"),
            ("source none.sh\nx $A", "x|$A"),
            ("source $1\nx $A", "x|$A"),
        ] {
            assert_eq!(last(text), line, "{text}");
        }
    }

    #[test]
    fn what_may_set_a_variable_and_is_not_followed_stands_with_its_line() {
        let text = "eval \"$(some hook)\"\n\nsource env.sh\nx \\\n  1\n\nsource none.sh\nexport $(cat f)\nx 2\n\
                    f() { x 3; }\n. $C/d.sh\nsource circle.sh\n";
        let script = script_of(text);
        let before = |number: usize| {
            let mut all = script.commands.iter().filter(|command| command.words[0].text() == "x");
            let unread = script.unread_before(all.nth(number).unwrap());
            let told = unread
                .iter()
                .map(|Unread { words, location }| format!("{words}: {location}"));
            told.collect::<Vec<_>>().join("; ")
        };
        let first = "eval $(some hook): line 1";
        assert_eq!(before(0), first);
        let second = format!("{first}; source none.sh: line 7; export $(cat f): line 8");
        assert_eq!(before(1), second);
        assert_eq!(
            before(2),
            format!("{second}; . $C/d.sh: line 11; . ./circle.sh: line 2 of circle.sh")
        );
    }

    #[test]
    fn variables_that_a_word_lacks_are_those_that_the_script_assigns_nowhere() {
        let script = script_of("source env.sh\nfor L in 1 2; do\nx --a $A$L$C --b $((N * 2)) $(cat $D)\ndone");
        let command = script.commands.iter().find(|command| command.words[0].text() == "x");
        let words = &command.unwrap().words;
        let lacking = words
            .iter()
            .map(|word| script.lacking(word).collect::<Vec<_>>().join(" "));
        let lacking: Vec<String> = lacking.collect();
        assert_eq!(lacking, ["", "", "C", "", "N", ""]);
    }
}
