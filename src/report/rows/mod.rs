//! Rows as they are trained, for people: as text and as a web page.

mod page;
mod text;

pub use page::rows_page;
use text::summary_lines;
pub use text::{RowsStyle, row_text, rows_text, summary_line};

use peft_tune_engine::data::{ShownRow, ShownToken};

/// Tokens that stand behind one another, are of the same message and are all learnt or all not.
struct Run<'a> {
    /// Place of the first token in the row, from 0.
    at: usize,
    role: &'a str,
    is_target: bool,
    /// Whether the tokens lie behind the sequence length.
    is_cut: bool,
    /// Number of the document that begins here, behind the first.
    document: Option<usize>,
    tokens: &'a [ShownToken],
}

/// What is of no message.
const TEMPLATE: &str = "template";

/// The runs of a row.
fn runs(row: &ShownRow) -> Vec<Run<'_>> {
    let has_roles = row.tokens.iter().any(|token| token.role.is_some());
    // What is of no message is the template's, unless the row is made of no messages or parts at all.
    let other = if has_roles { TEMPLATE } else { "text" };
    let kind = |at: usize| {
        let token = &row.tokens[at];
        (token.role.as_deref().unwrap_or(other), token.target, at >= row.kept)
    };
    let mut runs = Vec::new();
    let mut start = 0;
    for end in 1..=row.tokens.len() {
        if end == row.tokens.len() || kind(end) != kind(start) || row.boundaries.contains(&end) {
            let (role, is_target, is_cut) = kind(start);
            runs.push(Run {
                at: start,
                role,
                is_target,
                is_cut,
                document: row.boundaries.iter().position(|at| *at == start).map(|at| at + 2),
                tokens: &row.tokens[start..end],
            });
            start = end;
        }
    }
    runs
}

/// A token's text with line ends and tabs that can be seen; other control characters as their code.
fn visible(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\n' => out.push('⏎'),
            '\t' => out.push('⇥'),
            '\r' => out.push('␍'),
            other if other.is_control() => out.push_str(&format!("\\u{{{:x}}}", u32::from(other))),
            other => out.push(other),
        }
    }
    out
}

/// The head of a row: where it stands, how long it is, and what became of it.
fn head(row: &ShownRow) -> String {
    let (tokens, kept) = (row.tokens.len() + row.hidden, row.kept);
    let targets = row.tokens.iter().take(kept).filter(|token| token.target).count();
    let mut parts = vec![format!("row {}", row.number), row.location.clone()];
    parts.extend(row.set.clone());
    match &row.left_out {
        Some(reason) => parts.push(format!("left out: {reason}")),
        None if row.is_running => parts.push(format!("{tokens} tokens of running text, all learnt")),
        None => parts.push(format!("{tokens} tokens, {targets} learnt")),
    }
    if !row.boundaries.is_empty() {
        parts.push(format!("{} documents", row.boundaries.len() + 1));
    }
    if (1..tokens).contains(&kept) && !row.is_running {
        parts.push(format!("cut behind {kept}: {} lost", tokens - kept));
    }
    parts.join(" · ")
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::report) fn row() -> ShownRow {
        let token = |id, text: &str, target, role: Option<&str>| ShownToken {
            id,
            text: text.to_owned(),
            target,
            role: role.map(str::to_owned),
        };
        ShownRow {
            number: 3,
            location: "train.jsonl line 3".to_owned(),
            set: Some("training".to_owned()),
            tokens: vec![
                token(1, "<|im_start|>", false, None),
                token(9, "user\n", false, None),
                token(7, "Why?", false, Some("user")),
                token(2, "<|im_end|>", false, None),
                token(5, "So", true, Some("assistant")),
                token(6, ".", true, Some("assistant")),
                token(2, "<|im_end|>", true, None),
            ],
            boundaries: Vec::new(),
            hidden: 0,
            kept: 6,
            is_running: false,
            left_out: None,
        }
    }

    #[test]
    fn runs_are_of_one_message_and_one_kind() {
        let row = row();
        let runs = runs(&row);
        let told: Vec<(usize, &str, bool, bool, usize)> = runs
            .iter()
            .map(|run| (run.at, run.role, run.is_target, run.is_cut, run.tokens.len()))
            .collect();
        assert_eq!(
            told,
            [
                (0, "template", false, false, 2),
                (2, "user", false, false, 1),
                (3, "template", false, false, 1),
                (4, "assistant", true, false, 2),
                (6, "template", true, true, 1),
            ]
        );
        assert_eq!(
            head(&row),
            "row 3 · train.jsonl line 3 · training · 7 tokens, 2 learnt · cut behind 6: 1 lost"
        );
    }
}
