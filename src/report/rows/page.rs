//! Rows as a web page: one file that needs no network and no script.

use minijinja::value::Serde;
use minijinja::{AutoEscape, Environment, context};
use serde::Serialize;

use super::{head, runs, summary_lines, visible};
use peft_tune_engine::data::RowsSeen;

const TEMPLATE: &str = include_str!("page.html");

#[derive(Serialize)]
struct ShownRow {
    head: String,
    is_left_out: bool,
    runs: Vec<ShownRun>,
    hidden: usize,
}

#[derive(Serialize)]
struct ShownRun {
    role: String,
    kind: &'static str,
    document: Option<usize>,
    tokens: Vec<ShownToken>,
}

#[derive(Serialize)]
struct ShownToken {
    text: String,
    /// Place and id, which stand in a note.
    note: String,
}

/// The rows of `name` as HTML.
///
/// # Errors
/// Never in practice: the template is part of the program.
pub fn rows_page(name: &str, seen: &RowsSeen, warnings: &[String]) -> Result<String, minijinja::Error> {
    let rows: Vec<ShownRow> = seen
        .rows
        .iter()
        .map(|row| ShownRow {
            head: head(row),
            is_left_out: row.left_out.is_some(),
            hidden: row.hidden,
            runs: runs(row)
                .into_iter()
                .map(|run| ShownRun {
                    role: run.role.to_owned(),
                    document: run.document,
                    kind: match (run.is_cut, run.is_target) {
                        (true, _) => "cut",
                        (false, true) => "learnt",
                        (false, false) => "read",
                    },
                    tokens: run
                        .tokens
                        .iter()
                        .enumerate()
                        .map(|(number, token)| ShownToken {
                            text: visible(&token.text),
                            note: format!("place {}, token {}", run.at + number, token.id),
                        })
                        .collect(),
                })
                .collect(),
        })
        .collect();
    let mut environment = Environment::new();
    environment.set_auto_escape_callback(|_| AutoEscape::Html);
    environment.add_template("page", TEMPLATE)?;
    let summary = summary_lines(&seen.summary);
    environment.get_template("page")?.render(context! {
        name,
        rows => Serde(&rows),
        summary => Serde(&summary),
        warnings => Serde(warnings),
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::row;
    use super::*;

    #[test]
    fn what_rows_hold_is_text_in_the_page() {
        let mut shown = row();
        shown.tokens[4].text = "<script>alert(1)</script>".to_owned();
        let seen = RowsSeen {
            rows: vec![shown],
            ..Default::default()
        };
        let page = rows_page("a & b", &seen, &["<b>".to_owned()]).unwrap();
        assert!(page.contains("&lt;script&gt;") && !page.contains("<script>"), "{page}");
        assert!(
            page.contains("a &amp; b") && page.contains("class=\"learnt\""),
            "{page}"
        );
    }
}
