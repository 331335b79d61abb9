//! Numbers of a training in its event file.
//!
//! | tag | unit |
//! |---|---|
//! | `train/loss`, `held_out/loss` | nats |
//! | `train/learning_rate` | 1 |
//! | `train/grad_norm` | 1, before clipping |
//! | `train/precision_bits` | bits that the step computed in, with a `precision_schedule` |
//! | `train/tokens_per_s` | tokens/s |
//! | `held_out/accuracy` | 1 |
//! | `memory/in_use`, `memory/peak` | bytes of the device that trains |
//! | `memory/resident` | bytes of the process's resident set |

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use super::event::{self, Scalar};
use super::record::framed;
use crate::profile::{DeviceMemory, resident_bytes};
use crate::{Evaluation, StepEvent};

/// An event file of one training, or of one part of it where it was resumed.
#[derive(Debug)]
pub struct TensorBoard {
    file: File,
    path: PathBuf,
    memory: DeviceMemory,
}

impl TensorBoard {
    /// Starts a file in `folder`, which is made where it is missing. `step` steps have been taken: of those that earlier
    /// files in the folder have beyond them TensorBoard shows nothing more. `memory` counts for the device that trains.
    pub fn create(folder: &Path, step: u64, memory: DeviceMemory) -> io::Result<Self> {
        std::fs::create_dir_all(folder)?;
        let now = wall_time_s();
        let host = sysinfo::System::host_name().unwrap_or_else(|_| "localhost".to_owned());
        // TensorBoard reads the files of a folder in the order of their names; the time has ten digits until 2286.
        let name = format!("events.out.tfevents.{now:.6}.{host}.{}", std::process::id());
        let path = folder.join(name.replace('/', "_"));
        let file = File::create_new(&path)?;
        let mut log = Self { file, path, memory };
        log.write(&event::version(now))?;
        if step > 0 {
            log.write(&event::session_start(now, step + 1))?;
        }
        Ok(log)
    }

    /// A file in `folder` that has lost its name: it takes what any takes, and is gone once it is closed.
    pub fn nameless(folder: &Path, memory: DeviceMemory) -> io::Result<Self> {
        let log = Self::create(folder, 0, memory)?;
        std::fs::remove_file(&log.path)?;
        Ok(log)
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Adds a step.
    pub fn step(&mut self, step: &StepEvent) -> io::Result<()> {
        let mut scalars = vec![
            scalar("train/loss", step.loss),
            scalar("train/learning_rate", step.learning_rate),
            scalar("train/grad_norm", step.grad_norm),
            scalar("train/tokens_per_s", step.tokens_per_s()),
            scalar("memory/in_use", self.memory.in_use_bytes() as f64),
            scalar("memory/peak", self.memory.peak_bytes() as f64),
        ];
        scalars.extend(resident_bytes().map(|bytes| scalar("memory/resident", bytes as f64)));
        let bits = step.precision.map(|precision| precision.row().bits);
        scalars.extend(bits.map(|bits| scalar("train/precision_bits", bits as f64)));
        self.write(&event::scalars(wall_time_s(), step.step, &scalars))
    }

    /// Adds an evaluation.
    pub fn evaluation(&mut self, evaluation: &Evaluation) -> io::Result<()> {
        let scalars = [
            scalar("held_out/loss", evaluation.loss),
            scalar("held_out/accuracy", evaluation.accuracy),
        ];
        self.write(&event::scalars(wall_time_s(), evaluation.step, &scalars))
    }

    /// Adds numbers of one step.
    pub(super) fn scalars(&mut self, step: u64, scalars: &[Scalar<'_>]) -> io::Result<()> {
        self.write(&event::scalars(wall_time_s(), step, scalars))
    }

    /// Writes one record in one piece, so that a reader at the other end sees whole ones.
    fn write(&mut self, event: &[u8]) -> io::Result<()> {
        self.file.write_all(&framed(event))
    }
}

fn scalar(tag: &str, value: f64) -> Scalar<'_> {
    Scalar { tag, value }
}

fn wall_time_s() -> f64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0.0, |since| since.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::StepSeconds;

    #[test]
    fn a_nameless_file_takes_steps_and_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = TensorBoard::nameless(folder.path(), DeviceMemory::Host).unwrap();
        let step = StepEvent {
            step: 1,
            loss: 2.0,
            learning_rate: 1e-4,
            grad_norm: 1.0,
            tokens: 10,
            target_tokens: 10,
            seconds: StepSeconds::default(),
            precision: None,
            precision_decision: None,
        };
        log.step(&step).unwrap();
        assert!(log.file.metadata().unwrap().len() > 100);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
