//! A study's or a recipe's data, made ready and looked at.

pub(super) mod data_files;
pub(super) mod epochs;
pub(super) mod known_offline;
pub(super) mod learning_rate;
pub(super) mod mixture;
pub(super) mod model_config;
pub(super) mod model_family;
pub(super) mod model_files;
pub(super) mod model_warnings;
pub(super) mod prepare;
pub(super) mod row_lengths;
pub(super) mod rows;
pub(super) mod study_file;
pub(super) mod study_rows;
pub(super) mod uncut_rows;
