//! Base models as recipes have them: dense, or with two of each four values of their linear weights left out.

mod load;
mod wanda;

pub use load::load_base;
