//! Metrics that a parameter can change.

use peft_tune_core::objective::LOSS;
use peft_tune_core::space::Parameter;

/// Whether a parameter changes no loss.
pub(super) fn is_free(parameter: &Parameter) -> bool {
    !can_change(parameter, LOSS)
}

/// Whether a parameter can change a metric.
pub(super) fn can_change(parameter: &Parameter, metric: &str) -> bool {
    let affects = parameter.affects.as_ref();
    affects.is_none_or(|affects| affects.iter().any(|affected| affected == metric))
}
