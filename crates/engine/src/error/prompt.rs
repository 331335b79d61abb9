//! Prompts that a model cannot answer.

/// A prompt that a model cannot answer.
#[derive(Debug, thiserror::Error)]
pub enum PromptError {
    #[error("this model has {adapters} adapters side by side: say which one each sequence is answered with")]
    SeveralAdapters { adapters: usize },

    #[error("adapter {number} is asked for, and there are {adapters}, counted from 0, one for each prompt")]
    NoSuchAdapter { number: usize, adapters: usize },

    #[error(
        "a prompt of {prompt_tokens} tokens and {new_tokens} new ones need {needed} positions, and this model has {positions}; \
         shorten the prompt, or lower `--new-tokens`",
        needed = prompt_tokens + new_tokens
    )]
    NoRoom {
        prompt_tokens: usize,
        new_tokens: usize,
        positions: usize,
    },

    #[error("the prompt has no tokens; write at least one word")]
    Empty,

    #[error("the prompt has {tokens} tokens, but this model has only {max_positions} positions; shorten it")]
    TooLong { tokens: usize, max_positions: usize },
}
