//! Scripts and notebooks that train: read by their syntax tree, and followed as they would run, from the call that trains back to its
//! arguments.

mod branches;
mod builtins;
mod calling;
mod calls;
mod columns;
mod contents;
mod environment;
#[cfg(not(target_family = "wasm"))]
mod expression_nodes;
mod expressions;
mod keys;
#[cfg_attr(target_family = "wasm", expect(dead_code, reason = "nothing is parsed there"))]
mod literal;
mod loads;
mod model;
#[cfg(not(target_family = "wasm"))]
mod nodes;
mod objects;
mod operators;
mod options;
#[cfg_attr(target_family = "wasm", path = "parse_nothing.rs")]
mod parse;
mod rows;
mod run;
mod source;
mod statements;
#[cfg_attr(target_family = "wasm", expect(dead_code, reason = "nothing is parsed there"))]
mod syntax;
mod trainer;
mod training;
mod value;

pub(crate) use calls::Library;
pub(crate) use contents::Script;
pub(in crate::import) use options::OPTION_DEFAULT;
pub(crate) use source::is_notebook;

/// Whether scripts are read: their parser is C, which is not there in a browser.
pub(crate) const READS_SCRIPTS: bool = cfg!(not(target_family = "wasm"));
