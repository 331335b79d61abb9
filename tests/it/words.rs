//! Words of the comments: a doc comment begins with the noun that it describes, or with a verb, so that it can be read
//! without its neighbour.

use std::path::Path;

use crate::floors::source_files;

/// Folders with sources of this repository; the build script stands beside them.
const FOLDERS: &[&str] = &["crates", "src", "tests", "benches", "examples", "fuzz/fuzz_targets"];
const BUILD_SCRIPT: &str = "build.rs";

/// Beginnings that a doc comment may not have, each group with what to write instead.
const REFUSED: &[(&[&str], &str)] = &[
    (
        &[
            "Those",
            "These",
            "That",
            "This",
            "It",
            "Its",
            "They",
            "Them",
            "Their",
            "Such",
            "Both",
            "None",
            "Same",
            "The same",
            "As",
            "Likewise",
            "One of",
            "One that",
            "All of them",
            "All that",
            "What of",
        ],
        "name the thing, as in `Gradients of this rank` for `Those of this rank`",
    ),
    (
        &["Of", "With", "Without", "In", "On", "For", "From", "At", "By", "To"],
        "put the noun in front, as in `Bytes of a row` for `Of a row`",
    ),
    (
        &["Where", "When", "While", "If", "Because", "Here", "There"],
        "begin with the place, the time or the verb, and put the condition behind it, as in `Folder that files are written to` for \
         `Where files are written`",
    ),
    (
        &["So", "And", "But", "Also", "Then", "Else", "Otherwise", "Too"],
        "begin a sentence of its own with a noun or a verb",
    ),
];

/// The rule holds for the whole repository.
#[test]
fn doc_comments_begin_with_what_they_describe() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let files = FOLDERS.iter().flat_map(|folder| source_files(folder));
    let mut sources: Vec<_> = files.map(|file| (file.path, file.text)).collect();
    let script = root.join(BUILD_SCRIPT);
    let text = std::fs::read_to_string(&script).unwrap();
    sources.push((script, text));
    let mut faults = Vec::new();
    for (path, text) in &sources {
        let path = path.strip_prefix(root).unwrap().display();
        faults.extend(
            refused(text)
                .into_iter()
                .map(|(line, beginning, advice)| format!("{path}:{line}: begins with `{beginning}`: {advice}")),
        );
    }
    faults.sort();
    assert!(
        faults.is_empty(),
        "{} doc comments cannot be read alone:\n{}",
        faults.len(),
        faults.join("\n")
    );
}

/// The search finds every beginning in both kinds of comments, and leaves sentences alone that only look like one.
#[test]
fn refused_beginnings_are_found() {
    for (beginnings, advice) in REFUSED {
        for beginning in *beginnings {
            for mark in ["///", "//!"] {
                let text = format!("fn one() {{}}\n\n    {mark} {beginning} others,\n    {mark} and more.\n");
                assert_eq!(refused(&text), [(3, *beginning, *advice)], "{text}");
            }
        }
    }
    let sound = [
        "/// Bytes of a row.\n/// In all of them.",
        "/// Ask again.",
        "/// In-place sum.",
        "/// `None` where nothing is known.",
        "// Of a comment that is no documentation.",
        "//// Of a line.",
        "/// Asserts it.\n///\n/// # Errors\n/// Those of the file.",
    ];
    for text in sound {
        assert_eq!(refused(text), [], "{text}");
    }
}

/// Lines of a source on which a doc comment begins in a refused way, each with the beginning and what to write instead.
fn refused(text: &str) -> Vec<(usize, &'static str, &'static str)> {
    let mut found = Vec::new();
    let mut above = None;
    for (index, line) in text.lines().enumerate() {
        let comment = doc_comment(line);
        if let Some((mark, words)) = comment
            && above != Some(mark)
            && let Some((beginning, advice)) = refused_beginning(words)
        {
            found.push((index + 1, beginning, advice));
        }
        above = comment.map(|(mark, _)| mark);
    }
    found
}

/// The mark of a doc comment's line, and the words behind it.
fn doc_comment(line: &str) -> Option<(&'static str, &str)> {
    let line = line.trim_start();
    ["///", "//!"].into_iter().find_map(|mark| {
        let words = line.strip_prefix(mark)?;
        (!words.starts_with('/')).then(|| (mark, words.trim_start()))
    })
}

/// The refused beginning that words have, as whole words, with what to write instead.
fn refused_beginning(words: &str) -> Option<(&'static str, &'static str)> {
    let begins = |beginning: &str| {
        let rest = words.strip_prefix(beginning);
        rest.is_some_and(|rest| !rest.starts_with(|next: char| next.is_alphanumeric() || "-_/".contains(next)))
    };
    REFUSED.iter().find_map(|(beginnings, advice)| {
        let beginning = beginnings.iter().find(|beginning| begins(beginning))?;
        Some((*beginning, *advice))
    })
}
