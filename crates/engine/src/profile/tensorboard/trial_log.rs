//! An event file of a trial that is over, written from what was stored of it.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use super::event::{self, Scalar};
use super::hparams::{self, HparamValue};
use super::record::framed;

/// An event file of one finished trial.
#[derive(Debug)]
pub struct TrialLog {
    file: BufWriter<File>,
}

/// How a trial begins in the table.
#[derive(Clone, Debug)]
pub struct TrialStart<'a> {
    /// Name of its row.
    pub name: &'a str,
    /// Seconds since 1970.
    pub at_s: f64,
    pub params: &'a [(&'a str, HparamValue)],
    /// Tags of the numbers that the table shows beside the params.
    pub metrics: &'a [&'a str],
}

impl TrialLog {
    /// Starts the file `events.out.tfevents.N.peft-tune` in `folder`, which is made where it is missing. A file of that
    /// name, of an export before, is replaced.
    pub fn create(folder: &Path, start: &TrialStart<'_>) -> io::Result<Self> {
        std::fs::create_dir_all(folder)?;
        let name = format!("events.out.tfevents.{:010}.peft-tune", start.at_s.max(0.0) as u64);
        let mut log = Self {
            file: BufWriter::new(File::create(folder.join(name))?),
        };
        log.write(&event::version(start.at_s))?;
        let names: Vec<&str> = start.params.iter().map(|(name, _)| *name).collect();
        log.write(&hparams::columns(start.at_s, &names, start.metrics))?;
        log.write(&hparams::session_start(start.at_s, start.name, start.params))?;
        Ok(log)
    }

    /// Adds numbers of one step; those that are not finite are left out.
    pub fn scalars(&mut self, at_s: f64, step: u64, values: &[(&str, f64)]) -> io::Result<()> {
        let scalars: Vec<Scalar<'_>> = values
            .iter()
            .filter(|(_, value)| value.is_finite())
            .map(|(tag, value)| Scalar { tag, value: *value })
            .collect();
        if scalars.is_empty() {
            return Ok(());
        }
        self.write(&event::scalars(at_s, step, &scalars))
    }

    /// Says how the trial ended, and writes everything out.
    pub fn finish(mut self, at_s: f64, succeeded: bool) -> io::Result<()> {
        self.write(&hparams::session_end(at_s, succeeded))?;
        self.file.flush()
    }

    fn write(&mut self, event: &[u8]) -> io::Result<()> {
        self.file.write_all(&framed(event))
    }
}
