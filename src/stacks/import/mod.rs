//! A settings file of another tool as a recipe: the inverse of `export`, by the same tables.

mod adapter;
mod axolotl;
mod data;
mod imported;
mod llamafactory;
mod peft;
mod precision;
mod reader;
mod tables;
mod torchtune;
mod trainer;
mod trl;
mod unsloth;

pub use imported::{Imported, import, parse};
