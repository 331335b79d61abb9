//! The metrics of trials that train recipes.

use peft_tune_core::objective::{
    LOSS, LOSS_KEPT_PERCENT, PEAK_MEMORY, REWARD_ACCURACY, REWARD_MARGIN, THROUGHPUT, TOKEN_ACCURACY,
    TOKEN_ACCURACY_LOST_PERCENT, TOP1_AGREEMENT_PERCENT,
};

/// Metrics of trained recipes that a study may trade off or bound; a backend and a trainer have some of them.
pub(in crate::space) const RECIPE_METRICS: [&str; 9] = [
    THROUGHPUT,
    PEAK_MEMORY,
    LOSS,
    TOKEN_ACCURACY,
    TOKEN_ACCURACY_LOST_PERCENT,
    LOSS_KEPT_PERCENT,
    TOP1_AGREEMENT_PERCENT,
    REWARD_ACCURACY,
    REWARD_MARGIN,
];
