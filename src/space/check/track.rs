//! Trackers of a study.

use super::Context;
use crate::space::file::TrackEntry;
use crate::space::{Destination, DestinationError, SpaceError};

impl Context<'_> {
    /// The destinations of the key `track`, each once. Where files are not looked at, the environment's places are not either.
    pub(super) fn track(&self, entries: &[TrackEntry]) -> Result<Vec<Destination>, SpaceError> {
        let mut destinations = Vec::new();
        for (index, entry) in entries.iter().enumerate() {
            let destination = match entry.0.trim().parse::<Destination>() {
                Ok(destination) => destination.map_path(|path| self.absolute(path)),
                Err(DestinationError::NoPlace { .. }) if entry.0.trim() == "mlflow" && !self.options.check_files => {
                    continue;
                }
                Err(error) => {
                    return Err(SpaceError::Rejected {
                        at: self.document.value(&["track", &index.to_string()]),
                        message: error.to_string(),
                    });
                }
            };
            if !destinations.contains(&destination) {
                destinations.push(destination);
            }
        }
        Ok(destinations)
    }
}
