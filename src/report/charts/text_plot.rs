//! A plot of characters between two axes, for the terminal.

/// Width of a plot with its labels where the terminal is wider, and where its width is not known.
const WIDEST: usize = 96;
/// Narrowest plot that still shows anything.
const NARROWEST: usize = 20;
const ROWS: usize = 16;

/// A plot under construction. Places are shares of its axes, in [0, 1] from the left and the bottom.
pub(super) struct TextPlot {
    cells: Vec<Vec<char>>,
    /// Values at the upper and the lower end of the axis on the left.
    labels: [String; 2],
}

impl TextPlot {
    /// An empty plot in at most `width` columns.
    pub(super) fn new(labels: [String; 2], width: Option<usize>) -> Self {
        let columns = width.unwrap_or(WIDEST).min(WIDEST);
        let columns = columns.saturating_sub(margin(&labels) + 1).max(NARROWEST);
        Self {
            cells: vec![vec![' '; columns]; ROWS],
            labels,
        }
    }

    /// Puts a mark in place of what stands there.
    pub(super) fn mark(&mut self, across: f64, up: f64, mark: char) {
        let (row, column) = (ROWS - 1 - cell(up, ROWS), cell(across, self.columns()));
        self.cells[row][column] = mark;
    }

    /// Gives the lines: what the axis on the left shows, the cells, both ends of the axis below, and what stands under it.
    pub(super) fn finish(self, name: &str, ends: [&str; 2], under: &[String]) -> String {
        let (margin, columns) = (margin(&self.labels), self.columns());
        let mut text = format!("{name}\n");
        for (index, row) in self.cells.iter().enumerate() {
            let label = match index {
                0 => self.labels[0].as_str(),
                _ if index == ROWS - 1 => self.labels[1].as_str(),
                _ => "",
            };
            let row: String = row.iter().collect();
            text.push_str(&format!("{label:>width$} ┤{}\n", row.trim_end(), width = margin - 1));
        }
        text.push_str(&format!("{:margin$}└{}\n", "", "─".repeat(columns)));
        let [low, high] = ends;
        let gap = columns.saturating_sub(low.chars().count() + high.chars().count());
        text.push_str(&format!("{:margin$} {low}{}{high}\n", "", " ".repeat(gap.max(1))));
        for line in under {
            text.push_str(&format!("{:margin$} {line}\n", ""));
        }
        text
    }

    /// Width of the plot itself.
    pub(super) fn columns(&self) -> usize {
        self.cells.first().map_or(0, Vec::len)
    }
}

/// Columns left of the axis.
fn margin(labels: &[String; 2]) -> usize {
    labels.iter().map(|label| label.chars().count()).max().unwrap_or(0) + 1
}

/// Which of `count` cells a share falls into; the middle one where there is none, because all values are the same.
fn cell(share: f64, count: usize) -> usize {
    if share.is_nan() {
        (count - 1) / 2
    } else {
        (share.clamp(0.0, 1.0) * (count - 1) as f64).round() as usize
    }
}
