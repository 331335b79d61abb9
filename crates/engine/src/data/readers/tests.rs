//! Each reader on what it should read, and on what it should refuse.

use std::io::Write;

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn read(name: &str, bytes: &[u8]) -> Result<Vec<(String, Record)>, DataError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    std::fs::File::create(&path).unwrap().write_all(bytes).unwrap();
    let mut rows = Vec::new();
    read_rows(&path, &Meter::default(), &mut |location, record| {
        let location = location.to_string();
        let start = location.rfind(name).unwrap();
        rows.push((location[start..].to_owned(), record));
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(rows)
}

fn columns(value: Value) -> Record {
    let Value::Object(map) = value else { panic!("an object") };
    Record::Columns(map)
}

fn message(name: &str, bytes: &[u8]) -> String {
    read(name, bytes).unwrap_err().to_string()
}

#[test]
fn json_lines_with_mark_windows_ends_and_blank_lines() {
    let rows = read("a.jsonl", b"\xef\xbb\xbf{\"text\": \"x\"}\r\n\r\n{\"text\": \"y\"}").unwrap();
    let expected = [
        ("a.jsonl line 1".to_owned(), columns(json!({"text": "x"}))),
        ("a.jsonl line 3".to_owned(), columns(json!({"text": "y"}))),
    ];
    assert_eq!(rows, expected);
}

#[test]
fn json_documents_with_a_list_or_an_object_around_it() {
    let expected = [("a.json row 1".to_owned(), columns(json!({"text": "x"})))];
    for text in [
        "[{\"text\": \"x\"}]",
        "{\"version\": 1,\n \"data\": [{\"text\": \"x\"}]}",
        "{\"other\": [{}],\n \"train\": [{\"text\": \"x\"}]}",
    ] {
        assert_eq!(read("a.json", text.as_bytes()).unwrap(), expected, "{text}");
    }
    assert!(message("a.json", b"{\"a\": [{}],\n\"b\": [{}]}").contains("a, b"));
    // One row, on a line or over several.
    let row = json!({"messages": [{"role": "user", "content": "q"}], "tools": [{"type": "function"}]});
    for (name, text) in [
        ("a.jsonl", row.to_string() + "\n"),
        ("a.jsonl", row.to_string()),
        ("a.json", row.to_string()),
        ("a.json", format!("{row:#}")),
        ("a", row.to_string()),
    ] {
        let rows: Vec<Record> = read(name, text.as_bytes())
            .unwrap()
            .into_iter()
            .map(|(_, row)| row)
            .collect();
        assert_eq!(rows, [columns(row.clone())], "{name}: {text}");
    }
    let text = b"{\"steps\": [{\"a\": 1}]}\n";
    assert_eq!(
        read("a.jsonl", text).unwrap()[0].1,
        columns(json!({"steps": [{"a": 1}]}))
    );
    assert_eq!(read("a.json", text).unwrap()[0].1, columns(json!({"a": 1})));
    assert!(message("a.json", b"{\n\"a\": 1}").contains("no key"));
    assert!(message("a.json", b"[{}, 3]").contains("row 2"));
}

#[test]
fn csv_with_quotes_newlines_and_other_separators() {
    let rows = read(
        "a.csv",
        b"instruction,output\r\n\"say \"\"hi\"\",\nnow\",\"b\"\r\n,c\r\n",
    )
    .unwrap();
    let expected = [
        (
            "a.csv line 2".to_owned(),
            columns(json!({"instruction": "say \"hi\",\nnow", "output": "b"})),
        ),
        (
            "a.csv line 4".to_owned(),
            columns(json!({"instruction": "", "output": "c"})),
        ),
    ];
    assert_eq!(rows, expected);
    assert_eq!(
        read("a.csv", b"a;b\n1;2\n").unwrap()[0].1,
        columns(json!({"a": "1", "b": "2"}))
    );
    assert_eq!(
        read("a.tsv", b"a\tb\n1\t2,3\n").unwrap()[0].1,
        columns(json!({"a": "1", "b": "2,3"}))
    );
}

#[test]
fn mistakes_are_told_with_their_line() {
    let cases: [(&str, &[u8], &str); 9] = [
        ("a.jsonl", b"{\"text\": \"x\"}\n{\"text\": ", "line 2"),
        (
            "a.jsonl",
            b"{\"text\": \"x\"}\n3\n",
            "line 2: expected a JSON object, found a number",
        ),
        (
            "a.jsonl",
            b"{\"text\": \"x\"}\n{\"text\": \"\xff\"}\n",
            "line 2: not UTF-8",
        ),
        ("a.json", b"[\n{\"text\": \"x\",}\n]", "line 2"),
        ("a.csv", b"a,b\n1,2\n1,2,3\n", "line 3: 3 fields where the header has 2"),
        ("a.csv", b"a,b\n1,\xe9\n", "line 2: not UTF-8"),
        ("a.csv", b"a,b, a\n1,2,3\n", "line 1: two columns are named `a`"),
        ("a.txt", b"\xff\xfeh\0i\0", "UTF-16"),
        ("a.parquet", b"PAR1 and then nothing", "not readable as Parquet"),
    ];
    for (name, bytes, part) in cases {
        let message = message(name, bytes);
        assert!(message.contains(part), "{message}");
    }
    assert!(message("a.data", b"\x1f\x8b\x08\x00").contains("gzip"));
}

#[test]
fn empty_files_have_no_rows() {
    for name in ["a.jsonl", "a.json", "a.csv", "a.txt", "a"] {
        assert_eq!(read(name, b"").unwrap(), [], "{name}");
        assert_eq!(read(name, b"\xef\xbb\xbf \n\n").unwrap(), [], "{name}");
    }
    assert!(read("a.parquet", b"").is_err());
}

#[test]
fn folders_and_absent_files_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let mut visit = |_, _| Ok(ControlFlow::Continue(()));
    assert!(matches!(
        read_rows(folder.path(), &Meter::default(), &mut visit),
        Err(DataError::Read { .. })
    ));
    let absent = folder.path().join("absent.jsonl");
    assert!(matches!(
        read_rows(&absent, &Meter::default(), &mut visit),
        Err(DataError::Read { .. })
    ));
}

#[test]
fn plain_text_ends_with_its_last_piece() {
    let rows = read("a.txt", "one\r\n\r\ntwo\r".as_bytes()).unwrap();
    let expected = Record::Text {
        text: "one\n\ntwo\n".to_owned(),
        piece: 0,
        is_last: true,
    };
    assert_eq!(rows, [("a.txt line 1".to_owned(), expected)]);
}

#[test]
fn a_huge_line_is_one_row() {
    let text = "x".repeat(3 << 20);
    let rows = read(
        "a.jsonl",
        format!("{{\"text\": \"{text}\"}}\n{{\"text\": \"y\"}}").as_bytes(),
    )
    .unwrap();
    assert_eq!(rows.len(), 2);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Checks that a reader gives rows or an error, whatever stands in a file.
    #[test]
    fn no_bytes_make_a_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..400), kind in 0_usize..7) {
        let name = ["a.jsonl", "a.json", "a.csv", "a.tsv", "a.txt", "a.parquet", "a"][kind];
        let _ = read(name, &bytes);
    }

    #[test]
    fn nearly_right_text_makes_no_reader_panic(text in "[\\[\\]{}\",:a\\\\\n\r\t 01é-]{0,80}", kind in 0_usize..5) {
        let name = ["a.jsonl", "a.json", "a.csv", "a.txt", "a"][kind];
        let _ = read(name, text.as_bytes());
    }
}
