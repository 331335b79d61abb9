//! Threads that the system gives this process. Libraries panic where they get none, so this is looked at once, before anything.

use std::sync::{Arc, Barrier};
use std::thread::{Builder, JoinHandle, available_parallelism};

use crate::cli::CliError;
use crate::cli::terminal::output::tell;

/// Threads beside those that compute: the runtime's, the database's, signals, the readers of a worker's output.
const BESIDE: usize = 8;

/// Makes the threads that compute: as many as asked for, else as the environment or the machine says, or as many as the system gives.
/// Where `processes` share them, this one has its part.
///
/// # Errors
/// Not even the threads beside the computing ones can be had.
pub(in crate::cli) fn make(asked: Option<usize>, processes: usize) -> Result<(), CliError> {
    let of_environment = || {
        std::env::var("RAYON_NUM_THREADS")
            .ok()?
            .parse()
            .ok()
            .filter(|threads| *threads > 0)
    };
    let of_machine = || available_parallelism().map_or(1, usize::from);
    let all = asked.or_else(of_environment).unwrap_or_else(of_machine);
    let computing = (all / processes.max(1)).max(1);
    // The engine's pool is one of as many threads, and does without those that it cannot have.
    let given = most(2 * computing + BESIDE);
    if given < BESIDE {
        return Err(CliError::failed(anyhow::anyhow!(
            "the system gives this process {given} threads more, and {BESIDE} are needed: raise its limit (`ulimit -u` or `ulimit -v`, the \
             number of processes of a container), or end other programs"
        )));
    }
    let threads = ((given - BESIDE) / 2).clamp(1, computing);
    if threads < computing {
        tell(format_args!(
            "warning: the system gives this process {given} threads, so {threads} of {computing} compute"
        ));
    }
    // Now, since rayon would panic where it makes its threads later and cannot; it has them already where a caller made them.
    let _ = rayon::ThreadPoolBuilder::new().num_threads(threads).build_global();
    Ok(())
}

/// How many of so many threads can be had at once.
fn most(wanted: usize) -> usize {
    let mut waiting: Vec<(Arc<Barrier>, JoinHandle<()>)> = Vec::with_capacity(wanted);
    for _ in 0..wanted {
        let leave = Arc::new(Barrier::new(2));
        let wait = Arc::clone(&leave);
        // As large a stack as all have: address space may be what lacks.
        let thread = Builder::new().spawn(move || {
            wait.wait();
        });
        match thread {
            Ok(thread) => waiting.push((leave, thread)),
            Err(_) => break,
        }
    }
    let given = waiting.len();
    for (leave, thread) in waiting {
        leave.wait();
        let _ = thread.join();
    }
    given
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_counted_and_end() {
        assert_eq!(most(5), 5);
        make(None, 1).unwrap();
    }
}
