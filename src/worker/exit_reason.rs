//! Reasons for the end of a worker's process, and what they say about its trial.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use super::child::describe_end;
use peft_tune_core::study::{FailReason, Phase};
use peft_tune_engine::profile::OUT_OF_MEMORY_EXIT;

/// Knowledge of a worker that is gone.
pub(super) struct WorkerExit<'a> {
    pub(super) status: Option<ExitStatus>,
    /// End of the worker's standard error.
    pub(super) tail: &'a str,
    pub(super) phase: Phase,
    /// Failure that the worker told from inside the allocator.
    pub(super) out_of_memory: Option<FailReason>,
    /// Whether the kernel ended a process for lack of memory meanwhile.
    pub(super) kernel_killed: bool,
}

/// Whether a process ended because it could have no more memory, or no more than it was given.
pub(super) fn is_out_of_memory(status: Option<ExitStatus>, tail: &str) -> bool {
    // Said by the allocator, and by Rust's runtime, where the system has no more memory.
    let by_system = tail.contains("memory allocation of");
    by_system || status.and_then(|status| status.code()) == Some(OUT_OF_MEMORY_EXIT)
}

impl WorkerExit<'_> {
    /// The reason why the trial failed, and whether another attempt may fare better. Running out of memory is a result
    /// of the setting; anything else may have come from outside.
    pub(super) fn reason(self) -> (FailReason, bool) {
        let phase = self.phase;
        if let Some(reason) = self.out_of_memory {
            return (reason, false);
        }
        let by_system = self.kernel_killed && self.status.and_then(|status| status.signal()) == Some(libc::SIGKILL);
        if by_system || is_out_of_memory(self.status, self.tail) {
            let reason = FailReason::OutOfMemory {
                phase,
                in_use_bytes: None,
                requested_bytes: None,
                limit_bytes: None,
            };
            return (reason, false);
        }
        let message = describe_end(self.status, self.tail);
        (FailReason::Crashed { phase, message }, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn death(raw: i32, tail: &str, kernel_killed: bool) -> (&'static str, bool) {
        let exit = WorkerExit {
            status: Some(ExitStatus::from_raw(raw)),
            tail,
            phase: Phase::Train,
            out_of_memory: None,
            kernel_killed,
        };
        let (reason, transient) = exit.reason();
        (reason.name(), transient)
    }

    #[test]
    fn a_kill_is_the_kernel_s_only_where_the_kernel_says_so() {
        assert_eq!(death(9, "", false), ("crashed", true));
        assert_eq!(death(9, "", true), ("out_of_memory", false));
        assert_eq!(death(11, "", true), ("crashed", true));
    }

    #[test]
    fn memory_that_cannot_be_had_is_a_result() {
        assert_eq!(
            death(6, "memory allocation of 8192 bytes failed", false),
            ("out_of_memory", false)
        );
        assert_eq!(death(OUT_OF_MEMORY_EXIT << 8, "", false), ("out_of_memory", false));
        assert_eq!(death(6, "assertion failed", false), ("crashed", true));
    }
}
