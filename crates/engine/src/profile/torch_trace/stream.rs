//! The file of a trace, read event by event: it is never in memory as a whole.

use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

use flate2::bufread::MultiGzDecoder;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::event::Event;
use super::recorded::Recorded;

/// First bytes of a file that gzip has packed.
const GZIP: [u8; 2] = [0x1f, 0x8b];
/// Bytes that are read at once.
const BLOCK: usize = 1 << 18;

/// A trace that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    #[error("cannot read {}: {cause}; name a trace that `export_chrome_trace` has written", .path.display())]
    Read {
        path: PathBuf,
        // Not `source`: the message has it, and would be shown with it twice.
        cause: io::Error,
    },
    #[error(
        "{} is cut off behind {events} events: it was taken before it was whole, or the disk was full; let the profiler write it again",
        .path.display()
    )]
    CutOff { path: PathBuf, events: u64 },
    #[error(
        "{} is no trace of PyTorch's profiler: {cause}; name a file that `torch.profiler.profile` has exported with \
         `export_chrome_trace`",
        .path.display()
    )]
    NoTrace { path: PathBuf, cause: serde_json::Error },
    #[error(
        "{} has no ops of PyTorch among its {events} events (kinds: {kinds}); record with `ProfilerActivity.CPU` among \
         the `activities`, and export behind the steps that it is to have",
        .path.display()
    )]
    NoOps { path: PathBuf, events: u64, kinds: String },
}

/// The events of a file, packed by gzip or not.
///
/// # Errors
/// A file that cannot be read, is cut off, or is no trace.
pub(super) fn recorded(path: &Path) -> Result<Recorded, TraceError> {
    let failed = |cause| TraceError::Read {
        path: path.to_owned(),
        cause,
    };
    let mut file = BufReader::with_capacity(BLOCK, File::open(path).map_err(failed)?);
    let is_packed = file.fill_buf().map_err(failed)?.starts_with(&GZIP);
    let mut recorded = Recorded::default();
    let read = match is_packed {
        true => read_whole(
            BufReader::with_capacity(BLOCK, MultiGzDecoder::new(file)),
            &mut recorded,
        ),
        false => read_whole(file, &mut recorded),
    };
    read.map_err(|error| error_of(error, path, recorded.events))?;
    Ok(recorded)
}

fn read_whole(input: impl BufRead, recorded: &mut Recorded) -> serde_json::Result<()> {
    let mut json = serde_json::Deserializer::from_reader(input);
    WholeTrace(recorded).deserialize(&mut json)?;
    json.end()
}

fn error_of(error: serde_json::Error, path: &Path, events: u64) -> TraceError {
    let path = path.to_owned();
    let ends_early = error.io_error_kind() == Some(io::ErrorKind::UnexpectedEof);
    if error.is_eof() || ends_early {
        TraceError::CutOff { path, events }
    } else if error.is_io() {
        TraceError::Read {
            path,
            cause: error.into(),
        }
    } else {
        TraceError::NoTrace { path, cause: error }
    }
}

/// The whole file: an object with the events under a key, or the list of them alone.
struct WholeTrace<'a>(&'a mut Recorded);

impl<'de> DeserializeSeed<'de> for WholeTrace<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for WholeTrace<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object with `traceEvents`")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        while let Some(key) = entries.next_key::<String>()? {
            match key.as_str() {
                "traceEvents" => entries.next_value_seed(Events(&mut *self.0))?,
                "deviceProperties" => self.0.devices = entries.next_value()?,
                "distributedInfo" => self.0.rank = entries.next_value()?,
                _ => _ = entries.next_value::<IgnoredAny>()?,
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, events: A) -> Result<(), A::Error> {
        Events(self.0).visit_seq(events)
    }
}

/// The list of events.
struct Events<'a>(&'a mut Recorded);

impl<'de> DeserializeSeed<'de> for Events<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Events<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a list of events")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut events: A) -> Result<(), A::Error> {
        while let Some(event) = events.next_element::<Event>()? {
            self.0.add(&event);
        }
        Ok(())
    }
}
