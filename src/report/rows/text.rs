//! Rows and their summary as text.

use std::fmt::Write;

use super::{Run, head, runs, visible};
use crate::report::{grouped, percent, printable};
use peft_tune_engine::data::{RowsSeen, RowsSummary, SetSummary, ShownRow};

/// Characters of a run that are shown, from its beginning and from its end, unless all are asked for.
const BEGINNING: usize = 400;
const END: usize = 160;
const LEARNT: &str = "\u{1b}[1;32m";
const FAINT: &str = "\u{1b}[2m";
const STRUCK: &str = "\u{1b}[2;9m";
const PLAIN: &str = "\u{1b}[0m";

/// How rows are shown.
#[derive(Clone, Copy, Debug, Default)]
pub struct RowsStyle {
    /// Whether a terminal's colours stand beside the brackets around what is learnt.
    pub is_coloured: bool,
    /// One line a token, with its id.
    pub by_token: bool,
    /// All of a long text.
    pub is_whole: bool,
}

/// The rows, the summary and what users should know.
pub fn rows_text(seen: &RowsSeen, style: RowsStyle) -> String {
    let mut text = String::new();
    for row in &seen.rows {
        text.push_str(&row_text(row, style));
        text.push('\n');
    }
    for line in summary_lines(&seen.summary) {
        let _ = writeln!(text, "{}", printable(&line));
    }
    text
}

/// One row: where it stands and what became of it, then its tokens.
pub fn row_text(row: &ShownRow, style: RowsStyle) -> String {
    // Writing to a string cannot fail.
    let mut text = format!("{}\n", printable(&head(row)));
    if style.by_token {
        let _ = writeln!(text, "  place      id  role       text");
    }
    for run in runs(row) {
        if let Some(document) = run.document {
            let _ = writeln!(text, "         -- document {document} --");
        }
        match style.by_token {
            true => tokens_of(&run, style, &mut text),
            false => line_of(&run, style, &mut text),
        }
    }
    if row.hidden > 0 {
        let _ = writeln!(text, "  ... and {} tokens more", count(row.hidden as u64));
    }
    text
}

/// `  place  role  text`, what is learnt in brackets.
fn line_of(run: &Run<'_>, style: RowsStyle, text: &mut String) {
    let whole: String = run.tokens.iter().map(|token| visible(&token.text)).collect();
    let shown = match style.is_whole {
        true => whole,
        false => shortened(&whole),
    };
    let written = written(&shown, run, style);
    let note = if run.is_cut { "cut " } else { "" };
    let _ = writeln!(text, "  {:>5}  {:<9}  {note}{written}", run.at, printable(run.role));
}

fn tokens_of(run: &Run<'_>, style: RowsStyle, text: &mut String) {
    for (number, token) in run.tokens.iter().enumerate() {
        let written = written(&visible(&token.text), run, style);
        let note = if run.is_cut { "cut " } else { "" };
        let place = run.at + number;
        let _ = writeln!(
            text,
            "  {place:>5}  {:>6}  {:<9}  {note}{written}",
            token.id,
            printable(run.role)
        );
    }
}

/// A text with what says that it is learnt or cut.
fn written(text: &str, run: &Run<'_>, style: RowsStyle) -> String {
    let text = printable(text);
    let bracketed = if run.is_target {
        format!("[{text}]")
    } else {
        text.to_string()
    };
    let colour = match (run.is_cut, run.is_target) {
        (true, _) => STRUCK,
        (false, true) => LEARNT,
        (false, false) if run.role == super::TEMPLATE => FAINT,
        (false, false) => "",
    };
    match style.is_coloured && !colour.is_empty() {
        true => format!("{colour}{bracketed}{PLAIN}"),
        false => bracketed,
    }
}

fn shortened(text: &str) -> String {
    let count = text.chars().count();
    if count <= BEGINNING + END {
        return text.to_owned();
    }
    let beginning: String = text.chars().take(BEGINNING).collect();
    let end: String = text.chars().skip(count - END).collect();
    format!("{beginning} ... {} characters ... {end}", count - BEGINNING - END)
}

/// The summary in lines.
pub(super) fn summary_lines(summary: &RowsSummary) -> Vec<String> {
    let mut lines = vec![format!(
        "{} {}",
        if summary.is_whole {
            "all rows:"
        } else {
            "of the rows looked at:"
        },
        summary_line(summary)
    )];
    for (name, set) in [("training", &summary.training), ("held-out", &summary.held_out)] {
        if set.rows > 0 {
            lines.push(format!("{name}: {}", set_text(set)));
        }
    }
    if let Some(template) = &summary.chat_template {
        let how = match summary.marks_answers {
            true => "it marks answers itself",
            false => "answers are found between its renderings",
        };
        lines.push(format!("chat template: {template}; {how}"));
    }
    let formats: Vec<&str> = summary.formats.iter().map(String::as_str).collect();
    let columns: Vec<&str> = summary.columns.iter().map(String::as_str).collect();
    if !columns.is_empty() {
        let unread: Vec<String> = summary
            .unread_columns
            .iter()
            .map(|(name, rows)| format!("{name} ({} rows)", count(*rows)))
            .collect();
        let unread = if unread.is_empty() {
            "none".to_owned()
        } else {
            unread.join(", ")
        };
        lines.push(format!(
            "format {}: columns read: {}; not used: {unread}",
            formats.join(" and "),
            columns.join(", ")
        ));
    }
    lines
}

/// What is trained, in one line: `1,200 rows, 45.1% of their 98,000 tokens learnt, every answer ends in a stop token`.
pub fn summary_line(summary: &RowsSummary) -> String {
    let (training, held_out) = (&summary.training, &summary.held_out);
    let rows = training.rows + held_out.rows;
    let (tokens, targets) = (
        training.tokens + held_out.tokens,
        training.target_tokens + held_out.target_tokens,
    );
    let share = percent(targets as f64 / tokens.max(1) as f64);
    let stop = match summary.stops {
        (_, 0) => String::new(),
        (learnt, all) if learnt == all => ", every answer ends in a stop token".to_owned(),
        (0, _) => ", no answer ends in a stop token".to_owned(),
        (learnt, all) => format!(", {} of {} answers end in a stop token", count(learnt), count(all)),
    };
    format!(
        "{} {}, {share} of their {} tokens learnt{stop}",
        count(rows),
        if rows == 1 { "row" } else { "rows" },
        count(tokens),
    )
}

/// A whole number, from 100 on in groups of three digits.
fn count(number: u64) -> String {
    match number {
        0..100 => number.to_string(),
        _ => grouped(number as f64),
    }
}

fn set_text(set: &SetSummary) -> String {
    let mut parts = vec![
        format!("{} rows", count(set.rows)),
        format!("{} tokens", count(set.tokens)),
        format!("{} learnt", count(set.target_tokens)),
        format!("longest {}", count(set.longest)),
    ];
    if set.cut > 0 {
        parts.push(format!(
            "{} cut ({} tokens lost)",
            count(set.cut),
            count(set.cut_tokens)
        ));
    }
    if set.left_out > 0 {
        parts.push(format!("{} left out", count(set.left_out)));
    }
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::super::tests::row;
    use super::*;

    fn seen() -> RowsSeen {
        let mut seen = RowsSeen {
            rows: vec![row()],
            ..Default::default()
        };
        seen.summary.training = SetSummary {
            rows: 1200,
            left_out: 2,
            cut: 1,
            cut_tokens: 40,
            tokens: 98_000,
            target_tokens: 44_198,
            longest: 900,
        };
        seen.summary.is_whole = true;
        seen.summary.stops = (1198, 1198);
        seen.summary.columns = ["messages".to_owned()].into();
        seen.summary.formats = ["messages".to_owned()].into();
        seen.summary.unread_columns = vec![("id".to_owned(), 1200)];
        seen
    }

    #[test]
    fn rows_are_shown_with_brackets_around_what_is_learnt() {
        insta::assert_snapshot!(rows_text(&seen(), RowsStyle::default()), @r"
        row 3 · train.jsonl line 3 · training · 7 tokens, 2 learnt · cut behind 6: 1 lost
              0  template   <|im_start|>user⏎
              2  user       Why?
              3  template   <|im_end|>
              4  assistant  [So.]
              6  template   cut [<|im_end|>]

        all rows: 1,200 rows, 45.1% of their 98,000 tokens learnt, every answer ends in a stop token
        training: 1,200 rows, 98,000 tokens, 44,198 learnt, longest 900, 1 cut (40 tokens lost), 2 left out
        format messages: columns read: messages; not used: id (1,200 rows)
        ");
    }

    #[test]
    fn colours_are_for_terminals_and_tokens_have_their_ids() {
        let style = RowsStyle {
            is_coloured: true,
            by_token: true,
            is_whole: false,
        };
        let text = rows_text(&seen(), style);
        assert!(text.contains("      5  assistant  \u{1b}[1;32m[So]\u{1b}[0m"), "{text}");
        assert!(!rows_text(&seen(), RowsStyle::default()).contains('\u{1b}'));
    }

    #[test]
    fn long_texts_are_shortened() {
        let long = "ab".repeat(1000);
        let short = shortened(&long);
        assert!(
            short.contains(" ... 1440 characters ... ") && short.len() < 700,
            "{short}"
        );
    }
}
