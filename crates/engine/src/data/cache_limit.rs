//! How much the cache of tokens, and of rows for other tools, may hold: what was not used for longest makes room.

use std::fs::Metadata;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// GiB that the cache may hold, where `PEFT_TUNE_CACHE_GIB` does not say.
const GIB: f64 = 50.0;
/// Endings of files that can be made again: tokens, digests of data files, and rows for other tools.
const ENDINGS: [&str; 3] = ["tokens", "digest", "rows"];
/// A file that was used so shortly ago is never removed: a search may go on with it.
const IN_USE: Duration = Duration::from_secs(24 * 60 * 60);

/// Removes the files of the cache in `folder` that were not used for longest, until the others hold no more than they
/// may. `kept` stays, and so does what was used within a day.
pub fn make_room(folder: &Path, kept: &Path) {
    let given = std::env::var("PEFT_TUNE_CACHE_GIB")
        .ok()
        .and_then(|text| text.parse().ok());
    let most = given.unwrap_or(GIB).max(0.0) * f64::from(1 << 30);
    let mut files = files_of(folder, &ENDINGS);
    let mut held: u64 = files.iter().map(|(_, metadata)| metadata.len()).sum();
    files.sort_by_key(|(_, metadata)| metadata.modified().ok());
    for (path, metadata) in files {
        if held as f64 <= most {
            break;
        }
        if path != kept && is_old(&metadata) && std::fs::remove_file(&path).is_ok() {
            tracing::info!(path = %path.display(), "removed from the tokenised cache to make room");
            held -= metadata.len();
        }
    }
}

/// Removes what processes that were killed left unfinished.
pub(super) fn remove_unfinished(folder: &Path) {
    for (path, metadata) in files_of(folder, &["tmp"]) {
        if is_old(&metadata) {
            // Another process may have done it.
            let _ = std::fs::remove_file(path);
        }
    }
}

fn is_old(metadata: &Metadata) -> bool {
    let used = metadata.modified().ok();
    used.and_then(|used| SystemTime::now().duration_since(used).ok())
        .is_some_and(|age| age > IN_USE)
}

fn files_of(folder: &Path, endings: &[&str]) -> Vec<(PathBuf, Metadata)> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let found = entries.filter_map(|entry| {
        let path = entry.path();
        let ending = path.extension()?.to_str()?;
        let metadata = entry.metadata().ok().filter(Metadata::is_file)?;
        endings.contains(&ending).then_some((path, metadata))
    });
    found.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_files_make_room_and_new_ones_stay() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, days: u64, gib: u64| {
            let path = folder.path().join(name);
            let file = std::fs::File::create(&path).unwrap();
            // Nothing is written: the file has holes.
            file.set_len(gib << 30).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(days * 25 * 60 * 60))
                .unwrap();
            path
        };
        let rows = file("r.train.rows", 11, 2);
        let oldest = file("a.tokens", 9, 20);
        let old = file("b.tokens", 5, 20);
        let used = file("c.tokens", 0, 25);
        let other = file("d.other", 9, 1);
        let (killed, busy) = (file("e.1-0.tmp", 2, 1), file("e.2-0.tmp", 0, 1));
        let kept = file("f.tokens", 0, 1);
        make_room(folder.path(), &kept);
        remove_unfinished(folder.path());
        let there: Vec<bool> = [&rows, &oldest, &old, &used, &other, &killed, &busy, &kept]
            .map(|path| path.exists())
            .into();
        assert_eq!(there, [false, false, true, true, true, false, true, true]);
    }
}
