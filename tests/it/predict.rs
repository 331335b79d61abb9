//! Predicted bytes against those that the engine's allocator counts.

#[path = "../../examples/predict/cases.rs"]
mod cases;

