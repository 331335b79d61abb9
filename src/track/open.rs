//! Opening what keeps a study up to date in a tracker.

use std::path::PathBuf;

use super::Tracker;
use super::mlflow::{FileStoreTracker, ServerTracker};
use super::optuna::OptunaTracker;
use super::tensorboard::TensorBoardTracker;
use super::trackio::TrackioTracker;
use super::wandb::WandbTracker;
use crate::space::{Destination, TrackerKind};

/// What keeps studies there; nothing is touched yet.
pub(super) fn tracker(destination: &Destination) -> Box<dyn Tracker> {
    let path = PathBuf::from(&destination.place);
    match destination.kind {
        TrackerKind::Mlflow if destination.is_address() => Box::new(ServerTracker::new(&destination.place)),
        TrackerKind::Mlflow => Box::new(FileStoreTracker::new(path)),
        TrackerKind::Optuna => Box::new(OptunaTracker::new(path)),
        TrackerKind::Tensorboard => Box::new(TensorBoardTracker::new(path)),
        TrackerKind::Trackio => Box::new(TrackioTracker::new(path)),
        TrackerKind::Wandb => Box::new(WandbTracker::new(path)),
    }
}
