//! `infer-bench --url`: how fast an OpenAI-compatible server answers, with and without an adapter.

mod answer_stream;
mod command;
mod measure;
mod points_text;
mod server;

pub(super) use command::run;
