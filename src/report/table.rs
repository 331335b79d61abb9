//! Text tables that fit the terminal.
//!
//! Plain characters and no colour, so that a table looks the same in a terminal, a pipe and a log file.

use std::borrow::Cow;

use unicode_width::UnicodeWidthStr;

/// Side that a column's values stand on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    Left,
    /// Right-hand side, for numbers. Such a column is never cut.
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

/// Widths that a column may have, in columns of characters.
#[derive(Clone, Copy, Debug)]
struct Size {
    /// Nothing is cut, and the heading is one line.
    natural: usize,
    /// No cell is cut, and the heading has as many lines as it can.
    wrapped: usize,
    /// Text is cut as well.
    narrowest: usize,
}

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

    /// The table in at most `width` columns of characters, as wide as it needs where `None`. Headings take several lines first,
    /// then columns of text are cut. Where that is not enough, the columns are told in several tables that begin with the first
    /// column, or each row becomes a block of lines, whichever takes fewer lines.
    pub fn to_text(&self, width: Option<usize>) -> String {
        let (all, sizes) = self.columns();
        let Some(width) = width else {
            let widths: Vec<usize> = sizes.iter().map(|size| size.natural).collect();
            return self.to_grid(&all, &widths);
        };
        if let Some(widths) = fitted(&all, &sizes, width) {
            return self.to_grid(&all, &widths);
        }
        let blocks = self.to_blocks(width);
        match self.to_parts(&sizes, width) {
            Some(parts) if parts.lines().count() < blocks.lines().count() => parts,
            _ => blocks,
        }
    }

    /// Whether the table goes into `width` columns of characters as one.
    pub fn fits(&self, width: Option<usize>) -> bool {
        let (all, sizes) = self.columns();
        width.is_none_or(|width| fitted(&all, &sizes, width).is_some())
    }

    /// All columns by number, with their sizes.
    fn columns(&self) -> (Vec<usize>, Vec<Size>) {
        (0..self.headings.len())
            .map(|column| (column, self.size(column)))
            .unzip()
    }

    fn size(&self, column: usize) -> Size {
        let heading = &self.headings[column];
        let cells = self.rows.iter().map(|row| columns_of(&row[column])).max().unwrap_or(0);
        let wrapped = pieces(heading).map(columns_of).max().unwrap_or(0);
        let cut = match self.aligns[column] {
            Align::Left => cells.min(NARROWEST),
            Align::Right => cells,
        };
        Size {
            natural: cells.max(columns_of(heading)),
            wrapped: cells.max(wrapped),
            narrowest: cut.max(wrapped),
        }
    }

    /// The columns in several tables, each of which begins with the first column; `None` where one beside it is too wide.
    fn to_parts(&self, sizes: &[Size], width: usize) -> Option<String> {
        let mut parts: Vec<Vec<usize>> = Vec::new();
        for column in 1..sizes.len() {
            let longer = |part: &Vec<usize>| [part.as_slice(), &[column]].concat();
            let fits = |part: &Vec<usize>| fitted(part, sizes, width).is_some();
            match parts.last_mut().map(|part| (longer(part), part)) {
                Some((longer, part)) if fits(&longer) => *part = longer,
                _ => parts.push(vec![0, column]),
            }
        }
        let grids = parts
            .iter()
            .map(|part| Some(self.to_grid(part, &fitted(part, sizes, width)?)));
        Some(grids.collect::<Option<Vec<String>>>()?.join("\n\n"))
    }

    fn to_grid(&self, columns: &[usize], widths: &[usize]) -> String {
        let mut text = String::with_capacity((self.rows.len() + 2) * (line_width(widths) + 1));
        for line in self.heading_lines(columns, widths) {
            self.push_line(&mut text, columns, &line, widths);
            text += "\n";
        }
        let rule: Vec<String> = widths.iter().map(|width| "-".repeat(width + 2)).collect();
        text += &rule.join("+");
        for row in &self.rows {
            let cells: Vec<&str> = columns.iter().map(|column| row[*column].as_str()).collect();
            text += "\n";
            self.push_line(&mut text, columns, &cells, widths);
        }
        text
    }

    /// The headings' lines: what does not go into a column's width goes on below, and the last line of each stands above the rule.
    fn heading_lines(&self, columns: &[usize], widths: &[usize]) -> Vec<Vec<String>> {
        let each: Vec<Vec<String>> = columns
            .iter()
            .zip(widths)
            .map(|(column, width)| wrapped(&self.headings[*column], *width))
            .collect();
        let height = each.iter().map(Vec::len).max().unwrap_or(0);
        let line = |number: usize| {
            let cell = |lines: &Vec<String>| {
                let above = height - lines.len();
                number
                    .checked_sub(above)
                    .map_or_else(String::new, |number| lines[number].clone())
            };
            each.iter().map(cell).collect()
        };
        (0..height).map(line).collect()
    }

    /// A line of the grid, without blanks at its end.
    fn push_line(&self, text: &mut String, columns: &[usize], cells: &[impl AsRef<str>], widths: &[usize]) {
        for (place, ((column, cell), width)) in columns.iter().zip(cells).zip(widths).enumerate() {
            text.push_str(if place == 0 { " " } else { " | " });
            let cell = cut(cell.as_ref(), *width);
            let blanks = width - columns_of(&cell).min(*width);
            let before = if self.aligns[*column] == Align::Right {
                blanks
            } else {
                0
            };
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

/// Widths of these columns that go into `width` together: headings give first, then text, the widest first; `None` where there is
/// not enough to give.
fn fitted(columns: &[usize], sizes: &[Size], width: usize) -> Option<Vec<usize>> {
    let mut widths: Vec<usize> = columns.iter().map(|column| sizes[*column].natural).collect();
    let floors: [fn(&Size) -> usize; 2] = [|size| size.wrapped, |size| size.narrowest];
    for floor in floors {
        while line_width(&widths) > width {
            let gives = (0..columns.len()).filter(|place| widths[*place] > floor(&sizes[columns[*place]]));
            let Some(widest) = gives.max_by_key(|place| widths[*place]) else {
                break;
            };
            widths[widest] -= 1;
        }
    }
    (line_width(&widths) <= width).then_some(widths)
}

/// The parts of a heading that may stand on a line of their own: words, and what ends in an underscore.
fn pieces(heading: &str) -> impl Iterator<Item = &str> {
    heading.split_inclusive([' ', '_']).map(str::trim_end)
}

/// A heading in lines of at most `width` columns of characters; a part that is longer is cut.
fn wrapped(heading: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = vec![String::new()];
    for piece in heading.split_inclusive([' ', '_']) {
        let line = lines.last().map_or(0, |line| columns_of(line));
        if line > 0 && line + columns_of(piece.trim_end()) > width {
            lines.push(String::new());
        }
        if let Some(line) = lines.last_mut() {
            *line += piece;
        }
    }
    lines
        .iter()
        .map(|line| cut(line.trim_end(), width).into_owned())
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
    fn headings_take_lines_before_text_is_cut() {
        let columns = ["trial", "peak_memory", "gradient_checkpointing"];
        let mut table = TextTable::new(columns.map(|name| (name.to_owned(), Align::Right)));
        table.push(["3", "1.5 GiB", "full"].map(str::to_owned));
        insta::assert_snapshot!(table.to_text(Some(33)), @r"
               |   peak_ |     gradient_
         trial |  memory | checkpointing
        -------+---------+---------------
             3 | 1.5 GiB |          full
        ");
    }

    #[test]
    fn columns_that_do_not_fit_go_into_tables_of_their_own() {
        let columns = ["trial", "throughput", "memory", "loss"];
        let mut table = TextTable::new(columns.map(|name| (name.to_owned(), Align::Right)));
        for trial in 0..4 {
            table.push([
                trial.to_string(),
                "35456".to_owned(),
                "31.5 MiB".to_owned(),
                "1.96".to_owned(),
            ]);
        }
        let text = table.to_text(Some(30));
        assert!(text.lines().all(|line| columns_of(line) <= 30), "{text}");
        assert_eq!(text.matches("trial").count(), 2, "{text}");
        assert_eq!(text.matches("31.5 MiB").count(), 4, "{text}");
        assert!(!table.fits(Some(30)) && table.fits(Some(60)));
    }

    #[test]
    fn control_characters_are_written_out() {
        assert_eq!(printable("a\u{1b}[31mb\n"), "a\\u{1b}[31mb\\n");
        assert_eq!(printable("é"), "é");
    }
}
