//! `search --detach`: the search continues in a session of its own, whatever becomes of the terminal.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::cli::CliError;
use crate::cli::options::database::{DatabaseArgs, block_on};
use crate::cli::terminal::output::{tell_part, write_result};
use crate::files::plain_name;
use crate::report::printable;
use crate::space::Study;
use crate::store::Store;

/// How long a search may take until it runs its study: it may have to download a model.
const BEGIN_WITHIN: Duration = Duration::from_secs(600);
/// Time between two looks at a search that has not begun.
const LOOK: Duration = Duration::from_millis(50);

/// File that a search in the background writes, unless another was named: beside the database, under the study's name.
pub(super) fn log_path(database: &DatabaseArgs, study: &Study) -> PathBuf {
    let name = plain_name(&study.name);
    let mut path = database.path().into_os_string();
    path.push(format!("-{name}.log"));
    path.into()
}

/// Starts this program again with the same arguments but `--detach`, logging to `log`, and waits until it runs the study.
///
/// # Errors
/// The search ended before that: with its own exit code, after its messages.
pub(super) fn detach(database: &DatabaseArgs, study: &Study, log: &Path, own_log: bool) -> Result<(), CliError> {
    let cannot = |error: std::io::Error| {
        let message = format!(
            "cannot start a search in the background with its log in {}",
            log.display()
        );
        CliError::failed(anyhow::Error::new(error).context(message))
    };
    let mut file = OpenOptions::new()
        .create(true)
        .append(true)
        .read(true)
        .open(log)
        .map_err(cannot)?;
    let from = file.seek(SeekFrom::End(0)).map_err(cannot)?;
    let mut child = start(log, &file, own_log).map_err(cannot)?;
    let began = Instant::now();
    while began.elapsed() < BEGIN_WITHIN {
        if let Some(status) = child.try_wait().map_err(cannot)? {
            let said = read_from(&mut file, from).map_err(cannot)?;
            if status.success() {
                return write_result(&said);
            }
            tell_part(format_args!("{said}"));
            let code = status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1);
            let log = log.display().to_string();
            return Err(CliError::Detached { log, code });
        }
        if runs(database, study, child.id()) {
            break;
        }
        std::thread::sleep(LOOK);
    }
    write_result(&format!(
        "study {name} runs in the background (process {process}); its log is {log}\n{status}\n{attach}\n{stop}\n",
        name = printable(&study.name),
        process = child.id(),
        log = printable(&log.display().to_string()),
        status = database.command(&["status"], Some(&study.name)),
        attach = database.command(&["attach"], Some(&study.name)),
        stop = database.command(&["stop"], Some(&study.name)),
    ))
}

fn start(log: &Path, file: &File, own_log: bool) -> std::io::Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    let log = own_log.then_some(log);
    command
        .args(arguments_of_search(std::env::args_os().skip(1), log))
        .stdin(Stdio::null())
        .stdout(file.try_clone()?)
        .stderr(file.try_clone()?);
    let leave = || {
        // SAFETY: the call has no arguments, and may be made between fork and exec.
        match unsafe { libc::setsid() } {
            -1 => Err(std::io::Error::last_os_error()),
            _ => Ok(()),
        }
    };
    // SAFETY: the closure allocates nothing and takes no lock.
    unsafe { std::os::unix::process::CommandExt::pre_exec(&mut command, leave) };
    command.spawn()
}

/// The arguments without `--detach`, and with the log. What stands behind `--` is no flag.
fn arguments_of_search(given: impl Iterator<Item = OsString>, log: Option<&Path>) -> Vec<OsString> {
    let given: Vec<OsString> = given.collect();
    let flags = given.iter().take_while(|argument| *argument != "--").count();
    let (flags, behind) = given.split_at(flags);
    let flags = flags.iter().filter(|flag| *flag != "--detach");
    let log = log.map(|log| ["--log-file".into(), log.as_os_str().to_owned()]);
    let log = log.into_iter().flatten();
    flags.cloned().chain(log).chain(behind.iter().cloned()).collect()
}

/// Whether the process runs the study by now.
fn runs(database: &DatabaseArgs, study: &Study, process: u32) -> bool {
    let running = block_on(async {
        let store = Store::open_read_only(&database.path()).await?;
        let found = store.studies().find(Some(&study.name)).await?;
        let runner = store.studies().live_runner(found.id);
        // A search that begins while this looks is what this waits for.
        let _ = store.close().await;
        Ok(runner)
    });
    running.is_ok_and(|runner| runner.is_some_and(|runner| runner.process == process))
}

fn read_from(file: &mut File, from: u64) -> std::io::Result<String> {
    file.seek(SeekFrom::Start(from))?;
    let mut said = Vec::new();
    file.read_to_end(&mut said)?;
    Ok(String::from_utf8_lossy(&said).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_behind_two_dashes_stays_there() {
        let of = |line: &str, log: Option<&str>| {
            let given = line.split(' ').map(OsString::from);
            let words = arguments_of_search(given, log.map(Path::new));
            words.join(std::ffi::OsStr::new(" ")).into_string().unwrap()
        };
        assert_eq!(of("search --detach a.yaml", None), "search a.yaml");
        assert_eq!(of("search a.yaml --detach", Some("x")), "search a.yaml --log-file x");
        assert_eq!(
            of("search --detach -- --detach", Some("x")),
            "search --log-file x -- --detach"
        );
    }
}
