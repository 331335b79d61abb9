//! Expansions in the text of a shell's script: `$NAME`, `${NAME:-default}`, `$((2 * A))`, `$(command)`, and where each ends.

/// The length of the expansion that a text begins with; `None` where its first letter stands for itself.
pub(super) fn length_of(text: &str) -> Option<usize> {
    let mut letters = text.chars();
    let is_dollar = match letters.next()? {
        '$' => true,
        '`' => false,
        _ => return None,
    };
    match letters.next()? {
        _ if !is_dollar => ticks(text),
        '(' => Some(1 + brackets(&text[1..], ['(', ')'])),
        '{' => Some(1 + brackets(&text[1..], ['{', '}'])),
        sign if sign.is_ascii_digit() || "@*#?!$".contains(sign) => Some(2),
        letter if begins_name(letter) => {
            let end = text[1..].find(|letter: char| !is_of_name(letter));
            Some(end.map_or(text.len(), |end| 1 + end))
        }
        _ => None,
    }
}

/// Whether a name of a variable may begin with a letter.
pub(super) fn begins_name(letter: char) -> bool {
    letter.is_ascii_alphabetic() || letter == '_'
}

/// Whether a letter may stand in the name of a variable.
pub(super) fn is_of_name(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || letter == '_'
}

/// Whether a text is the name of a variable.
pub(super) fn is_name(text: &str) -> bool {
    text.starts_with(begins_name) && text.chars().all(is_of_name)
}

/// Names of the variables in an expansion. Of a command there are none: what it prints is no variable.
pub(super) fn names_in(expansion: &str) -> Vec<&str> {
    let is_sum = expansion.starts_with("$((");
    let mut names = Vec::new();
    let mut rest = match !is_sum && (expansion.starts_with('`') || expansion.starts_with("$(")) {
        true => "",
        false => expansion,
    };
    while let Some(at) = rest.find(begins_name) {
        let (before, named) = rest.split_at(at);
        let end = named.find(|letter: char| !is_of_name(letter));
        let (name, behind) = named.split_at(end.unwrap_or(named.len()));
        let is_variable = before.ends_with(['$', '{']) || is_sum && !before.ends_with(is_of_name);
        names.extend(is_variable.then_some(name));
        rest = behind;
    }
    names
}

/// A sum with a sign in front of each name, as everywhere else.
pub(super) fn with_signs(sum: &str) -> String {
    let mut text = String::new();
    let mut before = ' ';
    let mut is_named = false;
    for letter in sum.chars() {
        if is_named && !is_of_name(letter) {
            text.push(')');
            is_named = false;
        }
        if begins_name(letter) && !is_of_name(before) && !['$', '{'].contains(&before) {
            // A value with a sign is one number all the same.
            text.push_str("($");
            is_named = true;
        }
        text.push(letter);
        before = letter;
    }
    if is_named {
        text.push(')');
    }
    text
}

/// The length of a text up to the end of the brackets that it begins with; all of it where they do not end.
fn brackets(text: &str, [open, close]: [char; 2]) -> usize {
    let mut depth = 0_usize;
    let mut quote = None;
    let mut letters = text.char_indices();
    while let Some((at, letter)) = letters.next() {
        match (quote, letter) {
            (Some(own), letter) if own == letter => quote = None,
            (Some('\''), _) => {}
            (_, '\\') => {
                letters.next();
            }
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(letter),
            (None, letter) if letter == open => depth += 1,
            (None, letter) if letter == close => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return at + 1;
                }
            }
            (None, _) => {}
        }
    }
    text.len()
}

/// The length of a command between ticks; `None` where there is no second one.
fn ticks(text: &str) -> Option<usize> {
    let mut letters = text.char_indices().skip(1);
    while let Some((at, letter)) = letters.next() {
        match letter {
            '`' => return Some(at + 1),
            '\\' => {
                letters.next();
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expansions_end_where_a_shell_ends_them() {
        for (text, expansion) in [
            ("$LR_1/x", Some("$LR_1")),
            ("$1st", Some("$1")),
            ("$@", Some("$@")),
            ("${A:-${B:-1}} }", Some("${A:-${B:-1}}")),
            ("${A:-'}'}b", Some("${A:-'}'}")),
            ("$((2 * (A + 1))) )", Some("$((2 * (A + 1)))")),
            (
                "$(dirname \"$(cd \"$0\"; pwd)\")/x",
                Some("$(dirname \"$(cd \"$0\"; pwd)\")"),
            ),
            ("$(a \\) b) c", Some("$(a \\) b)")),
            ("`nproc` x", Some("`nproc`")),
            ("`a \\` b` c", Some("`a \\` b`")),
            ("$(never", Some("$(never")),
            ("`never", None),
            ("$", None),
            ("$ 5", None),
            ("$é", None),
            ("x", None),
        ] {
            assert_eq!(length_of(text).map(|length| &text[..length]), expansion, "{text}");
        }
    }

    #[test]
    fn variables_of_an_expansion_are_those_that_it_stands_for() {
        let cases: [(&str, &[&str]); 10] = [
            ("$LR", &["LR"]),
            ("${LR_1:-1e-4}", &["LR_1"]),
            ("${A:-$B}", &["A", "B"]),
            ("${ARGS[@]}", &["ARGS"]),
            ("$((2 * N + ${M:-3} + 0x1F))", &["N", "M"]),
            ("$1", &[]),
            ("$@", &[]),
            ("$(nproc $A)", &[]),
            ("`nproc`", &[]),
            ("${é:-a}", &[]),
        ];
        for (expansion, names) in cases {
            assert_eq!(names_in(expansion), names, "{expansion}");
        }
    }

    #[test]
    fn names_in_a_sum_are_expansions_too() {
        assert_eq!(with_signs("2*A + $B_1/${C:-3}"), "2*($A) + $B_1/${C:-3}");
        assert_eq!(with_signs("A"), "($A)");
        assert_eq!(with_signs("0x1F"), "0x1F");
    }
}
