//! The data path: files to rows, rows to tokens, tokens to micro-batches.
//!
//! | stage | module |
//! |---|---|
//! | settings to files | `on_disk` |
//! | file to rows | `readers`, `meter`, `progress` |
//! | row to example | `columns`, `messages`, `preference`, `format`, `example` |
//! | example to tokens, labels and what is to be told | `vocabulary`, `encode`, `answers`, `rewritten`, `text_targets`, `notes` |
//! | rows at a time, some of them held out | `tokenize`, `split` |
//! | tokens at rest | `tokens`, `token_writer`, `cache`, `cache_folder`, `cache_limit`, `disk_space`, `key`, `digest`, `checksum` |
//! | rows for people to look at, and for other tools to read | `look`, `seen`, `oddities`, `preference_rows` |
//! | rows as questions that a model answers | `question` |
//! | documents back to the rows of the files | `document_rows` |
//! | documents of a sequence length | `length_limit`, `documents`, `prepared`, `retained`, `fits` |
//! | documents to steps | `packing`, `grouping`, `order`, `mixture`, `source`, `prefetch`, `batch` |
//! | what is wrong, and where | `error`, `warning`, `row_warnings`, `row_location` |

mod answers;
mod batch;
mod cache;
mod cache_folder;
mod cache_limit;
mod checksum;
mod columns;
mod digest;
mod disk_space;
mod document_rows;
mod documents;
mod encode;
mod encode_chat;
mod encoded_row;
mod error;
mod example;
mod fits;
mod format;
mod grouping;
mod key;
mod labels;
mod learnt;
mod length_limit;
mod look;
mod messages;
mod meter;
mod mixture;
mod notes;
mod oddities;
mod on_disk;
mod order;
mod packing;
mod preference;
mod preference_rows;
mod prefetch;
mod prepared;
mod progress;
mod question;
mod readers;
mod retained;
mod rewritten;
mod row_location;
mod row_warnings;
mod said;
mod seen;
mod source;
mod split;
mod text_blocks;
mod text_targets;
mod thread_use;
mod token_trace;
mod token_writer;
mod tokenize;
mod tokens;
mod turn_ends;
mod vocabulary;
mod warning;

pub use batch::{Document, MicroBatch};
pub use cache_folder::cache_folder;
pub use cache_limit::make_room;
pub use digest::content_digest;
pub use document_rows::DocumentRows;
pub use documents::{DocumentSet, DocumentView, Statistics, WindowView};
pub use error::DataError;
pub use format::{check_first_row, recognise};
pub use look::{LookAt, RowsWanted, look_at_rows};
pub use on_disk::{bring, on_disk};
pub use order::RowOrder;
pub use preference_rows::{PreferenceSet, each_preference};
pub use prefetch::{Prefetch, PrefetchTimes};
pub use prepared::PreparedData;
pub use progress::{DataProgress, ReadingStage, TokenSpace, Tokenized, done_so_far, reading_now, tokenized_so_far};
pub use question::Question;
pub use readers::rows_in;
pub use row_location::{RowLocation, Unit};
pub use said::Said;
pub use seen::{RowsSeen, RowsSummary, SetSummary, ShownRow, ShownToken};
pub use source::{BatchSource, evaluation_batches};
pub use thread_use::ThreadUse;
pub use tokenize::TOKENIZING_STACK_BYTES;
pub use vocabulary::Vocabulary;
pub use warning::DataWarning;
