//! Nodes of tree-sitter's grammar for Python as expressions.

use std::rc::Rc;

use serde_json::Value;
use tree_sitter::Node;

use super::literal::{number, unescaped};
use super::nodes::{DEEPEST, Lowering, fields, line_of, parts};
use super::syntax::{Argument, Expression, Form, Function, Statement};

impl Lowering<'_> {
    pub(super) fn expression_at(&self, node: Node<'_>, name: &str, depth: usize) -> Expression {
        match node.child_by_field_name(name) {
            Some(child) => self.expression(child, depth + 1),
            None => Expression {
                line: line_of(node),
                bytes: node.byte_range(),
                form: Form::Other,
            },
        }
    }

    pub(super) fn expression(&self, node: Node<'_>, depth: usize) -> Expression {
        let form = match depth < DEEPEST {
            true => self.form(node, depth + 1),
            false => Form::Other,
        };
        Expression {
            line: line_of(node),
            bytes: node.byte_range(),
            form,
        }
    }

    fn form(&self, node: Node<'_>, depth: usize) -> Form {
        let of = |name: &str| Box::new(self.expression_at(node, name, depth));
        match node.kind() {
            "identifier" => Form::Name(self.text(node).to_owned()),
            "true" => Form::Constant(Value::Bool(true)),
            "false" => Form::Constant(Value::Bool(false)),
            "none" => Form::Constant(Value::Null),
            "integer" | "float" => number(self.text(node)).map_or(Form::Other, Form::Constant),
            "string" => joined(self.pieces(node, depth)),
            "concatenated_string" => {
                let strings = parts(node).into_iter();
                let pieces = strings.map(|string| self.pieces(string, depth));
                joined(pieces.collect::<Option<Vec<_>>>().map(|pieces| pieces.concat()))
            }
            "attribute" => Form::Attribute(of("object"), self.field(node, "attribute")),
            "subscript" => match &fields(node, "subscript")[..] {
                [key] => Form::Item(of("value"), Box::new(self.expression(*key, depth))),
                _ => Form::Other,
            },
            "slice" => self.slice(node, depth),
            "call" => Form::Call(of("function"), self.arguments(node, depth)),
            "list" | "tuple" | "set" | "expression_list" | "pattern_list" | "tuple_expression" => {
                let all = parts(node).into_iter();
                Form::List(all.map(|part| self.expression(part, depth)).collect())
            }
            "list_splat" => self.first(node, depth).map_or(Form::Other, Form::Spread),
            "dictionary" => Form::Map(self.entries(node, depth)),
            "parenthesized_expression" | "await" => self.first(node, depth).map_or(Form::Other, |inner| inner.form),
            "named_expression" => of("value").form,
            "not_operator" => Form::Not(of("argument")),
            "unary_operator" => match self.field(node, "operator").as_str() {
                "-" => Form::Negative(of("argument")),
                "+" => of("argument").form,
                _ => Form::Other,
            },
            "binary_operator" => Form::Binary(of("left"), self.field(node, "operator"), of("right")),
            "boolean_operator" => match self.field(node, "operator").as_str() {
                "and" => Form::And(of("left"), of("right")),
                _ => Form::Or(of("left"), of("right")),
            },
            "comparison_operator" => self.comparison(node, depth),
            "conditional_expression" => match parts(node)[..] {
                [value, condition, other] => {
                    let [condition, value, other] =
                        [condition, value, other].map(|part| Box::new(self.expression(part, depth)));
                    Form::Choice {
                        condition,
                        value,
                        other,
                    }
                }
                _ => Form::Other,
            },
            "list_comprehension" | "generator_expression" => self.comprehension(node, depth),
            "lambda" => Form::Lambda(Rc::new(self.lambda(node, depth))),
            _ => Form::Other,
        }
    }

    fn first(&self, node: Node<'_>, depth: usize) -> Option<Box<Expression>> {
        let inner = parts(node).first().copied()?;
        Some(Box::new(self.expression(inner, depth)))
    }

    /// Pieces of a text: constants, and the values in it; `None` of bytes and of values with a form of their own.
    fn pieces(&self, node: Node<'_>, depth: usize) -> Option<Vec<Expression>> {
        let mut all = Vec::new();
        let (mut is_raw, mut is_formatted) = (false, false);
        for part in parts(node) {
            let form = match part.kind() {
                "string_start" => {
                    let start = self.text(part).to_lowercase();
                    (is_raw, is_formatted) = (start.contains('r'), start.contains('f'));
                    if start.contains('b') {
                        return None;
                    }
                    continue;
                }
                "string_content" => {
                    let text = self.text(part);
                    let text = if is_raw { text.to_owned() } else { unescaped(text) };
                    Form::Constant(Value::String(match is_formatted {
                        true => text.replace("{{", "{").replace("}}", "}"),
                        false => text,
                    }))
                }
                "interpolation" if part.child_by_field_name("format_specifier").is_none() => {
                    let value = part.child_by_field_name("expression")?;
                    all.push(self.expression(value, depth));
                    continue;
                }
                "interpolation" => return None,
                _ => continue,
            };
            all.push(Expression {
                line: line_of(part),
                bytes: part.byte_range(),
                form,
            });
        }
        Some(all)
    }

    fn slice(&self, node: Node<'_>, depth: usize) -> Form {
        let mut bounds = [None, None, None];
        let mut at = 0;
        let mut cursor = node.walk();
        for child in node.children(&mut cursor) {
            match (child.kind(), bounds.get_mut(at)) {
                (":", _) => at += 1,
                (_, Some(bound)) if child.is_named() && !child.is_extra() => {
                    *bound = Some(Box::new(self.expression(child, depth)));
                }
                _ => {}
            }
        }
        match bounds {
            [from, to, None] => Form::Slice(from, to),
            _ => Form::Other,
        }
    }

    fn arguments(&self, node: Node<'_>, depth: usize) -> Vec<Argument> {
        let Some(list) = node.child_by_field_name("arguments") else {
            return Vec::new();
        };
        if list.kind() == "generator_expression" {
            return vec![Argument::Positional(self.expression(list, depth))];
        }
        let of = |part: Node<'_>| match part.kind() {
            "keyword_argument" => Argument::Named(self.field(part, "name"), self.expression_at(part, "value", depth)),
            "dictionary_splat" => match parts(part).first() {
                Some(value) => Argument::Spread(self.expression(*value, depth)),
                None => Argument::Spread(self.expression(part, depth)),
            },
            _ => Argument::Positional(self.expression(part, depth)),
        };
        parts(list).into_iter().map(of).collect()
    }

    fn entries(&self, node: Node<'_>, depth: usize) -> Vec<(Option<Expression>, Expression)> {
        let of = |part: Node<'_>| match part.kind() {
            "pair" => Some((
                Some(self.expression_at(part, "key", depth)),
                self.expression_at(part, "value", depth),
            )),
            _ => Some((None, self.expression(parts(part).first().copied()?, depth))),
        };
        parts(node).into_iter().filter_map(of).collect()
    }

    /// A comparison of two values; of more it is nothing.
    fn comparison(&self, node: Node<'_>, depth: usize) -> Form {
        let mut cursor = node.walk();
        let operators: Vec<&str> = node
            .children_by_field_name("operators", &mut cursor)
            .map(|operator| operator.kind())
            .collect();
        match (&parts(node)[..], &operators[..]) {
            ([left, right], [operator, ..]) => Form::Compare(
                Box::new(self.expression(*left, depth)),
                (*operator).to_owned(),
                Box::new(self.expression(*right, depth)),
            ),
            _ => Form::Other,
        }
    }

    fn comprehension(&self, node: Node<'_>, depth: usize) -> Form {
        match parts(node)[..] {
            [_, each] if each.kind() == "for_in_clause" => Form::Each {
                value: Box::new(self.expression_at(node, "body", depth)),
                target: Box::new(self.target_at(each, "left", depth)),
                over: Box::new(self.expression_at(each, "right", depth)),
            },
            _ => Form::Other,
        }
    }

    fn lambda(&self, node: Node<'_>, depth: usize) -> Function {
        let parameters = node.child_by_field_name("parameters");
        Function {
            name: "lambda".to_owned(),
            line: line_of(node),
            parameters: parameters.map_or_else(Vec::new, |list| self.parameters(list, depth)),
            body: vec![Statement::Return(Some(self.expression_at(node, "body", depth)))],
        }
    }
}

/// One constant, or a text with values in it.
fn joined(pieces: Option<Vec<Expression>>) -> Form {
    let Some(pieces) = pieces else {
        return Form::Other;
    };
    let constants: Option<String> = pieces
        .iter()
        .map(|piece| match &piece.form {
            Form::Constant(Value::String(text)) => Some(text.as_str()),
            _ => None,
        })
        .collect();
    constants.map_or(Form::Text(pieces), |text| Form::Constant(Value::String(text)))
}
