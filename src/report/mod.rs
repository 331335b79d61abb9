//! Summaries of a study as text, HTML and JSON.
