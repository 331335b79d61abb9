//! Programs under test that can be interrupted whoever runs the tests.

use std::os::unix::process::CommandExt;
use std::process::Command;

/// Whoever runs the tests with `nohup` or in a script's background ignores Ctrl-C and a closed terminal, and children
/// inherit that; this one shall not.
pub(crate) fn heeds_signals(command: &mut Command) {
    // SAFETY: between fork and exec only `signal` is called, which is async-signal-safe.
    unsafe {
        command.pre_exec(|| {
            for number in [libc::SIGINT, libc::SIGHUP, libc::SIGTERM] {
                libc::signal(number, libc::SIG_DFL);
            }
            Ok(())
        });
    }
}
