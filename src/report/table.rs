//! Text tables that fit the terminal.
//!
//! Plain characters and no colour, so that a table looks the same in a terminal, a pipe and a log file.

use std::borrow::Cow;

use unicode_width::UnicodeWidthStr;

/// Side that a column's values stand on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    Left,
    /// For numbers. Such a column is never cut.
    Right,
}

/// Rows of text under headings.
#[derive(Clone, Debug, Default)]
pub struct TextTable {
    headings: Vec<String>,
    aligns: Vec<Align>,
    rows: Vec<Vec<String>>,
}

/// Narrowest that a column of text is cut to.
const NARROWEST: usize = 10;

impl TextTable {
    /// A table with these columns and no rows.
    pub fn new(columns: impl IntoIterator<Item = (String, Align)>) -> Self {
        let (headings, aligns) = columns
            .into_iter()
            .map(|(heading, align)| (printable(&heading), align))
            .unzip();
        Self {
            headings,
            aligns,
            rows: Vec::new(),
        }
    }

    /// Adds a row. Cells beyond the columns are left out, and missing ones stay empty.
    pub fn push(&mut self, cells: impl IntoIterator<Item = String>) {
        let printed = |cell: String| match cell.chars().any(char::is_control) {
            true => printable(&cell),
            false => cell,
        };
        let mut row: Vec<String> = cells.into_iter().map(printed).collect();
        row.resize(self.headings.len(), String::new());
        self.rows.push(row);
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The table in at most `width` columns of characters, as wide as it needs where `None`. Columns of text are cut
    /// first; where that is not enough, each row becomes a block of lines.
    pub fn to_text(&self, width: Option<usize>) -> String {
        let natural: Vec<usize> = (0..self.headings.len())
            .map(|column| self.column_width(column))
            .collect();
        let Some(width) = width.filter(|width| *width < line_width(&natural)) else {
            return self.to_grid(&natural);
        };
        match self.shrunk(&natural, width) {
            Some(widths) => self.to_grid(&widths),
            None => self.to_blocks(width),
        }
    }

    fn column_width(&self, column: usize) -> usize {
        let cells = self.rows.iter().map(|row| &row[column]).chain([&self.headings[column]]);
        cells.map(|cell| columns_of(cell)).max().unwrap_or(0)
    }

    /// Widths that fit into `width`, taken from the widest columns of text; `None` where they cannot give enough.
    fn shrunk(&self, natural: &[usize], width: usize) -> Option<Vec<usize>> {
        let mut widths = natural.to_vec();
        while line_width(&widths) > width {
            let widest = (0..widths.len())
                .filter(|column| self.aligns[*column] == Align::Left && widths[*column] > NARROWEST)
                .max_by_key(|column| widths[*column])?;
            widths[widest] -= 1;
        }
        Some(widths)
    }

    fn to_grid(&self, widths: &[usize]) -> String {
        let mut text = String::with_capacity((self.rows.len() + 2) * (line_width(widths) + 1));
        self.push_line(&mut text, &self.headings, widths);
        let rule: Vec<String> = widths.iter().map(|width| "-".repeat(width + 2)).collect();
        text += "\n";
        text += &rule.join("+");
        for row in &self.rows {
            text += "\n";
            self.push_line(&mut text, row, widths);
        }
        text
    }

    /// A line of the grid, without blanks at its end.
    fn push_line(&self, text: &mut String, cells: &[String], widths: &[usize]) {
        for (column, (cell, width)) in cells.iter().zip(widths).enumerate() {
            text.push_str(if column == 0 { " " } else { " | " });
            let cell = cut(cell, *width);
            let blanks = width - columns_of(&cell).min(*width);
            let before = if self.aligns[column] == Align::Right { blanks } else { 0 };
            text.extend(std::iter::repeat_n(' ', before));
            text.push_str(&cell);
            text.extend(std::iter::repeat_n(' ', blanks - before));
        }
        text.truncate(text.trim_end_matches(' ').len());
    }

    fn to_blocks(&self, width: usize) -> String {
        let label = self
            .headings
            .iter()
            .map(|heading| columns_of(heading))
            .max()
            .unwrap_or(0);
        let blocks: Vec<String> = self
            .rows
            .iter()
            .map(|row| {
                let lines = self.headings.iter().zip(row).map(|(heading, cell)| {
                    let room = width.saturating_sub(label + 2).max(NARROWEST);
                    let padding = " ".repeat(label - columns_of(heading));
                    format!("{heading}{padding}  {}", cut(cell, room)).trim_end().to_owned()
                });
                lines.collect::<Vec<_>>().join("\n")
            })
            .collect();
        blocks.join("\n\n")
    }
}

/// The text with control characters written out, so that a name or a message cannot steer the terminal or break a row.
pub fn printable(text: &str) -> String {
    if !text.chars().any(char::is_control) {
        return text.to_owned();
    }
    text.chars()
        .flat_map(|c| {
            let shown: Vec<char> = if c.is_control() {
                c.escape_default().collect()
            } else {
                vec![c]
            };
            shown
        })
        .collect()
}

/// Width of a line of the grid: a space on both sides of each cell, a bar between.
fn line_width(widths: &[usize]) -> usize {
    widths.iter().map(|width| width + 3).sum::<usize>().saturating_sub(1)
}

/// The text in at most `width` columns of characters, with an ellipsis where it was cut.
fn cut(text: &str, width: usize) -> Cow<'_, str> {
    if columns_of(text) <= width {
        return Cow::Borrowed(text);
    }
    let mut kept = String::new();
    for c in text.chars() {
        kept.push(c);
        if columns_of(&kept) >= width {
            kept.pop();
            break;
        }
    }
    Cow::Owned(kept + "…")
}

/// Columns of characters that a text takes.
fn columns_of(text: &str) -> usize {
    // Most text is ASCII, whose bytes are its columns once nothing in it is a control character.
    if text.is_ascii() { text.len() } else { text.width() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> TextTable {
        let mut table = TextTable::new([("trial".to_owned(), Align::Right), ("modules".to_owned(), Align::Left)]);
        table.push(["3".to_owned(), "q_proj,k_proj,v_proj".to_owned()]);
        table.push(["12".to_owned(), "日本語".to_owned()]);
        table
    }

    #[test]
    fn numbers_stand_right_and_text_left() {
        insta::assert_snapshot!(sample().to_text(None), @r"
         trial | modules
        -------+----------------------
             3 | q_proj,k_proj,v_proj
            12 | 日本語
        ");
    }

    #[test]
    fn text_is_cut_to_the_width() {
        let text = sample().to_text(Some(22));
        insta::assert_snapshot!(text, @r"
         trial | modules
        -------+--------------
             3 | q_proj,k_pr…
            12 | 日本語
        ");
        assert!(text.lines().all(|line| columns_of(line) <= 22));
    }

    #[test]
    fn a_very_narrow_terminal_gets_blocks() {
        insta::assert_snapshot!(sample().to_text(Some(15)), @r"
        trial    3
        modules  q_proj,k_…

        trial    12
        modules  日本語
        ");
    }

    #[test]
    fn control_characters_are_written_out() {
        assert_eq!(printable("a\u{1b}[31mb\n"), "a\\u{1b}[31mb\\n");
        assert_eq!(printable("é"), "é");
    }
}
