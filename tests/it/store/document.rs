//! `docs/database.md` says what the schema says, and its examples run.
//!
//! The part below the mark is made from the schema's comments; `UPDATE_DOCS=1 cargo test document` writes it.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use peft_tune::store::{RowSink, SqlValue, Store};

const MARK: &str = "<!-- Below this line: made from migrations/*.sql by tests/it/store/document.rs. -->\n";

/// A table, view or index with the comment above it, and its columns with theirs.
struct Item {
    kind: String,
    name: String,
    comment: String,
    columns: Vec<(String, String)>,
    /// A view that shows another's columns.
    same_columns_as: Option<String>,
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Reads the items of the schema, in order.
fn items() -> Vec<Item> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(root().join("migrations"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    let mut items = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(file).unwrap();
        items.extend(text.split("\n\n").filter_map(item));
    }
    // A view's common table expressions hold blank lines nowhere, so a paragraph is a statement.
    items
}

fn item(paragraph: &str) -> Option<Item> {
    let comment: Vec<&str> = paragraph
        .lines()
        .take_while(|line| line.starts_with("--"))
        .map(|line| line.trim_start_matches("--").trim())
        .collect();
    let body: Vec<&str> = paragraph.lines().skip(comment.len()).collect();
    let mut words = body.first()?.strip_prefix("create ")?.split_whitespace();
    let (kind, name) = (words.next()?, words.next()?);
    let mut item = Item {
        kind: kind.to_owned(),
        name: name.to_owned(),
        comment: comment.join("\n"),
        columns: Vec::new(),
        same_columns_as: None,
    };
    let mut column = None;
    for line in &body[1..] {
        let indented = line.strip_prefix("    ").filter(|rest| !rest.starts_with([' ', ')']));
        if let Some(first) = indented.and_then(|rest| rest.split([' ', ',']).next()) {
            column = Some(first.trim_matches('"').to_owned());
        }
        if let Some((_, comment)) = line.split_once(" -- ")
            && let Some(column) = column.take()
        {
            let name = match line.split_once(" as ") {
                Some(_) if kind == "view" => alias(line),
                _ => column,
            };
            item.columns.push((name, comment.trim().to_owned()));
        }
        item.same_columns_as = line
            .strip_prefix("select ")
            .and_then(|rest| rest.strip_suffix(".*"))
            .map(str::to_owned)
            .or(item.same_columns_as);
    }
    Some(item)
}

/// The name after the last `as` before the comment.
fn alias(line: &str) -> String {
    let code = line.split(" -- ").next().unwrap_or_default();
    let name = code.rsplit(" as ").next().unwrap_or_default();
    name.trim().trim_end_matches(',').to_owned()
}

#[derive(Default)]
struct Rows(Vec<Vec<SqlValue<'static>>>);

impl RowSink for Rows {
    fn columns(&mut self, _: &[String]) -> std::io::Result<()> {
        Ok(())
    }

    fn row(&mut self, values: &[SqlValue<'_>]) -> std::io::Result<()> {
        self.0.push(values.iter().cloned().map(SqlValue::into_owned).collect());
        Ok(())
    }
}

/// Name and type of each column as the database has them.
async fn columns(store: &Store, table: &str) -> Vec<(String, String)> {
    let mut rows = Rows::default();
    store
        .queries()
        .run(&format!("pragma table_xinfo({table})"), None, &mut rows)
        .await
        .unwrap();
    rows.0
        .into_iter()
        .map(|row| match (&row[1], &row[2]) {
            (SqlValue::Text(name), SqlValue::Text(kind)) => (name.to_string(), kind.to_lowercase()),
            other => panic!("{other:?}"),
        })
        .collect()
}

/// The words of `text` in lines of at most 110 columns; all lines but the first begin with `indent`.
fn folded(text: &str, indent: &str) -> String {
    let mut words = text.split_whitespace();
    let mut lines = words.next().unwrap_or_default().to_owned();
    let mut width = lines.chars().count();
    for word in words {
        let more = 1 + word.chars().count();
        if width + more > 110 {
            lines += &format!("\n{indent}{word}");
            width = indent.len() + more - 1;
        } else {
            lines += &format!(" {word}");
            width += more;
        }
    }
    lines
}

async fn document(store: &Store) -> String {
    let items = items();
    let mut text = String::new();
    for (kind, title) in [("view", "Views"), ("table", "Tables")] {
        let _ = write!(text, "\n## {title}\n");
        for item in items.iter().filter(|item| item.kind == kind) {
            let source = item.same_columns_as.as_ref();
            let described = match source {
                Some(source) => &items.iter().find(|item| item.name == *source).unwrap().columns,
                None => &item.columns,
            };
            let _ = write!(text, "\n### `{}`\n\n{}\n\n", item.name, folded(&item.comment, ""));
            if let Some(source) = source {
                let _ = writeln!(text, "Columns: those of `{source}`.");
            } else {
                text.push_str("| column | type | meaning |\n|---|---|---|\n");
            }
            let real = columns(store, &item.name).await;
            let names: Vec<&String> = real.iter().map(|(name, _)| name).collect();
            let documented: Vec<&String> = described.iter().map(|(name, _)| name).collect();
            assert_eq!(
                documented, names,
                "the columns of `{}` and those with a comment",
                item.name
            );
            for ((name, kind), (_, meaning)) in real.iter().zip(described).filter(|_| source.is_none()) {
                // A view says `int` of an expression.
                let kind = if kind == "int" { "integer" } else { kind };
                let _ = writeln!(text, "| `{name}` | {kind} | {} |", meaning.replace('|', "\\|"));
            }
        }
    }
    text.push_str("\n## Indexes\n\n");
    for item in items.iter().filter(|item| item.kind == "index") {
        let entry = format!("- `{}`: {}", item.name, item.comment);
        let _ = writeln!(text, "{}", folded(&entry, "  "));
    }
    text
}

async fn empty_database(folder: &Path) -> Store {
    Store::open(&folder.join("a.db")).await.unwrap()
}

#[tokio::test]
async fn the_document_lists_every_table_view_and_column() {
    let folder = tempfile::tempdir().unwrap();
    let store = empty_database(folder.path()).await;
    let path = root().join("docs/database.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let (by_hand, made) = text.split_once(MARK).expect("the mark");
    let document = document(&store).await;
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, [by_hand, MARK, &document].concat()).unwrap();
        return;
    }
    assert!(
        made == document,
        "docs/database.md is out of date: run `UPDATE_DOCS=1 cargo test document`"
    );
}

#[tokio::test]
async fn every_table_and_view_of_the_database_comes_from_a_commented_migration() {
    let folder = tempfile::tempdir().unwrap();
    let store = empty_database(folder.path()).await;
    let mut rows = Rows::default();
    let sql = "select name from sqlite_schema where type in ('table', 'view') and name <> '_sqlx_migrations'
               and name not like 'sqlite!_%' escape '!' order by name";
    store.queries().run(sql, None, &mut rows).await.unwrap();
    let mut known: Vec<String> = items()
        .into_iter()
        .filter(|item| item.kind != "index")
        .inspect(|item| assert!(!item.comment.is_empty(), "{} has no comment", item.name))
        .map(|item| item.name)
        .collect();
    known.sort();
    let real: Vec<String> = rows
        .0
        .into_iter()
        .map(|row| match &row[0] {
            SqlValue::Text(name) => name.to_string(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(real, known);
}

#[tokio::test]
async fn the_examples_of_the_document_run() {
    let folder = tempfile::tempdir().unwrap();
    let store = empty_database(folder.path()).await;
    let text = std::fs::read_to_string(root().join("docs/database.md")).unwrap();
    let examples: Vec<&str> = text
        .split("```sql\n")
        .skip(1)
        .map(|rest| rest.split("```").next().unwrap())
        .collect();
    assert!(examples.len() >= 5);
    for example in examples {
        let outcome = store.queries().run(example, None, &mut Rows::default()).await;
        assert!(outcome.is_ok(), "{example}\n{}", outcome.unwrap_err());
    }
}
