//! Where a study is tracked: `tensorboard=runs`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use super::Tracker;
use super::tensorboard::TensorBoardTracker;

/// A tracker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrackerKind {
    Tensorboard,
}

impl TrackerKind {
    pub const ALL: [Self; 1] = [Self::Tensorboard];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tensorboard => "tensorboard",
        }
    }

    /// What stands behind its name on the command line.
    fn place(self) -> &'static str {
        match self {
            Self::Tensorboard => "a folder",
        }
    }
}

/// A tracker and where it keeps studies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Destination {
    pub kind: TrackerKind,
    /// Folder, file or address.
    pub place: String,
}

/// What is no destination.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DestinationError {
    #[error("there is no tracker `{name}`: write one of {}", known())]
    Unknown { name: String },
    #[error("say where: `{}={}`", kind.name(), kind.place())]
    NoPlace { kind: TrackerKind },
}

fn known() -> String {
    let forms = TrackerKind::ALL.map(|kind| format!("`{}={}`", kind.name(), kind.place()));
    forms.join(", ")
}

impl FromStr for Destination {
    type Err = DestinationError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (name, place) = text.split_once('=').unwrap_or((text, ""));
        let Some(kind) = TrackerKind::ALL.into_iter().find(|kind| kind.name() == name) else {
            return Err(DestinationError::Unknown { name: name.to_owned() });
        };
        if place.is_empty() {
            return Err(DestinationError::NoPlace { kind });
        }
        Ok(Self {
            kind,
            place: place.to_owned(),
        })
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.kind.name(), self.place)
    }
}

impl Destination {
    /// What keeps studies there; nothing is touched yet.
    pub(super) fn tracker(&self) -> Box<dyn Tracker> {
        match self.kind {
            TrackerKind::Tensorboard => Box::new(TensorBoardTracker::new(PathBuf::from(&self.place))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_destination_reads_back_and_a_mistake_is_told() {
        let text = "tensorboard=runs/a=b";
        assert_eq!(text.parse::<Destination>().unwrap().to_string(), text);
        let unknown = "comet=x".parse::<Destination>().unwrap_err().to_string();
        assert!(
            unknown.contains("`comet`") && unknown.contains("`tensorboard=a folder`"),
            "{unknown}"
        );
        let nowhere = "tensorboard".parse::<Destination>().unwrap_err();
        assert_eq!(nowhere.to_string(), "say where: `tensorboard=a folder`");
    }
}
