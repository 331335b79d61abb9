//! What is on this machine: models and data files.

use std::io::Read;
use std::path::{Path, PathBuf};

use peft_tune_engine::hub::HubSettings;

/// Models that need no download: folders here with a `config.json`, then the Hugging Face cache.
pub(in crate::cli) fn models() -> Vec<String> {
    let mut found: Vec<String> = entries(Path::new("."))
        .into_iter()
        .flat_map(|folder| std::iter::once(folder.clone()).chain(entries(&folder)))
        .filter(|folder| folder.join("config.json").is_file())
        .map(|folder| folder.display().to_string())
        .collect();
    found.sort();
    if let Ok(settings) = HubSettings::from_env() {
        found.extend(cached_models(&settings.cache));
    }
    found
}

/// Ids of the models in a cache folder whose configuration is there.
fn cached_models(cache: &Path) -> Vec<String> {
    let mut ids: Vec<String> = entries(cache)
        .into_iter()
        .filter(|folder| {
            entries(&folder.join("snapshots"))
                .iter()
                .any(|snapshot| snapshot.join("config.json").exists())
        })
        .filter_map(|folder| {
            let name = folder.file_name()?.to_string_lossy().into_owned();
            Some(name.strip_prefix("models--")?.replacen("--", "/", 1))
        })
        .collect();
    ids.sort();
    ids
}

/// Files of rows in a folder and the folders in it.
pub(in crate::cli) fn data_files(folder: &Path) -> Vec<String> {
    const ENDINGS: [&str; 7] = ["jsonl", "ndjson", "json", "csv", "tsv", "parquet", "txt"];
    const NOT_DATA: [&str; 8] = [
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "vocab.json",
        "package.json",
        "adapter_config.json",
    ];
    let mut files: Vec<(usize, String)> = entries(folder)
        .into_iter()
        .flat_map(|path| if path.is_dir() { entries(&path) } else { vec![path] })
        .filter(|path| path.is_file())
        .filter_map(|path| {
            let name = path.file_name()?.to_string_lossy().into_owned();
            let ending = path.extension()?.to_string_lossy().to_lowercase();
            let rank = ENDINGS.iter().position(|known| *known == ending)?;
            // A file that is called so is most likely meant.
            let rank = if name.starts_with("train") {
                rank
            } else {
                rank + ENDINGS.len()
            };
            (!NOT_DATA.contains(&name.as_str())).then(|| (rank, path.display().to_string()))
        })
        .collect();
    files.sort();
    files.into_iter().map(|(_, path)| path).collect()
}

/// Entries of a folder that are not hidden.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.retain(|path| {
        path.file_name()
            .is_some_and(|name| !name.to_string_lossy().starts_with('.'))
    });
    paths.sort();
    paths
}

/// Whether the first rows of a file are written in the signs of a chat template already.
pub(super) fn begins_with_chat_marks(path: &Path) -> bool {
    const LOOKED_AT: u64 = 64 << 10;
    const MARKS: [&str; 6] = [
        "<|im_start|>",
        "<|start_header_id|>",
        "<start_of_turn>",
        "<|user|>",
        "[INST]",
        "### Response:",
    ];
    let mut bytes = Vec::new();
    let read = std::fs::File::open(path).and_then(|file| file.take(LOOKED_AT).read_to_end(&mut bytes));
    let text = String::from_utf8_lossy(&bytes);
    read.is_ok() && MARKS.iter().any(|mark| text.contains(mark))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cached_models_and_data_files_are_found_and_others_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let put = |path: &str| {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "{\"text\": \"a\"}\n").unwrap();
        };
        put("models--Qwen--Qwen2.5-0.5B/snapshots/abc/config.json");
        put("models--half--loaded/refs/main");
        assert_eq!(cached_models(folder.path()), ["Qwen/Qwen2.5-0.5B"]);
        put("data/other.jsonl");
        put("train.csv");
        put("model/config.json");
        let found = data_files(folder.path());
        assert!(
            found[0].ends_with("train.csv") && found[1].ends_with("other.jsonl"),
            "{found:?}"
        );
        assert_eq!(found.len(), 2);
    }
}
