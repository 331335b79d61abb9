//! Repeats of a trial whose process was lost, and when it is set aside.

/// Attempts that a trial may lose, by default.
const ATTEMPTS: u64 = 3;
/// Trials set aside in a row after which it cannot be the settings' fault.
const SET_ASIDE_IN_A_ROW: u64 = 4;

/// Number of attempts that trials may lose.
#[derive(Clone, Copy, Debug)]
pub(super) struct RetryPolicy {
    attempts: u64,
    /// Trials that were set aside since one ended by itself.
    set_aside: u64,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            attempts: ATTEMPTS,
            set_aside: 0,
        }
    }
}

impl RetryPolicy {
    /// Lets each trial lose so many attempts before it is set aside.
    pub(super) fn allow(&mut self, attempts: u64) {
        self.attempts = attempts.max(1);
    }

    /// Whether a trial that has lost so many attempts is repeated.
    pub(super) fn repeats(&self, lost: u64) -> bool {
        lost < self.attempts
    }

    /// Notes that a trial ended by itself.
    pub(super) fn renew(&mut self) {
        self.set_aside = 0;
    }

    /// Counts a trial that is set aside; returns how many were in a row, where that cannot be the settings' fault.
    pub(super) fn set_aside(&mut self) -> Option<u64> {
        self.set_aside += 1;
        (self.set_aside >= SET_ASIDE_IN_A_ROW).then_some(self.set_aside)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trial_is_repeated_until_its_attempts_are_lost() {
        let mut policy = RetryPolicy::default();
        assert!(policy.repeats(ATTEMPTS - 1) && !policy.repeats(ATTEMPTS));
        policy.allow(0);
        assert!(!policy.repeats(1), "the first attempt is the last");
    }

    #[test]
    fn trials_that_are_set_aside_in_a_row_are_not_the_settings_fault() {
        let mut policy = RetryPolicy::default();
        assert_eq!([(); 3].map(|()| policy.set_aside()), [None; 3]);
        policy.renew();
        assert_eq!([(); 4].map(|()| policy.set_aside()), [None, None, None, Some(4)]);
    }
}
