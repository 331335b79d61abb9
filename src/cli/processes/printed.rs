//! What other programs print: all of it until they end, or are ended, and the last that they said.

use std::io;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use crate::report::printable;

/// Characters of a line that are shown.
const SHOWN: usize = 200;

/// Runs a command, without input, to its end; `None` where it does not come within `limit`, and the command is ended then.
///
/// # Errors
/// A command that cannot be started.
pub(in crate::cli) fn output_within(command: Command, limit: Duration) -> io::Result<Option<Output>> {
    let mut command = tokio::process::Command::from(command);
    command.stdin(Stdio::null()).kill_on_drop(true);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        match tokio::time::timeout(limit, command.output()).await {
            Ok(output) => output.map(Some),
            Err(_) => Ok(None),
        }
    })
}

/// The last line of what was printed, as far as it is shown; `None` where that is nothing.
pub(in crate::cli) fn last_words(printed: &[u8]) -> Option<String> {
    let printed = String::from_utf8_lossy(printed);
    let line = printed.lines().rfind(|line| !line.trim().is_empty())?;
    let shown: String = line.trim().chars().take(SHOWN).collect();
    Some(printable(&shown))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_waited_for_as_long_as_its_limit() {
        let shell = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            command
        };
        let output = output_within(shell("cat; echo first; echo last"), Duration::from_secs(60)).unwrap();
        assert_eq!(last_words(&output.unwrap().stdout).as_deref(), Some("last"));
        let late = output_within(shell("exec sleep 600"), Duration::from_millis(50));
        assert!(late.unwrap().is_none());
        assert!(output_within(Command::new("/no/such/program"), Duration::from_secs(1)).is_err());
        assert_eq!(last_words(b" \n"), None);
    }
}
