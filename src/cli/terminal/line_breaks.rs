//! Text in lines that a terminal does not break in the middle of words.
//!
//! A line that is too long first loses blanks between its columns, and then goes on below, a little further to the right. A command
//! to copy stays in one piece however long it is: what a terminal breaks by itself is still one line to whoever copies it.

use std::borrow::Cow;

/// How much further to the right a line goes on.
const FURTHER: usize = 2;

/// Blanks that stay between two columns at least.
const BETWEEN_COLUMNS: usize = 2;

/// How a command to copy begins.
const COMMAND: &str = "peft-tune ";

/// The text in `width` columns of characters; as it is where that is not known, and where it is JSON.
pub(in crate::cli) fn fitted(text: &str, width: Option<usize>) -> Cow<'_, str> {
    match width {
        Some(width) if !is_json(text) && text.lines().any(|line| columns(line) > width) => {
            let mut lines = String::with_capacity(text.len());
            for line in text.split_inclusive('\n') {
                let (line, end) = line.strip_suffix('\n').map_or((line, ""), |line| (line, "\n"));
                match columns(line) > width && !is_drawn(line) {
                    true => lines.push_str(&fitted_line(line, width)),
                    false => lines.push_str(line),
                }
                lines.push_str(end);
            }
            Cow::Owned(lines)
        }
        _ => Cow::Borrowed(text),
    }
}

/// The text in one line of `width` characters: what is longer ends in `…`.
pub(in crate::cli) fn cut(text: &str, width: usize) -> String {
    match text.chars().count() > width {
        true => text.chars().take(width.saturating_sub(1)).chain(['…']).collect(),
        false => text.to_owned(),
    }
}

/// Words in lines of at most `width` columns of characters.
pub(in crate::cli) fn in_lines(text: &str, width: usize) -> Vec<String> {
    let words = text.split_whitespace().map(|word| (1, word));
    broken(words, width, 0)
}

fn columns(text: &str) -> usize {
    text.chars().count()
}

fn is_json(text: &str) -> bool {
    text.starts_with(['{', '['])
}

/// Whether a line is part of a table, a chart or a frame.
fn is_drawn(line: &str) -> bool {
    line.contains(['\u{1b}', '─', '│', '┤', '╭', '╰']) || line.contains(" | ") || line.contains("-+-")
}

fn fitted_line(line: &str, width: usize) -> String {
    let atoms = atoms(line);
    let narrow: usize = atoms
        .iter()
        .map(|(gap, atom)| gap.min(&BETWEEN_COLUMNS) + columns(atom))
        .sum();
    if narrow <= width {
        return narrowed(&atoms, columns(line) - width);
    }
    let indent = atoms.first().map_or(0, |(gap, _)| *gap);
    let further = (indent + FURTHER).min(width / 2);
    broken(atoms.into_iter(), width, further).join("\n")
}

/// The line without `too_many` of the blanks between its columns, from the widest gap.
fn narrowed(atoms: &[(usize, &str)], mut too_many: usize) -> String {
    let mut gaps: Vec<usize> = atoms.iter().map(|(gap, _)| *gap).collect();
    while too_many > 0 {
        let Some(widest) = gaps.iter_mut().max() else { break };
        *widest -= 1;
        too_many -= 1;
    }
    let parts = gaps.iter().zip(atoms);
    parts.map(|(gap, (_, atom))| " ".repeat(*gap) + atom).collect()
}

/// Atoms with the blanks before them, in lines of which all but the first are indented.
fn broken<'a>(atoms: impl Iterator<Item = (usize, &'a str)>, width: usize, further: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let mut used = 0;
    for (gap, atom) in atoms {
        match lines.last_mut() {
            Some(line) if used + gap + columns(atom) <= width => {
                line.extend([&" ".repeat(gap), atom]);
                used += gap + columns(atom);
            }
            last => {
                let indent = match last {
                    Some(_) => further,
                    // The text's own indentation; words alone have none.
                    None if further == 0 => 0,
                    None => gap,
                };
                lines.push(" ".repeat(indent) + atom);
                used = indent + columns(atom);
            }
        }
    }
    lines
}

/// What stays together, with the blanks before it: words, and commands with their arguments.
fn atoms(line: &str) -> Vec<(usize, &str)> {
    let mut atoms = Vec::new();
    let mut rest = line.trim_end();
    while !rest.is_empty() {
        let atom_and_rest = rest.trim_start_matches(' ');
        let gap = rest.len() - atom_and_rest.len();
        let may_be_command = atoms.is_empty() && gap > 0;
        let end = atom_end(atom_and_rest, may_be_command);
        atoms.push((gap, &atom_and_rest[..end]));
        rest = &atom_and_rest[end..];
    }
    atoms
}

/// Byte at which the atom ends with which the text begins. A command stands alone on an indented line, or in backticks.
fn atom_end(text: &str, may_be_command: bool) -> usize {
    let word_from = |start: usize| text[start..].find(' ').map_or(text.len(), |end| start + end);
    if may_be_command && text.starts_with(COMMAND) {
        return text.find("  ").unwrap_or(text.len());
    }
    let quoted = text.trim_start_matches(['(', '`']);
    let before = &text[..text.len() - quoted.len()];
    match quoted.find('`') {
        Some(end) if before.ends_with('`') && quoted.starts_with(COMMAND) => word_from(before.len() + end),
        _ => word_from(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_keep_to_their_width() {
        assert_eq!(in_lines("one two three", 8), ["one two", "three"]);
        assert_eq!(in_lines("", 8), Vec::<String>::new());
    }

    #[test]
    fn long_lines_go_on_below_and_short_ones_stay() {
        let text = "short\n  settings: rank 16, precision bf16\nend";
        assert_eq!(
            fitted(text, Some(20)),
            "short\n  settings: rank 16,\n    precision bf16\nend"
        );
        assert_eq!(fitted(text, None), text);
    }

    #[test]
    fn columns_move_together_before_a_line_breaks() {
        assert_eq!(
            fitted("gemm large        7.3 GFLOP/s", Some(24)),
            "gemm large   7.3 GFLOP/s"
        );
    }

    #[test]
    fn a_command_stays_in_one_piece() {
        let command = "peft-tune show quickstart --db a.db";
        assert_eq!(
            fitted(&format!("look closer: (`{command}`) says how"), Some(20)),
            format!("look closer:\n  (`{command}`)\n  says how")
        );
        assert_eq!(
            fitted(&format!("  {command}   all of it"), Some(20)),
            format!("  {command}\n    all of it")
        );
    }

    #[test]
    fn what_is_drawn_or_for_programs_stays() {
        for text in [
            "{\"a b c\": \"d e f\"}",
            " trial | loss and more",
            "1 │ key: some value",
        ] {
            assert_eq!(fitted(text, Some(10)), text);
        }
    }
}
