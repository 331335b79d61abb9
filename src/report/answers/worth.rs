//! What each setting is worth: every parameter on every objective.

use super::input::AnswersInput;
use peft_tune_search::Effect;

/// The effects of all parameters, in the order of the space.
pub(super) fn effects(input: &AnswersInput<'_>) -> Vec<Effect> {
    let parameters = input.problem.space.parameters.iter();
    parameters
        .flat_map(|parameter| input.insight.effects(&parameter.name))
        .collect()
}
