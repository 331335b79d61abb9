//! `peft-tune worker`: the trial process. A search starts it by itself.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::cli::CliError;
use crate::cli::options::backend::BackendName;
use crate::cli::options::compute::{KernelArgs, use_threads};
use crate::space::Loader;
use crate::worker::{About, CAPABILITIES, PythonWorker, ServeSettings, memory_limiter, pin_to, serve, usable_cpus};
use peft_tune_kernels::device;
use peft_tune_kernels::set_kernels;

/// How long a worker whose coordinator is gone may take to end its step before it ends in the middle of it.
const ALONE: Duration = Duration::from_secs(5);

/// Run trials that a coordinator sends on standard input (one JSON object a line), and report on standard output.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// Threads to compute with [default: all cores].
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Processors to stay on, such as `0,1`.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    cpus: Vec<usize>,
    /// Device to compute on, such as `cpu` or `cuda:1` [default: the first GPU, else the CPU].
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// Engine that trains: the built-in one, or TRL or unsloth in a Python that this process becomes.
    #[arg(long, value_enum, default_value_t)]
    backend: BackendName,
    /// Python that has TRL or unsloth.
    #[arg(long, value_name = "PATH", required_if_eq_any([("backend", "trl"), ("backend", "unsloth")]))]
    python: Option<PathBuf>,
    #[command(flatten)]
    kernels: KernelArgs,
}

/// Serves until standard input ends.
pub(in crate::cli) fn run(args: Args) -> Result<(), CliError> {
    // Before any thread is started, so that all of them stay there.
    let pinned = !args.cpus.is_empty() && pin_to(&args.cpus);
    if let Some(threads) = args.threads {
        use_threads(threads);
    }
    let mock_s: Option<f64> = variable("PEFT_TUNE_MOCK").and_then(|seconds| seconds.parse().ok());
    if let (Some(loader), Some(python), None) = (args.backend.loader(), &args.python, mock_s) {
        return Err(become_python(loader, python, args.device.as_deref(), args.threads));
    }
    set_kernels(args.kernels.form());
    let device = args.device.unwrap_or_else(|| device::default_name().to_owned());
    // Before the greeting: a worker without its device is none, and no trial is to blame.
    if mock_s.is_none() {
        device::check(&device).map_err(CliError::bad_input)?;
    }
    let about = About {
        process: std::process::id(),
        host: sysinfo::System::host_name().unwrap_or_default(),
        device: device.clone(),
        threads: args.threads.unwrap_or_else(|| usable_cpus().len()),
        cpus: if pinned { args.cpus } else { Vec::new() },
        kernels: args.kernels.form(),
        memory_limiter: memory_limiter(),
        capabilities: CAPABILITIES.map(str::to_owned).to_vec(),
    };
    let settings = ServeSettings {
        about,
        device: Some(device),
        mock_s,
        fault: variable("PEFT_TUNE_FAULT"),
    };
    let input = std::io::BufReader::new(std::io::stdin());
    let end = || {
        std::thread::sleep(ALONE);
        std::process::exit(1);
    };
    serve(settings, input, std::io::stdout(), end).map_err(CliError::failed)
}

/// Becomes the worker in Python. Returns only where that fails.
fn become_python(loader: Loader, python: &Path, device: Option<&str>, threads: Option<usize>) -> CliError {
    let Some(device) = device else {
        return CliError::bad(format!(
            "a worker of `--backend {}` needs `--device`, such as `cpu` or `cuda:0`",
            loader.name()
        ));
    };
    let threads = threads.unwrap_or_else(|| usable_cpus().len());
    match PythonWorker::new(python, loader) {
        Ok(worker) => CliError::bad_input(worker.replace_process(device, threads)),
        Err(error) => CliError::bad_input(error),
    }
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}
