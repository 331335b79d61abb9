//! A verdict on the built-in engine on a GPU.

use serde::{Deserialize, Serialize};

use crate::cli::processes::interpreter::Stack;
use crate::report::duration;

/// What the engine's results on a GPU are held against.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::cli) enum Reference {
    /// The engine itself, on the processor.
    Cpu,
    /// TRL on PyTorch, on the same GPU.
    Trl,
}

impl Reference {
    /// TRL in a Python; the CPU where there is none.
    pub(super) fn by(stack: Option<&Stack>) -> Self {
        stack.map_or(Self::Cpu, |_| Self::Trl)
    }

    /// The reference, for people.
    pub(super) fn text(self) -> &'static str {
        match self {
            Self::Cpu => "the CPU",
            Self::Trl => "TRL",
        }
    }
}

/// What a check found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(in crate::cli) struct Verdict {
    pub against: Reference,
    /// Number of comparisons that were made.
    pub compared: usize,
    /// What did not pass, a line each; none where the engine is right.
    pub failed: Vec<String>,
    /// Time that the check took.
    pub seconds: f64,
}

impl Verdict {
    /// Whether the engine may be used, as far as this check says.
    pub(in crate::cli) fn has_passed(&self) -> bool {
        self.compared > 0 && self.failed.is_empty()
    }

    /// What was found, for people: how much passed, or what failed first.
    pub(super) fn text(&self) -> String {
        let against = self.against.text();
        let took = duration(self.seconds);
        match self.failed.as_slice() {
            [] => format!("{} comparisons with {against} in {took}", self.compared),
            [one] => format!("against {against} in {took}: {one}"),
            [first, others @ ..] => format!("against {against} in {took}: {first}, and {} more", others.len()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_check_that_compared_and_found_nothing_has_passed() {
        let verdict = |compared: usize, failed: &[&str]| Verdict {
            against: Reference::Cpu,
            compared,
            failed: failed.iter().map(ToString::to_string).collect(),
            seconds: 74.0,
        };
        assert!(verdict(3, &[]).has_passed());
        assert!(!verdict(0, &[]).has_passed());
        assert!(!verdict(3, &["x"]).has_passed());
        assert_eq!(verdict(3, &[]).text(), "3 comparisons with the CPU in 1m 14s");
        assert_eq!(verdict(3, &["x"]).text(), "against the CPU in 1m 14s: x");
        assert!(verdict(3, &["x", "y", "z"]).text().ends_with(": x, and 2 more"));
    }
}
