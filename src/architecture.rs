//! The dimensions of a decoder-only language model, read from its `config.json`.
