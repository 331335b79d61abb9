//! Check before Hopper's form of attention is used on a device: on a small problem, it gives what the tiled form gives.
//!
//! Both forms round differently, but by little; a fault of an instruction's operands gives other numbers altogether. A GPU on which the
//! two differ, or on which Hopper's form does not start, uses the tiled one and says so.
//!
//! A kernel that traps costs a process its context, and one that hangs its time. So the form is tried in a process of its own, with a
//! limit, where the program has named one ([`probe_apart_by`]).

use std::collections::HashMap;
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::sync::{LazyLock, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use candle_core::{DType, Device, DeviceLocation, Result};

use super::forms::Form;
use super::launches::both_passes_by;
use crate::compare::{error, pair, worst};
use crate::kernel_form::unnoted;
use crate::ops::attention::settings::Settings;

/// Largest difference, in parts of the largest value. Rounding to BF16 in both makes up to 1%; a wrong operand makes all of it.
const ALLOWED: f64 = 0.1;

/// Two documents; more rows than a block has.
const OFFSETS: [u32; 3] = [0, 60, 150];

/// How long trying a form may take: a process's start, its context and, the first time, NVRTC; the kernels take microseconds.
const LIMIT: Duration = Duration::from_secs(60);

/// How often the process that tries is looked at.
const TICK: Duration = Duration::from_millis(10);

/// How long a process that was killed may take to be gone. One whose kernel hangs may stay for as long as the driver holds it.
const FAREWELL: Duration = Duration::from_secs(2);

/// Device, dtype and size of heads.
type Key = (DeviceLocation, DType, usize);

static VERDICTS: LazyLock<Mutex<HashMap<Key, bool>>> = LazyLock::new(Mutex::default);

/// Maker of the process that tries.
type Start = fn() -> Option<Command>;

// Design note: process-wide, as the verdicts are; only the program knows how it is called.
static START: OnceLock<Start> = OnceLock::new();

/// Lets forms be tried in a process that `start` makes. It gets `--device`, `--dtype` and `--head-dim`, runs [`Probe::run`], and prints
/// what that returns. Without such a process this one tries them itself.
pub fn probe_apart_by(start: Start) {
    // The first one stays.
    let _ = START.set(start);
}

/// Hopper's form, for heads of one size, on a device.
#[derive(Clone, Copy, Debug)]
pub struct Probe<'a> {
    pub device: &'a Device,
    pub dtype: DType,
    pub head_dim: usize,
}

/// Why Hopper's form is not used.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    #[error("there are none for heads of {head_dim}")]
    NoForm { head_dim: usize },
    #[error("their values differ from those of the kernels for all GPUs by {:.0}% of the largest; please report it", 100.0 * difference)]
    Differs { difference: f64 },
    #[error("they were not done within {limit:?}")]
    TooLate { limit: Duration },
    #[error("the process that tried them ended with {status}: {tail}")]
    Died { status: String, tail: String },
    #[error("no process to try them in: {0}")]
    Start(#[from] std::io::Error),
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
}

/// Whether `form`, which is `hopper`'s for heads of `head_dim`, gives what the tiled form gives. Found out once in a process.
pub(super) fn is_right(form: Form, head_dim: usize, dtype: DType, device: &Device) -> bool {
    let mut verdicts = VERDICTS.lock().unwrap_or_else(PoisonError::into_inner);
    let verdict = verdicts.entry((device.location(), dtype, head_dim));
    *verdict.or_insert_with(|| {
        let probe = Probe {
            device,
            dtype,
            head_dim,
        };
        let tried = match START.get().and_then(|start| start()) {
            Some(command) => probe.apart(command, limit()),
            None => probe.by_itself(form),
        };
        let tried = tried.and_then(|difference| match difference <= ALLOWED {
            true => Ok(()),
            false => Err(ProbeError::Differs { difference }),
        });
        if let Err(error) = &tried {
            tracing::warn!(
                head_dim,
                ?dtype,
                "attention's kernels for Hopper are not used, but those for all GPUs: {error}"
            );
        }
        tried.is_ok()
    })
}

/// `PEFT_TUNE_PROBE_SECONDS` sets another limit.
fn limit() -> Duration {
    let text = std::env::var("PEFT_TUNE_PROBE_SECONDS").ok();
    let seconds = text.and_then(|text| text.parse().ok());
    seconds
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .unwrap_or(LIMIT)
}

impl Probe<'_> {
    /// The largest difference of results and gradients from those of the tiled form, in parts of the largest value.
    ///
    /// # Errors
    /// No such form, a kernel that does not start, a device that has failed.
    pub fn run(&self) -> std::result::Result<f64, ProbeError> {
        let form = Form::hopper(self.head_dim).ok_or(ProbeError::NoForm {
            head_dim: self.head_dim,
        })?;
        self.by_itself(form)
    }

    fn by_itself(&self, form: Form) -> std::result::Result<f64, ProbeError> {
        let difference = unnoted(|| difference(form, self.head_dim, self.dtype, self.device))?;
        // What is no number is as far off as can be.
        Ok(if difference.is_nan() { f64::INFINITY } else { difference })
    }

    /// Runs as `run` does, in another process.
    fn apart(&self, mut command: Command, limit: Duration) -> std::result::Result<f64, ProbeError> {
        let device = match self.device.location() {
            DeviceLocation::Cuda { gpu_id } => format!("cuda:{gpu_id}"),
            _ => "cpu".to_owned(),
        };
        let head_dim = self.head_dim.to_string();
        command.args([
            "--device",
            &device,
            "--dtype",
            self.dtype.as_str(),
            "--head-dim",
            &head_dim,
        ]);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        end_with_this_process(&mut command);
        let mut child = command.spawn()?;
        let texts = [read_whole(child.stdout.take()), read_whole(child.stderr.take())];
        let started = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            if started.elapsed() >= limit {
                end(child);
                return Err(ProbeError::TooLate { limit });
            }
            std::thread::sleep(TICK);
        };
        let [output, errors] = texts.map(|text| text.and_then(|text| text.join().ok()).unwrap_or_default());
        let said = output.lines().last().and_then(|line| line.trim().parse().ok());
        match said {
            Some(difference) if status.success() => Ok(difference),
            _ => Err(ProbeError::Died {
                status: status.to_string(),
                tail: errors.lines().last().unwrap_or("no message").to_owned(),
            }),
        }
    }
}

/// Lets the process be ended with this one, whatever ends it: it holds memory of the GPU.
fn end_with_this_process(command: &mut Command) {
    #[cfg(target_os = "linux")]
    {
        use std::os::unix::process::CommandExt;

        // SAFETY: the call is one that may be made between fork and exec, and touches no memory.
        unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            })
        };
    }
    #[cfg(not(target_os = "linux"))]
    let _ = command;
}

/// Reads a stream to its end in a thread, so that the process never waits for a reader.
fn read_whole(stream: Option<impl Read + Send + 'static>) -> Option<std::thread::JoinHandle<String>> {
    let mut stream = stream?;
    Some(std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    }))
}

/// Kills a process, and leaves what does not die to its driver.
fn end(mut child: Child) {
    let _ = child.kill();
    let asked = Instant::now();
    while asked.elapsed() < FAREWELL && matches!(child.try_wait(), Ok(None)) {
        std::thread::sleep(TICK);
    }
}

/// The largest difference of results and gradients between `form` and the tiled one, in parts of the largest value.
pub(super) fn difference(form: Form, head_dim: usize, dtype: DType, device: &Device) -> Result<f64> {
    let Some(tiled) = Form::tiled(head_dim, device) else {
        candle_core::bail!("no tiled form for heads of {head_dim}");
    };
    let tensor = |heads: usize, seed| {
        let shape = [OFFSETS[2] as usize, heads, head_dim];
        pair(&shape, seed, 1.0, dtype, device).map(|(tensor, _)| tensor)
    };
    let (q, k, v, d_o) = (tensor(2, 1)?, tensor(1, 2)?, tensor(1, 3)?, tensor(2, 4)?);
    let settings = Settings {
        scale: 4.0 / (head_dim as f64).sqrt(),
        window: None,
        soft_cap: None,
    };
    let run = |form| both_passes_by(form, [&q, &k, &v, &d_o], &OFFSETS, &settings);
    let (own, other) = (run(form)?, run(tiled)?);
    let errors: Result<Vec<f64>> = own.iter().zip(&other).map(|(one, other)| error(one, other)).collect();
    Ok(worst(&errors?))
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    /// Result of a probe whose process is this shell script.
    fn probe(script: &str, limit: Duration) -> std::result::Result<f64, ProbeError> {
        let mut shell = Command::new("sh");
        shell.args(["-c", script, "probe"]);
        let probe = Probe {
            device: &Device::Cpu,
            dtype: DType::BF16,
            head_dim: 128,
        };
        probe.apart(shell, limit)
    }

    #[test]
    fn a_process_that_tries_a_form_is_told_what_and_says_how_far_off_it_is() {
        let said = probe(
            "test \"$*\" = '--device cpu --dtype bf16 --head-dim 128' && echo 0.25",
            LIMIT,
        );
        assert_eq!(said.unwrap(), 0.25);
    }

    #[test]
    fn a_process_that_dies_or_hangs_is_an_error_within_the_limit() {
        let died = probe("echo 0.0; echo 'illegal instruction' >&2; kill -ILL $$", LIMIT).unwrap_err();
        assert!(
            matches!(&died, ProbeError::Died { tail, .. } if tail == "illegal instruction"),
            "{died}"
        );
        assert!(matches!(probe("exit 0", LIMIT), Err(ProbeError::Died { .. })));
        let started = Instant::now();
        let late = probe("exec sleep 60", Duration::from_millis(200));
        assert!(matches!(late, Err(ProbeError::TooLate { .. })));
        assert!(started.elapsed() < Duration::from_secs(10));
    }
}
