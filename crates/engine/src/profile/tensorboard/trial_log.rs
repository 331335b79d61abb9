//! The events of a trial, rendered from what was stored of it: the same trial gives the same bytes.

use super::event::{self, Scalar};
use super::hparams::{self, HparamValue};
use super::record::{framed, whole_records};

/// Bytes of the event file of one trial, or of a part of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TrialLog {
    bytes: Vec<u8>,
}

/// How a trial begins in the table.
#[derive(Clone, Debug)]
pub struct TrialStart<'a> {
    /// Name of its row.
    pub name: &'a str,
    /// Seconds since 1970.
    pub at_s: f64,
    /// Columns of the table, which are those of all trials.
    pub columns: &'a [&'a str],
    pub params: &'a [(&'a str, HparamValue)],
    /// Tags of the numbers that the table shows beside the params.
    pub metrics: &'a [&'a str],
    /// Whether an attempt before it was lost: what TensorBoard has of that goes.
    pub again: bool,
}

impl TrialLog {
    /// A file's begin. It belongs into a file called [`TrialLog::file_name`].
    pub fn begin(start: &TrialStart<'_>) -> Self {
        let mut log = Self::default();
        log.add(&event::version(start.at_s));
        if start.again {
            log.add(&event::session_start(start.at_s, 0));
        }
        log.add(&hparams::columns(start.at_s, start.columns, start.metrics));
        log.add(&hparams::session_start(start.at_s, start.name, start.params));
        log
    }

    /// The name of a file that TensorBoard reads, with whose it is. TensorBoard reads the files of a folder in the order of
    /// their names: that of a later attempt comes last.
    pub fn file_name(at_s: f64, owner: &str) -> String {
        format!("events.out.tfevents.{:010}.{owner}", at_s.max(0.0) as u64)
    }

    /// Adds numbers of one step; those that are not finite are left out.
    pub fn scalars(&mut self, at_s: f64, step: u64, values: &[(&str, f64)]) {
        let scalars: Vec<Scalar<'_>> = values
            .iter()
            .filter(|(_, value)| value.is_finite())
            .map(|(tag, value)| Scalar { tag, value: *value })
            .collect();
        if !scalars.is_empty() {
            self.add(&event::scalars(at_s, step, &scalars));
        }
    }

    /// Says how the trial ended.
    pub fn end(&mut self, at_s: f64, succeeded: bool) {
        self.add(&hparams::session_end(at_s, succeeded));
    }

    /// The bytes so far.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Bytes at the front of a file's that are whole events: what stands behind them was torn.
    pub fn whole_bytes(file: &[u8]) -> usize {
        whole_records(file)
    }

    fn add(&mut self, event: &[u8]) {
        self.bytes.extend(framed(event));
    }
}
