//! Scripts and notebooks that train: read by their syntax tree, and followed as they would run, from the call that trains back to its
//! arguments.

mod branches;
mod builtins;
mod calling;
mod calls;
mod columns;
mod contents;
mod environment;
mod expression_nodes;
mod expressions;
mod keys;
mod literal;
mod loads;
mod model;
mod nodes;
mod objects;
mod operators;
mod options;
mod parse;
mod rows;
mod run;
mod source;
mod statements;
mod syntax;
mod trainer;
mod training;
mod value;

pub(in crate::tools) use calls::Library;
pub(in crate::tools) use contents::Script;
pub(in crate::tools::import) use options::OPTION_DEFAULT;
pub(in crate::tools) use source::is_notebook;
