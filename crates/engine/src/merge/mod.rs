//! A trained model written whole: adapters merged into their base, in the layout of the model directory it came from.

mod gguf_file;
mod merged_model;
mod model_directory;
mod quantized_weights;
mod tensor_file;
mod vocabulary;

pub use gguf_file::GgufFile;
pub use merged_model::{MergedModel, write_checkpoint};
pub use model_directory::{ModelDirectory, WrittenDtype};
pub use quantized_weights::WeightQuantization;
pub(crate) use tensor_file::{TensorEntry, write_tensors};
