//! What to know of a model before it is trained.

use crate::cli::terminal::output::tell;
use peft_tune_core::architecture::Architecture;
use peft_tune_core::plan::passed_over;
use peft_tune_core::recipe::AdapterSettings;

/// Tells what trainings of these adapters leave out of the model or of what the adapters name.
pub(in crate::cli) fn tell_of_model(architecture: &Architecture, adapters: &[AdapterSettings]) {
    let passed_over = adapters.iter().filter_map(|adapter| passed_over(adapter, architecture));
    for warning in architecture.dropout_warning().into_iter().chain(passed_over) {
        tell(format_args!("warning: {warning}"));
    }
}
