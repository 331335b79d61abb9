//! Destinations of a study's results: a tracker and a place, `tensorboard=runs`.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// A tracker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrackerKind {
    Mlflow,
    Optuna,
    Tensorboard,
    Trackio,
    Wandb,
}

impl TrackerKind {
    pub const ALL: [Self; 5] = [
        Self::Mlflow,
        Self::Optuna,
        Self::Tensorboard,
        Self::Trackio,
        Self::Wandb,
    ];

    /// Name of the tracker on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mlflow => "mlflow",
            Self::Optuna => "optuna",
            Self::Tensorboard => "tensorboard",
            Self::Trackio => "trackio",
            Self::Wandb => "wandb",
        }
    }

    /// What stands behind its name on the command line.
    fn place(self) -> &'static str {
        match self {
            Self::Mlflow => "a folder or http://HOST:PORT",
            Self::Optuna => "a file",
            Self::Tensorboard | Self::Trackio | Self::Wandb => "a folder",
        }
    }
}

/// A tracker and where it keeps studies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Destination {
    pub kind: TrackerKind,
    /// Folder, file, or address with `http://` or `https://`.
    pub place: String,
}

/// What is no destination.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DestinationError {
    #[error("there is no tracker `{name}`: write one of {}", known())]
    Unknown { name: String },
    #[error("say where: `{}={}`", kind.name(), kind.place())]
    NoPlace { kind: TrackerKind },
    #[error(
        "`{scheme}://` is no place for MLflow runs that can be written to directly: start `mlflow server` on it, and name its http address"
    )]
    Scheme { scheme: String },
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
        // Where MLflow's own client would send to.
        let usual = match kind {
            TrackerKind::Mlflow => std::env::var("MLFLOW_TRACKING_URI").unwrap_or_default(),
            TrackerKind::Optuna | TrackerKind::Tensorboard | TrackerKind::Trackio | TrackerKind::Wandb => String::new(),
        };
        let place = if place.is_empty() { usual.as_str() } else { place };
        if let Some((scheme, _)) = place.split_once("://").filter(|_| kind == TrackerKind::Mlflow)
            && !["http", "https", "file"].contains(&scheme)
        {
            return Err(DestinationError::Scheme {
                scheme: scheme.to_owned(),
            });
        }
        if place.is_empty() {
            return Err(DestinationError::NoPlace { kind });
        }
        Ok(Self {
            kind,
            place: plain_place(kind, place).to_owned(),
        })
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.kind.name(), self.place)
    }
}

impl Destination {
    /// Whether the destination is a server, and no folder or file.
    pub fn is_address(&self) -> bool {
        self.place.starts_with("http://") || self.place.starts_with("https://")
    }

    /// Copies the destination, with a folder or file as an absolute path.
    #[must_use]
    pub fn map_path(&self, absolute: impl FnOnce(&Path) -> PathBuf) -> Self {
        let place = match self.is_address() {
            true => self.place.clone(),
            false => absolute(Path::new(&self.place)).to_string_lossy().into_owned(),
        };
        Self { kind: self.kind, place }
    }
}

/// A place as a path where it was written as the address of one: `sqlite:///FILE` as Optuna has it, `file:FOLDER` as MLflow.
fn plain_place(kind: TrackerKind, place: &str) -> &str {
    match kind {
        TrackerKind::Mlflow => {
            let folder = place.strip_prefix("file:").unwrap_or(place);
            folder.strip_prefix("//").unwrap_or(folder)
        }
        TrackerKind::Optuna => place.strip_prefix("sqlite:///").unwrap_or(place),
        TrackerKind::Tensorboard | TrackerKind::Trackio | TrackerKind::Wandb => place,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_destination_reads_back_and_a_mistake_is_told() {
        let text = "tensorboard=runs/a=b";
        assert_eq!(text.parse::<Destination>().unwrap().to_string(), text);
        for (written, place) in [
            ("optuna=sqlite:///a.db", "a.db"),
            ("optuna=sqlite:////tmp/a.db", "/tmp/a.db"),
            ("mlflow=file:///tmp/runs", "/tmp/runs"),
            ("mlflow=http://host:5000", "http://host:5000"),
        ] {
            assert_eq!(written.parse::<Destination>().unwrap().place, place);
        }
        let unknown = "comet=x".parse::<Destination>().unwrap_err().to_string();
        assert!(
            unknown.contains("`comet`") && unknown.contains("`tensorboard=a folder`"),
            "{unknown}"
        );
        let nowhere = "tensorboard".parse::<Destination>().unwrap_err();
        let scheme = "mlflow=sqlite:///runs.db"
            .parse::<Destination>()
            .unwrap_err()
            .to_string();
        assert!(scheme.contains("mlflow server"), "{scheme}");
        assert_eq!(nowhere.to_string(), "say where: `tensorboard=a folder`");
    }
}
