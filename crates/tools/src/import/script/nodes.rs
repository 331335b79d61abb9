//! Nodes of tree-sitter's grammar for Python as statements.

use std::rc::Rc;

use tree_sitter::Node;

use super::syntax::{Branch, Class, Expression, Function, Import, Parameter, Statement, Takes, Target};

/// Depth of nested statements and expressions below which nothing is looked at.
pub(super) const DEEPEST: usize = 100;

/// Line that a node begins in.
pub(super) fn line_of(node: Node<'_>) -> usize {
    node.start_position().row
}

/// The nodes of a node that have a name, without comments.
pub(super) fn parts(node: Node<'_>) -> Vec<Node<'_>> {
    let mut cursor = node.walk();
    let all = node.named_children(&mut cursor);
    all.filter(|child| !child.is_extra()).collect()
}

/// The nodes under a name of a node, without comments.
pub(super) fn fields<'t>(node: Node<'t>, name: &str) -> Vec<Node<'t>> {
    let mut cursor = node.walk();
    let all = node.children_by_field_name(name, &mut cursor);
    all.filter(|child| child.is_named() && !child.is_extra()).collect()
}

/// The text that nodes become statements of.
pub(super) struct Lowering<'c> {
    pub code: &'c str,
}

impl Lowering<'_> {
    pub(super) fn text(&self, node: Node<'_>) -> &str {
        self.code.get(node.byte_range()).unwrap_or_default()
    }

    pub(super) fn field(&self, node: Node<'_>, name: &str) -> String {
        node.child_by_field_name(name)
            .map_or_else(String::new, |child| self.text(child).to_owned())
    }

    pub(super) fn block(&self, node: Node<'_>, depth: usize) -> Vec<Statement> {
        let mut all = Vec::new();
        if depth < DEEPEST {
            for part in parts(node) {
                self.statement(part, depth + 1, &mut all);
            }
        }
        all
    }

    /// The block under a name of a node.
    pub(super) fn body(&self, node: Node<'_>, name: &str, depth: usize) -> Vec<Statement> {
        node.child_by_field_name(name)
            .map_or_else(Vec::new, |block| self.block(block, depth))
    }

    fn statement(&self, node: Node<'_>, depth: usize, all: &mut Vec<Statement>) {
        let below = |name: &str| self.body(node, name, depth);
        let of = |name: &str| self.expression_at(node, name, depth);
        match node.kind() {
            "expression_statement" => {
                for part in parts(node) {
                    self.simple_statement(part, depth, all);
                }
            }
            "if_statement" | "match_statement" => all.push(Statement::If(self.branches(node, depth))),
            "for_statement" => all.push(Statement::For {
                target: self.target_at(node, "left", depth),
                over: of("right"),
                body: below("body"),
            }),
            "while_statement" => all.push(Statement::While {
                condition: of("condition"),
                body: below("body"),
            }),
            "with_statement" => all.push(Statement::With {
                items: self.with_items(node, depth),
                body: below("body"),
            }),
            "try_statement" => {
                let mut body = below("body");
                for part in parts(node) {
                    match part.kind() {
                        "else_clause" => body.extend(self.body(part, "body", depth)),
                        "finally_clause" => {
                            let blocks = parts(part).into_iter();
                            body.extend(blocks.flat_map(|block| self.block(block, depth)));
                        }
                        _ => {}
                    }
                }
                all.push(Statement::Try(body));
            }
            "function_definition" => all.push(Statement::Function(Rc::new(self.function(node, depth)))),
            "class_definition" => all.push(Statement::Class(Rc::new(self.class(node, depth)))),
            "decorated_definition" => {
                if let Some(definition) = node.child_by_field_name("definition") {
                    self.statement(definition, depth, all);
                }
            }
            "return_statement" => {
                let value = parts(node).first().map(|value| self.expression(*value, depth));
                all.push(Statement::Return(value));
            }
            "break_statement" | "continue_statement" => all.push(Statement::Break),
            "raise_statement" => all.push(Statement::Raise),
            "import_statement" | "import_from_statement" => all.push(Statement::Import(self.imports(node))),
            // Later versions of the grammar have no node around these.
            _ => self.simple_statement(node, depth, all),
        }
    }

    /// An assignment or an expression. What is neither comes to nothing.
    fn simple_statement(&self, node: Node<'_>, depth: usize, all: &mut Vec<Statement>) {
        match node.kind() {
            "assignment" => all.extend(self.assignment(node, depth)),
            "augmented_assignment" => all.push(Statement::Augment {
                target: self.target_at(node, "left", depth),
                operator: self.field(node, "operator").trim_end_matches('=').to_owned(),
                value: self.expression_at(node, "right", depth),
            }),
            _ => all.push(Statement::Evaluate(self.expression(node, depth))),
        }
    }

    /// A value with all that it is assigned to; nothing where a name is only declared.
    fn assignment(&self, node: Node<'_>, depth: usize) -> Option<Statement> {
        let mut targets = Vec::new();
        let mut assignment = node;
        loop {
            targets.push(self.target_at(assignment, "left", depth));
            let right = assignment.child_by_field_name("right")?;
            if right.kind() != "assignment" {
                let value = self.expression(right, depth);
                return Some(Statement::Assign { targets, value });
            }
            assignment = right;
        }
    }

    fn branches(&self, node: Node<'_>, depth: usize) -> Vec<Branch> {
        let of = |node: Node<'_>| Branch {
            condition: Some(self.expression_at(node, "condition", depth)),
            body: self.body(node, "consequence", depth),
        };
        if node.kind() == "match_statement" {
            let block = node.child_by_field_name("body");
            let cases = block.map_or_else(Vec::new, |block| fields(block, "alternative"));
            return cases.into_iter().map(of).collect();
        }
        let mut all = vec![of(node)];
        for other in fields(node, "alternative") {
            all.push(match other.kind() {
                "elif_clause" => of(other),
                _ => Branch {
                    condition: None,
                    body: self.body(other, "body", depth),
                },
            });
        }
        all
    }

    fn with_items(&self, node: Node<'_>, depth: usize) -> Vec<(Expression, Option<Target>)> {
        let clauses = parts(node).into_iter().filter(|part| part.kind() == "with_clause");
        let items = clauses.flat_map(parts);
        items
            .filter_map(|item| item.child_by_field_name("value"))
            .map(|value| {
                let named = parts(value);
                match (value.kind(), named.first(), value.child_by_field_name("alias")) {
                    ("as_pattern", Some(inner), Some(alias)) => {
                        let name = parts(alias).first().copied().unwrap_or(alias);
                        (self.expression(*inner, depth), Some(self.target(name, depth)))
                    }
                    _ => (self.expression(value, depth), None),
                }
            })
            .collect()
    }

    fn function(&self, node: Node<'_>, depth: usize) -> Function {
        let parameters = node.child_by_field_name("parameters");
        Function {
            name: self.field(node, "name"),
            line: line_of(node),
            parameters: parameters.map_or_else(Vec::new, |list| self.parameters(list, depth)),
            body: self.body(node, "body", depth),
        }
    }

    pub(super) fn parameters(&self, list: Node<'_>, depth: usize) -> Vec<Parameter> {
        let of = |node: Node<'_>| {
            // A type stands behind the name.
            let named = match node.kind() {
                "typed_parameter" => parts(node).first().copied()?,
                _ => node,
            };
            let takes = match named.kind() {
                "list_splat_pattern" => Takes::Positional,
                "dictionary_splat_pattern" => Takes::Named,
                _ => Takes::One,
            };
            let name = match named.kind() {
                "identifier" => self.text(named).to_owned(),
                "default_parameter" | "typed_default_parameter" => self.field(named, "name"),
                "list_splat_pattern" | "dictionary_splat_pattern" => {
                    self.text(named).trim_start_matches('*').to_owned()
                }
                _ => return None,
            };
            let default = named.child_by_field_name("value");
            Some(Parameter {
                name,
                default: default.map(|value| self.expression(value, depth + 1)),
                takes,
            })
        };
        parts(list).into_iter().filter_map(of).collect()
    }

    fn class(&self, node: Node<'_>, depth: usize) -> Class {
        let bases = node.child_by_field_name("superclasses");
        let bases = bases.map_or_else(Vec::new, parts).into_iter();
        Class {
            name: self.field(node, "name"),
            bases: bases.map(|base| self.expression(base, depth)).collect(),
            body: self.body(node, "body", depth),
        }
    }

    fn imports(&self, node: Node<'_>) -> Vec<Import> {
        let package = |path: &str| path.split('.').next().unwrap_or_default().to_owned();
        let module = node
            .child_by_field_name("module_name")
            .map(|module| self.text(module).to_owned());
        let mut all = Vec::new();
        for name in fields(node, "name") {
            let (path, alias) = match name.kind() {
                "aliased_import" => (self.field(name, "name"), Some(self.field(name, "alias"))),
                _ => (self.text(name).to_owned(), None),
            };
            let package = package(module.as_deref().unwrap_or(&path));
            // `import a.b` binds `a`.
            let (name, path) = match (alias, &module) {
                (Some(alias), _) => (alias, path),
                (None, Some(_)) => (path.clone(), path),
                (None, None) => (package.clone(), package.clone()),
            };
            all.push(Import { name, path, package });
        }
        if let (true, Some(module)) = (all.is_empty(), &module) {
            // All names of a module.
            all.push(Import {
                name: String::new(),
                path: String::new(),
                package: package(module),
            });
        }
        all
    }

    pub(super) fn target_at(&self, node: Node<'_>, name: &str, depth: usize) -> Target {
        node.child_by_field_name(name)
            .map_or(Target::Other, |target| self.target(target, depth))
    }

    fn target(&self, node: Node<'_>, depth: usize) -> Target {
        if depth > DEEPEST {
            return Target::Other;
        }
        match node.kind() {
            "identifier" => Target::Name(self.text(node).to_owned()),
            "attribute" => Target::Attribute(
                Box::new(self.expression_at(node, "object", depth)),
                self.field(node, "attribute"),
            ),
            "subscript" => match &fields(node, "subscript")[..] {
                [key] => Target::Item(
                    Box::new(self.expression_at(node, "value", depth)),
                    Box::new(self.expression(*key, depth + 1)),
                ),
                _ => Target::Other,
            },
            "pattern_list" | "tuple_pattern" | "list_pattern" => {
                let all = parts(node).into_iter();
                Target::Many(all.map(|part| self.target(part, depth + 1)).collect())
            }
            _ => Target::Other,
        }
    }
}
