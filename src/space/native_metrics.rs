//! The metrics that the native backend measures.

use peft_tune_core::objective::{
    LOSS, LOSS_KEPT_PERCENT, PEAK_MEMORY, THROUGHPUT, TOKEN_ACCURACY, TOKEN_ACCURACY_LOST_PERCENT,
    TOP1_AGREEMENT_PERCENT,
};

/// The metrics of the native backend that a study may trade off or bound; others have them, or some of them.
pub(in crate::space) const NATIVE_METRICS: [&str; 7] = [
    THROUGHPUT,
    PEAK_MEMORY,
    LOSS,
    TOKEN_ACCURACY,
    TOKEN_ACCURACY_LOST_PERCENT,
    LOSS_KEPT_PERCENT,
    TOP1_AGREEMENT_PERCENT,
];
