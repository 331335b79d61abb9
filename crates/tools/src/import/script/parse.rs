//! Statements of a Python text, by tree-sitter's grammar. What is no Python is passed over, and the first such line told.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use tree_sitter::{Node, ParseOptions, ParseState, Parser};

use super::nodes::{Lowering, line_of};
use super::syntax::Statement;

/// Hundreds of operations of the parser that any text may take, and more for each of its bytes.
const LEAST_CHECKS: usize = 10_000;
const CHECKS_PER_BYTE: f64 = 0.4;

/// Most widths of indentation that a text may have, and the widest one in letters.
///
/// Design note: the grammar keeps the widths of open blocks and the open quotes in a kilobyte, and does not look whether they fit. Blocks of
/// so many widths fit whatever the quotes.
const MOST_WIDTHS: usize = 300;
const WIDEST: usize = 1000;

/// A text as statements.
pub(super) struct Parsed {
    pub statements: Vec<Statement>,
    /// The first line that is no Python.
    pub wrong_line: Option<usize>,
}

/// Parses a text; `None` where it is indented like no program, or takes too long.
pub(super) fn parse(code: &str) -> Option<Parsed> {
    if !has_few_widths(code) {
        return None;
    }
    let mut parser = Parser::new();
    parser.set_language(&tree_sitter_python::LANGUAGE.into()).ok()?;
    let most = LEAST_CHECKS + (code.len() as f64 * CHECKS_PER_BYTE) as usize;
    let mut checks = 0_usize;
    let mut progress = |_: &ParseState| {
        checks += 1;
        if checks > most {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    };
    let options = ParseOptions::new().progress_callback(&mut progress);
    let bytes = code.as_bytes();
    let tree = parser.parse_with_options(
        &mut |start, _| bytes.get(start..).unwrap_or_default(),
        None,
        Some(options),
    )?;
    let root = tree.root_node();
    Some(Parsed {
        statements: Lowering { code }.block(root, 0),
        wrong_line: first_wrong(root).map(line_of),
    })
}

/// Whether lines begin at few widths, as the grammar measures them: from a line's end up to what is no blank, over the ends of lines
/// that are continued.
fn has_few_widths(code: &str) -> bool {
    let mut all = BTreeSet::new();
    for (end, _) in code.match_indices('\n') {
        let (mut width, mut letters) = (0_u16, 0);
        let mut rest = code[end + 1..].chars().peekable();
        while let Some(letter) = rest.next() {
            letters += 1;
            match letter {
                ' ' => width = width.wrapping_add(1),
                '\t' => width = width.wrapping_add(8),
                '\r' | '\u{c}' => width = 0,
                '\\' => {
                    rest.next_if_eq(&'\r');
                    if rest.next_if_eq(&'\n').is_none() {
                        break;
                    }
                }
                _ => break,
            }
            if letters > WIDEST {
                return false;
            }
        }
        all.insert(width);
        if all.len() > MOST_WIDTHS {
            return false;
        }
    }
    true
}

/// The first node that stands for what is no Python, on the way down.
fn first_wrong(root: Node<'_>) -> Option<Node<'_>> {
    let mut node = root.has_error().then_some(root)?;
    while !node.is_error() && !node.is_missing() {
        let mut cursor = node.walk();
        let below = node
            .children(&mut cursor)
            .find(|child| child.has_error() || child.is_missing());
        match below {
            Some(child) => node = child,
            None => break,
        }
    }
    Some(node)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::syntax::{Argument, Expression, Form, Target};
    use super::*;

    fn only(code: &str) -> Statement {
        let mut statements = parse(code).unwrap().statements;
        assert_eq!(statements.len(), 1, "{code}");
        statements.remove(0)
    }

    fn value(code: &str) -> Form {
        match only(&format!("x = {code}\n")) {
            Statement::Assign { value, .. } => value.form,
            other => panic!("{code}: {other:?}"),
        }
    }

    fn constant(code: &str) -> Value {
        match value(code) {
            Form::Constant(value) => value,
            other => panic!("{code}: {other:?}"),
        }
    }

    #[test]
    fn constants_are_what_python_makes_of_them() {
        for (code, expected) in [
            ("16", json!(16)),
            ("2_048", json!(2048)),
            ("0x10", json!(16)),
            ("2e-4", json!(2e-4)),
            ("(True)", json!(true)),
            ("None", json!(null)),
            ("'a' \"b\"", json!("ab")),
            ("r'a\\n'", json!("a\\n")),
            ("'a\\n\\x41'", json!("a\nA")),
            ("\"\"\"a\nb\"\"\"", json!("a\nb")),
            ("f'{{a}}'", json!("{a}")),
        ] {
            assert_eq!(constant(code), expected, "{code}");
        }
        assert!(matches!(value("b'a'"), Form::Other));
        assert!(matches!(value("3j"), Form::Other));
    }

    #[test]
    fn statements_have_their_parts() {
        let Statement::Assign { targets, .. } = only("a, b = c[0] = f(1, *x, r=2, **k)  # why\n") else {
            panic!("an assignment")
        };
        assert!(matches!(&targets[..], [Target::Many(two), Target::Item(..)] if two.len() == 2));
        let Statement::If(branches) = only("if a:\n    b\n    c\nelif d: e\nelse:\n    f\n") else {
            panic!("an if")
        };
        let bodies: Vec<usize> = branches.iter().map(|branch| branch.body.len()).collect();
        assert_eq!(bodies, [2, 1, 1]);
        assert!(branches[1].condition.is_some() && branches[2].condition.is_none());
        let Statement::Function(function) = only("def f(a, b=1, *c, d: int = 2, e: str, **g):\n    return a\n") else {
            panic!("a function")
        };
        let names: Vec<&str> = function.parameters.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(names, ["a", "b", "c", "d", "e", "g"]);
        let defaults = function.parameters.iter().filter(|one| one.default.is_some());
        assert_eq!(defaults.count(), 2);
        let Statement::Import(imports) = only("from a.b import c as d, e\n") else {
            panic!("an import")
        };
        let bound: Vec<(&str, &str)> = imports.iter().map(|one| (&*one.name, &*one.path)).collect();
        assert_eq!(bound, [("d", "c"), ("e", "e")]);
        assert_eq!(imports[0].package, "a");
    }

    #[test]
    fn calls_keep_their_arguments_and_slices_their_bounds() {
        let Form::Call(function, arguments) = value("a.b(1, *c, d=2, **e)") else {
            panic!("a call")
        };
        assert!(matches!(&function.form, Form::Attribute(_, name) if name == "b"));
        assert!(matches!(
            &arguments[..],
            [
                Argument::Positional(_),
                Argument::Positional(Expression {
                    form: Form::Spread(_),
                    ..
                }),
                Argument::Named(..),
                Argument::Spread(_)
            ]
        ));
        let Form::Item(_, key) = value("a[:3]") else {
            panic!("an item")
        };
        assert!(matches!(key.form, Form::Slice(None, Some(_))));
        assert!(matches!(value("a if b else c"), Form::Choice { .. }));
        assert!(matches!(value("[f(a) for a in b]"), Form::Each { .. }));
        assert!(matches!(value("a is not None"), Form::Compare(_, operator, _) if operator == "is not"));
    }

    #[test]
    fn what_is_no_python_is_passed_over_with_its_line() {
        let parsed = parse("a = 1\nb = = 2\nc = 3\n").unwrap();
        assert_eq!(parsed.wrong_line, Some(1));
        assert!(!parsed.statements.is_empty());
        assert_eq!(parse("a = 1\n").unwrap().wrong_line, None);
        for odd in [
            "", "=", "a=[", "é=1", "a='", "\\", "f'{", "((((", "def", "\u{0}", "if a:\n", "==", "a=\"ü",
        ] {
            assert!(parse(odd).is_some(), "{odd:?}");
        }
        assert!(parse(&"(".repeat(5000)).is_none_or(|parsed| parsed.wrong_line.is_some()));
    }

    #[test]
    fn deep_texts_end_and_those_of_too_many_widths_are_not_parsed() {
        let nested = format!("x = {}1{}\n", "[".repeat(3000), "]".repeat(3000));
        assert!(parse(&nested).is_some());
        let blocks: String = (0..400).map(|depth| format!("{}if a:\n", " ".repeat(depth))).collect();
        assert!(parse(&blocks).is_none());
        let few: String = (0..50).map(|depth| format!("{}if a:\n", " ".repeat(depth))).collect();
        assert!(parse(&few).is_some());
    }
}
