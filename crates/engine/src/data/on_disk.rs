//! The files of data settings on this disk: data sets of the hub are files of its cache.

use std::path::{Path, PathBuf};

use super::DataError;
use crate::hub::{DownloadObserver, cached_data_files, data_files};
use peft_tune_core::recipe::{DataSettings, HeldOut, HubDataSet};

/// The settings with files in place of data sets of the hub, all of which must be in the cache.
///
/// # Errors
/// One that is not there.
pub fn on_disk(settings: &DataSettings) -> Result<DataSettings, DataError> {
    each(settings, &mut |path| cached_data_files(path))
}

/// Downloads the data sets of the hub that settings name, as far as they are not in the cache.
///
/// # Errors
/// See [`crate::hub::DataSetError`].
pub fn bring(settings: &DataSettings, observer: &mut dyn DownloadObserver) -> Result<DataSettings, DataError> {
    each(settings, &mut |path| data_files(path, observer))
}

fn each(
    settings: &DataSettings,
    files: &mut dyn FnMut(&Path) -> Result<Vec<PathBuf>, crate::hub::DataSetError>,
) -> Result<DataSettings, DataError> {
    let held_out = settings.held_out.files();
    let mut all = settings.train.files().chain(held_out).chain(&settings.retain);
    if !all.any(|path| HubDataSet::is_written(path)) {
        return Ok(settings.clone());
    }
    let mut of = |key, path: &Path| files(path).map_err(|source| DataError::Hub { key, source });
    Ok(DataSettings {
        train: settings.train.replaced(|_, path| of("data.train", path))?,
        held_out: match &settings.held_out {
            HeldOut::Fraction(fraction) => HeldOut::Fraction(*fraction),
            files => {
                let mut found = Vec::new();
                for path in files.files() {
                    found.extend(of("data.held_out", path)?);
                }
                HeldOut::Files(found)
            }
        },
        retain: {
            let mut found = Vec::new();
            for path in &settings.retain {
                found.extend(of("data.retain", path)?);
            }
            found
        },
        ..settings.clone()
    })
}
