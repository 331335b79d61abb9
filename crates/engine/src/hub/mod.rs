//! Sources of the files of models and data sets: a local directory, or the Hugging Face hub through its standard cache.
//!
//! What is cached already is used without asking the network. `HF_HOME`, `HF_HUB_CACHE`, `HF_HUB_OFFLINE`, `HF_TOKEN`
//! and `HF_ENDPOINT` mean what they mean to `huggingface_hub`.

mod data_files;
mod data_set;
mod data_set_error;
mod download;
mod error;
mod files;
mod index;
mod name;
mod needed_files;
mod settings;

pub use data_set::{cached_data_files, data_files};
pub use data_set_error::DataSetError;
pub use download::DownloadObserver;
pub use error::{HubError, MissingFile};
pub use files::{ModelFiles, TokenizerFiles};
pub use settings::HubSettings;
