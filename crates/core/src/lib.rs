//! The plain data that tuning is about, and the arithmetic over it: architectures, recipes, studies, search spaces,
//! objectives, and what a setting costs before it runs.
//!
//! Nothing here allocates a tensor, opens a file of weights or runs anything; what all others share of files is here
//! ([`bounded`], [`whole_file`]). Code in a module uses only what lies below
//! it here.
//!
//! | floor | modules |
//! |---|---|
//! | 4 | [`predict`] |
//! | 3 | [`plan`], [`space`] |
//! | 2 | [`study`] |
//! | 1 | [`architecture`], [`bounded`], [`fn@hexadecimal`], [`fn@median`], [`objective`], [`mod@panic`], [`protobuf`], [`python_json`], [`quantity`], [`recipe`], [`score`], [`whole_file`] |

pub mod architecture;
pub mod bounded;
mod hexadecimal;
mod median;
pub mod objective;
pub mod panic;
pub mod plan;
pub mod predict;
pub mod protobuf;
pub mod python_json;
pub mod quantity;
pub mod recipe;
pub mod score;
pub mod space;
pub mod study;
pub mod whole_file;

pub use hexadecimal::hexadecimal;
pub use median::{median, normal_deviation};
