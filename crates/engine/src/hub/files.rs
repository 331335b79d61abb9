//! The files of one model, found in a directory or brought from the hub.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::download::{DownloadObserver, HubModel};
use super::index::shards_of;
use super::name::parse_hub_name;
use super::needed_files::{
    CHAT_TEMPLATE, CONFIG, GENERATION_CONFIG, NeededFiles, PICKLED_INDEX, PICKLED_WEIGHTS, SPECIAL_TOKENS_MAP,
    TOKENIZER, TOKENIZER_CONFIG, WEIGHTS, WEIGHTS_INDEX, WeightReader, is_index,
};
use super::settings::{HubSettings, RepoKind};
use super::{HubError, MissingFile};
use crate::gguf::GgufWeights;
use peft_tune_core::bounded;

/// Everything that is needed to train a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelFiles {
    /// Model as the user wrote it: a directory or a hub id.
    pub model: String,
    /// The directory that holds the files.
    pub folder: PathBuf,
    pub config: PathBuf,
    pub tokenizer: TokenizerFiles,
    /// The safetensors files in order of their names, or the GGUF file; for transformers also PyTorch's own files.
    pub weights: Vec<PathBuf>,
}

/// Everything that is needed to tokenise data for a model; the weights may be absent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenizerFiles {
    /// `tokenizer.json`; see [`TokenizerFiles::are_there`].
    pub tokenizer: PathBuf,
    /// `tokenizer_config.json`.
    pub config: Option<PathBuf>,
    /// `special_tokens_map.json`, which older models have beside it.
    pub special_tokens_map: Option<PathBuf>,
    /// `chat_template.jinja`.
    pub chat_template: Option<PathBuf>,
    /// `generation_config.json`, which may name further tokens that end an answer.
    pub generation_config: Option<PathBuf>,
    /// The model's `config.json`, which may name them too.
    pub model_config: Option<PathBuf>,
}

impl ModelFiles {
    /// Finds a model's files: `model` is a directory, or a hub id (`owner/name`, `owner/name@revision`) whose files
    /// are taken from the hub's cache and downloaded where they are not there yet.
    ///
    /// # Errors
    /// See [`HubError`]; missing files are all named at once.
    pub fn resolve(model: &str) -> Result<Self, HubError> {
        Self::resolve_watched(model, &mut ())
    }

    /// [`ModelFiles::resolve`], told to `observer` while it downloads.
    pub fn resolve_watched(model: &str, observer: &mut dyn DownloadObserver) -> Result<Self, HubError> {
        Self::found(model, NeededFiles::Everything(WeightReader::Engine), observer)
    }

    /// [`ModelFiles::resolve_watched`], but the model need not have a tokenizer: data may be tokenised already.
    pub fn resolve_weights(model: &str, observer: &mut dyn DownloadObserver) -> Result<Self, HubError> {
        Self::found(model, NeededFiles::Weights(WeightReader::Engine), observer)
    }

    /// [`ModelFiles::resolve_weights`] for a training that transformers loads the model of: weights may be PyTorch's own files, which
    /// this engine does not read, and no GGUF file.
    pub fn resolve_for_transformers(model: &str, observer: &mut dyn DownloadObserver) -> Result<Self, HubError> {
        Self::found(model, NeededFiles::Weights(WeightReader::Transformers), observer)
    }

    /// [`ModelFiles::resolve`] with a cache and mode of the caller's choice instead of the environment's, and with weights in any
    /// form: what asks reads the files beside them.
    pub fn resolve_with(model: &str, settings: &HubSettings) -> Result<Self, HubError> {
        let part = NeededFiles::Everything(WeightReader::Nobody);
        let folder = folder_of(model, part, || Ok(settings.clone()), &mut ())?;
        Self::in_folder(model, &folder, part)
    }

    /// Finds `config.json` alone, which is all that planning needs: no weights are downloaded.
    pub fn resolve_config(model: &str) -> Result<PathBuf, HubError> {
        let folder = folder_of(model, NeededFiles::Config, HubSettings::from_env, &mut ())?;
        check(model, &folder, NeededFiles::Config)?;
        Ok(folder.join(CONFIG))
    }

    fn found(model: &str, part: NeededFiles, observer: &mut dyn DownloadObserver) -> Result<Self, HubError> {
        let folder = folder_of(model, part, HubSettings::from_env, observer)?;
        Self::in_folder(model, &folder, part)
    }

    fn in_folder(model: &str, folder: &Path, part: NeededFiles) -> Result<Self, HubError> {
        check(model, folder, part)?;
        let weights = match part.weight_reader().and_then(|reader| weights_in(folder, reader)) {
            Some(WeightFiles::Sharded(index)) => shards_of(&index)?.iter().map(|shard| folder.join(shard)).collect(),
            Some(WeightFiles::Single(file)) => vec![file],
            None => Vec::new(),
        };
        Ok(Self {
            model: model.to_owned(),
            folder: folder.to_owned(),
            config: folder.join(CONFIG),
            tokenizer: TokenizerFiles::in_folder(folder),
            weights,
        })
    }
}

impl TokenizerFiles {
    /// Finds a model's tokenizer as [`ModelFiles::resolve`] finds the whole model; no weights are downloaded.
    pub fn resolve(model: &str) -> Result<Self, HubError> {
        let folder = folder_of(model, NeededFiles::Tokenizer, HubSettings::from_env, &mut ())?;
        check(model, &folder, NeededFiles::Tokenizer)?;
        Ok(Self::in_folder(&folder))
    }

    /// Whether there is a tokenizer.
    pub fn are_there(&self) -> bool {
        self.tokenizer.is_file()
    }

    fn in_folder(folder: &Path) -> Self {
        let optional = |name| Some(folder.join(name)).filter(|path| path.is_file());
        Self {
            tokenizer: folder.join(TOKENIZER),
            config: optional(TOKENIZER_CONFIG),
            special_tokens_map: optional(SPECIAL_TOKENS_MAP),
            chat_template: optional(CHAT_TEMPLATE),
            generation_config: optional(GENERATION_CONFIG),
            model_config: optional(CONFIG),
        }
    }
}

/// The directory that holds `part` of `model`.
fn folder_of(
    model: &str,
    part: NeededFiles,
    settings: impl FnOnce() -> Result<HubSettings, HubError>,
    observer: &mut dyn DownloadObserver,
) -> Result<PathBuf, HubError> {
    if Path::new(model).is_dir() {
        return Ok(PathBuf::from(model));
    }
    let (id, revision) = parse_hub_name(model)?;
    let settings = settings()?;
    let hub_model = HubModel {
        id,
        revision,
        settings: &settings,
    };
    hub_folder(&hub_model, part, observer)
}

fn hub_folder(model: &HubModel, part: NeededFiles, observer: &mut dyn DownloadObserver) -> Result<PathBuf, HubError> {
    let settings = model.settings;
    let cached = settings.snapshot(RepoKind::Model, model.id, model.revision);
    let files = match &cached {
        Some(folder) => missing(folder, part)?,
        None => nothing_there(part),
    };
    if let (Some(folder), true) = (cached, files.is_empty()) {
        return Ok(folder);
    }
    let (id, revision, cache) = (model.id.to_owned(), model.revision.to_owned(), settings.cache.clone());
    if settings.offline {
        return Err(HubError::NotCached {
            id,
            revision,
            cache,
            files,
        });
    }
    match model.download(part, observer) {
        // The very first request failed without an answer: there is no network.
        Err(HubError::Download { source, file, .. }) if file == CONFIG => Err(HubError::Unreachable {
            id,
            revision,
            cache,
            files,
            source,
        }),
        other => other,
    }
}

/// Fails where `folder` lacks a file that `part` needs.
fn check(model: &str, folder: &Path, part: NeededFiles) -> Result<(), HubError> {
    let files = missing(folder, part)?;
    if files.is_empty() {
        return Ok(());
    }
    if let Ok(text) = bounded::read(&folder.join("adapter_config.json"), bounded::SETTINGS_BYTES) {
        let config: Option<serde_json::Value> = serde_json::from_slice(&text).ok();
        return Err(HubError::Adapter {
            folder: folder.to_owned(),
            base: config.and_then(|config| Some(config.get("base_model_name_or_path")?.as_str()?.to_owned())),
        });
    }
    Err(HubError::Missing {
        model: model.to_owned(),
        folder: folder.to_owned(),
        files,
    })
}

/// The files of `part` that `folder` lacks.
fn missing(folder: &Path, part: NeededFiles) -> Result<Vec<MissingFile>, HubError> {
    let lacks = |name: &&&str| !folder.join(name).is_file();
    let mut files: Vec<_> = part
        .required()
        .iter()
        .filter(lacks)
        .map(|name| MissingFile {
            name: (*name).to_owned(),
            advice: advice(folder, name),
        })
        .collect();
    if let Some(reader) = part.weight_reader() {
        files.extend(missing_weights(folder, reader)?);
    }
    Ok(files)
}

/// A checkpoint's weights in a folder.
enum WeightFiles {
    /// The index that names its shards.
    Sharded(PathBuf),
    Single(PathBuf),
}

/// The weights in a folder that a reader takes. Of several GGUF files which one is for the reader itself to say.
fn weights_in(folder: &Path, reader: WeightReader) -> Option<WeightFiles> {
    match reader.forms().iter().find(|name| folder.join(name).is_file()) {
        Some(name) if is_index(name) => Some(WeightFiles::Sharded(folder.join(name))),
        Some(name) => Some(WeightFiles::Single(folder.join(name))),
        None if reader.takes_gguf() => GgufWeights::first(folder).map(WeightFiles::Single),
        None => None,
    }
}

fn missing_weights(folder: &Path, reader: WeightReader) -> Result<Vec<MissingFile>, HubError> {
    let index = match weights_in(folder, reader) {
        Some(WeightFiles::Sharded(index)) => index,
        Some(WeightFiles::Single(_)) => return Ok(Vec::new()),
        None => {
            return Ok(vec![MissingFile {
                name: format!("{WEIGHTS} or {WEIGHTS_INDEX}"),
                advice: advice(folder, WEIGHTS),
            }]);
        }
    };
    let mut files = Vec::new();
    for name in shards_of(&index)? {
        if !folder.join(&name).is_file() {
            let advice = "a shard that the index names; fetch it again";
            files.push(MissingFile { name, advice });
        }
    }
    Ok(files)
}

/// Advice about a file that `folder` lacks, given what is there instead.
fn advice(folder: &Path, name: &str) -> &'static str {
    let has = |name: &str| folder.join(name).is_file();
    match name {
        TOKENIZER if has("tokenizer.model") || has("vocab.json") => {
            "load and save the tokenizer once with transformers' AutoTokenizer, which writes it"
        }
        TOKENIZER => "copy it from the model's hub page",
        WEIGHTS if has(PICKLED_WEIGHTS) || has(PICKLED_INDEX) => {
            "only PyTorch's own weights are there, which TRL trains on: search with `--backend trl`; or write safetensors beside them, in \
             that folder: python -c \"from transformers import AutoModelForCausalLM as M; M.from_pretrained('.').save_pretrained('.')\""
        }
        WEIGHTS if GgufWeights::first(folder).is_some() => {
            "only a GGUF file is there, which the built-in engine alone reads: search with `--backend native`, or copy the \
             safetensors from the model's hub page"
        }
        WEIGHTS => "copy the weights from the model's hub page",
        _ => "",
    }
}

/// Files that are missing where nothing is there.
fn nothing_there(part: NeededFiles) -> Vec<MissingFile> {
    let weights = part.weight_reader().map(|_| WEIGHTS);
    let names = part.required().iter().copied().chain(weights);
    names
        .map(|name| MissingFile {
            name: name.to_owned(),
            advice: "",
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(folder: &Path, files: &[(&str, &str)]) {
        std::fs::create_dir_all(folder).unwrap();
        for (name, text) in files {
            std::fs::write(folder.join(name), text).unwrap();
        }
    }

    const WHOLE: &[(&str, &str)] = &[("config.json", "{}"), ("tokenizer.json", "{}"), (WEIGHTS, "")];

    #[test]
    fn a_directory_is_taken_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), WHOLE);
        write(folder.path(), &[("chat_template.jinja", "x")]);
        let files = ModelFiles::resolve(folder.path().to_str().unwrap()).unwrap();
        assert_eq!(files.weights, [folder.path().join(WEIGHTS)]);
        assert_eq!(files.tokenizer.chat_template, Some(folder.path().join(CHAT_TEMPLATE)));
        assert_eq!(files.tokenizer.config, None);
    }

    #[test]
    fn weights_alone_need_no_tokenizer() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), &[("config.json", "{}"), (WEIGHTS, "")]);
        let files = ModelFiles::resolve_weights(folder.path().to_str().unwrap(), &mut ()).unwrap();
        assert!(!files.tokenizer.are_there());
        std::fs::remove_file(folder.path().join(WEIGHTS)).unwrap();
        assert!(ModelFiles::resolve_weights(folder.path().to_str().unwrap(), &mut ()).is_err());
    }

    #[test]
    fn all_missing_files_are_named_at_once() {
        let folder = tempfile::tempdir().unwrap();
        write(
            folder.path(),
            &[("pytorch_model.bin", ""), ("tokenizer.model", ""), (WEIGHTS_INDEX, "")],
        );
        std::fs::remove_file(folder.path().join(WEIGHTS_INDEX)).unwrap();
        let error = ModelFiles::resolve(folder.path().to_str().unwrap()).unwrap_err();
        let message = error.to_string();
        for part in [
            "config.json",
            "AutoTokenizer",
            "only PyTorch's own weights",
            "--backend trl",
            "save_pretrained('.')",
        ] {
            assert!(message.contains(part), "{message}");
        }
    }

    #[test]
    fn pickled_weights_will_do_where_transformers_reads_them_and_there_are_no_others() {
        let folder = tempfile::tempdir().unwrap();
        let model = folder.path().to_str().unwrap().to_owned();
        let index = r#"{"weight_map": {"x": "b.bin", "y": "a.bin"}}"#;
        write(
            folder.path(),
            &[("config.json", "{}"), (PICKLED_INDEX, index), ("a.bin", "")],
        );
        let found = || ModelFiles::resolve_for_transformers(&model, &mut ()).map(|files| files.weights);
        assert!(found().unwrap_err().to_string().contains("b.bin (a shard"));
        write(folder.path(), &[("b.bin", "")]);
        assert_eq!(
            found().unwrap(),
            [folder.path().join("a.bin"), folder.path().join("b.bin")]
        );
        assert!(ModelFiles::resolve_weights(&model, &mut ()).is_err());
        // The order is that of transformers, which is given no GGUF file.
        let gguf = folder.path().join("model.gguf");
        write(folder.path(), &[("model.gguf", "")]);
        assert_eq!(found().unwrap().len(), 2);
        assert_eq!(ModelFiles::resolve_weights(&model, &mut ()).unwrap().weights, [gguf]);
        for name in [PICKLED_WEIGHTS, WEIGHTS] {
            write(folder.path(), &[(name, "")]);
            assert_eq!(found().unwrap(), [folder.path().join(name)]);
        }
        let engine = ModelFiles::resolve_weights(&model, &mut ()).unwrap();
        assert_eq!(engine.weights, [folder.path().join(WEIGHTS)]);
    }

    #[test]
    fn a_gguf_file_alone_is_for_the_engine() {
        let folder = tempfile::tempdir().unwrap();
        let model = folder.path().to_str().unwrap().to_owned();
        write(
            folder.path(),
            &[("config.json", "{}"), ("tokenizer.json", "{}"), ("a.gguf", "")],
        );
        let weights = [folder.path().join("a.gguf")];
        assert_eq!(ModelFiles::resolve(&model).unwrap().weights, weights);
        let settings = HubSettings::offline(folder.path());
        assert_eq!(ModelFiles::resolve_with(&model, &settings).unwrap().weights, weights);
        let error = ModelFiles::resolve_for_transformers(&model, &mut ()).unwrap_err();
        assert!(error.to_string().contains("--backend native"), "{error}");
    }

    #[test]
    fn shards_come_from_the_index() {
        let folder = tempfile::tempdir().unwrap();
        write(
            folder.path(),
            &[("config.json", "{}"), ("tokenizer.json", "{}"), ("b", "")],
        );
        let index = r#"{"weight_map": {"x": "b", "y": "a", "z": "b"}}"#;
        write(folder.path(), &[(WEIGHTS_INDEX, index)]);
        let error = ModelFiles::resolve(folder.path().to_str().unwrap()).unwrap_err();
        assert!(error.to_string().contains("a (a shard"), "{error}");
        write(folder.path(), &[("a", "")]);
        let files = ModelFiles::resolve(folder.path().to_str().unwrap()).unwrap();
        assert_eq!(files.weights, [folder.path().join("a"), folder.path().join("b")]);
    }

    #[test]
    fn an_adapter_is_told_from_a_model() {
        let folder = tempfile::tempdir().unwrap();
        write(
            folder.path(),
            &[("adapter_config.json", r#"{"base_model_name_or_path": "a/b"}"#)],
        );
        let error = ModelFiles::resolve(folder.path().to_str().unwrap()).unwrap_err();
        assert!(error.to_string().contains("(`a/b`)"), "{error}");
    }

    #[test]
    fn a_cached_model_needs_no_network() {
        let cache = tempfile::tempdir().unwrap();
        let model = cache.path().join("models--owner--name");
        write(&model.join("snapshots/abc"), WHOLE);
        write(&model.join("refs"), &[("main", "abc\n"), ("v1", "def")]);
        let settings = HubSettings::offline(cache.path());
        for name in ["owner/name", "owner/name@main", "owner/name@abc"] {
            let files = ModelFiles::resolve_with(name, &settings).unwrap();
            assert_eq!(files.folder, model.join("snapshots/abc"));
        }
        let error = ModelFiles::resolve_with("owner/name@v1", &settings).unwrap_err();
        let message = error.to_string();
        assert!(message.contains("owner/name") && message.contains("v1") && message.contains("HF_HUB_OFFLINE"));
        assert!(message.contains(cache.path().to_str().unwrap()), "{message}");
    }

    #[test]
    fn a_half_cached_model_tells_what_is_missing() {
        let cache = tempfile::tempdir().unwrap();
        let model = cache.path().join("models--owner--name");
        write(
            &model.join("snapshots/abc"),
            &[("config.json", "{}"), ("tokenizer.json", "{}")],
        );
        write(&model.join("refs"), &[("main", "abc")]);
        let error = ModelFiles::resolve_with("owner/name", &HubSettings::offline(cache.path())).unwrap_err();
        assert!(error.to_string().contains(WEIGHTS), "{error}");
    }

    #[test]
    fn without_network_the_error_names_id_cache_and_remedy() {
        let cache = tempfile::tempdir().unwrap();
        let settings = HubSettings {
            offline: false,
            // Nothing listens on the discard port, so the connection is refused at once.
            endpoint: "http://127.0.0.1:9".to_owned(),
            ..HubSettings::offline(cache.path())
        };
        let message = ModelFiles::resolve_with("owner/name", &settings)
            .unwrap_err()
            .to_string();
        for part in ["owner/name", cache.path().to_str().unwrap(), "HF_HOME", WEIGHTS] {
            assert!(message.contains(part), "{message}");
        }
    }
}
