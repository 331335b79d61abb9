//! Text that tokens were made of.

use std::ops::Range;

/// Text that tokens were made of, for who looks at them.
#[derive(Debug, Default)]
pub(super) struct Trace {
    pub text: String,
    /// Ends of the tokens in the text, in bytes; 0 for special tokens that were put in front.
    pub ends: Vec<usize>,
    /// Texts of messages with their roles.
    pub roles: Vec<(Range<usize>, String)>,
}

impl Trace {
    /// The role of the message that a byte of the text is of.
    pub(super) fn role_at(&self, at: usize) -> Option<&str> {
        let mut roles = self.roles.iter();
        roles
            .find(|(range, _)| range.contains(&at))
            .map(|(_, role)| role.as_str())
    }
}
