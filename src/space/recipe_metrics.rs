//! The metrics of trials that train recipes.

use peft_tune_core::objective::{
    BASE_KL, LOSS, LOSS_KEPT_PERCENT, PEAK_MEMORY, RETAINED_LOSS_INCREASE, REWARD_ACCURACY, REWARD_MARGIN,
    SERVE_MS_PER_TOKEN, THROUGHPUT, TOKEN_ACCURACY, TOKEN_ACCURACY_LOST_PERCENT, TOP1_AGREEMENT_PERCENT,
};

/// Metrics of trained recipes that a study may trade off or bound; a backend and a trainer have some of them.
pub(in crate::space) const RECIPE_METRICS: [&str; 12] = [
    THROUGHPUT,
    PEAK_MEMORY,
    LOSS,
    TOKEN_ACCURACY,
    TOKEN_ACCURACY_LOST_PERCENT,
    LOSS_KEPT_PERCENT,
    TOP1_AGREEMENT_PERCENT,
    RETAINED_LOSS_INCREASE,
    BASE_KL,
    REWARD_ACCURACY,
    REWARD_MARGIN,
    SERVE_MS_PER_TOKEN,
];
